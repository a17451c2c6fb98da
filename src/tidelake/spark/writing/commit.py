"""The one commit loop of all writes of DataFrames.

Owns the way from a DataFrame to one append: the driver checks columns before anything runs, the workers, or
this process, sort and upload rows (`tidelake.spark.writing.running`), and the driver appends once, by
compare-and-set, under a number if the caller has one. A job that fails, or a task that runs twice, leaves
parts that no state names; garbage collection removes them. It must not know what rows mean; the envelope
does.

INVARIANT: uploads are offered again at a later upper only if they are right there.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from tidelake.errors import UpdateBeforeLower, UploadExpired, UpperMismatch
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.lake.api.writer import Writer
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.shard.write.append import past_last
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.envelope import AtOneTime, Compared, Envelope, OneTime
from tidelake.spark.envelopes.held import split, with_held
from tidelake.spark.envelopes.places import TopicPartition
from tidelake.spark.envelopes.updates import commit_time
from tidelake.spark.tasks import described, signed
from tidelake.spark.uploads import Answer
from tidelake.spark.writing.heldrows import HeldStore
from tidelake.spark.writing.rejects import NumberedBatch, keep
from tidelake.spark.writing.running import PreparedRows, rows_of
from tidelake.spark.writing.transactions import Transactions, surveyed
from tidelake.state.write.write import Appended


def _nothing(_answer: Answer) -> str:
    return ""


@dataclass(frozen=True)
class Numbered:
    """An append numbered by a named writer: it is committed once, however often it is repeated.

    Attributes:
        writer: the open writer; older holders of its name are fenced.
        sequence: the number.
        content: describes the input of the data, to tell whether it is the same again.
        stream: whether the next number goes on where this one ends: then transactions may be held back.
        planned: partitions of Kafka that the data is made of, also those without messages.
        first: whether the writer has committed nothing since it was opened.
    """

    writer: Writer
    sequence: int
    content: Callable[[Answer], str] = _nothing
    stream: bool = False
    planned: Collection[TopicPartition] = ()
    first: bool = False


@dataclass(frozen=True)
class WriteReport:
    """What a write did.

    Attributes:
        appended: the times written, and the new upper.
        answer: counts of what the workers did; empty if the append was committed before.
    """

    appended: Appended
    answer: Answer


def write(
    collection: LakeCollection,
    frame: DataFrame,
    envelope: Envelope,
    *,
    lower: Frontier | None = None,
    upper: Frontier | None = None,
    numbered: Numbered | None = None,
    title: str = "",
    by_tasks: bool = False,
    expected_bytes: int | None = None,
    few: Sequence[pa.RecordBatch] | None = None,
) -> WriteReport:
    """Append a DataFrame in one commit.

    Args:
        collection: the collection to append to.
        frame: evaluated once, and once more if it was larger than estimated; again only if tasks do the
            work, another writer committed meanwhile, and the updates depend on the contents or have times
            that it closed.
        envelope: what the rows mean.
        lower: append iff the collection's upper equals it; default: whatever the upper is.
        upper: close all times before it; default: just past the last time; see `idle_end`.
        numbered: append under this number.
        title: description of the jobs, for Spark's UI.
        by_tasks: let tasks do the work however few rows there are: the caller has distributed the rows.
        expected_bytes: the caller's guess of the rows' size in memory, used if Spark has no estimate.
        few: the rows, in at most one batch, if they are in this process; the frame says their columns only.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not (nothing was appended).
        UpdateBeforeLower, UpdateNotBeforeUpper: a time lies outside the interval.
        UpperMismatch: the upper is not `lower`, or all times are closed for good.
        WriterFenced: another process opened the writer.
    """
    # Read the state first, so that the columns are checked against the newest schema.
    collection.state()
    envelope.check(frame.schema, collection)
    title = title or f"tidelake: write to {collection.name}"
    kept = numbered.writer.last_content if numbered is not None and numbered.stream else None
    whole = numbered is None or not numbered.stream
    taken = surveyed(
        collection,
        frame,
        envelope,
        kept,
        whole=whole,
        title=title,
        expected_bytes=expected_bytes,
        planned=() if numbered is None else numbered.planned,
    )
    if taken is not None and isinstance(envelope, Debezium):
        frame, envelope = taken.frame, envelope.at(taken.timeline)
        # Events whose old rows are looked up are parsed by tasks.
        few = taken.few if envelope.rebases else None
        by_tasks = by_tasks or taken.few is None
        if numbered is not None and numbered.stream:
            numbered = _keeping(collection, numbered, taken)
    rows: PreparedRows | None = None
    stored: Answer | None = None
    while True:
        try:
            read_at = None if envelope.rebases else collection.distributed.newest_state().seqno
            start = _start(collection, lower, rebases=envelope.rebases)
            with described(frame.sparkSession, title):
                if stored is None:
                    if rows is None:
                        rows = rows_of(
                            frame,
                            envelope,
                            collection,
                            by_tasks=by_tasks,
                            expected_bytes=expected_bytes,
                            few=few,
                        )
                    work = envelope.work(collection, rows.names, start)
                    answer = rows.answer(work)
                    answer.repeated += 0 if taken is None else taken.repeated
                if isinstance(envelope, Compared):
                    stored = answer if stored is None else stored
                    # Others may have committed while the rows were stored.
                    read_at = collection.distributed.newest_state().seqno
                    start = open_upper(collection) if lower is None else lower
                    answer = envelope.difference(collection, stored, start, frame.sparkSession)
            if (
                taken is not None
                and numbered is not None
                and lower is None
                and taken.stages(envelope.rebases)
            ):
                with signed(frame.sparkSession):
                    return WriteReport(_staged(collection, answer, numbered, taken.timeline.upper), answer)
            end = upper
            if upper is None and taken is not None and taken.timeline.upper is not None:
                told = Frontier.of(taken.timeline.upper)
                end = told if start <= told else None
            if end is None and answer.time_upper is None and isinstance(work, AtOneTime):
                stream = numbered is not None and numbered.stream
                end = idle_end(envelope, work, collection, start, stream=stream)
            with signed(frame.sparkSession):
                appended = (
                    commit(collection, answer, start, end, read_at=read_at, numbered=numbered)
                    if lower is None
                    else _append(
                        collection, answer, start, _end(start, end, answer), numbered, read_at=read_at
                    )
                )
            if appended is not None:
                if stored is not None and isinstance(envelope, Compared):
                    envelope.discard(collection, stored)
                return WriteReport(replace(appended, removed=answer.removed, absent=answer.absent), answer)
        except UploadExpired as error:
            if not error.erased:
                raise
            # Rows were erased meanwhile: all is stored again.
            stored = None


def idle_end(
    envelope: Envelope, work: AtOneTime, collection: LakeCollection, lower: Frontier, *, stream: bool
) -> Frontier | None:
    """Up to where a write that has no updates closes times; None: none is closed.

    Rows with times of their own have none to close. A time that was given is closed, and so is one that was
    picked for rows to append. What changes nothing closes one only where none is closed yet, so that the
    collection can be read. A micro-batch of a stream closes none, as there may be many.
    """
    if stream:
        return None
    found = work.all_at
    if isinstance(envelope, Compared):
        # Its rows are stored at no time yet.
        found = OneTime(commit_time(collection, lower))
    if found is None:
        return None
    if found.given or envelope.rebases or lower.less_equal(collection.domain.minimum):
        return past_last(found.time)
    return None


def _staged(collection: LakeCollection, answer: Answer, numbered: Numbered, seal: int | None) -> Appended:
    """Stage a piece of a first copy: its rows are seen together when the last one is in, which seals."""
    keep(answer, collection.name, _numbered_batch(collection, numbered))
    numbered.writer.stage_uploaded(
        answer.uploads,
        seal=None if seal is None else Frontier.of(seal),
        sequence=numbered.sequence,
        content=numbered.content(answer),
    )
    _tidied(numbered)
    upper = open_upper(collection)
    return Appended(upper, upper)


def _numbered_batch(collection: LakeCollection, numbered: Numbered) -> NumberedBatch:
    return NumberedBatch(collection.id, numbered.writer.name, numbered.writer.owner, numbered.sequence)


class _Keeping:
    """The content of a record, with what is held back, which is stored once for each answer."""

    def __init__(self, content: Callable[[Answer], str], taken: Transactions, store: HeldStore) -> None:
        self._content, self._taken, self.store = content, taken, store
        self._told: tuple[Answer, str] | None = None

    def __call__(self, answer: Answer) -> str:
        if self._told is None or self._told[0] is not answer:
            kept = self.store.keep(self._taken.progress, answer.held)
            self._told = answer, with_held(self._content(answer), kept)
        return self._told[1]


def _keeping(collection: LakeCollection, numbered: Numbered, taken: Transactions) -> Numbered:
    before = split(numbered.writer.last_content)[1]
    held = HeldStore(collection, numbered.writer.name, before, first=numbered.first)
    return replace(numbered, content=_Keeping(numbered.content, taken, held))


def _tidied(numbered: Numbered) -> None:
    """After a commit: delete what its stream does not hold back any more."""
    if isinstance(numbered.content, _Keeping):
        numbered.content.store.committed()


def commit(
    collection: LakeCollection,
    answer: Answer,
    lower: Frontier,
    upper: Frontier | None = None,
    *,
    read_at: int | None,
    numbered: Numbered | None = None,
) -> Appended | None:
    """Append uploads that workers made for `lower`, at the current upper.

    Args:
        collection: the collection to append to.
        answer: the answer of the workers.
        lower: the upper that they uploaded for.
        upper: close all times before it; default: just past the last time.
        read_at: seqno of a state that is not later than the contents that the uploads depend on; None: they
            depend on none.
        numbered: append under this number.

    Returns:
        None if the rows must be uploaded again, at a later upper: another writer was faster, and the uploads
        depend on the contents, or have a time that is closed now.

    Raises:
        UpdateBeforeLower: a time was closed at `lower` already.
        UpdateNotBeforeUpper, UpperMismatch, WriterFenced: as for `write`.
    """
    start = lower
    while True:
        closed = answer.time_lower is not None and not start.less_equal(answer.time_lower)
        if closed and not answer.advances and start != lower:
            return None
        end = _end(start, upper, answer)
        if end <= start and not answer.rows and numbered is None:
            keep(answer, collection.name, None)
            return Appended(start, start, already=True)
        try:
            return _append(collection, answer, start, end, numbered, read_at=read_at)
        except UpperMismatch:
            # Another writer was faster; usually the parts are right at the new upper too.
            if read_at is not None:
                return None
            start = open_upper(collection)


def _start(collection: LakeCollection, lower: Frontier | None, *, rebases: bool) -> Frontier:
    """The upper to append at: the caller's or, if there is none, the current one.

    Raises:
        UpperMismatch: the uploads depend on the contents, and the upper is not the one that the caller gave.
    """
    if lower is not None and rebases:
        return lower
    upper = open_upper(collection)
    if lower not in (None, upper):
        raise UpperMismatch(lower, upper).of(collection.domain.unit)
    return upper


def open_upper(collection: LakeCollection) -> Frontier:
    """The collection's upper.

    Raises:
        UpperMismatch: all times are closed for good.
    """
    upper = collection.upper
    if upper.closed:
        raise UpperMismatch("any frontier", upper)
    return upper


def _append(
    collection: LakeCollection,
    answer: Answer,
    lower: Frontier,
    upper: Frontier,
    numbered: Numbered | None,
    *,
    read_at: int | None,
) -> Appended:
    if answer.time_lower is not None and not answer.advances and not lower.less_equal(answer.time_lower):
        raise UpdateBeforeLower(answer.time_lower, lower).of(collection.domain.unit)
    keep(answer, collection.name, None if numbered is None else _numbered_batch(collection, numbered))
    if numbered is None:
        return collection.distributed.append_uploaded(
            answer.uploads, lower=lower, upper=upper, advance=answer.advances, read_at=read_at
        )
    appended = numbered.writer.append_uploaded(
        answer.uploads,
        lower=lower,
        upper=upper,
        sequence=numbered.sequence,
        content=numbered.content(answer),
        advance=answer.advances,
        read_at=read_at,
    )
    _tidied(numbered)
    return appended


def _end(lower: Frontier, upper: Frontier | None, answer: Answer) -> Frontier:
    """The upper after the append: as given, or just past the last time; never before `lower` without rows."""
    if upper is not None:
        return lower if upper <= lower and not answer.rows else upper
    if answer.time_upper is None:
        return lower
    last = answer.time_upper
    if answer.rows and answer.advances:
        last = times.parts(times.join(last, lower.elements[0]))[0]
    end = past_last(last)
    return end if lower <= end else lower
