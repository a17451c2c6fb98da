"""Frontiers: antichains of times, and their lattice.

A frontier F stands for the set of times *at or after* it, {t : some f in F with f <= t}. All times are at
or after the frontier of the minimum, and none is at or after the empty frontier `[]`: it is closed. Frontiers
are ordered by how far they have moved: `F <= G` iff every time at or after G is also at or after F. `meet` is
the earlier of two and `join` the later one; with `<=` they form a distributive lattice whose top is `[]`.

Source of the terms: Murray et al., "Naiad: a timely dataflow system", SOSP 2013, and the
differential dataflow trace descriptions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidelake.model import time as times
from tidelake.model.time import TIME_MAX, Time
from tidelake.timetext import shown


@dataclass(frozen=True)
class Frontier:
    """An antichain of times; equal frontiers are equal values.

    Attributes:
        elements: the minimal times, ascending in Python's order. Build with `Frontier.of` unless
            they are known to be an antichain in order.
    """

    elements: tuple[Time, ...] = ()

    @classmethod
    def of(cls, *elements: Time) -> "Frontier":
        """The frontier of the minimal ones of `elements`."""
        return cls.of_all(elements)

    @classmethod
    def of_all(cls, elements: Iterable[Time]) -> "Frontier":
        """The frontier of the minimal ones of `elements`."""
        distinct = set(elements)
        if len(distinct) < 2:
            return cls(tuple(distinct))
        minimal = (t for t in distinct if not any(times.less_than(s, t) for s in distinct))
        return cls(tuple(sorted(minimal, key=times.parts)))

    def of_unit(self, unit: str) -> "Frontier":
        """The same frontier, which prints times of a clock as people write them."""
        kind = _OF_CLOCK.get(unit)
        return self if kind is None else kind(self.elements)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frontier) and self.elements == other.elements

    def __hash__(self) -> int:
        return hash(self.elements)

    def __iter__(self) -> Iterator[Time]:
        return iter(self.elements)

    def __str__(self) -> str:
        return "[" + ", ".join(str(t) for t in self.elements) + "]"

    def __repr__(self) -> str:
        return f"Frontier({self})"

    @property
    def closed(self) -> bool:
        """Whether no time is at or after it."""
        return not self.elements

    def less_equal(self, time: Time) -> bool:
        """Whether `time` is at or after this frontier."""
        if len(self.elements) == 1:
            only = self.elements[0]
            if isinstance(only, int) and isinstance(time, int):
                return only <= time
            return times.less_equal(only, time)
        return any(times.less_equal(f, time) for f in self.elements)

    def less_than(self, time: Time) -> bool:
        """Whether some element lies strictly before `time`."""
        return any(times.less_than(f, time) for f in self.elements)

    def __le__(self, other: "Frontier") -> bool:
        mine, others = self.elements, other.elements
        if mine == others:
            return True
        if len(mine) == len(others) == 1:
            # Most frontiers are one int, and every commit compares many.
            a, b = mine[0], others[0]
            return a <= b if isinstance(a, int) and isinstance(b, int) else times.less_equal(a, b)
        return all(self.less_equal(t) for t in others)

    def __lt__(self, other: "Frontier") -> bool:
        return self != other and self <= other

    # SUBTLE: by name, since Python asks the right side first where that is a subclass.
    def __ge__(self, other: "Frontier") -> bool:
        return Frontier.__le__(other, self)

    def __gt__(self, other: "Frontier") -> bool:
        return Frontier.__lt__(other, self)

    def insert(self, time: Time) -> "Frontier":
        """The latest frontier at or before this one that `time` is at or after."""
        return self if self.less_equal(time) else Frontier.of(*self.elements, time)

    def meet(self, other: "Frontier") -> "Frontier":
        """The latest frontier at or before both. A time is at or after it if it is at or after either."""
        if self.elements == other.elements:
            return self
        return Frontier.of_all((*self.elements, *other.elements))

    def join(self, other: "Frontier") -> "Frontier":
        """The earliest frontier at or after both. A time is at or after it if it is at or after both."""
        if self.elements == other.elements:
            return self
        return Frontier.of_all(times.join(a, b) for a in self.elements for b in other.elements)

    def advance(self, time: Time) -> Time:
        """The time that can replace `time` in all reads at or after this frontier.

        It is the meet of `join(time, f)` over all elements f: the greatest time that no read as of a time at
        or after the frontier can tell from `time`. The closed frontier leaves times unchanged.
        """
        joined = [times.join(time, f) for f in self.elements]
        if not joined:
            return time
        result = joined[0]
        for t in joined[1:]:
            result = times.meet(result, t)
        return result

    def advance_by(self, frontier: "Frontier") -> "Frontier":
        """The frontier of all elements advanced by `frontier`."""
        return Frontier.of_all(frontier.advance(t) for t in self.elements)

    @classmethod
    def past(cls, time: Time) -> "Frontier":
        """The frontier of all times that are not at or before `time`; closed at the last int time."""
        if isinstance(time, int):
            return cls((time + 1,)) if time < TIME_MAX else cls()
        stepped: list[Time] = []
        for i, x in enumerate(time):
            if x < TIME_MAX:
                stepped.append(tuple(x + 1 if j == i else 0 for j in range(len(time))))
        return cls.of_all(stepped)

    def just_before(self) -> "Frontier":
        """The latest `since` that keeps all times at or after this frontier distinct."""
        return Frontier.of_all(_one_back(t) for t in self.elements)

    def keeps_times_from(self, lower: "Frontier") -> bool:
        """Whether advancing by this frontier leaves times at or after `lower` as is and adds none there.

        With ints: this frontier is strictly before `lower`, or at the minimum. With tuples the same must hold
        for each component; otherwise (0, 3) advanced by (1, 0) would become (1, 3), which is after (1, 1).
        """
        return all(any(_tells_apart(s, t) for s in self.elements) for t in lower.elements)


def _one_back(time: Time) -> Time:
    moved = tuple(max(x - 1, 0) for x in times.parts(time))
    return moved if isinstance(time, tuple) else moved[0]


def _tells_apart(since: Time, lower: Time) -> bool:
    return all(s < x or s == x == 0 for s, x in zip(times.parts(since), times.parts(lower), strict=True))


class _ClockFrontier(Frontier):
    """A frontier of a clock: a value as any other, but for its text."""

    unit = ""

    def __str__(self) -> str:
        return shown(self.elements[0], self.unit) if len(self.elements) == 1 else super().__str__()


class _UsFrontier(_ClockFrontier):
    unit = "us"


class _MsFrontier(_ClockFrontier):
    unit = "ms"


class _DateFrontier(_ClockFrontier):
    unit = "date"


_OF_CLOCK: dict[str, type[_ClockFrontier]] = {
    kind.unit: kind for kind in (_UsFrontier, _MsFrontier, _DateFrontier)
}
