"""How a spine takes a batch in: levels of powers of two, and fuel that moves merges along.

A batch of n updates enters at level ceil(log2 n). A level holds at most two spine batches; the second one
begins a merge, whose work is the number of updates in both. Every insertion at level k gives each merge 8 *
2^k fuel, so a merge is complete before its level is needed again. A complete merge becomes one spine batch, a
level higher. All of this is bookkeeping: `tidelake.state.spine.merging` says when rows are read and written.

All merges get the same fuel, so the spine counts it once (`Spine.spent`), and each merge stores the count at
which it is complete: an insertion changes no merge unless it finishes it.

Source: the fueled spine of differential dataflow (McSherry et al., "Shared Arrangements", VLDB 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidelake.errors import InternalError
from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.spine.spine import FuelingMerge, Member, Spine, SpineBatch, SpineEdit, SpineId

FUEL_PER_ROW = 8
# A long batch counts as several insertions, so that its pieces have ids if it is cut by time.
_ROWS_PER_ID = 4_096
Item = TypeVar("Item", SpineBatch, FuelingMerge)


@dataclass(frozen=True)
class MergeDue:
    """A merge that the levels have decided on: these members are one spine batch from now on.

    Attributes:
        bounds: of the batch that its members may become.
    """

    id: SpineId
    bounds: Bounds


@dataclass(frozen=True)
class FuelStep:
    """How a spine changes, and the merges that are due because of it, those of the oldest batches last."""

    edit: SpineEdit
    due: tuple[MergeDue, ...]


def level_of(rows: int) -> int:
    """The level for so many updates: the least k with rows <= 2^k."""
    return (max(rows, 1) - 1).bit_length()


def push(spine: Spine, batch: HollowBatch, since: Frontier, seqno: int) -> FuelStep:
    """Insert a batch at the end. Changes O(log n) entries."""
    levels = _Levels(spine, since)
    if batch.rows or not levels.fuse(batch, seqno):
        levels.introduce(batch, seqno, level_of(batch.rows))
    return levels.step()


def exert(spine: Spine, since: Frontier, fuel: int) -> FuelStep | None:
    """Give fuel to merges without inserting a batch; None if there is nothing to merge."""
    levels = _Levels(spine, since)
    return levels.step() if levels.exert(fuel) else None


def collapse(spine: Spine, since: Frontier) -> FuelStep | None:
    """Make all members one spine batch; None if they are one already. Costs O(levels) and takes no id."""
    levels = _Levels(spine, since)
    return levels.step() if levels.collapse() else None


class _Levels:
    """The levels of a spine while a step is made: batches, and the merge of a level with two."""

    def __init__(self, spine: Spine, since: Frontier) -> None:
        self._before, self._since = spine, since
        self._next_id, self._spent = spine.next_id, spine.spent
        # Levels fall from old to new.
        count = spine.batches[0].level + 1 if spine.batches else 0
        self._levels: list[list[SpineBatch]] = [[] for _ in range(count)]
        self._merges: list[FuelingMerge | None] = [None] * count
        self._fresh: dict[SpineId, Member] = {}
        self._replaced: list[SpineId] = []
        self._due: list[MergeDue] = []
        for batch in spine.batches:
            self._levels[batch.level].append(batch)
        # Oldest first, as the levels with two batches from the top down.
        under_way = iter(spine.merges)
        for i in range(count - 1, -1, -1):
            if len(self._levels[i]) > 1:
                self._merges[i] = next(under_way)

    @property
    def count(self) -> int:
        """Spine batches."""
        return sum(map(len, self._levels))

    def fuse(self, batch: HollowBatch, seqno: int) -> bool:
        """Fuse an empty batch with an empty one that is alone at the lowest level; False if there is none."""
        lowest = next((i for i, level in enumerate(self._levels) if level), None)
        if lowest is None or [b.rows for b in self._levels[lowest]] != [0]:
            return False
        self._insert(lowest, self._inserted(batch, seqno))
        fused = self._complete(lowest)
        if fused is not None:
            self._insert(lowest, fused)
        return True

    def exert(self, fuel: int) -> bool:
        """Give fuel to all merges, or begin one with an empty batch; False if all is one spine batch."""
        if self.count < 2:
            return False
        self.tidy()
        if any(self._merges):
            self._apply_fuel(fuel)
        else:
            upper = self._newest().bounds.upper
            nothing = HollowBatch(Bounds(upper, upper, self._newest().bounds.since))
            self.introduce(nothing, 0, level_of(fuel))
        return True

    def collapse(self) -> bool:
        """Finish all merges and carry each level into the next; False if all is one spine batch."""
        if self.count < 2:
            return False
        while under_way := [merge for merge in self._merges if merge]:
            self._apply_fuel(max(merge.done_at for merge in under_way) - self._spent)
        self._roll_up(len(self._levels))
        self.tidy()
        return True

    def step(self) -> FuelStep:
        """The step from the spine before to these levels."""
        batches = [
            batch if batch.level == i else SpineBatch(batch.id, i, batch.bounds, batch.rows)
            for i, level in reversed(list(enumerate(self._levels)))
            for batch in level
        ]
        merges = [merge for merge in reversed(self._merges) if merge]
        edit = SpineEdit(
            self._next_id,
            self._spent,
            tuple(sorted(self._replaced)),
            tuple(map(self._fresh.__getitem__, sorted(self._fresh))),
            *_changes(self._before.batches, batches),
            *_changes(self._before.merges, merges),
        )
        return FuelStep(edit, self._needed())

    def _inserted(self, batch: HollowBatch, seqno: int) -> SpineBatch:
        id_ = SpineId(self._next_id, self._next_id + 1 + batch.rows // _ROWS_PER_ID)
        self._next_id = id_.hi
        self._fresh[id_] = Member(id_, batch, seqno)
        return SpineBatch(id_, 0, batch.bounds, batch.rows)

    def introduce(self, batch: HollowBatch, seqno: int, level: int) -> None:
        """Insert a batch at a level, which gives fuel to all merges."""
        new = self._inserted(batch, seqno)
        self._apply_fuel(FUEL_PER_ROW << level)
        self._roll_up(level)
        self._insert(level, new)
        self.tidy()

    def _apply_fuel(self, fuel: int) -> None:
        # A merge that begins meanwhile, with what a level below has completed, gets this fuel as well.
        reached = self._spent + fuel
        for i in range(len(self._levels)):
            merge = self._merges[i]
            if merge is not None and merge.done_at <= reached:
                complete = self._complete(i)
                if complete is not None:
                    self._insert(i + 1, complete)
        self._spent = reached

    def _roll_up(self, level: int) -> None:
        """Carry everything below a level up into it as one spine batch: levels must fall from old to new."""
        self._reach(level)
        if not any(self._levels[:level]):
            return
        carried: SpineBatch | None = None
        for i in range(level):
            if carried is not None:
                self._insert(i, carried)
            carried = self._complete(i)
        if carried is not None:
            self._insert(level, carried)
        if self._merges[level] is not None:
            complete = self._complete(level)
            if complete is not None:
                self._insert(level + 1, complete)

    def _insert(self, level: int, batch: SpineBatch) -> None:
        self._reach(level)
        here = self._levels[level]
        if self._merges[level] is not None:
            raise InternalError(f"level {level} is full, and {batch.id} is to enter it")
        here.append(batch)
        if len(here) == 2:
            older, newer = here
            since = older.bounds.since.join(newer.bounds.since).join(self._since)
            work = older.rows + newer.rows
            self._merges[level] = FuelingMerge(SpineId(older.id.lo, newer.id.hi), since, self._spent + work)

    def _complete(self, level: int) -> SpineBatch | None:
        """Empty a level and return its one spine batch, or its two as one; None if the level was empty."""
        here, merge = self._levels[level], self._merges[level]
        self._levels[level], self._merges[level] = [], None
        if merge is None:
            return here[0] if here else None
        older, newer = here
        # A merge result that came in meanwhile may be folded further than was planned when the merge began.
        since = merge.since.join(older.bounds.since).join(newer.bounds.since)
        bounds = Bounds(older.bounds.lower, newer.bounds.upper, since)
        if older.rows == newer.rows == 0:
            self._fuse(merge.id, bounds)
        else:
            self._due.append(MergeDue(merge.id, bounds))
        return SpineBatch(merge.id, level, bounds, older.rows + newer.rows)

    def _fuse(self, id_: SpineId, bounds: Bounds) -> None:
        """Make empty members one at once: without rows there is nothing to merge."""
        for fresh in [known for known in self._fresh if id_.covers(known)]:
            del self._fresh[fresh]
        old = SpineId(id_.lo, min(id_.hi, self._before.next_id))
        # What an earlier fusion in this step replaced is noted already.
        self._replaced += [m.id for m in self._before.range(old) if m.id not in self._replaced]
        self._fresh[id_] = Member(id_, HollowBatch(bounds))

    def tidy(self) -> None:
        """Let the top level sink to the level of its number of updates, if that adds no unpaid work."""
        while len(self._levels) > 1 and len(self._levels[-1]) == 1:
            top = len(self._levels) - 1
            if level_of(self._levels[top][0].rows) >= top:
                return
            below = self._levels[top - 1]
            if self._merges[top - 1] is not None:
                return
            if below:
                smaller = sum(len(level) << i for i, level in enumerate(self._levels[: top - 1]))
                if smaller <= (1 << (top + 1)) // 8:
                    del self._levels[top - 1], self._merges[top - 1]
                    self._insert(top - 1, below[0])
                return
            del self._levels[top - 1], self._merges[top - 1]

    def _reach(self, level: int) -> None:
        while len(self._levels) <= level:
            self._levels.append([])
            self._merges.append(None)

    def _newest(self) -> SpineBatch:
        return next(level[-1] for level in self._levels if level)

    def _needed(self) -> tuple[MergeDue, ...]:
        """The merges of this step, except those that a later one with the same since covers."""
        if len(self._due) < 2:
            return tuple(self._due)
        kept: list[MergeDue] = []
        for due in reversed(self._due):
            if not any(k.id.covers(due.id) and k.bounds.since == due.bounds.since for k in kept):
                kept.append(due)
        return tuple(kept)


def _changes(before: Sequence[Item], after: Sequence[Item]) -> tuple[tuple[SpineId, ...], tuple[Item, ...]]:
    """The ids that go or change, and the items that come or have changed, each in their order."""
    old = {item.id: item for item in before}
    come: list[Item] = []
    for item in after:
        was = old.pop(item.id, None)
        # Most are the same object, which takes less time to see than that they are equal.
        if was is item or (was is not None and was == item):
            continue
        if was is not None:
            old[item.id] = was
        come.append(item)
    # Those that are left go, or change.
    return tuple([item.id for item in before if item.id in old]) if old else (), tuple(come)
