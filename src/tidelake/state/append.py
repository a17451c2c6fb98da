"""Appending: how a batch comes into the shard, and at which times.

There are three ways to say when: `Exactly` (the upper must be `lower`), `UpTo` (writers that all write
the same data: narrow to what is still open) and `AtCommit` (one time, picked when the append commits).
A claim makes the append decidable for ever: the writer's sequence number is recorded by the same edits
that add the batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidelake.errors import (
    CollectionDropped,
    CollectionInGroup,
    IncompatibleSchema,
    UpdateBeyondUpper,
    UpdateNotBeyondLower,
    UploadExpired,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model import time as times
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.names import uploaded_at
from tidelake.model.time import Time
from tidelake.state.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.edits import Edits, Move
from tidelake.state.garbage import expired
from tidelake.state.staged import Staged
from tidelake.state.staging import Seen, closing, place, room, unseen
from tidelake.state.state import ShardState, WriterRecord, Written

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
    """One time, the shard's upper at the commit, but not before `floor`.

    The parts were written at `floor`; if the time comes out later they are registered with a rewrite.
    """

    floor: Time


When: TypeAlias = Exactly | UpTo | AtCommit


@dataclass(frozen=True)
class Claim:
    """A writer's word that this is its append number `sequence`, and what it is made of."""

    writer: str
    epoch: int
    sequence: int
    content: str = ""


@dataclass(frozen=True)
class Appended:
    """The answer to an append.

    Attributes:
        lower: start of the times that were written.
        upper: the shard's upper after it.
        already: nothing had to be written: the data was in before this call, or there was none.
        waited_s: seconds that it had to wait, or to merge, because too many runs were unmerged.
    """

    lower: Frontier
    upper: Frontier
    already: bool = False
    waited_s: float = 0.0


def append(
    state: ShardState,
    _now_ms: int,
    runs: tuple[Run, ...],
    when: When,
    claim: Claim | None = None,
    *,
    inline_bytes_max: int | None = None,
    as_now: bool = False,
    seen: Seen | None = None,
) -> Outcome[Appended]:
    """Add runs to the shard and move its upper.

    With `seen` they depend on contents: `UpperMismatch` also if others staged updates for their times since.

    Refused with `WriterFenced`, `UpperMismatch`, `UpdateNotBeyondLower`, `UpdateBeyondUpper`,
    `IncompatibleSchema` (rows of a schema that is not registered; with `as_now` also rows with a column that
    was dropped since they were written), `InlineFull` (inline parts would take `inline_bytes_max` or more)
    or a usage error; nothing is written then.
    """
    placed = _admitted(state, runs, when, claim, as_now=as_now)
    if not isinstance(placed, HollowBatch):
        return placed
    bounds = placed.bounds
    writers: dict[str, WriterRecord] = {}
    if claim is not None:
        writers[claim.writer] = noted(state, claim, bounds.upper)
    answer = Appended(bounds.lower, bounds.upper)
    if bounds.empty:
        return Commit(Edits(writers=writers), answer) if writers else NoOp(replace(answer, already=True))
    refusal = room(state, placed, inline_bytes_max) or (unseen(state, bounds, seen) if seen else None)
    if refusal is not None:
        return refusal
    step = closing(state, placed)
    edits = Edits(
        upper=Move(state.upper, bounds.upper),
        spine=step.spine,
        staged=step.staged,
        writers=writers,
        written=_more(state.written, placed) if placed.runs else None,
    )
    return Commit(edits, answer, step.due)


