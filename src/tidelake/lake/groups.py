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
from contextlib import suppress
from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    Closed,
    CollectionDropped,
    CollectionInGroup,
    CollectionNotFound,
    LeftGroup,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    TidelakeWarning,
    UsageError,
)
from tidelake.lake.leftovers import DAMAGED
from tidelake.model.schema import Column, DataType, Schema
from tidelake.shard.shard import Shard, check_group
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.maintain import tend
from tidelake.shard.upkeep.parting import forget, free, part
from tidelake.state import transactions
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
        for name, shard in shards.items():
            if not shard.spec.domain.total_order:
                raise UsageError(
                    f"times of {name!r} are of unit {shard.spec.domain}, which have no total order: such a "
                    "collection is written and sealed alone"
                )
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
                        free(shards[name], id_)
                continue
            found = [group for group in groups.values() if group is not None]
            for group in found:
                for shard in shards.values():
                    check_group(shard.known(), group.known())
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
            free(shard, id_)
        else:
            part(group, shard.spec.shard_id, shard)
        self._env.recorder.count("lake.group.left")
        return True

    def tidy(self, group: Shard) -> dict[str, TidelakeError]:
        """Write down in its collections what a group decided, and let it forget that; give up what is old.

        Two log scans a collection, and a log write for each that something was decided for. May be run by
        several at once, and end anywhere.

        Returns:
            What is damaged, by the ids of the collections. The group keeps what it decided for these.
        """
        state = group.state()
        present: dict[str, Shard] = {}
        damaged: dict[str, TidelakeError] = {}
        for id_ in state.memberships:
            try:
                shard = self._written_down(group, state, id_)
            except DAMAGED as error:
                # It must not keep the others waiting.
                damaged[id_] = error
                continue
            if shard is not None:
                present[id_] = shard
        self._give_up(group, present)
        done = {name for name, one in state.decisions.items() if damaged.keys().isdisjoint(one.members)}
        if done:
            forget(group, frozenset(done))
        return damaged

    def tidy_beside(self, group: Shard) -> None:
        """`tidy` after a commit, which is in whatever becomes of this."""
        try:
            failed: list[TidelakeError] = list(self.tidy(group).values())
        except (StoreUnavailable, OutcomeUnknown, Closed, CollectionNotFound):
            self._env.recorder.count("lake.group.tidy.failed")
            return
        except TidelakeError as error:
            failed = [error]
        for reason in failed:
            # It will fail again, so somebody has to know.
            self._env.recorder.count("lake.group.tidy.failed")
            message = f"beside a transaction, which is as it says, other work on its group failed: {reason}"
            warnings.warn(TidelakeWarning(message), stacklevel=2)

    def _written_down(self, group: Shard, state: ShardState, id_: str) -> Shard | None:
        """Write down in a collection what a state of its group decided; None if it is no longer there."""
        member, shard = state.memberships[id_], self._opened(id_)
        known = None if shard is None else shard.known()
        here = known is not None and (known.group, known.joined) == (state.shard_id, member.admitted)
        if shard is None or not here or member.leaving:
            part(group, id_, shard)
            return None
        done = shard.carry_out(partial(transactions.catch_up, view=transactions.view(state, id_)))
        if done.merges_due:
            tend(shard)
        return shard

    @classmethod
    def beside(cls, shard: Shard) -> "Groups":
        """The groups of the lake that a collection is in."""
        spec = shard.spec

        def open_(id_: str) -> Shard:
            return Shard.open(shard.stores, shard.env, spec.url, id_, spec.config, keeper=shard.keeper)

        return cls(shard.stores, shard.env, spec.url, spec.config, open_)

    def maintain(self, shard: Shard) -> None:
        """Look after the group of a collection, if it is in one; what fails is left to `collect`."""
        group = self._existing(shard.known().group) if shard.known().group else None
        if group is None:
            return
        if group.known().decisions:
            self.tidy_beside(group)
        with suppress(StoreUnavailable, OutcomeUnknown, CollectionNotFound):
            Collector(group).run()

    def collect(self, ids: frozenset[str]) -> list[TidelakeError]:
        """Look after all groups among some shards; what is damaged."""
        damaged: dict[str, TidelakeError] = {}
        for id_ in sorted(ids):
            try:
                group = self._existing(id_)
                if group is None or not is_group(group.known()):
                    continue
                damaged |= self.tidy(group)
                # Of one that somebody is just making nobody knows.
                if group.known().seqno:
                    forget(group)
                Collector(group).run()
            except CollectionDropped:
                # Somebody else found it without collections.
                continue
            except DAMAGED as error:
                damaged[id_] = error
        return list(damaged.values())

    def _give_up(self, group: Shard, present: Mapping[str, Shard]) -> None:
        """Withdraw what crashed transactions have staged: first in the group, so that nobody decides it."""
        now_ms = self._env.clock.now_ms()
        before_ms = now_ms - group.known().agreed.upload_ms(now_ms)
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

    def _taken_in(self, group: Shard, shards: Mapping[str, Shard]) -> dict[str, int]:
        ids = tuple(sorted({shard.spec.shard_id for shard in shards.values()}))
        known = group.alive().memberships
        if all(_is_member(group, shard) for shard in shards.values()):
            return {id_: known[id_].admitted for id_ in ids}
        for shard in shards.values():
            member = known.get(shard.spec.shard_id)
            if member is not None and member.leaving:
                part(group, shard.spec.shard_id, shard)
        admitted = group.run(partial(transactions.admit, members=ids))
        # In the order of their ids, so that two who join the same ones do not each get one.
        for shard in sorted(shards.values(), key=lambda one: one.spec.shard_id):
            self._join(group, shard, admitted[shard.spec.shard_id])
        # Whoever finds a collection that is not in yet may take it for one that left, and end the group.
        group.alive()
        stranger = next((shard for shard in shards.values() if not _is_member(group, shard)), None)
        if stranger is not None:
            raise LeftGroup(stranger.spec.shard_id)
        return admitted

    def _join(self, group: Shard, shard: Shard, admitted: int) -> None:
        """Let a collection join for the stay that it was admitted for; `LeftGroup` if that is over."""
        id_, group_id = shard.spec.shard_id, group.spec.shard_id
        while True:
            seen = shard.alive()
            member = group.alive().memberships.get(id_)
            if member is None or member.leaving or member.admitted != admitted:
                raise LeftGroup(id_)
            join = partial(transactions.join, group=group_id, admitted=admitted, seen=seen.seqno)
            with suppress(LeftGroup):
                # Or somebody else has written to it since.
                return shard.run(join, alone=True)

    def _made(self, like: Shard) -> Shard:
        spec = ShardSpec(self._url, self._env.ids.fresh(), like.spec.domain, 0, {0: _SCHEMA}, self._config)
        Shard.create(self._stores, self._env, spec, agreed=like.known().agreed)
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


def is_group(state: ShardState) -> bool:
    """Whether a shard is a group of collections, and not one itself."""
    return state.schemas[0].schema == _SCHEMA


def _is_member(group: Shard, shard: Shard) -> bool:
    """Whether a collection and its group know the same of each other, as far as these handles have seen."""
    state = shard.known()
    member = group.known().memberships.get(state.shard_id)
    stay = None if member is None or member.leaving else (group.spec.shard_id, member.admitted)
    return stay == (state.group, state.joined)


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
