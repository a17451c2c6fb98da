"""The list of collections, which is itself a collection.

Key `name`, value `shard`; time is a counter. A name that was dropped or renamed stays, with a null shard, so
that it is not reused by accident. An intent (an operation on several collections that was decided and is not
finished) also has a row, under a key that cannot be a name. Every change, also of several names, is one
compare-and-append at the upper that was read.

INVARIANT: at no time do two names lead to one shard.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelake.config import Config
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.data.query.literal import beginning, encoded_text
from tidelake.env import Env
from tidelake.errors import (
    BlobNotFound,
    Closed,
    CollectionNotFound,
    CorruptionError,
    HistoryCompacted,
    LeaseExpired,
    OutcomeUnknown,
    ReadOnlyLake,
    StoreUnavailable,
    UpperMismatch,
)
from tidelake.lake.catalog.settings import check_agreed
from tidelake.model.frontier import Frontier
from tidelake.model.predicate import PAST, leaf
from tidelake.model.query import AsOf
from tidelake.model.selection import Selection
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.lease import explained
from tidelake.shard.engine.machine import GroupCommit
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.engine.version import Version
from tidelake.shard.reading import query
from tidelake.shard.reading.versionread import VersionRead
from tidelake.state.core.agreed import Agreed
from tidelake.state.life import agreeing
from tidelake.state.spine.space import has_tail, must_merge_all
from tidelake.store.url import Stores

if TYPE_CHECKING:
    from tidelake.shard.upkeep.reports import CollectReport

SHARD_ID = "catalog"
_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("shard", pa.string())])
_STORED = schema_from_arrow(_SCHEMA, ["name"], None)
_NAME_ID = _STORED.key[0].id
# Names of collections have no control characters, so no name begins like this.
_INTENT = "\0intent/"
_MERGE_ABOVE_RUNS = 16
# All runs are merged when more than one row in eight lies outside the largest run. So each name is rewritten
# a bounded number of times while the list grows tenfold, and a change costs no more in a long list.
_TAIL = 8
# So many rows are read as fast as a few of them, so all names are read and kept.
_KEPT_ROWS_MAX = 4096
# Small row groups: opening one name reads one row group of each stored run.
_ROW_GROUP_ROWS_MAX = 256


@dataclass(frozen=True)
class Listing:
    """The catalog at its upper.

    Attributes:
        shards: shard id by name, of the names that were asked for, or of all; None for a name that was
            dropped, or given up by a rename.
        intents: decided but unfinished operations, by id; empty if they were not asked for.
    """

    upper: int
    shards: dict[str, str | None]
    intents: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """The names of all collections, ascending.

    Attributes:
        shards: for each name the id of its shard.
    """

    upper: int
    names: tuple[str, ...]
    shards: tuple[str, ...]


class Catalog:
    """Reads and changes the list of collections; `group_commit` combines concurrent commands on it."""

    def __init__(
        self, stores: Stores, env: Env, url: str, config: Config, group_commit: GroupCommit | None = None
    ) -> None:
        self._stores, self._env, self._url = stores, env, url
        self._config = replace(
            config, row_group_rows=min(config.row_group_rows, _ROW_GROUP_ROWS_MAX), merge_whole_rows=0
        )
        self._group_commits = group_commit
        self._opened: Shard | None = None
        self._kept: Listing | None = None  # all names and intents, at a time that was the newest

    @property
    def _shard(self) -> Shard:
        """The catalog's shard, opened on first use, so that a lake with a damaged catalog can be checked."""
        if self._opened is None:
            # No `cached_property`: before Python 3.12 it has one lock for all catalogs of a process, held
            # during store calls. If two threads open the shard at once, either handle will do.
            self._opened = self._open()
        return self._opened

    def _open(self) -> Shard:
        opened = self._there() or self._made()
        check_agreed(self._config, opened.known().agreed)
        return opened

    def _there(self) -> Shard | None:
        try:
            return Shard.open(
                self._stores, self._env, self._url, SHARD_ID, self._config, group_commit=self._group_commits
            )
        except CollectionNotFound:
            return None

    def _made(self) -> Shard:
        self._check_new()
        spec = ShardSpec(self._url, SHARD_ID, TimeDomain("counter"), 0, {0: _STORED}, self._config)
        return Shard.create(self._stores, self._env, spec, group_commit=self._group_commits)

    def _check_new(self) -> None:
        """Check that the catalog is not lost: it is made before the first shard."""
        log = self._stores.log
        shards = sum(1 for key in log.keys() if key != SHARD_ID)  # noqa: SIM118 - it is no dict
        # Look for the catalog again: others may be creating it and the first shards right now.
        if shards and log.head(SHARD_ID) is None:
            raise CorruptionError(SHARD_ID, f"it is missing, and {shards} shards have lost their names")

    def read(self) -> Listing:
        """Read all names. Costs a scan of the log, and a few reads for each part of the catalog."""
        return self._listing(Selection())

    def names(self, known: Names | None = None) -> Names:
        """The names of all collections. A log scan, and as `read` if they have changed since `known`."""
        version = self._newest()
        if known is not None and version is not None and known.upper == _time_of(version):
            return known
        listing = self._listing(Selection(), version)
        found = sorted((name, shard) for name, shard in listing.shards.items() if shard is not None)
        return Names(listing.upper, tuple(name for name, _ in found), tuple(shard for _, shard in found))

    def look(self, names: Iterable[str], *, intents: bool = False) -> Listing:
        """Read the given names, as far as they exist. Costs a scan of the log, and a row group of each run.

        There are few runs, however many names there are. A short catalog is read only if others have changed
        it. With `intents` also reads the intents.
        """
        names = list(names)
        kept = self._short()
        if kept is not None:
            found = {name: kept.shards[name] for name in names if name in kept.shards}
            return Listing(kept.upper, found, dict(kept.intents) if intents else {})
        wanted = [encoded_text(name.encode(errors="surrogatepass")) for name in names]
        ranges = [(name, name + PAST) for name in wanted] + [beginning(_INTENT)] * intents
        return self._listing(Selection(where=leaf(_NAME_ID, ranges)))

    def _short(self) -> Listing | None:
        """All of a short catalog, read only if it has changed; None for a longer one."""
        version = self._newest()
        if version is None or version.state.spine.totals.rows > _KEPT_ROWS_MAX:
            return None
        kept = self._kept
        if kept is None or kept.upper != _time_of(version):
            kept = self._kept = self._listing(Selection(), version)
        return kept

    def _newest(self) -> Version | None:
        """The catalog now; None if there is none yet, and a read-only lake cannot make one."""
        try:
            return self._shard.version() if self._opened else self._shard.last_version()
        except ReadOnlyLake:
            return None

    def _listing(self, selection: Selection, seen: Version | None = None) -> Listing:
        while True:
            version, seen = seen or self._newest(), None
            upper = 0 if version is None else _time_of(version)
            if version is None or upper == 0:
                return Listing(0, {})
            try:
                rows = self._rows(version, AsOf(upper - 1), selection)
            except HistoryCompacted:
                continue  # Others changed and compacted the catalog in between: read it as it is now.
            except BlobNotFound as error:
                why = explained(self._shard, error.name)
                if not isinstance(why, LeaseExpired):
                    raise why from error
                continue  # Others also deleted the parts that they had merged.
            return _listing_of(
                upper, dict(zip(rows["name"].to_pylist(), rows["shard"].to_pylist(), strict=True))
            )

    def _rows(self, version: Version, asked: AsOf, selection: Selection) -> pa.Table:
        """Some rows at a closed time of a version, read at once: nothing keeps their parts."""
        query.check_since(asked, version.state)
        return VersionRead(self._shard, version, asked, version.spec, selection).stream().read_all()

    def set(self, listing: Listing, name: str, shard_id: str | None) -> bool:
        """Give a name another shard (None: dropped); False if the catalog has changed since `listing`."""
        return self.set_all(listing, {name: shard_id})

    def set_all(self, listing: Listing, changed: Mapping[str, str | None]) -> bool:
        """Give several names other shards at once; False if the catalog has changed since `listing`."""
        rows = [(name, listing.shards[name], -1) for name in changed if name in listing.shards]
        rows += [(name, shard_id, 1) for name, shard_id in changed.items()]
        return self._change(listing, rows)

    def intend(self, listing: Listing, id_: str, what: str) -> bool:
        """Record an operation as decided, to be done next; False if the catalog changed since `listing`."""
        return self._change(listing, [(_INTENT + id_, what, 1)])

    def done(self, key: str) -> None:
        """Remove an intent that is done, unless another process has removed it."""
        while True:
            listing = self.look([], intents=True)
            what = listing.intents.get(key)
            if what is None or self._change(listing, [(key, what, -1)]):
                return

    def _change(self, listing: Listing, rows: Sequence[tuple[str, str | None, int]]) -> bool:
        """Add and take away names with their shards; False if the catalog has changed since `listing`."""
        from tidelake.shard.writing.append import append_within
        from tidelake.state.write.write import Exactly

        names, shards, diffs = zip(*rows, strict=True) if rows else ((), (), ())
        table = pa.table(
            {
                "name": pa.array(names, pa.string()),
                "shard": pa.array(shards, pa.string()),
                "_time": pa.array([listing.upper] * len(rows), pa.int64()),
                "_diff": pa.array(diffs, pa.int64()),
            }
        )
        try:
            append_within(
                self._shard, table, Exactly(Frontier.of(listing.upper), Frontier.of(listing.upper + 1))
            )
        except UpperMismatch:
            return False
        self._keep(listing.upper, rows)
        self._tidy()
        return True

    def _keep(self, upper: int, rows: Sequence[tuple[str, str | None, int]]) -> None:
        """Change the names that are kept as the catalog was changed at `upper`: first what was taken away."""
        kept = self._kept
        if kept is None or kept.upper != upper:
            return
        # Whole copies, which cost nothing beside a commit; a loop over all names would.
        shards, intents = dict(kept.shards), dict(kept.intents)
        for name, shard_id, diff in rows:
            held: dict[str, Any] = intents if name.startswith(_INTENT) else shards
            if diff < 0 and held.get(name) == shard_id:
                del held[name]
            elif diff > 0:
                held[name] = shard_id
        self._kept = Listing(upper + 1, shards, intents)

    def agreed(self) -> Agreed:
        """The settings of the lake. One log scan."""
        return self._shard.state().agreed

    def known_agreed(self) -> Agreed:
        """The settings of the lake, as of the newest known state. Only the first call makes store calls."""
        return self._shard.known().agreed

    def change_agreed(self, values: Mapping[str, int]) -> Agreed:
        """Change settings of the lake; see `tidelake.state.life.agreeing`. One log write."""
        return self._shard.run(partial(agreeing.change, values=values))

    def upgrade(self) -> Agreed:
        """Raise the format of the lake to the newest one. One log write. Returns the settings before."""
        return self._shard.run(agreeing.upgrade)

    def told(self, revision: int) -> None:
        """Note that all shards have adopted a revision of the settings. One log write, the first time."""
        self._shard.run(partial(agreeing.told, revision=revision))

    def unname(self, shard_id: str, name: str, *, forget: bool = False) -> bool:
        """Remove the name of a dropped shard, also if it was renamed meanwhile; False if it has no name."""
        while True:
            listing = self.look([name])
            if listing.shards.get(name) != shard_id:
                listing = self.read()
            now = next((known for known, of in listing.shards.items() if of == shard_id), None)
            if now is None:
                return False
            gone = [(now, shard_id, -1)] if forget and now == name else [(now, shard_id, -1), (now, None, 1)]
            if self._change(listing, gone):
                return True

    def rule_out(self, shard_id: str) -> None:
        """Make sure that no name leads to a tombstone, and that none can be given to it any more.

        SUBTLE: a process that names a shard first reads the catalog, then checks that the shard is alive. If
        it checked before the tombstone, it read the catalog earlier still; this moves the catalog's upper, so
        its change is refused. Reads all names.
        """
        while True:
            listing = self.read()
            changed = dict.fromkeys(name for name, of in listing.shards.items() if of == shard_id)
            if self.set_all(listing, changed):
                return

    def collect(self) -> "CollectReport":
        """Delete what the catalog no longer needs; see `Collection.collect`.

        Also ends the merge claims of processes that died: the next merge may be many changes away.
        """
        from tidelake.shard.upkeep.collector import Collector
        from tidelake.shard.upkeep.compactor import Compactor

        Compactor(self._shard).end_expired()
        return Collector(self._shard).run()

    def _tidy(self) -> None:
        """Keep reads cheap: compact the history of the names, and keep their runs few."""
        try:
            state = self._shard.state()
            if state.spine.totals.runs > _MERGE_ABOVE_RUNS:
                self._shard.advance_since(state.upper.just_before())
                self._merge()
                from tidelake.shard.upkeep.collector import Collector

                Collector(self._shard).run_if_due()
        except (StoreUnavailable, OutcomeUnknown, Closed):
            # The change itself is committed. The next change tries again.
            self._shard.env.failed("catalog.tidy.failed")

    def _merge(self) -> None:
        """Merge small runs into larger ones, and all of them when `_TAIL` or `since` says so."""
        from tidelake.shard.upkeep.maintain import Maintainer

        maintainer = Maintainer(self._shard)
        maintainer.relieve(0)
        state = self._shard.known()
        if (
            state.spine.totals.runs > _MERGE_ABOVE_RUNS
            or has_tail(list(state.spine), _TAIL)
            or must_merge_all(list(state.spine), state.since)
        ):
            maintainer.merge_all()


def _time_of(version: Version) -> int:
    """The upper of the catalog in a version."""
    upper = version.upper.elements[0]
    return upper if isinstance(upper, int) else 0


def _listing_of(upper: int, rows: dict[str, str | None]) -> Listing:
    """A listing of rows, of names and of intents."""
    intents = {key: what for key, what in rows.items() if key.startswith(_INTENT) and what is not None}
    return Listing(upper, {key: shard for key, shard in rows.items() if key not in intents}, intents)