def stage(
    state: ShardState,
    _now_ms: int,
    runs: tuple[Run, ...],
    checked: Frontier,
    claim: Claim | None = None,
    *,
    inline_bytes_max: int | None = None,
    seal_to: Frontier | None = None,
) -> Outcome[bool]:
    """Keep runs for times that are open. False if a claim says that they are in, or there are none.

    With `seal_to` the same step then closes all times before that.

    Refused as `append` and `staging.place`; nothing is written then.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = settled(state.writers.get(claim.writer), claim) if claim else None
    if isinstance(known, NoOp):
        return NoOp(False)
    if known is not None:
        return known
    if state.group:
        return Refused(CollectionInGroup(state.shard_id))
    upper = state.upper if seal_to is None else state.upper.join(seal_to)
    writers = {} if claim is None else {claim.writer: noted(state, claim, upper)}
    if not runs:
        return _sealed(state, upper, (), Edits(writers=writers), staged=False)
    unfit = unregistered(state, runs) or too_late(state, (part for run in runs for part in run.parts))
    if unfit is not None:
        return Refused(unfit)
    placed = place(state, runs, checked)
    if isinstance(placed, Refused):
        return placed
    if placed.name in state.staged.batches:
        return NoOp(False)
    full = room(state, placed.batch, inline_bytes_max)
    if full is not None:
        return full
    edits = Edits(writers=writers, written=_more(state.written, placed.batch))
    return _sealed(state, upper, (placed,), edits, staged=True)


def _sealed(
    state: ShardState, upper: Frontier, fresh: tuple[Staged, ...], edits: Edits, *, staged: bool
) -> Outcome[bool]:
    """What is staged by a step, and times that it closes after that."""
    if upper == state.upper:
        edits = replace(edits, staged={one.name: one for one in fresh})
        return NoOp(False) if edits == Edits() else Commit(edits, staged)
    step = closing(state, HollowBatch(Bounds(state.upper, upper, state.minimum)), fresh)
    moved = replace(edits, upper=Move(state.upper, upper), spine=step.spine, staged=step.staged)
    return Commit(moved, staged, step.due)


def seal(state: ShardState, now_ms: int, upper: Frontier, claim: Claim | None = None) -> Outcome[Appended]:
    """Close all times before a frontier, with what is staged for them. Those that are closed stay so."""
    return append(state, now_ms, (), Exactly(state.upper, state.upper.join(upper)), claim)


def expected(state: ShardState, _now_ms: int, when: When, claim: Claim | None = None) -> Outcome[Appended]:
    """What `append` would answer if it had no runs, for those who have not uploaded any yet. Costs O(1).

    A `Commit` of it holds no edits: whether it can be made depends on the runs.
    """
    placed = _admitted(state, (), when, claim)
    if not isinstance(placed, HollowBatch):
        return placed
    answer = Appended(placed.bounds.lower, placed.bounds.upper)
    if placed.bounds.empty and claim is None:
        return NoOp(replace(answer, already=True))
    return Commit(Edits(), answer)


def _admitted(
    state: ShardState, runs: tuple[Run, ...], when: When, claim: Claim | None, *, as_now: bool = False
) -> HollowBatch | Refused | NoOp[Appended]:
    """The batch as it is to be registered, or the answer if it is not to be."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = settled(state.writers.get(claim.writer), claim) if claim else None
    if known is not None:
        return known
    if state.group:
        return Refused(CollectionInGroup(state.shard_id))
    strange = unregistered(state, runs)
    if strange is not None:
        return Refused(strange)
    placed = _place(state, runs, when)
    if not isinstance(placed, HollowBatch):
        return placed
    late = too_late(state, placed.parts())
    if late is not None:
        return Refused(late)
    gone = _dropped(state, runs) if as_now else None
    if gone is not None:
        return Refused(
            IncompatibleSchema(f"column {gone!r} was dropped meanwhile: leave it out of the table")
        )
    return placed


def noted(state: ShardState, claim: Claim, upper: Frontier) -> WriterRecord:
    """The record of a writer whose append is in."""
    return replace(state.writers[claim.writer], sequence=claim.sequence, upper=upper, content=claim.content)


def unregistered(state: ShardState, runs: tuple[Run, ...]) -> IncompatibleSchema | None:
    """The error for rows of a schema that is not registered."""
    strange = {part.schema_id for run in runs for part in run.parts}.difference(state.schemas)
    if not strange:
        return None
    # On a state that is not the newest one: whoever wrote the part may have seen the schema registered.
    return IncompatibleSchema(
        f"rows of schema {min(strange)} cannot be appended: the collection has no such schema; "
        "write them again under its schema"
    )


