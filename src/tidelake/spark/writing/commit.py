"""The one commit loop of all writes through Spark, and the write of one collection.

Owns when a write is tried again (`committed`), and the way from rows to one append: the driver checks columns
before anything runs, the workers, or this process, sort and upload rows (`tidelake.spark.writing.running`),
and the driver appends once, by compare-and-set, under a number if the caller has one. A job that fails, or a
task that runs twice, leaves parts that no state names; garbage collection removes them. It must not know what
rows mean; the envelope does.

INVARIANT: uploads are offered again at a later upper only if they are right there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.errors import UpdateBeforeLower, UploadExpired, UpperMismatch
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.writer import Writer
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.shard.writing.append import past_last
from tidelake.spark.columns import check_case
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.envelope import AtOneTime, Compared, Envelope, OneTime
from tidelake.spark.envelopes.updates import commit_time
from tidelake.spark.reports import WriteReport
from tidelake.spark.tasks import described, signed
from tidelake.spark.uploads import Answer
from tidelake.spark.writing.heldrows import HeldStore
from tidelake.spark.writing.note import BatchNote
from tidelake.spark.writing.rejects import NumberedBatch, keep
from tidelake.spark.writing.running import PreparedRows, rows_of
from tidelake.spark.writing.transactions import Transactions, surveyed
from tidelake.state.core.state import ShardState
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import Appended

R = TypeVar("R")
W = TypeVar("W", Writer, GroupWriter)


@dataclass(frozen=True)
class CommitPoint:
    """What a write is tried on.

    Attributes:
        upper: the upper at which it is committed.
        seqno: of the newest state: of a collection, or of the group of several.
        state: that state, of a collection.
    """

    upper: Frontier
    seqno: int
    state: ShardState | None = field(default=None, compare=False, repr=False)


class TriedWrite(ABC, Generic[R]):
    """A write, as the commit loop tries it.

    Attributes:
        fixed: the caller said at which upper, so that a conflict is the caller's.
        remakes: whether all that was stored for the write can be made again.
        tries_max: give up after so many conflicts; None: never.
    """

    fixed = False
    remakes = True
    tries_max: int | None = None

    @abstractmethod
    def newest(self) -> CommitPoint:
        """What is there now.

        Raises:
            UpperMismatch: all times are closed for good.
        """

    @abstractmethod
    def once(self, at: CommitPoint) -> R:
        """Make what depends on it, and commit.

        Raises:
            UpperMismatch, UpdateBeforeLower: more than `at` is there, or a time was closed in it already.
        """

    def forget(self) -> None:
        """Rows were erased meanwhile: what was stored is not taken in any more."""


def committed(attempt: TriedWrite[R]) -> R:
    """The commit loop: try on the newest contents, and again as long as other writers were faster.

    Raises:
        UpperMismatch, UpdateBeforeLower: as `TriedWrite.once`, and no other writer was there meanwhile, or
            one was before each of the most tries.
    """
    at, tries = attempt.newest(), 0
    while True:
        tries += 1
        try:
            return attempt.once(at)
        except (UpperMismatch, UpdateBeforeLower):
            before, at = at, at if attempt.fixed else attempt.newest()
            if at == before or tries == attempt.tries_max:
                raise
        except UploadExpired as error:
            if not (error.erased and attempt.remakes):
                raise
            attempt.forget()
            at = attempt.newest()


def newest_of(collection: LakeCollection, *, to_read: bool) -> CommitPoint:
    """The newest of a collection, as readers see it; if it is to be read, what its group decided is applied.

    Raises:
        UpperMismatch: all times are closed for good.
    """
    state = collection.distributed.newest_state() if to_read else shard_of(collection).version().state
    if state.upper.closed:
        raise UpperMismatch("any frontier", state.upper)
    return CommitPoint(state.upper, state.seqno, state)


def open_upper(collection: LakeCollection) -> Frontier:
    """The collection's upper. Errors as `newest_of`."""
    return newest_of(collection, to_read=False).upper


def _nothing(_answer: Answer) -> BatchNote:
    return BatchNote()


@dataclass(frozen=True)
class Numbered(Generic[W]):
    """A write numbered by a named writer: it is committed once, however often it is repeated.

    Attributes:
        writer: the open writer; older holders of its name are fenced.
        sequence: the number.
        note: describes the input of the data, to tell whether it is the same again.
        stream: whether the next number goes on where this one ends: then transactions may be held back.
        planned: partitions of Kafka that the data is made of, also those without messages.
        first: whether the writer has committed nothing since it was opened.
        expected_bytes: a guess of the rows' size in memory, used if Spark has no estimate.
    """

    writer: W
    sequence: int
    note: Callable[[Answer], BatchNote] = _nothing
    stream: bool = False
    planned: Collection[TopicPartition] = ()
    first: bool = False
    expected_bytes: int | None = None

    def batch(self, collection: LakeCollection) -> NumberedBatch:
        """The number as that of a batch of the collection that keeps the writer's record."""
        return NumberedBatch(collection.id, self.writer.name, self.writer.owner, self.sequence)


