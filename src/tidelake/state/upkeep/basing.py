"""Which bases a shard is to have, and the commands that put them in.

A base is *due* at the end of a slice if a snapshot there would read at least twice what it answers. So all
bases together have at most as many rows as there are updates, and a collection that only grows has none. What
the answer will be is estimated. A base that turns out not to pay is not kept but noted, so that the next one
is tried only once much more would be read.

One is due at the end of the last slice, too, once reads in this process have merged as many rows as making it
reads: who only writes pays nothing. It stays until the next one comes.

Once `since` has passed a base, it takes the place of all that is older: that is how retracted rows leave.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from tidelake.model.batch import HollowBatch, Run
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit, NoOp, Outcome
from tidelake.state.core.edits import Edits
from tidelake.state.core.partnames import too_late
from tidelake.state.core.state import MergeClaim, ShardState
from tidelake.state.spine.bases import Base, Unpaid
from tidelake.state.spine.merging import Fit, MergeRequest, digest
from tidelake.state.spine.space import rows_of_one_time
from tidelake.state.spine.spine import Member, SpineBatch, SpineId
from tidelake.state.upkeep.claims import ending, still_recorded
from tidelake.state.upkeep.slices import rest, shortened

# A base pays if reads cost less by this factor. It is due if they do so by the estimate.
_PAYS = 2
# The estimate may be too high. So a base is tried once a snapshot reads so many times what the last base had.
_TRIED = 16
# The estimate may be too low. So the next base is tried only once a snapshot reads an eighth more.
_GROWN = 8
# A base at the head is kept if it saves one row in so many, or if a snapshot there reads more runs than this.
_SAVES_AT_HEAD = 9
_RUNS_AT_HEAD = 4


def boundary(state: ShardState, hi: int) -> int | None:
    """The time of a boundary between members; None: no base can be there, or no time is before or after."""
    spine = state.spine
    if not state.domain.total_order:
        return None
    if not 0 < hi <= spine.next_id or not spine.begins(hi):
        return None
    end = spine.members[hi].batch.bounds.lower if hi < spine.next_id else state.drained
    return None if end.closed or end == state.minimum else _int(end)


def _int(frontier: Frontier) -> int:
    (time,) = frontier.elements
    return time if isinstance(time, int) else time[0]


def request(state: ShardState, hi: int, saves: int = _PAYS, *, lo: int | None = None) -> MergeRequest | None:
    """The request to make a base at a boundary; None if there can be none, or there is one.

    Costs O(batches since the base before).
    """
    at = boundary(state, hi)
    if at is None or state.bases.get(hi) is not None:
        return None
    before = state.bases.before(hi) if lo is None else state.bases.get(lo)
    if lo and before is None:
        return None
    members = _since(state, before, hi)
    folded = [_int(m.batch.bounds.since) for m in members if m.batch.runs and not m.batch.bounds.since.closed]
    # The rows of a batch that was folded further than it reaches have the time to which it was folded.
    time = max([at - 1, *folded, *([] if before is None else [before.time])])
    runs = [*(() if before is None else before.runs), *(run for m in members for run in m.batch.runs)]
    return MergeRequest(
        SpineId(0 if before is None else before.hi, hi),
        (),
        digest(runs),
        sum(run.rows for run in runs),
        sum(run.size_bytes for run in runs),
        len(runs),
        base=time,
        saves=saves,
    )


def inputs(state: ShardState, asked: MergeRequest) -> list[HollowBatch]:
    """The batches that a base is made of: the base before, and the members since."""
    before = state.bases.get(asked.id.lo)
    batches = [] if before is None else [before.batch(state.minimum)]
    return [*batches, *(member.batch for member in _since(state, before, asked.id.hi))]


def _since(state: ShardState, before: Base | None, hi: int) -> list[Member]:
    return state.spine.range(SpineId(0 if before is None else before.hi, hi))


def _lasting(state: ShardState, hi: int) -> Base | None:
    """The last base at or before an insertion that pays for itself: one at the head of a shard may not.

    Costs O(batches between the last two bases).
    """
    last = state.bases.before(hi)
    if last is None:
        return None
    before = state.bases.before(last.hi - 1)
    updates = sum(member.batch.rows for member in state.spine.range(SpineId(_end(before), last.hi)))
    return last if _rows(last) * _PAYS <= _rows(before) + updates else before


def _end(base: Base | None) -> int:
    return 0 if base is None else base.hi


def _rows(base: Base | None) -> int:
    return 0 if base is None else sum(run.rows for run in base.runs)


def due(state: ShardState) -> MergeRequest | None:
    """The first base that is due at the end of a slice. Costs O(slices since the last base)."""
    spine, bases = state.spine, state.bases
    if not state.domain.total_order or not spine.slices:
        return None
    last = _lasting(state, spine.sliced)
    read = _rows(last)
    # About what a snapshot answers; see `Totals.contents`.
    answer, known, least = read, read, 1
    unpaid = state.unpaid if state.unpaid is not None and state.unpaid.hi > _end(last) else None
    for slice_ in _slices_from(state, _end(last)):
        members = spine.range(slice_.id)
        read += slice_.rows
        answer += slice_.rows - 2 * sum(member.batch.negative_rows for member in members)
        if unpaid is not None and slice_.id.lo < unpaid.hi:
            answer = known = unpaid.rows
            least = read + read // _GROWN
            continue
        if bases.get(slice_.id.hi) is not None:
            continue
        if read >= max(_PAYS * answer, least):
            return request(state, slice_.id.hi, lo=_end(last))
        if read >= _TRIED * max(known, 1):
            # Rows of one time in one run stay apart, and each other row takes away at most one of them.
            alike = max((rows_of_one_time(run) for m in members for run in m.batch.runs), default=0)
            # So a snapshot has at least so many rows.
            known = 2 * alike - read
            if known * _PAYS <= read:
                return request(state, slice_.id.hi, lo=_end(last))
    return None


def due_by_reads(state: ShardState, merged: int) -> MergeRequest | None:
    """The base at the end of the last slice, if reads have paid for it. Costs as `due`."""
    found = request(state, state.spine.sliced, saves=0) if merged else None
    return found if found is not None and found.sources > 1 and found.rows <= merged else None


def serves(state: ShardState, time: int) -> bool:
    """Whether a read as of a time would begin with a base at the end of the last slice."""
    at = boundary(state, state.spine.sliced)
    return at is not None and at - 1 <= time


def due_at_head(state: ShardState) -> MergeRequest | None:
    """The base at the end of the spine of a shard at rest; None if a snapshot there reads little else.

    It is also made if a snapshot reads many runs: merging them costs more than reading them. Only for a shard
    with slices: the reads of others cost little. Costs O(batches since the last base).
    """
    spine, hi = state.spine, state.spine.next_id
    found = request(state, hi, _SAVES_AT_HEAD) if spine.slices else None
    if found is None:
        return None
    if found.sources > _RUNS_AT_HEAD:
        return replace(found, saves=0)
    if state.unpaid is not None and state.unpaid.hi >= hi:
        return None
    answer = sum(batch.rows - 2 * batch.negative_rows for batch in inputs(state, found))
    if state.unpaid is not None and state.unpaid.hi > found.id.lo:
        answer = max(answer, state.unpaid.rows)
    pays = found.rows * (_SAVES_AT_HEAD - 1) >= answer * _SAVES_AT_HEAD
    return found if pays and found.sources > 1 else None


def last_passed(state: ShardState, end: int) -> int:
    """The last boundary at or before the insertion `end` that `since` has passed; 0: there is none.

    Only the ends of slices and of the spine are considered.
    """
    spine = state.spine
    if not spine.slices or state.since.closed:
        return 0
    since = _int(state.since)
    head = boundary(state, spine.next_id)
    if head is not None and head - 1 <= since and spine.next_id <= end:
        return spine.next_id
    index = bisect_right(spine.slices, since, key=lambda held: _int(held.bounds.upper) - 1)
    return spine.slices[index - 1].id.hi if index and spine.slices[index - 1].id.hi <= end else 0


def _slices_from(state: ShardState, lo: int) -> Iterator[SpineBatch]:
    slices = state.spine.slices
    return islice(slices, bisect_left(slices, lo, key=lambda held: held.id.lo), None)


@dataclass(frozen=True)
class Made:
    """A base that was made.

    Attributes:
        seqno: of the state that it was made from.
    """

    request: MergeRequest
    runs: tuple[Run, ...]
    seqno: int

    @property
    def rows(self) -> int:
        """Rows of the base."""
        return sum(run.rows for run in self.runs)

    @property
    def size_bytes(self) -> int:
        """Stored bytes of the base."""
        return sum(run.size_bytes for run in self.runs)

    @property
    def pays(self) -> bool:
        """Whether it is to be kept: a read becomes cheaper by it, in rows and in bytes."""
        asked, share = self.request, self.request.saves
        return not share or (
            self.rows * share <= asked.rows * (share - 1)
            and self.size_bytes * share <= asked.size_bytes * (share - 1)
        )


def add_base(state: ShardState, _now_ms: int, made: Made, *, claim: MergeClaim | None = None) -> Outcome[Fit]:
    """Put a base in, if its boundary still stands, or note that it does not pay. Ends claims on the same ids.

    The first of two bases at a boundary stays. A base at the head, which may be at no end of a slice, or may
    not pay for itself, goes when the next one comes.
    """
    id_ = made.request.id
    hi, at, time = id_.hi, boundary(state, id_.hi), made.request.base
    known = state.bases.get(hi)
    if known is not None and known.runs == made.runs:
        return NoOp(Fit.ALREADY)
    parts = tuple(part for run in made.runs for part in run.parts)
    if claim is None and any(_was_in(state, part.name) for part in parts):
        # A late repetition: the base may be a batch by now, or gone.
        return NoOp(Fit.ALREADY)
    # It may have rows that were erased since.
    old = made.seqno < state.erased
    if old or at is None or time is None or known is not None or not _in_order(state, hi, time):
        return NoOp(Fit.NO_MATCH)
    if claim is not None and not still_recorded(state, claim, parts):
        return NoOp(Fit.NO_MATCH)
    if claim is None and too_late(state, parts):
        return NoOp(Fit.NO_MATCH)
    edits = ending(state, [c for c in state.claims.values() if c.id.overlaps(id_) and c.base is not None])
    if not made.pays:
        return Commit(replace(edits, unpaid=Unpaid(hi, made.rows, made.size_bytes)), Fit.UNPAID)
    last = state.bases.before(hi)
    if last != _lasting(state, hi):
        edits.bases[_end(last)] = None
    edits.bases.update({base.hi: None for base in state.bases.within(state.spine.sliced, hi)})
    edits.bases[hi] = Base(hi, at, time, made.runs, state.seqno + 1)
    before = state.written
    written = replace(
        before, merged_rows=before.merged_rows + made.rows, merged_bytes=before.merged_bytes + made.size_bytes
    )
    return Commit(replace(edits, written=written), Fit.EXACT)


def _was_in(state: ShardState, name: str) -> bool:
    return name in state.part_names or name in state.garbage or name in state.doomed


def _in_order(state: ShardState, hi: int, time: int) -> bool:
    """Whether the times of the bases ascend with one more."""
    before, after = state.bases.before(hi), state.bases.after(hi)
    return (before is None or before.time <= time) and (after is None or time <= after.time)


def passed(state: ShardState) -> Base | None:
    """The last base that `since` has passed; None: there is none."""
    if state.since.closed or not state.domain.total_order:
        return None
    found = state.bases.serving(_int(state.since))
    return found if found is not None and boundary(state, found.hi) is not None else None


def begin_with_base(state: ShardState, now_ms: int) -> Outcome[bool]:
    """Put the last base that `since` has passed in the place of all that is older. Reads and writes no row.

    False if there is none, or a process is merging across its boundary. Costs O(batches before it).
    """
    base = passed(state)
    if base is None:
        return NoOp(False)
    claims = [claim for claim in state.claims.values() if claim.id.lo < base.hi]
    if any(claim.id.hi > base.hi and now_ms < claim.expires_ms for claim in claims):
        return NoOp(False)
    spine, batch = state.spine, base.batch(state.minimum)
    first = Member(SpineId(0, base.hi), batch, base.added)
    slices = [SpineBatch(first.id, 0, batch.bounds, batch.rows)]
    split = spine.holder(SpineId(base.hi - 1, base.hi))
    if split is not None and split.id.hi > base.hi and split.id.lo < spine.sliced:
        slices.append(rest(spine, split, base.hi))
    sliced = max(spine.sliced, base.hi)
    edits = replace(ending(state, claims), spine=shortened(spine, slices, sliced, (first,)), sliced=sliced)
    edits.bases[base.hi] = None
    return Commit(edits, True)


def forget_bases(state: ShardState, _now_ms: int, *, his: tuple[int, ...]) -> Outcome[int]:
    """Remove the bases at some boundaries; returns how many there were. Maintenance makes new ones."""
    edits = Edits(bases={hi: None for hi in his if state.bases.get(hi) is not None})
    return Commit(edits, len(edits.bases)) if edits.bases else NoOp(0)
