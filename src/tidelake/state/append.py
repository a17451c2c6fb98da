"""Appending: how a batch comes into the shard, and at which times.

The caller gives the times in one of three ways: `Exactly` (the upper must be `lower`), `UpTo` (several
writers write the same data: narrow the batch to the times that are still open) and `AtCommit` (one time,
picked when the append commits). The edits that add the batch of a named writer also record its number
(`tidelake.state.idempotency`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

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
from tidelake.model.frontier import Frontier
from tidelake.model.names import uploaded_at
from tidelake.model.time import Time, TimeDomain
from tidelake.state.ahead import too_far
from tidelake.state.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.edits import Edits, Move
from tidelake.state.idempotency import IdempotencyKey, answer_of_state, recorded
from tidelake.state.leaping import leap
from tidelake.state.staged import Staged
from tidelake.state.staging import Seen, closing, place, room, unseen
from tidelake.state.state import ShardState, Written
from tidelake.state.taken import by_seqno, repeated
from tidelake.tabletext import FieldsAsHtml

R = TypeVar("R")
_NOT_BEFORE = "the lower frontier {lower} is not at or before the upper {upper}: give a later upper"


@dataclass(frozen=True)
class Exactly:
    """All times of `[lower, upper)`, iff the shard's upper equals `lower`."""

    lower: Frontier
    upper: Frontier


@dataclass(frozen=True)
class UpTo:
    """The times of `[lower, upper)` that are still open."""

    lower: Frontier
    upper: Frontier


@dataclass(frozen=True)
class AtCommit:
    """One time: the shard's upper at the commit, or `floor` if that is later.

    The parts are written at `floor`; if the commit picks a later time, they are registered with a rewrite.
    """

    floor: Time


When: TypeAlias = Exactly | UpTo | AtCommit


@dataclass(frozen=True)
class Appended(FieldsAsHtml):
    """The answer to an append.

    Attributes:
        lower: start of the times that were written.
        upper: the shard's upper after the append.
        already: nothing had to be written: the data was in before this call, or there was no data.
        waited_s: seconds that the append waited, or merged, because too many runs were unmerged.
        removed: rows that went because their removal was asked for: by a delete or the `delete_column` of an
            upsert.
        absent: removals of keys that had no row.
    """

    lower: Frontier
    upper: Frontier
    already: bool = False
    waited_s: float = 0.0
    removed: int = 0
    absent: int = 0

    @classmethod
    def before(cls, upper: Frontier) -> "Appended":
        """The answer for data that was in before the call, or for no data."""
        return cls(upper, upper, already=True)


@dataclass(frozen=True)
class Addition(Generic[R]):
    """What an append or a stage would do to a state.

    Attributes:
        answer: the result once it is committed.
        runs: the runs to register.
        bounds: the times that it closes; empty: none.
        stays_open: the runs may have any times at or after the upper, so they still fit if the upper moves.
        floats: all rows have this one time, and a later time will do as well.
    """

    answer: R
    runs: tuple[Run, ...]
    bounds: Bounds
    stays_open: bool = False
    floats: Time | None = None


def append(
    state: ShardState,
    now_ms: int,
    runs: tuple[Run, ...],
    when: When,
    idempotency: IdempotencyKey | None = None,
    *,
    inline_bytes_max: int | None = None,
    as_now: bool = False,
    seen: Seen | None = None,
    offered: tuple[Part, ...] = (),
) -> Outcome[Appended]:
    """Add runs to the shard and move its upper.

    With `offered` the runs are, or were made of, these parts. Others may hold copies of them, so each part is
    taken at most once.

    With `seen` the runs were made from the collection's contents: `UpperMismatch` also if other updates were
    staged for their times since then.

    Refused with `WriterFenced`, `AlreadyTaken`, `UpperMismatch`, `UpdateBeforeLower`, `UpdateNotBeforeUpper`,
    `IncompatibleSchema` (rows of a schema that is not registered; with `as_now` also rows with a column that
    was dropped since they were written), `InlineFull` (inline parts would take `inline_bytes_max` or more)
    or a usage error; nothing is written then.
    """
    found = append_on(
        state,
        runs,
        when,
        idempotency,
        inline_bytes_max=inline_bytes_max,
        as_now=as_now,
        seen=seen,
        offered=offered,
    )
    if not isinstance(found, Addition):
        return found
    writers = recorded(state, idempotency, found.bounds.upper)
    if found.bounds.empty:
        return Commit(Edits(writers=writers), found.answer)
    far = too_far(state, state.upper, found.bounds.upper, now_ms)
    if far is not None:
        return far
    placed = HollowBatch(found.bounds, found.runs)
    step = closing(state, placed)
    edits = Edits(
        upper=Move(state.upper, placed.bounds.upper),
        spine=step.spine,
        staged=step.staged,
        writers=writers,
        written=_more(state.written, placed) if placed.runs else None,
        taken=by_seqno(part.name for part in offered),
    )
    return Commit(edits, found.answer, step.due)


