"""Transactions over several collections: staged first, decided by one commit, applied later.

A transaction has an id. It stages its rows in each collection, where they await the decision and are not seen
(`prepare`). One compare-and-set in the log of the group decides it (`decide`): from then on it is in, in all
of its collections at once, because a reader of any of them reads the group first, and then applies in memory
(`apply_decided`) what the group has decided. Maintenance stores the same result, and then the group forgets
the decision. A transaction that is not decided within a time is given up: first in the group, where it can no
longer be decided (`expire`), then where it is staged (`withdraw`).

The times of all collections of a group are closed together, up to the group's upper; a collection that gets
no rows is not written for that. A single collection may be closed further.

INVARIANT: from a state of the group, and a state of a collection that was read after it, a process can tell
for each transaction that this state of the group has decided whether the collection has applied it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tidelake.errors import (
    CollectionDropped,
    CollectionInGroup,
    LeftGroup,
    TransactionExpired,
    UpdateNotBeyondLower,
    UpperMismatch,
    UsageError,
)
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.ahead import too_far
from tidelake.state.append import Addition, Appended, IdempotencyKey, answer_of_record, noted, unfitting
from tidelake.state.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.edits import Edits, Move, stepped
from tidelake.state.grouped import Decision, GroupView, Membership
from tidelake.state.single import keys_of_writers, writers_of
from tidelake.state.staged import Awaited, Staged, begins_before
from tidelake.state.staging import closing, place, room
from tidelake.state.state import ShardState, WriterRecord
from tidelake.state.taken import by_seqno, is_taken
from tidelake.state.tokens import PREFIX, writes_once

# Later than any seqno.
LAST = (1 << 63) - 1
R = TypeVar("R")


@dataclass(frozen=True)
class Share:
    """What a transaction wants of one collection.

    Attributes:
        joined: seqno of the group's state that took the collection in; see `Membership.admitted`.
        floor: the collection's own upper, read after it joined: it may have closed times by itself before.
        times: the first and the last time of its rows; None: it gets no rows.
        seal: a frontier to close it up to; None: only up to the group's.
        latest: its rows depend on contents: decide only if the group let no rows in for it after this state
            of the group, and at the time that the rows have.
    """

    joined: int
    floor: Frontier
    times: tuple[int, int] | None = None
    seal: Frontier | None = None
    latest: int | None = None


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
        lower: decide only if the group's upper is this one.
    """

    id: str
    begun: int
    shares: Mapping[str, Share]
    time: int | None = None
    own_times: bool = False
    upper: Frontier | None = None
    lower: Frontier | None = None

    @property
    def written(self) -> dict[str, tuple[int, int]]:
        """The first and the last time of the rows, by id of the collections that get rows."""
        return {id_: share.times for id_, share in self.shares.items() if share.times is not None}


# --- commands of a collection


def join(state: ShardState, _now_ms: int, group: str, admitted: int, seen: int) -> Outcome[None]:
    """Let a group decide the writes of the collection.

    Refused with `LeftGroup` if the collection has a newer state than `seen`: read both again.

    SUBTLE: the collection may have been in the group for this stay before, and have left. Joining again for
    the same stay would let in transactions that began before. A collection that leaves tells the group first;
    so if the group, read after the collection, does not know of it, the collection had not left when it was
    read.

    Args:
        state: of the collection.
        group: its id.
        admitted: seqno of the group's state that took the collection in; it is not leaving there.
        seen: seqno of the collection's state that was read before the group.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group == group and admitted <= state.joined:
        return NoOp(None)
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


def prepare(
    state: ShardState,
    _now_ms: int,
    group: str,
    joined: int,
    awaited: Awaited,
    runs: tuple[Run, ...],
    *,
    checked: Frontier,
    movable: bool = False,
    inline_bytes_max: int | None = None,
    offered: tuple[Part, ...] = (),
) -> Outcome[bool]:
    """Stage runs for a transaction. False if they are staged already, or there are none; refused as `stage`.

    `offered` as for `append`. What was taken once is not taken again, even if its transaction is given up.

    Refused with `LeftGroup` if the collection is no longer in the group, or came back to it since.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if (state.group, state.joined) != (group, joined):
        return Refused(LeftGroup(state.shard_id))
    if not runs:
        return NoOp(False)
    there = state.staged.batches.get(runs[0].parts[0].name)
    if there is not None and there.awaits == awaited:
        return NoOp(False)
    unfit = unfitting(state, runs, offered)
    if unfit is not None:
        return Refused(unfit)
    placed = place(state, runs, checked, movable=movable)
    if isinstance(placed, Refused):
        return placed
    full = room(state, placed.batch, inline_bytes_max)
    if full is not None:
        return full
    waits = replace(placed, awaits=awaited)
    taken = by_seqno(part.name for part in offered)
    return Commit(Edits(staged={waits.name: waits}, taken=taken), True)


