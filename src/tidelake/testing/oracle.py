"""The oracle: a collection as a list of updates. Slow and obviously right; tests compare answers with it.

It shares no code with the product except frontiers and times. Rows are tuples of plain Python values, which
`canonical` makes comparable. Multiplicities are Python integers.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, less_equal

Row: TypeAlias = tuple[object, ...]
NAN = "the one NaN"


def canonical(value: object) -> object:
    """A hashable form of a value, equal for values that Tidelake treats as equal: one NaN, one zero."""
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return tuple(canonical(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, canonical(v)) for k, v in value.items())
    return value


def rank(value: object) -> tuple[object, ...]:
    """A sort key for Tidelake's order: ascending, NaN after all numbers, nulls last, text by UTF-8 bytes."""
    if value is None:
        return (2,)
    if isinstance(value, str) and value is NAN:
        return (1,)
    if isinstance(value, str):
        return (0, value.encode())
    if isinstance(value, tuple):
        return (0, tuple(rank(v) for v in value))
    return (0, value)


@dataclass
class Oracle:
    """A collection of updates `(row, time, diff)` and its frontiers."""

    upper: Frontier
    since: Frontier
    updates: list[tuple[Row, Time, int]] = field(default_factory=list)

    def append(self, updates: Iterable[tuple[Row, Time, int]], upper: Frontier) -> None:
        """Add updates and close every time before `upper`."""
        self.updates.extend(updates)
        self.upper = upper

    def erase(self, keys: Iterable[Row]) -> None:
        """Forget all updates of rows that begin with one of these keys."""
        gone = set(keys)
        self.updates = [one for one in self.updates if not any(one[0][: len(key)] == key for key in gone)]

    def snapshot(self, as_of: Time) -> Counter[Row]:
        """Row -> multiplicity at `as_of`."""
        return _netted((row, diff) for row, time, diff in self.updates if less_equal(time, as_of))

    def changes(self, after: Time, through: Time) -> Counter[Row]:
        """Row -> difference of its multiplicities."""
        return _netted(
            (row, diff)
            for row, time, diff in self.updates
            if less_equal(time, through) and not less_equal(time, after)
        )

    def between(self, lower: Frontier, upper: Frontier) -> Counter[tuple[Row, Time]]:
        """(row, time) -> sum of diffs, for the times of `[lower, upper)`."""
        return _netted(
            ((row, time), diff)
            for row, time, diff in self.updates
            if lower.less_equal(time) and not upper.less_equal(time)
        )


def _netted(pairs: Iterable[tuple[object, int]]) -> Counter:  # type: ignore[type-arg]
    """Sums by key, without zeros."""
    sums: Counter[object] = Counter()
    for key, diff in pairs:
        sums[key] += diff
    return Counter({key: total for key, total in sums.items() if total})
