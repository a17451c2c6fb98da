"""Instants: the moments that people name, and the times of a clock's unit that they mean.

Owns which values name an instant, the rule for zones, and the rule for what is finer than the unit. Must not
know collections or clocks: a caller that takes words such as `now` hands in the clock.

- Zones: a datetime, a pandas or Arrow timestamp and a text must say their zone, since a guess would read
  another version. A `date` and a `numpy.datetime64` have no zone to say, and are counted in UTC like units.
- Days: times of unit `date` take instants at midnight UTC only, since another one would be cut to a day that
  is not what the user sees elsewhere. A text of a date needs no zone there, and words count from today.
- Rounding: a time is the last one of the unit at or before the instant; the end of an interval is the first
  one at or after it. So a read as of an instant has all updates up to it, and an interval has those inside.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Protocol, TypeAlias

from tidelake.errors import UsageError
from tidelake.model.durations import microseconds
from tidelake.timetext import US_PER_UNIT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
# Instants are counted in attoseconds, the finest unit of NumPy, so that nothing is lost before rounding.
_SECOND = 10**18
_NS, _US, _MS, _DAY = _SECOND // 10**9, _SECOND // 10**6, _SECOND // 1000, 86_400 * _SECOND
_LENGTHS = {
    "W": 7 * _DAY,
    "D": _DAY,
    "h": 3600 * _SECOND,
    "m": 60 * _SECOND,
    "s": _SECOND,
    "ms": _MS,
    "us": _US,
    "ns": _NS,
    "ps": 10**6,
    "fs": 10**3,
    "as": 1,
}
_NAT = -(2**63)
_NUMPY_UNIT = re.compile(r".M8\[(\d*)([a-zA-Z]+)\]")
_DAY_TEXT = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?"
)
_BACK = re.compile(r"-\s*(.+)")
_WORDS = ("now", "today", "yesterday")
_ARROW = ("TimestampScalar", "Date32Scalar", "Date64Scalar")

PER_UNIT = {unit: us * _US for unit, us in US_PER_UNIT.items()}
"""The units of clocks, with their length in attoseconds."""


class NumpyScalar(Protocol):
    """A scalar of NumPy, such as a `numpy.datetime64`."""

    @property
    def dtype(self) -> Any:
        """Its type."""

    def item(self) -> Any:
        """Its value as an object of Python."""


TimeLike: TypeAlias = int | tuple[int, ...] | date | str | NumpyScalar
"""A time as users write it: in the collection's unit or, for a clock, an instant (a datetime is a `date`)."""


@dataclass(frozen=True)
class Moment:
    """A time on a clock: nanoseconds since 1970-01-01 00:00, in UTC if the zone is known."""

    ns: int
    zoned: bool


def clock_time(
    value: object, unit: str, name: str, *, up: bool = False, now_ms: Callable[[], int] | None = None
) -> int | None:
    """The time of a unit that an instant means; None if the value names no instant."""
    at = _instant(value, unit, name, now_ms)
    if at is None:
        return None
    per = PER_UNIT[unit]
    if unit == "date" and at % per:
        raise UsageError(
            f"{name}={_shown(value)} is not at midnight UTC, and times of unit date are days: give a date, "
            "such as 2026-11-01"
        )
    time = -(-at // per) if up else at // per
    if time < 0:
        raise UsageError(
            f"{name}={_shown(value)} is before 1970-01-01 00:00 UTC, where times of unit {unit} begin"
        )
    if time >= 2**63:
        raise UsageError(f"{name}={_shown(value)} is past the last time of unit {unit}, 2^63 - 1")
    return time


def whole_days(length_us: int, what: str) -> int:
    """The days in a number of microseconds."""
    days, rest = divmod(length_us, US_PER_UNIT["date"])
    if rest:
        raise UsageError(
            f"{what} is not a whole number of days, and times of unit date are days: give 7d, say"
        )
    return days


def is_now(value: object) -> bool:
    """Whether a user's time is the word `now`."""
    return isinstance(value, str) and value.strip().lower() == "now"


def is_instant(text: str) -> bool:
    """Whether a text is an instant: a date, a date and time, or a word such as `now` and `-1d`."""
    word = text.strip().lower()
    back = _BACK.fullmatch(word)
    return word in _WORDS or moment(text) is not None or (back is not None and _is_length(back[1]))


def is_zoneless(text: str) -> bool:
    """Whether a text is a date, or a date and time, that does not say its zone."""
    found = moment(text)
    return found is not None and not found.zoned


def moment(text: str) -> Moment | None:
    """The time in the text `yyyy-mm-dd hh:mm:ss.fffffffff+hh:mm`, whose end may be left out; or None."""
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        return None
    on, hour, minute, second, fraction, zone = found.groups()
    days = day_number(on)
    try:
        # Only checks the numbers, since a datetime holds no nanoseconds.
        datetime(2000, 1, 1, int(hour or 0), int(minute or 0), int(second or 0))  # noqa: DTZ001
        offset_s = _offset_s(zone)
    except ValueError:
        return None
    if days is None:
        return None
    seconds = days * 86_400 + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0) - offset_s
    return Moment(seconds * 10**9 + int((fraction or "").ljust(9, "0")), zone is not None)


