"""Transactions over several collections: one compare-and-set in the log of their group decides.

A transaction has an id. It stages its rows in each collection, where they await the decision and are not seen
(`tidelake.state.group.awaiting`). `decide` lets it in, in all of its collections at once, because a reader of
any of them reads the group first, and then applies in memory what the group has decided
(`tidelake.state.group.applying`). A transaction that is not decided within a time is given up: first here,
where it can no longer be decided (`expire`), then where it is staged (`withdraw`).

The times of all collections of a group are closed together, up to the group's upper; a collection that gets
no rows is not written for that. A single collection may be closed further.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidelake.errors import (
    CollectionDropped,
    LeftGroup,
    TransactionExpired,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
)
from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.decisions import Decision, GroupView, Membership
from tidelake.state.core.edits import Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.state import ShardState
from tidelake.state.group.single import keys_of_writers
from tidelake.state.write.clockbounds import closed_at, closed_for, leap_from, too_far
from tidelake.state.write.idempotency import IdempotencyKey, answer_of_state, recorded
from tidelake.state.write.staging import closing
from tidelake.state.write.write import Appended

# Later than any seqno.
LAST = (1 << 63) - 1


@dataclass(frozen=True)
class Share:
    """What a transaction wants of one collection.

    Attributes:
        joined: seqno of the group's state that took the collection in; see `Membership.admitted`.
        floor: the collection's own upper, read after it joined: it may have closed times by itself before.
        times: the first and the last time of its rows; None: it gets no rows.
        lower: decide only if its upper is this one.
        seal: a frontier to close it up to; None: only up to the group's.
        latest: its rows depend on contents: decide only if it was in the group since this state of the group,
            which let no rows in for it after that, and at the time that the rows have.
        name: what errors call it.
    """

    joined: int
    floor: Frontier
    times: tuple[int, int] | None = None
    lower: Frontier | None = None
    seal: Frontier | None = None
    latest: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Intent:
    """What a transaction wants the group to decide.

    Attributes:
        id: of the transaction.
        begun: seqno of the group's state when it began.
        shares: by id of the collection.
        time: the time that all rows get; None: see `own_times`.
        own_times: the rows keep their times. If false, and `time` is None, all get the first open time.
        upper: the least upper of the group afterwards; None: just past the time.
        picked: the caller gave no time.
    """

    id: str
    begun: int
    shares: Mapping[str, Share]
    time: int | None = None
    own_times: bool = False
    upper: Frontier | None = None
    picked: bool = False

    @property
    def written(self) -> dict[str, tuple[int, int]]:
        """The first and the last time of the rows, by id of the collections that get rows."""
        return {id_: share.times for id_, share in self.shares.items() if share.times is not None}


def view(state: ShardState, member: str) -> GroupView:
    """What a group has decided for a collection; nothing if the group has no such member."""
    known = state.memberships.get(member)
    if known is None or state.dropped:
        return GroupView(state.shard_id, LAST if state.dropped else state.seqno, state.minimum)
    upper, closed_ms = closed_for(state, known)
    times = {id_: found.time for id_, found in state.decisions.items() if member in found.members}
    return GroupView(state.shard_id, state.seqno, upper, known.admitted, known.leaving, times, closed_ms)


def ended(group: str, state: ShardState) -> GroupView:
    """The view of a group that no longer exists: nothing that the collection has not applied."""
    return GroupView(group, LAST, state.minimum)


def decide(
    state: ShardState, now_ms: int, wanted: Intent, idempotency: IdempotencyKey | None = None
) -> Outcome[Appended]:
    """Let a transaction in, in all its collections at once.

    Refused with `UpperMismatch`, which carries the current upper, if its time is closed: the transaction may
    be tried again at a later time as it is staged. Also if a collection has another upper than is asked for.
    Refused with `UpdateBeforeLower` if one of the rows' own times is closed; with `TransactionExpired` or
    `WriterFenced`; with `LeftGroup` if a collection is not in the group, or came back to it since the
    transaction began.
    """
    known = _known(state, wanted, idempotency)
    if known is not None:
        return known
    for id_, share in wanted.shares.items():
        upper = _upper_of(state, id_, share)
        if share.lower not in (None, upper):
            return Refused(UpperMismatch(share.lower, upper, share.name))
        back = None if share.seal is None else seal_back(share.name, share.seal, upper, state.domain)
        if back is not None:
            return Refused(back)
    placed = _timed(state, wanted)
    if isinstance(placed, Refused):
        return placed
    time, upper = placed
    refusal = (
        _stale(state, wanted, time) or _too_far(state, wanted, upper, now_ms) or _leaps(state, wanted, time)
    )
    if refusal is not None:
        return refusal
    decisions: dict[str, Decision | None] = {}
    if wanted.written:
        decisions[wanted.id] = Decision(tuple(sorted(wanted.written)), time)
    writers = recorded(state, idempotency, upper)
    edits = Edits(memberships=_sealed_members(state, wanted, now_ms), decisions=decisions, writers=writers)
    answer = Appended(state.upper, upper)
    if upper == state.upper:
        return NoOp(replace(answer, already=True)) if edits == Edits() else Commit(edits, answer)
    step = closing(state, HollowBatch(Bounds(state.upper, upper, state.minimum)))
    return Commit(replace(edits, upper=Move(state.upper, upper), spine=step.spine), answer, step.due)


def seal_back(name: str, seal: Frontier, upper: Frontier, domain: TimeDomain) -> UsageError | None:
    """The error if a collection is to be closed before where it is closed; None for the first time of all."""
    if upper <= seal or seal == Frontier.of(domain.minimum):
        return None
    return UsageError(
        f"collection {name!r} is closed before {domain.text(upper)} already, and would go back to "
        f"{domain.text(seal)}: nothing was sealed; give that or a later upper, or leave it out"
    )


def _known(
    state: ShardState, wanted: Intent, idempotency: IdempotencyKey | None
) -> NoOp[Appended] | Refused | None:
    """The answer if the transaction is decided or cannot be, whatever its times are; None if it can be."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = answer_of_state(state, idempotency, Appended.before)
    if known is not None:
        return known
    decided = state.decisions.get(wanted.id)
    if decided is not None and decided.members:
        return NoOp(Appended.before(state.upper))
    if decided is not None:
        return Refused(TransactionExpired(wanted.id))
    if wanted.begun < state.expired:
        return Refused(TransactionExpired(wanted.id))
    stranger = next((id_ for id_, share in wanted.shares.items() if not _is_in(state, id_, share)), None)
    if stranger is not None:
        return Refused(LeftGroup(stranger))
    if state.upper.closed:
        return Refused(UpperMismatch("any frontier", state.upper))
    return None


