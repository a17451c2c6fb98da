"""Writing streams exactly once, also after crashes.

Owns what identifies a micro-batch. The order of commits makes it exactly-once, with nothing to configure:

1. Spark writes into the checkpoint what batch n is made of. From then on batch n is that.
2. One compare-and-set appends the rows of batch n and records "writer W has written n for query Q".
3. Spark writes into the checkpoint that n is done.

A driver that dies before 2 leaves parts that no state names. After a death between 2 and 3 batch n is run
again, and the record says that it is committed; its rows are not even read. A driver that was wrongly taken
for dead is fenced by the epoch of the next driver that opens the writer. A task that is retried, or run
twice, uploads twice, and one answer of each task counts.

With `delay` the rows of a batch are staged, and the same compare-and-set seals at the watermark: so no time
is closed before the batch that moved the watermark is durable (`tidelake.spark.writing.stage`).

INVARIANT: Spark repeats only its last batch, as it was planned. A number before the last one, or the last one
planned at another moment, comes from a checkpoint that is older than the collection (a restored copy). Its
rows may be different: it is refused, never taken for done.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tidelake.config import Config
from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import open_lake
from tidelake.lake.api.writer import Writer
from tidelake.lake.arguments.names import check_name
from tidelake.lake.arguments.spans import WindowLike, window
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.debezium import of_kafka
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.held import split
from tidelake.spark.envelopes.named import DEFAULT, EnvelopeLike, named
from tidelake.spark.envelopes.places import TopicPartition
from tidelake.spark.writing.commit import Numbered, write
from tidelake.spark.writing.stage import PARTED, Watermark, finish_batch, stage_batch
from tidelake.state.write.idempotency import other_content

D = TypeVar("D")
W = TypeVar("W", Writer, GroupWriter)

DEFAULT_WRITER = "spark"
QUERY_ID = "sql.streaming.queryId"
_PLANNED, RUN = "planned at ", " by run "
# Spark's entry in the checkpoint for a planned micro-batch: the metadata come first.
_MOMENT = re.compile(r'"batchTimestampMs":(\d+)')


@dataclass(frozen=True)
class WrittenBatch:
    """What one micro-batch did.

    Attributes:
        batch: its number in the checkpoint.
        already: it was committed before; nothing was read.
        upper: the collection's upper after it.
        rows: updates that it made, before consolidation.
        late: rows that the tasks moved to a later time, or that were staged in the collection for late rows.
        held: events that are held back: the commit, or the end, of their transaction is not known yet.
        repeated: events ignored, since their transactions are in the collection, or their offsets were seen.
        absent: removals of keys that had no row, as far as old rows were looked up.
    """

    batch: int
    already: bool
    upper: Frontier
    rows: int = 0
    late: int = 0
    held: int = 0
    repeated: int = 0
    absent: int = 0


Progress = Callable[[WrittenBatch], None]


class BatchSink(ABC, Generic[D, W]):
    """What `foreachBatch` calls for each micro-batch of one streaming query: each is committed once.

    A subclass says how a micro-batch is committed, and what it did.

    Attributes:
        progress: called with what each micro-batch did.
        error: the error that the last call raised; Spark's own exception has only its text.
    """

    progress: Callable[[D], None] | None = None
    error: Exception | None = None
    _opened: tuple[str, W] | None = None
    _failed: int | None = None
    # Whether no micro-batch was committed since the writer was opened.
    _first: bool = True
    # For most streams Spark has no estimate of a micro-batch's size: use that of the last one.
    _taken_bytes: int | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Commit one micro-batch, unless it is committed already."""
        try:
            done = self._take(frame, batch)
            if self.progress is not None:
                self.progress(done)
        except Exception as error:
            self.error = self._own(error)
            # If this query continues, open the writer again, to read its record anew.
            self._opened, self._failed = None, batch
            raise

    @abstractmethod
    def _take(self, frame: DataFrame, batch: int) -> D:
        """Commit one micro-batch, unless it is committed already."""

    @abstractmethod
    def _open(self, query: str) -> W:
        """Open the writer: that fences older drivers."""

    def _own(self, error: Exception) -> Exception:
        """The error that the caller gets for an error of the write."""
        return error

    def _writer(self, query: str) -> W:
        """The writer, opened once for each query."""
        if self._opened is None or self._opened[0] != query:
            self._opened, self._first = (query, self._open(query)), True
        return self._opened[1]

    def _is_in(self, writer: W, batch: int, content: str) -> bool:
        """As `is_in`."""
        # After a failure, the same run of the query may repeat the batch: do not compare the run.
        return is_in(writer, batch, content.partition(RUN)[0] if batch == self._failed else content)


