"""The names of the objects of a version log in an object store; see `tidelake.store.objects.log`.

Must not know what of them is there. The order of the names is the order in which a listing shows them: the
greatest floor first, then the newest entry.
"""

from tidelake.errors import CorruptionError

LOGS, GONE = "log/", "gone/"
FLOORS, ENTRIES = "0-floors/", "1-entries/"
DIGITS = 20
LAST = 10**DIGITS - 1
"""The floor of a deleted key: no entry has this seqno."""


def folder(key: str) -> str:
    """The prefix of all objects of a key."""
    return f"{LOGS}{key.replace('/', '~')}/"


def floor(key: str, seqno: int) -> str:
    """The name of a floor."""
    return f"{folder(key)}{FLOORS}{LAST - seqno:0{DIGITS}}"


def entry(key: str, seqno: int) -> str:
    """The name of an entry."""
    return f"{folder(key)}{ENTRIES}{LAST - seqno:0{DIGITS}}"


def gone(key: str) -> str:
    """The name of the object that says that a key was deleted."""
    return f"{GONE}{key.replace('/', '~')}"


def parsed(key: str, name: str) -> tuple[str, int]:
    """Which kind of object of a key it is, `FLOORS` or `ENTRIES`, and its number."""
    kind, digits = name.removeprefix(folder(key))[:-DIGITS], name[-DIGITS:]
    if kind not in (FLOORS, ENTRIES) or not digits.isdecimal():
        raise CorruptionError(name, "no object of a log has such a name")
    return kind, LAST - int(digits)
