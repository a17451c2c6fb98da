"""Publishing the name of a shard that was completed before any reader could see it.

One change of the catalog gives the name, so that readers see all of the shard or nothing. Then the shard
commits that it has a name (`confirm`). An unconfirmed shard that is old counts as the remains of a crash: a
collector makes it a tombstone, moves the catalog's upper, and only then deletes it. So a process that first
reads the catalog, then checks the shard, then gives the name, never names a shard that is deleted.
"""

from collections.abc import Callable
from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionDropped, CollectionExists, CollectionNotFound
from tidelake.lake.catalog.catalog import Catalog, Listing
from tidelake.shard.engine.history import History
from tidelake.shard.engine.machine import Machine
from tidelake.state.core.commands import Command
from tidelake.state.life import agreeing, dropping
from tidelake.store.url import Stores


def check_free(listing: Listing, name: str, *, allow_recreate: bool = False) -> None:
    """Check that a name is free.

    Args:
        listing: the catalog, read for this name.
        name: name for the new collection.
        allow_recreate: also allow a name that was dropped or given up.

    Raises:
        CollectionExists: it is taken.
    """
    if name in listing.shards and not (allow_recreate and listing.shards[name] is None):
        what = "exists there" if listing.shards[name] is not None else "was dropped or renamed there"
        raise CollectionExists(f"a collection {name!r} {what}: give the new one another name")


def publish_name(
    shard_id: str,
    name: str,
    stores: Stores,
    catalog: Catalog,
    *,
    env: Env,
    config: Config,
    discard: Callable[[], object],
    allow_recreate: bool = False,
) -> None:
    """Give a shard its name. A few store calls.

    Args:
        shard_id: id of the shard; no other process has written to it.
        name: name for the shard.
        stores: stores that hold the shard.
        catalog: catalog of the same lake.
        env: of this process.
        config: of this process.
        discard: removes the shard if the name was taken meanwhile.
        allow_recreate: see `check_free`.

    Raises:
        CollectionExists: the name was taken meanwhile; the shard is discarded.
        CollectionDropped: this process stalled before it confirmed the shard, and another one collected it.
    """
    while True:
        listing = catalog.look([name])
        try:
            check_free(listing, name, allow_recreate=allow_recreate)
        except CollectionExists:
            discard()
            raise
        if not History(shard_id, stores, env).is_alive():
            raise CollectionDropped(name)
        if catalog.set(listing, name, shard_id):
            break
    machine = Machine(History(shard_id, stores, env), config, env)
    machine.title = name
    confirm(machine.run, shard_id, name, catalog)
    agreed = catalog.known_agreed()
    if machine.known().state.agreed.revision < agreed.revision:
        # The settings were changed after this shard was begun.
        machine.run(partial(agreeing.adopt, agreed=agreed))


def confirm(run: Callable[[Command[None]], object], shard_id: str, name: str, catalog: Catalog) -> None:
    """Commit in a shard that it has its name. Until then it is collected if this process stalls for too long.

    Args:
        run: carries out a command on the shard.
        shard_id: id of the shard.
        name: the name that it was given.
        catalog: catalog of the lake.

    Raises:
        CollectionDropped: the process did stall, and the shard was collected. The name is removed.
    """
    try:
        run(dropping.confirm)
    except (CollectionDropped, CollectionNotFound) as error:
        catalog.unname(shard_id, name)
        raise CollectionDropped(name) from error