class Making(Protocol):
    """How the uploads of a write are made."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the rows' columns."""

    def ready(self) -> None:
        """Do what does not depend on the contents, unless it is done."""

    def answer(self, at: CommitPoint, start: Frontier) -> Answer:
        """The uploads for an append at an upper."""

    def forget(self) -> None:
        """As `TriedWrite`."""

    def done(self) -> None:
        """The answer is committed: delete what is of no use any more."""


@dataclass
class CollectionWrite(TriedWrite[WriteReport]):
    """A write of one collection.

    Attributes:
        collection: the collection.
        envelope: what the rows mean.
        making: makes the uploads.
        lower: append iff the collection's upper equals it; None: whatever the upper is.
        upper: close all times before it; None: just past the last time; see `idle_end`.
        numbered: append under this number.
        taken: the lines, if they are those of transactions.
        read: the contents that the rows were computed from; None: from none, or those that the envelope looks
            up.
        remakes: as for `TriedWrite`.
    """

    collection: LakeCollection
    envelope: Envelope
    making: Making
    lower: Frontier | None = None
    upper: Frontier | None = None
    numbered: Numbered[Writer] | None = None
    taken: Transactions | None = None
    read: Seen | None = None
    remakes: bool = True
    _made: Answer | None = None

    def __post_init__(self) -> None:
        self.fixed = self.lower is not None

    def newest(self) -> CommitPoint:
        """As `TriedWrite`."""
        self.making.ready()
        return newest_of(self.collection, to_read=not self.envelope.rebases)

    def once(self, at: CommitPoint) -> WriteReport:
        """As `TriedWrite`."""
        rebases = self.envelope.rebases
        start = at.upper if self.lower is None else self.lower
        if start != at.upper and not rebases:
            raise UpperMismatch(start, at.upper).of(self.collection.domain.unit)
        answer = self._made
        if answer is None or not rebases or _is_shut(answer, start):
            answer = self._made = self.making.answer(at, start)
        if self.numbered is not None and not self.fixed and self._is_piece:
            return _report(self._stage(answer, self.numbered), answer)
        end = self._end(start, answer)
        if end <= start and not answer.counts.updates and self.numbered is None and not self.fixed:
            keep(answer, self.collection.name, None)
            return _report(Appended(start, start, already=True), answer)
        if _is_shut(answer, start):
            raise UpdateBeforeLower(answer.time_lower, start).of(self.collection.domain.unit)
        appended = self._append(answer, start, end, None if rebases else at.seqno)
        self.making.done()
        return _report(appended.plus(answer.counts), answer)

    def forget(self) -> None:
        """As `TriedWrite`."""
        self._made = None
        self.making.forget()

    @property
    def _is_piece(self) -> bool:
        """Whether the rows are a piece of a first copy."""
        return self.taken is not None and self.taken.stages(self.envelope.rebases)

    def _append(self, answer: Answer, start: Frontier, end: Frontier, read_at: int | None) -> Appended:
        numbered, collection = self.numbered, self.collection
        keep(answer, collection.name, None if numbered is None else numbered.batch(collection))
        if numbered is None:
            read = self.read
            return collection.distributed.append_uploaded(
                answer.uploads,
                lower=start,
                upper=end,
                advance=answer.advances,
                read_at=read_at if read is None else read.seqno,
                read_time=None if read is None else read.time,
            )
        appended = numbered.writer.append_uploaded(
            answer.uploads,
            lower=start,
            upper=end,
            sequence=numbered.sequence,
            content=numbered.note(answer).text,
            advance=answer.advances,
            read_at=read_at,
        )
        _tidied(numbered)
        return appended

    def _stage(self, answer: Answer, numbered: Numbered[Writer]) -> Appended:
        """Stage a piece of a first copy: its rows are seen together when the last one is in, which seals."""
        keep(answer, self.collection.name, numbered.batch(self.collection))
        seal = None if self.taken is None else self.taken.timeline.upper
        numbered.writer.stage_uploaded(
            answer.uploads,
            seal=None if seal is None else Frontier.of(seal),
            sequence=numbered.sequence,
            content=numbered.note(answer).text,
        )
        _tidied(numbered)
        upper = open_upper(self.collection)
        return Appended(upper, upper)

    def _end(self, start: Frontier, answer: Answer) -> Frontier:
        """The upper after the append: as given, or past the last time; not before `start` without rows."""
        upper, rows = self.upper, answer.counts.updates
        if upper is None and self.taken is not None and self.taken.timeline.upper is not None:
            told = Frontier.of(self.taken.timeline.upper)
            upper = told if start <= told else None
        if upper is None and answer.time_upper is None:
            upper = self._idle_end(start)
        if upper is not None:
            return start if upper <= start and not rows else upper
        if answer.time_upper is None:
            return start
        last = answer.time_upper
        if rows and answer.advances:
            last = times.parts(times.join(last, start.elements[0]))[0]
        end = past_last(last)
        return end if start <= end else start

    def _idle_end(self, start: Frontier) -> Frontier | None:
        """Up to where a write that has no updates closes times; None: none is closed.

        Rows with times of their own have none to close. A time that was given is closed, and so is one that
        was picked for rows to append. What changes nothing closes one only where none is closed yet, so that
        the collection can be read. A micro-batch of a stream closes none, as there may be many.
        """
        if self.numbered is not None and self.numbered.stream:
            return None
        work: object = self.envelope.work(self.collection, self.making.names, start)
        if not isinstance(work, AtOneTime):
            return None
        compared = isinstance(self.envelope, Compared)
        # Rows that are to be compared are stored at no time yet.
        found = OneTime(commit_time(self.collection, start)) if compared else work.all_at
        if found is None:
            return None
        if found.given or self.envelope.rebases or start.less_equal(self.collection.domain.minimum):
            return past_last(found.time)
        return None


