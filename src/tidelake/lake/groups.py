"""Groups: the collections of a lake that transactions write to together.

A group is a shard of its own, without rows and without a name: the collections know its id. They come into
one when they are first written or sealed together, and one by one may leave it. A group without collections
is dropped.

INVARIANT: a collection joins a group only after the group knows it, and the group forgets it only after it
has left; so a crash between the two leaves a collection that is in, or out, and nothing half-way.
"""

from collections.abc import Callable, Mapping
from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    CollectionInGroup,
    CollectionNotFound,
    UsageError,
)
from tidelake.model.schema import Column, DataType, Schema
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.ending import Ending
from tidelake.state import transactions
from tidelake.state.commands import NoOp, Outcome
from tidelake.state.dropping import drop_shard
from tidelake.state.state import ShardState
from tidelake.store.url import Stores

# It has no rows, and a schema needs a key.
_SCHEMA = Schema((Column(0, "nothing", DataType("int64")),))

Open = Callable[[str], Shard]


class Groups:
    """Finds, makes and ends the groups of a lake, and writes down in their collections what they decided.

    Args:
        stores: of the lake.
        env: of this process.
        url: of the lake.
        config: settings.
        open_: opens the shard of an id; raises `CollectionNotFound` if there is none.
    """

    def __init__(self, stores: Stores, env: Env, url: str, config: Config, open_: Open) -> None:
        self._stores, self._env, self._url, self._config, self._open = stores, env, url, config, open_

    def of(self, shards: Mapping[str, Shard]) -> Shard:
        """The group that some collections are in together, from now on. A log scan each; to join, two writes.

        Args:
            shards: of the collections, by name.

        Raises:
            UsageError: they cannot be in one group: they count times in several units, or are in several
                groups of more than one collection.
        """
        units = {str(shard.spec.domain): name for name, shard in shards.items()}
        if len(units) > 1:
            (one, a), (other, b), *_ = units.items()
            raise UsageError(
                f"times of {a!r} are of unit {one}, those of {b!r} of {other}: collections that are written "
                "together need the same"
            )
        while True:
            known = {name: shard.alive().group for name, shard in shards.items()}
            groups = sorted({group for group in known.values() if group})
            if len(groups) > 1 and not self._left(shards, known):
                raise UsageError(_apart(known))
            if len(groups) > 1:
                continue
            try:
                group = self._open(groups[0]) if groups else self._made(next(iter(shards.values())))
                self._take_in(group, shards)
            except (CollectionInGroup, CollectionNotFound):
                # Others were faster, or the last one left the group: look again.
                if any(shard.state().dropped for shard in shards.values()):
                    raise
                continue
            return group

    def leave(self, shard: Shard) -> bool:
        """Take a collection out of its group; False if it is in none. A few log writes.

        What transactions have decided for it is in, what they have not never will be.
        """
        id_ = shard.alive().group
        if not id_:
            return False
        group = self._open(id_)
        group.run(partial(transactions.retire, member=shard.spec.shard_id))
        view = transactions.view(group.state(), shard.spec.shard_id)
        shard.alive()
        shard.run(partial(transactions.settle, view=view, leave=True))
        self._forget(group, frozenset(), frozenset([shard.spec.shard_id]))
        self._env.recorder.count("lake.group.left")
        return True

    def tidy(self, group: Shard) -> None:
        """Write down in its collections what a group decided, and let it forget that; give up what is old.

        Two log scans a collection, and a log write for each that something was decided for. May be run by
        several at once, and end anywhere.
        """
        state = group.state()
        members = {id_: self._member(id_, group.spec.shard_id) for id_ in state.memberships}
        present = {id_: shard for id_, shard in members.items() if shard is not None}
        for id_, shard in present.items():
            view = transactions.view(state, id_)
            waits = {awaited.transaction for _, awaited in shard.known().staged.awaiting()}
            if waits & view.decided.keys():
                shard.run(partial(transactions.settle, view=view))
        self._give_up(group, present)
        gone = frozenset(id_ for id_, shard in members.items() if shard is None)
        for id_ in gone:
            group.run(partial(transactions.retire, member=id_))
        if state.decisions or gone:
            self._forget(group, frozenset(state.decisions), gone)

    def collect(self, ids: frozenset[str]) -> None:
        """Look after all groups among some shards."""
        for id_ in sorted(ids):
            try:
                group = self._open(id_)
            except CollectionNotFound:
                continue
            if not is_group(group.known()):
                continue
            if group.known().memberships:
                self.tidy(group)
            else:
                self._forget(group, frozenset(), frozenset())

    def _give_up(self, group: Shard, present: Mapping[str, Shard]) -> None:
        """Withdraw what crashed transactions have staged: first in the group, so that nobody decides it."""
        before_ms = self._env.clock.now_ms() - int(self._config.upload_age_s * 1000)
        old = [
            awaited.begun
            for shard in present.values()
            for _, awaited in shard.known().staged.awaiting()
            if awaited.noted_ms <= before_ms
        ]
        if old:
            group.run(partial(transactions.expire, before=max(old) + 1))
        state = group.state()
        for shard in present.values():
            never = frozenset(
                awaited.transaction
                for _, awaited in shard.known().staged.awaiting()
                if awaited.begun < state.expired and awaited.transaction not in state.decisions
            )
            if never:
                shard.run(partial(transactions.withdraw, transactions=never))

    def _forget(self, group: Shard, decisions: frozenset[str], members: frozenset[str]) -> None:
        group.run(partial(transactions.forget, decisions=decisions, members=members))
        if not group.known().memberships and group.run(_disband):
            self._ending(group.spec.shard_id).remove()

    def _take_in(self, group: Shard, shards: Mapping[str, Shard]) -> None:
        ids = tuple(sorted(shard.spec.shard_id for shard in shards.values()))
        group.run(partial(transactions.admit, members=ids))
        # In the order of their ids, so that two who join the same ones do not each get one.
        for shard in sorted(shards.values(), key=lambda one: one.spec.shard_id):
            shard.run(partial(transactions.join, group=group.spec.shard_id))

    def _made(self, like: Shard) -> Shard:
        spec = ShardSpec(self._url, self._env.ids.fresh(), like.spec.domain, 0, {0: _SCHEMA}, self._config)
        Shard.create(self._stores, self._env, spec)
        return self._open(spec.shard_id)

    def _left(self, shards: Mapping[str, Shard], known: Mapping[str, str]) -> bool:
        """Take collections out of groups that have no other; False if nothing changed.

        Two who join overlapping collections at once may each have begun a group.
        """
        for name in sorted(known, key=lambda one: shards[one].spec.shard_id, reverse=True):
            if not known[name]:
                continue
            members = self._open(known[name]).state().memberships
            if len([id_ for id_, member in members.items() if not member.leaving]) == 1:
                return self.leave(shards[name])
        return False

    def _member(self, id_: str, group: str) -> Shard | None:
        """The shard of a collection of a group; None: it is gone, or is not in the group."""
        try:
            shard = self._open(id_)
        except CollectionNotFound:
            return None
        return shard if shard.state().group == group else None

    def _ending(self, id_: str) -> Ending:
        return Ending(self._stores, self._env, self._config, id_)


def is_group(state: ShardState) -> bool:
    """Whether a shard is a group of collections, and not one itself."""
    return state.schemas[0].schema == _SCHEMA


def _disband(state: ShardState, now_ms: int) -> Outcome[bool]:
    """Drop a group that has no collections; False if it has some."""
    return NoOp(False) if state.memberships else drop_shard(state, now_ms, force=True)


def _apart(known: Mapping[str, str]) -> str:
    by_group: dict[str, list[str]] = {}
    for name, group in known.items():
        if group:
            by_group.setdefault(group, []).append(repr(name))
    (a, *_), (b, *_) = list(by_group.values())[:2]
    return (
        f"collections {a} and {b} are in different groups, whose times are closed apart: take one of them "
        "out of its group first, with lake.leave"
    )