@dataclass
class Sink(BatchSink[WrittenBatch, Writer]):
    """What `foreachBatch` calls for each micro-batch of one streaming query; made by `sink`.

    Attributes:
        collection: the collection to write to.
        envelope: what the rows mean.
        writer: name of the stream's record in the collection.
        take_over: whether to take over a name that another query has used.
        progress: called after each micro-batch.
        query: identifies the stream; None: Spark's query id does.
        mark: rows are staged and sealed at this watermark; None: they are appended.
    """

    collection: Collection
    envelope: Envelope
    writer: str = DEFAULT_WRITER
    take_over: bool = False
    progress: Progress | None = None
    query: str | None = None
    mark: Watermark | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle it for Spark Connect, whose server calls the function in another process."""
        spec = self.collection.distributed.uploader().spec
        mark = self.mark
        sent = None if mark is None else (mark.delay, mark.late and (mark.late.id, mark.late.name))
        rest = (self.envelope, self.writer, self.take_over, self.progress, self.query)
        return _reopened, (spec.url, spec.config, self.collection.id, self.collection.name, sent, *rest)

    def _take(self, frame: DataFrame, batch: int) -> WrittenBatch:
        query = query_of(frame) if self.query is None else self.query
        writer, content = self._writer(query), "" if self.query else planned_by(frame, query, batch)
        if self._is_in(writer, batch, content):
            late = 0
            if self.mark is not None:
                late = finish_batch(self.collection, frame, self.envelope, self.mark, writer)
            return WrittenBatch(batch, True, self.collection.upper, late=late)
        if self.mark is not None:
            staged = stage_batch(
                self.collection,
                frame,
                self.envelope,
                self.mark,
                Numbered(writer, batch, lambda _: content),
                expected_bytes=self._taken_bytes,
            )
            self._taken_bytes = staged.taken_bytes
            return WrittenBatch(batch, False, self.collection.upper, staged.rows, staged.late)
        title = f"tidelake: batch {batch} into {self.collection.name}"
        planned = planned_places(frame, query, batch)
        numbered = Numbered(writer, batch, lambda _answer: content, True, planned, self._first)
        done = write(
            self.collection,
            frame,
            self.envelope,
            numbered=numbered,
            title=title,
            expected_bytes=self._taken_bytes,
        )
        self._taken_bytes, self._first = done.answer.taken_bytes, False
        appended, answer = done.appended, done.answer
        return WrittenBatch(
            batch,
            appended.already,
            appended.upper,
            answer.rows,
            answer.late,
            answer.held_events,
            answer.repeated,
            answer.absent,
        )

    def _open(self, query: str) -> Writer:
        return self.collection.writer(self.writer, owner=query, take_over=self.take_over)


def _reopened(url: str, config: Config, id_: str, name: str, sent: Any, *rest: Any) -> Sink:
    lake = open_lake(url, create=False, config=config)
    mark = None
    if sent is not None:
        delay, late = sent
        mark = Watermark(delay, late and lake.same_collection(*late))
    made = Sink(lake.same_collection(id_, name), *rest)
    made.mark = mark
    return made


def sink(
    collection: Collection,
    envelope: EnvelopeLike = DEFAULT,
    *,
    writer: str = DEFAULT_WRITER,
    take_over: bool = False,
    progress: Progress | None = None,
    query: str | None = None,
    delay: WindowLike | None = None,
    side: Collection | None = None,
    **options: object,
) -> Sink:
    """A function for `foreachBatch` that writes each micro-batch exactly once.

        frame.writeStream.foreachBatch(tidelake.spark.sink(collection)).option(
            "checkpointLocation", place).start()

    A micro-batch is one commit. The stream may be killed and started again at any point. An empty
    micro-batch moves no time; only its number is recorded.

    Args:
        collection: the collection to write to.
        envelope: what the rows mean; see `write`.
        writer: name of the stream's record in the collection. Each stream into a collection needs its own
            name.
        take_over: take over a name that another query, that is another checkpoint, has used. Only for rows
            that the other one has not written: the same rows would be written twice.
        progress: called after each micro-batch, in the driver.
        query: identifies this stream under Spark Connect, where Spark's query id is not available. Give the
            same text when the stream is started again with the same checkpoint, and another one with another
            checkpoint.
        delay: stage the rows at their own times, in any order, and seal as the stream goes: the commit that
            stages a micro-batch also closes all times that lie further than this before the latest time seen.
            In units of the collection's times or, for clock times, a timedelta or `"10m"`. Take at least the
            delay of a `withWatermark` of the query. For the envelope 'updates', with times.
        side: with `delay`: a collection with the same columns and times, in which rows are staged whose times
            are closed. It is not sealed. Default: such a row is an error, and its micro-batch is not
            committed.
        **options: options of the named envelope, such as `time="ts"`.

    Raises (out of the query, as text; the error itself is in `Sink.error`):
        InvalidUpdates: rows do not fit. The micro-batch was not appended, all earlier ones were.
        UsageError: this writer name belongs to another checkpoint, or the checkpoint is an old copy.
        WriterFenced: the same query was started elsewhere.
    """
    # Check before the query starts: afterwards Spark has only the text of an error.
    check_name(writer, "writer name")
    mark = None if delay is None else Watermark(_delay(delay, collection), side)
    if side is not None and (mark is None or side.id == collection.id or not _alike(side, collection)):
        raise UsageError(
            "side needs delay, and must be another collection with the same columns and times: it gets the "
            "rows whose times are sealed already"
        )
    return Sink(collection, named(envelope, options), writer, take_over, progress, query, mark)


def _delay(delay: WindowLike, collection: Collection) -> int:
    """Convert a delay to units of the collection's times.

    Raises:
        UsageError: it is not valid.
    """
    if delay == 0 and not isinstance(delay, timedelta) and collection.domain.total_order:
        return 0
    return window(delay, collection.domain) or 0


def _alike(a: Collection, b: Collection) -> bool:
    return (a.schema, a.key, a.domain) == (b.schema, b.key, b.domain)


def query_of(frame: DataFrame) -> str:
    """The id of the streaming query that a micro-batch belongs to.

    Raises:
        UsageError: it belongs to none, or Spark gives no id.
    """
    try:
        found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkException:
        raise UsageError(
            "Spark Connect does not say which query a micro-batch belongs to: give sink(..., query='...'), a "
            "text that goes with the checkpoint, or use writeStream.format('tidelake')"
        ) from None
    if not found:
        raise UsageError("this is no micro-batch of a streaming query: use tidelake.spark.write")
    return str(found)


def planned_by(frame: DataFrame, query: str, batch: int) -> str:
    """The moment at which Spark planned a micro-batch, from its checkpoint, and the current run of the query.

    A repeated batch has the same moment, and another batch never has it. Empty if Spark does not give them.
    """
    try:
        running = _running(frame, query)
        moment = running.offsetLog().get(batch).get().metadataOpt().get().batchTimestampMs()
        return f"{_PLANNED}{moment}{RUN}{running.runId().toString()}"
    except (PySparkException, Py4JError, AttributeError):
        # This is not public in Spark: another version may keep it elsewhere.
        return ""


def planned_places(frame: DataFrame, query: str, batch: int) -> frozenset[TopicPartition]:
    """The partitions of Kafka that a micro-batch is made of, from its checkpoint, with or without messages.

    Empty if it is of another source, or if Spark does not give them.
    """
    if not of_kafka(frame.schema):
        return frozenset()
    try:
        offsets = _running(frame, query).offsetLog().get(batch).get().offsets()
        sources = [offsets.apply(i) for i in range(offsets.size())]
        texts = [source.get().json() for source in sources if source.isDefined()]
    except (PySparkException, Py4JError, AttributeError):
        # As in `planned_by`: then the partitions are known from their messages.
        return frozenset()
    found: set[TopicPartition] = set()
    for topics in map(json.loads, texts):
        if isinstance(topics, dict) and all(isinstance(one, dict) for one in topics.values()):
            found.update(
                TopicPartition(topic, int(partition)) for topic, ends in topics.items() for partition in ends
            )
    return frozenset(found)


def _running(frame: DataFrame, query: str) -> Any:
    """The running query, in Spark's own JVM."""
    context = frame.sparkSession.sparkContext
    found = frame.sparkSession._jsparkSession.sharedState().activeStreamingQueries()
    return found.get(context._jvm.java.util.UUID.fromString(query))  # type: ignore[union-attr]


