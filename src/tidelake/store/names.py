"""Which names and arguments a store accepts.

Owns the checks that all stores call first. Must not know any store.

INVARIANT: a checked name, taken as a path below a directory, stays below it, and no checked name
contains `~`, which stores may therefore use for files of their own.
"""

import re

from tidelake.errors import UsageError

NAME_CHARS_MAX = 240

_SEGMENT = re.compile(r"[A-Za-z0-9_.=-]+", re.ASCII)
_PARTIAL = re.compile(r"[A-Za-z0-9_.=-]*", re.ASCII)
_RULE = (
    "use segments of A-Z a-z 0-9 _ . = - separated by single '/', none of them '.' or '..', "
    f"of together at most {NAME_CHARS_MAX} characters"
)


def is_name(name: str) -> bool:
    """Whether a store accepts `name`."""
    if len(name) > NAME_CHARS_MAX:
        return False
    return all(_is_segment(segment) for segment in name.split("/"))


def check_name(name: str) -> str:
    """Return `name` as it is.

    Raises:
        UsageError: a store must not accept it.
    """
    if not is_name(name):
        raise UsageError(f"bad name {name!r}: {_RULE}")
    return name


def check_prefix(prefix: str) -> str:
    """Return `prefix` as it is: whole segments, and the beginning of one more.

    Raises:
        UsageError: no name can start with it.
    """
    if len(prefix) <= NAME_CHARS_MAX:
        *folders, last = prefix.split("/")
        if all(map(_is_segment, folders)) and _PARTIAL.fullmatch(last):
            return prefix
    raise UsageError(f"bad prefix {prefix!r}: {_RULE}")


def check_range(name: str, start: int, length: int | None) -> None:
    """Refuse a range of bytes that has a negative start or length."""
    if start < 0 or (length is not None and length < 0):
        raise UsageError(f"bad range of {name!r}: start={start} length={length} must not be negative")


def check_expected(key: str, expected: int | None) -> None:
    """Refuse an expected seqno that no entry can have."""
    if expected is not None and expected < 0:
        raise UsageError(
            f"bad expected seqno of {key!r}: expected={expected}; None says that there is no entry"
        )


def check_limit(key: str, limit: int | None) -> None:
    """Refuse a negative number of entries."""
    if limit is not None and limit < 0:
        raise UsageError(f"bad limit of a scan of {key!r}: limit={limit} must not be negative")


def check_truncation(key: str, head: int | None, seqno: int) -> None:
    """Refuse to truncate a key that is missing or that ends before `seqno`."""
    if head is None:
        raise UsageError(f"cannot truncate {key!r}: there is no such key")
    if seqno > head:
        raise UsageError(f"cannot truncate {key!r}: seqno={seqno} lies beyond the newest entry {head}")


def _is_segment(segment: str) -> bool:
    return _SEGMENT.fullmatch(segment) is not None and segment not in (".", "..")
