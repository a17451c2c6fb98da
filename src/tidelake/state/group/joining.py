"""How a collection comes into a group, and begins to leave it.

First the group admits it (`admit`), then the collection joins (`join`), under the seqno of the state of the
group that admitted it. A collection leaves in three steps: the group stops deciding for it (`retire`), the
collection removes the group from its state (`tidelake.state.group.applying`), and the group forgets it
(`tidelake.state.group.deciding`).
"""

from collections.abc import Mapping

from tidelake.errors import CollectionDropped, CollectionInGroup, LeftGroup, UpperMismatch, UsageError
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.decisions import Membership
from tidelake.state.core.edits import Edits
from tidelake.state.core.owned import not_for
from tidelake.state.core.state import ShardState
from tidelake.state.write.clockbounds import closed_for


def join(
    state: ShardState, _now_ms: int, group: str, admitted: int, seen: int, owner: str = ""
) -> Outcome[None]:
    """Let a group decide the writes of the collection.

    Refused with `LeftGroup` if the collection has a newer state than `seen`: read both again.

    SUBTLE: the collection may have been in the group for this stay before, and have left. Joining again for
    the same stay would let in transactions that began before. A collection that leaves tells the group first;
    so if the group, read after the collection, does not know of it, the collection had not left when it was
    read.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group == group and admitted <= state.joined:
        return NoOp(None)
    strange = not_for(state, owner)
    if strange is not None:
        return Refused(strange)
    if state.group not in ("", group):
        return Refused(CollectionInGroup(state.shard_id))
    if not state.domain.total_order:
        message = f"times of {state.domain} have no total order: such a collection can be in no group"
        return Refused(UsageError(message))
    if state.upper.closed:
        return Refused(UpperMismatch("any frontier", state.upper))
    if state.seqno != seen:
        return Refused(LeftGroup(state.shard_id))
    return Commit(Edits(group=group if state.group != group else None, joined=admitted), None)


def admit(
    state: ShardState,
    _now_ms: int,
    members: tuple[str, ...],
    closed: Mapping[str, tuple[Frontier, int]] | None = None,
) -> Outcome[dict[str, int]]:
    """Take collections into the group. Returns by id the seqno that admitted each; each must then `join`.

    Refused with `LeftGroup` while one of them is leaving.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = {id_: state.memberships[id_] for id_ in members if id_ in state.memberships}
    leaving = next((id_ for id_, member in known.items() if member.leaving), None)
    if leaving is not None:
        return Refused(LeftGroup(leaving))
    seqno = state.seqno + 1
    admitted = {id_: known[id_].admitted if id_ in known else seqno for id_ in members}
    if len(known) == len(admitted):
        return NoOp(admitted)
    fresh: dict[str, Membership | None] = {}
    for id_ in (id_ for id_ in members if id_ not in known):
        upper, closed_ms = (closed or {}).get(id_, (state.minimum, 0))
        fresh[id_] = Membership(upper, seqno, closed_ms=closed_ms)
    return Commit(Edits(memberships=fresh), admitted)


def retire(state: ShardState, _now_ms: int, member: str, admitted: int) -> Outcome[None]:
    """Let no new transaction write to a collection, which is about to leave."""
    known = state.memberships.get(member)
    if known is None or known.leaving or known.admitted != admitted:
        return NoOp(None)
    upper, closed_ms = closed_for(state, known)
    leaving = Membership(upper, admitted, leaving=True, closed_ms=closed_ms)
    return Commit(Edits(memberships={member: leaving}), None)
