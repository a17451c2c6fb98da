"""What an error of SQLite means to the caller.

Owns the mapping from result codes to our errors. Must not open a database.

INVARIANT: only a failed COMMIT leaves the outcome unknown; all that fails before it did not happen.
"""

import os
import sqlite3

from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable, TidelakeError, UsageError
from tidelake.store.disk import unavailable

# Our statements are fixed, so what SQLite cannot make sense of is the file.
_DAMAGED = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_EMPTY,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_INTERNAL,
)
_NOT_COMMITTED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
# What a connection takes at most: the database, its write-ahead log, the index of that, and a folder.
_DESCRIPTORS = 5
_REMEDIES = {
    sqlite3.SQLITE_FULL: "no space left on device; free space and try again",
    sqlite3.SQLITE_READONLY: "no permission to write; grant this user access and try again",
    sqlite3.SQLITE_PERM: "no permission; grant this user access and try again",
}


def primary_code(error: sqlite3.Error) -> int:
    """The result code without its extension; `SQLITE_MISUSE` for errors of the Python module itself."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        # Opening makes a small file beside the database, also for reading; it finds no room.
        return sqlite3.SQLITE_FULL
    return sqlite3.SQLITE_MISUSE if code is None else int(code) & 0xFF


def damaged(key: str, path: str, reason: str) -> CorruptionError:
    """The error that names the key and the file that is damaged."""
    return CorruptionError(key, f"{path}: {reason}; `tidelake fsck --repair` takes back what is sound")


def before_commit(action: str, key: str, path: str, error: Exception) -> TidelakeError:
    """The error for a read, or for a write that failed before its COMMIT; raise it `from error`."""
    if not isinstance(error, sqlite3.Error):  # of what SQLite gave, or of the text of its own error
        return damaged(key, path, str(error))
    code = primary_code(error)
    if code in _DAMAGED or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHORT_READ:
        return damaged(key, path, str(error))
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        if action not in ("write", "create"):  # nothing that large was ever written
            return damaged(key, path, str(error))
        return UsageError(f"cannot {action} key {key!r}: the data is too large: {error}")
    if code == sqlite3.SQLITE_CANTOPEN and (refused := _no_descriptors()) is not None:
        return unavailable(f"{action} key", key, refused)
    reason = _REMEDIES.get(code, str(error))
    return StoreUnavailable(f"cannot {action} key {key!r}: {reason}", code not in _REMEDIES)


def _no_descriptors() -> OSError | None:
    """What the system says if it opens fewer files than SQLite needs, which says only that it failed."""
    taken: list[int] = []
    try:
        taken.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_DESCRIPTORS))
    except OSError as error:
        return OSError(error.errno, error.strerror)
    finally:
        for descriptor in taken:
            os.close(descriptor)
    return None


def at_commit(action: str, key: str, path: str, error: sqlite3.Error) -> TidelakeError:
    """The error for a failed COMMIT; raise it `from error`.

    SUBTLE: a full disk is certain although it shows only here. The frame that commits is written last, and
    a write cut short leaves it without its checksum; the next transaction writes over it. A failed flush
    is not certain: the frame may be whole, and a recovery after a crash would take it.
    """
    if primary_code(error) in _NOT_COMMITTED:
        return before_commit(action, key, path, error)
    return OutcomeUnknown(f"cannot {action} key {key!r}: {error}; it may have happened")
