"""Copies of collections in other lakes, each consistent at a time.

Owns the name of the copy: it is given last, by one change of the catalog, so that readers of the other
lake see all of it or nothing. Repeating a copy that failed is all that there is to do about it.
"""

from dataclasses import dataclass

from tidelake.config import Config
from tidelake.env import Env
from tidelake.lake.catalog import Catalog
from tidelake.lake.christening import check_free, give_name
from tidelake.model.frontier import Frontier
from tidelake.shard.checking.copy import ShardCopy, Watch
from tidelake.shard.shard import Shard
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
    check_free(catalog.look([name]), name)
    shard_id = env.ids.fresh()
    copy = ShardCopy(source, stores, env, catalog.known_agreed())
    copied = copy.run(shard_id, f"backup as {name}", watch)

    def discard() -> None:
        # The log first: what is left of a shard without one is found.
        stores.log.delete(shard_id)
        copy.discard()

    give_name(shard_id, name, stores, catalog, env=env, config=config, discard=discard)
    state = copied.state
    rows = state.spine.totals.rows + state.staged.totals.rows
    return BackupReport(name, state.since, state.upper, copied.parts, copied.size_bytes, rows)
