"""What a shard keeps for tables that other engines read: versions, and the objects that name their parts.

A table of each kind has a hold, which no time ends. It pins the states whose parts the table names. Owns
these holds, and the end of such tables; must not know what their objects say.

INVARIANT: no object by which another engine finds an erased row outlives the erasure: after it all objects of
the table go, and then its pins. A run that still writes at that moment finds the erasure afterwards (`keep`).
"""

from collections.abc import Iterable
from functools import partial

from tidelake.model import names
from tidelake.shard.engine.shard import Shard
from tidelake.shard.upkeep.ending import remove_listed
from tidelake.state.core.state import ShardState
from tidelake.state.life import holds
from tidelake.store.protocols import BlobInfo

_HOLD = "published/"


def pin(shard: Shard, kind: str, seqno: int) -> None:
    """Keep the parts of one more state for the table of a kind. One log write."""
    purpose = f"published as {kind}"
    shard.run(partial(holds.pin_versions, hold_id=_HOLD + kind, purpose=purpose, pins=(seqno,)))


def keep(shard: Shard, kind: str, seqnos: tuple[int, ...]) -> None:
    """Let go the parts of other states than these, which were pinned. One log write, or none.

    Those of later states stay: another run has pinned them.
    """
    shard.run(partial(holds.unpin_versions, hold_id=_HOLD + kind, pins=tuple(sorted(set(seqnos)))))


def may_show_erased(shard: Shard, seqnos: tuple[int, ...]) -> bool:
    """Whether rows of one of these states were erased since, as far as is known."""
    return min(seqnos) < shard.known().erased


def withdraw(shard: Shard, kind: str) -> int:
    """End the table of a kind: delete its objects, then its hold. Returns how many there were."""
    blobs = shard.stores.blobs
    removed = remove_listed(blobs, list(blobs.list(names.published(shard.spec.shard_id, kind))))
    shard.run(partial(holds.close_hold, hold_id=_HOLD + kind))
    return removed.blobs


def withdraw_erased(shard: Shard) -> None:
    """End the tables that may show erased rows. No store call if there is none."""
    for kind in _showing_erased(shard.known()):
        withdraw(shard, kind)


def unheld(state: ShardState, listed: Iterable[BlobInfo]) -> list[BlobInfo]:
    """Of objects that were listed before a state was read those of no table: a run put them after its end."""
    return [info for info in listed if _HOLD + info.name.split("/")[2] not in state.holds]


def _showing_erased(state: ShardState) -> list[str]:
    return [
        id_.removeprefix(_HOLD)
        for id_, hold in sorted(state.holds.items())
        if id_.startswith(_HOLD) and (not hold.pins or min(hold.pins) < state.erased)
    ]
