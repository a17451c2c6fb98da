"""Copies of collections to other lakes, each of one consistent version.

Owns the name of the copy: it is given last, by one change of the catalog, so that readers of the other
lake see all of it or nothing. A copy that failed can simply be repeated.
"""

from dataclasses import dataclass

from tidelake.config import Config
from tidelake.env import Env
from tidelake.lake.catalog.catalog import Catalog
from tidelake.lake.catalog.publishing import check_free, publish_name
from tidelake.model.frontier import Frontier
from tidelake.shard.copying.copy import ShardCopy, Watch
from tidelake.shard.shard import Shard
from tidelake.store.url import Stores


@dataclass(frozen=True)
class BackupReport:
    """What a backup copied.

    Attributes:
        name: name of the copy.
        since: since of the copy, as in the source.
        upper: upper of the copy, as in the source.
        parts: number of parts copied.
        size_bytes: total size of these parts in bytes.
        rows: updates in these parts and in the state itself.
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
        source: the shard to copy.
        name: name for the copy.
        stores: stores of the other lake.
        catalog: catalog of the other lake.
        env: of this process.
        config: of this process.
        watch: called after each part.

    Raises:
        CollectionExists: the name is taken, or was taken meanwhile; nothing is left of the copy.
        CollectionDropped: this process stalled before it confirmed the copy, and another one collected it.
    """
    check_free(catalog.look([name]), name)
    shard_id = env.ids.fresh()
    copy = ShardCopy(source, stores, env, catalog.known_agreed())
    copied = copy.run(shard_id, f"backup as {name}", watch)

    def discard() -> None:
        # The log first: `collect` finds and removes objects whose shard has no log.
        stores.log.delete(shard_id)
        copy.discard()

    publish_name(shard_id, name, stores, catalog, env=env, config=config, discard=discard)
    state = copied.state
    rows = state.spine.totals.rows + state.staged.totals.rows
    return BackupReport(name, state.since, state.upper, copied.parts, copied.size_bytes, rows)
