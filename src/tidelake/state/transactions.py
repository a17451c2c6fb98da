"""Transactions over several collections: staged first, decided by one commit, applied when it suits.

A transaction has an id. It stages its rows in each collection, where they await the decision and nobody
sees them (`prepare`). One compare-and-set in the log of the group decides (`decide`): from then on it is in,
in all of its collections at once, because whoever reads one of them reads the group first, and then applies
(`settle`) what it finds decided, in memory. Maintenance writes the same down, and then the group forgets.
What is not decided within a time is given up: first in the group, where it can be decided no more (`expire`),
then where it is staged (`withdraw`).

The times of all collections of a group are closed together, up to the group's upper; one that is not written
to needs no write for that. A single one may be closed further.

INVARIANT: whoever knows a state of the group, and a state of a collection that was read after it, knows for
each transaction that this state of the group has decided whether the collection has applied it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidelake.errors import (
    CollectionDropped,
    CollectionInGroup,
    TransactionExpired,
    UpdateNotBeyondLower,
    UpperMismatch,
    UsageError,
)
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.append import Appended, Claim, noted, settled, too_late, unregistered
from tidelake.state.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.grouped import Decision, Membership, View
from tidelake.state.staged import Awaited, Staged
from tidelake.state.staging import closing, place, room
from tidelake.state.state import Edits, Move, ShardState, stepped


@dataclass(frozen=True)
class Wanted:
    """What a transaction wants to be decided.

    Attributes:
        id: of the transaction.
        begun: seqno of the group's state when it began.
        first: by the ids of the collections that it writes to, a time that none of its rows there is before.
        seals: frontiers to close single collections up to, by their ids.
        time: all rows get this time; None: see `own_times`.
        own_times: the rows keep their times. Otherwise, without a time, they get the first one that is open.
        upper: of the group afterwards, at least; None: just past the time.
        lower: only if the group's upper is this one.
    """

    id: str
    begun: int
    first: Mapping[str, int]
    seals: Mapping[str, Frontier]
    time: int | None = None
    own_times: bool = False
    upper: Frontier | None = None
    lower: Frontier | None = None


# --- of a collection


def join(state: ShardState, _now_ms: int, group: str) -> Outcome[None]:
    """Let the transactions of a group alone write to the collection."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group == group:
        return NoOp(None)
    if state.group:
        return Refused(CollectionInGroup(state.shard_id))
    if not state.domain.total_order:
        message = f"times of {state.domain} have no total order: such a collection can be in no group"
        return Refused(UsageError(message))
    if state.upper.closed:
        return Refused(UpperMismatch("any frontier", state.upper))
    return Commit(Edits(group=group), None)


