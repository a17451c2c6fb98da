"""The rows of the demo: one for each path; and how names that are not text become text.

Owns the schema of the demo's collection and the spelling of paths, names and times; must not know git
commands. INVARIANT: `path_text` never gives two paths one spelling, and `path_bytes` undoes it.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

KEY = ["path"]
_FIELDS: "list[pa.Field[Any]]" = [
    pa.field("path", pa.string(), nullable=False),
    pa.field("blob", pa.string(), nullable=False),
    pa.field("size", pa.int64()),
    pa.field("lines", pa.int64()),
    pa.field("mode", pa.string(), nullable=False),
    pa.field("author", pa.string(), nullable=False),
    pa.field("committed", pa.timestamp("us", "UTC"), nullable=False),
]
SCHEMA = pa.schema(_FIELDS)
SUBMODULE = "160000"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_S = 253_402_300_799  # the end of the year 9999, where Python and Spark agree to stop
_ESCAPED = re.compile(rb"\\(\\|x[0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class PathRow:
    """A path's value at some time.

    Attributes:
        path: as `path_text` spells it.
        blob: object id of the contents; of a submodule, the commit it points to.
        size: bytes; None for a submodule.
        lines: newline bytes plus an unterminated last line; None for a submodule or a binary file,
            that is one with a NUL among its first 8,000 bytes. A link's contents are its target.
        mode: six octal digits, such as `100644`.
        author: name of the author of the commit that last changed the path on the first-parent line.
        committed_s: that commit's commit time, seconds since 1970 UTC.
    """

    path: str
    blob: str
    size: int | None
    lines: int | None
    mode: str
    author: str
    committed_s: int


def path_text(path: bytes) -> str:
    r"""A path as text, distinct for distinct paths.

    UTF-8 is taken as it is. Any other path gets a leading `/`, which no path in git has, its
    backslashes doubled and each byte that is not UTF-8 as `\xNN`.
    """
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        return "/" + path.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def path_bytes(text: str) -> bytes:
    """The path that `path_text` spelled so."""
    if not text.startswith("/"):
        return text.encode("utf-8")

    def unescape(match: re.Match[bytes]) -> bytes:
        found = match[1]
        return found if found == b"\\" else bytes([int(found[1:], 16)])

    return _ESCAPED.sub(unescape, text[1:].encode("utf-8"))


def name_text(name: bytes) -> str:
    r"""A person's name as text; bytes that are not UTF-8 become `\xNN` (two such names may meet)."""
    return name.decode("utf-8", "backslashreplace")


def seconds(digits: bytes) -> int:
    """Git's decimal seconds since 1970; a damaged time (git prints nothing) is 0, a far one year 9999."""
    return min(int(digits), _LAST_S) if digits.isdigit() else 0


def iso(seconds_: int) -> str:
    """A time as ISO-8601 in UTC, `2024-01-02T03:04:05Z`.

    Not a number: Spark's `from_json` reads one as *seconds* and wraps without a word when it overflows.
    """
    return instant(seconds_).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant(seconds_: int) -> datetime:
    """A time as a `datetime`."""
    return _EPOCH + timedelta(seconds=seconds_)
