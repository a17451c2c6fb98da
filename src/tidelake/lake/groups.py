"""Groups: the collections of a lake that transactions write to together.

A group is a shard of its own, without rows and without a name: the collections know its id. They come into
one when they are first written or sealed together, and one by one may leave it. A group without collections
is dropped.

INVARIANT: what a group decides for a collection it decides while both know of each other, for the same stay.
It knows a collection before this joins, and forgets it only when it decides nothing more for it and it has
left. Whoever finds one that joined a group that does not know it finds nothing undone, and takes it out.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    Closed,
    CollectionDropped,
    CollectionInGroup,
    CollectionNotFound,
    CorruptionError,
    LeftGroup,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    TidelakeWarning,
    UsageError,
)
from tidelake.model.schema import Column, DataType, Schema
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.ending import Ending
from tidelake.shard.upkeep.maintain import tend
from tidelake.state import transactions
from tidelake.state.commands import NoOp, Outcome
from tidelake.state.dropping import drop_shard
from tidelake.state.state import ShardState, WriterRecord
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

    def of(self, shards: Mapping[str, Shard]) -> tuple[Shard, dict[str, int]]:
        """The group that some collections are in together, from now on, and since when each is, by its id.

        A log scan each; to join, a write for each and one of the group.

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
            groups = {id_: self._existing(id_) for id_ in sorted({*known.values()} - {""})}
            if None in groups.values():
                for name, id_ in known.items():
                    if id_ and groups[id_] is None:
                        self._freed(shards[name], id_)
                continue
            found = [group for group in groups.values() if group is not None]
            try:
                if len(found) < 2:
                    group = found[0] if found else self._made(next(iter(shards.values())))
                    return group, self._taken_in(group, shards)
                if not self._left(shards, known):
                    raise UsageError(_apart(known))
            except (CollectionInGroup, LeftGroup, CollectionNotFound):
                # Others were faster, or the last one left the group: look again.
                for shard in shards.values():
                    shard.alive()

    def leave(self, shard: Shard) -> bool:
        """Take a collection out of its group; False if it is in none. A few log writes.

        What transactions have decided for it is in, what they have not never will be.
        """
        id_ = shard.alive().group
        if not id_:
            return False
        group = self._existing(id_)
        if group is None:
            self._freed(shard, id_)
        else:
            self._parted(group, shard.spec.shard_id, shard)
        self._env.recorder.count("lake.group.left")
        return True

    def tidy(self, group: Shard) -> None:
        """Write down in its collections what a group decided, and let it forget that; give up what is old.

        Two log scans a collection, and a log write for each that something was decided for. May be run by
        several at once, and end anywhere.
        """
        state = group.state()
        present: dict[str, Shard] = {}
        damaged: CorruptionError | None = None
        for id_ in state.memberships:
            try:
                shard = self._written_down(group, state, id_)
            except CorruptionError as error:
                # It must not keep the others waiting.
                damaged = error
                continue
            if shard is not None:
                present[id_] = shard
        self._give_up(group, present)
        if damaged is not None:
            raise damaged
        if state.decisions:
            self._forget(group, frozenset(state.decisions))

    def tidy_beside(self, group: Shard) -> None:
        """`tidy` after a commit, which is in whatever becomes of this."""
        try:
            self.tidy(group)
        except (StoreUnavailable, OutcomeUnknown, Closed, CollectionNotFound):
            self._env.recorder.count("lake.group.tidy.failed")
        except TidelakeError as error:
            # It will fail again, so somebody has to know.
            self._env.recorder.count("lake.group.tidy.failed")
            message = f"beside a transaction, which is as it says, other work on its group failed: {error}"
            warnings.warn(TidelakeWarning(message), stacklevel=2)

    def _written_down(self, group: Shard, state: ShardState, id_: str) -> Shard | None:
        """Write down in a collection what a state of its group decided; None if it is no longer there."""
        member, shard = state.memberships[id_], self._opened(id_)
        known = None if shard is None else shard.known()
        here = known is not None and (known.group, known.joined) == (state.shard_id, member.admitted)
        if shard is None or not here or member.leaving:
            self._parted(group, id_, shard)
            return None
        done = shard.carry_out(partial(transactions.catch_up, view=transactions.view(state, id_)))
        if done.merges_due:
            tend(shard)
        return shard

    def collect(self, ids: frozenset[str]) -> None:
        """Look after all groups among some shards."""
        for id_ in sorted(ids):
            group = self._existing(id_)
            if group is None or not is_group(group.known()):
                continue
            try:
                self.tidy(group)
                # Of one that somebody is just making nobody knows.
                if group.known().seqno:
                    self._forget(group)
                Collector(group).run()
            except CollectionDropped:
                # Somebody else found it without collections.
                continue

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

    def _parted(self, group: Shard, id_: str, shard: Shard | None) -> None:
        """Bring to an end that a collection leaves, or did not come in, or was dropped.

        In three steps, of which each may be the last one that a process does: the group decides nothing more
        for it; it applies what was decided, and leaves; the group forgets it.
        """
        member = group.known().memberships.get(id_)
        if member is not None:
            group.run(partial(transactions.retire, member=id_, admitted=member.admitted))
        state = group.state()
        if shard is not None:
            view = transactions.view(state, id_)
            shard.state()
            shard.run(partial(transactions.settle, view=view, leave=_done(state)))
        if member is not None:
            self._forget(group, members={id_: member.admitted})

    def _freed(self, shard: Shard, group: str) -> None:
        """Take a collection out of a group that is gone, into which it came too late."""
        state = shard.readable()
        shard.run(partial(transactions.settle, view=transactions.ended(group, state), leave={}))

    def _forget(
        self, group: Shard, decisions: frozenset[str] = frozenset(), members: Mapping[str, int] | None = None
    ) -> None:
        group.run(partial(transactions.forget, decisions=decisions, members=members))
        if not group.known().memberships and group.run(_disband):
            self._ending(group.spec.shard_id).remove()

    def _taken_in(self, group: Shard, shards: Mapping[str, Shard]) -> dict[str, int]:
        ids = tuple(sorted({shard.spec.shard_id for shard in shards.values()}))
        known = group.state().memberships
        if all(_is_member(group, shard) for shard in shards.values()):
            return {id_: known[id_].admitted for id_ in ids}
        for shard in shards.values():
            member = known.get(shard.spec.shard_id)
            if member is not None and member.leaving:
                self._parted(group, shard.spec.shard_id, shard)
        admitted = group.run(partial(transactions.admit, members=ids))
        # In the order of their ids, so that two who join the same ones do not each get one.
        for shard in sorted(shards.values(), key=lambda one: one.spec.shard_id):
            id_ = shard.spec.shard_id
            shard.run(partial(transactions.join, group=group.spec.shard_id, admitted=admitted[id_]))
        # Whoever finds a collection that is not in yet may take it for one that left.
        group.state()
        stranger = next((shard for shard in shards.values() if not _is_member(group, shard)), None)
        if stranger is not None:
            raise LeftGroup(stranger.spec.shard_id)
        return admitted

    def _made(self, like: Shard) -> Shard:
        spec = ShardSpec(self._url, self._env.ids.fresh(), like.spec.domain, 0, {0: _SCHEMA}, self._config)
        Shard.create(self._stores, self._env, spec)
        return self._open(spec.shard_id)

    def _left(self, shards: Mapping[str, Shard], known: Mapping[str, str]) -> bool:
        """Take a collection out of a group that has no other; False if there is none such.

        Two who join overlapping collections at once may each have begun a group. True as well if collections
        came and went meanwhile: then look again.
        """
        seen: list[tuple[Shard, int]] = []
        for name in sorted(known, key=lambda one: shards[one].spec.shard_id, reverse=True):
            group = self._existing(known[name]) if known[name] else None
            if group is None:
                continue
            seen.append((group, group.known().seqno))
            if not self._others(group, shards[name].spec.shard_id):
                # Or somebody else has taken it out by now.
                self.leave(shards[name])
                return True
        moved = any(shards[name].alive().group != group for name, group in known.items())
        return moved or any(group.state().seqno != seqno for group, seqno in seen)

    def _others(self, group: Shard, id_: str) -> bool:
        """Whether a group has a collection beside one."""
        others = (self._opened(other) for other in group.state().memberships if other != id_)
        return any(shard is not None and _is_member(group, shard) for shard in others)

    def _existing(self, id_: str) -> Shard | None:
        """The shard of a group; None: it is gone."""
        try:
            return self._open(id_)
        except CollectionNotFound:
            return None

    def _opened(self, id_: str) -> Shard | None:
        """The shard of a collection as it is now; None: it is gone."""
        shard = self._existing(id_)
        return None if shard is None or shard.known().dropped else shard

    def _ending(self, id_: str) -> Ending:
        return Ending(self._stores, self._env, self._config, id_)


def is_group(state: ShardState) -> bool:
    """Whether a shard is a group of collections, and not one itself."""
    return state.schemas[0].schema == _SCHEMA


def _is_member(group: Shard, shard: Shard) -> bool:
    """Whether a collection and its group know the same of each other, as far as these handles have seen."""
    state = shard.known()
    member = group.known().memberships.get(state.shard_id)
    stay = None if member is None or member.leaving else (group.spec.shard_id, member.admitted)
    return stay == (state.group, state.joined)


def _done(state: ShardState) -> dict[str, WriterRecord]:
    """What a collection takes along that leaves: the tokens of what is in."""
    return {name: record for name, record in state.writers.items() if record.sequence is not None}


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
