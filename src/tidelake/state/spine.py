"""The spine: the ordered list of a shard's batches, and the levels that say which to merge.

A *member* is a batch as it was appended or as a merge has made it. A *spine batch* is a range of members that
the levels treat as one: a merge that is decided, whether or not it has been carried out. Both have a
`SpineId`, the half-open range `[lo, hi)` of the insertions in them. A level holds at most two spine batches;
if it holds two, a merge of them is under way, and only then.

Members, spine batches and merges are stored flat, by id; there is no other form. A step of the spine is a
`SpineEdit`, which names the few of them that go and come. `tidelake.state.fuel` decides the steps.

INVARIANT: `validate` holds after every edit: ids tile `[0, next_id)` and bounds `[minimum, upper)`, of the
members and of the spine batches alike.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from pyrsistent import PMap, pmap

from tidelake.errors import InternalError
from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier

LEVEL_BATCHES_MAX = 2


class SpineId(NamedTuple):
    """A half-open range of insertions, numbered in their order."""

    lo: int
    hi: int

    def __str__(self) -> str:
        return f"[{self.lo}-{self.hi}]"

    def covers(self, other: "SpineId") -> bool:
        """Whether the other range lies within this one."""
        return self.lo <= other.lo and other.hi <= self.hi

    def overlaps(self, other: "SpineId") -> bool:
        """Whether the two have an insertion in common."""
        return self.lo < other.hi and other.lo < self.hi


@dataclass(frozen=True)
class Member:
    """A batch, with the ids of the insertions in it.

    Attributes:
        id: of the insertions.
        batch: what they have become.
        added: seqno of the first state whose readers may have read its parts.
    """

    id: SpineId
    batch: HollowBatch
    added: int = 0


@dataclass(frozen=True)
class SpineBatch:
    """Neighbouring members that the levels treat as one batch.

    Attributes:
        id: covers the ids of its members.
        level: where it stands; each level holds about twice as many updates as the one below.
        bounds: cover those of its members; `since` is how far a merge of them may fold.
        rows: sum over its members.
    """

    id: SpineId
    level: int
    bounds: Bounds
    rows: int


@dataclass(frozen=True)
class FuelingMerge:
    """A merge under way, of the two spine batches of a level.

    Attributes:
        id: covers both.
        since: of the spine batch that they will become.
        done_at: the merge is complete once the spine has been given this much fuel in all.
    """

    id: SpineId
    since: Frontier
    done_at: int


@dataclass(frozen=True)
class SpineEdit:
    """What changes in a spine: ids that go, and values that come.

    Attributes:
        next_id: id of the next insertion, after the edit.
        spent: fuel given in all, after the edit.
        members_gone: ids of members that go.
        members: those that come, ascending.
        batches_gone: ids of spine batches that go, or change.
        batches: those that come, ascending.
        merges_gone: ids of merges under way that end.
        merges: those that begin.
    """

    next_id: int
    spent: int
    members_gone: tuple[SpineId, ...] = ()
    members: tuple[Member, ...] = ()
    batches_gone: tuple[SpineId, ...] = ()
    batches: tuple[SpineBatch, ...] = ()
    merges_gone: tuple[SpineId, ...] = ()
    merges: tuple[FuelingMerge, ...] = ()


@dataclass(frozen=True)
class Totals:
    """Sums over some batches."""

    members: int = 0
    runs: int = 0
    rows: int = 0
    size_bytes: int = 0
    inline_bytes: int = 0

    def plus(self, members: Iterable["_Held"], sign: int = 1) -> "Totals":
        """With these batches added, or taken away (`sign=-1`)."""
        count, runs, rows, size_bytes, inline_bytes = (0, 0, 0, 0, 0)
        for member in members:
            count += 1
            runs += len(member.batch.runs)
            rows += member.batch.rows
            size_bytes += member.batch.size_bytes
            inline_bytes += member.batch.inline_bytes
        return Totals(
            self.members + sign * count,
            self.runs + sign * runs,
            self.rows + sign * rows,
            self.size_bytes + sign * size_bytes,
            self.inline_bytes + sign * inline_bytes,
        )


@dataclass(frozen=True)
class Spine:
    """Members, spine batches and merges. Shares structure with the spines it was made from.

    Attributes:
        next_id: id of the next insertion.
        spent: fuel given in all.
        members: by the first id of their range.
        batches: oldest first, so from the highest level down.
        merges: oldest first.
        totals: of the members.
    """

    next_id: int = 0
    spent: int = 0
    members: PMap[int, Member] = field(default_factory=pmap)
    batches: tuple[SpineBatch, ...] = ()
    merges: tuple[FuelingMerge, ...] = ()
    totals: Totals = Totals()

    @classmethod
    def of(
        cls,
        next_id: int,
        spent: int,
        members: Iterable[Member],
        batches: tuple[SpineBatch, ...],
        merges: tuple[FuelingMerge, ...],
    ) -> "Spine":
        """The spine of values that were stored. Costs O(members)."""
        by_lo = pmap({member.id.lo: member for member in members})
        return cls(next_id, spent, by_lo, batches, merges, Totals().plus(by_lo.values()))

    def __iter__(self) -> Iterator[Member]:
        """The members, oldest first."""
        return self.range(SpineId(0, self.next_id))

    def held(self) -> list[Member]:
        """The members in the order of their first ids, even if they do not tile."""
        return [self.members[lo] for lo in sorted(self.members)]

    def __len__(self) -> int:
        return len(self.members)

    def end(self, minimum: Frontier) -> Frontier:
        """The frontier at which the last member ends; `minimum` if there is none."""
        return self.batches[-1].bounds.upper if self.batches else minimum

    def range(self, id_: SpineId) -> Iterator[Member]:
        """The members that tile a range of ids, oldest first.

        Raises:
            InternalError: no members do.
        """
        lo = id_.lo
        while lo < id_.hi:
            found = self.members.get(lo)
            if found is None or found.id.hi > id_.hi:
                raise InternalError(f"no members of the spine tile the ids {id_}")
            yield found
            lo = found.id.hi

    def tiled(self, id_: SpineId) -> bool:
        """Whether some members cover exactly this range."""
        lo = id_.lo
        while lo < id_.hi:
            found = self.members.get(lo)
            if found is None:
                return False
            lo = found.id.hi
        return lo == id_.hi

    def holder(self, id_: SpineId) -> SpineBatch | None:
        """The spine batch that a range of members belongs to; None if they belong to none, or to several."""
        return next((batch for batch in self.batches if batch.id.covers(id_)), None)

    def edited(self, edit: SpineEdit) -> "Spine":
        """The spine after an edit. Costs O(change) and O(levels).

        Raises:
            InternalError: the edit does not fit.
        """
        if edit.next_id < self.next_id or edit.spent < self.spent:
            raise InternalError(f"ids or fuel go back: to {edit.next_id}, {edit.spent}")
        gone = [self.members[id_.lo] for id_ in edit.members_gone if id_.lo in self.members]
        fresh = SpineId(self.next_id, edit.next_id)
        if [member.id for member in gone] != list(edit.members_gone):
            raise InternalError(f"the members {_listed(edit.members_gone)} are not all there")
        _check_cover("members", edit.members_gone, fresh, [member.id for member in edit.members])
        _check_cover("batches", edit.batches_gone, fresh, [batch.id for batch in edit.batches])
        members = self.members.evolver()
        for old in gone:
            del members[old.id.lo]
        for new in edit.members:
            members[new.id.lo] = new
        return Spine(
            edit.next_id,
            edit.spent,
            members.persistent(),
            _edited("spine batch", self.batches, edit.batches_gone, edit.batches),
            _edited("merge", self.merges, edit.merges_gone, edit.merges),
            self.totals.plus(gone, -1).plus(edit.members),
        )


class _Held(Protocol):
    @property
    def batch(self) -> HollowBatch: ...


class _Identified(Protocol):
    @property
    def id(self) -> SpineId: ...


Item = TypeVar("Item", bound=_Identified)


def _edited(
    what: str, present: tuple[Item, ...], gone: Collection[SpineId], come: tuple[Item, ...]
) -> tuple[Item, ...]:
    kept = [item for item in present if item.id not in gone]
    if len(present) - len(kept) != len(gone):
        raise InternalError(f"an edit ends {what} {_listed(gone)}, which are not all there")
    return tuple(sorted((*kept, *come), key=lambda item: item.id))


def _check_cover(what: str, gone: Sequence[SpineId], fresh: SpineId, come: Sequence[SpineId]) -> None:
    """Check that what comes covers the same insertions as what goes, and the new one."""
    before, after = intervals([*gone, fresh]), intervals(come)
    if not all(lo < hi for lo, hi in come):
        raise InternalError(f"an edit brings {what} {_listed(come)}, one of which covers no insertion")
    if before != after or sum(b - a for a, b in come) != sum(b - a for a, b in after):
        raise InternalError(f"an edit replaces {what} of ids {_listed(before)} by some of {_listed(after)}")


def intervals(ids: Iterable[SpineId]) -> list[SpineId]:
    """The ranges that some ids cover together, ascending; none is empty, and no two touch."""
    found: list[SpineId] = []
    for id_ in sorted(ids):
        if id_.lo == id_.hi:
            continue
        if found and id_.lo <= found[-1].hi:
            found[-1] = SpineId(found[-1].lo, max(found[-1].hi, id_.hi))
        else:
            found.append(id_)
    return found


def _listed(ids: Iterable[SpineId]) -> str:
    return ", ".join(map(str, ids)) or "none"


def validate(spine: Spine, minimum: Frontier, upper: Frontier, since: Frontier) -> None:
    """Check every rule of a spine. Costs O(members).

    Raises:
        InternalError: naming what breaks the rule.
    """
    tiles = [(member.id, member.batch.bounds) for member in spine]
    _check_tiling("member", tiles, spine.next_id, Bounds(minimum, upper, since))
    if sum(1 for _ in spine) != len(spine):
        raise InternalError("the spine holds members outside the ids that it tiles")
    for batch in spine.batches:
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
    validate_levels(spine, minimum, upper, since)


def validate_levels(spine: Spine, minimum: Frontier, upper: Frontier, since: Frontier) -> None:
    """Check the rules of spine batches and merges. Costs O(levels).

    Raises:
        InternalError: naming what breaks the rule.
    """
    tiles = [(batch.id, batch.bounds) for batch in spine.batches]
    _check_tiling("spine batch", tiles, spine.next_id, Bounds(minimum, upper, since))
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
            f"full levels at {_listed(full)}, merges under way at {_listed(m.id for m in spine.merges)}"
        )
    for merge in spine.merges:
        if not merge.since <= since:
            raise InternalError(f"merge {merge.id} since {merge.since} is after the shard's {since}")


def _check_tiling(what: str, tiles: list[tuple[SpineId, Bounds]], next_id: int, whole: Bounds) -> None:
    lo, at = 0, whole.lower
    for id_, bounds in tiles:
        if id_.lo != lo or id_.hi <= lo:
            raise InternalError(f"{what} {id_} does not start at id {lo}")
        if bounds.lower != at:
            raise InternalError(f"{what} {id_} starts at {bounds.lower}, expected {at}")
        if not bounds.since <= whole.since:
            raise InternalError(f"{what} {id_} since {bounds.since} is after the shard's {whole.since}")
        lo, at = id_.hi, bounds.upper
    if lo != next_id:
        raise InternalError(f"the ids end at {lo}, expected {next_id}")
    if at != whole.upper:
        raise InternalError(f"the batches end at {at}, the shard at {whole.upper}")
