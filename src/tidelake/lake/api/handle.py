"""The bases of the handles of a collection and of a lake: what all of their methods use."""

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from tidelake.config import Config
from tidelake.data.kernel.types import row_schema, update_schema
from tidelake.env import Env
from tidelake.errors import NotYetClosed, UsageError
from tidelake.handle import Handle
from tidelake.lake.admin.agreeing import Agreeing
from tidelake.lake.admin.sinces import Sinces
from tidelake.lake.arguments.times import FrontierLike, ReadTimes
from tidelake.lake.catalog.catalog import Catalog
from tidelake.lake.catalog.closeguard import CloseGuard
from tidelake.lake.catalog.leftovers import Leftovers
from tidelake.lake.catalog.shards import Shards
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.engine.machine import GroupCommit
from tidelake.shard.engine.shard import Shard, renewer_of
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.life.schemas import schema_id_at
from tidelake.store.url import Stores

if TYPE_CHECKING:
    from tidelake.lake.groups.groups import Groups
    from tidelake.shard.reading.commits import CommitEntry


class CollectionHandle(Handle):
    """A handle on one collection.

    Attributes:
        name: the name under which it was opened; used in messages.
    """

    def __init__(self, name: str, shard: Shard) -> None:
        self.name = name
        self._shard = shard
        shard.title = name

    @property
    def id(self) -> str:
        """The id of its shard. No other collection ever has the same."""
        return self._shard.spec.shard_id

    @property
    def domain(self) -> TimeDomain:
        """The unit of its times."""
        return self._shard.spec.domain

    @property
    def schema(self) -> pa.Schema:
        """Key columns, then value columns, of the newest schema that this handle has seen."""
        return row_schema(self._shard.known().schema)

    @property
    def update_schema(self) -> pa.Schema:
        """The columns of an update: key, value, `_time` (or `_time_0`, ...) and `_diff`."""
        return update_schema(self._shard.known().schema, self.domain)

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(column.name for column in self._shard.known().schema.key)

    @property
    def since(self) -> Frontier:
        """The frontier before which reads are refused, since history there may be compacted. One log scan."""
        return self._shard.state().since.of_unit(self.domain.unit)

    @property
    def upper(self) -> Frontier:
        """Every time strictly before it is closed. One log scan; two for a collection in a group."""
        return self._shard.version().upper.of_unit(self.domain.unit)

    def schema_at(self, seqno: int) -> pa.Schema:
        """Key columns, then value columns, as of the state with this seqno. One log scan.

        Raises:
            UsageError: there is no such state.
        """
        if isinstance(seqno, bool) or not isinstance(seqno, int):
            raise UsageError(f"seqno={seqno!r} must be a whole number, such as collection.state().seqno")
        state = self.state()
        return row_schema(state.schemas[schema_id_at(state, seqno)].schema)

    def state(self) -> ShardState:
        """The newest state of the shard: frontiers, batches, writers, holds. One log scan."""
        return self._shard.state()

    def commits(self, limit: int = 20, *, every: bool = False) -> "list[CommitEntry]":
        """The newest commits, newest first: when, by which writer, what, and how many updates.

        The log goes back to the newest rollup at least, and usually to the one before it: see
        `rollup_bytes_min`. Earlier commits are gone in time. A write of several collections at one instant
        is first a `stage`, then a `seal`.

        Args:
            limit: at most so many.
            every: also those that change nothing that readers see, such as merges and holds.

        Returns:
            One entry for each. A log scan, and one more for every 256 entries of the log that are looked at.
        """
        if type(limit) is not int or limit < 0:
            raise UsageError(f"limit={limit!r} must be a whole number of commits")
        from tidelake.shard.reading.commits import commits

        return commits(self._shard, limit, every=every)

    def writers(self) -> dict[str, WriterRecord]:
        """The records of named writers and of tokens. One log scan; two for a collection in a group."""
        from tidelake.state.life.copying import WRITER

        return dict(self._shard.version(with_writers=True).state.writers.discard(WRITER))

    def group(self) -> ShardState | None:
        """The newest state of its group, which lists its collections; None: it is in none. Two log scans."""
        return self._shard.grouped()

    def last_time(self) -> Time:
        """The last closed time. One log scan; two for a collection in a group.

        Raises:
            UsageError: there is no single last time: times are tuples, or all are closed.
            NotYetClosed: no time is closed yet.
        """
        return self._last_before(self._shard.version().upper)

    def last_staged(self) -> Time:
        """The last time that is closed or has a staged update. Costs as `last_time`.

        Raises:
            UsageError: there is no single last time: times are tuples, or all are closed.
            NotYetClosed: no time is closed, and nothing is staged.
        """
        return self._last_staged_in(self._shard.version().state)

    def _last_staged_in(self, state: ShardState) -> Time:
        # Rows that await a transaction's decision do not count.
        lasts = [part.seen_times[1] for one in state.staged for part in one.batch.parts()]
        if not lasts or not self.domain.total_order:
            return self._last_before(state.upper)
        if not state.upper.less_equal(self.domain.minimum):
            lasts.append(self._last_before(state.upper))
        return max(lasts, key=times.parts)

    def _last_before(self, upper: Frontier) -> Time:
        if not self.domain.total_order or upper.closed:
            raise UsageError(
                f"collection {self.name!r} has no single last time (upper={upper}): give as_of=..."
            )
        if upper.less_equal(self.domain.minimum):
            # Do not wait: a caller that gives no time wants what is there now, and nothing is.
            raise NotYetClosed(self.domain.minimum, upper.elements[0], 0, self.name).of(self.domain.unit)
        last: Time = upper.just_before().elements[0]
        return last

    def _text(self, value: object) -> str:
        """The text of a time or frontier, for messages."""
        return self.domain.text(value)

    @property
    def _times(self) -> ReadTimes:
        return ReadTimes(self._shard.spec.domain, self._shard.env.clock.now_ms, self.last_time)

    def _frontier(self, value: FrontierLike, name: str) -> Frontier:
        return self._times.bound(value, name)


