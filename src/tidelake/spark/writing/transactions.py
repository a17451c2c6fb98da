"""Micro-batches of change events at the times of their transactions.

Owns the two passes over the lines: the first finds at which positions transactions begin, the second reads
the events. What is held back comes again with the next micro-batch, as if it were a part of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.envelopes.debezium import Debezium, holds_texts, texts
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.held import Held, merged, split
from tidelake.spark.envelopes.messages import as_bytes
from tidelake.spark.envelopes.positions import positions
from tidelake.spark.envelopes.timeline import SURVEY, Timeline, merged_surveys, survey, timeline
from tidelake.spark.tasks import described, one_thread
from tidelake.spark.uploads import Answer
from tidelake.spark.versions import to_arrow
from tidelake.spark.writing.running import fetched

# Columns of Kafka's source that tell where a message is.
_PLACES = ("topic", "partition", "offset")
_ONE_TOPIC = (
    "the times of transactions are known only from one topic with one partition, which has all events in the "
    "order of their commits: send the events of all tables to one topic (Debezium's ByLogicalTableRouter), "
    "or set time to a field that orders them, such as 'ts_ms'"
)
_CLOCKS = {"ms": "ts_ms", "us": "ts_us"}


@dataclass(frozen=True)
class Transactions:
    """The lines of a micro-batch, surveyed.

    Attributes:
        frame: the lines, with those that were held back before.
        few: the same, if they are in this process; None: they are not.
        timeline: the times of their transactions.
        copied: a first copy was going on before.
        topic: of the messages, if they are of Kafka.
    """

    frame: DataFrame
    few: Sequence[pa.RecordBatch] | None
    timeline: Timeline
    copied: bool = False
    topic: str = ""

    def stages(self, rebases: bool) -> bool:
        """Whether the rows are staged, as pieces of a first copy.

        The last piece is appended if what is appended does not depend on the contents (`rebases`).
        """
        return self.timeline.copying or (self.copied and not rebases)

    def held(self, answer: Answer) -> Held:
        """What is kept until the next micro-batch."""
        return Held(replace(self.timeline.progress, topic=self.topic), merged(list(answer.held)))


@dataclass(frozen=True)
class Surveyed:
    """In a worker: find the positions of lines, in the first of its columns.

    Attributes:
        clock: the field of `source` whose values are times; None: times are positions.
        schema: `SURVEY`, with the types that Spark has.
    """

    clock: str | None
    schema: pa.Schema

    @classmethod
    def of(cls, collection: Collection) -> Self:
        """For times of the unit of a collection."""
        return cls(_CLOCKS.get(collection.domain.unit), frame_arrow(SURVEY))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        for found in self.all(batches):
            yield found.cast(self.schema)

    def all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same, as `SURVEY`."""
        for batch in batches:
            yield survey(positions(as_bytes(batch.column(0)), self.clock or "ts_ms"))

    def timeline(
        self, found: pa.Table, before: Held | None, *, whole: bool = False, reach: int | None = None
    ) -> Timeline | None:
        """The times of the transactions of a micro-batch; arguments and errors as for `timeline`.

        Args:
            found: as `SURVEY`, of all lines: also those that were held back before.
            before: what the micro-batch before left.
            whole: the lines end with whole transactions: none is held back.
            reach: up to this position all events are here.
        """
        held = None if before is None else before.batch()
        seen = None if held is None else as_bytes(held.column("value"))
        progress = None if before is None else before.progress
        return timeline(merged_surveys(found), self.clock, progress, whole=whole, seen=seen, reach=reach)


def surveyed(
    collection: Collection,
    frame: DataFrame,
    envelope: Envelope,
    kept: str | None,
    *,
    whole: bool,
    title: str = "",
    expected_bytes: int | None = None,
) -> Transactions | None:
    """Survey a micro-batch. Reads its lines once.

    Args:
        collection: gives the unit of the times.
        frame: the micro-batch.
        envelope: what the rows mean.
        kept: the text that the last micro-batch left in the record of the stream's writer.
        whole: the frame ends with whole transactions, and none is held back.
        title: description of the job.
        expected_bytes: a guess of the rows' size, used if Spark has no estimate.

    Returns:
        None if the events have times of their own: the envelope names a time, or is not of change events, or
        no line is of a connector that is known.

    Raises:
        InvalidUpdates: lines of several connectors.
        UsageError: events are held back, and this call would forget them; or messages of Kafka are of several
            topics or partitions.
    """
    before = split(kept)[1]
    if not isinstance(envelope, Debezium) or not envelope.by_transaction or not holds_texts(frame.schema):
        if before is not None and before.rows:
            raise UsageError(
                "events of a transaction are held back by this writer until its commit is known, and the "
                "envelope now names a time or is another one: go on with 'debezium' and no time"
            )
        return None
    topic = same_topic(before, topic_of(frame))
    work = Surveyed.of(collection)
    lines = texts(frame)
    held = None if before is None else before.batch()
    few = fetched(lines, expected_bytes)
    with described(frame.sparkSession, title):
        if few is None:
            found = to_arrow(lines.mapInArrow(work, frame_schema(SURVEY))).cast(SURVEY)
        else:
            found = pa.Table.from_batches(work.all(iter(few)), schema=SURVEY)
    if held is not None:
        found = pa.concat_tables([found, pa.Table.from_batches(work.all(iter([held])), schema=SURVEY)])
    copied = before is not None and before.progress.copying
    # What follows a first copy is looked up in it, so the copy is closed first.
    reach = -1 if copied and envelope.old_rows == "stored" else None
    times = work.timeline(found, before, whole=whole, reach=reach)
    if times is None:
        return None
    if held is None:
        return Transactions(lines, few, times, copied, topic)
    kept_rows = list(zip(*(column.to_pylist() for column in held.columns), strict=True))
    again = lines.sparkSession.createDataFrame(kept_rows, lines.schema)
    fetched_lines = None if few is None else [held, *few]
    return Transactions(lines.unionByName(again), fetched_lines, times, copied, topic)


def topic_of(frame: DataFrame) -> str:
    """The topic of messages of Kafka; empty if there are none. Reads where they are.

    Raises:
        UsageError: they come from several topics or partitions. What a partition tells later than another one
            has the times of transactions that are in already, so its events would be taken for repeated ones.
    """
    if not {*_PLACES} <= {*frame.columns}:
        return ""
    ends = frame.agg(f.min("topic"), f.max("topic"), f.max("partition")).first()
    first, last, partition = (None, None, None) if ends is None else tuple(ends)
    if first != last or partition:
        raise UsageError(f"topic {last!r}, partition {partition}: {_ONE_TOPIC}")
    return last or ""


def same_topic(before: Held | None, topic: str) -> str:
    """The topic of a stream, which is the same in all micro-batches.

    Args:
        before: what the last micro-batch left; None: this is the first one.
        topic: of this micro-batch, as `topic_of`.

    Raises:
        UsageError: it is another one, for the reason that `topic_of` has.
    """
    known = "" if before is None else before.progress.topic
    if known and topic not in ("", known):
        raise UsageError(f"topic {topic!r}, and before it {known!r}: {_ONE_TOPIC}")
    return topic or known
