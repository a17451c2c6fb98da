"""Spans of time as users write them: durations and windows of history."""

from datetime import timedelta
from typing import TypeAlias

from tidelake.errors import UsageError
from tidelake.model.durations import microseconds
from tidelake.model.instants import whole_days
from tidelake.model.time import TIME_MAX, TimeDomain
from tidelake.timetext import US_PER_UNIT

DurationLike: TypeAlias = timedelta | float | str
"""A timedelta, a number of seconds, or a text such as `"7d"`."""
WindowLike: TypeAlias = timedelta | int | str
"""A number of times or, for a clock, a timedelta or a text such as `"7d"`."""

_LONGEST_S = 100 * 366 * 86_400


def duration_s(duration: object, name: str) -> float:
    """Convert a number of seconds, a timedelta, or a text such as `7d` to seconds, and check it."""
    value = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(duration, str):
        length_us = microseconds(duration)
        value = None if length_us is None else length_us / 1_000_000
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        raise UsageError(
            f"{name}={duration!r} must be a timedelta, a number of seconds, or a text such as '90s' or '7d'; "
            "not negative, and at most a hundred years"
        )
    return float(value)


def window(
    wanted: object, domain: TimeDomain, name: str = "retention", none: str = "to keep all"
) -> int | None:
    """Convert a window of history, or another span, to units of the collection's time."""
    if wanted is None:
        return None
    if not domain.total_order:
        raise UsageError(
            f"times of unit {domain} have no length, so there is no window of them: call advance_since"
        )
    asked = wanted
    length_us = microseconds(wanted) if isinstance(wanted, timedelta | str) else None
    if length_us is not None:
        per_us = US_PER_UNIT.get(domain.unit)
        if per_us is None:
            raise UsageError(f"{name} {wanted} is a span of a clock, and times are a {domain}: give a number")
        is_days = domain.unit == "date"
        wanted = whole_days(length_us, f"{name} {asked}") if is_days else length_us // per_us
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        shown = asked if isinstance(asked, timedelta) else repr(asked)
        raise UsageError(
            f"{name} {shown} must be a whole number of at least 1, a timedelta or a text such as '7d' "
            f"of at least one unit of the times, or None {none}"
        )
    if wanted > TIME_MAX:
        raise UsageError(f"{name} {asked!r} is longer than all time: give None {none}")
    return wanted