def times_of(handle: CollectionHandle) -> ReadTimes:
    """What converts times that users hand in for a collection."""
    return handle._times


def last_time_and_group(handle: CollectionHandle) -> tuple[Time, str]:
    """The last closed time of a collection, and the id of its group; empty if it is in none.

    Costs and errors as `last_time`.
    """
    state = handle._shard.version().state
    return handle._last_before(state.upper), state.group


def last_before(handle: CollectionHandle, upper: Frontier) -> Time:
    """The last closed time of a version of a collection, from its upper; errors as `last_time`."""
    return handle._last_before(upper)


def shard_of(handle: CollectionHandle) -> Shard:
    """The shard of a collection, for what looks at how it is stored."""
    return handle._shard


class KeptOpen(Protocol):
    """What layers above the lake keep open with it."""

    def close(self) -> None:
        """Let go of it."""


class LakeHandle(Handle):
    """A handle on one lake.

    Attributes:
        url: the URL of the lake; other processes can open it under this URL.
        env: clock, ids, counters and threads that it was opened with.
    """

    def __init__(self, url: str, stores: Stores, config: Config, env: Env) -> None:
        self.url = url
        self._guard = guard = CloseGuard(url)
        self._stores = stores.layered(guard.layer)
        self._config = config
        self.env = env
        self._renewer = renewer_of(env, config)
        self._catalog = Catalog(
            self._stores, env, url, config, GroupCommit(env, guard.command, counts_appends=False)
        )
        self._shards = Shards(
            self._stores, env, url, config, catalog=self._catalog, guard=guard, renewer=self._renewer
        )
        self._leftovers = Leftovers(self._stores, env, config, self._catalog)
        self._sinces = Sinces(self._catalog, self._shards.led_to, self._shards.open, env)
        self._agreeing = Agreeing(self._catalog, self._stores.log.keys, self._shards.open)
        self._kept = dict[str, KeptOpen]()

    @property
    def _groups(self) -> "Groups":
        from tidelake.lake.groups.groups import Groups

        return Groups(self._stores, self.env, self.url, self._config, self._shards.open)
