"""A DataFrame of updates into a collection, all or nothing.

Owns the batch write: columns are checked in the driver before anything runs, workers upload what they
sort, and the driver appends once. A job that fails, or a task that runs twice, leaves parts that no
state names; collection of garbage removes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit

from tidelake.data.types import update_schema
from tidelake.env import Env
from tidelake.errors import UpdateNotBeyondLower, UpperMismatch, UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.frontiers import FrontierLike
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.spark.columns import check_frame, convert, quoted
from tidelake.spark.tasks import described
from tidelake.spark.uploads import Answer, answer_schema, collect, upload
from tidelake.state.append import Appended


@dataclass(frozen=True)
class _UploadRows:
    uploader: bytes
    schema: pa.Schema
    time_column: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def updates(answer: Answer) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows = convert(batch.rename_columns(self.schema.names), self.schema)
                answer.see_rows(rows, self.time_column)
                yield rows

        return upload(self.uploader, updates)


def append(
    collection: Collection,
    frame: DataFrame,
    *,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    ranges: int | None = None,
) -> Appended:
    """Append a DataFrame of updates in one commit.

    Args:
        collection: to append to.
        frame: the key and value columns, by name in any order, types as `tidelake.spark.columns` maps
            them. Without `_time` all rows get one time, the collection's upper (of a clock: now, if
            that is later); without `_diff` all are `+1`. Columns that a change of the schema added may
            be missing, and are null. It is evaluated once, more often only if it has no times and
            another writer commits meanwhile.
        lower: append iff the collection's upper equals it; default: whatever the upper is.
        upper: close all times before it; default: just past the last time. Tuple times need both.
        ranges: first sort the rows into so many key ranges (a shuffle), so that the parts do not
            overlap and later reads merge fewer runs; worth it from some ten million rows on.

    Returns:
        The times written, and the upper after it.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not (nothing was appended).
        UpdateNotBeyondLower, UpdateBeyondUpper: a time lies outside the interval.
        UpperMismatch: the collection's upper is not `lower`.
    """
    # Asked for first: its schema is the one that the store knows now.
    collection.state()
    domain, wanted = collection.domain, collection.update_schema
    timed = any(name in frame.columns for name in domain.columns)
    added = collection.uploader().spec.optional
    check_frame(frame.schema, wanted, optional=(DIFF, *added) if timed else (DIFF, *added, *domain.columns))
    if not timed and (lower is not None or upper is not None):
        raise UsageError(f"lower and upper need times: add {', '.join(domain.columns)}, or leave them out")
    if not domain.total_order and (lower is None or upper is None or not timed):
        raise UsageError(f"times of {domain} need the columns {', '.join(domain.columns)}, lower and upper")
    if DIFF not in frame.columns:
        frame = frame.withColumn(DIFF, lit(1).cast("bigint"))
    if ranges is not None:
        frame = frame.repartitionByRange(ranges, *map(quoted, collection.key))
    start = None if lower is None else collection.frontier(lower, "lower")
    end = None if upper is None else collection.frontier(upper, "upper")
    if timed:
        return _commit(collection, _uploaded(collection, frame, start, end), start, end)
    while True:
        at = _commit_time(collection)
        stamped = frame.withColumn(domain.columns[0], lit(at).cast("bigint"))
        answer = _uploaded(collection, stamped, None, None)
        try:
            return _commit(collection, answer, collection.upper.meet(Frontier.of(at)), Frontier.past(at))
        except UpperMismatch:
            continue  # Somebody was faster: the rows need a later time.


def _uploaded(
    collection: Collection, frame: DataFrame, lower: Frontier | None, upper: Frontier | None
) -> Answer:
    domain = collection.domain
    uploader = collection.uploader(*((lower, upper) if not domain.total_order else (None, None)))
    # What the frame lacks came with a change of the schema, and is null.
    fields = update_schema(uploader.spec.schema, domain)
    schema = pa.schema([field for field in fields if field.name in frame.columns])
    work = _UploadRows(uploader.to_bytes(), schema, domain.columns[0] if domain.total_order else None)
    # By position: mapInArrow looks its columns up by name and takes a dot in one for a path.
    names = schema.names
    columns = frame.select(*(col(quoted(name)).alias(f"c{i}") for i, name in enumerate(names)))
    with described(frame.sparkSession, f"tidelake: append to {collection.name}"):
        return collect(columns.mapInArrow(work, answer_schema()))


def _commit(
    collection: Collection, answer: Answer, lower: Frontier | None, upper: Frontier | None
) -> Appended:
    """Append what was uploaded; without `lower`, at whatever the upper is."""
    while True:
        start = collection.upper if lower is None else lower
        end = upper
        if end is None:
            end = start if answer.time_upper is None else Frontier.past(answer.time_upper)
            end = end if start <= end else start
        if answer.time_lower is not None and not start.less_equal(answer.time_lower):
            raise UpdateNotBeyondLower(answer.time_lower, start)
        if end <= start and not answer.rows:
            return Appended(start, start, already=True)
        try:
            return collection.append_uploaded(answer.uploads, lower=start, upper=end)
        except UpperMismatch:
            if lower is not None:
                raise
            # Somebody was faster; the parts are as good at the new upper, unless a time is now closed.


def _commit_time(collection: Collection) -> int:
    upper = collection.upper
    if upper.closed:
        raise UpperMismatch("any frontier", upper)
    now_ms = Env().clock.now_ms()
    now = {"ms": now_ms, "us": now_ms * 1000}.get(collection.domain.unit, 0)
    at = times.join(upper.elements[0], now)
    return times.parts(at)[0]
