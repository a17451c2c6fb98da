"""Reads of a collection as DataFrames, planned by key range.

Owns how a planned read becomes a DataFrame. The driver plans once, when the function is called; workers
fetch, merge and consolidate their key range and hand Arrow batches to Spark. Nothing is shuffled, and
rows come sorted within a partition. The parts of a snapshot that need no merging are read by Spark's own
Parquet scan (`tidelake.spark.reading.native`), which guarantees no order.

Few rows are read by the driver when the function is called, and the DataFrame has them. Otherwise the plan
is part of the DataFrame: using it again later reads the same contents. A hold keeps the parts of the plan, by
default for a day: see `tidelake.spark.reading.holds`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tidelake.data.ingest.convert import convert
from tidelake.data.kernel.timestamps import check_clock
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.lake.arguments.spans import DurationLike
from tidelake.lake.arguments.times import FrontierLike
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf, Changes, Query, Updates
from tidelake.model.schema import DIFF
from tidelake.model.selection import ReadOptions, TimesAs
from tidelake.model.time import TimeDomain
from tidelake.shard.runs.plan import ReadPlan, run_task
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.installed import VERSION
from tidelake.spark.reading.holds import HOLD_FOR, Lasting, hold_plans, kept
from tidelake.spark.reading.jvm import why_unreadable
from tidelake.spark.reading.native import readable, scan
from tidelake.spark.reading.newest import newest
from tidelake.spark.tasks import run_tasks, slots, task_bytes_max
from tidelake.spark.versions import frame_of

_SMALL_ROWS, _SMALL_BYTES = 4096, 1 << 20
_LAST_DATE = 2**31 - 1


def _date(name: str) -> Column:
    """The date of a day. Without ANSI, a cast would make another day of one past the last."""
    days = f.col(name)
    error = f.raise_error(f.lit("a time is past the last date: leave out times='timestamp'")).cast("date")
    return f.when(days <= _LAST_DATE, f.date_from_unix_date(days.cast("int"))).otherwise(error)


_TIMESTAMPS = {"ms": f.timestamp_millis, "us": f.timestamp_micros, "date": _date}


@dataclass(frozen=True)
class _Read:
    schema: pa.Schema
    held: Lasting | None

    def __call__(self, task: bytes) -> Iterator[pa.RecordBatch]:
        return (convert(batch, self.schema) for batch in kept(run_task(task), self.held))


def snapshot(
    spark: SparkSession,
    collection: Collection,
    as_of: TimeLike | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    parallelism: int | None = None,
    timeout_s: float | None = None,
    hold_for: DurationLike | None = HOLD_FOR,
    staged: bool = False,
    times: TimesAs = "int64",
    native: bool = True,
) -> DataFrame:
    """The exact contents at `as_of` (default: the last closed time). One log write, for the hold.

    Args:
        spark: the session.
        collection: the collection to read.
        as_of: the time: in the collection's unit or, for a clock, an instant with its zone.
        columns: key and value columns to return; default: all. See `Collection.snapshot`.
        where: an SQL condition on the rows; parts that cannot match are not read.
        parallelism: the most key ranges to merge; default: as many as the session runs tasks at once, and
            more if a range would read more than `spark.sql.files.maxPartitionBytes`.
        timeout_s: how long to wait for the time to be closed; default: the setting `wait_timeout_s`.
        hold_for: how long the DataFrame can be used; a timedelta, seconds, or `"7d"`. See `release`. None: it
            must be used within `garbage_age_s`, and nothing is written.
        staged: include updates that are staged at open times: see `Collection.snapshot`.
        times: the type of `_time`: `"int64"`, or `"timestamp"`, which only clocks have. Spark's timestamps
            are in microseconds: a time of `ms` after the year 294,246 fails the job.
        native: let Spark itself read the parts that need no merging, as after a merge up to `as_of`: parts of
            one time and of the newest schema, whose keys no other run has. Not used with `where`, since our
            own scan skips more; nor if its JVM cannot read the store, which is tried at the first read of a
            lake in a session: `explain()` says why. False: workers read all parts, also of few rows, and rows
            come sorted within a partition.

    Returns:
        Key and value columns, the time columns (all equal to `as_of`) and `_diff`, the multiplicity. The rows
        have no order, unless `native` is False. Key and value columns are nullable, as in all files that
        Spark reads.

    Raises:
        HistoryCompacted: `as_of` is before the collection's `since`.
        NotYetClosed: `as_of` is still open after `timeout_s`.
        UsageError: a column has a type that Spark cannot hold, or `columns` or `where` do not fit.
    """
    read = times_of(collection).read
    asked = None if as_of is None else AsOf(read(as_of, "as_of", staged=staged))
    return _frame(
        spark,
        collection,
        asked,
        ReadOptions(columns, where, timeout_s, staged),
        parallelism=parallelism,
        hold_for=hold_for,
        times=times,
        native=native,
        by_driver=native,
    )


def changes(
    spark: SparkSession,
    collection: Collection,
    after: TimeLike,
    through: TimeLike,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    parallelism: int | None = None,
    timeout_s: float | None = None,
    hold_for: DurationLike | None = HOLD_FOR,
    staged: bool = False,
    times: TimesAs = "int64",
) -> DataFrame:
    """The exact net difference between the contents at `after` and at `through`.

    Columns as for `snapshot`; `_diff` is the change in multiplicity, and all times are `through`. Arguments
    and errors as for `snapshot`; `after` must not be before `since`.
    """
    read = times_of(collection).read
    asked = Changes(read(after, "after", staged=staged), read(through, "through", staged=staged))
    return _frame(
        spark,
        collection,
        asked,
        ReadOptions(columns, where, timeout_s, staged),
        parallelism=parallelism,
        hold_for=hold_for,
        times=times,
    )


def updates(
    spark: SparkSession,
    collection: Collection,
    lower: FrontierLike,
    upper: FrontierLike,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    parallelism: int | None = None,
    timeout_s: float | None = None,
    hold_for: DurationLike | None = HOLD_FOR,
    staged: bool = False,
    times: TimesAs = "int64",
) -> DataFrame:
    """Every update in `[lower, upper)`, at its own time. Columns, arguments and errors as for `snapshot`."""
    bound = times_of(collection).read_bound
    asked = Updates(bound(lower, "lower", staged=staged), bound(upper, "upper", staged=staged))
    return _frame(
        spark,
        collection,
        asked,
        ReadOptions(columns, where, timeout_s, staged),
        parallelism=parallelism,
        hold_for=hold_for,
        times=times,
    )


def snapshots(
    spark: SparkSession,
    collection: Collection,
    times: Sequence[TimeLike],
    *,
    timeout_s: float | None = None,
    hold_for: DurationLike | None = HOLD_FOR,
) -> DataFrame:
    """The contents at each of several times in one job; the time columns say which time a row belongs to.

    For reading many versions of a collection that is small enough for one task to read completely.
    Columns and errors as for `snapshot`.
    """
    asked = [AsOf(times_of(collection).read(time, "times")) for time in times]
    # Read all under one schema, even if others change it meanwhile.
    options = ReadOptions(timeout_s=timeout_s, schema_id=collection.state().schema_id, complete=True)
    plans = [collection.distributed.plan(query, 1, options) for query in asked]
    held = hold_plans(collection, plans, hold_for)
    schema = plans[0].schema if plans else collection.update_schema
    tasks = [task for plan in plans for task in plan.tasks]
    return run_tasks(
        spark, tasks, _Read(frame_arrow(schema), held), frame_schema(schema), partitions=4 * slots(spark)
    )


def history(
    spark: SparkSession,
    collection: Collection,
    key: object,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    timeout_s: float | None = None,
    staged: bool = False,
    times: TimesAs = "int64",
) -> DataFrame:
    """The updates of one key in the order of time; arguments and errors as for `Collection.history`.

    The driver reads them when the function is called. The DataFrame has them in one partition, in order, and
    can be used as long as the session lives.
    """
    found = collection.history(
        key, lower, upper, columns=columns, where=where, timeout_s=timeout_s, staged=staged, times=times
    )
    schema = frame_arrow(found.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in found.to_batches():
            stream.write_batch(convert(batch, schema))
    return run_tasks(spark, [sink.getvalue().to_pybytes()], _stream, frame_schema(found.schema))


def _stream(task: bytes) -> Iterator[pa.RecordBatch]:
    yield from pa.ipc.open_stream(task)


def _frame(
    spark: SparkSession,
    collection: Collection,
    asked: Query | None,
    options: ReadOptions,
    *,
    parallelism: int | None,
    hold_for: DurationLike | None,
    times: TimesAs,
    native: bool = False,
    by_driver: bool = True,
) -> DataFrame:
    if times == "timestamp":
        check_clock(collection.domain)

    def planned(*, as_stored: bool) -> ReadPlan:
        bytes_max = task_bytes_max(spark) if parallelism is None else None
        width = parallelism or slots(spark)
        return collection.distributed.plan(
            asked, width, options, task_bytes_max=bytes_max, as_stored=as_stored
        )

    def shown(rows: DataFrame) -> DataFrame:
        rows = _with_timestamps(rows, collection.domain) if times == "timestamp" else rows
        return newest(rows, collection, plan.query) if asked is None and not options.staged else rows

    why = why_unreadable(spark, collection.distributed.objects_url) if native else ""
    plan = planned(as_stored=native and not why)
    stored = plan.as_stored
    if stored is not None and not readable(stored.schema):
        plan, stored, why = planned(as_stored=False), None, "Spark reads other values of these types"
    schema = _nullable(plan.schema, collection) if native else plan.schema
    if by_driver and parallelism is None and stored is None and _is_small(plan):
        return shown(_here(spark, plan, schema))
    held = hold_plans(collection, [plan], hold_for)
    name = f"tidelake workers, as {why}" if why else "tidelake workers"
    merged = run_tasks(spark, plan.tasks, _Read(frame_arrow(schema), held), frame_schema(schema), name=name)
    if stored is not None:
        found = scan(spark, stored, schema, collection.domain.columns)
        merged = found.union(merged) if plan.tasks else found
    return shown(merged)


def _is_small(plan: ReadPlan) -> bool:
    """Whether this process reads the rows: that takes less time than to start a job with Python workers."""
    # From 4.0 on no worker gets the rows of `frame_of`. Plain types come back from Spark as they are.
    is_small = plan.rows <= _SMALL_ROWS and plan.size_bytes <= _SMALL_BYTES
    return is_small and VERSION >= (4, 0) and readable(plan.schema)


def _here(spark: SparkSession, plan: ReadPlan, schema: pa.Schema) -> DataFrame:
    arrow = frame_arrow(schema)
    found = [convert(batch, arrow) for task in plan.tasks for batch in run_task(task)]
    return frame_of(spark, pa.Table.from_batches(found, arrow), frame_schema(schema))


def _with_timestamps(frame: DataFrame, domain: TimeDomain) -> DataFrame:
    (name,) = domain.columns
    return frame.withColumn(name, _TIMESTAMPS[domain.unit](name))


def _nullable(schema: pa.Schema, collection: Collection) -> pa.Schema:
    """Make the collection's columns nullable: a frame's schema must not depend on how it is read."""
    given = {*collection.domain.columns, DIFF}
    return pa.schema([field if field.name in given else field.with_nullable(True) for field in schema])
