"""Numbers in the fields of messages: times, and positions in logs.

Owns how a tool writes them. A word says what a field holds:

| word | field | number |
|---|---|---|
| `s`, `ms`, `us` | seconds, milliseconds or microseconds since 1970, as a number | the same |
| `iso` | a text with a date, a time and a zone | microseconds |
| `lsn` | a position in PostgreSQL's log, such as `16/B374D848` | 64 bits |
| `digits` | a text of digits | the number |
| `tso` | a timestamp of TiDB: milliseconds times 2^18, plus a counter | the same, or the milliseconds |

Without a word it is a whole number, or a file of MySQL's log and a position in it, such as `bin.000007:5`.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from tidelake.cdc.core.lineerrors import shown
from tidelake.cdc.core.ops import Unfit

# What a unit of a clock is in microseconds.
MICROSECONDS: Mapping[str, int] = MappingProxyType({"us": 1, "ms": 1_000, "s": 1_000_000})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FILE = re.compile(r".*\.([0-9]{1,9}):([0-9]{1,10})")
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_DIGITS = re.compile(r"[0-9]{1,40}")


def number_in(
    value: Any, word: str | None, what: str, path: str, *, clock: bool = False
) -> tuple[int, str | None]:
    """The number that the value of a field stands for, and its unit if it is a time of a clock.

    Args:
        value: as it is in the message.
        word: what the field holds; None: a number, or a file and a position.
        what: what it is for, for the reason.
        path: where it is.
        clock: a time of a clock is wanted.

    Raises:
        Unfit: it is none.
    """
    if word == "iso":
        return _instant(value, what, path), "us"
    unit = word if word in MICROSECONDS else None
    if type(value) is float and value.is_integer() and unit is not None:
        value = int(value)
    if isinstance(value, str):
        pattern = {"lsn": _LSN, "digits": _DIGITS, None: _FILE}.get(word)
        found = None if pattern is None else pattern.fullmatch(value)
        if found and word == "digits":
            value = int(value)
        elif found:
            base = 16 if word == "lsn" else 10
            value = (int(found[1], base) << 32) | int(found[2], base)
    if type(value) is not int:
        raise Unfit(f"the {what} at {path!r} is {shown(repr(value).encode())}, and not a whole number")
    return (value >> 18, "ms") if word == "tso" and clock else (value, unit)


def _instant(value: Any, what: str, path: str) -> int:
    """Microseconds since 1970 of a text with a zone."""
    try:
        at = datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise Unfit(f"the {what} at {path!r} is {shown(repr(value).encode())}: {error}") from None
    if at.tzinfo is None:
        raise Unfit(f"the {what} at {path!r} is {value!r}, which says no zone")
    return (at - _EPOCH) // timedelta(microseconds=1)
