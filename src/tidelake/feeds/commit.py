"""The write of one collection, of whatever the uploads are made.

Owns how uploads become one append, by compare-and-set, under a number if the caller has one. Work that fails,
or that is done twice, leaves parts that no state names, which garbage collection removes. It must not know
what rows mean, nor who makes the uploads.

INVARIANT: uploads are offered again at a later upper only if they are right there.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.errors import UpdateBeforeLower, UpperMismatch
from tidelake.feeds.answers import Answer
from tidelake.feeds.heldrows import HeldStore
from tidelake.feeds.loop import CommitPoint, TriedWrite, newest_of, open_upper
from tidelake.feeds.note import BatchNote
from tidelake.feeds.rejects import NumberedBatch, keep
from tidelake.feeds.reports import WriteReport
from tidelake.feeds.survey import TimedLines
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.lake.api.writer import Writer
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.shard.writing.append import past_last
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import Appended

W = TypeVar("W", Writer, GroupWriter)


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


@dataclass(frozen=True)
class OneTime:
    """The one time of all rows of a write.

    Attributes:
        time: the time.
        given: whether the caller gave it, so that it is closed in any case; else it was picked.
    """

    time: int
    given: bool = False


class Making(Protocol):
    """How the uploads of a write are made."""

    @property
    def rebases(self) -> bool:
        """Whether uploads stay right at a later upper, as long as their times are still open."""

    def all_at(self, start: Frontier) -> OneTime | None:
        """The one time of all rows; None: the rows have times of their own."""

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
    making: Making
    lower: Frontier | None = None
    upper: Frontier | None = None
    numbered: Numbered[Writer] | None = None
    taken: TimedLines | None = None
    read: Seen | None = None
    remakes: bool = True
    _made: Answer | None = None

    def __post_init__(self) -> None:
        self.fixed = self.lower is not None

    def newest(self) -> CommitPoint:
        """As `TriedWrite`."""
        self.making.ready()
        return newest_of(self.collection, to_read=not self.making.rebases)

    def once(self, at: CommitPoint) -> WriteReport:
        """As `TriedWrite`."""
        rebases = self.making.rebases
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
        return self.taken is not None and self.taken.stages(self.making.rebases)

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
            content=numbered.note(answer).content,
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
            content=numbered.note(answer).content,
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
        found = self.making.all_at(start)
        if found is None:
            return None
        if found.given or self.making.rebases or start.less_equal(self.collection.domain.minimum):
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


class _Keeping:
    """The note of a micro-batch, with what is held back, which is stored once for each answer."""

    def __init__(self, note: Callable[[Answer], BatchNote], taken: TimedLines, store: HeldStore) -> None:
        self._note, self._taken, self.store = note, taken, store
        self._told: tuple[Answer, BatchNote] | None = None

    def __call__(self, answer: Answer) -> BatchNote:
        if self._told is None or self._told[0] is not answer:
            kept = self.store.keep(self._taken.progress, self._taken.survey, answer.held)
            self._told = answer, replace(self._note(answer), held=kept)
        return self._told[1]


def keeping(collection: LakeCollection, numbered: Numbered[Writer], taken: TimedLines) -> Numbered[Writer]:
    """The number of a micro-batch of a stream, whose note says what it holds back."""
    before = BatchNote.of(numbered.writer.last_content).held
    held = HeldStore(collection, numbered.writer.name, before, first=numbered.first)
    return replace(numbered, note=_Keeping(numbered.note, taken, held))


def _tidied(numbered: Numbered[Writer]) -> None:
    """After a commit: delete what its stream does not hold back any more."""
    if isinstance(numbered.note, _Keeping):
        numbered.note.store.committed()
