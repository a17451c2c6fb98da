"""How far ahead of the clock times of a clock may be closed.

A time that is closed stays so: one wrong timestamp, a year ahead, would close a year to all writers. So what
closes times is refused if it goes further ahead than the lake allows (`max_ahead_ms`). Staging is not: what
is staged for a time that cannot be meant can be taken back.
"""

from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import parts
from tidelake.state.commands import Refused
from tidelake.state.state import ShardState

_PER_MS = {"ms": 1, "us": 1000}


def too_far(state: ShardState, before: Frontier, upper: Frontier, now_ms: int) -> Refused | None:
    """The refusal to close times up to `upper`, if the last of them is too far ahead. Only of clocks.

    One that is so far ahead already may go on time by time, so that what was accepted can be written to.
    Closing it for good is no mistake of a timestamp.
    """
    unit = _PER_MS.get(state.domain.unit)
    if unit is None or upper.closed or upper <= before:
        return None
    last, limit_ms = parts(upper.elements[0])[0] - 1, now_ms + state.agreed.max_ahead_ms
    if last <= limit_ms * unit or before == upper.just_before():
        return None
    ahead_s = (last // unit - now_ms) / 1000
    wanted_s = int(ahead_s) + 86_400
    return Refused(
        UsageError(
            f"this would close all times up to {last}, {_span(ahead_s)} ahead of the clock, and at most "
            f"{_span(state.agreed.max_ahead_ms / 1000)} is allowed: times are {state.domain} since 1970, so "
            "look at the unit; what is for times to come can be staged; or allow more for all: "
            f"lake.settings(max_ahead_s={wanted_s}) or `tidelake settings LAKE max_ahead_s={wanted_s}`"
        )
    )


def _span(seconds: float) -> str:
    days = seconds / 86_400
    return f"{days:,.0f} days" if days >= 2 else f"{seconds / 3600:,.3g} hours"
