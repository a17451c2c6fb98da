"""Slices: history in intervals of time, each merged within itself and never with its neighbours.

A merged run is sorted by key, so its times lie anywhere in it: a read of a few times reads all of it. Slices
bound that. Once the oldest batches of the levels hold as many updates as a slice, they leave the levels. A
slice that is much longer (a bulk load, a drain, a run of an older lake) is cut by time.

Only a totally ordered time can be cut. Pure: `tidelake.shard.upkeep` reads and writes the rows.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import islice, pairwise

from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit, NoOp, Outcome
from tidelake.state.core.edits import Edits
from tidelake.state.core.state import ShardState
from tidelake.state.spine.merging import Fit, MergeRequest, MergeResult, chosen, digest, request
from tidelake.state.spine.spine import FuelingMerge, Member, Spine, SpineBatch, SpineEdit, SpineId

# A slice has at least this fraction of the contents, so that their bases are few.
_CONTENTS_SHARE = 16
# A slice of more than this many times the usual rows is cut by time, into at most so many pieces at once.
_LONG = 4
PIECES_MAX = 16


def slice_rows(spine: Spine, least: int) -> int:
    """How many updates make a slice: `least`, or more in a large collection."""
    return max(least, spine.totals.contents // _CONTENTS_SHARE)


def cut_slices(state: ShardState, _now_ms: int, *, least: int) -> Outcome[int]:
    """Make slices of the oldest members of the levels; the number of slices. Reads and writes no row."""
    spine = state.spine
    groups = list(_groups(state, slice_rows(spine, least))) if may_cut(state, least) else []
    if not groups:
        return NoOp(0)
    slices = [_slice(spine, group) for group in groups]
    sliced = slices[-1].id.hi
    return Commit(Edits(spine=shortened(spine, slices, sliced), sliced=sliced), len(slices))


def shortened(
    spine: Spine, slices: Iterable[SpineBatch], sliced: int, members: tuple[Member, ...] = ()
) -> SpineEdit:
    """The edit that puts slices in the place of the oldest batches of the levels, which then begin later."""
    come = list(slices)
    levels = [rest(spine, batch, sliced) for batch in spine.batches if batch.id.hi > sliced]
    merges: list[FuelingMerge] = []
    for merge in spine.merges:
        inputs = [batch for batch in levels if merge.id.covers(batch.id)]
        if len(inputs) > 1:
            merges.append(replace(merge, id=SpineId(inputs[0].id.lo, inputs[-1].id.hi)))
    start = bisect_left(spine.slices, come[0].id.lo, key=lambda held: held.id.lo)
    gone = [held for held in islice(spine.slices, start, None) if held.id.lo < come[-1].id.hi]
    gone += [batch for batch in spine.batches if batch not in levels]
    return SpineEdit(
        spine.next_id,
        spine.spent,
        members_gone=tuple(old.id for new in members for old in spine.range(new.id)),
        members=members,
        batches_gone=tuple(batch.id for batch in gone),
        batches=(*come, *(batch for batch in levels if batch not in spine.batches)),
        merges_gone=tuple(merge.id for merge in spine.merges if merge not in merges),
        merges=tuple(merge for merge in merges if merge not in spine.merges),
    )


def may_cut(state: ShardState, least: int) -> bool:
    """Whether the levels hold as many updates as a slice. Costs O(levels)."""
    rows = sum([batch.rows for batch in state.spine.batches])
    able = state.domain.total_order and not state.dropped
    return able and rows >= slice_rows(state.spine, least)


def _groups(state: ShardState, rows: int) -> Iterator[list[Member]]:
    """The members of each new slice. A slice ends within no merge that a process has claimed."""
    spine, claims = state.spine, [claim.id for claim in state.claims.values()]
    group: list[Member] = []
    held = 0
    for member in spine.levels():
        if group and member.batch.rows >= _LONG * rows and not _within(claims, member.id.lo):
            # The next one is cut by time, and would be merged with this group first.
            yield group
            group, held = [], 0
        group.append(member)
        held += member.batch.rows
        if held >= rows and not _within(claims, member.id.hi):
            yield group
            group, held = [], 0


def _within(claims: Iterable[SpineId], id_: int) -> bool:
    return any(claim.lo < id_ < claim.hi for claim in claims)


def _slice(spine: Spine, group: list[Member]) -> SpineBatch:
    id_ = SpineId(group[0].id.lo, group[-1].id.hi)
    since = reduce(Frontier.join, (batch.bounds.since for batch in spine.batches if batch.id.overlaps(id_)))
    bounds = Bounds(group[0].batch.bounds.lower, group[-1].batch.bounds.upper, since)
    return SpineBatch(id_, 0, bounds, sum(member.batch.rows for member in group))


def rest(spine: Spine, batch: SpineBatch, lo: int) -> SpineBatch:
    """What is left of a batch from an insertion on; its level stays."""
    if batch.id.lo >= lo:
        return batch
    id_ = SpineId(lo, batch.id.hi)
    members = spine.range(id_)
    bounds = replace(batch.bounds, lower=members[0].batch.bounds.lower)
    return SpineBatch(id_, batch.level, bounds, sum(member.batch.rows for member in members))


def long_slices(state: ShardState, least: int) -> Iterator[MergeRequest]:
    """The requests to cut a slice by time, newest first. Costs O(slices).

    A piece may still be long: part descriptions tell few times apart. Then it is cut again.
    """
    spine = state.spine
    rows = slice_rows(spine, least)
    for held in reversed(spine.slices):
        if held.rows > _LONG * rows and held.id.lo not in spine.unmerged:
            member = spine.members[held.id.lo]
            times = () if member.batch.bounds.since.closed else _times(member, rows)
            if times:
                yield replace(request([member]), times=times)


def _times(member: Member, rows: int) -> tuple[int, ...]:
    """The times between pieces of about so many updates; there are fewer than the member has ids."""
    bounds = member.batch.bounds
    counts: dict[int, int] = {}
    for part in member.batch.parts():
        for time, count in part.time_counts:
            counts[time] = counts.get(time, 0) + count
    pieces = min(member.id.hi - member.id.lo, PIECES_MAX, -(-member.batch.rows // rows))
    share = member.batch.rows / max(pieces, 1)
    times: list[int] = []
    seen = 0
    for time in sorted(counts):
        begins = _first(bounds) < time and not bounds.upper.less_equal(time)
        if begins and seen >= share * (len(times) + 1) and len(times) + 1 < pieces:
            times.append(time)
        seen += counts[time]
    return tuple(times)


def cut_fits(spine: Spine, id_: SpineId, inputs: str, times: tuple[int, ...]) -> bool:
    """Whether a slice can be cut at these times: it is the one asked for, and has not been merged."""
    held, member = spine.holder(id_), spine.members.get(id_.lo)
    if held is None or member is None or not held.id == member.id == id_ or id_.hi > spine.sliced:
        return False
    bounds = member.batch.bounds
    if bounds.since.closed or digest(chosen([member], ())) != inputs:
        return False
    edges = [_first(bounds), *times]
    ascending = all(a < b for a, b in pairwise(edges)) and not bounds.upper.less_equal(edges[-1])
    return ascending and 1 < len(edges) <= id_.hi - id_.lo


def _first(bounds: Bounds) -> int:
    """The first time at which a batch may have rows: those up to `since` have that time."""
    (first,) = bounds.lower.join(bounds.since).elements
    return first if isinstance(first, int) else first[0]


def cut_edit(spine: Spine, result: MergeResult, seqno: int) -> tuple[Fit, SpineEdit | None]:
    """How the pieces of a slice fit, and the edit that puts them in its place."""
    if not cut_fits(spine, result.id, result.inputs, result.times):
        return Fit.NO_MATCH, None
    member = spine.members[result.id.lo]
    bounds = member.batch.bounds
    edges = [bounds.lower, *map(Frontier.of, result.times), bounds.upper]
    # The ids are shared out evenly; each piece has at least one.
    count, width = len(result.pieces), result.id.hi - result.id.lo
    ids = [result.id.lo + width * n // count for n in range(count + 1)]
    members = []
    for n, (run, (lower, upper)) in enumerate(zip(result.pieces, pairwise(edges), strict=True)):
        batch = HollowBatch(Bounds(lower, upper, bounds.since), () if run is None else (run,))
        members.append(Member(SpineId(ids[n], ids[n + 1]), batch, seqno))
    slices = [SpineBatch(m.id, 0, m.batch.bounds, m.batch.rows) for m in members]
    edit = SpineEdit(
        spine.next_id,
        spine.spent,
        members_gone=(member.id,),
        members=tuple(members),
        batches_gone=(result.id,),
        batches=tuple(slices),
    )
    return Fit.EXACT, edit
