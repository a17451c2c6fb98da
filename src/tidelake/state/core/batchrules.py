"""The rules of batches, spines, staged batches and bases; `tidelake.state.core.invariants` checks them."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NoReturn

from tidelake.errors import InternalError
from tidelake.model.batch import ROW_HASHES, HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.core.edits import Edits
from tidelake.state.core.state import ShardState
from tidelake.state.spine.bases import Base
from tidelake.state.spine.spine import (
    LEVEL_BATCHES_MAX,
    Member,
    Spine,
    SpineBatch,
    SpineEdit,
    SpineId,
    Totals,
    intervals,
    listed,
)
from tidelake.state.spine.staged import Staged, begins_before


def broken(rule: str, *detail: object) -> NoReturn:
    """Refuse what breaks a rule. The call stands behind the rule, after an `or`."""
    raise InternalError(f"rule {rule} does not hold: {' '.join(map(str, detail))}")


def check_staged_changes(
    before: ShardState, after: ShardState, edits: Edits, drained: tuple[Frontier, Frontier]
) -> None:
    """Staged batches are numbered and well-formed, lose no row, and lie after the end of the spine."""
    if edits.staged:
        come = {name: staged for name, staged in edits.staged.items() if staged is not None}
        for name, one in come.items():
            added = before.staged.batches[name].added if name in before.staged.batches else after.seqno
            one.added == added or broken("staged-numbered", name, "at", one.added)
        for one in come.values():
            check_batch(one.batch, after)
        if before.upper == after.upper and not after.dropped and not erases(edits):
            _check_drained(before, edits)
    changed = edits.staged and any(name in before.staged.batches for name in edits.staged)
    if changed or before.upper is not after.upper or drained[0].elements != drained[1].elements:
        # A step that closes or drains times concerns all staged batches.
        check_staged(after, after.staged)
    elif edits.staged:
        # A batch that awaits a transaction gets its time when that is decided.
        arrived = [one for one in edits.staged.values() if one is not None and one.awaits is None]
        _check_open(after, arrived)


def check_spine_edit(
    before: ShardState, after: ShardState, edits: Edits, drained: tuple[Frontier, Frontier]
) -> None:
    """New members tile and are well-formed, and the levels describe them."""
    edit = edits.spine or SpineEdit(0, 0)
    grows = drained[0].elements != drained[1].elements
    _check_tiling(before, after, edit, drained, moves=grows or after.dropped or erases(edits))
    same = same_batches(before.spine, after.spine)
    cut = 0 < len(edit.members_gone) < len(edit.members)
    validate_levels(after.spine, after.minimum, drained[1], after.since, same)
    for member in edit.members:
        check_batch(member.batch, after)
        since = member.batch.bounds.since
        since <= after.since or broken("batch-folded-to-since", since, "is after", after.since)
        if (grows or cut) and after.domain.total_order:
            _check_times(member.batch)
    _check_spine_batches(before.spine, after.spine, edit, after.since, same)
    if edit.members_gone:
        # Sums that were not known may be known now, those that the next base was made of as well.
        found = (after.bases.after(member.id.hi - 1) for member in edit.members)
        check_bases(after, {base.hi: base for base in found if base is not None}.values())


def erases(edits: Edits) -> bool:
    """Whether the rows of an erasure leave in this step."""
    return bool(edits.erasures) and any(one.seqno and not one.gone_ms for one in edits.erasures.values())


def _check_tiling(
    before: ShardState,
    after: ShardState,
    edit: SpineEdit,
    drained: tuple[Frontier, Frontier],
    *,
    moves: bool,
) -> None:
    """New members cover the times of the members that go, and at the end the newly drained times.

    They have the same rows, unless it `moves` rows in or out.
    """
    gone, come = [], []
    covered = intervals([member.id for member in edit.members])
    if not (covered and covered[-1].hi == after.spine.next_id):
        drained[0].elements == drained[1].elements or broken("batches-tile", "batches end at", drained[1])
    for ids in covered:
        old = ids.lo < before.spine.next_id
        removed = before.spine.range(SpineId(ids.lo, min(ids.hi, before.spine.next_id))) if old else []
        added = after.spine.range(ids)
        at = removed[0].batch.bounds.lower if removed else drained[0]
        end = drained[1] if ids.hi == after.spine.next_id else removed[-1].batch.bounds.upper
        for member in added:
            bounds = member.batch.bounds
            bounds.lower.elements == at.elements or broken("batches-tile", bounds, "does not start at", at)
            at = bounds.upper
        at.elements == end.elements or broken("batches-tile", "batches end at", at, "instead of", end)
        gone += removed
        come += added
    if not moves:
        rules = "merge-keeps-diffs", "merge-keeps-rows"
        _check_kept(*rules, [member.batch for member in gone], [member.batch for member in come])


def check_bases(state: ShardState, bases: Iterable[Base]) -> None:
    """These bases stand at boundaries between members, in order, and sum up what is before them.

    Costs O(batches since the base before each).
    """
    for base in bases:
        state.domain.total_order or broken("base-total-order", state.shard_id)
        len(base.runs) <= 1 or broken("base-is-one-run", base.hi)
        members = state.spine.members
        end = members[base.hi].batch.bounds.lower if base.hi in members else state.drained
        stands = state.spine.begins(base.hi) and end.elements == (base.at,)
        stands or broken("base-boundary-stands", base.hi, "at", base.at)
        before, after = state.bases.before(base.hi - 1), state.bases.after(base.hi)
        base.at - 1 <= base.time or broken("bases-in-order", base.hi, "has time", base.time)
        before is None or before.time <= base.time or broken("bases-in-order", base.hi, "comes too late")
        after is None or base.time <= after.time or broken("bases-in-order", base.hi, "comes too early")
        check_batch(base.batch(state.minimum), state)
        since = state.spine.range(SpineId(0 if before is None else before.hi, base.hi))
        first = [] if before is None else [before.batch(state.minimum)]
        rules = "base-keeps-diffs", "base-keeps-rows"
        _check_kept(*rules, [*first, *(member.batch for member in since)], [base.batch(state.minimum)])


def _check_slices(after: Spine, edit: SpineEdit, since: Frontier) -> None:
    """Slices that come, or have new members, describe their members. Costs O(members in them)."""
    sliced = after.sliced
    touched = {batch.id for batch in edit.batches if batch.id.lo < sliced}
    for member in edit.members:
        if member.id.lo < sliced:
            held = after.holder(member.id)
            held is not None or broken("levels-say-members", "member", member.id, "is in several slices")
            touched |= {held.id} if held is not None else set()
    for id_ in touched:
        held = after.holder(id_)
        members = after.range(id_)
        rows = sum(member.batch.rows for member in members)
        folded = all(member.batch.bounds.since <= held.bounds.since for member in members) if held else False
        first, last = members[0].batch.bounds.lower, members[-1].batch.bounds.upper
        same = held is not None and (held.rows, held.bounds.lower, held.bounds.upper) == (rows, first, last)
        (same and folded) or broken(
            "levels-say-members", "slice", id_, "says something else than its members"
        )
        past = held is not None and held.bounds.since <= since
        past or broken("levels-say-members", "slice", id_, "is since a time after the shard's", since)


def _check_spine_batches(before: Spine, after: Spine, edit: SpineEdit, since: Frontier, same: int) -> None:
    """Spine batches describe their members. Costs O(change) and O(levels), unless one was split.

    The first `same` are as before. They are looked at only if members in them change.
    """
    if after.slices:
        _check_slices(after, edit, since)
    touched = [*edit.members_gone, *[member.id for member in edit.members]]
    lo = min(touched)[0] if touched else after.next_id
    while same and after.batches[same - 1].id.hi > lo:
        same -= 1
    rule, batches, sliced = "levels-say-members", after.batches[same:], after.sliced
    starts = [batch.id.lo for batch in batches]
    rows, parted = [0] * len(batches), [False] * len(batches)

    for old in before.batches[same:]:
        if old.id.hi <= sliced:
            continue
        if old.id.lo < sliced:
            parted[0] = True
            continue
        for n in range(bisect_right(starts, old.id.lo) - 1, bisect_right(starts, old.id.hi - 1)):
            rows[n] += old.rows
            covers = batches[n].id.covers(old.id) and old.bounds.since <= batches[n].bounds.since
            parted[n] = parted[n] or not covers
    for id_ in edit.members_gone:
        if id_.lo >= sliced:
            rows[bisect_right(starts, id_.lo) - 1] -= before.members[id_.lo].batch.rows
    for member in edit.members:
        if member.id.lo < sliced:
            continue
        n = bisect_right(starts, member.id.lo) - 1
        held, since = batches[n], member.batch.bounds.since
        rows[n] += member.batch.rows
        since <= held.bounds.since or broken(rule, held.id, "is since", held.bounds.since, "before", since)
    for n, batch in enumerate(batches):
        first = after.members.get(batch.id.lo)
        begins = first is not None and first.batch.bounds.lower.elements == batch.bounds.lower.elements
        begins or broken(rule, batch.id, "begins elsewhere than at", batch.bounds.lower)
        if parted[n]:
            members = after.range(batch.id)
            rows[n] = sum(member.batch.rows for member in members)
            folded = all(member.batch.bounds.since <= batch.bounds.since for member in members)
            folded or broken(rule, batch.id, "is since", batch.bounds.since, "before a member")
        rows[n] == batch.rows or broken(rule, batch.id, "says", batch.rows, "rows, not", rows[n])


def check_staged(state: ShardState, staged: Iterable[Staged]) -> None:
    """No staged time is before the spine's end, which is `upper` unless something is staged before that."""
    end = state.drained
    reaches = end.elements == state.upper.elements
    reaches or end <= state.upper or broken("drained-up-to-upper", end, "is after", state.upper)
    _check_open(state, staged)
    waits = reaches or any(begins_before(one.batch, state.upper) for one in staged)
    waits or broken("drained-up-to-upper", "nothing is staged between", end, "and", state.upper)


