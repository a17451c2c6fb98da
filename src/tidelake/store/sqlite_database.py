"""One SQLite database: the entries of one key.

Owns the statements, the settings and the format of the file, and what is checked before an entry is believed.
Must not know where the file is, who else writes to it, nor which error its caller makes of a `sqlite3.Error`.

INVARIANT: the seqnos in the table are contiguous, and there is at least one; each entry has a running hash,
its link, which continues that of the entry before. Entries of format 1 have none.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterable
from contextlib import closing, suppress
from urllib.parse import quote

from tidelake.errors import CorruptionError, FormatTooNew
from tidelake.store import wal
from tidelake.store.files import Flush
from tidelake.store.names import check_truncation
from tidelake.store.protocols import Entry
from tidelake.store.sqlite_errors import damaged
from tidelake.store.witness import LINK_BYTES, Acknowledged, Witness, contradiction, link, said

FORMAT = 2
_UNLINKED = 1
_APPLICATION = 0x71DE1A4E
_INT64_MAX = 2**63 - 1
_READ_BYTES = 1 << 20
_BUSY_TIMEOUT_S = 10.0  # for what the lock file does not cover: recovery after a crash, a foreign reader
_WITNESS = ".witness"
# Where the file says by which version it is written and read; 2 is a write-ahead log.
_VERSIONS = slice(18, 20)


def make_database(path: str, entries: Iterable[tuple[int, bytes | None, bytes]]) -> None:
    """Make a complete and flushed database of seqnos, links and data; nothing else stays open."""
    connection = _connect(path, "rwc")
    try:
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        # The link comes first: behind large data it would be read through all of it.
        connection.execute("CREATE TABLE entries (seqno INTEGER PRIMARY KEY, link BLOB, data BLOB NOT NULL)")
        connection.executemany("INSERT INTO entries (seqno, link, data) VALUES (?, ?, ?)", entries)
        connection.execute("COMMIT")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    finally:
        connection.close()
    if mode != b"wal":
        raise OSError(
            errno.ENOTSUP, f"the file system has no shared memory for SQLite: journal_mode={mode!r}"
        )


def witness_of(path: str) -> str:
    """The path of the witness of a database."""
    return path.removesuffix(".db") + _WITNESS


def is_witness(name: str) -> bool:
    """Whether a file is the witness of a database."""
    return name.endswith(_WITNESS)


def note(path: str, acknowledged: Acknowledged) -> None:
    """Write the witness of a database that nobody else writes to, and that is durable."""
    with closing(_witness(path)) as witness:
        witness.write(acknowledged)


def noted(path: str) -> Acknowledged | None:
    """What the witness of a database says."""
    with closing(_witness(path)) as witness:
        return witness.read()


def open_database(path: str, key: str) -> "Database":
    """Open a database that `make_database` made, once it is seen that it has lost nothing.

    Raises:
        CorruptionError: it is not one of ours, or it has lost what was acknowledged. Nothing was changed.
        FormatTooNew: a newer Tidelake made it.
        sqlite3.Error: it cannot be opened; it is never made.
        OSError: its files cannot be looked at.
    """
    has_wal = _check_files(path, key)
    witness = _witness(path)
    try:
        if has_wal:
            lost = wal.lost(path + "-wal")
            if lost is not None:
                raise damaged(key, path, lost)
            # SUBTLE: SQLite deletes the write-ahead log when the last connection closes, and with it what may
            # be got out of it. A connection that only reads cannot.
            with closing(_connect(path, "ro")) as connection:
                Database(connection, path, key, witness).check()
        connection = _connect(path, "rw")
        try:
            database = Database(connection, path, key, witness, has_wal=has_wal)
            database.check()
        except BaseException:
            connection.close()
            raise
    except BaseException:
        witness.close()
        raise
    return database


def open_image(path: str, key: str, pages: bytes, witness: bytes) -> "Database":
    """Open the bytes of a database, of which nothing is in a write-ahead log any more. It can only be read.

    Args:
        path: of the file that they are from.
        key: of the entries.
        pages: of the database.
        witness: the bytes of its witness, read before those of the database.

    Raises:
        CorruptionError, FormatTooNew, sqlite3.Error: as `open_database`.
    """
    if pages[_VERSIONS] != b"\2\2":
        raise damaged(key, path, "it has no journal_mode=WAL")
    # In memory there is no write-ahead log, and SQLite opens nothing that says so.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        connection.text_factory = bytearray
        connection.deserialize(pages[: _VERSIONS.start] + b"\1\1" + pages[_VERSIONS.stop :])
        seen = _Seen(said(witness, os.path.basename(path).encode()))
        database = Database(connection, path, key, seen, in_memory=True)
        database.check()
    except BaseException:
        connection.close()
        raise
    return database


class _Seen(Witness):
    """What a witness said when it was read."""

    def __init__(self, acknowledged: Acknowledged | None) -> None:
        super().__init__("", "")
        self._acknowledged = acknowledged

    def read(self) -> Acknowledged | None:
        return self._acknowledged


class Database:
    """An open database. One thread at a time.

    Attributes:
        path: of its file.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        key: str,
        witness: Witness,
        *,
        has_wal: bool = False,
        in_memory: bool = False,
    ) -> None:
        self._in_memory = in_memory
        self.path = path
        self.connection = connection
        self._key = key
        self._witness = witness
        self._has_wal = has_wal
        self._linked = False
        self._appended: Acknowledged | None = None

    def check(self) -> None:
        """Look whether it is one of ours, and has all that its witness knows of; see `open_database`."""
        acknowledged = self._witness.read()  # before the entries: others append meanwhile
        application, version = self._pragma("application_id"), self._pragma("user_version")
        if application != _APPLICATION:
            raise self.damaged(f"it has application_id={application!r}, not {_APPLICATION:#x}")
        if version not in (_UNLINKED, FORMAT):
            if isinstance(version, int) and version > FORMAT:
                raise FormatTooNew(self._key, version, FORMAT)
            raise self.damaged(f"it has user_version={version!r}")
        self._linked = version == FORMAT
        mode = self._pragma("journal_mode")
        if mode != b"wal" and not self._in_memory:
            raise self.damaged(f"it has journal_mode={mode!r}, not WAL")
        link_there = None
        if acknowledged is not None and self._linked:
            link_there = self._link_of(acknowledged.seqno) or None
        self._believe(acknowledged, self.head_seqno(), link_there)

    def head(self) -> Entry:
        """The newest entry."""
        acknowledged = self._witness.read()
        links = "link, (SELECT coalesce(link, x'') FROM entries AS last WHERE last.seqno = entries.seqno - 1)"
        row = self.connection.execute(
            f"SELECT seqno, data, {links if self._linked else 'NULL, NULL'} "  # noqa: S608 - fixed texts
            "FROM entries ORDER BY seqno DESC LIMIT 1"
        ).fetchone()
        if row is None:
            raise self.damaged("it has no entries")
        seqno, data, linked, before = row
        entry = self._entry(
            seqno, data, linked, self._link(seqno - 1, before or None) if before is not None else None
        )
        self._believe(acknowledged, entry.seqno)
        return entry

    def head_seqno(self) -> int:
        """The seqno of the newest entry, without its data."""
        acknowledged = self._witness.read()
        (seqno,) = self.connection.execute("SELECT max(seqno) FROM entries").fetchone()
        if seqno is None:
            raise self.damaged("it has no entries")
        self._believe(acknowledged, seqno)
        return int(seqno)

    def entries(self, start: int, limit: int | None) -> list[Entry]:
        """Entries with `seqno >= start`, ascending, at most `limit`."""
        if start > _INT64_MAX:
            return []
        acknowledged = self._witness.read()
        found = self._entries(max(start, 0), limit)
        if acknowledged is not None and start <= acknowledged.seqno and (limit is None or len(found) < limit):
            self._believe(acknowledged, found[-1].seqno if found else self.head_seqno())
        return found

    def append(self, expected: int | None, data: bytes) -> bool:
        """Add the entry after `expected` iff that is the newest. REQUIRES: a transaction for writing."""
        if not self._linked:
            self._begin_links()
        row = self.connection.execute(
            "SELECT seqno, link FROM entries ORDER BY seqno DESC LIMIT 1"
        ).fetchone()
        if row is None:
            raise self.damaged("it has no entries")
        head, before = row
        if expected is None or head != expected:
            return False
        seqno, linked = head + 1, link(self._link(head, before), head + 1, data)
        self.connection.execute(
            "INSERT INTO entries (seqno, link, data) VALUES (?, ?, ?)", (seqno, linked, data)
        )
        self._appended = Acknowledged(seqno, linked)
        return True

    def acknowledge(self) -> None:
        """Note in the witness what was appended. REQUIRES: it is durable, and nobody else writes yet."""
        appended, self._appended = self._appended, None
        if appended is not None:
            self._witness.write(appended)

    def truncate(self, seqno: int) -> int:
        """Remove the entries before `seqno`; how many. REQUIRES: a transaction for writing."""
        check_truncation(self._key, self.head_seqno(), seqno)
        return self.connection.execute("DELETE FROM entries WHERE seqno < ?", (max(seqno, 0),)).rowcount

    def settle(self, flush: Flush) -> None:
        """Make durable what a recovery may have taken for committed. To be done before the first write.

        SUBTLE: whoever wrote it may have died before its flush. If what comes next were durable without it, a
        power cut would leave what `wal.lost` takes for damage.
        """
        if self._has_wal:
            with suppress(FileNotFoundError), wal.open_wal(self.path + "-wal") as file:
                flush(file)
            self._has_wal = False

    def close(self) -> None:
        """Close it; an open transaction is rolled back."""
        self._witness.close()
        self.connection.close()

    def damaged(self, reason: str) -> CorruptionError:
        """The error that names this file."""
        return damaged(self._key, self.path, reason)

    def _entries(self, start: int, limit: int | None) -> list[Entry]:
        most = -1 if limit is None else min(limit, _INT64_MAX)
        if not self._linked:
            rows = self.connection.execute(
                "SELECT seqno, NULL, data FROM entries WHERE seqno >= ? ORDER BY seqno LIMIT ?", (start, most)
            )
        else:
            rows = self.connection.execute(
                "SELECT seqno, link, data FROM entries WHERE seqno >= ? ORDER BY seqno LIMIT ?", (start, most)
            )
        found: list[Entry] = []
        before = self._link_of(start - 1) if start > 0 and self._linked else None
        for seqno, linked, data in rows:
            if found and seqno != found[-1].seqno + 1:
                raise self.damaged(f"there is no entry {found[-1].seqno + 1}, and there is an entry {seqno}")
            found.append(self._entry(seqno, data, linked, before if found or seqno == start else None))
            before = self._link(seqno, linked)
        return found

    def _entry(self, seqno: int, data: object, linked: object, before: bytes | None) -> Entry:
        """An entry, if it continues the one before, whose link is `before`; None: that is not known."""
        if seqno < 0 or type(data) is not bytes:
            raise self.damaged(f"its entry {seqno} holds {type(data).__name__}, not bytes")
        here, last = self._link(seqno, linked), b"" if seqno == 0 else before
        if last is not None and self._linked and here != (link(last, seqno, data) if here or last else b""):
            raise self.damaged(f"its entry {seqno} does not continue the one before it")
        return Entry(seqno, data)

    def _link_of(self, seqno: int) -> bytes | None:
        """The link of an entry, empty if it has none; None if it is not there."""
        row = self.connection.execute("SELECT link FROM entries WHERE seqno = ?", (seqno,)).fetchone()
        return None if row is None else self._link(seqno, row[0])

    def _link(self, seqno: int, found: object) -> bytes:
        if found is None:
            return b""
        if type(found) is not bytes or len(found) != LINK_BYTES:
            raise self.damaged(f"the link of its entry {seqno} is no such thing")
        return found

    def _begin_links(self) -> None:
        """Make a database of format 1 one of this format, unless another process has done so."""
        if self._pragma("user_version") == _UNLINKED:
            self.connection.execute("ALTER TABLE entries ADD COLUMN link BLOB")
            self.connection.execute(f"PRAGMA user_version = {FORMAT}")
        self._linked = True

    def _believe(self, acknowledged: Acknowledged | None, head: int, link_there: bytes | None = None) -> None:
        reason = contradiction(acknowledged, head, link_there)
        if reason is not None:
            raise self.damaged(reason)

    def _pragma(self, name: str) -> object:
        row = self.connection.execute(f"PRAGMA {name}").fetchone()
        return None if row is None else row[0]


def read_through(path: str) -> None:
    """Read the bytes of a database and of its write-ahead log, and forget them.

    Raises:
        OSError: the disk does not give them.
    """
    for name in (path, path + "-wal"):
        with suppress(FileNotFoundError), open(name, "rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def _witness(path: str) -> Witness:
    return Witness(witness_of(path), os.path.basename(path))


def _check_files(path: str, key: str) -> bool:
    """Check that the files of a database are files; whether it has a write-ahead log.

    SUBTLE: they are not opened for that. Closing a file takes away all locks that this process has on it.

    Raises:
        CorruptionError: one of them is something else, or the database is empty. SQLite would wait for the
            other end of a pipe, write where a link leads to, and delete the write-ahead log of an empty one.
    """
    has_wal = False
    for name in (path, path + "-wal", path + "-shm"):
        try:
            found = os.lstat(name)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise damaged(key, name, "it is no file")
        if name == path and not found.st_size:
            raise damaged(key, name, "it is empty")
        has_wal = has_wal or (name.endswith("-wal") and found.st_size > 0)
    return has_wal


def _connect(path: str, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode={mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,  # the lock of the handle sees to it
    )
    # Text is damage here, and need not be decoded to see that.
    connection.text_factory = bytearray
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection
