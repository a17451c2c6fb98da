"""Writing: how rows come into a shard, and at which times.

A `Write` is a value. `plan` works it out on a state, and writes nothing; `commit` makes it the next step of a
collection in no group. In a group the rows of the plan are staged, and the group decides
(`tidelake.state.group.deciding`). The step that lets the write of a named writer in also records its number
(`tidelake.state.write.idempotency`).
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from tidelake.errors import (
    AlreadyTaken,
    CollectionDropped,
    CollectionInGroup,
    IncompatibleSchema,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UploadExpired,
    UpperMismatch,
    UsageError,
)
from tidelake.model import time as times
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.counts import Removals
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.owned import not_for
from tidelake.state.core.partnames import by_seqno, repeated, too_late
from tidelake.state.core.state import ShardState, Written
from tidelake.state.spine.staged import Staged
from tidelake.state.write.clockbounds import leap, too_far
from tidelake.state.write.idempotency import IdempotencyKey, advanced, answer_of_record
from tidelake.state.write.staging import Seen, closing, place, room, unseen
from tidelake.tabletext import FieldsAsHtml

_NOT_BEFORE = "the lower frontier {lower} is not at or before the upper {upper}: give a later upper"


@dataclass(frozen=True)
class Exactly:
    """All times of `[lower, upper)`, iff the shard's upper equals `lower`."""

    lower: Frontier
    upper: Frontier


@dataclass(frozen=True)
class UpTo:
    """The times of `[lower, upper)` that are still open, for several writers of the same data."""

    lower: Frontier
    upper: Frontier


@dataclass(frozen=True)
class AtCommit:
    """One time: the shard's upper at the commit, or `floor` if that is later.

    The parts are written at `floor`; if the commit picks a later time, they are registered with a rewrite.
    """

    floor: Time


@dataclass(frozen=True)
class FromUpper:
    """All times from the shard's upper, whatever that is by then, to `upper`.

    All rows are known to be before `upper`, and at or after `checked`.
    """

    checked: Frontier
    upper: Frontier


@dataclass(frozen=True)
class OpenTimes:
    """Times that stay open: the rows are staged. Then all times before `seal_to` are closed, if it is given.

    All rows are known to be at or after `checked`.
    """

    checked: Frontier
    seal_to: Frontier | None = None


When: TypeAlias = Exactly | UpTo | AtCommit | FromUpper | OpenTimes


@dataclass(frozen=True)
class Write:
    """A change of a shard's contents.

    Attributes:
        when: their times, and the times that are closed.
        idempotency: the number of a named writer, if one writes.
        seen: the contents that the updates were made from, if any: `UpperMismatch` also if other updates were
            staged for their times since then.
        offered: the uploads that the runs are, or were made of. Others may hold copies of them, so each is
            taken at most once, and may be tried again after a refusal.
        as_now: refuse rows with a column that was dropped or renamed since they were written.
        inline_bytes_max: inline parts of the state must take less; None: no limit.
        owner: the program that writes. If a shard has an owner, only that one may.
    """

    runs: tuple[Run, ...]
    when: When
    idempotency: IdempotencyKey | None = None
    seen: Seen | None = None
    offered: tuple[Part, ...] = ()
    as_now: bool = False
    inline_bytes_max: int | None = None
    owner: str = ""


@dataclass(frozen=True)
class Appended(Removals, FieldsAsHtml):
    """The answer to an append.

    Attributes:
        lower: start of the times that were written.
        upper: the shard's upper after the append.
        already: nothing had to be written: the data was in before this call, or there was no data.
        waited_s: seconds that the append waited, or merged, because too many runs were unmerged.
        removed: as for `Removals`.
        absent: likewise.
    """

    lower: Frontier
    upper: Frontier
    already: bool = False
    waited_s: float = 0.0

    @classmethod
    def before(cls, upper: Frontier) -> "Appended":
        """The answer for data that was in before the call, or for no data."""
        return cls(upper, upper, already=True)

    def of_unit(self, unit: str) -> "Appended":
        """The same answer, which prints times of a clock as people write them."""
        lower, upper = self.lower.of_unit(unit), self.upper.of_unit(unit)
        return self if lower is self.lower else replace(self, lower=lower, upper=upper)


