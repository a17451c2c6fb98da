"""Removing what interrupted drops and creations have left in the stores.

There are three kinds: tombstones; unnamed shards that an interrupted `create` or copy left; and objects
whose shard has no log. Each is recognized by facts that can no longer change. Must not touch anything that a
name leads to.

INVARIANT: a shard is made a tombstone by compare-and-set before it is deleted. If it may never have had a
name, no process can name it any more when its log is deleted: a name never leads to nothing. As long as the
catalog has never named anything, objects without a log stay: all logs, and the catalog, may have been lost.
"""

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import BlobNotFound, CorruptionError, UnknownFormat
from tidelake.lake.catalog.catalog import SHARD_ID, Catalog
from tidelake.model import names
from tidelake.shard.engine.history import check_reaches
from tidelake.shard.upkeep.ending import Ending, Removed, remove_listed
from tidelake.store.protocols import BlobInfo
from tidelake.store.url import Stores

DAMAGED = (CorruptionError, UnknownFormat, BlobNotFound)
"""The errors that opening a damaged shard raises. Opening a sound shard raises none of them."""


class Leftovers:
    """Finds and removes the remains of interrupted work in one lake. Several processes may do so at once."""

    def __init__(self, stores: Stores, env: Env, config: Config, catalog: Catalog) -> None:
        self._stores, self._env, self._config, self._catalog = stores, env, config, catalog

    def ending(self, shard_id: str) -> Ending:
        """The `Ending` of one shard, which drops and removes it."""
        return Ending(self._stores, self._env, self._config, shard_id)

    def remove(self, ending: Ending) -> Removed:
        """Remove a tombstone that has no name, also if another process may be about to name it."""
        if ending.is_newborn():
            self._catalog.rule_out(ending.shard_id)
        return ending.remove()

    def tombstones(self) -> Removed:
        """Finish drops, and remove shards that never got a name. Lists all keys, and one call for each."""
        # List the keys before reading the catalog: a listed shard that was named by then is in the catalog.
        keys = sorted({*self._stores.log.keys()} - {SHARD_ID})
        shards = self._catalog.read().shards
        named = {shard_id: name for name, shard_id in shards.items() if shard_id is not None}
        now_ms = self._env.clock.now_ms()
        made_before_ms = now_ms - self._catalog.known_agreed().upload_ms(now_ms)
        removed, lent = Removed(), list[Ending]()
        for key in keys:
            ending = self.ending(key)
            try:
                if ending.is_tombstone():
                    if key in named:
                        self._catalog.unname(key, named[key])
                elif key in named or not ending.abandon(made_before_ms):
                    continue
                gone = self.remove(ending)
            except DAMAGED as error:
                # A damaged shard must not block the others.
                removed = removed.plus(Removed(damaged=(f"{named.get(key, key)}: {error}",)))
                continue
            removed = removed.plus(gone)
            lent += [] if gone.shards else [ending]
        return removed.plus(_unlent(lent)) if removed.shards else removed

    def objects(self) -> Removed:
        """Remove old parts and rollups whose shard has no log. Lists the whole store.

        Objects of a shard that a name leads to stay: its log was lost, and they may be all that is left.
        """
        agreed, now_ms = self._catalog.agreed(), self._env.clock.now_ms()
        written_before_ms = now_ms - agreed.upload_ms(now_ms)
        # List objects before logs: a shard has a log before it has objects. A shard's age is that of its
        # newest object: the first objects of a copy in progress may be old.
        found: dict[str, list[BlobInfo]] = {}
        for info in self._stores.blobs.list():
            if _is_ours(info.name):
                owner = names.marked(info.name) or info.name.partition("/")[0]
                found.setdefault(owner, []).append(info)
        old = {
            shard_id: infos
            for shard_id, infos in found.items()
            if max(info.modified_ms for info in infos) <= written_before_ms
        }
        if not old:
            return Removed()
        keys, listing = {*self._stores.log.keys()}, self._catalog.read()
        if not listing.upper:
            return Removed()
        removed = Removed()
        lost = old.keys() - keys - {*listing.shards.values()}
        if lost and self._stores.clock is not None:
            self._check_logs({key: found[key] for key in found.keys() & keys})
        # What remains of a copy that has its name by now.
        done = [info for shard_id in old.keys() & keys for info in old[shard_id] if names.marked(info.name)]
        for info in done:
            self._stores.blobs.delete(info.name)
        for shard_id in lost:
            removed = removed.plus(remove_listed(self._stores.blobs, old[shard_id]))
            self._stores.blobs.prune(shard_id)
        return removed

    def _check_logs(self, found: dict[str, list[BlobInfo]]) -> None:
        """Check that logs which machines share have lost nothing: a database may have been restored.

        A call for each log, once there is something to remove.
        """
        for key, infos in found.items():
            head = self._stores.log.head(key)
            if head is not None:
                check_reaches(key, head.seqno, (info.name for info in infos))


def _unlent(endings: list[Ending]) -> Removed:
    """Remove tombstones whose forks are gone by now; repeat, since each may be the last fork of another."""
    removed, left = Removed(), list[Ending]()
    for ending in endings:
        gone = ending.remove()
        removed = removed.plus(gone)
        left += [] if gone.shards else [ending]
    return removed.plus(_unlent(left)) if removed.shards and left else removed


def _is_ours(name: str) -> bool:
    """Whether an object is a part, a rollup or a mark of Tidelake, not a foreign file."""
    found = (names.uploaded_at(name), names.rolled_up_at(name), names.marked(name))
    return any(one is not None for one in found)
