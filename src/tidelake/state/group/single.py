"""A write to one collection of a group: what it does, as a transaction with one member.

The functions of a collection alone work out the write (`tidelake.state.write.write`), on the state that the
collection's readers see (`alone`). Its rows are staged like those of any transaction; the group lets them in
(`decide_single`) iff everything that the write depends on still holds. It closes times of this collection
only.

While a collection is in a group, the group keeps its writers' records, under the collection's id: so the
compare-and-set that decides also records the number or fences the epoch. The collection's own records from
before it joined stay unchanged, and hold for writers of which the group has no record.
"""

from dataclasses import dataclass, replace

from pyrsistent import pmap

from tidelake.errors import (
    CollectionDropped,
    LeftGroup,
    TransactionExpired,
    UpdateBeforeLower,
    UpperMismatch,
)
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.state.core import commands
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.decisions import Decision, Membership
from tidelake.state.core.edits import Edits
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.write.clockbounds import closed_at, too_far
from tidelake.state.write.idempotency import IdempotencyKey, advanced, answer_of_record
from tidelake.state.write.write import Appended


@dataclass(frozen=True)
class Single:
    """A write to one collection, for the group to decide.

    Attributes:
        id: of the transaction.
        begun: seqno of the group's state when it began.
        group: its id.
        member: id of the collection.
        joined: seqno of the group's state that took the collection in.
        floor: the collection's upper, as its readers see it.
        first: the first time of its rows, if that is to be checked.
        lower: let it in only if the collection's upper is still this one.
        floats: all rows get one time, the first open one at or after `first`.
        end: close the collection's times before this.
        has_rows: whether rows are staged for it.
        latest: let it in only if the group let no rows in for the collection after this state of the group.
        idempotency: of a named writer.
        record: the collection's own record of that writer.
        applied: ids of decisions that the collection has applied.
    """

    id: str
    begun: int
    group: str
    member: str
    joined: int
    floor: Frontier
    first: Time | None
    end: Frontier
    has_rows: bool = False
    lower: Frontier | None = None
    floats: bool = False
    latest: int | None = None
    idempotency: IdempotencyKey | None = None
    record: WriterRecord | None = None
    applied: frozenset[str] = frozenset()


def alone(state: ShardState, group: ShardState, idempotency: IdempotencyKey | None = None) -> ShardState:
    """A collection's state as if it were in no group, to work a write out on it.

    Args:
        state: as its readers see it.
        group: the state of the group that it was seen through.
        idempotency: the key of the writer whose record is needed.
    """
    writers = state.writers
    if idempotency is not None:
        record = known_writer(group, state, idempotency.writer)
        writers = writers if record is None else writers.set(idempotency.writer, record)
    return replace(state, group="", joined=0, writers=writers)


def known_writer(group: ShardState, state: ShardState, name: str) -> WriterRecord | None:
    """The record of a writer of a collection in a group: the group's, or else the collection's own."""
    return group.writers.get(member_key(state.shard_id, name)) or state.writers.get(name)


def writers_of(group: ShardState, member: str) -> dict[str, WriterRecord]:
    """The group's records of one collection's writers, by writer. Costs O(writers)."""
    start = member_key(member, "")
    return {name.removeprefix(start): one for name, one in group.writers.items() if name.startswith(start)}


def keys_of_writers(group: ShardState, members: list[str]) -> tuple[str, ...]:
    """The keys of the group's records of the writers of some collections."""
    return tuple(sorted(member_key(id_, name) for id_ in members for name in writers_of(group, id_)))


def member_key(member: str, name: str) -> str:
    """The name under which a group keeps the record of a writer of one of its collections."""
    return f"{member}:{name}"


