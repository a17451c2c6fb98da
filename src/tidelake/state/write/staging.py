"""Stage and seal: staging updates at open times, closing times, draining what was staged into the spine.

`stage` puts runs beside the spine, at any times that are open. `seal` closes times at once, without moving
rows: from then on readers see what was staged for these times. The spine gets the updates in the same step if
no row has to be read for that (`closing`); otherwise maintenance reads the batches that hold both closed and
open times, writes them as two, and `drain` puts the halves where they belong.

INVARIANT: a staged update is in exactly one place in every state: staged, or in the spine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidelake.errors import (
    CollectionDropped,
    InlineFull,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
)
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Edits
from tidelake.state.core.partnames import expired
from tidelake.state.core.state import ShardState
from tidelake.state.spine import fuel
from tidelake.state.spine.fuel import MergeDue
from tidelake.state.spine.spine import SpineEdit
from tidelake.state.spine.staged import Staged, begins_before, ends_before


@dataclass(frozen=True)
class Closing:
    """How a batch that closes times comes into a state, together with what is staged before its upper.

    Attributes:
        spine: the change of the spine; None: none yet, the updates are to be drained later.
        staged: staged batches that come, or go (None), by name.
    """

    spine: SpineEdit | None
    staged: dict[str, Staged | None]
    due: tuple[MergeDue, ...] = ()


@dataclass(frozen=True)
class Split:
    """The two halves of staged batches, made so that closed times can be drained.

    Attributes:
        below: runs of the updates before `upper`.
        seqno: of the state that they were read in.
    """

    names: tuple[str, ...]
    upper: Frontier
    below: tuple[Run, ...]
    above: tuple[Run, ...]
    seqno: int


@dataclass(frozen=True)
class Seen:
    """The version of the contents that a batch was made from.

    Attributes:
        seqno: of a state: everything staged by then was seen.
        time: the time as of which it was read; None: the first open time.
    """

    seqno: int
    time: int | None = None


def closing(state: ShardState, batch: HollowBatch, fresh: Sequence[Staged] = ()) -> Closing:
    """Add a batch that begins at `upper`. Costs O(staged batches).

    Unless a staged batch is mixed, no row is read or written: runs of staged batches become runs of the
    spine.
    """
    upper = batch.bounds.upper
    if not fresh and not state.staged.totals.members:
        step = fuel.push(state.spine, batch, state.since, state.seqno + 1)
        return Closing(step.edit, {}, step.due)
    before = [one for one in (*state.staged, *fresh) if begins_before(one.batch, upper)]
    stays = {one.name: one for one in fresh if one not in before}
    if state.drained != state.upper or any(_mixed(one, upper) for one in before):
        return Closing(None, {one.name: one for one in (*fresh, *_staged(state, batch))})
    runs = batch.runs + tuple(run for one in before for run in one.batch.runs)
    step = _pushed(state, HollowBatch(batch.bounds, runs), before)
    gone = [one.name for one in before if one not in fresh]
    return Closing(step.edit, {**dict.fromkeys(gone), **stays}, step.due)


def _pushed(state: ShardState, batch: HollowBatch, before: Sequence[Staged]) -> fuel.FuelStep:
    """The spine with one more batch, some of whose runs were staged, so that readers may have read them."""
    added = min([state.seqno + 1, *[one.added for one in before]])
    return fuel.push(state.spine, batch, state.since, added)


def place(
    state: ShardState, runs: tuple[Run, ...], checked: Frontier, *, movable: bool = False
) -> Staged | Refused:
    """The runs as a staged batch of the next state, or the reason why they cannot be one.

    Returns:
        Refused with `UpdateBeforeLower` if a time is closed, and with `UpperMismatch` if the parts do not
        show whether one is: then check their times against the present upper.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.upper.closed:
        return Refused(UpperMismatch("any frontier", state.upper))
    lower = checked
    if not (movable or state.upper <= checked):
        first = [part.seen_times[0] for run in runs for part in run.parts]
        early = next((time for time in first if not state.upper.less_equal(time)), None)
        if early is not None and state.domain.total_order:
            return Refused(UpdateBeforeLower(early, state.upper))
        if early is not None:
            return Refused(UpperMismatch(checked, state.upper))
        lower = state.upper
    return Staged(HollowBatch(_open_from(state, lower), runs), state.seqno + 1)


def room(state: ShardState, batch: HollowBatch, inline_bytes_max: int | None) -> Refused | None:
    """The refusal of inline parts for which the state has no room."""
    if not batch.inline_bytes or inline_bytes_max is None:
        return None
    held = state.spine.totals.inline_bytes + state.staged.totals.inline_bytes + batch.inline_bytes
    return Refused(InlineFull(held, inline_bytes_max)) if held >= inline_bytes_max else None


