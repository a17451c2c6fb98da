"""The levels of a spine, slowly and plainly: every level is a list, every merge counts its own work down.

Nothing here is shared with `tidelake.state.spine.fuel`: batches carry the list of their hollow batches, empty
levels exist, fuel is taken off every merge. Times are ints; a since is an int as well.
"""

from dataclasses import dataclass, field


@dataclass
class Hollow:
    lo: int
    hi: int
    lower: int
    upper: int
    since: int
    rows: int


@dataclass
class Batch:
    since: int
    hollow: list[Hollow]

    @property
    def span(self):
        first, last = self.hollow[0], self.hollow[-1]
        return (first.lo, last.hi, first.lower, last.upper)

    @property
    def rows(self):
        return sum(h.rows for h in self.hollow)


@dataclass
class Level:
    batches: list[Batch] = field(default_factory=list)
    since: int = 0
    remaining_work: int = 0


def level_for(rows):
    level = 0
    while 2**level < rows:
        level += 1
    return level


class SlowSpine:
    def __init__(self):
        self.next_id = self.upper = self.since = 0
        self.levels: list[Level] = []
        self.requested: list[tuple[tuple[int, int, int, int], int]] = []

    def push(self, upper, rows):
        new = self._new(upper, rows, 0)
        lowest = next((i for i, level in enumerate(self.levels) if level.batches), None)
        if rows == 0 and lowest is not None and [b.rows for b in self.levels[lowest].batches] == [0]:
            self._insert_at(lowest, new)
            self._insert_at(lowest, self._complete(lowest))
        else:
            self._introduce(new, level_for(rows))
        return self._taken()

    def exert(self, fuel):
        if sum(len(level.batches) for level in self.levels) < 2:
            return []
        self._tidy()
        if any(len(level.batches) == 2 for level in self.levels):
            self._apply_fuel(fuel)
        else:
            newest = next(level.batches[-1] for level in self.levels if level.batches)
            self._introduce(self._new(self.upper, 0, newest.since), level_for(fuel))
        return self._taken()

    def replace(self, lo, hi, rows, since):
        """Some hollow batches of a batch have become one."""
        for level in self.levels:
            for batch in level.batches:
                old = [h for h in batch.hollow if lo <= h.lo and h.hi <= hi]
                if old:
                    at = batch.hollow.index(old[0])
                    one = Hollow(lo, hi, old[0].lower, old[-1].upper, since, rows)
                    batch.hollow[at : at + len(old)] = [one]
                    batch.since = max(batch.since, since)

    def _new(self, upper, rows, since):
        lower, self.upper = self.upper, upper
        first = self.next_id
        # A long batch has several ids, for the pieces that it may be cut into.
        self.next_id += 1 + rows // 4096
        return Batch(since, [Hollow(first, self.next_id, lower, upper, since, rows)])

    def _introduce(self, batch, target):
        while len(self.levels) <= target:
            self.levels.append(Level())
        self._apply_fuel(8 * 2**target)
        if any(level.batches for level in self.levels[:target]):
            carried = None
            for i in range(target):
                if carried:
                    self._insert_at(i, carried)
                carried = self._complete(i)
            if carried:
                self._insert_at(target, carried)
            if len(self.levels[target].batches) == 2:
                self._insert_at(target + 1, self._complete(target))
        self._insert_at(target, batch)
        self._tidy()

    def _apply_fuel(self, fuel):
        for i in range(len(self.levels)):
            level = self.levels[i]
            if len(level.batches) == 2:
                level.remaining_work -= min(fuel, level.remaining_work)
                if level.remaining_work == 0:
                    self._insert_at(i + 1, self._complete(i))

    def _insert_at(self, i, batch):
        while len(self.levels) <= i:
            self.levels.append(Level())
        level = self.levels[i]
        assert len(level.batches) < 2, "a level has room for what comes"
        level.batches.append(batch)
        if len(level.batches) == 2:
            level.since = max(self.since, *(b.since for b in level.batches))
            level.remaining_work = sum(b.rows for b in level.batches)

    def _complete(self, i):
        level, self.levels[i] = self.levels[i], Level()
        if len(level.batches) < 2:
            return level.batches[0] if level.batches else None
        # A result may have come in that is folded further than the merge was to be.
        since = max(level.since, *(b.since for b in level.batches))
        merged = Batch(since, [h for b in level.batches for h in b.hollow])
        if merged.rows == 0:
            merged.hollow = [Hollow(*merged.span, since, 0)]
        else:
            self.requested.append((merged.span, since))
        return merged

    def _tidy(self):
        if not self.levels or len(self.levels[-1].batches) != 1:
            return
        while level_for(self.levels[-1].batches[0].rows) < len(self.levels) - 1:
            below = self.levels[-2]
            if len(below.batches) == 2:
                return
            if len(below.batches) == 1:
                lower = sum(len(level.batches) << i for i, level in enumerate(self.levels[:-2]))
                if lower <= (1 << len(self.levels)) / 8:
                    del self.levels[-2]
                    self._insert_at(len(self.levels) - 1, below.batches[0])
                return
            del self.levels[-2]

    def _taken(self):
        """The requests of this step, last first, without those that a later one of the same since covers."""
        kept = []
        for span, since in reversed(self.requested):
            if not any(k[0] <= span[0] and span[1] <= k[1] and s == since for k, s in kept):
                kept.append((span, since))
        self.requested = []
        return kept
