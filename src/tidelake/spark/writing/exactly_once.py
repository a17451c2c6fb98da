"""Writing streams exactly once, also after crashes.

Owns the one sink of all streams. The order of commits makes it exactly-once, with nothing to configure:

1. Spark writes into the checkpoint what batch n is made of. From then on batch n is that.
2. One compare-and-set appends the rows of batch n and records "writer W has written n for query Q".
3. Spark writes into the checkpoint that n is done.

A driver that dies before 2 leaves parts that no state names. After a death between 2 and 3 batch n is run
again, and the record says that it is committed; its rows are not even read. A driver that was wrongly taken
for dead is fenced by the epoch of the next driver that opens the writer. A task that is retried, or run
twice, uploads twice, and one answer of each task counts.

What a stream is written into (`Into`), a collection, a stage, or the tables of a group, says how one
micro-batch is committed, and nothing else.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from pyspark.sql import DataFrame

from tidelake.config import Config
from tidelake.errors import TidelakeError, UsageError
from tidelake.feeds.batches import Batches, Identity, Into, Progress, written
from tidelake.feeds.commit import Numbered, W
from tidelake.feeds.reports import WrittenBatch
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.lake.api.lake import open_lake
from tidelake.lake.api.writer import Writer
from tidelake.lake.arguments.names import check_name
from tidelake.lake.arguments.spans import WindowLike, window
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.named import DEFAULT, EnvelopeLike, named
from tidelake.spark.tasks import described, signed
from tidelake.spark.writing.commit import write
from tidelake.spark.writing.microbatch import planned_by, planned_places, query_of
from tidelake.spark.writing.stage import Watermark, finish_batch, stage_batch

G = TypeVar("G")

DEFAULT_WRITER = "spark"


class IntoFrames(Into[G, W], Protocol[G, W]):
    """What streams of DataFrames are written into."""

    @property
    def title(self) -> str:
        """What it is called, for Spark's UI."""

    def rows(
        self, frame: DataFrame, query: str, batch: int, expected_bytes: int | None
    ) -> tuple[G, Identity]:
        """The rows of a micro-batch, as `write` takes them, and what tells it from others with its number."""


@dataclass
class Sink(Batches[G, W]):
    """What `foreachBatch` calls for each micro-batch of one streaming query: each is committed once.

    Attributes:
        into: what is written into.
        writer: name of the stream's record there.
        take_over: whether to take over a name that another query has used.
        progress: called with what each micro-batch did.
        query: identifies the stream; None: Spark's query id does.
        report: what all micro-batches did.
        error: the error that the last call raised; Spark's own exception has only its text.
    """

    into: IntoFrames[G, W]
    progress: Progress | None = None
    query: str | None = None
    error: Exception | None = field(default=None, init=False, repr=False)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Commit one micro-batch, unless it is committed already."""
        try:
            query = query_of(frame) if self.query is None else self.query
            session, title = frame.sparkSession, f"tidelake: batch {batch} into {self.into.title}"
            with described(session, title), signed(session):
                rows, identity = self.into.rows(frame, query, batch, self._taken_bytes)
                done = self.write(rows, query, batch, identity, planned_places(frame, query, batch))
            if self.progress is not None:
                self.progress(done)
        except Exception as error:
            self.error = error
            # If this query continues, open the writer again, to read its record anew.
            self._opened, self._failed = None, batch
            if isinstance(error, TidelakeError):
                # Spark shows the text of the whole traceback, and the sentence says all.
                raise error.with_traceback(None) from None
            raise


@dataclass(frozen=True)
class IntoCollection:
    """Appends micro-batches to a collection.

    Attributes:
        collection: the collection.
        envelope: what the rows mean.
    """

    collection: LakeCollection
    envelope: Envelope

    @property
    def title(self) -> str:
        """As `Into`."""
        return self.collection.name

    @property
    def upper(self) -> Frontier:
        """As `Into`."""
        return self.collection.upper

    def open(self, writer: str, query: str, *, take_over: bool) -> Writer:
        """As `Into`."""
        return self.collection.writer(writer, owner=query, take_over=take_over)

    def rows(
        self,
        frame: DataFrame,
        query: str,
        batch: int,
        expected_bytes: int | None,  # noqa: ARG002
    ) -> tuple[DataFrame, Identity]:
        """As `Into`: a batch is known by when Spark planned it."""
        return frame, Identity.told(planned_by(frame, query, batch))

    def write(self, rows: DataFrame, numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`."""
        title = f"tidelake: batch {numbered.sequence} into {self.title}"
        return written(numbered, write(self.collection, rows, self.envelope, numbered=numbered, title=title))

    def finish(self, rows: DataFrame, numbered: Numbered[Writer]) -> WrittenBatch:  # noqa: ARG002
        """As `Into`."""
        return WrittenBatch(numbered.sequence, True, self.upper)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle it for Spark Connect, whose server calls the function in another process."""
        return _reopened, (*_sent(self.collection), self.envelope)


@dataclass(frozen=True)
class IntoStage(IntoCollection):
    """Stages micro-batches in a collection, and seals as the stream goes.

    Attributes:
        mark: the watermark at which it seals.
    """

    mark: Watermark

    def write(self, rows: DataFrame, numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`."""
        return stage_batch(self.collection, rows, self.envelope, self.mark, numbered)

    def finish(self, rows: DataFrame, numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`: late rows may not be staged yet."""
        late = finish_batch(self.collection, rows, self.envelope, self.mark, numbered.writer)
        return WrittenBatch(numbered.sequence, True, self.upper, late=late)

    def __reduce__(self) -> tuple[object, ...]:
        """As `IntoCollection`."""
        side = None if self.mark.late is None else (self.mark.late.id, self.mark.late.name)
        return _reopened, (*_sent(self.collection), self.envelope, self.mark.delay, side)


def _sent(collection: LakeCollection) -> tuple[tuple[str, Config], tuple[str, str]]:
    """What another process needs to open a collection again."""
    spec = collection.distributed.uploader().spec
    return (spec.url, spec.config), (collection.id, collection.name)


def _reopened(place: tuple[str, Config], which: tuple[str, str], envelope: Envelope, *mark: Any) -> Any:
    url, config = place
    lake = open_lake(url, create=False, config=config)
    if not mark:
        return IntoCollection(lake.same_collection(*which), envelope)
    delay, side = mark
    return IntoStage(
        lake.same_collection(*which), envelope, Watermark(delay, side and lake.same_collection(*side))
    )


def sink(
    collection: LakeCollection,
    envelope: EnvelopeLike = DEFAULT,
    *,
    writer: str = DEFAULT_WRITER,
    take_over: bool = False,
    progress: Progress | None = None,
    query: str | None = None,
    delay: WindowLike | None = None,
    side: LakeCollection | None = None,
    **options: object,
) -> Sink[DataFrame, Writer]:
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
    made = named(envelope, options)
    into = IntoCollection(collection, made) if mark is None else IntoStage(collection, made, mark)
    return Sink(into, writer, take_over, progress, query)


def _delay(delay: WindowLike, collection: LakeCollection) -> int:
    """Convert a delay to units of the collection's times."""
    if delay == 0 and not isinstance(delay, timedelta) and collection.domain.total_order:
        return 0
    return window(delay, collection.domain) or 0


def _alike(a: LakeCollection, b: LakeCollection) -> bool:
    return (a.schema, a.key, a.domain) == (b.schema, b.key, b.domain)
