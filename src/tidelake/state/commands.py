"""The commands of a shard, each a pure function of (state, now_ms, arguments).

An outcome is `Commit` (these edits, then this result), `NoOp` (nothing to write: this result) or
`Refused` (this error). A refusal or no-op may rest on a state that is no longer the newest: the
machine believes a refusal only on a fresh state, and every no-op here is true of all later states.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

from tidelake.errors import HistoryCompacted, IncompatibleSchema, LeaseExpired, TidelakeError, UsageError
from tidelake.model.batch import Batch
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain
from tidelake.state.spine import Spine, SpineBatch, SpineEdit
from tidelake.state.state import Edits, Hold, Move, Rollup, ShardState, WriterRecord

R = TypeVar("R", covariant=True)


@dataclass(frozen=True)
class Commit(Generic[R]):
    """Write these edits; `result` holds once they are durable."""

    edits: Edits
    result: R


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


def initial(shard_id: str, domain: TimeDomain, schema: Schema, now_ms: int) -> ShardState:
    """The first state of a shard: no times closed, nothing compacted."""
    start = Frontier((domain.minimum,))
    state = ShardState(shard_id, domain, 0, now_ms, start, start, Spine())
    return replace(state, schemas=state.schemas.set(0, schema))


def register_schema(state: ShardState, _now_ms: int, schema: Schema) -> Outcome[int]:
    """The id of an equal schema; another one is refused until schemas can evolve."""
    if state.schema.same_columns(schema):
        return NoOp(state.schema_id)
    return Refused(
        IncompatibleSchema(f"the schema {schema} does not equal the registered one {state.schema}")
    )


def open_writer(
    state: ShardState, _now_ms: int, name: str, owner: str = "", take_over: bool = False
) -> Outcome[WriterRecord]:
    """Open a named writer under a new epoch, which fences the one before."""
    old = state.writers.get(name)
    if old is None:
        record = WriterRecord(0, None, owner, state.upper)
    elif old.owner == owner:
        record = replace(old, epoch=old.epoch + 1)
    elif take_over or old.sequence is None:
        record = WriterRecord(old.epoch + 1, None, owner, old.upper)
    else:
        return Refused(UsageError(_taken(name, old, owner)))
    return Commit(Edits(writers={name: record}), record)


def _taken(name: str, record: WriterRecord, owner: str) -> str:
    nobody = "a writer without owner"
    return (
        f"writer {name!r} belongs to {record.owner or nobody!r}, which has written up to {record.sequence}; "
        f"{owner or nobody!r} might write the same data again: restore the lost checkpoint, use another "
        "writer name, or pass take_over=True if its data is new"
    )


def open_hold(
    state: ShardState, now_ms: int, hold_id: str, purpose: str, since: Frontier | None = None
) -> Outcome[Hold]:
    """Keep `since` from moving beyond the given frontier (the current one if None)."""
    present = state.holds.get(hold_id)
    if present is not None:
        return NoOp(present)
    wanted = state.since if since is None else since
    if not state.since <= wanted:
        return Refused(HistoryCompacted(wanted, state.since))
    hold = Hold(purpose, wanted, now_ms)
    return Commit(Edits(holds={hold_id: hold}), hold)


def downgrade_hold(state: ShardState, _now_ms: int, hold_id: str, since: Frontier) -> Outcome[Frontier]:
    """Move a hold forward; the shard's `since` follows to the meet of all holds."""
    hold = state.holds.get(hold_id)
    if hold is None:
        return Refused(LeaseExpired(hold_id))
    moved = replace(hold, since=hold.since.join(since))
    if moved == hold:
        return NoOp(hold.since)
    others = [h.since for key, h in state.holds.items() if key != hold_id]
    return Commit(
        Edits(holds={hold_id: moved}, since=_since_move(state, _meet([*others, moved.since]))), moved.since
    )


def close_hold(state: ShardState, _now_ms: int, hold_id: str) -> Outcome[None]:
    """Give a hold up. `since` follows the holds that are left; without any it stays."""
    if hold_id not in state.holds:
        return NoOp(None)
    others = [h.since for key, h in state.holds.items() if key != hold_id]
    return Commit(Edits(holds={hold_id: None}, since=_since_move(state, _meet(others))), None)


def advance_since(state: ShardState, _now_ms: int, since: Frontier) -> Outcome[Frontier]:
    """Move `since` forward as far as the holds allow, and tell where it is."""
    held = _meet([h.since for h in state.holds.values()])
    move = _since_move(state, since if held is None else since.meet(held))
    if move is None:
        return NoOp(state.since)
    return Commit(Edits(since=move), move.after)


def _meet(frontiers: list[Frontier]) -> Frontier | None:
    if not frontiers:
        return None
    result = frontiers[0]
    for frontier in frontiers[1:]:
        result = result.meet(frontier)
    return result


def _since_move(state: ShardState, target: Frontier | None) -> Move | None:
    if target is None:
        return None
    after = state.since.join(target)
    return None if after == state.since else Move(state.since, after)


@dataclass(frozen=True)
class MergeResult:
    """A batch that is to take the place of the spine batches `[lo, hi)`.

    Attributes:
        lo: first id of the range.
        hi: end of the range.
        inputs: names of all parts of the batches that were merged, in order.
        batch: what they became.
    """

    lo: int
    hi: int
    inputs: tuple[str, ...]
    batch: Batch


def apply_merge(state: ShardState, _now_ms: int, result: MergeResult) -> Outcome[bool]:
    """Put a merged batch in the place of its inputs; False if they are no longer all there.

    SUBTLE: the range must hold exactly the parts that were merged. Bounds and since alone would match
    again after another merge of the same range, and a late result would bring deleted parts back.
    """
    if not state.spine.tiles(result.lo, result.hi):
        return NoOp(False)
    present = tuple(state.spine.range(result.lo, result.hi))
    if len(present) == 1 and present[0].batch == result.batch:
        return NoOp(True)
    if tuple(part.name for item in present for part in item.batch.parts()) != result.inputs:
        return NoOp(False)
    bounds = result.batch.bounds
    if present[0].batch.bounds.lower != bounds.lower or present[-1].batch.bounds.upper != bounds.upper:
        return NoOp(False)
    if not all(item.batch.bounds.since <= bounds.since for item in present):
        return NoOp(False)
    edit = SpineEdit(result.lo, result.hi, (SpineBatch(result.lo, result.hi, result.batch),))
    return Commit(Edits(spine=edit), True)


def add_rollup(state: ShardState, _now_ms: int, rollup: Rollup) -> Outcome[bool]:
    """Make a stored state the one that readers start from; False if a newer one is known."""
    if state.rollup.seqno >= rollup.seqno:
        return NoOp(state.rollup == rollup)
    return Commit(Edits(rollup=rollup), True)