def stage_single(
    state: ShardState,
    now_ms: int,
    view: GroupView,
    awaited: Awaited,
    found: Addition[R],
    *,
    checked: Frontier,
    given_up: frozenset[str],
    inline_bytes_max: int | None = None,
) -> Outcome[bool]:
    """Stage the rows of a write to this collection; rows that are staged for this transaction are replaced.

    The same step first applies what the group has decided (`apply_decided`). False if the rows are staged for
    another transaction; that one must be given up in the group first.

    Refused as `prepare`.

    Args:
        state: of the collection.
        now_ms: wall clock.
        view: the decisions of the group that the write was worked out with.
        awaited: the transaction.
        found: what the write would do.
        checked: a frontier; all times of the rows are known to be at or after it.
        given_up: transactions that the group can no longer decide.
        inline_bytes_max: see `append`.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if not view.is_of(state.group, state.joined):
        return Refused(LeftGroup(state.shard_id))
    applied = apply_decided(state, now_ms, view)
    edits, due = (applied.edits, applied.due) if isinstance(applied, Commit) else (Edits(), ())
    known = applied_to = replace(stepped(state, edits, now_ms), seqno=state.seqno)
    parked = waiting_for(known, found.runs)
    if {one.transaction for one in parked.values()} - {awaited.transaction, *given_up}:
        return NoOp(False)
    known = without(known, parked)
    unfit = unfitting(known, found.runs, ())
    if unfit is not None:
        return Refused(unfit)
    placed = place(known, found.runs, checked, movable=found.floats is not None)
    if isinstance(placed, Refused):
        return placed
    full = room(known, placed.batch, inline_bytes_max)
    if full is not None:
        return full
    bounds = placed.batch.bounds
    if not (found.stays_open or found.floats is not None):
        bounds = replace(bounds, upper=found.bounds.upper)
    before = state.staged.batches.get(placed.name)
    waits = Staged(
        replace(placed.batch, bounds=bounds), placed.added if before is None else before.added, awaited
    )
    rest = _rest(applied_to, parked, found.runs, awaited.transaction)
    staged: dict[str, Staged | None] = {**edits.staged, **dict.fromkeys(parked), **rest, waits.name: waits}
    return Commit(replace(edits, staged=staged), True, due)


def _rest(
    state: ShardState, parked: Mapping[str, Awaited], runs: Sequence[Run], transaction: str
) -> dict[str, Staged]:
    """The runs of others in the batches that are staged anew, staged again: they may be offered again too."""
    names = {part.name for run in runs for part in run.parts}
    rest: dict[str, Staged] = {}
    for name, awaited in parked.items():
        one = state.staged.batches[name]
        left = tuple(run for run in one.batch.runs if names.isdisjoint(part.name for part in run.parts))
        if left and awaited.transaction != transaction:
            kept = replace(one, batch=replace(one.batch, runs=left))
            rest[kept.name] = kept if kept.name == name else replace(kept, added=state.seqno + 1)
    return rest


def waiting_for(state: ShardState, runs: Sequence[Run]) -> dict[str, Awaited]:
    """The transactions that these runs, or some of their parts, await, by the names of staged batches."""
    names = {part.name for run in runs for part in run.parts}
    if not any(name in state.part_names for name in names):
        return {}
    return {
        one.name: awaited
        for one, awaited in state.staged.awaiting()
        if any(part.name in names for part in one.batch.parts())
    }


def without(state: ShardState, staged: Iterable[str]) -> ShardState:
    """The state without some staged batches, as if they had never been there. Nothing is stored."""
    gone = {part.name for name in staged for part in state.staged.batches[name].batch.parts()}
    left = state.part_names.evolver()
    for name in gone:
        left.remove(name)
    return replace(state, staged=state.staged.edited(dict.fromkeys(staged)), part_names=left.persistent())


def withdraw(
    state: ShardState, _now_ms: int, transactions: frozenset[str], kept: frozenset[str] = frozenset()
) -> Outcome[bool]:
    """Remove what is staged for transactions that are not decided and no longer can be.

    A staged batch with one of the `kept` parts stays, because the part may be offered again.
    """
    gone = [
        one.name
        for one, awaited in state.staged.awaiting()
        if awaited.transaction in transactions and kept.isdisjoint(part.name for part in one.batch.parts())
    ]
    return Commit(Edits(staged=dict.fromkeys(gone)), True) if gone else NoOp(False)


def apply_decided(
    state: ShardState, _now_ms: int, view: GroupView, *, leave: Mapping[str, WriterRecord] | None = None
) -> Outcome[bool]:
    """Apply what the group has decided: let in what was staged for it, and close its times.

    False if there is nothing to do, or the collection has left meanwhile or came back.

    Args:
        state: of the collection, read after the state of the group that the view is of.
        view: for this collection.
        leave: given if the collection leaves the group, where nothing more is decided for it: records of
            writers that it takes along (`taken_along`), so that no append is written twice because of it.
    """
    if state.dropped or view.is_older(state.group, state.joined):
        return NoOp(False)
    ours = view.is_of(state.group, state.joined)
    if leave is not None and ours and not view.leaving:
        return NoOp(False)
    freed: dict[str, Staged | None] = {}
    for one, awaited in state.staged.awaiting():
        if ours and awaited.transaction in view.decided:
            freed[one.name] = _let_in(one, view.decided[awaited.transaction])
        elif leave is not None:
            freed[one.name] = None
    upper = state.upper.join(view.upper) if ours else state.upper
    # Others may hold copies of these parts; once they are in, they must never be taken again.
    come = [part.name for one in freed.values() if one is not None for part in one.batch.parts()]
    taken = by_seqno(name for name in come if not is_taken(state.taken, name))
    left = Edits(taken=taken)
    if leave is not None:
        left = replace(left, group="", joined=0, writers=dict(leave), tokens=_tokens(leave))
    if upper == state.upper:
        changed = freed or leave is not None
        return Commit(replace(left, staged=freed), True) if changed else NoOp(False)
    known = replace(state, staged=state.staged.edited(freed))
    step = closing(known, HollowBatch(Bounds(state.upper, upper, state.minimum)))
    edits = replace(left, upper=Move(state.upper, upper), spine=step.spine, staged={**freed, **step.staged})
    return Commit(edits, True, step.due)


def catch_up(state: ShardState, now_ms: int, view: GroupView) -> Outcome[bool]:
    """`apply_decided`, unless all it would do is close times at which there are no rows."""
    waits = any(awaited.transaction in view.decided for _, awaited in state.staged.awaiting())
    closes = any(begins_before(one.batch, view.upper) for one in state.staged)
    if not (waits or closes or state.retention.window is not None):
        return NoOp(False)
    return apply_decided(state, now_ms, view)


def seen_through(state: ShardState, view: GroupView | None) -> ShardState:
    """A collection's state as its readers see it: with all that its group has decided. Nothing is stored.

    It has the seqno of the given state, and names only parts that this state names.

    Args:
        state: read after the state of the group that the view is of.
        view: of the group; None: the collection was in no group then.
    """
    outcome = NoOp(False) if view is None else apply_decided(state, state.committed_ms, view)
    if not isinstance(outcome, Commit):
        return state
    return replace(stepped(state, outcome.edits, state.committed_ms), seqno=state.seqno)


def taken_along(state: ShardState, group: ShardState) -> dict[str, WriterRecord]:
    """The records of writers that a leaving collection takes along: its own, and tokens of transactions."""
    tokens = {
        name: record
        for name, record in group.writers.items()
        if record.sequence is not None and name.partition(":")[0] not in group.memberships
    }
    known = {name for name in tokens if name in state.writers and state.writers[name].sequence is not None}
    own = writers_of(group, state.shard_id)
    return {**{name: tokens[name] for name in tokens if name not in known}, **own}


def _tokens(records: Mapping[str, WriterRecord]) -> tuple[str, ...]:
    """The names among these that are tokens: from now on they are remembered as long as any token."""
    found = (name for name, one in records.items() if name.startswith(PREFIX) and writes_once(one))
    return tuple(sorted(found))


def _let_in(one: Staged, time: int | None) -> Staged:
    if time is None:
        return replace(one, awaits=None)
    runs = tuple(
        replace(run, parts=tuple(replace(part, rewrite=time) for part in run.parts)) for run in one.batch.runs
    )
    return replace(one, batch=replace(one.batch, runs=runs), awaits=None)


# --- commands of a group


def view(state: ShardState, member: str) -> GroupView:
    """What a group has decided for a collection; nothing if the group has no such member."""
    known = state.memberships.get(member)
    if known is None or state.dropped:
        return GroupView(state.shard_id, LAST if state.dropped else state.seqno, state.minimum)
    upper = known.upper if known.leaving else known.upper.join(state.upper)
    times = {id_: found.time for id_, found in state.decisions.items() if member in found.members}
    return GroupView(state.shard_id, state.seqno, upper, known.admitted, known.leaving, times)


def ended(group: str, state: ShardState) -> GroupView:
    """The view of a group that no longer exists: nothing that the collection has not applied."""
    return GroupView(group, LAST, state.minimum)


def admit(state: ShardState, _now_ms: int, members: tuple[str, ...]) -> Outcome[dict[str, int]]:
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
    fresh = {id_: Membership(state.minimum, seqno) for id_ in members if id_ not in known}
    return Commit(Edits(memberships=dict(fresh)), admitted)


def retire(state: ShardState, _now_ms: int, member: str, admitted: int) -> Outcome[None]:
    """Let no new transaction write to a collection, which is about to leave."""
    known = state.memberships.get(member)
    if known is None or known.leaving or known.admitted != admitted:
        return NoOp(None)
    leaving = Membership(known.upper.join(state.upper), admitted, leaving=True)
    return Commit(Edits(memberships={member: leaving}), None)


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


def decide(
    state: ShardState, now_ms: int, wanted: Intent, idempotency: IdempotencyKey | None = None
) -> Outcome[Appended]:
    """Let a transaction in, in all its collections at once.

    Refused with `UpperMismatch`, which carries the current upper, if its time is closed: the transaction may
    be tried again at a later time as it is staged. Refused with `UpdateNotBeyondLower` if one of the rows'
    own times is closed; with `TransactionExpired` or `WriterFenced`; with `LeftGroup` if a collection is not
    in the group, or came back to it since the transaction began.
    """
    known = _known(state, wanted, idempotency)
    if known is not None:
        return known
    placed = _timed(state, wanted)
    if isinstance(placed, Refused):
        return placed
    time, upper = placed
    refusal = _stale(state, wanted, time) or _too_far(state, wanted, upper, now_ms)
    if refusal is not None:
        return refusal
    decisions: dict[str, Decision | None] = {}
    if wanted.written:
        decisions[wanted.id] = Decision(tuple(sorted(wanted.written)), time)
    writers = {} if idempotency is None else {idempotency.writer: noted(state, idempotency, upper)}
    edits = Edits(memberships=_sealed_members(state, wanted), decisions=decisions, writers=writers)
    answer = Appended(state.upper, upper)
    if upper == state.upper:
        return NoOp(replace(answer, already=True)) if edits == Edits() else Commit(edits, answer)
    step = closing(state, HollowBatch(Bounds(state.upper, upper, state.minimum)))
    return Commit(replace(edits, upper=Move(state.upper, upper), spine=step.spine), answer, step.due)


def _known(
    state: ShardState, wanted: Intent, idempotency: IdempotencyKey | None
) -> NoOp[Appended] | Refused | None:
    """The answer if the transaction is decided or cannot be, whatever its times are; None if it can be."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = answer_of_record(state.writers.get(idempotency.writer), idempotency) if idempotency else None
    if known is not None:
        return known
    decided = state.decisions.get(wanted.id)
    if decided is not None and decided.members:
        return NoOp(Appended(state.upper, state.upper, already=True))
    if decided is not None:
        return Refused(TransactionExpired(wanted.id))
    if wanted.begun < state.expired:
        return Refused(TransactionExpired(wanted.id))
    stranger = next((id_ for id_, share in wanted.shares.items() if not _is_in(state, id_, share)), None)
    if stranger is not None:
        return Refused(LeftGroup(stranger))
    if state.upper.closed:
        return Refused(UpperMismatch("any frontier", state.upper))
    if wanted.lower not in (None, state.upper):
        return Refused(UpperMismatch(wanted.lower, state.upper))
    return None


