"""Groups: the collections of a lake that transactions write to together.

A group is a shard of its own, without rows and without a name: its collections store its id. Collections join
a group when they are first written or sealed together; each may leave it. A group without collections is
dropped.

INVARIANT: a group decides for a collection only while both record the same membership. The group records a
collection before the collection joins, and forgets it only after it has left and no decision for it is
pending. So a collection in a group that does not know it has missed nothing, and any process may take it out.
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
from tidelake.lake.catalog.leftovers import DAMAGED
from tidelake.model.schema import Column, DataType, Schema
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.engine.version import check_group
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.parting import forget, free, join, part
from tidelake.shard.upkeep.tending import tend
from tidelake.state.core.state import ShardState
from tidelake.state.group import applying, awaiting, deciding, joining
from tidelake.store.url import Stores

# A group has no rows, but a schema needs a key column.
_SCHEMA = Schema((Column(0, "nothing", DataType("int64")),))

Open = Callable[[str], Shard]


class Groups:
    """Finds, makes and ends the groups of a lake, and applies their decisions to their collections.

    Args:
        stores: stores of the lake.
        env: of this process.
        url: URL of the lake.
        config: settings of this process.
        open_: opens a shard by its id; raises `CollectionNotFound` if there is none.
    """

    def __init__(self, stores: Stores, env: Env, url: str, config: Config, open_: Open) -> None:
        self._stores, self._env, self._url, self._config, self._open = stores, env, url, config, open_

    def of(self, shards: Mapping[str, Shard]) -> tuple[Shard, dict[str, int]]:
        """Find or make the group of some collections.

        One log scan for each; to join, a log write for each and one of the group.

        Args:
            shards: the shards of the collections, by name.

        Returns:
            The group, and when each collection joined it, by shard id.

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
                # Another process was faster, or the last collection left the group: look again.
                for shard in shards.values():
                    shard.alive()

    def leave(self, shard: Shard) -> bool:
        """Take a collection out of its group; False if it is in none. A few log writes.

        Transactions that are decided are committed in it; the undecided ones never will be.
        """
        id_ = shard.alive().group
        if not id_:
            return False
        group = self._existing(id_)
        if group is None:
            free(shard, id_)
        else:
            part(group, shard.spec.shard_id, shard)
        self._env.recorder.count("group.left")
        return True

    def tidy(self, group: Shard) -> dict[str, TidelakeError]:
        """Apply a group's decisions to its collections, then let it forget them; give up old transactions.

        Two log scans for each collection, and a log write for each that has a decision. Several processes may
        run it at once, and it may stop at any point.

        Returns:
            The errors of damaged collections, by their ids. The group keeps its decisions for these.
        """
        state = group.state()
        present: dict[str, Shard] = {}
        damaged: dict[str, TidelakeError] = {}
        for id_ in state.memberships:
            try:
                shard = self._written_down(group, state, id_)
            except DAMAGED as error:
                # A damaged collection must not block the others.
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
        """`tidy` after a commit. The commit stands even if this fails, so errors are counted or warned of."""
        try:
            failed: list[TidelakeError] = list(self.tidy(group).values())
        except (StoreUnavailable, OutcomeUnknown, Closed, CollectionNotFound):
            self._env.failed("group.tidy.failed")
            return
        except TidelakeError as error:
            failed = [error]
        for reason in failed:
            # It will fail again every time, so warn the user.
            self._env.failed("group.tidy.failed")
            message = f"beside a transaction, which is as it says, other work on its group failed: {reason}"
            warnings.warn(TidelakeWarning(message), stacklevel=2)

    def _written_down(self, group: Shard, state: ShardState, id_: str) -> Shard | None:
        """Apply the decisions in a group's state to one collection; None if it is no longer a member."""
        member, shard = state.memberships[id_], self._opened(id_)
        known = None if shard is None else shard.known()
        here = known is not None and (known.group, known.joined) == (state.shard_id, member.admitted)
        if shard is None or not here or member.leaving:
            part(group, id_, shard)
            return None
        done = shard.carry_out(partial(applying.catch_up, view=deciding.view(state, id_)))
        if done.merges_due:
            tend(shard)
        return shard

    @classmethod
    def beside(cls, shard: Shard) -> "Groups":
        """The groups of a collection's lake."""
        spec = shard.spec

        def open_(id_: str) -> Shard:
            return Shard.open(shard.stores, shard.env, spec.url, id_, spec.config, renewer=shard.renewer)

        return cls(shard.stores, shard.env, spec.url, spec.config, open_)

    def maintain(self, shard: Shard) -> None:
        """Maintain the group of a collection, if it is in one; what fails is left to `collect`."""
        group = self._existing(shard.known().group) if shard.known().group else None
        if group is None:
            return
        if group.known().decisions:
            self.tidy_beside(group)
        with suppress(StoreUnavailable, OutcomeUnknown, CollectionNotFound):
            Collector(group).run()

    def collect(self, ids: frozenset[str]) -> list[TidelakeError]:
        """Maintain all groups among some shards. Returns the errors of damaged ones."""
        damaged: dict[str, TidelakeError] = {}
        for id_ in sorted(ids):
            try:
                group = self._existing(id_)
                if group is None or not is_group(group.known()):
                    continue
                damaged |= self.tidy(group)
                # A group at its first state is being created, and is not visible yet: leave it alone.
                if group.known().seqno:
                    forget(group)
                Collector(group).run()
            except CollectionDropped:
                # Another process found it without collections and dropped it.
                continue
            except DAMAGED as error:
                damaged[id_] = error
        return list(damaged.values())

    def _give_up(self, group: Shard, present: Mapping[str, Shard]) -> None:
        """Withdraw the staged rows of crashed transactions.

        They are given up in the group first, so that no process can decide them afterwards.
        """
        now_ms = self._env.clock.now_ms()
        before_ms = now_ms - group.known().agreed.upload_ms(now_ms)
        old = [
            awaited.begun
            for shard in present.values()
            for _, awaited in shard.known().staged.awaiting()
            if awaited.noted_ms <= before_ms
        ]
        if old:
            group.run(partial(deciding.expire, before=max(old) + 1))
        state = group.state()
        for shard in present.values():
            never = frozenset(
                awaited.transaction
                for _, awaited in shard.known().staged.awaiting()
                if awaited.begun < state.expired and awaited.transaction not in state.decisions
            )
            if never:
                shard.run(partial(awaiting.withdraw, transactions=never))

    def _taken_in(self, group: Shard, shards: Mapping[str, Shard]) -> dict[str, int]:
        ids = tuple(sorted({shard.spec.shard_id for shard in shards.values()}))
        known = group.alive().memberships
        if all(_is_member(group, shard) for shard in shards.values()):
            return {id_: known[id_].admitted for id_ in ids}
        for shard in shards.values():
            member = known.get(shard.spec.shard_id)
            if member is not None and member.leaving:
                part(group, shard.spec.shard_id, shard)
        states = [shard.known() for shard in shards.values()]
        # So that the group knows whether the last times of those that come in were given.
        closed = {one.shard_id: (one.upper, one.closed_ms) for one in states if not one.upper.closed}
        admitted = group.run(partial(joining.admit, members=ids, closed=closed))
        # In the order of ids, so that two processes that join the same collections do not each get one.
        for shard in sorted(shards.values(), key=lambda one: one.spec.shard_id):
            join(group, shard, admitted[shard.spec.shard_id])
        # Look again: another process may take a collection that has not joined yet for one that left, and end
        # the group.
        group.alive()
        stranger = next((shard for shard in shards.values() if not _is_member(group, shard)), None)
        if stranger is not None:
            raise LeftGroup(stranger.spec.shard_id)
        return admitted

    def _made(self, like: Shard) -> Shard:
        spec = ShardSpec(self._url, self._env.ids.fresh(), like.spec.domain, 0, {0: _SCHEMA}, self._config)
        Shard.create(self._stores, self._env, spec, agreed=like.known().agreed)
        return self._open(spec.shard_id)

    def _left(self, shards: Mapping[str, Shard], known: Mapping[str, str]) -> bool:
        """Take a collection out of a group that has no other one; False if there is no such group.

        Two processes that join overlapping collections at once may each have made a group. Also True if
        collections joined or left meanwhile: then the caller looks again.
        """
        seen: list[tuple[Shard, int]] = []
        for name in sorted(known, key=lambda one: shards[one].spec.shard_id, reverse=True):
            group = self._existing(known[name]) if known[name] else None
            if group is None:
                continue
            seen.append((group, group.known().seqno))
            if not self._others(group, shards[name].spec.shard_id):
                # Another process may have taken it out by now; then this does nothing.
                self.leave(shards[name])
                return True
        moved = any(shards[name].alive().group != group for name, group in known.items())
        return moved or any(group.state().seqno != seqno for group, seqno in seen)

    def _others(self, group: Shard, id_: str) -> bool:
        """Whether a group has another collection than `id_`."""
        others = (self._opened(other) for other in group.state().memberships if other != id_)
        return any(shard is not None and _is_member(group, shard) for shard in others)

    def _existing(self, id_: str) -> Shard | None:
        """The shard of a group; None if it is gone."""
        try:
            return self._open(id_)
        except CollectionNotFound:
            return None

    def _opened(self, id_: str) -> Shard | None:
        """The shard of a collection as it is now; None if it is gone."""
        shard = self._existing(id_)
        return None if shard is None or shard.known().dropped else shard


def is_group(state: ShardState) -> bool:
    """Whether a shard is a group, not a collection."""
    return state.schemas[0].schema == _SCHEMA


def _is_member(group: Shard, shard: Shard) -> bool:
    """Whether a collection and a group record the same membership, as far as these handles have seen."""
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
