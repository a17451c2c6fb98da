"""The list of collections, which is itself a collection.

Key `name`, value `shard` (null once dropped, so that a dropped name does not come back by accident);
time is a counter. Every change is one compare-and-append at the upper that was read.
"""

from dataclasses import dataclass

import pyarrow as pa

from tidelake.config import Config
from tidelake.data.types import schema_from_arrow
from tidelake.env import Env
from tidelake.errors import (
    BlobNotFound,
    CollectionNotFound,
    CorruptionError,
    HistoryCompacted,
    LeaseExpired,
    OutcomeUnknown,
    StoreUnavailable,
    UpperMismatch,
)
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.model.time import TimeDomain
from tidelake.shard.lease import explained
from tidelake.shard.reading.query import stream
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.collector import Collector, CollectReport
from tidelake.shard.upkeep.compactor import Compactor
from tidelake.shard.upkeep.maintain import Maintainer
from tidelake.shard.writing.append import compare_and_append
from tidelake.store.url import Stores

SHARD_ID = "catalog"
_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("shard", pa.string())])
_MERGE_ABOVE_RUNS = 16


@dataclass(frozen=True)
class Listing:
    """The catalog at its upper.

    Attributes:
        upper: the next change's time.
        shards: shard id by name; None for a dropped name.
    """

    upper: int
    shards: dict[str, str | None]


class Catalog:
    """Reads and changes the list of collections."""

    def __init__(self, stores: Stores, env: Env, url: str, config: Config) -> None:
        self._stores, self._env, self._url, self._config = stores, env, url, config
        self._opened: Shard | None = None

    @property
    def _shard(self) -> Shard:
        """Made by whoever needs it first: a lake whose catalog is damaged opens, and can be checked."""
        if self._opened is None:
            # No `cached_property`: before Python 3.12 all catalogs of a process share the lock of one, which
            # is held across the calls of the store. Of two threads that come at once either handle will do.
            self._opened = self._open()
        return self._opened

    def _open(self) -> Shard:
        try:
            return Shard.open(self._stores, self._env, self._url, SHARD_ID, self._config)
        except CollectionNotFound:
            self._check_new()
        schema = schema_from_arrow(_SCHEMA, ["name"], None)
        spec = ShardSpec(self._url, SHARD_ID, TimeDomain("counter"), 0, {0: schema}, self._config)
        return Shard.create(self._stores, self._env, spec)

    def _check_new(self) -> None:
        """Check that there was no catalog yet: it is made before the first shard.

        Raises:
            CorruptionError: there are shards; a new catalog would hide them.
        """
        log = self._stores.log
        shards = sum(1 for key in log.keys() if key != SHARD_ID)  # noqa: SIM118 - it is no dict
        # Looked at again, for others may be creating the catalog and shards right now.
        if shards and log.head(SHARD_ID) is None:
            raise CorruptionError(SHARD_ID, f"it is missing, and {shards} shards have lost their names")

    def read(self) -> Listing:
        """All names. Costs a scan of the log, and a few reads a part of the catalog."""
        while True:
            upper = self._shard.state().upper.elements[0]
            if not isinstance(upper, int) or upper == 0:
                return Listing(0, {})
            try:
                rows = stream(self._shard, AsOf(upper - 1), 0, brief=True).read_all()
            except HistoryCompacted:
                continue  # Others changed and folded the catalog in between: read it as it is now.
            except BlobNotFound as error:
                why = explained(self._shard, error.name)
                if not isinstance(why, LeaseExpired):
                    raise why from error
                continue  # Others also deleted what they had folded.
            return Listing(upper, dict(zip(rows["name"].to_pylist(), rows["shard"].to_pylist(), strict=True)))

    def set(self, listing: Listing, name: str, shard_id: str | None) -> bool:
        """Give a name another shard (None: dropped); False if the catalog has changed since `listing`."""
        rows = [(name, listing.shards[name], -1)] if name in listing.shards else []
        rows.append((name, shard_id, 1))
        names, shards, diffs = zip(*rows, strict=True)
        table = pa.table(
            {
                "name": pa.array(names, pa.string()),
                "shard": pa.array(shards, pa.string()),
                "_time": pa.array([listing.upper] * len(rows), pa.int64()),
                "_diff": pa.array(diffs, pa.int64()),
            }
        )
        try:
            compare_and_append(self._shard, table, Frontier.of(listing.upper), Frontier.of(listing.upper + 1))
        except UpperMismatch:
            return False
        self._tidy()
        return True

    def collect(self) -> CollectReport:
        """Delete what the catalog no longer needs; see `Collection.collect`.

        Claims of whoever died in a merge end as well: the next one may be many changes away.
        """
        Compactor(self._shard).end_expired()
        return Collector(self._shard).run()

    def _tidy(self) -> None:
        """Keep reads cheap: names are few, so their whole history folds into one part now and then."""
        state = self._shard.state()
        if sum(len(item.batch.runs) for item in state.spine) > _MERGE_ABOVE_RUNS:
            last = state.upper.just_before()
            try:
                self._shard.advance_since(last)
                Maintainer(self._shard).merge_all()
                Collector(self._shard).run_if_due()
            except (StoreUnavailable, OutcomeUnknown):
                # The change itself is in. Whoever makes the next one tries again.
                self._shard.env.recorder.count("catalog.tidy.failed")
