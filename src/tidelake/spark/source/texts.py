"""Values of options: text in, plain values out, or a clear error.

Owns the spellings of lists of names, flags, counts and spans of time; must not know what options mean.
"""

import re
from collections.abc import Mapping

from tidelake.errors import UsageError
from tidelake.model.durations import microseconds

_NAME = re.compile(r"""\s*(?:`((?:[^`]|``)+)`|"((?:[^"]|"")+)"|([^,`"]*[^,`"\s]))\s*(,|\Z)""")
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")


def names_of(given: Mapping[str, str], option: str) -> tuple[str, ...] | None:
    """Names between commas; one that holds a comma or a quote stands in backticks or double quotes."""
    text = given.get(option)
    if text is None:
        return None
    names: list[str] = []
    at, more = 0, True
    while more:
        found = _NAME.match(text, at)
        if found is None:
            raise UsageError(
                f"option {option}={text!r} is not a list of names: write {option}='key, value', and `a,b` in "
                "backticks where a name holds a comma"
            )
        in_ticks, in_quotes, plain, end = found.groups()
        names.append(plain or (in_ticks or "").replace("``", "`") or (in_quotes or "").replace('""', '"'))
        at, more = found.end(), bool(end)
    return tuple(names)


def flag(given: Mapping[str, str], option: str) -> bool | None:
    """`true` or `false`; None if it is not given."""
    text = given.get(option)
    if text is None:
        return None
    if text.strip().lower() not in ("true", "false"):
        raise UsageError(f"option {option}={text!r} is neither true nor false")
    return text.strip().lower() == "true"


def count(given: Mapping[str, str], option: str) -> int | None:
    """A whole number from 1 on; None if it is not given."""
    text = given.get(option)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < 1:
        raise UsageError(f"option {option}={text!r} is not a whole number from 1 on")
    return int(text)


def seconds(given: Mapping[str, str], option: str) -> float | None:
    """A span of time in seconds; a text without unit is in seconds. None if it is not given."""
    text = given.get(option)
    if text is None:
        return None
    if _SECONDS.fullmatch(text.strip()):
        return float(text)
    length_us = microseconds(text)
    if length_us is None:
        also = ", or none" if option == "holdFor" else ""
        raise UsageError(f"option {option}={text!r} is no span of time: write 90, 90s, 15m, 24h or 7d{also}")
    return length_us / 1_000_000
