"""The name of a shard that was made whole before anybody knew of it.

The name is given by one change of the catalog, so that readers see all of it or nothing; then the shard
commits that it has one, and until then it is taken for what a crash has left once it is old. Whoever takes
it for that makes it a tombstone, moves the catalog on, and only then deletes it: so a name that is given
after a look at the catalog and then one at the shard leads to a shard.
"""

from collections.abc import Callable
from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionDropped, CollectionExists, CollectionNotFound
from tidelake.lake.catalog import Catalog, Listing
from tidelake.shard.history import History
from tidelake.shard.machine import Machine
from tidelake.state import agreeing, dropping
from tidelake.state.commands import Command
from tidelake.store.url import Stores


def check_free(listing: Listing, name: str, *, allow_recreate: bool = False) -> None:
    """Check that a shard may get a name.

    Args:
        listing: knows the name, if there is one.
        name: of the collection to be.
        allow_recreate: whether the name may be one that was dropped or given up.

    Raises:
        CollectionExists: it is taken.
    """
    if name in listing.shards and not (allow_recreate and listing.shards[name] is None):
        what = "exists there" if listing.shards[name] is not None else "was dropped or renamed there"
        raise CollectionExists(f"a collection {name!r} {what}: give the new one another name")


def give_name(
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
        shard_id: of the shard, which nobody has written to.
        name: that it is to have.
        stores: where it is.
        catalog: of the same lake.
        env: of whoever made it.
        config: of whoever made it.
        discard: removes the shard, if the name became taken meanwhile.
        allow_recreate: see `check_free`.

    Raises:
        CollectionExists: the name was taken meanwhile; the shard is discarded.
        CollectionDropped: this process stalled before it could acknowledge the shard; others collected it.
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
        # It was changed after this shard was begun.
        machine.run(partial(agreeing.adopt, agreed=agreed))


def confirm(run: Callable[[Command[None]], object], shard_id: str, name: str, catalog: Catalog) -> None:
    """Acknowledge a shard that has its name: until then it is collected if this process stalls for too long.

    Args:
        run: carries out a command on the shard.
        shard_id: of it.
        name: that it was given.
        catalog: that gave it.

    Raises:
        CollectionDropped: it did stall. The name leads nowhere.
    """
    try:
        run(dropping.confirm)
    except (CollectionDropped, CollectionNotFound) as error:
        catalog.unname(shard_id, name)
        raise CollectionDropped(name) from error
