"""Frontiers as users write them: a time, a list of times, or a `Frontier`."""

from collections.abc import Sequence
from typing import TypeAlias

from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain

FrontierLike: TypeAlias = Frontier | int | tuple[int, ...] | list[Time]


def frontier(value: FrontierLike, domain: TimeDomain, name: str = "frontier") -> Frontier:
    """Convert a user's argument to a frontier.

    Raises:
        UsageError: an element is not a time of the domain; names the argument (`name`).
    """
    if isinstance(value, Frontier):
        elements: Sequence[Time] = value.elements
    elif isinstance(value, list):
        elements = value
    else:
        elements = [value]
    return Frontier.of_all(domain.check(t, name) for t in elements)
