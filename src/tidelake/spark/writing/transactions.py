"""Micro-batches of change events in frames, at the times of their transactions.

Owns how Spark brings the lines to the two passes over them; `tidelake.feeds.survey` owns the first pass.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.cdc.times import heldevents as held_back
from tidelake.cdc.times.heldevents import Held
from tidelake.cdc.times.partitions import seen_again
from tidelake.cdc.times.positions import positions
from tidelake.cdc.times.surveys import Twice, fingerprints, twice
from tidelake.data.ingest.convert import convert
from tidelake.feeds.heldrows import HeldRows, held_rows, objects
from tidelake.feeds.places import NumberedLines
from tidelake.feeds.reading import AS_TEXT, DECODED, decoded
from tidelake.feeds.survey import Surveyed, TimedLines, check_none_held, timed
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.envelopes.debezium import EventFrames, holds_texts, lines_arrow, of_kafka, texts
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.tasks import described, one_thread
from tidelake.spark.versions import arrow_schema, from_arrow, to_arrow
from tidelake.spark.writing.running import fetched

# What tells an event apart from all others.
_APART = "_apart"
_OBJECT = "object"


@dataclass(frozen=True)
class Transactions:
    """The lines of a micro-batch, surveyed.

    Attributes:
        frame: the lines, with those that were held back before and are due.
        few: the same, if they are in this process; None: they are not.
        timed: their times.
    """

    frame: DataFrame
    few: Sequence[pa.RecordBatch] | None
    timed: TimedLines


def surveyed(
    collection: LakeCollection,
    frame: DataFrame,
    envelope: Envelope,
    before: Held | None,
    *,
    whole: bool,
    title: str = "",
    expected_bytes: int | None = None,
    planned: Collection[TopicPartition] = (),
) -> Transactions | None:
    """Survey a micro-batch. Reads its lines once; those with messages that were seen before, three times.

    Args:
        collection: gives the unit of the times.
        frame: the micro-batch.
        envelope: what the rows mean.
        before: what the last micro-batch left in the record of the stream's writer; None: nothing.
        whole: the frame ends with whole transactions, and none is held back.
        title: description of the job.
        expected_bytes: a guess of the rows' size, used if Spark has no estimate.
        planned: partitions that the micro-batch is made of.

    Returns:
        None if the events have times of their own: the envelope names a time, or is not of change events, or
        no line is of a connector that is known.
    """
    if (
        not isinstance(envelope, EventFrames)
        or not envelope.feed.by_transaction
        or not holds_texts(frame.schema)
    ):
        check_none_held(before)
        return None
    work = Surveyed.of(collection, placed=of_kafka(frame.schema))
    lines = texts(frame, placed=work.placed)
    held = held_rows(collection, before)
    # Tasks take all lines if they take those.
    fetch = held is None or not held.many
    with described(frame.sparkSession, title):
        few, found = _found(lines, work, expected_bytes, fetch=fetch)
        repeated = 0
        known = {} if before is None else before.progress.partitions
        if work.placed and (offsets := seen_again(found, known)):
            is_seen = seen_column(offsets)
            repeated = lines.where(is_seen).count()
            lines = lines.where(~is_seen)
            few, found = _found(lines, work, expected_bytes, fetch=fetch)
        if few is None and envelope.feed.old_rows == "events":
            several = twice(found, 0 if before is None else before.progress.held)
            if several:
                lines, again = _once(lines, work.clock, several)
                repeated += again
    times = timed(work, envelope.feed, found, before, held, whole=whole, repeated=repeated, planned=planned)
    if times is None:
        return None
    lines = lines.select(*AS_TEXT)
    few = None if few is None else [batch.select([*AS_TEXT, DECODED]) for batch in few]
    if times.due is not None and times.due.told.any:
        lines = lines.unionByName(held_frame(times.due, lines.sparkSession, lines.schema))
        few = None if few is None else [*times.due, *few]
    return Transactions(lines, few, times)


def _found(
    lines: DataFrame, work: Surveyed, expected_bytes: int | None, *, fetch: bool
) -> tuple[list[pa.RecordBatch] | None, pa.Table]:
    """The lines, if they are few, and their survey."""
    few = fetched(lines, expected_bytes) if fetch else None
    if few is not None:
        few = [decoded(batch) for batch in few]
        return few, pa.Table.from_batches(work(iter(few)), schema=work.found)
    return None, surveyed_lines(lines, work)


def surveyed_lines(lines: DataFrame, work: Surveyed) -> pa.Table:
    """The survey of lines. Runs a job."""
    found = lines.mapInArrow(_Survey(work, frame_arrow(work.found)), frame_schema(work.found))
    return to_arrow(found).cast(work.found)


@dataclass(frozen=True)
class _Survey:
    """In a worker: survey lines, with the types that Spark has."""

    work: Surveyed
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        return (found.cast(self.schema) for found in self.work(batches))


def held_frame(held: HeldRows, spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame of the rows that a micro-batch held back."""
    own = from_arrow(spark, held_back.unpacked(held.told.rows), schema) if held.told.rows else None
    if own is not None and not held.many:
        return own
    stored = spark.createDataFrame([(name,) for name in held.told.objects], f"{_OBJECT} string")
    found = stored.mapInArrow(_ReadObjects(held.uploader, frame_arrow(arrow_schema(schema))), schema)
    return found if own is None else found.unionByName(own)


@dataclass(frozen=True)
class _ReadObjects:
    """In a worker: the rows of objects, by their names."""

    uploader: bytes
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        for batch in batches:
            for rows in objects(self.uploader, batch.column(0).to_pylist()):
                yield convert(rows, self.schema)


def _once(lines: DataFrame, clock: str | None, several: Twice) -> tuple[DataFrame, int]:
    """The lines with each event once, and how many events more there were. Reads the lines once.

    Lines with repeated events are read twice more, and those of the transactions in question are shuffled.
    """
    lines = lines.select(*AS_TEXT)
    told = pa.schema([*lines_arrow(lines), pa.field(_APART, pa.binary())])
    marked = lines.mapInArrow(_TellApart(tuple(lines.columns), clock, several), frame_schema(told))
    there = marked.where(f.col(_APART).isNotNull())
    (counted,) = there.select(f.count(_APART), f.countDistinct(_APART)).collect()
    again = counted[0] - counted[1]
    if not again:
        return lines, 0
    rest = marked.where(f.col(_APART).isNull())
    return rest.unionByName(there.dropDuplicates([_APART])).drop(_APART), again


@dataclass(frozen=True)
class _TellApart:
    """In a worker: beside each line what tells its event apart; null unless it is of some transactions."""

    columns: tuple[str, ...]
    clock: str | None
    several: Twice

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        numbers = NumberedLines()
        for batch in batches:
            numbered = numbers.of(batch.rename_columns(list(self.columns)))
            lines = as_bytes(numbered.column("value"))
            there = np.flatnonzero(self.several.has(positions(lines, self.clock or "ts_ms")))
            found: list[bytes | None] = [None] * len(lines)
            told = fingerprints(lines.take(pa.array(there))).to_pylist()
            for at, one in zip(there.tolist(), told, strict=True):
                found[at] = one
            yield numbered.append_column(_APART, pa.array(found, pa.binary()))


def seen_column(offsets: Mapping[TopicPartition, int]) -> Column:
    """Whether messages, with the columns of `PLACES`, have these offsets or earlier ones."""
    found = f.lit(False)
    for place, offset in offsets.items():
        there = (f.col("topic") == place.topic) & (f.col("partition") == place.partition)
        found = found | (there & (f.col("offset") <= offset))
    return f.coalesce(found, f.lit(False))
