"""Memory pressure: how much of its memory budget an arrangement uses, and what that means for new batches.

Owns the four levels, when one is entered and left, and whether a batch is kept in memory or on disk. Must not
know how memory is measured. Invariant: the level never falls while the used share of the budget rises.
Hysteresis: a level is left only when the share has fallen clearly below the one at which it was entered.

- low: batches stay in memory, except large ones.
- moderate: new and merged batches go to disk.
- high: batches in memory are merged to disk at once.
- critical: appends wait until there is memory.
"""

from dataclasses import dataclass
from enum import IntEnum

from tidelake.errors import UsageError


class Pressure(IntEnum):
    """The levels of pressure; ordered."""

    LOW = 0
    MODERATE = 1
    HIGH = 2
    CRITICAL = 3


@dataclass(frozen=True)
class Shares:
    """At which shares of the budget the levels begin.

    Attributes:
        low: below this share the pressure becomes low. Between `low` and `moderate`, low and moderate stay.
        moderate: from this share on the pressure is at least moderate.
        high: from this share on it is at least high. High stays until the share is below `low`.
        critical: from this share on it is critical. Critical stays until the share is below `high`; then it
            becomes moderate.
    """

    low: float = 0.5
    moderate: float = 0.6
    high: float = 0.75
    critical: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.moderate <= self.high <= self.critical:
            raise UsageError(
                f"shares of a budget must be above 0 and ascend: low={self.low}, moderate={self.moderate}, "
                f"high={self.high}, critical={self.critical}"
            )


def pressure(share: float, before: Pressure, shares: Shares) -> Pressure:
    """The level of pressure now."""
    now = _entered(share, shares)
    if now >= before:
        return now
    if share < shares.low:
        return Pressure.LOW
    if before is Pressure.CRITICAL and now <= Pressure.MODERATE:
        return Pressure.MODERATE
    return before


def _entered(share: float, shares: Shares) -> Pressure:
    if share >= shares.critical:
        return Pressure.CRITICAL
    if share >= shares.high:
        return Pressure.HIGH
    return Pressure.MODERATE if share >= shares.moderate else Pressure.LOW


def to_disk(size: int, used: int, level: Pressure, *, budget: int, shares: Shares, large: float) -> bool:
    """Whether a new batch is kept on disk."""
    return level > Pressure.LOW or size >= large * budget or used + size >= shares.moderate * budget
