"""Whether the JVMs of a session read the objects of a lake, with file systems and credentials of their own.

Owns the decision, once for each session and lake: Spark reads the marker of the lake, in the driver and in
one executor. Must not know what is in the objects, and gives Spark no credential: those of `store_options`
stay where they are, and Spark has its own settings.

INVARIANT: a reason has names of classes only, and no message of theirs, which may hold secrets.
"""

import json
import re
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelake.spark.tasks import described
from tidelake.spark.versions import condition
from tidelake.store.marker import MARKER

# The schemes of our urls, and those of the file systems that the JVM reads them by.
_SCHEMES = {"file": "file", "s3": "s3a", "gs": "gs", "abfss": "abfss"}
# Spark takes a path with these characters for a pattern.
_PATTERN = frozenset("{}[]*?\\")
# One attempt, and short waits. File systems are cached with the settings of the first use: not this one.
_PROBING = {
    **{f"fs.{scheme}.impl.disable.cache": "true" for scheme in ("s3a", "gs", "abfss")},
    **dict.fromkeys(
        (
            "fs.s3a.attempts.maximum",
            "fs.s3a.retry.limit",
            "fs.azure.io.retry.max.retries",
            "fs.gs.http.max.retry",
        ),
        "0",
    ),
    **dict.fromkeys(
        (
            "fs.s3a.connection.establish.timeout",
            "fs.s3a.connection.timeout",
            "fs.azure.http.connection.timeout",
            "fs.azure.http.read.timeout",
            "fs.gs.http.connect-timeout",
            "fs.gs.http.read-timeout",
        ),
        "5000",
    ),
}
_CLASS_MISSING = re.compile(r"ClassNotFoundException: (?:Class )?([\w.$]+)")
_CLASS = re.compile(r"\b(?:[a-z][a-z0-9_]*\.)+([A-Z]\w*(?:Exception|Error))\b")
# They only carry another one.
_CARRIERS = ("RuntimeException", "SparkException", "SparkRuntimeException", "UncheckedIOException")
_decided: "WeakKeyDictionary[SparkSession, dict[str, str]]" = WeakKeyDictionary()


def jvm_url(url: str) -> str:
    """The url of an object as the JVM reads it."""
    scheme, _, rest = url.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}://{rest}"


def why_unreadable(spark: SparkSession, folder: str | None) -> str:
    """Why the JVMs of the session cannot read the objects of a lake; empty if they can.

    The first call for an object store runs a job that reads a small object; later ones have its answer, also
    if settings of the session have changed. Without an answer of the store it takes a minute at most.
    """
    if folder is None:
        return "the objects of the lake are in the memory of one process"
    if _PATTERN & set(folder):
        return "Spark takes the url of the lake for a pattern"
    scheme = folder.partition("://")[0]
    if scheme == "file":
        return ""
    if scheme not in _SCHEMES:
        return f"no file system of Hadoop reads {scheme}://"
    decided = _decided.setdefault(spark, {})
    if folder not in decided:
        decided[folder] = _probed(spark, jvm_url(folder))
    return decided[folder]


def _probed(spark: SparkSession, folder: str) -> str:
    place, lake, _ = folder.rsplit("/", 2)
    marker = f"{place}/{MARKER}"
    try:
        with described(spark, f"tidelake: whether Spark reads {marker}"):
            row = spark.read.format("binaryFile").options(**_PROBING).load(marker).select("content").first()
    except (PySparkException, Py4JError) as error:
        return f"Spark's JVM cannot read {marker}: {_reason(error)}"
    # A bucket of this name on another server may hold another lake.
    return "" if row is not None and _is_of(bytes(row[0]), lake) else f"another lake is at Spark's {marker}"


def _is_of(marker: bytes, lake: str) -> bool:
    try:
        found = json.loads(marker)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("lake") == lake


def _reason(error: Exception) -> str:
    if isinstance(error, PySparkException) and condition(error):
        return condition(error)
    text = str(error)
    if missing := _CLASS_MISSING.search(text):
        return f"its class path has no {missing[1]}"
    names = [name for name in _CLASS.findall(text) if name not in _CARRIERS]
    return names[0] if names else type(error).__name__