def day_number(text: str) -> int | None:
    """The days from 1970-01-01 to the date in the text `yyyy-mm-dd`; None if it is not a date."""
    found = _DAY_TEXT.fullmatch(text.strip())
    try:
        return date(*map(int, found.groups())).toordinal() - _EPOCH_DAY if found else None
    except ValueError:
        return None


def _instant(value: object, unit: str, name: str, now_ms: Callable[[], int] | None) -> int | None:
    """Attoseconds from 1970-01-01 00:00 UTC to an instant; None if the value names none."""
    numpy, arrow = _is_of(value, "numpy", "datetime64"), _is_of(value, "pyarrow", *_ARROW)
    text = _of_text(value, unit, name, now_ms) if isinstance(value, str) else None
    if not (text is not None or numpy or arrow or isinstance(value, date)):
        return None
    if unit not in PER_UNIT:
        whole = "a tuple of whole numbers" if unit == "tuple" else "a whole number"
        raise UsageError(
            f"{name}={_shown(value)} is a time of a clock, and these times are of unit {unit}, which knows "
            f"no clock: give {whole}"
        )
    if text is not None:
        return text
    if numpy:
        return _of_numpy(value, name)
    return _of_arrow(value, name) if arrow else _of_date(value, name)


def _of_text(text: str, unit: str, name: str, now_ms: Callable[[], int] | None) -> int | None:
    word = text.strip().lower()
    if now_ms is not None and word in _WORDS:
        now = now_ms() * _MS
        is_exact = word == "now" and unit != "date"
        return now if is_exact else now // _DAY * _DAY - (_DAY if word == "yesterday" else 0)
    back = _BACK.fullmatch(word)
    if now_ms is not None and back is not None:
        length_us = microseconds(back[1])
        if length_us is None:
            return None
        now = now_ms() * _MS
        if unit == "date":
            now, length_us = now // _DAY * _DAY, whole_days(length_us, f"{name}={text!r}") * US_PER_UNIT[unit]
        return now - length_us * _US
    found = moment(text)
    needs_zone = unit in PER_UNIT and not (unit == "date" and day_number(text) is not None)
    if found is not None and not found.zoned and needs_zone:
        whole = text.strip() if ":" in text else f"{text.strip()} 00:00:00"
        raise UsageError(
            f"{name}={text!r} does not say its zone: write {whole}Z for UTC, or {whole}+01:00, say"
        )
    return None if found is None else found.ns * _NS


def _of_date(value: Any, name: str) -> int:
    if not isinstance(value, datetime):
        return int(value.toordinal() - _EPOCH_DAY) * _DAY
    if value != value:  # noqa: PLR0124 - a NaT of pandas
        raise UsageError(f"{name}={_shown(value)} is no time: give one")
    if value.utcoffset() is None:
        raise _zoneless(
            value, name, "value.tz_localize" if hasattr(value, "tz_localize") else "value.replace"
        )
    if hasattr(value, "asm8"):
        # A timestamp of pandas has a unit of its own, and may be finer than a datetime.
        return _of_numpy(value.asm8, name)
    since: timedelta = value - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * _US


def _of_numpy(value: Any, name: str) -> int:
    found = _NUMPY_UNIT.fullmatch(value.dtype.str)
    count = int(value.astype("int64"))
    if found is None or count == _NAT:
        raise UsageError(f"{name}={_shown(value)} is no time: give one")
    count *= int(found[1] or 1)
    if found[2] not in ("Y", "M"):
        return count * _LENGTHS[found[2]]
    years, months = divmod(count if found[2] == "M" else 12 * count, 12)
    if not -1969 <= years <= 8029:
        raise UsageError(
            f"{name}={_shown(value)} is not in the years 1 to 9999: give a day or a count of units"
        )
    return (date(1970 + years, 1 + months, 1).toordinal() - _EPOCH_DAY) * _DAY


def _of_arrow(value: Any, name: str) -> int:
    if not value.is_valid:
        raise UsageError(f"{name}={_shown(value)} is no time: give one")
    if type(value).__name__ != "TimestampScalar":
        return _of_date(value.as_py(), name)
    if value.type.tz is None:
        raise _zoneless(value, name, "pyarrow.compute.assume_timezone")
    return int(value.value) * _LENGTHS[value.type.unit]


def _is_length(text: str) -> bool:
    return microseconds(text) is not None


def _zoneless(value: object, name: str, way: str) -> UsageError:
    zone = {
        "value.replace": "value.replace(tzinfo=datetime.UTC), or value.astimezone() for this machine's zone",
        "value.tz_localize": "value.tz_localize('UTC'), or with the zone that it is in",
    }.get(way, f"{way}(value, 'UTC'), or with the zone that it is in")
    return UsageError(f"{name}={_shown(value)} does not say its zone: give {zone}")


def _is_of(value: object, package: str, *names: str) -> bool:
    """Whether a value is of one of a package's classes, which is not imported here."""
    kind = type(value)
    return kind.__name__ in names and kind.__module__.partition(".")[0] == package


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | tuple) else str(value)


def _offset_s(zone: str | None) -> int:
    if zone is None or zone in ("Z", "UTC"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:]) if len(zone) > 3 else 0
    if hours > 18 or minutes > 59:
        raise ValueError(zone)
    return (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
