"""The end of a shard: a tombstone, which names no part and has no holds.

All parts become garbage in the same step. Collection deletes them and finally the log, unless forks still
need them.
"""

from dataclasses import replace

from pyrsistent import pmap

from tidelake.errors import CollectionDropped, CollectionInUse
from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Delta, Edits, apply
from tidelake.state.core.fields import Move
from tidelake.state.core.state import ShardState
from tidelake.state.spine.spine import Member, Spine, SpineBatch, SpineEdit, SpineId


def drop_shard(state: ShardState, now_ms: int, *, force: bool = False) -> Outcome[bool]:
    """Make the shard a tombstone; False if it is one. Refused while it has holds, unless by `force`."""
    if state.dropped:
        return NoOp(False)
    holders = [
        f"{hold.purpose!r} ({id_})" for id_, hold in sorted(state.holds.items()) if now_ms < hold.expires_ms
    ]
    holders += [f"critical hold {name!r}" for name in sorted(state.critical)]
    if holders and not force:
        return Refused(CollectionInUse(state.shard_id, tuple(holders)))
    end = Frontier()
    edits = Edits(
        since=_moved(state.since, end),
        upper=_moved(state.upper, end),
        retained=_moved(state.retained, end),
        spine=_emptied(state.spine, Bounds(state.minimum, end, end)),
        sliced=state.spine.next_id + 1 if state.spine.slices else None,
        holds=dict.fromkeys(state.holds),
        critical=dict.fromkeys(state.critical),
        claims=dict.fromkeys(state.claims),
        chunks=dict.fromkeys(state.chunks),
        staged=dict.fromkeys(state.staged.batches),
        dropped=True,
    )
    return Commit(edits, True)


def abandon(state: ShardState, now_ms: int, *, before_ms: int) -> Outcome[bool]:
    """Make a shard a tombstone if it was made before `before_ms` and never changed; False otherwise.

    A copy or fork of another shard begins with rows, and nothing depends on it before it is confirmed.
    """
    if state.seqno > 0 or state.committed_ms > before_ms:
        return NoOp(False)
    # A copy has the critical holds of its source; they cannot be used in a copy that never got its name.
    return drop_shard(state, now_ms, force=True)


def confirm(state: ShardState, _now_ms: int) -> Outcome[None]:
    """Mark the shard as finished, now that it has its name, so that `abandon` leaves it alone."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    return NoOp(None) if state.seqno > 0 else Commit(Edits(), None)


def vanished(state: ShardState) -> ShardState:
    """What remains of a state whose shard was dropped and deleted: a tombstone that names no blob.

    For processes that knew the shard before; its log is gone and can tell them nothing.
    """
    outcome = drop_shard(state, state.committed_ms, force=True)
    if isinstance(outcome, Commit):
        delta = Delta(state.shard_id, state.seqno + 1, state.committed_ms, "", state.rollup, outcome.edits)
        state = apply(state, delta)
    return replace(state, garbage=pmap(), doomed=pmap(), forks=pmap(), origin=None)


def _moved(before: Frontier, after: Frontier) -> Move | None:
    return None if before == after else Move(before, after)


def _emptied(spine: Spine, bounds: Bounds) -> SpineEdit:
    """One empty member in the place of all members and one more, so that an empty spine gets one as well."""
    id_ = SpineId(0, spine.next_id + 1)
    return SpineEdit(
        id_.hi,
        spine.spent,
        members_gone=tuple(member.id for member in spine),
        members=(Member(id_, HollowBatch(bounds)),),
        batches_gone=tuple(batch.id for batch in spine.all_batches()),
        batches=(SpineBatch(id_, 0, bounds, 0),),
        merges_gone=tuple(merge.id for merge in spine.merges),
    )
