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
from dataclasses import dataclass, field, replace
from functools import reduce

from tidelake.errors import (
    CollectionDropped,
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
from tidelake.state.core.decisions import Decision, GroupView
from tidelake.state.core.edits import Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.group.memberwriters import answer_in_group, keys_of_writers, not_member, recorded_in_group
from tidelake.state.write.clockbounds import closed_at, closed_for, leap, too_far
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.staging import closing

# Later than any seqno.
LAST = (1 << 63) - 1


@dataclass(frozen=True)
class Share:
    """What a transaction wants of one collection.

    Attributes:
        joined: seqno of the group's state that took the collection in; see `Membership.admitted`.
        floor: the collection's own upper, read after it joined: it may have closed times by itself before.
        times: the first and the last time of its rows; None: it gets no rows.
        lower: decide only if its upper is this one; its rows are known to fit then.
        seal: a frontier to close it up to; None: only up to the group's.
        behind: it may be closed further than `seal` already.
        latest: its rows depend on contents: decide only if it was in the group since this state of the group,
            which let no rows in for it after that, and at the time that the rows have.
        applied: ids of decisions that it has applied.
        name: what errors call it.
    """

    joined: int
    floor: Frontier
    times: tuple[int, int] | None = None
    lower: Frontier | None = None
    seal: Frontier | None = None
    behind: bool = False
    latest: int | None = None
    applied: frozenset[str] = frozenset()
    name: str = ""

    def reaching(self, times: tuple[int, int] | None) -> "Share":
        """With more rows: their first and last time; None: there are none."""
        if times is None:
            return self
        first, last = self.times or times
        return replace(self, times=(min(first, times[0]), max(last, times[1])))


@dataclass(frozen=True, kw_only=True)
class IntentTimes:
    """The times that the rows of a transaction get, and which times it closes.

    Attributes:
        time: the time that all rows get; None: see `own_times`.
        own_times: the rows keep their times. If false, and `time` is None, all get the first open time.
        least: close a time from this one on, also without rows; None: only that of rows.
        upper: the least upper of the group afterwards; None: just past the time.
        alone: close times of these collections only, and not of the group.
        picked: the caller gave no time.
    """

    time: int | None = None
    own_times: bool = False
    least: int | None = None
    upper: Frontier | None = None
    alone: bool = False
    picked: bool = False


@dataclass(frozen=True)
class Intent(IntentTimes):
    """What a transaction wants the group to decide.

    Attributes:
        id: of the transaction.
        begun: seqno of the group's state when it began.
        shares: by id of the collection.
        number: of a named writer, if one writes.
        record: the record that its collection has of that writer, for a group that has none yet.
    """

    id: str
    begun: int
    shares: Mapping[str, Share]
    number: IdempotencyKey | None = None
    record: WriterRecord | None = None

    @property
    def written(self) -> dict[str, tuple[int, int]]:
        """The first and the last time of the rows, by id of the collections that get rows."""
        return {id_: share.times for id_, share in self.shares.items() if share.times is not None}


@dataclass(frozen=True)
class Decided:
    """The answer to an `Intent`.

    Attributes:
        upper: the group's; or the one that the number left, if that was in before.
        bounds: the uppers before and after, by id of the collections; none if it was in before.
        already: it was in before, or there was nothing to do.
    """

    upper: Frontier
    bounds: Mapping[str, tuple[Frontier, Frontier]] = field(default_factory=dict)
    already: bool = False


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


def decide(state: ShardState, now_ms: int, wanted: Intent) -> Outcome[Decided]:
    """Let a transaction in, in all its collections at once.

    Refused with `UpdateBeforeLower`, which carries the current upper, if its time or one of the rows' own is
    closed: it may be tried again at a later time as it is staged. Refused with `UpperMismatch` if a
    collection has another upper than is asked for; with `TransactionExpired` or
    `WriterFenced`; with `LeftGroup` if a collection is not in the group, or came back to it since the
    transaction began.
    """
    known = _known(state, wanted)
    if known is not None:
        return known
    uppers = {id_: _upper_of(state, id_, share) for id_, share in wanted.shares.items()}
    placed = _misplaced(state, wanted, uppers) or _timed(wanted, uppers)
    if isinstance(placed, Refused):
        return placed
    time, end = placed
    upper = state.upper if end is None or wanted.alone else state.upper.join(end)
    ends = _ends(wanted, uppers, end if wanted.alone else None)
    closed = [(state.upper, upper), *((uppers[id_], after) for id_, after in ends.items())]
    far = next((far for bounds in closed if (far := too_far(state, *bounds, now_ms)) is not None), None)
    refusal = _stale(state, wanted, time) or far or _leaps(state, wanted, time)
    if refusal is not None:
        return refusal
    left, key = next(iter(ends.values()), upper) if wanted.alone else upper, wanted.number
    edits = Edits(
        memberships={
            id_: replace(member, upper=member.upper.join(after), closed_ms=closed_at(state, now_ms))
            for id_, after in ends.items()
            if not after <= uppers[id_]
            for member in [state.memberships[id_]]
        },
        decisions=_decisions(state, wanted, time),
        writers={} if key is None else recorded_in_group(state, key, wanted.record, left),
    )
    bounds = {id_: (before, ends.get(id_, before).join(upper)) for id_, before in uppers.items()}
    if upper == state.upper:
        answer = Decided(upper, bounds, already=edits == Edits())
        return NoOp(answer) if answer.already else Commit(edits, answer)
    step = closing(state, HollowBatch(Bounds(state.upper, upper, state.minimum)))
    moved = replace(edits, upper=Move(state.upper, upper), spine=step.spine)
    return Commit(moved, Decided(upper, bounds), step.due)


def seal_back(name: str, seal: Frontier, upper: Frontier, domain: TimeDomain) -> UsageError | None:
    """The error if a collection is to be closed before where it is closed; None for the first time of all."""
    if upper <= seal or seal == Frontier.of(domain.minimum):
        return None
    return UsageError(
        f"collection {name!r} is closed before {domain.text(upper)} already, and would go back to "
        f"{domain.text(seal)}: nothing was sealed; give that or a later upper, or leave it out"
    )


def _known(state: ShardState, wanted: Intent) -> NoOp[Decided] | Refused | None:
    """The answer if the transaction is decided or cannot be, whatever its times are; None if it can be."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    found = (not_member(state, id_, share.joined) for id_, share in wanted.shares.items())
    stranger = next((one for one in found if one is not None), None)
    # SUBTLE: with a collection that has left, its group has forgotten the writers of that collection.
    key = wanted.number
    told = key is not None and (stranger is None or not key.member)
    known = answer_in_group(state, key, wanted.record) if told and key is not None else None
    if isinstance(known, NoOp):
        return NoOp(Decided(known.result, already=True))
    if known is not None:
        return known
    decided = state.decisions.get(wanted.id)
    if decided is not None and decided.members:
        return NoOp(Decided(state.upper, already=True))
    if decided is not None or wanted.begun < state.expired:
        return Refused(TransactionExpired(wanted.id))
    return stranger


def _upper_of(state: ShardState, id_: str, share: Share) -> Frontier:
    """The upper of a collection, as its readers see it."""
    return closed_for(state, state.memberships[id_])[0].join(share.floor)


def _misplaced(state: ShardState, wanted: Intent, uppers: Mapping[str, Frontier]) -> Refused | None:
    """The refusal if a collection has another upper than is asked for, or is closed further than its seal."""
    if state.upper.closed and not wanted.alone:
        return Refused(UpperMismatch("any frontier", state.upper))
    for id_, share in wanted.shares.items():
        if share.lower not in (None, uppers[id_]):
            return Refused(UpperMismatch(share.lower, uppers[id_], share.name))
        if share.seal is None or share.behind:
            continue
        back = seal_back(share.name, share.seal, uppers[id_], state.domain)
        if back is not None:
            return Refused(back)
    return None


def _ends(wanted: Intent, uppers: Mapping[str, Frontier], end: Frontier | None) -> dict[str, Frontier]:
    """Up to where the transaction closes some collections by themselves, by id; `end`: all of them."""
    seals = {
        id_: [one for one in (share.seal, end) if one is not None] for id_, share in wanted.shares.items()
    }
    return {id_: reduce(Frontier.join, found, uppers[id_]) for id_, found in seals.items() if found}


def _decisions(state: ShardState, wanted: Intent, time: int | None) -> dict[str, Decision | None]:
    """The decision, if there are rows; and the ones to forget, which their only collection has applied."""
    found: dict[str, Decision | None] = {}
    for id_, share in wanted.shares.items():
        for old in sorted(share.applied):
            if old in state.decisions and set(state.decisions[old].members) <= {id_}:
                found[old] = None
    if wanted.written:
        found[wanted.id] = Decision(tuple(sorted(wanted.written)), time)
    return found


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


def _leaps(state: ShardState, wanted: Intent, time: int | None) -> Refused | None:
    """The refusal of a time that the caller did not give, if it leaps for a collection that it closes."""
    if time is None or not wanted.picked:
        return None
    for id_ in wanted.shares if wanted.alone else state.memberships:
        error = leap(state.domain, *closed_for(state, state.memberships[id_]), time)
        if error is not None:
            return Refused(error)
    return None


def _timed(wanted: Intent, uppers: Mapping[str, Frontier]) -> tuple[int | None, Frontier | None] | Refused:
    """The one time that all rows of a transaction get, if they do, and the upper that this leaves."""
    written = wanted.written
    timed = written if wanted.least is None else wanted.shares
    shut = next((uppers[id_] for id_ in timed if uppers[id_].closed), None)
    if shut is not None:
        return Refused(UpperMismatch("any frontier", shut))
    if not timed or wanted.own_times:
        for id_, (first, _) in written.items():
            if wanted.shares[id_].lower is None and not uppers[id_].less_equal(first):
                return Refused(UpdateBeforeLower(first, uppers[id_]))
        return None, wanted.upper
    open_from = max(_number(time) for id_ in timed for time in uppers[id_])
    last = max([*(last for _, last in written.values()), *([] if wanted.least is None else [wanted.least])])
    time = max(open_from, last) if wanted.time is None else wanted.time
    if time < open_from:
        return Refused(UpdateBeforeLower(time, Frontier.of(open_from)))
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