@dataclass(frozen=True)
class Addition:
    """What a write would do to a state.

    Attributes:
        batch: the runs to register, and the times that it closes; empty bounds: none.
        staged: the runs as a staged batch, if they are staged.
        stays_open: the runs may have any times at or after the upper, so they still fit if the upper moves.
        floats: all rows have this one time, and a later time will do as well.
    """

    batch: HollowBatch
    staged: Staged | None = None
    stays_open: bool = False
    floats: Time | None = None

    @property
    def changes(self) -> bool:
        """Whether rows come in, or times are closed."""
        return self.staged is not None or not self.batch.bounds.empty

    @property
    def answer(self) -> Appended:
        """The answer once it is committed."""
        return Appended(self.batch.bounds.lower, self.batch.bounds.upper)


def commit(state: ShardState, now_ms: int, write: Write) -> Outcome[Appended]:
    """The step of a write to a collection in no group. Costs O(staged batches) if it closes times.

    Refused as `plan`, and with a usage error if it would close times too far ahead of the clock; nothing is
    written then.
    """
    found = plan(state, write)
    if not isinstance(found, Addition):
        return found
    upper = found.batch.bounds.upper
    far = too_far(state, state.upper, upper, now_ms)
    if far is not None:
        return far
    key = write.idempotency
    writers = {} if key is None else {key.writer: advanced(state.writers[key.writer], key, upper)}
    if not found.changes:
        return Commit(Edits(writers=writers), found.answer)
    batch, fresh = found.batch, found.staged
    written = _more(state.written, batch) if batch.runs else None
    taken = by_seqno(part.name for part in write.offered) if write.offered else {}
    if fresh is not None and batch.bounds.empty:
        edits = Edits(staged={fresh.name: fresh}, writers=writers, written=written, taken=taken)
        return Commit(edits, found.answer)
    step = closing(state, batch) if fresh is None else closing(state, HollowBatch(batch.bounds), (fresh,))
    edits = Edits(
        upper=Move(state.upper, upper),
        spine=step.spine,
        staged=step.staged,
        writers=writers,
        written=written,
        taken=taken,
    )
    return Commit(edits, found.answer, step.due)