def _upper_of(state: ShardState, id_: str, share: Share) -> Frontier:
    """The upper of a collection, as its readers see it."""
    return closed_for(state, state.memberships[id_])[0].join(share.floor)


def _sealed_members(state: ShardState, wanted: Intent, now_ms: int) -> dict[str, Membership | None]:
    """The collections of the group that the transaction closes further by itself, as they are afterwards."""
    members: dict[str, Membership | None] = {}
    for id_, share in wanted.shares.items():
        member = state.memberships[id_]
        if share.seal is not None and not share.seal <= member.upper:
            upper = member.upper.join(share.seal)
            members[id_] = replace(member, upper=upper, closed_ms=closed_at(state, now_ms))
    return members


def _stale(state: ShardState, wanted: Intent, time: int | None) -> Refused | None:
    """The refusal of rows made from contents that have changed since, or at another time than these rows."""
    for id_, share in wanted.shares.items():
        if share.latest is None:
            continue
        # While a collection is out of the group, other writes and erasures come in unseen.
        if max(state.latest.get(id_, 0), state.memberships[id_].admitted) > share.latest:
            return Refused(UpperMismatch(state.upper, state.upper))
        if time is not None and share.times not in (None, (time, time)):
            return Refused(UpperMismatch(Frontier.of(time), state.upper))
    return None