def append_on(
    state: ShardState,
    runs: tuple[Run, ...],
    when: When,
    idempotency: IdempotencyKey | None = None,
    *,
    inline_bytes_max: int | None = None,
    as_now: bool = False,
    seen: Seen | None = None,
    offered: tuple[Part, ...] = (),
) -> "Addition[Appended] | NoOp[Appended] | Refused":
    """What `append` would do to a state; the collection commits it itself, or its group does."""
    placed = _admitted(state, runs, when, idempotency, offered, as_now=as_now)
    if not isinstance(placed, HollowBatch):
        return placed
    bounds = placed.bounds
    answer = Appended(bounds.lower, bounds.upper)
    if bounds.empty and idempotency is None:
        return NoOp(replace(answer, already=True))
    refusal = room(state, placed, inline_bytes_max) or (unseen(state, bounds, seen) if seen else None)
    if refusal is not None and not bounds.empty:
        return refusal
    floats = times.join(when.floor, bounds.lower.elements[0]) if isinstance(when, AtCommit) else None
    return Addition(answer, placed.runs, bounds, floats=floats)


def stage(
    state: ShardState,
    now_ms: int,
    runs: tuple[Run, ...],
    checked: Frontier,
    idempotency: IdempotencyKey | None = None,
    *,
    inline_bytes_max: int | None = None,
    seal_to: Frontier | None = None,
    as_now: bool = False,
    offered: tuple[Part, ...] = (),
) -> Outcome[bool]:
    """Keep runs for times that are open. False if the key shows that they are in, or there are no runs.

    `offered` and `as_now` as for `append`. With `seal_to` the same step also closes all times before it.

    Refused as `append` and `staging.place`; nothing is written then.
    """
    found = stage_on(
        state,
        runs,
        checked,
        idempotency,
        inline_bytes_max=inline_bytes_max,
        seal_to=seal_to,
        as_now=as_now,
        offered=offered,
    )
    if not isinstance(found, Addition):
        return found
    upper = found.bounds.upper
    far = too_far(state, state.upper, upper, now_ms)
    if far is not None:
        return far
    writers = recorded(state, idempotency, upper)
    if not found.runs:
        return _sealed(state, upper, (), Edits(writers=writers), staged=False)
    placed = place(state, found.runs, checked)
    if isinstance(placed, Refused):
        return placed
    taken = by_seqno(part.name for part in offered)
    edits = Edits(writers=writers, written=_more(state.written, placed.batch), taken=taken)
    return _sealed(state, upper, (placed,), edits, staged=True)


