"""Exporting a snapshot or changes of a collection as a table of another format.

Owns what is written and when it becomes visible. Must not know how any format is written: Spark writes
Parquet, and Delta Lake and Iceberg bring their own writers, if they are installed.

INVARIANT: a Parquet export is visible as a whole or not at all: it is written beside its place and then
renamed (with `append` Spark adds the files at the end of its job). The other formats commit by themselves.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from tidelake.env import IdSource
from tidelake.errors import HistoryCompacted, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.model.instants import TimeLike
from tidelake.model.schema import DIFF
from tidelake.model.selection import TimesAs
from tidelake.model.time import Time
from tidelake.spark.columns import check_case, quoted
from tidelake.spark.reading.frames import changes as changes_frame
from tidelake.spark.reading.frames import snapshot
from tidelake.spark.reading.holds import released_afterwards
from tidelake.spark.tasks import described
from tidelake.spark.versions import condition

Format = Literal["parquet", "delta", "iceberg"]
Mode = Literal["error", "overwrite", "append"]

_REMEDY = {
    "delta": "install the package delta-spark, of the version for this Spark, and start the session with "
    "spark.jars.packages=io.delta:delta-spark_2.13:<version> and the settings that Delta Lake names",
    "iceberg": "start the session with the package iceberg-spark-runtime, of the version for this Spark, by "
    "spark.jars.packages=org.apache.iceberg:iceberg-spark-runtime-<spark>_2.13:<version>, with a catalog",
}


@dataclass(frozen=True)
class ExportReport:
    """What was exported.

    Attributes:
        path: place of the table.
        format: format of the table.
        rows: number of rows written.
        through: the time of the snapshot, or the last time of the changes.
        after: the changes are after this time; None for a snapshot.
        seconds: wall clock.
    """

    path: str
    format: str
    rows: int
    through: Time
    after: Time | None
    seconds: float


def export(
    spark: SparkSession,
    collection: Collection,
    path: str,
    *,
    format: Format = "parquet",  # noqa: A002
    as_of: TimeLike | None = None,
    changes: tuple[TimeLike, TimeLike] | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    with_diff: bool | None = None,
    mode: Mode = "error",
    times: TimesAs | None = None,
    timeout_s: float | None = None,
) -> ExportReport:
    """Write the contents at a time, or the net changes between two, as a table of another format.

    Args:
        spark: the session.
        collection: the collection to read. The parts are held until the export has ended.
        path: a directory, or for Iceberg the name of a table in a catalog: `catalog.db.table`.
        format: `"parquet"`, `"delta"` or `"iceberg"`.
        as_of: time of the contents; default: the last closed one.
        changes: export the changes after the first of two times, through the second, instead.
        columns: key and value columns to write; default: all.
        where: an SQL condition on the rows to write.
        with_diff: True: each row once, with its multiplicity in `_diff`; False: each row repeated as often as
            its multiplicity, which must not be negative. Default: False for contents, True for changes.
        mode: what to do if `path` exists: `"error"`, `"overwrite"` or `"append"`.
        times: also write the time of the contents or changes to each row, in `_time`, as `"int64"` or
            `"timestamp"`. Default: it is not written.
        timeout_s: how long to wait for the times to be closed.

    Raises:
        UsageError: `path` exists, or one of `path` and the lake contains the other, or the format's package
            is not installed; nothing ran.
        HistoryCompacted, NotYetClosed: as for reads.
    """
    _check(format, mode, as_of, changes)
    read = times_of(collection).read
    at = None if as_of is None else read(as_of, "as_of")
    between = None if changes is None else (read(changes[0], "after"), read(changes[1], "through"))
    if format != "iceberg":
        _check_apart(path, collection.distributed.lake_url)
    env = collection.distributed.env
    started_s = env.clock.monotonic_s()
    target = _Parquet(spark, path, mode, env.ids) if format == "parquet" else None
    if target is not None:
        target.check()
    else:
        _check_installed(spark, format, env.ids)
    asked = {"columns": columns, "where": where, "timeout_s": timeout_s, "times": times or "int64"}
    with released_afterwards():
        frame, through = _read(spark, collection, at, between, asked)
        check_case(spark, frame.columns)
        if times is None:
            frame = frame.select(*(_column(c) for c in frame.columns if c not in collection.domain.columns))
        if not (changes is not None if with_diff is None else with_diff):
            frame = _expanded(frame)
        seen = Observation("tidelake-export")
        frame = frame.observe(seen, f.count(f.lit(1)).alias("rows"))
        with described(spark, f"tidelake: export {collection.name} to {format} {path}"):
            if target is not None:
                target.write(frame)
            else:
                _write(frame, path, format, mode)
        rows = int(seen.get["rows"])
    after = None if between is None else between[0]
    return ExportReport(path, format, rows, through, after, env.clock.monotonic_s() - started_s)


def _check(format_: str, mode: str, as_of: object, changes: Sequence[object] | None) -> None:
    if format_ not in get_args(Format):
        raise UsageError(f"format={format_!r} is not known: give one of {', '.join(get_args(Format))}")
    if mode not in get_args(Mode):
        raise UsageError(f"mode={mode!r} is not known: give one of {', '.join(get_args(Mode))}")
    if as_of is not None and changes is not None:
        raise UsageError("give as_of or changes, not both")
    if changes is not None and len(changes) != 2:
        raise UsageError(f"changes={changes!r} must be two times: after the first, through the second")


def _check_apart(path: str, lake_url: str) -> None:
    """Refuse a place inside the lake, or one that contains it: overwriting it would delete the lake."""
    scheme = urlsplit(path).scheme
    if scheme not in ("", "file") or urlsplit(lake_url).scheme != "file":
        return
    place = os.path.realpath(urlsplit(path).path if scheme else path)
    lake = os.path.realpath(unquote(urlsplit(lake_url).path))
    if os.path.commonpath([place, lake]) in (place, lake):
        raise UsageError(f"{path!r} and the lake at {lake!r} contain one another: choose another place")


def _read(
    spark: SparkSession,
    collection: Collection,
    as_of: Time | None,
    changes: tuple[Time, Time] | None,
    asked: dict[str, Any],
) -> tuple[DataFrame, Time]:
    if changes is not None:
        return changes_frame(spark, collection, *changes, **asked), changes[1]
    if as_of is not None:
        return snapshot(spark, collection, as_of, **asked), as_of
    while True:
        last = collection.last_time()
        try:
            return snapshot(spark, collection, last, **asked), last
        except HistoryCompacted:
            # Others appended and moved `since` in between: the last closed time is a later one now.
            continue


def _column(name: str) -> Any:
    return f.col(quoted(name))


def _expanded(frame: DataFrame) -> DataFrame:
    """Repeat each row as often as its multiplicity says; a negative one, or over 2^31 - 1, fails the job."""
    refused = f.raise_error(f.lit("a row has a negative multiplicity: export it with with_diff=True"))
    # Check it explicitly: without ANSI mode a cast would truncate it.
    huge = f.raise_error(
        f.lit("a row is there more often than 2^31 - 1 times: export it with with_diff=True")
    )
    diff = f.col(DIFF)
    times = (
        f.when(diff < 0, refused.cast("int"))
        .when(diff >= 2**31, huge.cast("int"))
        .otherwise(diff.cast("int"))
    )
    names = [name for name in frame.columns if name != DIFF]
    # The copies need a column: `_diff` is a name that no collection's column can have.
    repeated = frame.select(*map(_column, names), f.explode(f.array_repeat(f.lit(0), times)).alias(DIFF))
    return repeated.select(*map(_column, names))


def _write(frame: DataFrame, path: str, format_: str, mode: str) -> None:
    try:
        if format_ == "delta":
            frame.write.format(format_).mode(mode).save(path)
            return
        table = frame.writeTo(path).using(format_)
        {"error": table.create, "overwrite": table.createOrReplace, "append": table.append}[mode]()
    except AnalysisException as error:
        # Spark and Iceberg say ALREADY_EXISTS, Delta Lake PATH_EXISTS.
        if "EXISTS" in condition(error) or "already exists" in str(error):
            raise _exists(path) from error
        raise


def _check_installed(spark: SparkSession, format_: str, ids: IdSource) -> None:
    """Check that this session has the format, before anything runs."""
    try:
        # Spark looks up the format first; then it finds no table of this fresh name.
        spark.read.format(format_).load(f"/{ids.fresh()}").schema  # noqa: B018
    except (PySparkException, Py4JError) as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise UsageError(f"this session has no {format_}: {_REMEDY[format_]}") from error


def _exists(path: str) -> UsageError:
    return UsageError(f"there is something at {path!r}: choose another place, or give mode='overwrite'")


class _Parquet:
    """A directory of Parquet files that appears at once, if Spark gives access to a rename."""

    def __init__(self, spark: SparkSession, path: str, mode: Mode, ids: IdSource) -> None:
        self._path, self._mode, self._ids = path.rstrip("/"), mode, ids
        try:
            context = spark.sparkContext
        except PySparkException:
            # Spark Connect gives no access to the file system: rely on the commit of Spark's job.
            self._files, self._hadoop = None, None
            return
        self._hadoop = context._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
        self._files = self._hadoop(self._path).getFileSystem(context._jsc.hadoopConfiguration())

    def check(self) -> None:
        """Refuse an existing place before the work."""
        if self._files is not None and self._mode == "error" and self._there(self._path):
            raise _exists(self._path)

    def write(self, frame: DataFrame) -> None:
        """Write the frame, then move it to its place."""
        if self._files is None or self._mode == "append":
            self._plainly(frame)
            return
        with self._aside() as written:
            frame.write.mode("error").parquet(written)
            self._place(written)

    def _plainly(self, frame: DataFrame) -> None:
        try:
            frame.write.mode(self._mode).parquet(self._path)
        except AnalysisException as error:
            if condition(error) != "PATH_ALREADY_EXISTS":
                raise
            raise _exists(self._path) from error

    def _place(self, written: str) -> None:
        if self._mode == "error" and self._there(self._path):
            # Another process made it since the check. Renaming onto a directory would move ours inside it.
            raise _exists(self._path)
        if not self._there(self._path):
            self._rename(written, self._path)
            return
        with self._aside() as before:
            self._rename(self._path, before)
            try:
                self._rename(written, self._path)
            except BaseException:
                self._rename(before, self._path)
                raise

    @contextlib.contextmanager
    def _aside(self) -> Iterator[str]:
        """Yield a name beside the target; what remains there at the end is removed."""
        path = self._beside()
        try:
            yield path
        finally:
            self._call("delete", path, True)

    def _beside(self) -> str:
        """A fresh name beside the target that readers of directories skip."""
        folder, _, name = self._path.rpartition("/")
        fresh = f"_{name}.{self._ids.fresh()}"
        return f"{folder}/{fresh}" if folder else fresh

    def _there(self, path: str) -> bool:
        return bool(self._call("exists", path))

    def _rename(self, old: str, new: str) -> None:
        if not self._call("rename", old, self._hadoop(new)):  # type: ignore[misc]
            raise UsageError(f"the export cannot be moved from {old!r} to {new!r}: is its folder there?")

    def _call(self, name: str, path: str, *rest: object) -> object:
        call: Callable[..., object] = getattr(self._files, name)
        return call(self._hadoop(path), *rest)  # type: ignore[misc]