def _too_far(state: ShardState, wanted: Intent, upper: Frontier, now_ms: int) -> Refused | None:
    """The refusal to close times of the group, or of a collection, too far ahead of the clock."""
    closed = [(state.upper, upper)]
    closed += [
        (state.memberships[id_].upper, share.seal)
        for id_, share in wanted.shares.items()
        if share.seal is not None
    ]
    found = (too_far(state, before, after, now_ms) for before, after in closed)
    return next((far for far in found if far is not None), None)


def _leaps(state: ShardState, wanted: Intent, time: int | None) -> Refused | None:
    """The refusal of a time that the caller did not give, if it leaps for a collection of the group."""
    if time is None or not wanted.picked:
        return None
    for member in state.memberships.values():
        error = leap_from(state.domain, *closed_for(state, member), time)
        if error is not None:
            return Refused(error)
    return None


def _is_in(state: ShardState, id_: str, share: Share) -> bool:
    known = state.memberships.get(id_)
    return known is not None and not known.leaving and known.admitted == share.joined


def _timed(state: ShardState, wanted: Intent) -> tuple[int | None, Frontier] | Refused:
    """The one time that all rows of a transaction get, if they do, and the group's upper afterwards."""
    written = wanted.written
    uppers = {id_: _upper_of(state, id_, wanted.shares[id_]) for id_ in written}
    shut = next((upper for upper in uppers.values() if upper.closed), None)
    if shut is not None:
        return Refused(UpperMismatch("any frontier", shut))
    if not written or wanted.own_times:
        for id_, (first, _) in written.items():
            if not uppers[id_].less_equal(first):
                return Refused(UpdateBeforeLower(first, uppers[id_]))
        return None, state.upper if wanted.upper is None else state.upper.join(wanted.upper)
    open_from = max(_number(time) for upper in uppers.values() for time in upper)
    last = max(last for _, last in written.values())
    time = max(open_from, last) if wanted.time is None else wanted.time
    if time < open_from:
        return Refused(UpperMismatch(Frontier.of(time), Frontier.of(open_from)))
    if time < last:
        # Times can only be moved forward, so rows at a later time cannot come in at this one.
        return Refused(
            UsageError(f"rows of the transaction were written at {last}: commit at {last} or later")
        )
    end = Frontier.past(time)
    if end.closed:
        return Refused(UsageError(f"time {time} is the last there is: a transaction needs one after it"))
    return time, end if wanted.upper is None else end.join(wanted.upper)


def _number(time: object) -> int:
    if not isinstance(time, int):
        raise UsageError(f"time {time} is no number")
    return time


def refuse(state: ShardState, _now_ms: int, transaction: str) -> Outcome[bool]:
    """Make sure that a transaction which its caller has given up never comes in; False if it is in.

    SUBTLE: an attempt with an unknown outcome may still reach the log, as the entry for the next state. This
    commit takes that place, and nothing else has to be stored about it.
    """
    decided = state.decisions.get(transaction)
    if decided is not None and decided.members:
        return NoOp(False)
    return Commit(Edits(), True)


def expire(state: ShardState, _now_ms: int, before: int) -> Outcome[None]:
    """Let no transaction be decided any more that began before a seqno."""
    return NoOp(None) if before <= state.expired else Commit(Edits(expired=before), None)


def forget(
    state: ShardState,
    _now_ms: int,
    decisions: frozenset[str] = frozenset(),
    members: Mapping[str, int] | None = None,
) -> Outcome[None]:
    """Forget decisions that all their collections have applied, and collections that have left.

    Args:
        state: of the group.
        decisions: ids of transactions.
        members: collections that have left, and the seqnos that admitted them.
    """
    gone = sorted(id_ for id_ in decisions if id_ in state.decisions)
    left = [
        id_
        for id_, admitted in sorted((members or {}).items())
        if (known := state.memberships.get(id_)) is not None and known.leaving and known.admitted == admitted
    ]
    if not gone and not left:
        return NoOp(None)
    writers = keys_of_writers(state, left)
    return Commit(
        Edits(decisions=dict.fromkeys(gone), memberships=dict.fromkeys(left), writers_gone=writers), None
    )
