"""Where tests reach below the interface: what users cannot ask for, and tests of crashes and damage must."""

from collections.abc import Callable
from typing import Any

from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.state.commands import Outcome
from tidelake.state.state import ShardState
from tidelake.store.url import Stores


def run(collection: Collection, command: Callable[[ShardState, int], Outcome[Any]]) -> Any:
    """Decide a command of the state, as the methods of a collection do."""
    return collection._shard.run(command)


def write_rollup(collection: Collection) -> bool:
    """Store the whole state now, however few deltas there are since the last one; whether it was added."""
    return collection._shard.write_rollup()


def stores(lake: Lake) -> Stores:
    """What a lake is stored in."""
    return lake._stores
