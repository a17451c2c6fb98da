"""Numbers in the fields of messages: times, and positions in logs.

Owns how a tool writes them. A word says what a field holds:

| word | field | number |
|---|---|---|
| `s`, `ms`, `us` | seconds, milliseconds or microseconds since 1970, as a number | the same |
| `iso` | a text with a date, a time and a zone | microseconds |
| `lsn` | a position in PostgreSQL's log, such as `16/B374D848` | 64 bits |
| `digits` | a text of digits | the number |
| `tso` | a timestamp of TiDB: milliseconds times 2^18, plus a counter | the same, or the milliseconds |
| `position` | a number, or a file of MySQL's log and a place in it: `bin.000007:5` | the same, or 64 bits |

A field without a word is read as `position`.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from tidelake.cdc.core.lineerrors import shown
from tidelake.cdc.core.ops import Unfit
from tidelake.model.time import TIME_MAX

# What a unit of a clock is in microseconds.
MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}
# Words of fields that are no times of a clock, and what texts in them are.
POSITIONS = {
    "position": re.compile(r".*\.([0-9]{1,9}):([0-9]{1,10})"),
    "lsn": re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})"),
    "digits": re.compile(r"([0-9]{1,40})"),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def number_in(value: Any, word: str | None, what: str, wanted: str | None) -> int:
    """The number that the value of a field stands for."""
    unit = word if word in MICROSECONDS else None
    if word == "iso":
        value, unit = _instant(value, what), "us"
    if type(value) is float and value.is_integer() and unit is not None:
        value = int(value)
    pattern = POSITIONS.get(word or "position")
    found = pattern.fullmatch(value) if pattern is not None and isinstance(value, str) else None
    if found is not None:
        high, *low = (int(part, 16 if word == "lsn" else 10) for part in found.groups())
        value = high << 32 | low[0] if low else high
    if type(value) is not int:
        raise Unfit(f"{what} is {shown(repr(value).encode())}, and not a whole number")
    if word == "tso" and wanted is not None:
        value, unit = value >> 18, "ms"
    if unit is not None and wanted is not None:
        value = value * MICROSECONDS[unit] // MICROSECONDS[wanted]
    if not 0 <= value <= TIME_MAX:
        raise Unfit(f"{what} is {value}, and not from 0 to 2^63 - 1")
    return int(value)


def _instant(value: Any, what: str) -> int:
    """Microseconds since 1970 of a text with a zone."""
    try:
        at = datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise Unfit(f"{what} is {shown(repr(value).encode())}: {error}") from None
    if at.tzinfo is None:
        raise Unfit(f"{what} is {value!r}, which says no zone")
    return (at - _EPOCH) // timedelta(microseconds=1)
