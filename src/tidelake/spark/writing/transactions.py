"""Micro-batches of change events at the times of their transactions.

Owns the two passes over the lines: the first finds at which positions transactions begin, the second reads
the events. What is held back comes again with the next micro-batch, as if it were a part of it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.cdc.debezium.decoded import Decoded, Path, decode
from tidelake.cdc.debezium.exact import REPEATS
from tidelake.cdc.times.heldevents import Held
from tidelake.cdc.times.partitions import PLACED, partitions, placed_survey, seen_again
from tidelake.cdc.times.positions import positions
from tidelake.cdc.times.surveys import SURVEY, Twice, fingerprints, merged_surveys, survey, twice
from tidelake.cdc.times.timeline import Progress, Timeline, copies_again, timeline
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.envelopes.debezium import Debezium, holds_texts, lines_arrow, of_kafka, texts
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.read import AS_TEXT, DECODED
from tidelake.spark.envelopes.surveylines import NumberedLines
from tidelake.spark.tasks import described, one_thread
from tidelake.spark.versions import to_arrow
from tidelake.spark.writing.heldrows import HeldRows, held_rows
from tidelake.spark.writing.running import fetched

# What tells an event apart from all others.
_APART = "_apart"
_CLOCKS = {"ms": "ts_ms", "us": "ts_us"}


@dataclass(frozen=True)
class Transactions:
    """The lines of a micro-batch, surveyed.

    Attributes:
        frame: the lines, with those that were held back before.
        few: the same, if they are in this process; None: they are not.
        timeline: the times of their transactions.
        progress: how far the stream is after it.
        copied: a first copy was going on before.
        repeated: messages that were seen before, by their offsets; they are not among the lines.
    """

    frame: DataFrame
    few: Sequence[pa.RecordBatch] | None
    timeline: Timeline
    progress: Progress
    copied: bool = False
    repeated: int = 0

    def stages(self, rebases: bool) -> bool:
        """Whether the rows are staged, as pieces of a first copy.

        The last piece is appended if what is appended does not depend on the contents (`rebases`).
        """
        return self.timeline.copying or (self.copied and not rebases)


@dataclass(frozen=True)
class Surveyed:
    """In a worker: find the positions of lines.

    Attributes:
        clock: the field of `source` whose values are times; None: times are positions.
        schema: `SURVEY` or `PLACED`, with the types that Spark has.
        placed: the lines are messages of Kafka, with the columns of `PLACES`.
    """

    clock: str | None
    schema: pa.Schema
    placed: bool = False

    @classmethod
    def of(cls, collection: LakeCollection, *, placed: bool = False) -> Self:
        """For times of the unit of a collection."""
        schema = frame_arrow(PLACED if placed else SURVEY)
        return cls(_CLOCKS.get(collection.domain.unit), schema, placed)

    @property
    def found(self) -> pa.Schema:
        """The schema of what is found."""
        return PLACED if self.placed else SURVEY

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        for found in self.all(batches):
            yield found.cast(self.schema)

    def all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same, as `found`."""
        for batch in batches:
            lines = as_bytes(batch.column("value"))
            known = DECODED in batch.schema.names
            found = Decoded.of_column(lines, batch.column(DECODED)) if known else decode(lines)
            yield self.batch(found, batch)

    def batch(self, lines: Decoded, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The survey of decoded lines, and of the messages that they are of."""
        places = positions(lines, self.clock or "ts_ms", numbered=self.placed)
        return placed_survey(places, batch) if self.placed else survey(places)

    def packed(self, lines: Decoded, batch: pa.RecordBatch) -> bytes:
        """The same as bytes, which `unpacked` reads."""
        return bytes(self.batch(lines, batch).serialize())

    def unpacked(self, several: Iterable[bytes]) -> pa.Table:
        """The surveys of several batches of lines."""
        batches = [pa.ipc.read_record_batch(pa.py_buffer(one), self.found) for one in several]
        return pa.Table.from_batches(batches, schema=self.found)

    def timeline(
        self,
        found: pa.Table,
        before: Held | None,
        held: HeldRows | None,
        *,
        whole: bool = False,
        reach: int | None = None,
        planned: Collection[TopicPartition] = (),
        idle_ms: int | None = None,
    ) -> tuple[Timeline, Progress] | None:
        """The times of the transactions of a micro-batch, and how far the stream is after it.

        Args:
            found: of all lines: also those that were held back before.
            before: what the micro-batch before left.
            held: the rows that it held back.
            whole: the lines end with whole transactions: none is held back.
            reach: up to this position all events are here.
            planned: as for `partitions`, like the next one.
            idle_ms: likewise.

        Errors as for `timeline` and `partitions`.
        """
        seen = None if held is None else held.fingerprints()
        progress = None if before is None else before.progress
        known = Progress("") if progress is None else progress
        found = merged_surveys(found)
        several = None
        if self.placed:
            several = partitions(
                found, known.partitions, planned,
                done=known.held, copied_at=known.copied_at, idle_ms=idle_ms,
            )  # fmt: skip
        copied = None
        if several is not None:
            copied = several.copied
            reach = several.reach if reach is None else min(reach, several.reach)
        times = timeline(found, self.clock, progress, whole=whole, seen=seen, reach=reach, copied=copied)
        if times is None:
            return None
        after = times.progress
        if several is not None:
            after = replace(after, partitions=several.known, copied_at=several.copied_at)
        elif progress is not None:
            after = replace(after, partitions=progress.partitions, copied_at=progress.copied_at)
        return times, after


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

    Raises:
        InvalidUpdates: lines of several connectors; or as `partitions` and `seen_again`.
        UsageError: events are held back, and this call would forget them.
    """
    if not isinstance(envelope, Debezium) or not envelope.by_transaction or not holds_texts(frame.schema):
        if before is not None and before.any:
            raise UsageError(
                "events of a transaction are held back by this writer until its commit is known, and the "
                "envelope now names a time or is another one: go on with 'debezium' and no time"
            )
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
        if few is None and envelope.old_rows == "events":
            several = twice(found, 0 if before is None else before.progress.held)
            if several:
                lines, again = _once(lines, work.clock, several)
                repeated += again
    if held is not None:
        found = pa.concat_tables([found, pa.Table.from_batches(work.all(held.batches()), schema=work.found)])
    copied = before is not None and before.progress.copying
    # What follows a first copy is looked up in it, so the copy is closed first.
    reach = -1 if copied and envelope.old_rows == "stored" else None
    times = work.timeline(
        found, before, held, whole=whole, reach=reach, planned=planned, idle_ms=envelope.idle_ms
    )
    if times is None:
        return None
    if envelope.old_rows == "events" and before is not None and copies_again(found, before.progress):
        raise InvalidUpdates(
            "the tables are copied while the collection has rows of them, as by a snapshot that a signal "
            f"asked for: {REPEATS}"
        )
    lines = lines.select(*AS_TEXT)
    few = None if few is None else [batch.select([*AS_TEXT, DECODED]) for batch in few]
    if held is not None:
        lines = lines.unionByName(held.frame(lines.sparkSession, lines.schema))
        few = None if few is None else [*held.batches(), *few]
    return Transactions(lines, few, *times, copied, repeated)


def _found(
    lines: DataFrame, work: Surveyed, expected_bytes: int | None, *, fetch: bool
) -> tuple[list[pa.RecordBatch] | None, pa.Table]:
    """The lines, if they are few, and their survey."""
    few = fetched(lines, expected_bytes) if fetch else None
    if few is not None:
        few = [decoded(batch) for batch in few]
        return few, pa.Table.from_batches(work.all(iter(few)), schema=work.found)
    return None, to_arrow(lines.mapInArrow(work, frame_schema(work.found))).cast(work.found)


def decoded(batch: pa.RecordBatch, paths: Collection[Path] = ()) -> pa.RecordBatch:
    """A batch of lines, with the lines decoded beside them."""
    return batch.append_column(DECODED, decode(as_bytes(batch.column("value")), paths).column)


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
