"""What the wall clock says to a write that would close times of a collection with clock times.

A closed time stays closed: one wrong timestamp, a year ahead, would close a year to all writers. So a command
that closes times further ahead than the lake allows (`max_ahead_ms`) is refused. Staging is allowed, because
rows that were staged for a wrong time can be taken back.

A write that gives no time gets the clock's. In a collection whose writers give times of long ago, it would
*leap*: close all times from there until now, which the writers could never write to again. So it is refused,
with what to do. A commit tells how old its last time was when it was closed (`ShardState.closed_ms`): a time
that a commit picked is at most as old as the work before the commit took.
"""

from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain, parts
from tidelake.state.core.commands import Refused
from tidelake.state.core.decisions import Membership
from tidelake.state.core.state import ShardState
from tidelake.timetext import US_PER_UNIT

BEHIND_MS = 86_400_000
"""A last time was given by its writer if it had passed longer ago than this when it was closed."""


def too_far(state: ShardState, before: Frontier, upper: Frontier, now_ms: int) -> Refused | None:
    """The refusal to close times up to `upper`, if the last of them is too far ahead; None for other units.

    A collection that is too far ahead already may go on one time at a time, so that it can still be written
    to. Closing all times is allowed: no wrong timestamp does that.
    """
    per_us = US_PER_UNIT.get(state.domain.unit)
    if per_us is None or upper.closed or upper <= before:
        return None
    last, limit_ms = parts(upper.elements[0])[0] - 1, now_ms + state.agreed.max_ahead_ms
    if last * per_us <= limit_ms * 1000 or before == upper.just_before():
        return None
    ahead_s = (last * per_us // 1000 - now_ms) / 1000
    wanted_s = int(ahead_s) + 86_400
    return Refused(
        UsageError(
            f"this would close all times up to {state.domain.text(last)}, {_span(ahead_s)} ahead of the "
            f"clock, and at most {_span(state.agreed.max_ahead_ms / 1000)} is allowed: times are "
            f"{'days' if state.domain.unit == 'date' else state.domain} since 1970, so "
            "check the unit; rows for future times can be staged; or allow more for the whole lake: "
            f"lake.settings(max_ahead_s={wanted_s}) or `tidelake settings LAKE max_ahead_s={wanted_s}`"
        )
    )


def _span(seconds: float) -> str:
    days = seconds / 86_400
    return f"{days:,.0f} days" if days >= 2 else f"{seconds / 3600:,.3g} hours"


def leap(domain: TimeDomain, upper: Frontier, closed_ms: int, at: Time) -> UsageError | None:
    """The error for a write that gives no time and would get `at`, if it leaps; None if it does not.

    `upper` is that of the collection, `closed_ms` the wall clock at which it was closed (0: unknown).
    """
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
        f"{last}, and was given by its writer. Give a time from {domain.text(end)} on (time=, as an option "
        "or --time, or a column _time); time='now' closes them all"
    )


def closed_for(group: ShardState, member: Membership) -> tuple[Frontier, int]:
    """Where the times of a collection are closed by its group, and the wall clock when they were."""
    upper = member.upper if member.leaving else member.upper.join(group.upper)
    return upper, member.closed_ms if upper == member.upper else group.closed_ms


def closed_at(state: ShardState, now_ms: int) -> int:
    """The wall clock of a commit to a state, as it is stored."""
    return max(now_ms, state.committed_ms)
