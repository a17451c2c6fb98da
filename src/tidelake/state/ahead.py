"""How far ahead of the wall clock a collection with clock times may close times.

A closed time stays closed: one wrong timestamp, a year ahead, would close a year to all writers. So a command
that closes times further ahead than the lake allows (`max_ahead_ms`) is refused. Staging is allowed, because
rows that were staged for a wrong time can be taken back.
"""

from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import parts
from tidelake.state.commands import Refused
from tidelake.state.state import ShardState
from tidelake.timetext import US_PER_UNIT


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
