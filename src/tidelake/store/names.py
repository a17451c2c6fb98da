"""Checks of names and arguments.

Owns the checks that every store makes first. Must not know any store.

INVARIANT: a checked name, used as a path relative to a directory, stays below that directory. No checked
name contains `~`, so stores may use `~` for files of their own.
"""

import re

from tidelake.errors import UsageError
from tidelake.model.names import NAME_CHARS_MAX, is_object, is_plain

_PARTIAL = re.compile(r"[A-Za-z0-9_.=-]*", re.ASCII)
_RULE = (
    "use segments of A-Z a-z 0-9 _ . = - separated by single '/', none of them '.' or '..', "
    f"and at most {NAME_CHARS_MAX} characters in all"
)


def check_name(name: str) -> str:
    """Return `name` unchanged if it is allowed."""
    if not is_object(name):
        raise UsageError(f"bad name {name!r}: {_RULE}")
    return name


def check_prefix(prefix: str) -> str:
    """Return `prefix` if some name can start with it: whole segments, then the start of one more."""
    if len(prefix) <= NAME_CHARS_MAX:
        *folders, last = prefix.split("/")
        if all(map(is_plain, folders)) and _PARTIAL.fullmatch(last):
            return prefix
    raise UsageError(f"bad prefix {prefix!r}: {_RULE}")


def check_range(name: str, start: int, length: int | None) -> None:
    """Refuse a range of bytes with a negative start or length."""
    if start < 0 or (length is not None and length < 0):
        raise UsageError(f"bad range of {name!r}: start={start} length={length} must not be negative")


def check_expected(key: str, expected: int | None) -> None:
    """Refuse an expected seqno that no entry can have."""
    if expected is not None and expected < 0:
        raise UsageError(
            f"bad expected seqno of {key!r}: expected={expected} is negative; None means no entry"
        )


def check_limit(key: str, limit: int | None) -> None:
    """Refuse a negative limit."""
    if limit is not None and limit < 0:
        raise UsageError(f"bad limit of a scan of {key!r}: limit={limit} must not be negative")


def check_truncation(key: str, head: int | None, seqno: int) -> None:
    """Refuse to truncate a key that does not exist, or whose newest entry is before `seqno`."""
    if head is None:
        raise UsageError(f"cannot truncate {key!r}: there is no such key")
    if seqno > head:
        raise UsageError(f"cannot truncate {key!r}: seqno={seqno} is greater than the newest entry {head}")
