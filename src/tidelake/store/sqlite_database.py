"""One SQLite database: the entries of one key.

Owns the statements, the settings and the format of the file. Must not know where the file is, who else
writes to it, nor which error its caller makes of a `sqlite3.Error`.

INVARIANT: the seqnos in the table are contiguous, and there is at least one.
"""

import errno
import os
import sqlite3
from contextlib import suppress
from urllib.parse import quote

from tidelake.errors import CorruptionError, FormatTooNew
from tidelake.store.names import check_truncation
from tidelake.store.protocols import Entry

FORMAT = 1
_APPLICATION = 0x71DE1A4E
_INT64_MAX = 2**63 - 1
_READ_BYTES = 1 << 20
_BUSY_TIMEOUT_S = 10.0  # for what the lock file does not cover: recovery after a crash, a foreign reader


def make_database(path: str, data: bytes) -> None:
    """Make a complete and flushed database whose only entry is `(0, data)`; nothing else stays open."""
    connection = _connect(path, "rwc")
    try:
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("CREATE TABLE entries (seqno INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        connection.execute("INSERT INTO entries VALUES (0, ?)", (data,))
        connection.execute("COMMIT")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    finally:
        connection.close()
    if mode != "wal":
        raise OSError(errno.ENOTSUP, f"the file system has no shared memory for SQLite: journal_mode={mode}")


def open_database(path: str, key: str) -> sqlite3.Connection:
    """A connection to a database that `make_database` made.

    Raises:
        CorruptionError: it is not one of ours.
        FormatTooNew: a newer Tidelake made it.
        sqlite3.Error: it cannot be opened; it is never made.
    """
    connection = _connect(path, "rw")
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise CorruptionError(key, f"its file has application_id={application:#x}, not {_APPLICATION:#x}")
        if version > FORMAT:
            raise FormatTooNew(key, version, FORMAT)
    except BaseException:
        connection.close()
        raise
    return connection


def read_head(connection: sqlite3.Connection, key: str) -> Entry:
    """The newest entry."""
    row = connection.execute("SELECT seqno, data FROM entries ORDER BY seqno DESC LIMIT 1").fetchone()
    if row is None:
        raise CorruptionError(key, "it has no entries")
    return Entry(*row)


def read_head_seqno(connection: sqlite3.Connection, key: str) -> int:
    """The seqno of the newest entry, without its data."""
    (seqno,) = connection.execute("SELECT max(seqno) FROM entries").fetchone()
    if seqno is None:
        raise CorruptionError(key, "it has no entries")
    return int(seqno)


def read_entries(connection: sqlite3.Connection, start: int, limit: int | None) -> list[Entry]:
    """Entries with `seqno >= start`, ascending, at most `limit`."""
    if start > _INT64_MAX:
        return []
    rows = connection.execute(
        "SELECT seqno, data FROM entries WHERE seqno >= ? ORDER BY seqno LIMIT ?",
        (max(start, 0), -1 if limit is None else min(limit, _INT64_MAX)),
    )
    return [Entry(seqno, data) for seqno, data in rows]


def append(connection: sqlite3.Connection, key: str, expected: int | None, data: bytes) -> bool:
    """Add the entry after `expected` iff that is the newest. REQUIRES: a transaction for writing."""
    if expected is None or read_head_seqno(connection, key) != expected:
        return False
    connection.execute("INSERT INTO entries VALUES (?, ?)", (expected + 1, data))
    return True


def truncate(connection: sqlite3.Connection, key: str, seqno: int) -> int:
    """Remove the entries before `seqno`; how many. REQUIRES: a transaction for writing."""
    check_truncation(key, read_head_seqno(connection, key), seqno)
    return connection.execute("DELETE FROM entries WHERE seqno < ?", (max(seqno, 0),)).rowcount


def read_through(path: str) -> None:
    """Read the bytes of a database and of its write-ahead log, and forget them.

    Raises:
        OSError: the disk does not give them.
    """
    for name in (path, path + "-wal"):
        with suppress(FileNotFoundError), open(name, "rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def _connect(path: str, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode={mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,  # the lock of the handle sees to it
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection
