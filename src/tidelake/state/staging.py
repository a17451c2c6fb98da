"""Staging updates at open times, closing times, and draining what was staged into the spine.

`stage` puts runs beside the spine, at any times that are open. `seal` closes times, logically and at once:
from then on readers see what was staged before them. The spine gets these updates in the same step if
that needs no reading (`closing`); otherwise batches that hold closed and open times are read and
written in two by maintenance, and `drain` puts the halves where they belong.

INVARIANT: a staged update is in exactly one place in every state: staged, or in the spine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelake.errors import CollectionDropped, InlineFull, UpdateNotBeyondLower, UpperMismatch
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state import fuel
from tidelake.state.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.fuel import MergeDue
from tidelake.state.spine import SpineEdit
from tidelake.state.staged import Staged, begins_before, ends_before
from tidelake.state.state import Edits, ShardState


@dataclass(frozen=True)
class Closing:
    """How a batch that closes times comes into a state, with what is staged before its upper.

    Attributes:
        spine: what happens to the spine; None: nothing yet, it is to be drained.
        staged: what comes to the staged batches, and what goes.
        due: merges.
    """

    spine: SpineEdit | None
    staged: dict[str, Staged | None]
    due: tuple[MergeDue, ...] = ()


@dataclass(frozen=True)
class Split:
    """What was made of staged batches so that closed times can be drained.

    Attributes:
        names: of the staged batches that were read.
        upper: what lies before it is to be in the spine.
        below: runs of their updates before `upper`.
        above: runs of the others.
    """

    names: tuple[str, ...]
    upper: Frontier
    below: tuple[Run, ...]
    above: tuple[Run, ...]


def closing(state: ShardState, batch: HollowBatch) -> Closing:
    """Put in a batch that begins at `upper`. Costs O(staged batches).

    Without mixed batches no row is read or written: runs of staged batches become runs of the spine.
    """
    upper = batch.bounds.upper
    before = [one for one in state.staged if begins_before(one.batch, upper)]
    if state.drained != state.upper or any(_mixed(one, upper) for one in before):
        return Closing(None, _staged(state, batch))
    runs = batch.runs + tuple(run for one in before for run in one.batch.runs)
    step = fuel.push(state.spine, HollowBatch(batch.bounds, runs), state.since, state.seqno + 1)
    return Closing(step.edit, {one.name: None for one in before}, step.due)


def place(state: ShardState, runs: tuple[Run, ...], checked: Frontier) -> Staged | Refused:
    """Runs as a staged batch of the next state, or why they cannot be one.

    Args:
        state: of the shard.
        runs: at least one; none of them truncated.
        checked: a frontier that all their times are known to lie at or beyond.

    Returns:
        Refused with `UpdateNotBeyondLower` if a time is closed, and with `UpperMismatch` if that cannot be
        told from the parts: their times are to be checked against the present upper then.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.upper.closed:
        return Refused(UpperMismatch("any frontier", state.upper))
    lower = checked
    if not state.upper <= checked:
        first = [part.seen_times[0] for run in runs for part in run.parts]
        early = next((time for time in first if not state.upper.less_equal(time)), None)
        if early is not None and state.domain.total_order:
            return Refused(UpdateNotBeyondLower(early, state.upper))
        if early is not None:
            return Refused(UpperMismatch(checked, state.upper))
        lower = state.upper
    return Staged(HollowBatch(Bounds(lower, Frontier(), state.minimum), runs), state.seqno + 1)


def room(state: ShardState, batch: HollowBatch, inline_bytes_max: int | None) -> Refused | None:
    """The refusal for inline parts that the state has no room for."""
    if not batch.inline_bytes or inline_bytes_max is None:
        return None
    held = state.spine.totals.inline_bytes + state.staged.totals.inline_bytes + batch.inline_bytes
    return Refused(InlineFull(held, inline_bytes_max)) if held >= inline_bytes_max else None


def splits(state: ShardState) -> tuple[str, ...]:
    """The staged batches that have to be read before closed times can be drained; in order."""
    if state.drained == state.upper:
        return ()
    before = [one for one in state.staged if begins_before(one.batch, state.upper)]
    return tuple(one.name for one in before if _mixed(one, state.upper))


def drain(state: ShardState, _now_ms: int, split: Split) -> Outcome[bool]:
    """Let the spine have all updates before a frontier, and put one batch in the place of those split.

    False if the batches that were read are no longer staged: somebody else has drained them. With the
    frontier where the spine ends, staged batches become one.
    """
    end, upper = state.drained, split.upper
    there = all(name in state.staged.batches for name in split.names)
    if state.dropped or not there or not (end <= upper <= state.upper):
        return NoOp(False)
    whole = [one for one in state.staged if one.name not in split.names and begins_before(one.batch, upper)]
    if any(_mixed(one, upper) for one in whole):
        return NoOp(False)
    staged: dict[str, Staged | None] = dict.fromkeys((*split.names, *(one.name for one in whole)))
    if split.above:
        staged |= _staged(state, HollowBatch(Bounds(upper, Frontier(), state.minimum), split.above))
    if end == upper:
        return Commit(Edits(staged=staged), True)
    runs = split.below + tuple(run for one in whole for run in one.batch.runs)
    drained = HollowBatch(Bounds(end, upper, state.minimum), runs)
    step = fuel.push(state.spine, drained, state.since, state.seqno + 1)
    return Commit(Edits(spine=step.edit, staged=staged), True, step.due)


def staged_parts(state: ShardState, names: Sequence[str]) -> tuple[Part, ...]:
    """The parts of some staged batches."""
    return tuple(part for name in names for part in state.staged.batches[name].batch.parts())


def _staged(state: ShardState, batch: HollowBatch) -> dict[str, Staged | None]:
    one = Staged(batch, state.seqno + 1)
    return {one.name: one} if batch.runs else {}


def _mixed(one: Staged, upper: Frontier) -> bool:
    """Whether it has to be read before the spine can have what it holds before a frontier."""
    return any(run.truncated for run in one.batch.runs) or not ends_before(one.batch, upper)
