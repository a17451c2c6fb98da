"""The commands of a shard, each a pure function of (state, now_ms, arguments).

The outcome is `Commit` (write these edits, then return this result), `NoOp` (nothing to write, return this
result) or `Refused` (raise this error). A refusal or no-op may be based on a state that is no longer the
newest, so the machine accepts either only on a fresh state.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

from pyrsistent import pmap

from tidelake.errors import CollectionDropped, CollectionInGroup, TidelakeError, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Schema, SchemaVersion
from tidelake.model.time import TimeDomain
from tidelake.state.core.agreed import NEW, Agreed
from tidelake.state.core.edits import Edits
from tidelake.state.core.state import Rollup, ShardState, WriterRecord
from tidelake.state.core.tokens import DAY_MS, writes_once
from tidelake.state.core.writername import WriterName
from tidelake.state.spine.fuel import MergeDue

R = TypeVar("R", covariant=True)


@dataclass(frozen=True)
class Commit(Generic[R]):
    """Write these edits; `result` holds once they are durable.

    Attributes:
        due: merges that the levels of the spine decide on in this step.
    """

    edits: Edits
    result: R
    due: tuple[MergeDue, ...] = ()


@dataclass(frozen=True)
class NoOp(Generic[R]):
    """Nothing to write."""

    result: R


@dataclass(frozen=True)
class Refused:
    """Not possible on this state."""

    error: TidelakeError


Outcome: TypeAlias = Commit[R] | NoOp[R] | Refused
Command: TypeAlias = Callable[[ShardState, int], Outcome[R]]


def initial(
    shard_id: str, domain: TimeDomain, schema: Schema, now_ms: int, agreed: Agreed = NEW
) -> ShardState:
    """The first state of a shard: no times closed, nothing compacted."""
    start = Frontier((domain.minimum,))
    return ShardState(
        shard_id=shard_id,
        domain=domain,
        seqno=0,
        committed_ms=now_ms,
        since=start,
        upper=start,
        retained=start,
        schemas=pmap({0: SchemaVersion(schema, 0)}),
        agreed=agreed,
    )


def open_writer(
    state: ShardState,
    now_ms: int,
    name: str,
    owner: str = "",
    *,
    take_over: bool = False,
    resume: bool = False,
) -> Outcome[WriterRecord]:
    """Open a named writer under a new epoch, which fences the earlier one; with `resume` under its own."""
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if state.group:
        return Refused(CollectionInGroup(state.shard_id))
    old = state.writers.get(name)
    begun = _begun(state, now_ms, name, old)
    if old is None:
        record = WriterRecord(0, None, owner, state.upper)
    elif old.owner == owner and resume:
        return NoOp(old) if not begun else Commit(Edits(tokens=begun), old)
    elif old.owner == owner:
        record = replace(old, epoch=old.epoch + 1)
    elif take_over or old.sequence is None:
        # Data was written under this name: the next owner must take over as well.
        record = WriterRecord(
            old.epoch + 1, None if old.sequence is None else -1, owner, old.upper, old.content
        )
    else:
        return Refused(UsageError(_taken(name, old, owner)))
    return Commit(Edits(writers={name: record}, tokens=begun), record)


def _begun(state: ShardState, now_ms: int, name: str, old: WriterRecord | None) -> tuple[str, ...]:
    """The token under which a write begins, if `name` is one; otherwise nothing."""
    if not WriterName(name).is_token or not writes_once(old):
        return ()
    today = max(now_ms, state.committed_ms) // DAY_MS
    return () if name in state.tokens.get(today, ()) else (name,)


def _taken(name: str, record: WriterRecord, owner: str) -> str:
    none = "a writer without owner"
    return (
        f"writer {name!r} belongs to {record.owner or none!r}, and data was written under this name; "
        f"{owner or none!r} might write the same data again: go on with the checkpoint that wrote it, use "
        "another writer name, or take it over if the data is new: take_over=True, as an option "
        "takeOver=true, on the command line --take-over"
    )


def add_rollup(state: ShardState, _now_ms: int, rollup: Rollup) -> Outcome[bool]:
    """Make a stored state the one that readers start from; False if a newer one is known."""
    if state.rollup.seqno >= rollup.seqno:
        return NoOp(state.rollup == rollup)
    return Commit(Edits(rollup=rollup), True)