def prepare(
    state: ShardState,
    _now_ms: int,
    group: str,
    awaited: Awaited,
    runs: tuple[Run, ...],
    *,
    checked: Frontier,
    inline_bytes_max: int | None = None,
) -> Outcome[bool]:
    """Stage runs for a transaction. False if they are there, or there are none; refused as `stage`.

    Refused with a `UsageError` if the collection has left the group.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group != group:
        return Refused(UsageError(f"collection {state.shard_id} left its group meanwhile: write again"))
    if not runs:
        return NoOp(False)
    parts = [part for run in runs for part in run.parts]
    unfit = unregistered(state, runs) or too_late(state, parts)
    if unfit is not None:
        return Refused(unfit)
    placed = place(state, runs, checked)
    if isinstance(placed, Refused):
        return placed
    if placed.name in state.staged.batches:
        return NoOp(False)
    full = room(state, placed.batch, inline_bytes_max)
    if full is not None:
        return full
    waits = replace(placed, awaits=awaited)
    return Commit(Edits(staged={waits.name: waits}), True)


def withdraw(state: ShardState, _now_ms: int, transactions: frozenset[str]) -> Outcome[bool]:
    """Remove what is staged for transactions that are certainly not decided, and cannot be any more."""
    gone = [one.name for one, awaited in state.staged.awaiting() if awaited.transaction in transactions]
    return Commit(Edits(staged=dict.fromkeys(gone)), True) if gone else NoOp(False)


def settle(state: ShardState, _now_ms: int, view: View, *, leave: bool = False) -> Outcome[bool]:
    """Apply what the group has decided: let in what was staged for it, and close its times.

    Args:
        state: of the collection, read after the state of the group that the view is of.
        view: for this collection.
        leave: the collection has left the group; what was not decided never will be.
    """
    if state.dropped:
        return NoOp(False)
    freed: dict[str, Staged | None] = {}
    for one, awaited in state.staged.awaiting():
        if awaited.transaction in view.decided:
            freed[one.name] = _let_in(one, view.decided[awaited.transaction])
        elif leave:
            freed[one.name] = None
    upper = state.upper.join(view.upper)
    group = "" if leave and state.group else None
    if upper == state.upper:
        changed = freed or group is not None
        return Commit(Edits(staged=freed, group=group), True) if changed else NoOp(False)
    known = replace(state, staged=state.staged.edited(freed))
    step = closing(known, HollowBatch(Bounds(state.upper, upper, state.minimum)))
    edits = Edits(
        upper=Move(state.upper, upper), spine=step.spine, staged={**freed, **step.staged}, group=group
    )
    return Commit(edits, True, step.due)


def seen_through(state: ShardState, view: View | None) -> ShardState:
    """A collection's state as its readers see it: with all that its group has decided. Writes nothing.

    It has the seqno of the state that it is made of, and names no part that this one does not.

    Args:
        state: read after the state of the group that the view is of.
        view: None: it was in no group then.
    """
    ours = view is not None and view.group == state.group
    outcome = settle(state, state.committed_ms, view) if view is not None and ours else NoOp(False)
    if not isinstance(outcome, Commit):
        return state
    return replace(stepped(state, outcome.edits, state.committed_ms), seqno=state.seqno)


def _let_in(one: Staged, time: int | None) -> Staged:
    if time is None:
        return replace(one, awaits=None)
    runs = tuple(
        replace(run, parts=tuple(replace(part, rewrite=time) for part in run.parts)) for run in one.batch.runs
    )
    return replace(one, batch=replace(one.batch, runs=runs), awaits=None)


# --- of a group


def view(state: ShardState, member: str) -> View:
    """What a group has decided for a collection; nothing, if it knows none of that id."""
    known = state.memberships.get(member)
    if known is None:
        return View(state.shard_id, state.minimum)
    upper = known.upper if known.leaving else known.upper.join(state.upper)
    times = {id_: found.time for id_, found in state.decisions.items() if member in found.members}
    return View(state.shard_id, upper, times)


def admit(state: ShardState, _now_ms: int, members: tuple[str, ...]) -> Outcome[None]:
    """Take collections into the group. They still have to `join` it."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    fresh = [id_ for id_ in members if id_ not in state.memberships or state.memberships[id_].leaving]
    if not fresh:
        return NoOp(None)
    return Commit(
        Edits(memberships={id_: Membership(_upper_of(state, id_, state.minimum)) for id_ in fresh}), None
    )


def retire(state: ShardState, _now_ms: int, member: str) -> Outcome[None]:
    """Let no transaction take in a collection any more, which is about to leave."""
    known = state.memberships.get(member)
    if known is None or known.leaving:
        return NoOp(None)
    return Commit(Edits(memberships={member: Membership(known.upper.join(state.upper), leaving=True)}), None)


def forget(
    state: ShardState, _now_ms: int, decisions: frozenset[str], members: frozenset[str] = frozenset()
) -> Outcome[None]:
    """Forget decisions that all their collections have applied, and collections that have left."""
    gone = {id_ for id_ in decisions if id_ in state.decisions}
    left = {id_ for id_ in members if id_ in state.memberships and state.memberships[id_].leaving}
    if not gone and not left:
        return NoOp(None)
    return Commit(Edits(decisions=dict.fromkeys(sorted(gone)), memberships=dict.fromkeys(sorted(left))), None)


def refuse(state: ShardState, _now_ms: int, transaction: str) -> Outcome[bool]:
    """Decide that a transaction never comes in; False if it is in."""
    decided = state.decisions.get(transaction)
    if decided is not None:
        return NoOp(not decided.members)
    return Commit(Edits(decisions={transaction: Decision((), None)}), True)