def _check_open(state: ShardState, staged: Iterable[Staged]) -> None:
    """These staged batches hold rows, at times at or after the end of the spine."""
    for one in staged:
        one.batch.runs or broken("staged-holds-rows", one.batch.bounds)
        not begins_before(one.batch, state.drained) or broken("staged-is-open", one.name)


def _check_drained(before: ShardState, edits: Edits) -> None:
    """Rows that leave the staged batches while no time is closed go into the spine, or are staged again."""
    known = before.staged.batches
    # A batch that awaits a transaction may be withdrawn; if it is let in, it stays where it is.
    gone: list[Member | Staged] = [
        known[name] for name, one in edits.staged.items() if one is None and known[name].awaits is None
    ]
    if not gone:
        return
    come: list[Member | Staged] = [
        one for name, one in edits.staged.items() if one is not None and name not in known
    ]
    if edits.spine is not None:
        gone += [before.spine.members[id_.lo] for id_ in edits.spine.members_gone]
        come += edits.spine.members
    rules = "drain-keeps-diffs", "drain-keeps-rows"
    _check_kept(*rules, [one.batch for one in gone], [one.batch for one in come])


def _check_kept(diffs: str, rows: str, before: list[HollowBatch], after: list[HollowBatch]) -> None:
    """Check by both rules that batches have the updates of those whose place they take."""
    old, new = diff_sum(before), diff_sum(after)
    old is None or new is None or old == new or broken(diffs, old, "became", new)
    may_have_the_same_rows(before, after) or broken(rows, "the hash of", len(before), "batches changed")


