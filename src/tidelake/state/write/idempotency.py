"""Idempotency keys: each append of a named writer has a number, and is in at most once.

The step that lets an append in also records its number, so the record of a writer tells at any later time
whether an append is in. Owns the key, what a record answers to it, and the record afterwards; must not know
what is appended.

INVARIANT: under one owner the number of a writer's record never goes back, and a process with an older epoch
than the record's changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from tidelake.errors import UsageError, WriterFenced
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import NoOp, Refused
from tidelake.state.core.state import WriterRecord
from tidelake.state.core.writername import WriterName

R = TypeVar("R")


@dataclass(frozen=True)
class IdempotencyKey:
    """A writer's statement that this is its append number `sequence`.

    Attributes:
        fresh: the handle chose the number, as the next one: no earlier call had it. If it is in, another
            handle of the same epoch took it, and these rows are not in.
        member: in a group, the id of the collection whose writer it is; empty: the group's own.
    """

    writer: str
    epoch: int
    sequence: int
    content: str = ""
    fresh: bool = False
    member: str = ""

    @property
    def kept_as(self) -> str:
        """The name under which the state that is written keeps the writer's record."""
        return WriterName(self.writer, self.member).text


def answer_of_record(
    record: WriterRecord | None, key: IdempotencyKey, answer: Callable[[Frontier], R]
) -> NoOp[R] | Refused | None:
    """The answer that the writer's record alone gives to a key; None if it is the writer's next append."""
    if record is None or record.epoch < key.epoch:
        return Refused(UsageError(f"writer {key.writer!r} is not open: call collection.writer(...)"))
    if record.epoch > key.epoch:
        return Refused(WriterFenced(key.writer, key.epoch, record.epoch))
    if key.fresh and record.sequence is not None and key.sequence <= record.sequence:
        return Refused(UsageError(_number_taken(key, record.sequence)))
    if record.sequence == key.sequence and record.content != key.content and record.content:
        said = other_content(key.writer, key.sequence)
        return Refused(UsageError(f"{said}; the upper after it was {record.upper}"))
    if record.sequence is not None and key.sequence <= record.sequence:
        return NoOp(answer(record.upper))
    return None


def _number_taken(key: IdempotencyKey, last: int) -> str:
    return (
        f"another handle of writer {key.writer!r} with the same epoch has written number {last} (a fork, or "
        "one that was opened with resume=True), so these rows are not in: give sequence=, or open the writer "
        "again"
    )


def other_content(writer: str, sequence: int) -> str:
    """The message for a sequence number that is used again for other data."""
    return (
        f"append {sequence} of writer {writer!r} is in, but was made of something else: the checkpoint or "
        "counter that numbered this one is older than the collection; give the data to another writer name"
    )


def advanced(record: WriterRecord, key: IdempotencyKey, upper: Frontier) -> WriterRecord:
    """A writer's record after an append that left the shard at `upper`."""
    return replace(record, sequence=key.sequence, upper=upper, content=key.content)
