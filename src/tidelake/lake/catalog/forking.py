"""Forks of collections: a shard that shares the parts of another one, and gets a name when it is complete.

A fork of an earlier version copies its parts and shares nothing: the source may be damaged, and is only read.
"""

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import BlobNotFound, CorruptionError, InternalError, UsageError
from tidelake.lake.catalog.catalog import Catalog
from tidelake.lake.catalog.leftovers import Leftovers
from tidelake.lake.catalog.publishing import check_free, publish_name
from tidelake.model.time import Time
from tidelake.shard.care.copy import copy_state
from tidelake.shard.care.fork import fork_shard
from tidelake.shard.care.replay import state_at
from tidelake.shard.engine.shard import Shard
from tidelake.state.core.invariants import check_state
from tidelake.store.url import Stores


def fork_collection(
    source: Shard,
    name: str,
    catalog: Catalog,
    leftovers: Leftovers,
    as_of: Time | None,
    *,
    allow_recreate: bool,
) -> str:
    """Fork a shard, and give the fork a name. Returns its id. See `Lake.fork`."""
    check_free(catalog.look([name]), name, allow_recreate=allow_recreate)
    shard_id = source.env.ids.fresh()
    fork_shard(source, shard_id, source.env, as_of)

    def discard() -> None:
        ending = leftovers.ending(shard_id)
        ending.drop(force=True)
        ending.remove()

    publish_name(
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


def fork_version(
    name: str,
    *,
    shard_id: str,
    title: str,
    seqno: int,
    stores: Stores,
    catalog: Catalog,
    leftovers: Leftovers,
    env: Env,
    config: Config,
    allow_recreate: bool,
) -> str:
    """Fork an earlier version of a shard, and give the fork a name. Returns its id. See `Lake.fork`."""
    check_free(catalog.look([name]), name, allow_recreate=allow_recreate)
    state = state_at(shard_id, stores, seqno)
    if state is None or state.dropped:
        raise UsageError(f"the log of {title!r} leads to no version {seqno}: tidelake fsck names one")
    try:
        check_state(state)
    except InternalError as error:
        raise CorruptionError(f"{shard_id}@{seqno}", str(error)) from error
    made = env.ids.fresh()
    try:
        copy_state(state, stores, made, env)
    except BlobNotFound as error:
        raise UsageError(
            f"version {seqno} of {title!r} needs part {error.name!r}, which was collected: take a later "
            "version"
        ) from error

    def discard() -> None:
        ending = leftovers.ending(made)
        ending.drop(force=True)
        ending.remove()

    publish_name(
        made, name, stores, catalog, env=env, config=config, discard=discard, allow_recreate=allow_recreate
    )
    return made
