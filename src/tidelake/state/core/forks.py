"""What a shard keeps for its forks, and what a fork borrows from its origin.

Owns these questions about a state; `tidelake.state.life.forking` explains forks, and has their commands.
"""

from collections.abc import Iterator

from tidelake.model import names
from tidelake.model.batch import Part
from tidelake.state.core.state import Origin, ShardState


def lender(state: ShardState) -> Origin | None:
    """The origin of a fork that may need its parts; None: of any other shard."""
    return None if state.origin is None or state.origin.freed else state.origin


def fork_pins(state: ShardState) -> list[int]:
    """The versions whose parts are kept for forks."""
    return [fork.seqno for fork in state.forks.values() if not fork.freed]


def is_borrowed(name: str, shard_id: str) -> bool:
    """Whether this is the name of a part that another shard keeps and deletes."""
    return names.owner(name) not in (None, shard_id)


def borrowed_parts(state: ShardState) -> Iterator[Part]:
    """The stored parts that a state names for its readers and that are not its own."""
    batches = [one.batch for one in (*state.spine, *state.staged.batches.values())]
    for part in (part for one in (*batches, *state.bases) for part in one.parts()):
        if part.inline is None and is_borrowed(part.name, state.shard_id):
            yield part


def is_borrower(state: ShardState) -> bool:
    """Whether this state, or an earlier one that is still read, needs a borrowed part. Costs O(state)."""
    if any(True for _ in borrowed_parts(state)):
        return True
    return any(is_borrowed(name, state.shard_id) for name in (*state.garbage, *state.doomed))
