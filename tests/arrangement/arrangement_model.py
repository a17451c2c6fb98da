"""The model of an arrangement: a dict of updates, sorted at each look. Slow and obvious.

Keys and values are tuples of canonical plain values, times are ints. It shares no code with the product but
the order of values of `tidelake.testing.oracle`.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidelake.testing.oracle import NAN, rank


def ranked(row):
    """What rows sort by."""
    return tuple(rank(value) for value in row)


@dataclass(frozen=True)
class Best:
    """An N-filter: n live values of a key are kept, the greatest or least in the value column at `by`.

    Without `by` values are compared as a whole, nulls last; with it nulls and NaN are never preferred.
    """

    n: int
    greatest: bool
    by: int | None = None

    def victims(self, live):
        """Which of some values are not kept."""
        ordered = sorted(live, key=ranked)
        if self.by is None:
            ordered = ordered[::-1] if self.greatest else ordered
        else:
            known = [value for value in ordered if value[self.by] is not None and value[self.by] is not NAN]
            known.sort(key=lambda value: rank(value[self.by]), reverse=self.greatest)
            ordered = [
                *known,
                *(value for value in ordered if value[self.by] is NAN),
                *(value for value in ordered if value[self.by] is None),
            ]
        return ordered[self.n :]


@dataclass
class Model:
    """Updates by (key, value, time), since, and filters as functions."""

    updates: Counter = field(default_factory=Counter)
    since: int = 0
    keeps_key: Callable = lambda key: True
    keeps_value: Callable = lambda value: True
    best: Best | None = None

    def append(self, updates):
        for key, value, time, diff in updates:
            self._add(key, value, max(time, self.since), diff)

    def advance_since(self, since):
        self.since, before = since, self.updates
        self.updates = Counter()
        for (key, value, time), diff in before.items():
            self._add(key, value, max(time, since), diff)

    def copy(self):
        return replace(self, updates=Counter(self.updates))

    def visible(self):
        """(key, value) -> time -> diff of what filters let pass."""
        rows = {}
        for (key, value, time), diff in self.updates.items():
            if self.keeps_key(key) and self.keeps_value(value):
                rows.setdefault((key, value), {})[time] = diff
        if self.best is None:
            return rows
        for key in {key for key, _ in rows}:
            settled = {v: times.get(self.since, 0) for (k, v), times in rows.items() if k == key}
            gone = [value for value, diff in settled.items() if diff < 0]
            gone += self.best.victims([value for value, diff in settled.items() if diff > 0])
            for value in gone:
                rows[key, value].pop(self.since)
        return rows

    def contents(self, as_of=None):
        """[(key, value, weight)] in order, without zero weights; as_of is at or past since."""
        found = [
            (key, value, sum(diff for time, diff in times.items() if as_of is None or time <= as_of))
            for (key, value), times in self.visible().items()
        ]
        return sorted(
            (row for row in found if row[2] > 0 or (row[2] < 0 and self.best is None)),
            key=lambda row: (ranked(row[0]), ranked(row[1])),
        )

    def times(self, key, value, as_of):
        """[(time, diff)] of a row, ascending."""
        times = self.visible().get((key, value), {})
        return sorted((time, diff) for time, diff in times.items() if as_of is None or time <= as_of)

    def _add(self, key, value, time, diff):
        self.updates[key, value, time] += diff
        if not self.updates[key, value, time]:
            del self.updates[key, value, time]


def between(rows, lower=None, upper=None, limit=None, reverse=False):
    """Of contents the rows of the keys from a prefix on and before another one."""
    found = [
        row
        for row in rows
        if (lower is None or ranked(row[0])[: len(lower)] >= ranked(lower))
        and (upper is None or ranked(row[0])[: len(upper)] < ranked(upper))
    ]
    return (found[::-1] if reverse else found)[:limit]


class Places:
    """A place in a sorted list, or between two of its items.

    At item i it is 2i; between it and the one before it, 2i - 1. So before the first it is -1.
    """

    def __init__(self, items):
        self.items, self.ranks = items, [ranked(item) for item in items]
        self.at, self.end = (0 if items else -1), 2 * len(items) - 1

    @property
    def valid(self):
        return self.at % 2 == 0 and 0 <= self.at < self.end

    @property
    def item(self):
        return self.items[self.at // 2]

    def rewind(self):
        self.at = 0 if self.items else -1

    def fast_forward(self):
        self.at = self.end - 1 if self.items else -1

    def step(self):
        self.at = min(self._next(), self.end)

    def step_reverse(self):
        self.at = max(self._before(), -1)

    def seek(self, item):
        target = 2 * bisect_left(self.ranks, ranked(item))
        self.at = min(max(self.at if self.valid else self._next(), target), self.end)

    def seek_reverse(self, item):
        target = 2 * (bisect_right(self.ranks, ranked(item)) - 1)
        self.at = max(min(self.at if self.valid else self._before(), target), -1)

    def seek_with(self, predicate):
        while self.at < self.end and not (self.valid and predicate(self.item)):
            self.step()

    def seek_with_reverse(self, predicate):
        while self.at > -1 and not (self.valid and predicate(self.item)):
            self.step_reverse()

    def seek_exact(self, item):
        place = bisect_left(self.ranks, ranked(item))
        found = place < len(self.items) and self.ranks[place] == ranked(item)
        self.at = 2 * place - (not found)
        return found

    def _next(self):
        return self.at + (2 if self.at % 2 == 0 else 1)

    def _before(self):
        return self.at - (2 if self.at % 2 == 0 else 1)


class ModelCursor:
    """The cursor of the model as of a time: a position among keys, and one among the values of the key."""

    def __init__(self, model, as_of):
        self.model, self.as_of = model, as_of
        self.rows = {}
        for key, value, weight in model.contents(as_of):
            self.rows.setdefault(key, {})[value] = weight
        self.keys = Places(list(self.rows))
        self.asked = None
        self.arrive()

    @property
    def key(self):
        return self.keys.item

    @property
    def weight(self):
        return self.rows[self.key][self.values.item]

    def arrive(self):
        """The values of the key that it came to, from the first one on."""
        self.values = Places(list(self.rows[self.key]) if self.keys.valid else [])

    def move(self, name, *args):
        """Let the keys move; the values begin anew where it came to another key, or was sent to one."""
        before = self.keys.at
        getattr(self.keys, name)(*args)
        if name in ("rewind", "fast_forward"):
            self.asked = None
        if self.keys.at != before or name in ("rewind", "fast_forward"):
            self.arrive()

    def may_ask(self, key):
        """Whether `seek_exact` may be asked for a key: only ascending."""
        return self.asked is None or ranked(key) >= ranked(self.asked)

    def seek_exact(self, key):
        self.asked = key
        found = self.keys.seek_exact(key)
        self.arrive()
        return found
