"""Shards that have an owner: a program that alone writes to them, such as the refresh of a view.

Owns what such a shard remembers of its owner, and the refusal of all others. What a definition says is the
owner's business; here it is text.
"""

from tidelake.errors import CollectionDropped, CollectionIsView, UsageError
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.state import Owned, ShardState


def own(state: ShardState, _now_ms: int, owned: Owned, since: Frontier) -> Outcome[None]:
    """Give an empty shard an owner. History begins at `since`: earlier times can never be read."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.owned == owned:
        return NoOp(None)
    if state.owned is not None or state.upper != state.minimum or state.staged:
        return Refused(UsageError("only an empty collection can get an owner"))
    retained = state.retained.join(since)
    moved = None if retained == state.retained else Move(state.retained, retained)
    return Commit(Edits(owned=owned, retained=moved), None)


def not_for(state: ShardState, owner: str) -> CollectionIsView | None:
    """The error for a change that the owner of the shard does not make; None: it does, or there is none."""
    strange = state.owned is not None and state.owned.by != owner
    return CollectionIsView(state.shard_id) if strange else None
