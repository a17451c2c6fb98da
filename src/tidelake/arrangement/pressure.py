"""Memory pressure: how near an arrangement is to its budget, and what that means for new batches.

Owns the four levels, when one is entered and left, and where a batch is to be kept. Must not know how
memory is measured. Invariant: while the share of the budget that is used only rises, so does the level;
a level that was entered at some share is not left again before the share has fallen clearly below that.

- low: batches stay in memory, except large ones.
- moderate: new and merged batches go to disk.
- high: what is in memory is merged out at once.
- critical: inserts wait for that.
"""

from dataclasses import dataclass
from enum import IntEnum

from tidelake.errors import UsageError


class Pressure(IntEnum):
    """How near the budget is; ordered."""

    LOW = 0
    MODERATE = 1
    HIGH = 2
    CRITICAL = 3


@dataclass(frozen=True)
class Shares:
    """Where the levels begin, as shares of the budget.

    Attributes:
        low: below it the pressure is low again. Between it and `moderate` it is what it was, low or moderate.
        moderate: from here on it is moderate.
        high: ... high. That is left only for low.
        critical: ... critical. That is left at moderate.
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
    """The level of pressure now.

    Args:
        share: of the budget that is used; above 1 it is exceeded.
        before: the level so far.
        shares: where levels begin.
    """
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
    """Whether a batch that is about to be written is to be kept on disk.

    Args:
        size: its bytes, or at least as many.
        used: bytes that are used without it.
        level: the pressure.
        budget: bytes that may be used.
        shares: where levels begin.
        large: the share of the budget from which on a batch is kept on disk in any case.
    """
    return level > Pressure.LOW or size >= large * budget or used + size >= shares.moderate * budget