def splits(state: ShardState) -> tuple[str, ...]:
    """The staged batches that have to be read before closed times can be drained, in order."""
    if state.drained == state.upper:
        return ()
    before = [one for one in state.staged if begins_before(one.batch, state.upper)]
    return tuple(one.name for one in before if _mixed(one, state.upper))


def drain(state: ShardState, _now_ms: int, split: Split) -> Outcome[bool]:
    """Put the halves of some staged batches in their place, and drain into the spine what can be.

    Drains all closed times, unless a batch that came meanwhile has to be read as well; then those before
    `split.upper`. False if a batch that was read is no longer staged, since another process has drained it,
    or if the parts of the halves are too old. If no closed time waits, staged batches become one.
    """
    fresh = [part for run in (*split.below, *split.above) for part in run.parts]
    there = all(name in state.staged.batches for name in split.names)
    if state.dropped or not there or not (state.drained <= split.upper <= state.upper):
        return NoOp(False)
    if any(expired(part.name, state.sweep.floor) for part in fresh) or split.seqno < state.erased:
        return NoOp(False)
    others = [one for one in state.staged if one.name not in split.names]
    above = _staged(state, HollowBatch(_open_from(state, split.upper), split.above))
    end, whole = _reach(state, [*others, *above], split.upper)
    if end is None:
        return NoOp(False)
    gone = (*split.names, *(one.name for one in whole if one.name in state.staged.batches))
    edits = Edits(
        staged={**dict.fromkeys(gone), **{one.name: one for one in above if one not in whole}},
        written=replace(
            state.written,
            merged_rows=state.written.merged_rows + sum(part.rows for part in fresh),
            merged_bytes=state.written.merged_bytes + sum(part.size_bytes for part in fresh),
        ),
    )
    if end == state.drained:
        return Commit(edits, True)
    runs = split.below + tuple(run for one in whole for run in one.batch.runs)
    drained = HollowBatch(Bounds(state.drained, end, state.minimum), runs)
    step = _pushed(state, drained, whole)
    return Commit(replace(edits, spine=step.edit), True, step.due)


def _reach(
    state: ShardState, staged: Sequence[Staged], least: Frontier
) -> tuple[Frontier | None, list[Staged]]:
    """How far the spine can go when these batches are staged, and which of them it then takes in.

    SUBTLE: times may have been closed since the batches were read, and nothing may be left that waits to be
    drained at them. So the spine goes up to the present `upper`, if no row has to be read for that.
    """
    for end in (state.upper, least):
        before = [one for one in staged if begins_before(one.batch, end)]
        if not any(_mixed(one, end) for one in before):
            return end, before
    return None, []


def unseen(state: ShardState, bounds: Bounds, seen: Seen) -> Refused | None:
    """The refusal of a batch made from contents that lacked some of what is staged for its times.

    Also if rows were erased since: the batch might bring them back.
    """
    if seen.seqno < state.erased:
        return Refused(UpperMismatch(bounds.lower, state.upper))
    through = Frontier.past(bounds.lower.elements[0] if seen.time is None else seen.time)
    for one in state.staged:
        if ends_before(one.batch, bounds.lower) or not begins_before(one.batch, bounds.upper):
            continue
        if max(one.added, state.let_in.get(one.name, 0)) > seen.seqno:
            return Refused(UpperMismatch(bounds.lower, state.upper))
        if not bounds.upper <= through and not ends_before(one.batch, through):
            return Refused(
                UsageError(
                    f"updates are staged for times before {bounds.upper}, and what is written between such "
                    f"times would depend on them: seal the collection up to {bounds.upper} first, and write "
                    "at later times"
                )
            )
    return None


def staged_parts(state: ShardState, names: Sequence[str]) -> tuple[Part, ...]:
    """The parts of some staged batches."""
    return tuple(part for name in names for part in state.staged.batches[name].batch.parts())


def _open_from(state: ShardState, lower: Frontier) -> Bounds:
    return Bounds(lower, Frontier(), state.minimum)


def _staged(state: ShardState, batch: HollowBatch) -> list[Staged]:
    """A batch as a list of staged batches of the next state: one, or none if the batch has no runs."""
    return [Staged(batch, state.seqno + 1)] if batch.runs else []


def _mixed(one: Staged, upper: Frontier) -> bool:
    """Whether it must be read before the spine can take in its updates before a frontier."""
    return any(run.truncated for run in one.batch.runs) or not ends_before(one.batch, upper)
