"""The versions of several collections as of one moment: no transaction is in some of them and not in others.

Collections of a group are read one after the other, while their group decides on. A group remembers when it
last let rows in for each collection. So from the group, read last, one can tell which collections were read
too early for that moment; only these are read again.

INVARIANT: each returned state has all rows that its group had let in for it up to the moment, and no others.
"""

from collections.abc import Mapping
from dataclasses import replace

from tidelake.errors import CollectionDropped, CollectionNotFound, StoreUnavailable
from tidelake.shard.engine.overlap import mapped
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import LogView
from tidelake.state.core.state import ShardState
from tidelake.state.group import applying, deciding
from tidelake.state.life.copying import with_group

_THREADS = 8


def states_at_one_moment(shards: Mapping[str, Shard], timeout_s: float) -> dict[str, ShardState]:
    """The newest states, as readers see them and in no group, with all that a leaving collection takes along.

    Costs two log scans for each collection, and one for each group; again for collections that transactions
    write to in between.

    Returns:
        The states by id, without collections that have been dropped.
    """
    looks: dict[str, LogView] = {}
    late, groups = set(shards), dict[str, ShardState]()
    clock = next(iter(shards.values())).env.clock if shards else None
    deadline_s = 0.0 if clock is None else clock.monotonic_s() + timeout_s
    while late and clock is not None:
        ids = sorted(late)
        for id_, look in zip(ids, mapped(lambda id_: _look(shards[id_]), ids, _THREADS), strict=True):
            looks.pop(id_, None)
            if look is not None:
                looks[id_] = look
        groups = _groups(shards, looks)
        late = {id_ for group in groups.values() for id_ in _late(group, looks)}
        if late and clock.monotonic_s() > deadline_s:
            raise StoreUnavailable(
                f"transactions wrote to collections all the time, so that their copies would be of different "
                f"moments: copy again, or copy while fewer of them run; tried for {timeout_s:g} s",
                True,
            )
    return {id_: _seen(look, groups.get(look.state.group)) for id_, look in looks.items()}


def _look(shard: Shard) -> LogView | None:
    try:
        return shard.look()
    except (CollectionDropped, CollectionNotFound):
        return None


def _groups(shards: Mapping[str, Shard], looks: Mapping[str, LogView]) -> dict[str, ShardState]:
    """The newest states of all groups, by id; without groups that have ended."""
    found: dict[str, ShardState] = {}
    for id_, look in looks.items():
        group = look.state.group
        if look.group is not None and group not in found:
            try:
                found[group] = shards[id_].group(group).state()
            except (CollectionDropped, CollectionNotFound):
                continue
    return {id_: state for id_, state in found.items() if not state.dropped}


def _late(group: ShardState, looks: Mapping[str, LogView]) -> set[str]:
    """The collections that were read before the group last let rows in for them, or they came or left."""
    found: set[str] = set()
    for id_, look in looks.items():
        group_seqno = look.group.seqno if look.group and look.state.group == group.shard_id else None
        moved = (group_seqno is not None) != (id_ in group.memberships)
        if moved or (group_seqno is not None and group.latest.get(id_, 0) > group_seqno):
            found.add(id_)
    return found


def _seen(look: LogView, group: ShardState | None) -> ShardState:
    view = look.view
    if group is not None and view is not None:
        # SUBTLE: only the upper of the newest view. The group may have forgotten decisions since, as they are
        # applied in states of the collection that are newer than the one that was read.
        newest = deciding.view(group, look.state.shard_id)
        view = replace(view, upper=view.upper.join(newest.upper), closed_ms=newest.closed_ms)
    return with_group(applying.seen_through(look.state, view), group or look.group)
