"""A Spark session on this machine, for the demo, the command line and the tests.

Owns the settings that Tidelake wants from a local session, and the search for a Java that can start
Spark. It must not know collections. Jobs on a cluster bring their own session: nothing else in
`tidelake.spark` depends on how the session was made.

INVARIANT: everything that listens is bound to the loopback address.
"""

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from tidelake.errors import UsageError
from tidelake.spark.installed import VERSION

# The least and the greatest Java that can start Spark: its version 4, and 3.5.
JAVA_LEAST, JAVA_MOST = (17, None) if VERSION >= (4, 0) else (8, 17)
_PLACES = (
    "/usr/lib/jvm/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_NUM_THREADS")


def local_session(app: str = "tidelake", cores: int | str = "*", **conf: str) -> SparkSession:
    """Start Spark in this process' own JVM, or return the session that is already running.

    Args:
        app: name of the application.
        cores: tasks at once; `"*"` takes all cores.
        **conf: further Spark settings, such as `**{"spark.driver.memory": "2g"}`; they win over the
            ones made here. Those of the JVM have no effect if a session is already running.

    Raises:
        UsageError: no Java that can start Spark; says which were tried and what to install.
    """
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Without this the JVM looks up the machine's own name, although it binds to loopback.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Py4J would log the error of a callback with a trace; the caller gets it as an exception anyway.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    settings = {**_settings(), **conf}
    options = (_java_options(), settings.get("spark.driver.extraJavaOptions", ""))
    settings["spark.driver.extraJavaOptions"] = " ".join(o for o in options if o)
    builder = SparkSession.builder.appName(app).master(f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _settings() -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Errors without a JVM stack of a hundred lines.
        "spark.sql.pyspark.jvmStacktrace.enabled": "false",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 4),
        "spark.sql.streaming.stopTimeout": "60s",
        # A job with Python workers takes 55 ms instead of 88.
        "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
    }
    # Spark runs a task per core; libraries inside a task must not start as many threads again.
    settings.update({f"spark.executorEnv.{name}": "1" for name in _ONE_THREAD})
    return settings


def _java_options() -> str:
    quiet = Path(__file__).with_name("log4j2.properties").resolve().as_uri()
    return f"-Dlog4j2.configurationFile={quiet} -XX:-UsePerfData"


def find_java() -> Path:
    """The home of the first Java that can start Spark: `JAVA_HOME`, then `PATH`, then the usual places."""
    tried: list[str] = []
    for home in dict.fromkeys(_homes()):
        reason = _unfit(home)
        if reason is None:
            return home
        tried.append(f"{home} ({reason})")
    found = "found " + ", ".join(tried) if tried else "found none"
    wanted = f"{JAVA_LEAST} or newer" if JAVA_MOST is None else f"{JAVA_LEAST} to {JAVA_MOST}"
    raise UsageError(
        f"Spark needs Java {wanted}, {found}: "
        f"install a JDK (such as openjdk-{JAVA_MOST or JAVA_LEAST}-jre-headless) or point JAVA_HOME to one"
    )


def _homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
    for pattern in _PLACES:
        places = Path("/").glob(pattern.lstrip("/"))
        yield from sorted((p for p in places if (p / "bin" / "java").exists()), reverse=True)


def _unfit(home: Path) -> str | None:
    """Why this Java cannot start Spark, or None if it can."""
    java = home / "bin" / "java"
    if not java.exists():
        return "no bin/java in it"
    # Spark 4 starts with this module, which some cut-down runtimes lack.
    module = ("--add-modules=jdk.incubator.vector",) if JAVA_MOST is None else ()
    try:
        version = _started(java, *module)
        lacks = not version
        version = version or _started(java)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not start: {error}"
    if version < JAVA_LEAST or (JAVA_MOST is not None and version > JAVA_MOST):
        return f"Java {version}"
    return "lacks the module jdk.incubator.vector" if lacks else None


def _started(java: Path, *options: str) -> int:
    """The feature release of a Java that starts with these options; 0 if it does not."""
    command = [str(java), *options, "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    return 0 if answer.returncode else _version(answer.stderr)


def _version(text: str) -> int:
    """The feature release in the output of `java -version`; 0 if there is none. Java 8 calls itself 1.8."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not match:
        return 0
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major