def _check_times(batch: HollowBatch) -> None:
    """The times of a batch that is appended or cut, as a reader will see them, lie in its bounds."""
    for run in batch.runs:
        for part in run.parts:
            first, last = part.seen_times
            inside = batch.bounds.lower.less_equal(first) and not batch.bounds.upper.less_equal(last)
            inside or run.truncated or broken("times-in-bounds", "part", part.name, "from", first, "to", last)


def check_batch(batch: HollowBatch, state: ShardState) -> None:
    """A batch is well-formed."""
    for run in batch.runs:
        run.parts or broken("run-has-parts", batch.bounds)
        for part in run.parts:
            part.schema_id in state.schemas or broken("schema-registered", "part", part.name)
            (part.rows > 0 and part.size_bytes > 0) or broken("part-has-rows", part.name)
            part.rewrite is None or state.domain.total_order or broken("rewrite-total-order", part.name)
    not (batch.bounds.empty and batch.runs) or broken("empty-bounds-hold-nothing", batch.bounds)


def diff_sum(batches: Iterable[HollowBatch]) -> int | None:
    """The sum of all diffs; None if it is not known of a batch."""
    total = 0
    for batch in batches:
        known = batch.diff_sum
        if known is None:
            return None
        total += known
    return total


def may_have_the_same_rows(before: Sequence[HollowBatch], after: Sequence[HollowBatch]) -> bool:
    """Whether the hashes of the rows are equal, or one of them is not known. Costs O(parts).

    Hashes are known of parts that were written with one, and not narrowed. They can be compared
    if all parts are of one schema: a change of columns changes the hash of the same row.
    """
    if len({part.schema_id for batch in (*before, *after) for part in batch.parts()}) > 1:
        return True
    old, new = _row_hash(before), _row_hash(after)
    return old is None or new is None or old == new


