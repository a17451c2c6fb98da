"""Takes a collection out of its group, or into one, in steps; the process may crash between any two.

To part, first the group stops deciding for the collection. Then the collection applies the group's decisions
and leaves. Then the group forgets the collection. A group without collections is dropped.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from tidelake.errors import LeftGroup
from tidelake.shard.engine.shard import Shard
from tidelake.shard.upkeep.ending import Ending
from tidelake.state.core.commands import NoOp, Outcome
from tidelake.state.core.state import ShardState
from tidelake.state.group import applying, deciding, joining
from tidelake.state.life.dropping import drop_shard


def join(group: Shard, shard: Shard, admitted: int) -> None:
    """Let a collection join under the membership `admitted`; `LeftGroup` if that has ended."""
    id_, group_id = shard.spec.shard_id, group.spec.shard_id
    while True:
        seen = shard.alive()
        member = group.alive().memberships.get(id_)
        if member is None or member.leaving or member.admitted != admitted:
            raise LeftGroup(id_)
        command = partial(
            joining.join, group=group_id, admitted=admitted, seen=seen.seqno, owner=shard.writes_as
        )
        with suppress(LeftGroup):
            # The join fails with `LeftGroup` if the collection was written to since: then try again.
            return shard.run(command, alone=True)


def part(group: Shard, id_: str, shard: Shard | None) -> None:
    """Take a collection out: one that leaves, did not join completely, or was dropped (no `shard`)."""
    member = group.known().memberships.get(id_)
    if member is not None:
        group.run(partial(joining.retire, member=id_, admitted=member.admitted))
    state = group.state()
    if shard is not None:
        view = deciding.view(state, id_)
        leave = applying.taken_along(shard.state(), state)
        shard.run(partial(applying.apply_decided, view=view, leave=leave))
    if member is not None:
        forget(group, members={id_: member.admitted})


def free(shard: Shard, group: str) -> None:
    """Take a collection out of a group that is gone, which it joined too late."""
    state = shard.version().state
    shard.run(partial(applying.apply_decided, view=deciding.ended(group, state), leave={}))


def forget(
    group: Shard, decisions: frozenset[str] = frozenset(), members: Mapping[str, int] | None = None
) -> None:
    """Let a group forget decisions and collections; drop the group if it has no collections left."""
    group.run(partial(deciding.forget, decisions=decisions, members=members))
    if not group.known().memberships and group.run(_disband):
        Ending(group.stores, group.env, group.spec.config, group.spec.shard_id).remove()


def _disband(state: ShardState, now_ms: int) -> Outcome[bool]:
    """Drop a group that has no collections; False if it has some."""
    return NoOp(False) if state.memberships else drop_shard(state, now_ms, force=True)
