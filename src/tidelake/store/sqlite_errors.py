"""What an error of SQLite means to the caller.

Owns the mapping from result codes to our errors. Must not open a database.

INVARIANT: only a failed COMMIT leaves the outcome unknown; all that fails before it did not happen.
"""

import sqlite3

from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable, TidelakeError, UsageError

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_NOT_COMMITTED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
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


def before_commit(action: str, key: str, error: sqlite3.Error) -> TidelakeError:
    """The error for a read, or for a write that failed before its COMMIT; raise it `from error`."""
    code = primary_code(error)
    if code in _DAMAGED:  # our statements are fixed, so a plain error means that the table is missing
        return CorruptionError(key, str(error))
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return UsageError(f"cannot {action} key {key!r}: the data is too large: {error}")
    reason = _REMEDIES.get(code, str(error))
    return StoreUnavailable(f"cannot {action} key {key!r}: {reason}", code not in _REMEDIES)


def at_commit(action: str, key: str, error: sqlite3.Error) -> TidelakeError:
    """The error for a failed COMMIT; raise it `from error`.

    SUBTLE: a full disk is certain although it shows only here. The frame that commits is written last, and
    a write cut short leaves it without its checksum; the next transaction writes over it. A failed flush
    is not certain: the frame may be whole, and a recovery after a crash would take it.
    """
    if primary_code(error) in _NOT_COMMITTED:
        return before_commit(action, key, error)
    return OutcomeUnknown(f"cannot {action} key {key!r}: {error}; it may have happened")
