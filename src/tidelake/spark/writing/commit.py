"""The write of a DataFrame to one collection, in one commit.

Owns the way from rows to one append: the driver checks columns before anything runs, the workers, or this
process, sort and upload rows (`tidelake.spark.writing.running`), and the driver appends once
(`tidelake.feeds.commit`). It must not know what rows mean; the envelope does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from tidelake.feeds.answers import Answer
from tidelake.feeds.commit import CollectionWrite, Numbered, OneTime, keeping
from tidelake.feeds.loop import CommitPoint, committed, open_upper
from tidelake.feeds.note import BatchNote
from tidelake.feeds.reports import WriteReport
from tidelake.feeds.rows import commit_time
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.debezium import EventFrames
from tidelake.spark.envelopes.envelope import AtOneTime, Compared, Envelope
from tidelake.spark.tasks import described, signed
from tidelake.spark.writing.running import PreparedRows, check_columns, rows_of
from tidelake.spark.writing.transactions import surveyed
from tidelake.state.write.staging import Seen


@dataclass
class _FromFrame:
    """Makes the uploads of a frame, by tasks or in this process.

    Attributes:
        collection: the target.
        frame: the frame.
        envelope: what its rows mean.
        by_tasks: leave the rows to the tasks, however few they are.
        expected_bytes: as for `Numbered`.
        few: the rows, if they are in this process.
        counts: of events that are not among the rows.
    """

    collection: LakeCollection
    frame: DataFrame
    envelope: Envelope
    by_tasks: bool
    expected_bytes: int | None
    few: Sequence[pa.RecordBatch] | None
    counts: Mapping[str, int]
    _rows: PreparedRows | None = None
    _stored: Answer | None = None

    @property
    def rebases(self) -> bool:
        """As `Making`."""
        return self.envelope.rebases

    def all_at(self, start: Frontier) -> OneTime | None:
        """As `Making`."""
        return all_at(self.collection, self.envelope, () if self._rows is None else self._rows.names, start)

    def ready(self) -> None:
        """As `Making`: rows that are to be compared are stored."""
        if isinstance(self.envelope, Compared) and self._stored is None:
            self._stored = self._uploads(open_upper(self.collection))

    def answer(self, at: CommitPoint, start: Frontier) -> Answer:  # noqa: ARG002
        """As `Making`."""
        if isinstance(self.envelope, Compared) and self._stored is not None:
            return self.envelope.difference(self.collection, self._stored, start, self.frame.sparkSession)
        answer = self._uploads(start)
        answer.count(**self.counts)
        return answer

    def _uploads(self, start: Frontier) -> Answer:
        if self._rows is None:
            self._rows = rows_of(
                self.frame,
                self.envelope,
                self.collection,
                by_tasks=self.by_tasks,
                expected_bytes=self.expected_bytes,
                few=self.few,
            )
        return self._rows.answer(self.envelope.work(self.collection, self._rows.names, start))

    def forget(self) -> None:
        """As `Making`."""
        self._stored = None

    def done(self) -> None:
        """As `Making`."""
        if isinstance(self.envelope, Compared) and self._stored is not None:
            self.envelope.discard(self.collection, self._stored)


def all_at(
    collection: LakeCollection, envelope: Envelope, names: Sequence[str], start: Frontier
) -> OneTime | None:
    """The one time of all rows of an envelope; None: they have times of their own."""
    work: object = envelope.work(collection, names, start)
    if not isinstance(work, AtOneTime):
        return None
    # Rows that are to be compared are stored at no time yet.
    return OneTime(commit_time(collection, start)) if isinstance(envelope, Compared) else work.all_at


def write(
    collection: LakeCollection,
    frame: DataFrame,
    envelope: Envelope,
    *,
    lower: Frontier | None = None,
    upper: Frontier | None = None,
    numbered: Numbered[Writer] | None = None,
    title: str = "",
    by_tasks: bool = False,
    few: Sequence[pa.RecordBatch] | None = None,
    read: Seen | None = None,
) -> WriteReport:
    """Append a DataFrame in one commit.

    Args:
        collection: the collection to append to.
        frame: evaluated once, and once more if it was larger than estimated; again only if tasks do the
            work, another writer committed meanwhile, and the updates depend on the contents or have times
            that it closed.
        envelope: what the rows mean.
        lower: append iff the collection's upper equals it; default: whatever the upper is.
        upper: close all times before it; default: just past the last time; see `CollectionWrite`.
        numbered: append under this number.
        title: description of the jobs, for Spark's UI.
        by_tasks: let tasks do the work however few rows there are: the caller has distributed the rows.
        few: the rows, in at most one batch, if they are in this process; the frame says their columns only.
        read: the contents that the rows were computed from; see `CollectionWrite`.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not (nothing was appended).
        UpdateBeforeLower, UpdateNotBeforeUpper: a time lies outside the interval.
        UpperMismatch: the upper is not `lower`, or all times are closed for good.
        WriterFenced: another process opened the writer.
    """
    clock = collection.distributed.env.clock
    started_s = clock.monotonic_s()
    check_columns(frame, envelope, collection)
    title = title or f"tidelake: write to {collection.name}"
    expected_bytes = None if numbered is None else numbered.expected_bytes
    stream = numbered is not None and numbered.stream
    taken = surveyed(
        collection,
        frame,
        envelope,
        BatchNote.of(numbered.writer.last_content).held if numbered is not None and stream else None,
        whole=not stream,
        title=title,
        expected_bytes=expected_bytes,
        planned=() if numbered is None else numbered.planned,
    )
    timed = None if taken is None else taken.timed
    if taken is not None and isinstance(envelope, EventFrames):
        frame, envelope = taken.frame, replace(envelope, feed=envelope.feed.at(taken.timed.timeline))
        # Events whose old rows are looked up are parsed by tasks.
        few = taken.few if envelope.rebases else None
        by_tasks = by_tasks or taken.few is None
        if numbered is not None and stream:
            numbered = keeping(collection, numbered, taken.timed)
    counts = {} if timed is None else {"repeated": timed.repeated, "held": timed.held}
    making = _FromFrame(collection, frame, envelope, by_tasks, expected_bytes, few, counts)
    with described(frame.sparkSession, title), signed(frame.sparkSession):
        done = committed(CollectionWrite(collection, making, lower, upper, numbered, timed, read))
    return replace(done, seconds=clock.monotonic_s() - started_s)
