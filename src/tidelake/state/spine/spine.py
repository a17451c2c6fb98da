"""The spine: the ordered list of a shard's batches, and the levels that say which to merge.

A *member* is a batch as it was appended or as a merge has made it. A *spine batch* is a range of members that
the levels treat as one: a merge that is decided, whether or not it has been carried out. Both have a
`SpineId`, the half-open range `[lo, hi)` of the insertions in them. A level holds at most two spine batches;
if it holds two, a merge of them is under way, and only then.

The oldest spine batches are *slices*: each is an interval of time that is merged within itself, and never
with its neighbours. They stand before the levels; `tidelake.state.upkeep.slices` decides where they are cut.

Members, spine batches and merges are stored flat, by id; there is no other form. A step of the spine is a
`SpineEdit`, which names the few of them that go and come. `tidelake.state.spine.fuel` decides the steps.

INVARIANT: `validate` holds after every edit: ids tile `[0, next_id)` and bounds `[minimum, upper)`, of the
members and of the spine batches alike.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from pyrsistent import PMap, PSet, PVector, pmap, pset, pvector

from tidelake.errors import InternalError
from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.frozen import with_fields

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
        level: where it stands; each level holds about twice as many updates as the one below. 0 for a slice.
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
        batches_gone: ids of spine batches that go, or change; slices are among them.
        batches: those that come, ascending; slices are among them.
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
    negative_rows: int = 0

    @property
    def contents(self) -> int:
        """About how many rows the collection has, if most updates add or take away one row."""
        return max(0, self.rows - 2 * self.negative_rows)

    def plus(self, come: Iterable["_Held"], gone: Iterable["_Held"] = ()) -> "Totals":
        """With batches added, and others taken away."""
        members, runs, rows = self.members, self.runs, self.rows
        size_bytes, inline_bytes, negative_rows = self.size_bytes, self.inline_bytes, self.negative_rows
        for sign, held in ((1, come), (-1, gone)):
            for one in held:
                members += sign
                runs += sign * len(one.batch.runs)
                rows += sign * one.batch.rows
                size_bytes += sign * one.batch.size_bytes
                inline_bytes += sign * one.batch.inline_bytes
                negative_rows += sign * one.batch.negative_rows
        return Totals(members, runs, rows, size_bytes, inline_bytes, negative_rows)


@dataclass(frozen=True)
class Spine:
    """Members, spine batches and merges. Shares structure with the spines it was made from.

    Attributes:
        batches: those of the levels, oldest first, so from the highest level down.
        slices: oldest first; all are older than `batches`.
        unmerged: the first ids of the slices that are not one member of at most one run.
    """

    next_id: int = 0
    spent: int = 0
    members: PMap[int, Member] = field(default_factory=pmap)
    batches: tuple[SpineBatch, ...] = ()
    merges: tuple[FuelingMerge, ...] = ()
    totals: Totals = Totals()
    slices: PVector[SpineBatch] = field(default_factory=pvector)
    unmerged: PSet[int] = field(default_factory=pset)

    @classmethod
    def of(
        cls,
        next_id: int,
        spent: int,
        members: Iterable[Member],
        batches: Iterable[SpineBatch],
        merges: tuple[FuelingMerge, ...] = (),
        *,
        sliced: int = 0,
    ) -> "Spine":
        """The spine of values that were stored; slices are the batches before `sliced`. Costs O(members)."""
        by_lo = pmap({member.id.lo: member for member in members})
        slices, levels = _divided(batches, sliced)
        found = cls(next_id, spent, by_lo, levels, merges, Totals().plus(by_lo.values()), pvector(slices))
        return found._noted(slices)

    def with_members(self, members: Iterable[Member]) -> "Spine":
        """The spine with other members of the same ids and bounds. Costs O(members)."""
        return Spine.of(
            self.next_id, self.spent, members, self.all_batches(), self.merges, sliced=self.sliced
        )

    def __iter__(self) -> Iterator[Member]:
        """The members, oldest first."""
        return self.since(0)

    def held(self) -> list[Member]:
        """The members in the order of their first ids, even if they do not tile."""
        return [self.members[lo] for lo in sorted(self.members)]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def sliced(self) -> int:
        """Insertions before this id are in slices."""
        return self.slices[-1].id.hi if self.slices else 0

    def all_batches(self) -> Iterator[SpineBatch]:
        """Slices and the batches of the levels, oldest first."""
        return chain(self.slices, self.batches)

    @property
    def end(self) -> Frontier | None:
        """The frontier at which the last member ends; None if there is none."""
        if self.batches:
            return self.batches[-1].bounds.upper
        return self.slices[-1].bounds.upper if self.slices else None

    def range(self, id_: SpineId) -> list[Member]:
        """The members that tile a range of ids, oldest first."""
        members = self.tiling(id_)
        if members is None:
            raise InternalError(f"no members of the spine tile the ids {id_}")
        return members

    def tiling(self, id_: SpineId) -> list[Member] | None:
        """The members that cover exactly this range, oldest first; None if there are none."""
        members, lo = list[Member](), id_.lo
        while lo < id_.hi:
            try:
                found = self.members[lo]
            except KeyError:
                return None
            members.append(found)
            lo = found.id.hi
        return members if lo == id_.hi else None

    def levels(self, end: int | None = None) -> Iterator[Member]:
        """The members that are in no slice, oldest first; with `end` those that begin before this id."""
        return takewhile(lambda member: end is None or member.id.lo < end, self.since(self.sliced))

    def since(self, lo: int) -> Iterator[Member]:
        """The members from an id on, oldest first, each looked up when it is asked for."""
        while lo != self.next_id:
            try:
                found = self.members[lo]
            except KeyError:
                ids = SpineId(lo, self.next_id)
                raise InternalError(f"no members of the spine tile the ids {ids}") from None
            yield found
            lo = found.id.hi

    def begins(self, id_: int) -> bool:
        """Whether no member has insertions on both sides of the start of this one."""
        return id_ in (0, self.next_id) or id_ in self.members

    def holder(self, id_: SpineId) -> SpineBatch | None:
        """The spine batch that a range of members belongs to; None if they belong to none, or to several."""
        if id_.lo < self.sliced:
            found = self.slices[bisect_right(self.slices, id_.lo, key=lambda held: held.id.lo) - 1]
            return found if found.id.covers(id_) else None
        return next((batch for batch in self.batches if batch.id.covers(id_)), None)

    def edited(self, edit: SpineEdit, sliced: int | None = None) -> "Spine":
        """The spine after an edit; `sliced` is the end of the slices if that moves.

        Costs O(change) and O(levels). An edit that divides or joins slices costs O(slices).
        """
        if edit.next_id < self.next_id or edit.spent < self.spent:
            raise InternalError(f"ids or fuel go back: to {edit.next_id}, {edit.spent}")
        gone: list[Member] = []
        for id_ in edit.members_gone:
            if id_.lo not in self.members or (old := self.members[id_.lo]).id != id_:
                raise InternalError(f"the members {listed(edit.members_gone)} are not all there")
            gone.append(old)
        fresh = SpineId(self.next_id, edit.next_id)
        _check_cover("members", edit.members_gone, fresh, [member.id for member in edit.members])
        _check_cover("batches", edit.batches_gone, fresh, [batch.id for batch in edit.batches])
        old_end = self.sliced
        end = old_end if sliced is None else sliced
        if end < old_end or end > edit.next_id:
            raise InternalError(f"the slices end at {end}, after {old_end}")
        members = self.members.evolver()
        for old in gone:
            del members[old.id.lo]
        for new in edit.members:
            members[new.id.lo] = new
        slices, levels = _divided(edit.batches, end)
        old_slices, old_levels = list[SpineId](), list[SpineId]()
        for id_ in edit.batches_gone:
            (old_slices if id_.lo < old_end else old_levels).append(id_)
        unmerged = self.unmerged
        for id_ in old_slices:
            unmerged = unmerged.discard(id_.lo)
        spine = Spine(
            edit.next_id,
            edit.spent,
            members.persistent(),
            _edited("spine batch", self.batches, old_levels, levels),
            _edited("merge", self.merges, edit.merges_gone, edit.merges),
            self.totals.plus(edit.members, gone),
            self._resliced(old_slices, slices) if old_slices or slices else self.slices,
            unmerged,
        )
        if spine.sliced != end:
            raise InternalError(f"the slices end at {spine.sliced} instead of {end}")
        if not end:
            return spine
        merged = (spine.holder(m.id) for m in edit.members if m.id.lo < end)
        return spine._noted([*slices, *(held for held in merged if held is not None)])

    def _resliced(self, gone: Sequence[SpineId], come: Sequence[SpineBatch]) -> PVector[SpineBatch]:
        """The slices after an edit."""
        if not gone:
            return self.slices.extend(come)
        ends = [id_.hi for id_ in gone]
        index = bisect_right(self.slices, gone[0].lo, key=lambda held: held.id.lo) - 1
        if (
            [batch.id for batch in come[: len(gone)]]
            == list(gone)
            == [held.id for held in self.slices[index : index + len(gone)]]
        ):
            changed = self.slices.evolver()
            for n, batch in enumerate(come[: len(gone)]):
                changed[index + n] = batch
            return changed.persistent().extend(come[len(gone) :])
        kept = [held for held in self.slices if held.id not in gone]
        if len(self.slices) - len(kept) != len(ends):
            raise InternalError(f"an edit ends slices {listed(gone)}, which are not all there")
        return pvector(sorted((*kept, *come), key=lambda held: held.id))

    def _noted(self, slices: Iterable[SpineBatch]) -> "Spine":
        """With these slices entered in `unmerged`, or removed from it."""
        noted = self.unmerged
        for held in slices:
            first = self.members.get(held.id.lo)
            merged = first is not None and first.id == held.id and len(first.batch.runs) <= 1
            noted = noted.discard(held.id.lo) if merged else noted.add(held.id.lo)
        return self if noted is self.unmerged else with_fields(self, unmerged=noted)


def _divided(batches: Iterable[SpineBatch], sliced: int) -> tuple[list[SpineBatch], tuple[SpineBatch, ...]]:
    """The slices, and the batches of the levels."""
    slices, levels = list[SpineBatch](), list[SpineBatch]()
    for batch in batches:
        (slices if batch.id.lo < sliced else levels).append(batch)
    return slices, tuple(levels)


class _Held(Protocol):
    @property
    def batch(self) -> HollowBatch: ...


class _Identified(Protocol):
    @property
    def id(self) -> SpineId: ...


Item = TypeVar("Item", bound=_Identified)
_ID = attrgetter("id")


def _edited(
    what: str, present: tuple[Item, ...], gone: Collection[SpineId], come: tuple[Item, ...]
) -> tuple[Item, ...]:
    kept = [item for item in present if item.id not in gone]
    if len(present) - len(kept) != len(gone):
        raise InternalError(f"an edit ends {what} {listed(gone)}, which are not all there")
    return tuple(sorted((*kept, *come), key=_ID))


def _check_cover(what: str, gone: Sequence[SpineId], fresh: SpineId, come: Sequence[SpineId]) -> None:
    """Check that what comes covers the same insertions as what goes, and the new one."""
    if not gone and len(come) == 1 and come[0] == fresh and fresh.lo < fresh.hi:
        return
    before, after = intervals([*gone, fresh]), intervals(come)
    covered = 0
    for lo, hi in come:
        if lo >= hi:
            raise InternalError(f"an edit brings {what} {listed(come)}, one of which covers no insertion")
        covered += hi - lo
    if before != after or covered != sum([hi - lo for lo, hi in after]):
        raise InternalError(f"an edit replaces {what} of ids {listed(before)} by some of {listed(after)}")


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


def listed(ids: Iterable[SpineId]) -> str:
    """Ids as text for an error."""
    return ", ".join(map(str, ids)) or "none"
