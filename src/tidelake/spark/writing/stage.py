"""Staging DataFrames at open times; and micro-batches that are staged and sealed in one commit.

Owns the way from a DataFrame to one stage: workers sort and upload, and the driver stages once. Rows whose
times are closed already are refused, or staged in another collection.

INVARIANT: each row of a micro-batch is in exactly one of the two collections. The first collection's upper
decides which one, and the commit that stages rows there records this time: a repeated batch is divided at the
same time.
"""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from tidelake.errors import UsageError
from tidelake.feeds.answers import Answer
from tidelake.feeds.commit import Numbered
from tidelake.feeds.loop import CommitPoint, TriedWrite, committed, newest_of, open_upper
from tidelake.feeds.note import BatchNote
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.reports import WrittenBatch
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.named import DEFAULT, EnvelopeLike, named
from tidelake.spark.envelopes.updates import Half, StoreRows, Updates
from tidelake.spark.tasks import described, signed
from tidelake.spark.writing.running import PreparedRows, checked_rows
from tidelake.spark.writing.token import TokenWriter


def stage(
    collection: Collection,
    frame: DataFrame,
    token: str | None = None,
    *,
    envelope: EnvelopeLike = DEFAULT,
    **options: object,
) -> bool:
    """Stage a DataFrame in one commit: durable at once, and visible when its times are sealed.

    Times may be any at or after the upper; stages do not conflict with each other. Workers upload, the driver
    stages once. See `Collection.stage`.

    Args:
        collection: the collection to stage in.
        frame: evaluated once.
        token: a text that identifies this call. A call whose token is committed already succeeds without
            writing, whatever its rows are.
        envelope: what the rows mean: `"updates"`, with times of their own.
        **options: options of the named envelope, such as `time="ts"`.

    Returns:
        False if nothing had to be stored: the token is committed, or there are no rows.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not. Nothing is stored.
        UpdateBeforeLower: a time is closed; names the first one. Nothing is stored.
        UsageError: the rows have no times, or the envelope depends on the contents.
        WriterFenced: another process that began later is writing under the same token.
    """
    made = named(envelope, options)
    if isinstance(made, Updates) and not collection.domain.total_order:
        made = replace(made, interval=(open_upper(collection), Frontier()))
    if token is not None and collection.distributed.token_record(token) is not None:
        return False
    rows = checked_rows(frame, made, collection)
    with described(frame.sparkSession, f"tidelake: stage in {collection.name}"):
        answer = rows.answer(_work(collection, made, rows))
    with signed(frame.sparkSession):
        if token is None:
            return collection.distributed.stage_uploaded(answer.uploads)
        numbered = TokenWriter(collection, token).open()
        return numbered.writer.stage_uploaded(answer.uploads, sequence=numbered.sequence)


@dataclass(frozen=True)
class Watermark:
    """When a stream seals, and what happens to rows that come later.

    Attributes:
        delay: in units of the times: all times that lie further than this before the latest one are sealed.
        late: the collection in which rows are staged whose times are closed; None: they are refused.
    """

    delay: int
    late: Collection | None = None

    def after(self, answer: Answer) -> Frontier | None:
        """The frontier that a micro-batch seals, by its own times; earlier batches have sealed by theirs."""
        if answer.time_upper is None or answer.time_upper < self.delay:
            return None
        return Frontier.of(answer.time_upper - self.delay)


@dataclass
class _StageWrite(TriedWrite[WrittenBatch]):
    """The stage of a micro-batch, without its late rows, and the seal: one commit."""

    collection: Collection
    envelope: Envelope
    mark: Watermark
    numbered: Numbered[Writer]
    rows: PreparedRows

    def __post_init__(self) -> None:
        # With a collection for late rows, a time that is closed meanwhile parts them anew.
        self.fixed = self.mark.late is None

    def newest(self) -> CommitPoint:
        """As `TriedWrite`."""
        return newest_of(self.collection, to_read=False)

    def once(self, at: CommitPoint) -> WrittenBatch:
        """As `TriedWrite`."""
        half = None if self.mark.late is None else Half(_least(at.upper), late=False)
        answer = self.rows.answer(_work(self.collection, self.envelope, self.rows, half))
        late = answer.counts.late
        numbered = self.numbered
        note = numbered.note(answer)
        note = note if half is None else replace(note, parted=half.at, late=late)
        numbered.writer.stage_uploaded(
            answer.uploads, seal=self.mark.after(answer), sequence=numbered.sequence, content=note.content
        )
        counts = answer.counts.counts()
        return WrittenBatch(numbered.sequence, False, at.upper, answer.taken_bytes, **counts)


def stage_batch(
    collection: Collection,
    frame: DataFrame,
    envelope: Envelope,
    mark: Watermark,
    numbered: Numbered[Writer],
) -> WrittenBatch:
    """Stage a micro-batch and seal at its watermark in one commit; then stage its late rows."""
    rows = checked_rows(frame, envelope, collection, expected_bytes=numbered.expected_bytes)
    done = committed(_StageWrite(collection, envelope, mark, numbered, rows))
    late = _finish(rows, envelope, mark, numbered.writer)
    return replace(done, late=late, upper=collection.upper)


def finish_batch(
    collection: Collection,
    frame: DataFrame,
    envelope: Envelope,
    mark: Watermark,
    writer: Writer,
) -> int:
    """Stage the late rows of a committed micro-batch, unless they are staged. Returns how many rows."""
    if not BatchNote.of(writer.last_content).late:
        return 0
    return _finish(checked_rows(frame, envelope, collection), envelope, mark, writer)


def _finish(rows: PreparedRows, envelope: Envelope, mark: Watermark, writer: Writer) -> int:
    """Stage the late rows of the writer's last micro-batch, unless they are staged."""
    note, number = BatchNote.of(writer.last_content), writer.last_sequence
    if note.parted is None or not note.late or number is None:
        return 0
    if mark.late is None:
        raise UsageError(
            f"{note.late} rows of micro-batch {number} came too late, and are to be staged in another "
            "collection: start the query with the side that it had"
        )
    beside = mark.late.writer(writer.name, owner=writer.owner, take_over=True)
    if beside.last_sequence is not None and number <= beside.last_sequence:
        return 0
    answer = rows.answer(_work(mark.late, envelope, rows, Half(note.parted, late=True)))
    beside.stage_uploaded(answer.uploads, sequence=number, content=note.content)
    return note.late


def _work(
    collection: Collection, envelope: Envelope, rows: PreparedRows, half: Half | None = None
) -> ArrowMap:
    """The work of a task: store rows that have their own times as parts."""
    work = envelope.work(collection, rows.names, open_upper(collection))
    if (
        not isinstance(work, StoreRows)
        or work.stamp is not None
        or getattr(envelope, "late", "refuse") != "refuse"
    ):
        named_ = ", ".join(collection.domain.columns)
        raise UsageError(
            "staged rows need times of their own, and no look-up of old rows: use the envelope 'updates' "
            f"with {named_} or time='column', and no late='advance'"
        )
    return replace(work, half=half)


def _least(upper: Frontier) -> int:
    (least,) = upper.elements
    if isinstance(least, tuple):
        raise UsageError("a stream is staged by its watermark at times that are single numbers, not tuples")
    return least