def stage_on(
    state: ShardState,
    runs: tuple[Run, ...],
    checked: Frontier,
    idempotency: IdempotencyKey | None = None,
    *,
    inline_bytes_max: int | None = None,
    seal_to: Frontier | None = None,
    as_now: bool = False,
    offered: tuple[Part, ...] = (),
) -> "Addition[bool] | NoOp[bool] | Refused":
    """What `stage` would do to a state; the collection commits it itself, or its group does."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group:
        return Refused(CollectionInGroup(state.shard_id))
    known = answer_of_state(state, idempotency, lambda _: False)
    if known is not None:
        return known
    upper = state.upper if seal_to is None else state.upper.join(seal_to)
    bounds = Bounds(state.upper, upper, state.minimum)
    if not runs:
        return Addition(False, (), bounds, stays_open=True)
    unfit = unfitting(state, runs, offered, as_now=as_now)
    if unfit is not None:
        return Refused(unfit)
    placed = place(state, runs, checked)
    if isinstance(placed, Refused):
        return placed
    full = room(state, placed.batch, inline_bytes_max)
    if full is not None:
        return full
    return Addition(True, runs, bounds, stays_open=True)


def _sealed(
    state: ShardState, upper: Frontier, fresh: tuple[Staged, ...], edits: Edits, *, staged: bool
) -> Outcome[bool]:
    """The outcome for a step that stages `fresh` and then closes all times before `upper`."""
    if upper == state.upper:
        edits = replace(edits, staged={one.name: one for one in fresh})
        return NoOp(False) if edits == Edits() else Commit(edits, staged)
    step = closing(state, HollowBatch(Bounds(state.upper, upper, state.minimum)), fresh)
    moved = replace(edits, upper=Move(state.upper, upper), spine=step.spine, staged=step.staged)
    return Commit(moved, staged, step.due)


def seal(
    state: ShardState, now_ms: int, upper: Frontier, idempotency: IdempotencyKey | None = None
) -> Outcome[Appended]:
    """Close all times before a frontier; what is staged for them becomes final. Closed times stay closed."""
    return append(state, now_ms, (), Exactly(state.upper, state.upper.join(upper)), idempotency)


def seal_on(
    state: ShardState, upper: Frontier, idempotency: IdempotencyKey | None = None
) -> Addition[Appended] | NoOp[Appended] | Refused:
    """What `seal` would do to a state; the collection commits it itself, or its group does."""
    return append_on(state, (), Exactly(state.upper, state.upper.join(upper)), idempotency)


def expected(
    state: ShardState, now_ms: int, when: When, idempotency: IdempotencyKey | None = None
) -> Outcome[Appended]:
    """What `append` would answer without runs, to be asked before anything is uploaded. Costs O(1).

    A `Commit` holds no edits: whether the append succeeds also depends on the runs.
    """
    placed = _admitted(state, (), when, idempotency)
    if not isinstance(placed, HollowBatch):
        return placed
    far = too_far(state, state.upper, placed.bounds.upper, now_ms)
    if far is not None:
        return far
    answer = Appended(placed.bounds.lower, placed.bounds.upper)
    if placed.bounds.empty and idempotency is None:
        return NoOp(replace(answer, already=True))
    return Commit(Edits(), answer)


def _admitted(
    state: ShardState,
    runs: tuple[Run, ...],
    when: When,
    idempotency: IdempotencyKey | None,
    offered: tuple[Part, ...] = (),
    *,
    as_now: bool = False,
) -> HollowBatch | Refused | NoOp[Appended]:
    """The batch to register, or the answer if there is nothing to register."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group:
        return Refused(CollectionInGroup(state.shard_id))
    decided = answer_of_state(state, idempotency, Appended.before)
    if decided is not None:
        return decided
    strange = unregistered(state, runs)
    if strange is not None:
        return Refused(strange)
    placed = _place(state, runs, when)
    if isinstance(placed, NoOp):
        return placed
    # Before a conflict is reported: a retry of an append that is in must learn that it is in.
    parts = (*(part for run in runs for part in run.parts), *offered)
    known = repeated(state, parts)
    if known is not None:
        return Refused(known)
    if isinstance(placed, Refused):
        return placed
    late = too_late(state, parts)
    if late is not None:
        return Refused(late)
    gone = _outdated(state, runs) if as_now else None
    return placed if gone is None else Refused(gone)


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


def too_late(state: ShardState, parts: Iterable[Part]) -> UploadExpired | None:
    """The error for the first part whose upload began too early to come into the state; see `given_up`."""
    return given_up(state, (part.name for part in parts))


def given_up(state: ShardState, uploads: Iterable[str]) -> UploadExpired | None:
    """The error for the first upload, by its name, that the state takes in no more.

    It was made too long ago, or before rows were erased: it may have them, or updates that were worked out
    from them.
    """
    floor, erased = state.sweep.floor, state.erased
    for name in uploads:
        seqno = uploaded_at(name)
        if seqno is not None and seqno < max(floor, erased):
            old = seqno < floor
            return UploadExpired(name, seqno, floor if old else erased, not old)
    return None


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
    return answer_of_state(state, idempotency, Appended.before) or NoOp(None)


def _place(state: ShardState, runs: tuple[Run, ...], when: When) -> HollowBatch | Refused | NoOp[Appended]:
    """The batch to register: its bounds, and its runs with rewrites and truncation."""
    match when:
        case Exactly(lower, upper):
            if not lower <= upper:
                return Refused(UsageError(_NOT_BEFORE.format(lower=lower, upper=upper)))
            offence = _outside(runs, lower, upper, state)
            if offence is not None:
                return Refused(offence)
            if state.upper != lower:
                return Refused(UpperMismatch(lower, state.upper))
        case UpTo(lower, upper):
            if not lower <= upper:
                return Refused(UsageError(_NOT_BEFORE.format(lower=lower, upper=upper)))
            offence = _outside(runs, lower, upper, state)
            if offence is not None:
                return Refused(offence)
            if upper <= state.upper:
                return NoOp(Appended.before(state.upper))
            if not (lower <= state.upper and state.upper <= upper):
                return Refused(UpperMismatch(lower, state.upper))
            lower = state.upper
            runs = tuple(run for run in (_narrowed(run, lower, state) for run in runs) if run is not None)
        case AtCommit(floor):
            if not state.domain.total_order:
                return Refused(
                    UsageError(f"times of {state.domain} have no commit time: give lower and upper")
                )
            if state.upper.closed:
                return Refused(UpperMismatch(Frontier.of(floor), state.upper))
            at = times.join(floor, state.upper.elements[0])
            leaps = leap(state, at)
            if leaps is not None:
                return Refused(leaps)
            lower, upper = state.upper, Frontier.past(at)
            if at != floor:
                runs = tuple(_rewritten(run, at) for run in runs)
    # New data has not been folded at all, whatever the shard's since is now.
    return HollowBatch(Bounds(lower, upper, state.minimum), runs)


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
