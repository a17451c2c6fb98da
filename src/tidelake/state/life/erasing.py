"""The commands of erasures: ask for one, take the rows out, note that no byte of them is left.

The parts that hold such rows are rewritten first; then one step puts all of the new ones in. So every state
has all rows of a key or none, and sums over batches and bases agree in each. What was made from rows that are
erased meanwhile is refused afterwards: merges since their inputs are gone, others by the seqno of the state
that they were made from (`made_before`).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from tidelake.errors import CollectionDropped, IncompatibleSchema, UsageError
from tidelake.model import names
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Edits
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.forks import is_borrowed
from tidelake.state.core.owned import not_for
from tidelake.state.core.partnames import too_late
from tidelake.state.core.state import FIRST, Hold, ShardState
from tidelake.state.spine.spine import Member, SpineBatch, SpineEdit
from tidelake.state.spine.staged import Staged
from tidelake.state.upkeep.claims import ending

KEYS_BYTES_MAX = 1 << 20
"""Encoded keys of one erasure take at most so many bytes, since they are in the state until they are out."""

Names = tuple[str, ...]
"""Names of the parts of a run, in order: they identify it."""


def names_of(run: Run) -> Names:
    """The names of the parts of a run, in order."""
    return tuple(part.name for part in run.parts)


def ask(
    state: ShardState, _now_ms: int, *, id_: str, erasure: Erasure, schema_id: int | None = None
) -> Outcome[bool]:
    """Note an erasure, which any process that maintains the shard carries out. False if it is noted already.

    Refused if there are too many keys, or `schema_id` is not the newest one.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if id_ in state.erasures:
        return NoOp(False)
    strange = not_for(state, "")
    if strange is not None:
        return Refused(strange)
    if schema_id not in (None, state.schema_id):
        return Refused(
            IncompatibleSchema(f"the columns have changed since schema {schema_id}: give the keys again")
        )
    size_bytes = sum(len(key) for one in (erasure, *pending(state).values()) for key in one.keys)
    if size_bytes > KEYS_BYTES_MAX:
        return Refused(
            UsageError(
                f"the keys to be erased take {size_bytes} bytes, and at most {KEYS_BYTES_MAX} fit into one "
                "erasure: give fewer keys, and the others in further calls"
            )
        )
    return Commit(Edits(erasures={id_: erasure}), True)


def pending(state: ShardState) -> dict[str, Erasure]:
    """The erasures whose rows are still in, by id."""
    return {id_: one for id_, one in sorted(state.erasures.items()) if one.pending}


def runs_of(state: ShardState) -> Iterator[tuple[HollowBatch, Run]]:
    """All runs of the members and of what is staged, also for transactions, each with its batch."""
    for batch in (*(member.batch for member in state.spine), *_staged(state)):
        for run in batch.runs:
            yield batch, run


def _staged(state: ShardState) -> Iterator[HollowBatch]:
    for name in sorted(state.staged.batches):
        yield state.staged.batches[name].batch


@dataclass(frozen=True)
class ErasedRuns:
    """What was found out and written for some erasures.

    Attributes:
        runs: the parts that take the place of each run that was looked at; the same ones if none of its rows
            has such a key.
        bases: for each base that was looked at, by the names of its parts, whether it has such rows.
        forks: ids of the forks that have been asked as well.
    """

    ids: tuple[str, ...]
    runs: Mapping[Names, tuple[Part, ...]]
    bases: Mapping[Names, bool]
    forks: Collection[str] = ()

    @property
    def fresh(self) -> list[Part]:
        """The parts that were written."""
        return [part for old, parts in self.runs.items() for part in parts if part.name not in old]


def is_missing(state: ShardState, made: ErasedRuns) -> bool:
    """Whether something of a state was not looked at yet, or is to be drained first."""
    return (
        any(names_of(run) not in made.runs for _, run in runs_of(state))
        or any(names_of(run) not in made.bases for base in state.bases for run in base.runs)
        or not state.forks.keys() <= set(made.forks)
        or state.drained != state.upper
    )