def _row_hash(batches: Iterable[HollowBatch]) -> int | None:
    total = 0
    for batch in batches:
        for run in batch.runs:
            if run.row_hash is None:
                return None
            total += run.row_hash
    return total % ROW_HASHES


def validate(spine: Spine, minimum: Frontier, upper: Frontier, since: Frontier) -> None:
    """Check every rule of a spine. Costs O(members)."""
    tiles = [(member.id, member.batch.bounds) for member in spine]
    _check_tiles("member", tiles, (0, spine.next_id), (minimum, upper), since)
    if sum(1 for _ in spine) != len(spine):
        raise InternalError("the spine holds members outside the ids that it tiles")
    for batch in spine.all_batches():
        members = spine.range(batch.id)
        rows = sum(member.batch.rows for member in members)
        if rows != batch.rows:
            raise InternalError(f"spine batch {batch.id} says {batch.rows} rows, its members have {rows}")
        first, last = members[0].batch.bounds, members[-1].batch.bounds
        if (first.lower, last.upper) != (batch.bounds.lower, batch.bounds.upper):
            raise InternalError(f"spine batch {batch.id} says {batch.bounds}, its members differ")
        if not all(member.batch.bounds.since <= batch.bounds.since for member in members):
            raise InternalError(f"spine batch {batch.id} is since {batch.bounds.since}, a member is later")
    if spine.totals != Totals().plus(spine):
        raise InternalError(f"the totals {spine.totals} are not those of the members")
    if spine.slices:
        slices = [(held.id, held.bounds) for held in spine.slices]
        ends = minimum, spine.slices[-1].bounds.upper
        _check_tiles("slice", slices, (0, spine.sliced), ends, since)
    validate_levels(spine, minimum, upper, since)


def same_batches(before: Spine, after: Spine) -> int:
    """How many of the oldest spine batches of the levels a step has left as they were; 0 if slices moved."""
    if before.slices is not after.slices and before.sliced != after.sliced:
        return 0
    same = 0
    for old, new in zip(before.batches, after.batches, strict=False):
        if old is not new:
            break
        same += 1
    return same


def validate_levels(spine: Spine, minimum: Frontier, upper: Frontier, since: Frontier, same: int = 0) -> None:
    """Check the rules of spine batches and merges. Costs O(levels)."""
    tiles = [(batch.id, batch.bounds) for batch in spine.batches[same:]]
    start, first = spine.slices[-1].bounds.upper if spine.slices else minimum, spine.sliced
    if same:
        start, first = spine.batches[same - 1].bounds.upper, spine.batches[same - 1].id.hi
    _check_tiles("spine batch", tiles, (first, spine.next_id), (start, upper), since)
    levels = [batch.level for batch in spine.batches]
    if levels != sorted(levels, reverse=True):
        raise InternalError(f"levels {levels} do not fall from old to new")
    by_level: dict[int, list[SpineBatch]] = {}
    for batch in spine.batches:
        by_level.setdefault(batch.level, []).append(batch)
    full: list[SpineId] = []
    for level, batches in by_level.items():
        if len(batches) > LEVEL_BATCHES_MAX:
            raise InternalError(f"level {level} holds {len(batches)} spine batches")
        if len(batches) == LEVEL_BATCHES_MAX:
            full.append(SpineId(batches[0].id.lo, batches[-1].id.hi))
    if full != [merge.id for merge in spine.merges]:
        raise InternalError(
            f"full levels at {listed(full)}, merges under way at {listed(m.id for m in spine.merges)}"
        )
    for merge in spine.merges:
        if not merge.since <= since:
            raise InternalError(f"merge {merge.id} since {merge.since} is after the shard's {since}")


def _check_tiles(
    what: str,
    tiles: list[tuple[SpineId, Bounds]],
    ids: tuple[int, int],
    ends: tuple[Frontier, Frontier],
    since: Frontier,
) -> None:
    (lo, last), (at, upper) = ids, ends
    for id_, bounds in tiles:
        if id_.lo != lo or id_.hi <= lo:
            raise InternalError(f"{what} {id_} does not start at id {lo}")
        if bounds.lower.elements != at.elements:
            raise InternalError(f"{what} {id_} starts at {bounds.lower}, expected {at}")
        if not bounds.since <= since:
            raise InternalError(f"{what} {id_} since {bounds.since} is after the shard's {since}")
        lo, at = id_.hi, bounds.upper
    if lo != last:
        raise InternalError(f"the ids end at {lo}, expected {last}")
    if at.elements != upper.elements:
        raise InternalError(f"the batches end at {at}, the shard at {upper}")
