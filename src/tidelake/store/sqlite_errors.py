"""The mapping from errors of SQLite to errors of Tidelake.

Owns the mapping of result codes. Must not open a database.

INVARIANT: only a failed COMMIT leaves the outcome unknown. A write that fails earlier has no effect.
"""

import os
import sqlite3

from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable, TidelakeError, UsageError
from tidelake.store.disk import unavailable

# Our statements never vary, so if SQLite rejects one, the file is at fault.
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
# File descriptors that a connection needs at most: database, write-ahead log, its index, and a folder.
_DESCRIPTORS = 5
_REMEDIES = {
    sqlite3.SQLITE_FULL: "no space left on device; free space and try again",
    sqlite3.SQLITE_READONLY: "no permission to write; grant this user access and try again",
    sqlite3.SQLITE_PERM: "no permission; grant this user access and try again",
}


def primary_code(error: sqlite3.Error) -> int:
    """The primary result code; `SQLITE_MISUSE` for errors that the Python module raises itself."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        # Also for reading, SQLite creates a `-shm` file next to the database: the disk has no space for it.
        return sqlite3.SQLITE_FULL
    return sqlite3.SQLITE_MISUSE if code is None else int(code) & 0xFF


def damaged(key: str, path: str, reason: str) -> CorruptionError:
    """The error that names the damaged key and its file."""
    return CorruptionError(key, f"{path}: {reason}; `tidelake fsck --repair` recovers what is intact")


def before_commit(action: str, key: str, path: str, error: Exception) -> TidelakeError:
    """The error for a read, or for a write that failed before its COMMIT; raise it `from error`."""
    if not isinstance(error, sqlite3.Error):  # Python could not convert what SQLite returned
        return damaged(key, path, str(error))
    code = primary_code(error)
    if code in _DAMAGED or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHORT_READ:
        return damaged(key, path, str(error))
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        if action not in ("write", "create"):  # such data is never written, so it is damage
            return damaged(key, path, str(error))
        return UsageError(f"cannot {action} key {key!r}: the data is too large: {error}")
    if code == sqlite3.SQLITE_CANTOPEN and (refused := _no_descriptors()) is not None:
        return unavailable(f"{action} key", key, refused)
    reason = _REMEDIES.get(code, str(error))
    return StoreUnavailable(f"cannot {action} key {key!r}: {reason}", code not in _REMEDIES)


def _no_descriptors() -> OSError | None:
    """The system error if this process cannot open as many files as SQLite needs; SQLite does not name it."""
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

    SUBTLE: a full disk is reported only at COMMIT, and still means that nothing was committed: the commit
    frame is written last, a partial write leaves it without a valid checksum, and the next transaction
    overwrites it. After a failed flush the outcome is unknown: the frame may be complete, and then a recovery
    after a crash would apply it.
    """
    if primary_code(error) in _NOT_COMMITTED:
        return before_commit(action, key, path, error)
    return OutcomeUnknown(f"cannot {action} key {key!r}: {error}; it may have happened")
