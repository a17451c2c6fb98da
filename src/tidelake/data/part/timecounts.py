"""How many rows lie at or before a time, at most: a histogram of times, gathered from a stream.

Owns the buckets; must not know columns or parts. Invariant: every row is counted once, in the last bucket
whose first time is not after the row's time. So the buckets up to a time count all rows up to it, and perhaps
some later ones; dropping boundaries only makes that bound looser.

A boundary is never put between rows that were counted already: new ones come before all times seen, or after
all of them. Dropping a boundary joins its bucket to the one before.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

BUCKETS_MAX = 8
# While streaming; enough buckets that joining neighbours of equal weight leaves the final ones even.
_SKETCH_MAX = 64
_SKETCH_LEFT = 32
# At most so many boundaries come from one batch at either end.
_NEW_MAX = 16
# In a range of times this small, each time is counted by itself.
_RANGE_MAX = 65_536


class TimeCounts:
    """Takes int times batch by batch, in any order; holds at most about 100 numbers."""

    def __init__(self) -> None:
        self._firsts: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)
        self._least = self._greatest = self._at_least = 0

    def add(self, times: Ints, least: int, greatest: int) -> None:
        """Count times; not empty, `least` and `greatest` are their extremes."""
        if least == greatest and not len(self._firsts) and (not self._at_least or least == self._least):
            # While all rows have one time, there are no buckets.
            self._least = self._greatest = least
            self._at_least += len(times)
            return
        if self._at_least and not len(self._firsts):
            self._firsts, self._counts = np.array([self._least]), np.array([self._at_least])
        seen = bool(len(self._firsts))
        if not seen or least < self._least:
            self._least, self._at_least = least, 0
        if least == self._least:
            at_least = len(times) if least == greatest else int(np.count_nonzero(times == least))
            self._at_least += at_least
        if not seen:
            self._insert(_boundaries(times, least, greatest, _SKETCH_LEFT))
        else:
            if least < self._firsts[0]:
                early = times[times < self._firsts[0]]
                self._insert(_boundaries(early, least, int(early.max()), _NEW_MAX))
            if greatest > self._greatest:
                late = times[times > self._greatest]
                self._insert(_boundaries(late, int(late.min()), greatest, _NEW_MAX))
        self._greatest = max(greatest, self._greatest) if seen else greatest
        self._count(times, least, greatest)
        if len(self._firsts) > _SKETCH_MAX:
            self._firsts, self._counts = _joined(self._firsts, self._counts, _SKETCH_LEFT)

    def result(self) -> tuple[tuple[int, int], ...]:
        """Ascending pairs `(first, rows)`, as `Part.time_counts` describes them; empty without rows."""
        if not len(self._firsts):
            return ((self._least, self._at_least),) if self._at_least else ()
        counts = self._counts.copy()
        counts[0] -= self._at_least
        firsts = self._firsts.copy()
        # Later than the least time; where exactly is not known.
        firsts[0] = min(self._least + 1, self._greatest)
        held = counts > 0
        pairs = [(self._least, self._at_least)]
        if held.any():
            firsts, counts = _joined(firsts[held], counts[held], BUCKETS_MAX - 1)
            pairs += zip(firsts.tolist(), counts.tolist(), strict=True)
        return tuple(pairs)

    def _insert(self, firsts: Ints) -> None:
        """Add empty buckets, all of them before those that exist or all after."""
        firsts_, counts = (self._firsts, firsts), (self._counts, np.zeros(len(firsts), np.int64))
        if len(self._firsts) and firsts[0] < self._firsts[0]:
            firsts_, counts = firsts_[::-1], counts[::-1]
        self._firsts, self._counts = np.concatenate(firsts_), np.concatenate(counts)

    def _count(self, times: Ints, least: int, greatest: int) -> None:
        first, last = np.searchsorted(self._firsts, (least, greatest), side="right") - 1
        if first == last:
            self._counts[first] += len(times)
            return
        within = self._firsts[first + 1 : last + 1]
        if greatest - least < _RANGE_MAX:
            # Ten times as fast as searching for every row.
            each = np.bincount(times - least, minlength=greatest - least + 1)
            self._counts[first : last + 1] += np.add.reduceat(each, np.append(0, within - least))
        else:
            found = np.searchsorted(within, times, side="right")
            self._counts[first : last + 1] += np.bincount(found, minlength=last + 1 - first)


def _boundaries(times: Ints, least: int, greatest: int, most: int) -> Ints:
    """First times of at most `most` buckets with about equally many of these times; the least is one."""
    if least == greatest:
        return np.array([least], np.int64)
    # Folded rows pile up at the least time. A sample decides where to cut the others; the counts are exact
    # wherever the cuts are.
    times = times[times > least]
    sample = np.sort(times[:: max(1, len(times) // 4096)])
    picks = sample[np.linspace(0, len(sample) - 1, most - 1).astype(np.int64)]
    return np.unique(np.append(picks, least))


def _joined(firsts: Ints, counts: Ints, most: int) -> tuple[Ints, Ints]:
    """At most `most` buckets of about equal weight."""
    if len(firsts) <= most:
        return firsts, counts
    before = np.cumsum(counts) - counts
    targets = np.linspace(0, float(before[-1]), most)
    starts = np.unique(np.searchsorted(before, targets, side="left"))
    starts = np.unique(np.append(0, np.minimum(starts, len(firsts) - 1)))[:most]
    return firsts[starts], np.add.reduceat(counts, starts)
