"""The rules of a spine: its members, slices, levels and merges tile and describe each other."""

from tidelake.errors import InternalError
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.spine.spine import LEVEL_BATCHES_MAX, Spine, SpineBatch, SpineId, Totals, listed


def validate(spine: Spine, minimum: Frontier, upper: Frontier, since: Frontier) -> None:
    """Check every rule of a spine. Costs O(members).

    Raises:
        InternalError: naming what breaks the rule.
    """
    tiles = [(member.id, member.batch.bounds) for member in spine]
    _check_tiling("member", tiles, SpineId(0, spine.next_id), Bounds(minimum, upper, since))
    if sum(1 for _ in spine) != len(spine):
        raise InternalError("the spine holds members outside the ids that it tiles")
    for batch in spine.all_batches():
        members = list(spine.range(batch.id))
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
        ends = Bounds(minimum, spine.slices[-1].bounds.upper, since)
        _check_tiling("slice", slices, SpineId(0, spine.sliced), ends)
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
    """Check the rules of spine batches and merges. Costs O(levels).

    Args:
        spine: what to check.
        minimum: where it begins.
        upper: where it ends.
        since: of the shard.
        same: so many of the oldest batches have been checked already, with an earlier `since`.

    Raises:
        InternalError: naming what breaks the rule.
    """
    tiles = [(batch.id, batch.bounds) for batch in spine.batches[same:]]
    start, first = spine.slices[-1].bounds.upper if spine.slices else minimum, spine.sliced
    if same:
        start, first = spine.batches[same - 1].bounds.upper, spine.batches[same - 1].id.hi
    _check_tiling("spine batch", tiles, SpineId(first, spine.next_id), Bounds(start, upper, since))
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


def _check_tiling(what: str, tiles: list[tuple[SpineId, Bounds]], ids: SpineId, whole: Bounds) -> None:
    lo, at = ids.lo, whole.lower
    for id_, bounds in tiles:
        if id_.lo != lo or id_.hi <= lo:
            raise InternalError(f"{what} {id_} does not start at id {lo}")
        if bounds.lower.elements != at.elements:
            raise InternalError(f"{what} {id_} starts at {bounds.lower}, expected {at}")
        if not bounds.since <= whole.since:
            raise InternalError(f"{what} {id_} since {bounds.since} is after the shard's {whole.since}")
        lo, at = id_.hi, bounds.upper
    if lo != ids.hi:
        raise InternalError(f"the ids end at {lo}, expected {ids.hi}")
    if at.elements != whole.upper.elements:
        raise InternalError(f"the batches end at {at}, the shard at {whole.upper}")
