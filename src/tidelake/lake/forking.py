"""Forks of collections: a shard that shares the parts of another one, and gets a name when it is whole."""

from tidelake.lake.catalog import Catalog
from tidelake.lake.christening import check_free, give_name
from tidelake.lake.leftovers import Leftovers
from tidelake.model.time import Time
from tidelake.shard.checking.fork import fork_shard
from tidelake.shard.shard import Shard


def fork_collection(
    source: Shard,
    name: str,
    catalog: Catalog,
    leftovers: Leftovers,
    as_of: Time | None,
    *,
    allow_recreate: bool,
) -> str:
    """Fork a shard, and give the fork a name; its id. See `Lake.fork`.

    Args:
        source: to be forked.
        name: that the fork is to have.
        catalog: of the lake.
        leftovers: of the lake; end the fork if its name is taken meanwhile.
        as_of: the last closed time of the fork; None: all that is closed.
        allow_recreate: also take a name that was dropped or given up.
    """
    check_free(catalog.look([name]), name, allow_recreate=allow_recreate)
    shard_id = source.env.ids.fresh()
    fork_shard(source, shard_id, source.env, as_of)

    def discard() -> None:
        ending = leftovers.ending(shard_id)
        ending.drop(force=True)
        ending.remove()

    give_name(
        shard_id,
        name,
        source.stores,
        catalog,
        env=source.env,
        config=source.spec.config,
        discard=discard,
        allow_recreate=allow_recreate,
    )
    return shard_id
