"""How a collection and its group part, in steps of which each may be the last one that a process does.

The group decides nothing more for the collection; it applies what was decided, and leaves; the group forgets
it. A group without collections is dropped.
"""

from collections.abc import Mapping
from functools import partial

from tidelake.shard.shard import Shard
from tidelake.shard.upkeep.ending import Ending
from tidelake.state import transactions
from tidelake.state.commands import NoOp, Outcome
from tidelake.state.dropping import drop_shard
from tidelake.state.state import ShardState


def part(group: Shard, id_: str, shard: Shard | None) -> None:
    """Bring to an end that a collection leaves, or did not come in, or was dropped (then it has no shard)."""
    member = group.known().memberships.get(id_)
    if member is not None:
        group.run(partial(transactions.retire, member=id_, admitted=member.admitted))
    state = group.state()
    if shard is not None:
        view = transactions.view(state, id_)
        leave = transactions.taken_along(shard.state(), state)
        shard.run(partial(transactions.settle, view=view, leave=leave))
    if member is not None:
        forget(group, members={id_: member.admitted})


def free(shard: Shard, group: str) -> None:
    """Take a collection out of a group that is gone, into which it came too late."""
    state = shard.version().state
    shard.run(partial(transactions.settle, view=transactions.ended(group, state), leave={}))


def forget(
    group: Shard, decisions: frozenset[str] = frozenset(), members: Mapping[str, int] | None = None
) -> None:
    """Let a group forget decisions and collections, and drop it when it has none."""
    group.run(partial(transactions.forget, decisions=decisions, members=members))
    if not group.known().memberships and group.run(_disband):
        Ending(group.stores, group.env, group.spec.config, group.spec.shard_id).remove()


def _disband(state: ShardState, now_ms: int) -> Outcome[bool]:
    """Drop a group that has no collections; False if it has some."""
    return NoOp(False) if state.memberships else drop_shard(state, now_ms, force=True)
