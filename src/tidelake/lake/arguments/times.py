"""Times and frontiers as users write them: in the unit of a collection, as instants, or words such as `now`.

Owns what `now` means: to a writer the wall clock, to a reader the newest contents that can be read now.
`tidelake.model.instants` says which values are instants, and how they are rounded.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike, day_number, is_now
from tidelake.model.time import Time, TimeDomain

if TYPE_CHECKING:
    from tidelake.shard.engine.shard import Shard

FrontierLike: TypeAlias = Frontier | TimeLike | list[TimeLike]


def frontier(
    value: FrontierLike,
    domain: TimeDomain,
    name: str = "frontier",
    *,
    up: bool = True,
    now_ms: Callable[[], int] | None = None,
) -> Frontier:
    """Convert a user's argument to a frontier."""
    if isinstance(value, Frontier):
        elements: Sequence[TimeLike] = value.elements
    elif isinstance(value, list):
        elements = value
    else:
        elements = [value]
    return Frontier.of_all(domain.check(t, name, up=up, now_ms=now_ms) for t in elements)


def check_any(value: FrontierLike, name: str, *, now_ms: Callable[[], int]) -> None:
    """Check that an argument is a time or a frontier of some unit of single times, for a unit known later."""
    for one in value if isinstance(value, list) else [value]:
        of = "counter" if isinstance(one, int | Frontier) else "us"
        if isinstance(one, str) and day_number(one) is not None:
            of = "date"
        frontier(one, TimeDomain.parse(of), name, now_ms=now_ms)


_WHOLE = re.compile(r"\(?\s*([0-9]{1,19}(?:\s*,\s*[0-9]{1,19})*)\s*(,?)\s*\)?")


def whole_of(text: str) -> int | tuple[int, ...] | None:
    """The whole number in a text, or the tuple in one such as `(3, 4)` or `3,4`; None if it is neither."""
    found = _WHOLE.fullmatch(text.strip())
    if found is None:
        return None
    numbers = tuple(map(int, found[1].split(",")))
    return numbers[0] if len(numbers) == 1 and not found[2] else numbers


@dataclass(frozen=True)
class Times:
    """Converts the times that a user hands in to those of a collection.

    Attributes:
        now_ms: the wall clock, in ms since 1970 UTC.
    """

    domain: TimeDomain
    now_ms: Callable[[], int]

    def at(self, value: TimeLike, name: str) -> Time:
        """The time to write at, or to begin after."""
        return self.domain.check(value, name, now_ms=self.now_ms)

    def given(self, value: TimeLike | None) -> Time | None:
        """The time to write at, if one is given."""
        return None if value is None else self.at(value, "time")

    def bound(self, value: FrontierLike, name: str) -> Frontier:
        """The beginning or the end of an interval of times."""
        return frontier(value, self.domain, name, now_ms=self.now_ms)

    def interval(self, lower: FrontierLike, upper: FrontierLike) -> tuple[Frontier, Frontier]:
        """An interval of times."""
        return self.bound(lower, "lower"), self.bound(upper, "upper")

    def since(self, value: FrontierLike, name: str) -> Frontier:
        """The first times that stay readable."""
        return frontier(value, self.domain, name, up=False, now_ms=self.now_ms)


def times_for(shard: "Shard") -> Times:
    """What converts times that users hand in for a shard."""
    return Times(shard.spec.domain, shard.env.clock.now_ms)


@dataclass(frozen=True)
class ReadTimes(Times):
    """Converts times of reads as well.

    Attributes:
        last: the last closed time; costs as `CollectionHandle.last_time`, like its errors.
    """

    last: Callable[[], Time]

    def read(self, value: TimeLike, name: str, *, staged: bool = False) -> Time:
        """The time that a read names. `now` is at most the last closed time, unless open times are read too.

        The word `now` costs a log scan.
        """
        at = self.at(value, name)
        return times.meet(at, self.last()) if is_now(value) and not staged else at

    def read_bound(self, value: FrontierLike, name: str, *, staged: bool = False) -> Frontier:
        """The beginning or end of an interval that is read.

        `now` is at most just past the last closed time, unless open times are read too.
        """
        bound = self.bound(value, name)
        return bound.meet(Frontier.past(self.last())) if is_now(value) and not staged else bound