def planned_in(checkpoint: str | None, batch: int) -> str:
    """The moment at which Spark planned a micro-batch, as `planned_by`, for a process without the query.

    Args:
        checkpoint: the checkpoint's place, as it was given to Spark.
        batch: the number.

    Returns:
        Empty if this process cannot read it: it is on another file system, or not an option of the stream.
    """
    if checkpoint is None:
        return ""
    place = re.sub(r"^file:(//(?=/))?", "", checkpoint)
    try:
        found = _MOMENT.search((Path(place) / "offsets" / str(batch)).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return "" if found is None else _PLANNED + found[1]


def is_in(writer: Writer | GroupWriter, batch: int, content: str = "") -> bool:
    """Whether a micro-batch is committed already.

    Args:
        writer: the writer of the stream.
        batch: the number of the batch.
        content: tells it from other batches with this number; empty: unknown.

    Raises:
        UsageError: the batch is before the last one, or another one has its number: the checkpoint is older
            than the collection. Or this run of the query has written the batch before: as a run comes to each
            batch once, these are other rows.
    """
    if writer.last_sequence is None or batch > writer.last_sequence:
        return False
    planned, _, run = content.partition(RUN)
    known, _, last_run = split(writer.last_content)[0].partition(PARTED)[0].partition(RUN)
    if batch < writer.last_sequence or (planned and known and planned != known):
        raise UsageError(other_content(writer.name, batch))
    if run and run == last_run:
        raise UsageError(
            f"something was written under writer {writer.name!r} in this micro-batch, {batch}, already: if a "
            "micro-batch writes to one collection several times, give each sink a writer name of its own"
        )
    return True
