"""Durations as people write them: `7d`, `90 minutes`, a `timedelta`, or a number of seconds."""

import re
from datetime import timedelta
from decimal import Decimal

_WRITTEN = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]+)")
_US = {
    **dict.fromkeys(("ms", "millis", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000_000),
}
_US_PER_DAY = 86_400_000_000


def microseconds(duration: timedelta | str) -> int | None:
    """The length of a timedelta, or of a text such as `90s`, `15m`, `24h`, `7d` or `7 days`.

    Returns:
        Whole microseconds; what is finer is cut off. None for a text that is no duration: one without a unit
        is none.
    """
    if isinstance(duration, timedelta):
        return duration.days * _US_PER_DAY + duration.seconds * 1_000_000 + duration.microseconds
    found = _WRITTEN.fullmatch(duration.strip().lower())
    if found is None or found[2] not in _US:
        return None
    return int(Decimal(found[1]) * _US[found[2]])
