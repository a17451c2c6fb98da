"""The model of an arrangement: a dict of updates, sorted whenever somebody looks. Slow and obvious.

Keys and values are tuples of plain values, times are ints. It shares no code with the product but the order
of values of `tidelake.testing.oracle`.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidelake.testing.oracle import rank


def ranked(row):
    """What rows sort by."""
    return tuple(rank(value) for value in row)


@dataclass
class Model:
    """Updates by (key, value, time), the frontier, and filters as functions.

    `n_filter` is the greatest number of values of a key that are kept, and how they are preferred.
    """

    updates: Counter = field(default_factory=Counter)
    frontier: int = 0
    keeps_key: Callable = lambda key: True
    keeps_value: Callable = lambda key, value: True

    def insert(self, updates):
        for key, value, time, diff in updates:
            self.updates[key, value, time] += diff
            if not self.updates[key, value, time]:
                del self.updates[key, value, time]

    def set_frontier(self, frontier):
        self.frontier = max(self.frontier, frontier)

    def fork(self):
        return replace(self, updates=Counter(self.updates))

    def visible(self):
        """(key, value) -> time -> diff of what filters let pass, times folded to the frontier, no zeros."""
        rows = {}
        for (key, value, time), diff in self.updates.items():
            if self.keeps_key(key) and self.keeps_value(key, value):
                rows.setdefault((key, value), Counter())[max(time, self.frontier)] += diff
        return {row: kept for row, times in rows.items() if (kept := {t: d for t, d in times.items() if d})}

    def contents(self, as_of=None):
        """[(key, value, weight)] in order, without zero weights; as_of is at or past the frontier."""
        found = [
            (key, value, sum(diff for time, diff in times.items() if as_of is None or time <= as_of))
            for (key, value), times in self.visible().items()
        ]
        return sorted(
            ((key, value, weight) for key, value, weight in found if weight),
            key=lambda row: (ranked(row[0]), ranked(row[1])),
        )

    def fetch(self, keys, as_of=None):
        return [row for row in self.contents(as_of) if row[0] in keys]

    def keys(self, as_of=None):
        """Distinct keys with a value, in order."""
        return sorted({key for key, _, _ in self.contents(as_of)}, key=ranked)

    def range(self, lower=None, upper=None, limit=None, reverse=False, as_of=None):
        """Rows of the keys in [lower, upper), ascending or descending, at most `limit` of them."""
        rows = [
            row
            for row in self.contents(as_of)
            if (lower is None or ranked(row[0]) >= ranked(lower))
            and (upper is None or ranked(row[0]) < ranked(upper))
        ]
        return (rows[::-1] if reverse else rows)[:limit]


class Places:
    """A place in a sorted list, as a cursor of one level moves: past either end it is not valid."""

    def __init__(self, items):
        self.items, self.ranks = items, [ranked(item) for item in items]
        self.at = 0

    @property
    def valid(self):
        return 0 <= self.at < len(self.items)

    @property
    def item(self):
        return self.items[self.at]

    def rewind(self):
        self.at = 0

    def fast_forward(self):
        self.at = len(self.items) - 1

    def step(self):
        self.at = min(self.at + 1, len(self.items))

    def step_reverse(self):
        self.at = max(self.at - 1, -1)

    def seek(self, item):
        self.at = max(self.at, bisect_left(self.ranks, ranked(item)))

    def seek_reverse(self, item):
        self.at = min(self.at, bisect_right(self.ranks, ranked(item)) - 1)

    def seek_with(self, predicate):
        while self.valid and not predicate(self.item):
            self.step()

    def seek_with_reverse(self, predicate):
        while self.valid and not predicate(self.item):
            self.step_reverse()