def _sealed_members(state: ShardState, wanted: Intent) -> dict[str, Membership | None]:
    """The collections of the group that the transaction closes further by itself, as they are afterwards."""
    members: dict[str, Membership | None] = {}
    for id_, share in wanted.shares.items():
        member = state.memberships[id_]
        if share.seal is not None and not share.seal <= member.upper:
            members[id_] = replace(member, upper=member.upper.join(share.seal))
    return members


def _stale(state: ShardState, wanted: Intent, time: int | None) -> Refused | None:
    """The refusal of rows made from contents that have changed since, or at another time than these rows."""
    for id_, share in wanted.shares.items():
        if share.latest is None:
            continue
        if state.latest.get(id_, 0) > share.latest:
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


def _is_in(state: ShardState, id_: str, share: Share) -> bool:
    known = state.memberships.get(id_)
    return known is not None and not known.leaving and known.admitted == share.joined


def _timed(state: ShardState, wanted: Intent) -> tuple[int | None, Frontier] | Refused:
    """The one time that all rows of a transaction get, if they do, and the group's upper afterwards."""
    written = wanted.written
    uppers = {
        id_: state.upper.join(state.memberships[id_].upper).join(wanted.shares[id_].floor) for id_ in written
    }
    shut = next((upper for upper in uppers.values() if upper.closed), None)
    if shut is not None:
        return Refused(UpperMismatch("any frontier", shut))
    if not written or wanted.own_times:
        for id_, (first, _) in written.items():
            if not uppers[id_].less_equal(first):
                return Refused(UpdateNotBeyondLower(first, uppers[id_]))
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