def plan(state: ShardState, write: Write) -> Addition | NoOp[Appended] | Refused:
    """What a write would do to a state; the collection commits it itself, or its group does.

    Refused with `WriterFenced`, `AlreadyTaken`, `UpperMismatch`, `UpdateBeforeLower`, `UpdateNotBeforeUpper`,
    `IncompatibleSchema` (rows of a schema that is not registered; see also `Write.as_now`), `UploadExpired`,
    `InlineFull`, `CollectionIsView` or a usage error.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group:
        return Refused(CollectionInGroup(state.shard_id))
    strange_writer = None if state.owned is None else not_for(state, write.owner)
    if strange_writer is not None:
        return Refused(strange_writer)
    decided = None if write.idempotency is None else _answered(state, write.idempotency)
    if decided is not None:
        return decided
    strange = unregistered(state, write.runs)
    if strange is not None:
        return Refused(strange)
    placed = _place(state, write.runs, write.when)
    if isinstance(placed, NoOp):
        return placed
    # Before a conflict is reported: a retry of an append that is in must learn that it is in.
    parts = [*[part for run in write.runs for part in run.parts], *write.offered]
    known = repeated(state, parts)
    if known is not None:
        return Refused(known)
    if isinstance(placed, Refused):
        return placed
    late = too_late(state, parts)
    if late is not None:
        return Refused(late)
    gone = _outdated(state, write.runs) if write.as_now else None
    if gone is not None:
        return Refused(gone)
    if not placed.changes:
        return NoOp(replace(placed.answer, already=True)) if write.idempotency is None else placed
    full = room(state, placed.batch, write.inline_bytes_max)
    return full or (unseen(state, placed.batch.bounds, write.seen) if write.seen else None) or placed


def expected(state: ShardState, now_ms: int, write: Write) -> Outcome[Appended]:
    """What `commit` would answer to a write whose runs are not uploaded yet; its `runs` are empty.

    A `Commit` holds no edits: whether the write succeeds also depends on the runs.
    """
    found = plan(state, write)
    if not isinstance(found, Addition):
        return found
    far = too_far(state, state.upper, found.batch.bounds.upper, now_ms)
    return far or Commit(Edits(), found.answer)


def unregistered(state: ShardState, runs: tuple[Run, ...]) -> IncompatibleSchema | None:
    """The error for rows of a schema that is not registered."""
    strange = [part.schema_id for run in runs for part in run.parts if part.schema_id not in state.schemas]
    if not strange:
        return None
    # Final only on the newest state: the writer of the part may have seen a later state with the schema.
    return IncompatibleSchema(
        f"rows of schema {min(strange)} cannot be appended: the collection has no such schema; "
        "write them again under its schema"
    )


def _outdated(state: ShardState, runs: tuple[Run, ...]) -> IncompatibleSchema | None:
    """The error for a column of these rows that the newest schema no longer has; None: it has all.

    A column that was renamed is gone by its old name, which may be that of another one now.
    """
    if len(state.schemas) == 1:
        return None
    newest = state.schema_id
    others = {part.schema_id for run in runs for part in run.parts if part.schema_id != newest}
    live = {(column.id, column.name) for column in state.schemas[newest].schema.columns} if others else ()
    for id_ in others:
        for column in state.schemas[id_].schema.columns:
            if (column.id, column.name) not in live:
                return IncompatibleSchema(
                    f"column {column.name!r} was dropped or renamed meanwhile: leave it out of the table"
                )
    return None


def unfitting(
    state: ShardState, runs: tuple[Run, ...], offered: tuple[Part, ...], *, as_now: bool = False
) -> IncompatibleSchema | AlreadyTaken | UploadExpired | None:
    """The error for runs that the shard cannot take, whatever their times are; `as_now` as for `append`."""
    parts = (*(part for run in runs for part in run.parts), *offered)
    unfit = unregistered(state, runs) or repeated(state, parts) or too_late(state, parts)
    return unfit or (_outdated(state, runs) if as_now else None)


def _more(written: Written, batch: HollowBatch) -> Written:
    rows, size_bytes = written.appended_rows + batch.rows, written.appended_bytes + batch.size_bytes
    return Written(rows, size_bytes, written.merged_rows, written.merged_bytes)


def already_in(
    state: ShardState, _now_ms: int, idempotency: IdempotencyKey
) -> NoOp[Appended | None] | Refused:
    """The answer to an append that is in, None if it is not; refused if the writer may not write."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group:
        return Refused(CollectionInGroup(state.shard_id))
    return _answered(state, idempotency) or NoOp(None)


def _answered(state: ShardState, key: IdempotencyKey) -> NoOp[Appended] | Refused | None:
    return answer_of_record(state.writers.get(key.writer), key, Appended.before)


def _place(state: ShardState, runs: tuple[Run, ...], when: When) -> Addition | Refused | NoOp[Appended]:
    """The runs with rewrites and truncation, and the times that they close."""
    match when:
        case Exactly(lower, upper):
            wrong = _misplaced(state, runs, lower, upper)
            if wrong is None and state.upper != lower:
                wrong = Refused(UpperMismatch(lower, state.upper))
            return wrong or Addition(_closing(state, runs, upper))
        case UpTo(lower, upper):
            return _misplaced(state, runs, lower, upper) or _up_to(state, runs, lower, upper)
        case FromUpper(checked, upper):
            return _from_upper(state, runs, checked, upper)
        case AtCommit(floor):
            return _at_commit(state, runs, floor)
        case OpenTimes(checked, seal_to):
            staged = place(state, runs, checked) if runs else None
            if isinstance(staged, Refused):
                return staged
            upper = state.upper if seal_to is None else state.upper.join(seal_to)
            return Addition(_closing(state, runs, upper), staged, stays_open=True)


