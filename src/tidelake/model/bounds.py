"""Bounds: which times a batch covers, and how far it has been folded.

A batch with bounds (lower, upper, since) holds exactly the updates of the collection whose time is at or
after `lower` and not at or after `upper`. Their times may have been advanced by `since`. This does not change
the sum of the updates up to any time at or after `since`.
"""

from dataclasses import dataclass

from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time


@dataclass(frozen=True)
class Bounds:
    """The half-open interval `[lower, upper)` of times, which may have been advanced to `since`."""

    lower: Frontier
    upper: Frontier
    since: Frontier

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise UsageError(f"the lower frontier {self.lower} must not be after the upper {self.upper}")

    @property
    def empty(self) -> bool:
        """Whether no time lies inside."""
        return self.lower.elements == self.upper.elements

    def contains(self, time: Time) -> bool:
        """Whether `time` lies in `[lower, upper)`."""
        return self.lower.less_equal(time) and not self.upper.less_equal(time)

    def __str__(self) -> str:
        return f"[{self.lower}, {self.upper}) since {self.since}"
