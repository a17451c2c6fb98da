"""A shard: one durable collection of updates, and the commands on it.

The handle is cheap; it keeps the newest state it has seen. All methods may be called from several threads.
Arguments are times and frontiers; `tidelake.lake` adds names and friendlier arguments. Appends are in
`append.py`, reads in `query.py`, readers in `reader.py`, merges in `compactor.py` and `maintain.py`, and
garbage collection in `collector.py`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    Closed,
    CollectionDropped,
    CollectionNotFound,
    CorruptionError,
    IncompatibleSchema,
    InternalError,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    TidelakeWarning,
)
from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Schema
from tidelake.shard.engine.history import History
from tidelake.shard.engine.machine import GroupCommit, Machine
from tidelake.shard.engine.renewer import LeaseRenewer
from tidelake.shard.engine.requestqueue import Done
from tidelake.shard.engine.spec import ShardSpec, schemas_of
from tidelake.shard.engine.version import LogView, Version, check_orphan, lost
from tidelake.state.core import commands
from tidelake.state.core.agreed import Agreed
from tidelake.state.core.commands import Command, R
from tidelake.state.core.decisions import GroupView
from tidelake.state.core.owned import with_owner
from tidelake.state.core.state import Owned, ShardState
from tidelake.state.group import applying
from tidelake.state.group.memberwriters import writers_of
from tidelake.state.life import holds, schemas
from tidelake.store.url import Stores


@dataclass
class Collected:
    """When a handle last collected garbage, so that it does not look again too soon.

    The times are those of the monotonic clock, in seconds; None: not yet.

    Attributes:
        floor: uploads below this seqno that no state names are deleted already.
        aged_s: when it last looked for uploads and tokens that are too old.
        trimmed: entries of the log before this seqno are removed already.
    """

    tried_s: float | None = None
    listed_s: float | None = None
    floor: int = 0
    aged_s: float | None = None
    trimmed: int = 0


class Shard:
    """One shard of a lake.

    Attributes:
        spec: what is the same in all versions. Schemas are of a `Version`.
        env: the clock, ids and recorder of this process.
        runner: the name of this handle in claims on merges.
        writes_as: what its writes say of themselves to a shard that has an owner.
        renewer: renews the leases of readers; the handles of one lake share it.
    """

    def __init__(
        self,
        stores: Stores,
        spec: ShardSpec,
        env: Env,
        machine: Machine,
        history: History,
        *,
        renewer: LeaseRenewer | None = None,
    ) -> None:
        self.spec = spec.place
        self._spec = spec
        self.renewer = renewer or renewer_of(env, spec.config)
        self.stores = stores
        self.env = env
        self.runner = env.ids.fresh()
        self.writes_as = ""
        self.collected = Collected()
        self._machine, self.group_commit = machine, machine.group_commit
        self._history = history
        self._version: Version | None = None
        self._group: Shard | None = None

    @classmethod
    def create(
        cls,
        stores: Stores,
        env: Env,
        spec: ShardSpec,
        *,
        renewer: LeaseRenewer | None = None,
        group_commit: GroupCommit | None = None,
        agreed: Agreed | None = None,
        owned: tuple[Owned, Frontier] | None = None,
    ) -> "Shard":
        """Create a shard, or open it if it exists with an equal schema and unit of time."""
        history = History(spec.shard_id, stores, env)
        first = commands.initial(
            spec.shard_id, spec.domain, spec.schema, env.clock.now_ms(), agreed or Agreed.of(spec.config)
        )
        known = history.create(first if owned is None else with_owner(first, *owned))
        machine = Machine(history, spec.config, env, group_commit)
        machine.adopt(known)
        if known.state.domain != spec.domain:
            raise IncompatibleSchema(
                f"shard {spec.shard_id} has time {known.state.domain}, which does not equal {spec.domain}"
            )
        machine.run(partial(schemas.register_schema, schema=spec.schema))
        return cls(stores, spec, env, machine, history, renewer=renewer)

    @classmethod
    def open(
        cls,
        stores: Stores,
        env: Env,
        url: str,
        shard_id: str,
        config: Config,
        *,
        renewer: LeaseRenewer | None = None,
        group_commit: GroupCommit | None = None,
    ) -> "Shard":
        """Open an existing shard; see `create`. Three store calls."""
        history = History(shard_id, stores, env)
        machine = Machine(history, config, env, group_commit)
        state = machine.refresh()
        if state.dropped:
            raise CollectionDropped(shard_id)
        spec = ShardSpec(url, shard_id, state.domain, state.schema_id, schemas_of(state), config)
        return cls(stores, spec, env, machine, history, renewer=renewer)

    @property
    def title(self) -> str:
        """The name of the shard in messages: its id, or the name that it was given."""
        return self._machine.title

    @title.setter
    def title(self, title: str) -> None:
        self._machine.title = title

    def run(self, command: Command[R], *, alone: bool = False) -> R:
        """Carry out a command; see `carry_out`."""
        return self.carry_out(command, alone=alone).result

    def carry_out(self, command: Command[R], *, alone: bool = False) -> Done[R]:
        """Carry out a command, together with others that arrive at the same time unless `alone`.

        Then write a rollup if one is due, and remove the log entries that nothing needs any more. If that
        fails, the command is committed nevertheless and its result is returned; the next commits try again.

        Returns:
            The result, and the merges that have become due: they are not started here.
        """
        with self.group_commit.command():
            done = self._machine.run(command, alone=alone)
            if done.rollup_due:
                self._add_rollup()
        return done

    def run_together(self, commands: Sequence[Command[R]]) -> list[R]:
        """Carry out commands by one commit, in their order; see `carry_out`. Appends wait for it."""
        with self.group_commit.command():
            done = self._machine.run_together(commands)
            if any(one.rollup_due for one in done):
                self._add_rollup()
        return [one.result for one in done]

    def _add_rollup(self) -> None:
        """Write a rollup that is due and trim the log, as far as possible: both only make opening cheaper."""
        if self.stores.read_only:
            return
        try:
            if self.write_rollup():
                self._trim()
        except (StoreUnavailable, OutcomeUnknown, Closed, CollectionDropped):
            self.env.failed("rollup.failed")
        except InternalError as error:
            message = f"{self.title}: no rollup is written, for its state is broken: {error}"
            warnings.warn(TidelakeWarning(f"{message}; run fsck --repair"), stacklevel=3)

    def _trim(self) -> None:
        try:
            self.collected.trimmed = self._history.trim(self.known(), self.collected.trimmed)
        except CorruptionError as error:
            # Of entries that opening does not need: the commit stays as it is.
            warnings.warn(TidelakeWarning(f"{self.title}: its log is not trimmed: {error}"), stacklevel=4)

    def named(self, error: TidelakeError) -> TidelakeError:
        """The error with the shard's title in place of its id, and with the unit of its times."""
        return self._machine.named(error)

    def preview(self, command: Command[R]) -> R | None:
        """The result of a command that would write nothing; None if it would write. Raises if refused."""
        return self._machine.preview(command)

    def write_rollup(self) -> bool:
        """Store the newest known state as a rollup, which makes opening cheap; whether it was added."""
        if self.known().dropped:
            return False
        rollup = self._history.write_rollup(self._machine.known().state)
        added = self._machine.run(partial(commands.add_rollup, rollup=rollup)).result
        if not added:
            self.stores.blobs.delete(names.rollup(self.spec.shard_id, rollup.seqno, rollup.id))
        return added

    def state(self) -> ShardState:
        """The newest state. One log scan."""
        return self._machine.refresh()

    def alive(self) -> ShardState:
        """The newest state. One log scan."""
        state = self.state()
        if state.dropped:
            raise CollectionDropped(self.title)
        return state

    def known(self) -> ShardState:
        """The newest state that this handle has seen. No store call, except for the first."""
        seen = self._machine.seen
        return self._machine.known().state if seen is None else seen.state

    def latest(self) -> ShardState:
        """The newest state that this handle has seen, or another one of its lake has committed.

        No store call, except for the first.
        """
        return self._machine.latest().state

    def version(self, *, with_writers: bool = False, take: Callable[[], ShardState] | None = None) -> Version:
        """The newest version: the state with every decision of its group applied, and its schemas.

        One log scan; two if the collection is in a group.
        """
        look = self.look(take)
        if look.group is None and look.view is not None:
            check_orphan(look.state)
        state = applying.seen_through(look.state, look.view)
        self._version = version = self.version_of(state)
        if with_writers and look.group is not None:
            writers = state.writers.update(writers_of(look.group, state.shard_id))
            return replace(version, state=replace(state, writers=writers))
        return version

    def version_of(self, state: ShardState) -> Version:
        """The version of a state in which every decision of its group is applied. No store call."""
        # Another thread may overwrite this with that of another state; the next call makes it again.
        self._spec = spec = self._spec.at(state)
        return Version(state, spec)

    def look(self, take: Callable[[], ShardState] | None = None) -> LogView:
        """The newest state, and the decisions of its group to read it with. Costs and `take` as `version`."""
        stay = ("", 0)
        while True:
            # First the group: then each of its decisions is either in the view or applied in the state.
            group, view = self._seen_group()
            state = self.alive() if take is None else take()
            if not state.group:
                return LogView(state)
            if view is not None and not view.is_older(state.group, state.joined):
                return LogView(state, view, group)
            if view is not None and stay == (state.group, state.joined):
                raise lost(state, view.seqno)
            # The collection joined this group after the group was read: read the group again.
            stay = (state.group, state.joined)

    def view(self) -> GroupView | None:
        """What its group has decided for it, for reading states that are read after this call.

        Read it before the state: then every decision in it is either applied in the state, or what it decides
        is staged there. One log scan; none if the collection is in no group.
        """
        return self._seen_group()[1]

    def _seen_group(self) -> tuple[ShardState | None, GroupView | None]:
        """The newest state of its group (None: it is gone), and what the group has decided for this shard."""
        id_ = self.known().group
        if not id_:
            return None, None
        from tidelake.state.group.deciding import ended, view

        try:
            group = self.group(id_).state()
        except CollectionNotFound:
            return None, ended(id_, self.known())
        return None if group.dropped else group, view(group, self.spec.shard_id)

    def apply_decided(self) -> Version:
        """Commit to the shard what transactions have decided for it, and close the times that this closes.

        Returns the newest version. Two log scans and a log write if it is in a group; else one scan.
        """
        look = self.look()
        if look.view is not None:
            self.run(partial(applying.apply_decided, view=look.view))
        return self.version_of(self.known())

    def last_version(self) -> Version:
        """The newest version that this handle has seen. No store call, except for the first in a group."""
        known, last = self.known(), self._version
        if known.group or (last is None and known.dropped):
            # A table is prepared for the schema that is known.
            return self.version() if last is None or last.state.schemas != known.schemas else last
        return self.version_of(known) if last is None or known.seqno > last.state.seqno else last

    def version_to_write(self) -> Version:
        """A version to prepare a write on: the newest that is known, or the newest where that pays.

        It pays where another process commits as well and a look costs no round trip: the write is decided
        on the newest version, of which this one's upper is not past, and each try on an older one is in vain.
        """
        known_is_newest = not self.group_commit.share.has_rivals
        version = self.last_version() if self.stores.blobs.is_far or known_is_newest else self.version()
        if version.state.dropped:
            raise CollectionDropped(self.title)
        return version

    def grouped(self) -> ShardState | None:
        """The newest state of its group; None if it is in none. Two log scans."""
        group = self.alive().group
        if not group:
            return None
        try:
            return self.group(group).state()
        except CollectionNotFound:
            return None

    def group(self, id_: str) -> "Shard":
        """The shard of a group of collections. Three store calls the first time."""
        if self._group is None or self._group.spec.shard_id != id_:
            config, url = self.spec.config, self.spec.url
            self._group = Shard.open(self.stores, self.env, url, id_, config, renewer=self.renewer)
        return self._group

    def evolve(
        self, schema: Schema | None, drop: Sequence[str] = (), rename: Mapping[str, str] | None = None
    ) -> int:
        """Make a schema the newest one, and return its id. One log write if it differs from the newest."""
        return self.run(partial(schemas.evolve, schema=schema, drop=drop, rename=rename))

    def advance_since(self, since: Frontier) -> Frontier:
        """Allow history before `since` to be folded, as far as holds allow. Returns the `since` of now."""
        return self.run(partial(holds.advance_since, since=since))


def renewer_of(env: Env, config: Config) -> LeaseRenewer:
    """A renewer that renews often enough for the leases of readers."""
    return LeaseRenewer(env, min(config.lease_s, config.garbage_age_s) / 3)
