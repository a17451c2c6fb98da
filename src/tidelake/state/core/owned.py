"""Shards that have an owner: a program that alone writes to them, such as the refresh of a view.

Owns what such a shard remembers of its owner, and the refusal of all others. What a definition says is the
owner's business; here it is text.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from tidelake.errors import CollectionIsView
from tidelake.model.frontier import Frontier
from tidelake.state.core.state import Owned, ShardState

_VIEW = "view "
INDEX = "index"
"""The token of the hold that an index has on its collection: so the collection tells which indexes it has."""


def owner_of(view_id: str) -> str:
    """What the writes of a view say of themselves, and how its holds are called."""
    return f"{_VIEW}{view_id}"


def is_owner(name: str) -> bool:
    """Whether this may be the name of a hold of a view."""
    return name.startswith(_VIEW)


def indexes_of(state: ShardState) -> list[str]:
    """The ids of the indexes of a shard."""
    holds = state.critical.items()
    return [name.removeprefix(_VIEW) for name, hold in holds if is_owner(name) and hold.token == INDEX]


def with_owner(first: ShardState, owned: Owned, since: Frontier) -> ShardState:
    """The first state of a shard that has an owner. Times before `since` are never read."""
    return replace(first, owned=owned, since=first.since.join(since), retained=first.retained.join(since))


def not_for(state: ShardState, owner: str) -> CollectionIsView | None:
    """The error for a change that the owner of the shard does not make; None: it does, or there is none."""
    strange = state.owned is not None and state.owned.by != owner
    return CollectionIsView(state.shard_id) if strange else None


def parts_owner(name: str) -> str:
    """The id of the view that a collection of this name belongs to; empty: the name is no such one."""
    owner, colon, _ = name.partition(": ")
    return owner.removeprefix(_VIEW) if colon and is_owner(owner) else ""


def without_parts(names: Iterable[str], ids: Container[str | None]) -> Iterator[str]:
    """The names of collections, of which views with one of these ids keep others beside themselves."""
    return (name for name in names if parts_owner(name) not in ids)


def is_part(state: ShardState) -> bool:
    """Whether the shard belongs to another one, as the state of a view: an owner is called by its own id."""
    return state.owned is not None and not owns(state.owned.by, state.shard_id)


def owns(owner: str, shard_id: str) -> bool:
    """Whether an owner is called by the id of this shard."""
    return owner.endswith(f" {shard_id}")