def expire(state: ShardState, _now_ms: int, before: int) -> Outcome[None]:
    """Decide no transaction any more that began before a seqno."""
    return NoOp(None) if before <= state.expired else Commit(Edits(expired=before), None)


def decide(state: ShardState, _now_ms: int, wanted: Wanted, claim: Claim | None = None) -> Outcome[Appended]:
    """Let a transaction in, in all its collections at once.

    Refused with `UpperMismatch` if its time is closed, which carries the current frontier: it may be tried
    again at a later time as it is staged; with `UpdateNotBeyondLower` if one of the rows' own times is; with
    `TransactionExpired`, `WriterFenced`, or a `UsageError` if a collection is no member any more.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = settled(state.writers.get(claim.writer), claim) if claim else None
    if known is not None:
        return known
    decided = state.decisions.get(wanted.id)
    if decided is not None and decided.members:
        return NoOp(Appended(state.upper, state.upper, already=True))
    if decided is not None:
        return Refused(TransactionExpired(wanted.id))
    if wanted.begun < state.expired:
        return Refused(TransactionExpired(wanted.id))
    ids = (*wanted.first, *wanted.seals)
    strangers = [id_ for id_ in ids if id_ not in state.memberships or state.memberships[id_].leaving]
    if strangers:
        return Refused(UsageError(f"collection {strangers[0]} left the group meanwhile: write again"))
    if state.upper.closed:
        return Refused(UpperMismatch("any frontier", state.upper))
    if wanted.lower not in (None, state.upper):
        return Refused(UpperMismatch(wanted.lower, state.upper))
    placed = _timed(state, wanted)
    if isinstance(placed, Refused):
        return placed
    time, upper = placed
    members: dict[str, Membership | None] = {
        id_: Membership(sealed)
        for id_, frontier in wanted.seals.items()
        if (sealed := _upper_of(state, id_, state.minimum).join(frontier)) != state.memberships[id_].upper
    }
    decisions: dict[str, Decision | None] = {}
    if wanted.first:
        decisions[wanted.id] = Decision(tuple(sorted(wanted.first)), time)
    writers = {} if claim is None else {claim.writer: noted(state, claim, upper)}
    answer = Appended(state.upper, upper)
    if upper == state.upper:
        if not (members or decisions or writers):
            return NoOp(replace(answer, already=True))
        return Commit(Edits(memberships=members, decisions=decisions, writers=writers), answer)
    step = closing(state, HollowBatch(Bounds(state.upper, upper, state.minimum)))
    edits = Edits(
        upper=Move(state.upper, upper),
        spine=step.spine,
        memberships=members,
        decisions=decisions,
        writers=writers,
    )
    return Commit(edits, answer, step.due)


def _timed(state: ShardState, wanted: Wanted) -> tuple[int | None, Frontier] | Refused:
    """The time that all rows of a transaction get, if they get one, and the group's upper after it."""
    uppers = {id_: _upper_of(state, id_, state.upper) for id_ in wanted.first}
    shut = next((upper for upper in uppers.values() if upper.closed), None)
    if shut is not None:
        return Refused(UpperMismatch("any frontier", shut))
    if not wanted.first or wanted.own_times:
        for id_, first in wanted.first.items():
            if not uppers[id_].less_equal(first):
                return Refused(UpdateNotBeyondLower(first, uppers[id_]))
        return None, state.upper if wanted.upper is None else state.upper.join(wanted.upper)
    open_from = max(_number(time) for upper in uppers.values() for time in upper)
    time = max(open_from, *wanted.first.values()) if wanted.time is None else wanted.time
    if time < open_from:
        return Refused(UpperMismatch(Frontier.of(time), Frontier.of(open_from)))
    end = Frontier.past(time)
    if end.closed:
        return Refused(UsageError(f"time {time} is the last there is: a transaction needs one after it"))
    return time, end if wanted.upper is None else end.join(wanted.upper)


def _upper_of(state: ShardState, id_: str, otherwise: Frontier) -> Frontier:
    """Up to where a collection is closed by the group, and by itself."""
    known = state.memberships.get(id_)
    return otherwise if known is None else known.upper.join(otherwise)


def _number(time: object) -> int:
    if not isinstance(time, int):
        raise UsageError(f"time {time} is no number")
    return time