def erase(state: ShardState, now_ms: int, *, made: ErasedRuns) -> Outcome[bool]:
    """Put the rewritten parts in the place of the others; False if something has changed: look again.

    False also for a collection in a group, which may have decided more than the state shows: it leaves first.
    Bases that have such rows go: maintenance makes new ones. All claims end, since their cuts are keys.
    Costs O(members).
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    asked = pending(state)
    if state.group or not made.ids or not all(id_ in asked for id_ in made.ids) or is_missing(state, made):
        return NoOp(False)
    used = {names_of(run) for _, run in runs_of(state)}
    fresh = [part for old in used for part in made.runs[old] if part.name not in old]
    if too_late(state, fresh):
        return NoOp(False)
    gone = [part for _, run in runs_of(state) for part in run.parts if part not in made.runs[names_of(run)]]
    edits = ending(state, list(state.claims.values()))
    edits.staged.update(_restaged(state, made))
    edits.bases.update({base.hi: None for base in state.bases if _holds(made, base.runs)})
    rows = sum(part.rows for part in gone) - sum(part.rows for part in fresh)
    for n, id_ in enumerate(made.ids):
        told = asked[id_]
        edits.erasures[id_] = replace(
            told,
            keys=(),
            seqno=state.seqno + 1,
            erased_ms=max(now_ms, state.committed_ms),
            # Of erasures that are carried out together, the first one has the counts.
            rows=0 if n else rows,
            parts=0 if n else len(gone),
        )
    written = replace(
        state.written,
        merged_rows=state.written.merged_rows + sum(part.rows for part in fresh),
        merged_bytes=state.written.merged_bytes + sum(part.size_bytes for part in fresh),
    )
    return Commit(replace(edits, spine=_edit(state, made), written=written), True)


def _holds(made: ErasedRuns, runs: tuple[Run, ...]) -> bool:
    return any(made.bases[names_of(run)] for run in runs)


def _rewritten(batch: HollowBatch, made: ErasedRuns) -> HollowBatch:
    runs = ((run, made.runs[names_of(run)]) for run in batch.runs)
    return replace(batch, runs=tuple(replace(run, parts=parts) for run, parts in runs if parts))


def _changes(batch: HollowBatch, made: ErasedRuns) -> bool:
    return any(made.runs[names_of(run)] != run.parts for run in batch.runs)


def _restaged(state: ShardState, made: ErasedRuns) -> dict[str, Staged | None]:
    found: dict[str, Staged | None] = {}
    for name, one in state.staged.batches.items():
        if not _changes(one.batch, made):
            continue
        found[name] = None
        batch = _rewritten(one.batch, made)
        if batch.runs:
            kept = replace(one, batch=batch)
            found[kept.name] = kept if kept.name == name else replace(kept, added=state.seqno + 1)
    return found


def _edit(state: ShardState, made: ErasedRuns) -> SpineEdit | None:
    """The members and spine batches that change; None: none does."""
    spine = state.spine
    old = [member for member in spine if _changes(member.batch, made)]
    if not old:
        return None
    new = [replace(member, batch=_rewritten(member.batch, made)) for member in old]
    less: dict[int, int] = {}
    holders: list[SpineBatch] = []
    for before, after in zip(old, new, strict=True):
        holder = spine.holder(before.id)
        if holder is None:
            continue
        if not holders or holders[-1] != holder:
            holders.append(holder)
        less[holder.id.lo] = less.get(holder.id.lo, 0) + before.batch.rows - after.batch.rows
    changed = [holder for holder in holders if less[holder.id.lo]]
    return SpineEdit(
        spine.next_id,
        spine.spent,
        members_gone=tuple(member.id for member in old),
        members=tuple[Member, ...](new),
        batches_gone=tuple(holder.id for holder in changed),
        batches=tuple(replace(holder, rows=holder.rows - less[holder.id.lo]) for holder in changed),
    )


def released(state: ShardState, now_ms: int) -> dict[str, Hold | None]:
    """The readers' holds that keep erased rows for longer than garbage is kept, without those versions.

    They go on keeping history. A reader of such a version gets `LeaseExpired`.
    """
    before_ms = now_ms - state.agreed.garbage_ms(now_ms)
    erased = max((one.seqno for one in state.erasures.values() if one.erased_ms <= before_ms), default=0)
    return {
        id_: replace(hold, pins=tuple(pin for pin in hold.pins if pin >= erased))
        for id_, hold in (state.holds.items() if erased else ())
        if any(pin < erased for pin in hold.pins)
    }


def not_gone(state: ShardState) -> dict[str, Erasure]:
    """The erasures whose rows are out, and perhaps still in stored objects or in the log, by id."""
    return {id_: one for id_, one in sorted(state.erasures.items()) if one.seqno and not one.gone_ms}


def keeps_bytes(state: ShardState, erasure: Erasure) -> bool:
    """Whether objects that held erased rows may still be stored."""
    if state.rollup == FIRST or state.rollup.seqno < erasure.seqno:
        return True
    for blob, lost in (*state.garbage.items(), *state.doomed.items()):
        rolled_up = names.rolled_up_at(blob)
        if rolled_up < erasure.seqno if rolled_up is not None else lost.removed <= erasure.seqno:
            return True
    return False


def note_gone(state: ShardState, now_ms: int, *, before: int) -> Outcome[int]:
    """Note the erasures of which neither an object nor the log has rows any more; how many are noted."""
    gone = {
        id_: replace(one, gone_ms=max(now_ms, state.committed_ms, 1))
        for id_, one in not_gone(state).items()
        if one.seqno <= before and not keeps_bytes(state, one)
    }
    return Commit(Edits(erasures=dict(gone)), len(gone)) if gone else NoOp(0)


def borrows(state: ShardState, run: Run) -> bool:
    """Whether a run has parts that another shard keeps. These are always rewritten, so that it may let go."""
    return any(part.inline is None and is_borrowed(part.name, state.shard_id) for part in run.parts)