def _dropped(state: ShardState, runs: tuple[Run, ...]) -> str | None:
    """A column of some rows that the newest schema has no more."""
    live = {column.id for column in state.schema.columns}
    for id_ in {part.schema_id for run in runs for part in run.parts} - {state.schema_id}:
        for column in state.schemas[id_].schema.columns:
            if column.id not in live:
                return column.name
    return None


def too_late(state: ShardState, parts: Iterable[Part]) -> UploadExpired | None:
    """The error for the first part that was uploaded too long ago to come into the state."""
    floor = state.sweep.floor
    for part in parts:
        if expired(part, floor):
            return UploadExpired(part.name, uploaded_at(part.name) or 0, floor)
    return None


def _more(written: Written, batch: HollowBatch) -> Written:
    return replace(
        written,
        appended_rows=written.appended_rows + batch.rows,
        appended_bytes=written.appended_bytes + batch.size_bytes,
    )


def claimed(state: ShardState, _now_ms: int, claim: Claim) -> NoOp[Appended | None] | Refused:
    """The answer to an append that is in, or None if it is not; refused for a writer that may not write."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    return settled(state.writers.get(claim.writer), claim) or NoOp(None)


def other_content(writer: str, sequence: int) -> str:
    """The message for a number that comes again with other data."""
    return (
        f"append {sequence} of writer {writer!r} is in, but was made of something else: the checkpoint or "
        "counter that numbered this one is older than the collection; give the data to another writer name"
    )


def settled(record: WriterRecord | None, claim: Claim) -> NoOp[Appended] | Refused | None:
    """What the writer's record alone says to an append; None if it is the next one."""
    if record is None or record.epoch < claim.epoch:
        return Refused(UsageError(f"writer {claim.writer!r} is not open: call collection.writer(...)"))
    if record.epoch > claim.epoch:
        return Refused(WriterFenced(claim.writer, claim.epoch, record.epoch))
    if record.sequence == claim.sequence and record.content != claim.content:
        return Refused(UsageError(other_content(claim.writer, claim.sequence)))
    if record.sequence is not None and claim.sequence <= record.sequence:
        return NoOp(Appended(record.upper, record.upper, already=True))
    return None


def _place(state: ShardState, runs: tuple[Run, ...], when: When) -> HollowBatch | Refused | NoOp[Appended]:
    """The batch as it is to be registered: its bounds, with rewrites and truncation."""
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
                return NoOp(Appended(state.upper, state.upper, already=True))
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
            lower, upper = state.upper, Frontier.past(at)
            if at != floor:
                runs = tuple(_rewritten(run, at) for run in runs)
    # New data has not been folded at all, whatever the shard's since is by now.
    return HollowBatch(Bounds(lower, upper, state.minimum), runs)


def _outside(
    runs: tuple[Run, ...], lower: Frontier, upper: Frontier, state: ShardState
) -> UpdateNotBeyondLower | UpdateBeyondUpper | None:
    """The first part with a time outside the interval, as readers will see it. Exact for int times.

    For tuples the extremes of a part need not be times of it; whoever writes the parts has checked
    each row against the same interval.
    """
    if not state.domain.total_order:
        return None
    # Of a truncated run readers drop what lies outside.
    for part in (part for run in runs if not run.truncated for part in run.parts):
        first, last = part.seen_times
        if not lower.less_equal(first):
            return UpdateNotBeyondLower(first, lower)
        if upper.less_equal(last):
            return UpdateBeyondUpper(last, upper)
    return None


def _narrowed(run: Run, lower: Frontier, state: ShardState) -> Run | None:
    """The run without what lies before `lower`: marked truncated where parts hold such rows."""
    if all(lower.less_equal(part.time_lower) for part in run.parts):
        return run
    if state.domain.total_order:
        kept = tuple(part for part in run.parts if lower.less_equal(part.time_upper))
        return Run(kept, truncated=True) if kept else None
    return Run(run.parts, truncated=True)


def _rewritten(run: Run, at: Time) -> Run:
    def moved(part: Part) -> Part:
        return replace(part, rewrite=at)

    return Run(tuple(moved(part) for part in run.parts), run.truncated)
