"""Where tests reach below the interface: what users cannot ask for, and tests of crashes and damage must."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.lake.catalog.catalog import Catalog
from tidelake.shard.engine.shard import Shard
from tidelake.state.core.commands import Outcome
from tidelake.state.core.state import ShardState
from tidelake.store.url import Stores

S = TypeVar("S")


def shard(collection: Collection | Catalog) -> Shard:
    """The shard of a collection, or that of the names of a lake."""
    return collection._shard


def catalog(lake: Lake) -> Catalog:
    """The names of a lake, and the handles of its shards."""
    return lake._catalog


def run(collection: Collection, command: Callable[[ShardState, int], Outcome[Any]]) -> Any:
    """Decide a command of the state, as the methods of a collection do."""
    return collection._shard.run(command)


def write_rollup(collection: Collection) -> bool:
    """Store the whole state now, however few deltas there are since the last one; whether it was added."""
    return collection._shard.write_rollup()


def stores(lake: Lake) -> Stores:
    """What a lake is stored in."""
    return lake._stores


def replaceable(stores: Stores) -> Stores:
    """Stores that call what the given ones have at that moment, so that a test may replace their methods.

    A lake binds the methods of its stores when it is opened.
    """
    return replace(stores, blobs=_late(stores.blobs), log=_late(stores.log))


def _late(store: S) -> S:
    class Late:
        def __getattr__(self, name: str) -> object:
            if not callable(getattr(store, name)):
                return getattr(store, name)
            return lambda *args: getattr(store, name)(*args)  # noqa: PLW0108 - looked up at each call

    return cast(S, Late())