def _is_shut(answer: Answer, start: Frontier) -> bool:
    """Whether a time of the rows is closed at an upper, and they may not get a later one."""
    early = answer.time_lower
    return early is not None and not answer.advances and not start.less_equal(early)


def _report(appended: Appended, answer: Answer) -> WriteReport:
    return WriteReport(
        appended, len(answer.uploads), taken_bytes=answer.taken_bytes, **answer.counted.counts()
    )


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
        repeated: events that were left out before, as repeated.
    """

    collection: LakeCollection
    frame: DataFrame
    envelope: Envelope
    by_tasks: bool
    expected_bytes: int | None
    few: Sequence[pa.RecordBatch] | None
    repeated: int
    _rows: PreparedRows | None = None
    _stored: Answer | None = None

    @property
    def names(self) -> Sequence[str]:
        """As `Making`."""
        return () if self._rows is None else self._rows.names

    def ready(self) -> None:
        """As `Making`: rows that are to be compared are stored."""
        if isinstance(self.envelope, Compared) and self._stored is None:
            self._stored = self._uploads(open_upper(self.collection))

    def answer(self, at: CommitPoint, start: Frontier) -> Answer:  # noqa: ARG002
        """As `Making`."""
        if isinstance(self.envelope, Compared) and self._stored is not None:
            return self.envelope.difference(self.collection, self._stored, start, self.frame.sparkSession)
        answer = self._uploads(start)
        answer.count(repeated=self.repeated)
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
    # Read the state first, so that the columns are checked against the newest schema.
    collection.state()
    envelope.check(frame.schema, collection)
    check_case(frame.sparkSession, collection.schema.names)
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
    if taken is not None and isinstance(envelope, Debezium):
        frame, envelope = taken.frame, envelope.at(taken.timeline)
        # Events whose old rows are looked up are parsed by tasks.
        few = taken.few if envelope.rebases else None
        by_tasks = by_tasks or taken.few is None
        if numbered is not None and stream:
            numbered = _keeping(collection, numbered, taken)
    repeated = 0 if taken is None else taken.repeated
    making = _FromFrame(collection, frame, envelope, by_tasks, expected_bytes, few, repeated)
    with described(frame.sparkSession, title), signed(frame.sparkSession):
        done = committed(CollectionWrite(collection, envelope, making, lower, upper, numbered, taken, read))
    return replace(done, seconds=clock.monotonic_s() - started_s)


class _Keeping:
    """The note of a micro-batch, with what is held back, which is stored once for each answer."""

    def __init__(self, note: Callable[[Answer], BatchNote], taken: Transactions, store: HeldStore) -> None:
        self._note, self._taken, self.store = note, taken, store
        self._told: tuple[Answer, BatchNote] | None = None

    def __call__(self, answer: Answer) -> BatchNote:
        if self._told is None or self._told[0] is not answer:
            kept = self.store.keep(self._taken.progress, answer.held)
            self._told = answer, replace(self._note(answer), held=kept)
        return self._told[1]


def _keeping(collection: LakeCollection, numbered: Numbered[Writer], taken: Transactions) -> Numbered[Writer]:
    before = BatchNote.of(numbered.writer.last_content).held
    held = HeldStore(collection, numbered.writer.name, before, first=numbered.first)
    return replace(numbered, note=_Keeping(numbered.note, taken, held))


def _tidied(numbered: Numbered[Writer]) -> None:
    """After a commit: delete what its stream does not hold back any more."""
    if isinstance(numbered.note, _Keeping):
        numbered.note.store.committed()
