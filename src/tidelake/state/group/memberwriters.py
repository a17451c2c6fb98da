"""The writers of collections in a group: the group keeps their records, under the ids of the collections.

So the compare-and-set that decides also records the number of a writer, or fences its epoch. The collection's
own records from before it joined stay unchanged, and hold for writers of which the group has no record.
"""

from dataclasses import dataclass, replace

from pyrsistent import pmap

from tidelake.errors import CollectionDropped, LeftGroup
from tidelake.model.frontier import Frontier
from tidelake.state.core import commands
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Edits
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.write.idempotency import IdempotencyKey, advanced, answer_of_record


@dataclass(frozen=True)
class GroupNumber:
    """The number under which a group decides a transaction.

    Attributes:
        key: the number and its writer.
        member: id of the collection whose writer it is; empty: it is the group's own.
        record: the collection's own record of the writer.
    """

    key: IdempotencyKey
    member: str = ""
    record: WriterRecord | None = None

    @property
    def name(self) -> str:
        """The name under which the group keeps the writer's record."""
        return member_key(self.member, self.key.writer) if self.member else self.key.writer

    def answer(self, group: ShardState) -> NoOp[Frontier] | Refused | None:
        """The upper that the last number left, if this one is in; None: it is the writer's next one."""
        return answer_of_record(self._known(group), self.key, lambda upper: upper)

    def recorded(self, group: ShardState, upper: Frontier) -> dict[str, WriterRecord]:
        """The record afterwards, by its name; `upper` is the one that it leaves."""
        known = self._known(group)
        return {} if known is None else {self.name: advanced(known, self.key, upper)}

    def _known(self, group: ShardState) -> WriterRecord | None:
        return group.writers.get(self.name) or self.record


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
    stranger = not_member(state, member, joined)
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


def not_member(state: ShardState, member: str, joined: int) -> Refused | None:
    """The refusal if a collection is not, or no longer, in the group for that stay; None if it is."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    known = state.memberships.get(member)
    if known is None or known.leaving or known.admitted != joined:
        return Refused(LeftGroup(member))
    return None
