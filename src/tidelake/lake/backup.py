"""Copies of collections in other lakes, each consistent at a time.

Owns the name of the copy: it is given last, by one change of the catalog, so that readers of the other
lake see all of it or nothing. Repeating a copy that failed is all that there is to do about it.
"""

from dataclasses import dataclass

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionDropped, CollectionExists, CollectionNotFound
from tidelake.lake.catalog import Catalog, Listing
from tidelake.model.frontier import Frontier
from tidelake.shard.checking.copy import ShardCopy, Watch
from tidelake.shard.history import History
from tidelake.shard.machine import Machine
from tidelake.shard.shard import Shard
from tidelake.state import dropping
from tidelake.store.url import Stores


@dataclass(frozen=True)
class BackupReport:
    """A copy of a collection.

    Attributes:
        name: of the copy.
        since: its contents can be read from here on.
        upper: and up to here, as in the source.
        parts: that were copied.
        size_bytes: theirs.
        rows: updates in all of them, and in the state itself.
    """

    name: str
    since: Frontier
    upper: Frontier
    parts: int
    size_bytes: int
    rows: int


def copy_collection(
    source: Shard,
    name: str,
    stores: Stores,
    catalog: Catalog,
    *,
    env: Env,
    config: Config,
    watch: Watch | None = None,
) -> BackupReport:
    """Copy a shard into other stores, and give it a name there.

    Args:
        source: of the copy.
        name: that the copy is to have.
        stores: of the other lake.
        catalog: of the other lake.
        env: of whoever copies.
        config: of whoever copies.
        watch: is told after each part.

    Raises:
        CollectionExists: the name is taken, or became so meanwhile; nothing is left of the copy.
        CollectionDropped: this process stalled before it could acknowledge the copy, and others collected it.
    """
    _check_free(catalog.look([name]), name)
    shard_id = env.ids.fresh()
    copy = ShardCopy(source, stores, env, config)
    copied = copy.run(shard_id, f"backup as {name}", watch)
    while True:
        listing = catalog.look([name])
        try:
            _check_free(listing, name)
        except CollectionExists:
            # The log first: what is left of a shard without one is found.
            stores.log.delete(shard_id)
            copy.discard()
            raise
        if catalog.set(listing, name, shard_id):
            try:
                _confirm(shard_id, name, stores, env, config)
            except CollectionDropped:
                catalog.unname(shard_id, name)
                raise
            state = copied.state
            rows = state.spine.totals.rows
            return BackupReport(name, state.since, state.upper, copied.parts, copied.size_bytes, rows)


def _confirm(shard_id: str, name: str, stores: Stores, env: Env, config: Config) -> None:
    """Acknowledge the copy: until then it is collected if this process stalls for longer than uploads may.

    Raises:
        CollectionDropped: it did.
    """
    machine = Machine(History(shard_id, stores, env), config, env)
    machine.title = name
    try:
        machine.run(dropping.confirm)
    except CollectionNotFound as error:
        raise CollectionDropped(name) from error


def _check_free(listing: Listing, name: str) -> None:
    if name in listing.shards:
        what = "exists there" if listing.shards[name] is not None else "was dropped or renamed there"
        raise CollectionExists(f"a collection {name!r} {what}: give the copy another name")