def open_member_writer(
    state: ShardState,
    now_ms: int,
    *,
    member: str,
    joined: int,
    record: WriterRecord | None,
    upper: Frontier,
    name: str,
    owner: str = "",
    take_over: bool = False,
    resume: bool = False,
) -> Outcome[WriterRecord]:
    """`open_writer` for a collection in a group.

    Args:
        state: of the group.
        now_ms: wall clock.
        member: id of the collection.
        joined: seqno of the group's state that took the collection in.
        record: the collection's own record of the writer.
        upper: the collection's.
        name: of the writer; this and the rest as for `open_writer`.
        owner: likewise.
        take_over: likewise.
        resume: likewise.
    """
    stranger = _stranger(state, member, joined)
    if stranger is not None:
        return stranger
    known = state.writers.get(member_key(member, name)) or record
    before = replace(state, upper=upper, writers=pmap({} if known is None else {name: known}), tokens=pmap())
    outcome = commands.open_writer(before, now_ms, name, owner, take_over=take_over, resume=resume)
    if not isinstance(outcome, Commit):
        return outcome
    key = member_key(member, name)
    begun = tuple(key for _ in outcome.edits.tokens)
    return Commit(Edits(writers={key: outcome.result}, tokens=begun), outcome.result)


def decide_single(state: ShardState, now_ms: int, wanted: Single) -> Outcome[Appended]:
    """Let a write to one collection in.

    Refused with `UpperMismatch` or `UpdateBeforeLower` if what it depends on has changed, and with
    `WriterFenced`, `TransactionExpired` or `LeftGroup`.
    """
    stranger = _stranger(state, wanted.member, wanted.joined)
    if stranger is not None:
        return stranger
    idempotency, key = wanted.idempotency, ""
    record = wanted.record
    if idempotency is not None:
        key = member_key(wanted.member, idempotency.writer)
        record = state.writers.get(key) or wanted.record
        known = answer_of_record(record, idempotency, Appended.before)
        if known is not None:
            return known
    if wanted.has_rows and (wanted.begun < state.expired or wanted.id in state.decisions):
        return Refused(TransactionExpired(wanted.id))
    member = state.memberships[wanted.member]
    closed = state.upper.join(member.upper)
    upper = closed.join(wanted.floor)
    placed = _placed(state, wanted, upper)
    if isinstance(placed, Refused):
        return placed
    time, end = placed
    far = too_far(state, upper, end, now_ms)
    if far is not None:
        return far
    members: dict[str, Membership | None] = {}
    if not end <= closed:
        joint = member.upper.join(end)
        members[wanted.member] = replace(member, upper=joint, closed_ms=closed_at(state, now_ms))
    decisions: dict[str, Decision | None] = {}
    if wanted.has_rows:
        decisions[wanted.id] = Decision((wanted.member,), time)
    writers: dict[str, WriterRecord] = {}
    if idempotency is not None and record is not None:
        writers[key] = advanced(record, idempotency, end)
    answer = Appended(upper, end)
    if not (members or decisions or writers):
        return NoOp(replace(answer, already=True))
    for id_ in sorted(wanted.applied):
        found = state.decisions.get(id_)
        if found is not None and set(found.members) <= {wanted.member}:
            decisions[id_] = None
    return Commit(Edits(memberships=members, decisions=decisions, writers=writers), answer)


def _placed(state: ShardState, wanted: Single, upper: Frontier) -> tuple[int | None, Frontier] | Refused:
    """The one time that all rows get, if they do, and the collection's upper afterwards."""
    if wanted.lower not in (None, upper):
        return Refused(UpperMismatch(wanted.lower, upper))
    if wanted.latest is not None and state.latest.get(wanted.member, 0) > wanted.latest:
        return Refused(UpperMismatch(upper, upper))
    if upper.closed and (wanted.has_rows or wanted.floats):
        return Refused(UpperMismatch("any frontier", upper))
    if wanted.floats and wanted.first is not None:
        time = times.parts(times.join(wanted.first, upper.elements[0]))[0]
        return time, upper.join(Frontier.past(time))
    if wanted.lower is None and wanted.first is not None and not upper.less_equal(wanted.first):
        return Refused(UpdateBeforeLower(wanted.first, upper))
    return None, upper.join(wanted.end)


def _stranger(state: ShardState, member: str, joined: int) -> Refused | None:
    """The refusal if a collection is not, or no longer, in the group for that stay; None if it is."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = state.memberships.get(member)
    if known is None or known.leaving or known.admitted != joined:
        return Refused(LeftGroup(member))
    return None
