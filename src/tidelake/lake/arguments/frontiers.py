"""Frontiers as users write them: a time, a list of times, or a `Frontier`."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike, day_number
from tidelake.model.time import TimeDomain

FrontierLike: TypeAlias = Frontier | TimeLike | list[TimeLike]


def frontier(
    value: FrontierLike,
    domain: TimeDomain,
    name: str = "frontier",
    *,
    up: bool = True,
    now_ms: Callable[[], int] | None = None,
) -> Frontier:
    """Convert a user's argument to a frontier.

    Args:
        value: a time, a list of times, or a `Frontier`.
        domain: the unit of the times.
        name: name of the argument, for messages.
        up: an instant means the first time at or after it, as for the end of an interval; False: the last one
            at or before it, as for `since`, from which on reads are possible.
        now_ms: the clock that words such as `now` refer to; None: words are not taken.

    Raises:
        UsageError: an element is not a time of the domain; names the argument (`name`).
    """
    if isinstance(value, Frontier):
        elements: Sequence[TimeLike] = value.elements
    elif isinstance(value, list):
        elements = value
    else:
        elements = [value]
    return Frontier.of_all(domain.check(t, name, up=up, now_ms=now_ms) for t in elements)


def check_any(value: FrontierLike, name: str, *, now_ms: Callable[[], int]) -> None:
    """Check that an argument is a time or a frontier of some unit of single times, for a unit known later.

    Raises:
        UsageError: as `frontier`.
    """
    for one in value if isinstance(value, list) else [value]:
        of = "counter" if isinstance(one, int | Frontier) else "us"
        if isinstance(one, str) and day_number(one) is not None:
            of = "date"
        frontier(one, TimeDomain.parse(of), name, now_ms=now_ms)