def _closing(state: ShardState, runs: tuple[Run, ...], upper: Frontier) -> HollowBatch:
    # New data has not been folded at all, whatever the shard's since is now.
    return HollowBatch(Bounds(state.upper, upper, state.minimum), runs)


def _misplaced(state: ShardState, runs: tuple[Run, ...], lower: Frontier, upper: Frontier) -> Refused | None:
    """The refusal of an interval that is none, or of a time outside it."""
    if not lower <= upper:
        return Refused(UsageError(_NOT_BEFORE.format(lower=lower, upper=upper)))
    offence = _outside(runs, lower, upper, state)
    return None if offence is None else Refused(offence)


def _up_to(
    state: ShardState, runs: tuple[Run, ...], lower: Frontier, upper: Frontier
) -> Addition | Refused | NoOp[Appended]:
    if upper <= state.upper:
        return NoOp(Appended.before(state.upper))
    if not (lower <= state.upper and state.upper <= upper):
        return Refused(UpperMismatch(lower, state.upper))
    narrow = (_narrowed(run, state.upper, state) for run in runs)
    return Addition(_closing(state, tuple(run for run in narrow if run is not None), upper))


def _from_upper(
    state: ShardState, runs: tuple[Run, ...], checked: Frontier, upper: Frontier
) -> Addition | Refused:
    early = _outside(runs, state.upper, Frontier(), state)
    if early is not None:
        return Refused(early)
    # Without rows, all times before the upper may be closed.
    end = state.upper if upper <= state.upper and not runs else upper
    if runs and not (state.domain.total_order or state.upper <= checked):
        return Refused(UpperMismatch(checked, state.upper))
    return _misplaced(state, runs, state.upper, end) or Addition(_closing(state, runs, end))


def _at_commit(state: ShardState, runs: tuple[Run, ...], floor: Time) -> Addition | Refused:
    if not state.domain.total_order:
        return Refused(UsageError(f"times of {state.domain} have no commit time: give lower and upper"))
    if state.upper.closed:
        return Refused(UpperMismatch(Frontier.of(floor), state.upper))
    at = times.join(floor, state.upper.elements[0])
    leaps = leap(state.domain, state.upper, state.closed_ms, at)
    if leaps is not None:
        return Refused(leaps)
    moved = runs if at == floor else tuple(_rewritten(run, at) for run in runs)
    return Addition(_closing(state, moved, Frontier.past(at)), floats=at)


def _outside(
    runs: tuple[Run, ...], lower: Frontier, upper: Frontier, state: ShardState
) -> UpdateBeforeLower | UpdateNotBeforeUpper | None:
    """The error for the first part with a time outside the interval, as readers will see it.

    Exact for int times. For tuples nothing is checked here, since the least and greatest components of a part
    need not be a time in it; the code that writes the parts has checked each row against the interval.
    """
    if not state.domain.total_order:
        return None
    # Readers drop the rows of a truncated run that lie outside.
    for part in (part for run in runs if not run.truncated for part in run.parts):
        first, last = part.seen_times
        if not lower.less_equal(first):
            return UpdateBeforeLower(first, lower)
        if upper.less_equal(last):
            return UpdateNotBeforeUpper(last, upper)
    return None


def _narrowed(run: Run, lower: Frontier, state: ShardState) -> Run | None:
    """The run without what lies before `lower`: marked truncated where parts hold such rows."""
    if all(lower.less_equal(part.seen_times[0]) for part in run.parts):
        return run
    kept = tuple(part for part in run.parts if not left_out(part, lower, state.domain))
    return Run(kept, truncated=True) if kept else None


def left_out(part: Part, lower: Frontier, domain: TimeDomain) -> bool:
    """Whether a part has no row at or after a frontier. False for tuples, whose extremes may be no times."""
    return domain.total_order and not lower.less_equal(part.seen_times[1])


def _rewritten(run: Run, at: Time) -> Run:
    def moved(part: Part) -> Part:
        return replace(part, rewrite=at)

    return Run(tuple(moved(part) for part in run.parts), run.truncated)
