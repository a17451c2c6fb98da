"""Times, frontiers and spans as texts for people, in the unit of a collection.

Owns the texts, and only them; must not know where they appear. Errors use it as well as all layers above, so
it lies below both, and takes a unit as text (`str(TimeDomain)`).

INVARIANT: a text is exact. It has as many digits as the time needs and no more, and ISO parsers read it back
as the same time. What has no such text, such as a year after 9999, is shown as the number that is stored.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US_PER_DAY = 86_400_000_000
_DATE = "date"
US_PER_UNIT = {"us": 1, "ms": 1_000, _DATE: _US_PER_DAY}
"""The units of clocks, with their length in microseconds. Their times count from 1970-01-01 00:00 UTC."""
_SPANS = (("day", _US_PER_DAY), ("hour", 3_600_000_000), ("minute", 60_000_000))
_US_PER_SECOND = 1_000_000


def is_clock(unit: str) -> bool:
    """Whether times of a unit count from 1970, and so have a text of their own."""
    return unit in US_PER_UNIT


def shown(value: object, unit: str) -> str:
    """The text of a time or a frontier: `2026-11-01 12:00Z`, `2026-11-01` for dates, `17` for counters.

    Args:
        value: a time, a frontier, or something else, which is shown as `str` shows it.
        unit: the unit of the times, such as `ms`; `""` if it is unknown, which shows numbers.

    Returns:
        For a frontier of a clock with one element the text of that element; other frontiers in brackets.
    """
    if isinstance(value, int):
        return _at(value, unit)
    if isinstance(value, tuple | str) or not isinstance(value, Iterable):
        return str(value)
    elements = [shown(element, unit) for element in value]
    return elements[0] if len(elements) == 1 and is_clock(unit) else f"[{', '.join(elements)}]"


def many(count: int, noun: str) -> str:
    """A number of things: `1 row`, `2,000 rows`."""
    return f"{count:,} {noun}{'' if abs(count) == 1 else 's'}"


def span(count: int, unit: str) -> str:
    """The text of a number of units: `4 minutes`, `1 day 2 hours`, `0.5 seconds`; `17` for counters."""
    if not is_clock(unit):
        return f"{count:,}"
    if unit == _DATE:
        return many(count, "day")
    left = abs(count) * US_PER_UNIT[unit]
    words: list[str] = []
    for name, size in _SPANS:
        number, left = divmod(left, size)
        words += [many(number, name)] if number else []
    if left or not words:
        seconds, fraction = divmod(left, _US_PER_SECOND)
        words.append(f"{seconds}{_fraction(fraction)} second{'' if left == _US_PER_SECOND else 's'}")
    return ("-" if count < 0 else "") + " ".join(words)


def _at(time: int, unit: str) -> str:
    if not is_clock(unit):
        return str(time)
    try:
        at = _EPOCH + timedelta(microseconds=time * US_PER_UNIT[unit])
    except OverflowError:
        return str(time)
    if unit == _DATE:
        return str(at.date())
    seconds = f":{at.second:02}{_fraction(at.microsecond)}" if at.second or at.microsecond else ""
    return f"{at.date()} {at.hour:02}:{at.minute:02}{seconds}Z"


def _fraction(microseconds: int) -> str:
    """Digits after the point, with it; nothing if there are none."""
    return f".{microseconds:06}".rstrip("0") if microseconds else ""
