"""What a group has decided (writes, seals), applied to a member: in memory by readers, in the log by upkeep.

Both are the same step (`apply_decided`). Once all its collections have stored it, the group forgets the
decision.

INVARIANT: from a state of the group, and a state of a collection that was read after it, a process can tell
for each transaction that this state of the group has decided whether the collection has applied it.
"""

from collections.abc import Mapping
from dataclasses import replace

from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.state.core.commands import Commit, NoOp, Outcome
from tidelake.state.core.decisions import GroupView
from tidelake.state.core.edits import Edits, stepped
from tidelake.state.core.fields import Move
from tidelake.state.core.partnames import by_seqno, is_taken
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.core.tokens import writes_once
from tidelake.state.core.writername import WriterName
from tidelake.state.group.memberwriters import writers_of
from tidelake.state.spine.staged import Staged, begins_before
from tidelake.state.write.staging import closing


def apply_decided(
    state: ShardState, _now_ms: int, view: GroupView, *, leave: Mapping[str, WriterRecord] | None = None
) -> Outcome[bool]:
    """Apply what the group has decided: let in what was staged for it, and close its times.

    False if there is nothing to do, or the collection has left meanwhile or came back.
    """
    if state.dropped or view.is_older(state.group, state.joined):
        return NoOp(False)
    ours = view.is_of(state.group, state.joined)
    if leave is not None and ours and not view.leaving:
        return NoOp(False)
    freed: dict[str, Staged | None] = {}
    for one, awaited in state.staged.awaiting():
        if ours and awaited.transaction in view.decided:
            freed[one.name] = _let_in(one, view.decided[awaited.transaction])
        elif leave is not None:
            freed[one.name] = None
    upper = state.upper.join(view.upper) if ours else state.upper
    # Others may hold copies of these parts; once they are in, they must never be taken again.
    come = [part.name for one in freed.values() if one is not None for part in one.batch.parts()]
    taken = by_seqno(name for name in come if not is_taken(state.taken, name))
    left = Edits(taken=taken)
    if leave is not None:
        left = replace(left, group="", joined=0, writers=dict(leave), tokens=_tokens(leave))
    if upper == state.upper:
        changed = freed or leave is not None
        return Commit(replace(left, staged=freed), True) if changed else NoOp(False)
    known = replace(state, staged=state.staged.edited(freed))
    step = closing(known, HollowBatch(Bounds(state.upper, upper, state.minimum)))
    edits = replace(
        left,
        upper=Move(state.upper, upper),
        spine=step.spine,
        staged={**freed, **step.staged},
        closed_ms=view.closed_ms,
    )
    return Commit(edits, True, step.due)


def catch_up(state: ShardState, now_ms: int, view: GroupView) -> Outcome[bool]:
    """`apply_decided`, unless all it would do is close times at which there are no rows."""
    waits = any(awaited.transaction in view.decided for _, awaited in state.staged.awaiting())
    closes = any(begins_before(one.batch, view.upper) for one in state.staged)
    if not (waits or closes or state.retention.window is not None):
        return NoOp(False)
    return apply_decided(state, now_ms, view)


def seen_through(state: ShardState, view: GroupView | None) -> ShardState:
    """A collection's state as its readers see it: with all that its group has decided. Nothing is stored.

    It has the seqno of the given state, and names only parts that this state names.
    """
    outcome = NoOp(False) if view is None else apply_decided(state, state.committed_ms, view)
    if not isinstance(outcome, Commit):
        return state
    return replace(stepped(state, outcome.edits, state.committed_ms), seqno=state.seqno)


def taken_along(state: ShardState, group: ShardState) -> dict[str, WriterRecord]:
    """The records of writers that a leaving collection takes along: its own, and tokens of transactions."""
    tokens = {
        name: record
        for name, record in group.writers.items()
        if record.sequence is not None and WriterName.of(name).member not in group.memberships
    }
    known = {name for name in tokens if name in state.writers and state.writers[name].sequence is not None}
    own = writers_of(group, state.shard_id)
    return {**{name: tokens[name] for name in tokens if name not in known}, **own}


def _tokens(records: Mapping[str, WriterRecord]) -> tuple[str, ...]:
    """The names among these that are tokens: from now on they are remembered as long as any token."""
    found = (name for name, one in records.items() if WriterName(name).is_token and writes_once(one))
    return tuple(sorted(found))


def _let_in(one: Staged, time: int | None) -> Staged:
    if time is None:
        return replace(one, awaits=None)
    runs = tuple(
        replace(run, parts=tuple(replace(part, rewrite=time) for part in run.parts)) for run in one.batch.runs
    )
    return replace(one, batch=replace(one.batch, runs=runs), awaits=None)
