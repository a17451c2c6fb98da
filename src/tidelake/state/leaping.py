"""Writes without a time that would leap: from times that their writers gave to the wall clock.

A write that gives no time gets the clock's. In a collection whose writers give times of long ago, it would
close all times from there until now, which the writers could never write to again. So it is refused, with
what to do. A commit tells how old its last time was when it was closed (`ShardState.closed_ms`): a time that
a commit picked is at most as old as the work before the commit took.
"""

from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain, parts
from tidelake.state.grouped import Membership
from tidelake.state.state import ShardState
from tidelake.timetext import US_PER_UNIT

BEHIND_MS = 86_400_000
"""A last time was given by its writer if it had passed longer ago than this when it was closed."""


def leap(state: ShardState, at: Time) -> UsageError | None:
    """The error for a write that gives no time and would get `at`, if it leaps; None if it does not."""
    return leap_from(state.domain, state.upper, state.closed_ms, at)


def leap_from(domain: TimeDomain, upper: Frontier, closed_ms: int, at: Time) -> UsageError | None:
    """As `leap`, by the upper of a collection and the wall clock at which it was closed (0: unknown)."""
    per_us = US_PER_UNIT.get(domain.unit)
    if per_us is None or upper.closed:
        return None
    # The end of the last time that is closed, which is a whole day for unit `date`.
    end = parts(upper.elements[0])[0]
    passed_ms, now_ms = end * per_us // 1000, parts(at)[0] * per_us // 1000
    if min(closed_ms, now_ms) - passed_ms <= BEHIND_MS:
        return None
    last = domain.text(end - 1)
    return UsageError(
        f"this write gives no time, and would close all times up to {domain.text(at)}: the last one is "
        f"{last}, and was given by its writer. Give the time of this one as well (time=, as an option or "
        "--time, or a column _time); time='now' closes them all"
    )


def closed_for(group: ShardState, member: Membership) -> tuple[Frontier, int]:
    """Where the times of a collection are closed by its group, and the wall clock when they were."""
    upper = member.upper if member.leaving else member.upper.join(group.upper)
    return upper, member.closed_ms if upper == member.upper else group.closed_ms


def closed_at(state: ShardState, now_ms: int) -> int:
    """The wall clock of a commit to a state, as it is stored."""
    return max(now_ms, state.committed_ms)
