"""Texts of error messages about change events: where they are, and why they cannot be read.

Must not know what events mean.
"""

import re
from urllib.parse import unquote

import pyarrow as pa

from tidelake.errors import InvalidUpdates

_REASON_MAX = 300


def unreadable(reason: str, where: str) -> InvalidUpdates:
    """The error of a change event that cannot be read."""
    return InvalidUpdates(f"cannot read a change event: {reason}; {where}")


def late_reason(time: int, lower: int) -> str:
    """Why an event that is too late is refused."""
    return (
        f"its time {time} is late, all times before {lower} are closed: "
        "deliver files in the order of their times, or use late='advance'"
    )


def cut(text: str) -> str:
    """Shorten a reason to a readable length."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _REASON_MAX else text[: _REASON_MAX - 3] + "..."


def place(file: str | None, number: int | None = None) -> str:
    """Where a line is, for messages."""
    path = unquote(re.sub("^file:(//)?(?=/)", "", file or "?"))
    return f"file={path}" + ("" if number is None else f" number={number}")


def shown(line: bytes | None) -> str:
    """The beginning of a line, for messages."""
    text = (line or b"").decode("utf-8", "backslashreplace")
    return text if len(text) <= 200 else text[:197] + "..."


def as_bytes(values: pa.Array) -> pa.Array:
    """Text from Spark as bytes, undecoded: Spark does not check that text files are UTF-8."""
    if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
        return values.view(pa.large_binary()).cast(pa.binary())
    return values.view(pa.binary())
