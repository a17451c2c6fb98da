"""Checking a whole lake: each collection, the catalog, and the other objects in the stores.

Owns the comparison of the catalog with the existing shards; `tidelake.shard.care.fsck` checks one shard.
Data is never removed: a shard with rows that no name leads to is reported and stays.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    BlobNotFound,
    CollectionDropped,
    CollectionNotFound,
    CorruptionError,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownFormat,
)
from tidelake.lake.arguments.names import not_found
from tidelake.lake.catalog.catalog import SHARD_ID, Catalog, Listing
from tidelake.lake.catalog.leftovers import Leftovers
from tidelake.lake.groups.groups import is_group
from tidelake.model.names import is_plain, marked
from tidelake.shard.care.finding import Finding
from tidelake.shard.care.fsck import Checked, ShardCheck
from tidelake.shard.engine.history import History, LoadedVersion
from tidelake.shard.upkeep.ending import remove_listed
from tidelake.shard.upkeep.forkpins import ForkPins
from tidelake.state.core.agreed import AS_MADE, Agreed
from tidelake.state.core.forks import is_borrower
from tidelake.state.core.state import ShardState
from tidelake.store.url import Stores
from tidelake.tabletext import FieldsAsHtml

Watch = Callable[[str, int, int], None]
"""Called with the name of a collection, the bytes of its parts checked so far, and the bytes of all parts."""

_LOST = frozenset(
    {"log-missing", "catalog-missing", "catalog-unreadable", "unnamed-shard", "log-unreadable", "unavailable"}
)
_UNREADABLE = (CorruptionError, BlobNotFound, UnknownFormat, StoreUnavailable, OutcomeUnknown)


@dataclass(frozen=True)
class FsckReport(FieldsAsHtml):
    """What a check of a lake found.

    Attributes:
        findings: all findings, collection by collection.
        collections: number of collections checked.
        parts: number of parts checked.
        rows: number of rows read.
        size_bytes: total size of the checked parts in bytes.
    """

    findings: tuple[Finding, ...]
    collections: int
    parts: int
    rows: int
    size_bytes: int

    @property
    def left(self) -> tuple[Finding, ...]:
        """The findings that were not repaired, without mere notes."""
        return tuple(one for one in self.findings if not one.repaired and not one.note)

    @property
    def set_aside(self) -> tuple[Finding, ...]:
        """What repairs could not keep, and have stored separately for inspection."""
        return tuple(one for one in self.findings if one.kind == "set-aside")

    @property
    def clean(self) -> bool:
        """Whether nothing is left to repair."""
        return not self.left


@dataclass
class _Stored:
    """Totals of the objects of a shard."""

    count: int = 0
    size_bytes: int = 0
    newest_ms: int = 0


@dataclass
class LakeCheck:
    """Checks the collections of a lake."""

    stores: Stores
    url: str
    catalog: Catalog
    leftovers: Leftovers
    env: Env
    config: Config
    deep: bool
    repair: bool
    watch: Watch | None
    _found: list[Finding] = field(default_factory=list)
    _checked: list[Checked] = field(default_factory=list)

    def some(self, names: Iterable[str]) -> FsckReport:
        """Check the collections of these names, and their groups.

        If the catalog cannot be read, check the catalog instead.
        """
        self._mend_logs([SHARD_ID])
        try:
            listing: Listing | None = self.catalog.read()
        except _UNREADABLE:
            listing = self._listing(set(self.stores.log.keys()))
        if listing is None:
            return self._report()
        shards = listing.shards
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if shards.get(name) is None:
                raise CollectionNotFound(not_found(name, shards))
        ids = [shards[name] or "" for name in wanted]
        plain = list(filter(is_plain, ids))
        self._mend_logs(plain)
        groups = self._groups(plain)
        self._mend_logs(groups)
        for name, shard_id in zip(wanted, ids, strict=True):
            self._collection(name, shard_id)
        for group in groups:
            self._checked.append(self._shard(group, f"group {group}"))
        return self._report()

    def _groups(self, shard_ids: Iterable[str]) -> list[str]:
        """The groups of some collections: reads of these need them. A read of each log."""
        found: dict[str, None] = {}
        for shard_id in shard_ids:
            with suppress(*_UNREADABLE, CollectionDropped):  # the check of the collection reports it
                known = self._opened(shard_id)
                if known is not None and known.state.group:
                    found[known.state.group] = None
        return list(found)

    def all(self) -> FsckReport:
        """Check the catalog, all collections, and the other objects in the stores."""
        # List objects before the logs: so objects of a shard that is made meanwhile are not in the listing.
        stored = self._stored()
        shards = set(self.stores.log.keys())
        self._mend_logs(sorted(shards))
        listing = self._listing(shards) or Listing(0, {})
        for name, shard_id in sorted(listing.shards.items()):
            if shard_id is not None:
                self._collection(name, shard_id)
        named = {shard_id for shard_id in listing.shards.values() if shard_id is not None}
        for shard_id in sorted(shards - named - {SHARD_ID}):
            self._unnamed(shard_id)
        # If a log or the catalog was lost, its rows may still be in objects that nothing leads to: keep
        # these.
        lost = any(one.kind in _LOST for one in self._found)
        for shard_id in sorted(stored.keys() - shards - named - {SHARD_ID}):
            self._unknown(shard_id, stored[shard_id], removable=not lost)
        self._ghosts({shard_id: name for name, shard_id in listing.shards.items() if shard_id is not None})
        return self._report()

    def _report(self) -> FsckReport:
        return FsckReport(
            tuple(self._found),
            len(self._checked),
            sum(one.parts for one in self._checked),
            sum(one.rows for one in self._checked),
            sum(one.size_bytes for one in self._checked),
        )

    def _stored(self) -> dict[str, _Stored]:
        """The objects of each shard. Costs one listing of everything."""
        found: dict[str, _Stored] = {}
        for info in self.stores.blobs.list():
            if marked(info.name) is not None:
                continue  # Of a copy that is under way, or that was given up: `collect` removes it.
            one = found.setdefault(info.name.partition("/")[0], _Stored())
            one.count += 1
            one.size_bytes += info.size_bytes
            one.newest_ms = max(one.newest_ms, info.modified_ms)
        return found

    def _listing(self, shards: set[str]) -> Listing | None:
        """Check the catalog, and read it; None, with a finding, if it cannot be read."""
        if SHARD_ID not in shards:
            if shards:
                message = f"there is no catalog, and {len(shards)} shards that it should name"
                self._tell("catalog-missing", SHARD_ID, message)
            return None
        self._shard(SHARD_ID, "")
        try:
            return self.catalog.read()
        except _UNREADABLE as error:
            self._tell("catalog-unreadable", SHARD_ID, f"no collection can be found by its name: {error}")
            return None

    def _mend_logs(self, shards: Iterable[str]) -> None:
        """Repair the logs first (with `repair`), because everything else is read through them."""
        for shard_id in shards if self.repair else ():
            self._found += self._check(shard_id, "").mend_log()

    def _check(self, shard_id: str, name: str) -> ShardCheck:
        return ShardCheck(
            shard_id, name, self.stores, url=self.url, env=self.env, config=self.config, deep=self.deep
        )

    def _shard(self, shard_id: str, name: str) -> Checked:
        check = self._check(shard_id, name)
        watch = self.watch
        told = None if watch is None else lambda done, total: watch(name or shard_id, done, total)
        checked = check.run(repair=self.repair, watch=told)
        self._found += checked.findings
        return checked

    def _collection(self, name: str, shard_id: str) -> None:
        found = len(self._found)
        if not is_plain(shard_id):
            message = f"the catalog says that {shard_id[:60]!r} is its shard, which is no name of one"
            self._tell("catalog-row", SHARD_ID, message, name)
            return
        checked = self._shard(shard_id, name)
        if checked.findings and shard_id not in self.catalog.read().shards.values():
            # It was dropped meanwhile, perhaps under another name: the findings are due to that.
            del self._found[found:]
            return
        self._checked.append(checked)
        if checked.state is None:
            return
        self._shared(name, checked.state)
        if checked.state.dropped:
            self._dropped(name, shard_id, checked.state.committed_ms)

    def _unnamed(self, shard_id: str) -> None:
        """Check a shard that no name leads to: another one took its name, or a drop or a crash left it."""
        try:
            # Look for a tombstone first: the rollup that opening needs may have gone before the log.
            dropped_ms = self.leftovers.ending(shard_id).dropped_ms()
            known = self._tombstone(shard_id) if dropped_ms is not None else self._opened(shard_id)
            is_needed = known is not None and self.leftovers.ending(shard_id).is_needed(known.state)
            if dropped_ms is not None and not is_needed:
                self._dropped("", shard_id, dropped_ms)
                return
        except CollectionDropped:
            return  # It was dropped meanwhile.
        except _UNREADABLE as error:
            found = len(self._found)
            if self._shard(shard_id, "").state is None:
                del self._found[found:]
                message = f"no name leads to it, and it cannot be read: {error}"
                self._tell("unnamed-shard", shard_id, message)
            return
        if known is None:
            return
        state = known.state
        if state.dropped:
            # It must still have what its forks need, and nothing else.
            self._shard(shard_id, "")
            self._shared("", state)
            return
        if is_group(state):
            self._checked.append(self._shard(shard_id, f"group {shard_id}"))
            return
        if self._older(state.committed_ms, state.agreed.upload_ms) and not self._is_named(shard_id):
            rows = state.spine.totals.rows
            message = (
                f"no name leads to it, and it holds {rows} updates up to {state.domain.text(state.upper)}"
            )
            # A shard at its first state was never finished and holds nothing acknowledged.
            unfinished = state.seqno == 0
            self._tell("unfinished-shard" if unfinished else "unnamed-shard", shard_id, message)
            ending = self.leftovers.ending(shard_id)
            if unfinished and self.repair and ending.abandon(state.committed_ms):
                self.leftovers.remove(ending)
                self._repaired()

    def _is_named(self, shard_id: str) -> bool:
        """Whether a name leads to a shard by now: it may have got one since this check read the catalog."""
        try:
            return shard_id in self.catalog.read().shards.values()
        except _UNREADABLE:
            return False  # `_listing` has told it

    def _opened(self, shard_id: str) -> LoadedVersion | None:
        return History(shard_id, self.stores, self.env).open()

    def _tombstone(self, shard_id: str) -> LoadedVersion | None:
        """Open a tombstone; None if it is being deleted, which does not happen while it has forks."""
        try:
            return self._opened(shard_id)
        except CollectionDropped:
            return None

    def _shared(self, name: str, state: ShardState) -> None:
        """Check that a shard and its forks, and a fork and its origin, refer to each other."""
        for fork_id, fork in sorted(state.forks.items()):
            if not self._older(fork.noted_ms, state.agreed.upload_ms):
                continue
            if self.stores.log.head(fork_id) is None:
                message = f"parts of {state.shard_id} are kept for this fork of it, which was never made"
                self._tell("unfinished-fork", fork_id, message, name)
                fork_pins = ForkPins(self.stores, self.env, self.config)
                if self.repair and fork_pins.forget_uncreated(state):
                    self._repaired()
        if state.origin is None or (state.dropped and not state.forks) or not is_borrower(state):
            return
        try:
            origin = self._tombstone(state.origin.shard_id)
            # Read the fork after its origin: a fork releases its origin before the origin forgets it.
            now = self._tombstone(state.shard_id)
        except _UNREADABLE as error:
            self._tell("fork-unknown", state.shard_id, f"its origin cannot be read: {error}", name)
            return
        known = origin is not None and state.shard_id in origin.state.forks
        if not known and now is not None and not now.state.dropped and is_borrower(now.state):
            message = (
                f"it needs parts of {state.origin.shard_id}, which does not keep them: merge this fork now"
            )
            self._tell("fork-unknown", state.shard_id, message, name)

    def _dropped(self, name: str, shard_id: str, dropped_ms: int) -> None:
        """Report a tombstone that should be gone by now."""
        if not self._older(dropped_ms, self._agreed().garbage_ms):
            return
        message = f"it was dropped at {dropped_ms} ms, and some of it is still there"
        self._tell("half-dropped", shard_id, message, name)
        if self.repair:
            if name:
                self.catalog.unname(shard_id, name)
            self.leftovers.remove(self.leftovers.ending(shard_id))
            self._repaired()

    def _unknown(self, shard_id: str, stored: _Stored, *, removable: bool) -> None:
        if not self._older(stored.newest_ms, self._agreed().upload_ms):
            return
        message = f"{stored.count} objects of {stored.size_bytes} bytes belong to a shard that has no log"
        self._tell("unknown-shard", shard_id, message)
        if self.repair and removable and self.stores.log.head(shard_id) is None:
            remove_listed(self.stores.blobs, list(self.stores.blobs.list(f"{shard_id}/")))
            self._repaired()

    def _ghosts(self, names: Mapping[str, str]) -> None:
        """Report log entries that were written again after their removal; remove those of deleted logs."""
        ghosts = self.stores.log.ghosts()
        gone = {ghost.key for ghost in ghosts if ghost.is_gone}
        for key in sorted(gone) if self.repair else ():
            self.stores.log.delete(key)
        left = self.stores.log.ghosts() if self.repair and gone else ghosts
        for ghost in sorted(ghosts, key=lambda one: (one.key, one.seqno)):
            goes = "--repair removes it" if ghost.is_gone else "it goes with a later truncation of the log"
            message = f"a write landed late, after this entry had been removed; it has no effect, and {goes}"
            self._tell("ghost-entry", f"{ghost.key}@{ghost.seqno}", message, names.get(ghost.key, ""))
            if ghost not in left:
                self._repaired()

    def _repaired(self) -> None:
        """Mark the newest finding as repaired."""
        self._found[-1] = replace(self._found[-1], repaired=True)

    def _older(self, then_ms: int, age_ms: Callable[[int], int]) -> bool:
        """Whether something is older than an age setting, as it is in force now."""
        now_ms = self.env.clock.now_ms()
        return then_ms + age_ms(now_ms) < now_ms

    def _agreed(self) -> Agreed:
        """The settings of the lake; the defaults if the catalog is lost: then nothing is removed."""
        try:
            return self.catalog.agreed()
        except _UNREADABLE:
            return AS_MADE

    def _tell(self, kind: str, object_: str, message: str, name: str = "") -> None:
        self._found.append(Finding(kind, name, object_, message))
