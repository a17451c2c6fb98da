"""Rows of a transaction in a collection: staged first, where no read sees them until the group has decided.

Owns what may be staged so, and what is removed when the transaction is given up. The group lets them in
(`tidelake.state.group.deciding`); the collection applies that later (`tidelake.state.group.applying`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tidelake.errors import CollectionDropped, LeftGroup
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.decisions import GroupView
from tidelake.state.core.edits import Edits, stepped
from tidelake.state.core.owned import not_for
from tidelake.state.core.state import ShardState
from tidelake.state.group.applying import apply_decided
from tidelake.state.spine.staged import Awaited, Staged
from tidelake.state.write.staging import place, room
from tidelake.state.write.write import Addition, unfitting


def park(
    state: ShardState,
    now_ms: int,
    view: GroupView,
    awaited: Awaited,
    found: Addition,
    *,
    checked: Frontier,
    given_up: frozenset[str] = frozenset(),
    inline_bytes_max: int | None = None,
    as_now: bool = False,
    owner: str = "",
) -> Outcome[bool]:
    """Stage rows for a transaction; rows that are staged for it already are replaced.

    The same step first applies what the group has decided (`apply_decided`). False if the rows are staged for
    another transaction; that one must be given up in the group first.

    Refused with `LeftGroup` if the collection is no longer in the group of the view, or came back to it
    since; else as a stage.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if not view.is_of(state.group, state.joined):
        return Refused(LeftGroup(state.shard_id))
    strange = not_for(state, owner)
    if strange is not None:
        return Refused(strange)
    applied = apply_decided(state, now_ms, view)
    edits, due = (applied.edits, applied.due) if isinstance(applied, Commit) else (Edits(), ())
    known = applied_to = replace(stepped(state, edits, now_ms), seqno=state.seqno)
    parked = waiting_for(known, found.batch.runs)
    if {one.transaction for one in parked.values()} - {awaited.transaction, *given_up}:
        return NoOp(False)
    known = without(known, parked)
    unfit = unfitting(known, found.batch.runs, (), as_now=as_now)
    if unfit is not None:
        return Refused(unfit)
    placed = place(known, found.batch.runs, checked, movable=found.floats is not None)
    if isinstance(placed, Refused):
        return placed
    full = room(known, placed.batch, inline_bytes_max)
    if full is not None:
        return full
    bounds = placed.batch.bounds
    if not (found.stays_open or found.floats is not None):
        bounds = replace(bounds, upper=found.batch.bounds.upper)
    before = state.staged.batches.get(placed.name)
    waits = Staged(
        replace(placed.batch, bounds=bounds), placed.added if before is None else before.added, awaited
    )
    rest = _rest(applied_to, parked, found.batch.runs, awaited.transaction)
    staged: dict[str, Staged | None] = {**edits.staged, **dict.fromkeys(parked), **rest, waits.name: waits}
    return Commit(replace(edits, staged=staged), True, due)


def _rest(
    state: ShardState, parked: Mapping[str, Awaited], runs: Sequence[Run], transaction: str
) -> dict[str, Staged]:
    """The runs of others in the batches that are staged anew, staged again: they may be offered again too."""
    names = {part.name for run in runs for part in run.parts}
    rest: dict[str, Staged] = {}
    for name, awaited in parked.items():
        one = state.staged.batches[name]
        left = tuple(run for run in one.batch.runs if names.isdisjoint(part.name for part in run.parts))
        if left and awaited.transaction != transaction:
            kept = replace(one, batch=replace(one.batch, runs=left))
            rest[kept.name] = kept if kept.name == name else replace(kept, added=state.seqno + 1)
    return rest


def waiting_for(state: ShardState, runs: Sequence[Run]) -> dict[str, Awaited]:
    """The transactions that these runs, or some of their parts, await, by the names of staged batches."""
    names = {part.name for run in runs for part in run.parts}
    if not any(name in state.part_names for name in names):
        return {}
    return {
        one.name: awaited
        for one, awaited in state.staged.awaiting()
        if any(part.name in names for part in one.batch.parts())
    }


def without(state: ShardState, staged: Iterable[str]) -> ShardState:
    """The state without some staged batches, as if they had never been there. Nothing is stored."""
    gone = {part.name for name in staged for part in state.staged.batches[name].batch.parts()}
    left = state.part_names.evolver()
    for name in gone:
        left.remove(name)
    return replace(state, staged=state.staged.edited(dict.fromkeys(staged)), part_names=left.persistent())


def withdraw(
    state: ShardState, _now_ms: int, transactions: frozenset[str], kept: frozenset[str] = frozenset()
) -> Outcome[bool]:
    """Remove what is staged for transactions that are not decided and no longer can be.

    A staged batch with one of the `kept` parts stays, because the part may be offered again.
    """
    gone = [
        one.name
        for one, awaited in state.staged.awaiting()
        if awaited.transaction in transactions and kept.isdisjoint(part.name for part in one.batch.parts())
    ]
    return Commit(Edits(staged=dict.fromkeys(gone)), True) if gone else NoOp(False)
