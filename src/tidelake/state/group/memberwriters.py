"""The writers of collections in a group: the group keeps their records, under the ids of the collections.

So the compare-and-set that decides also records the number of a writer, or fences its epoch. The collection's
own records from before it joined stay unchanged, and hold for writers of which the group has no record.
"""

from dataclasses import replace

from pyrsistent import pmap

from tidelake.errors import CollectionDropped, LeftGroup
from tidelake.model.frontier import Frontier
from tidelake.state.core import commands
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Edits
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.core.writername import WriterName
from tidelake.state.write.idempotency import IdempotencyKey, advanced, answer_of_record


def answer_in_group(
    group: ShardState, key: IdempotencyKey, own: WriterRecord | None
) -> NoOp[Frontier] | Refused | None:
    """The upper that the last number left, if this one is in; None: it is the writer's next one."""
    return answer_of_record(group.writers.get(key.kept_as) or own, key, lambda upper: upper)


def recorded_in_group(
    group: ShardState, key: IdempotencyKey, own: WriterRecord | None, upper: Frontier
) -> dict[str, WriterRecord]:
    """The record afterwards, by its name; `upper` is the one that it leaves. Arguments as before."""
    known = group.writers.get(key.kept_as) or own
    return {} if known is None else {key.kept_as: advanced(known, key, upper)}


def alone(state: ShardState, group: ShardState, idempotency: IdempotencyKey | None = None) -> ShardState:
    """A collection's state as if it were in no group, to work a write out on it."""
    writers = state.writers
    if idempotency is not None:
        record = known_writer(group, state, idempotency.writer)
        writers = writers if record is None else writers.set(idempotency.writer, record)
    return replace(state, group="", joined=0, writers=writers)


def known_writer(group: ShardState, state: ShardState, name: str) -> WriterRecord | None:
    """The record of a writer of a collection in a group: the group's, or else the collection's own."""
    return group.writers.get(WriterName(name, state.shard_id).text) or state.writers.get(name)


def writers_of(group: ShardState, member: str) -> dict[str, WriterRecord]:
    """The group's records of one collection's writers, by writer. Costs O(writers)."""
    named = ((WriterName.of(text), one) for text, one in group.writers.items())
    return {writer.name: one for writer, one in named if writer.member == member}


def keys_of_writers(group: ShardState, members: list[str]) -> tuple[str, ...]:
    """The keys of the group's records of the writers of some collections."""
    return tuple(sorted(WriterName(name, id_).text for id_ in members for name in writers_of(group, id_)))


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
    """`open_writer` for a collection in a group."""
    stranger = not_member(state, member, joined)
    if stranger is not None:
        return stranger
    key = WriterName(name, member).text
    known = state.writers.get(key) or record
    before = replace(state, upper=upper, writers=pmap({} if known is None else {name: known}), tokens=pmap())
    outcome = commands.open_writer(before, now_ms, name, owner, take_over=take_over, resume=resume)
    if not isinstance(outcome, Commit):
        return outcome
    begun = tuple(key for _ in outcome.edits.tokens)
    return Commit(Edits(writers={key: outcome.result}, tokens=begun), outcome.result)


def not_member(state: ShardState, member: str, joined: int) -> Refused | None:
    """The refusal if a collection is not, or no longer, in the group for that stay; None if it is."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = state.memberships.get(member)
    if known is None or known.leaving or known.admitted != joined:
        return Refused(LeftGroup(member))
    return None
