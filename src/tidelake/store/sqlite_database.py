"""One SQLite database: the entries of one key.

Owns the SQL statements, the settings, the format of the file, and the checks before an entry is returned.
Must not know where the file is, what else writes to it, nor how a `sqlite3.Error` is reported to the user.

INVARIANT: the table has at least one entry, and its seqnos are contiguous. Each entry has a link: a running
hash of the log up to this entry, made from the link of the previous one. Entries of format 1 have none.
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
_BUSY_TIMEOUT_S = 10.0  # for waits that the lock file does not cover: recovery, other programs
_WITNESS = ".witness"
# The bytes of the header with the versions for writing and reading; 2 means a write-ahead log.
_VERSIONS = slice(18, 20)


def make_database(path: str, entries: Iterable[tuple[int, bytes | None, bytes]], flush: Flush) -> None:
    """Create a complete database from (seqno, link, data) rows, flush it once, and close it.

    REQUIRES: no other process knows the path. A crash may leave any bytes there; nothing reads them.
    """
    connection = _connect(path, "rwc")
    try:
        # It counts only once it has its name, so no step of its making has to survive a crash.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        # The link comes before the data: to reach a column, SQLite reads all pages of the columns before it.
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
    with open(path, "rb", buffering=0) as file:
        flush(file.fileno())


def witness_of(path: str) -> str:
    """The path of the witness of a database."""
    return path.removesuffix(".db") + _WITNESS


def is_witness(name: str) -> bool:
    """Whether a file name is that of a witness."""
    return name.endswith(_WITNESS)


def note(path: str, acknowledged: Acknowledged) -> None:
    """Write the witness of a database. REQUIRES: the database is durable, and its write lock is held."""
    with closing(_witness(path)) as witness:
        witness.write(acknowledged)


def noted(path: str) -> Acknowledged | None:
    """Read the witness of a database."""
    with closing(_witness(path)) as witness:
        return witness.read()


def open_database(path: str, key: str) -> "Database":
    """Open a database that `make_database` created, after checking that it has lost nothing.

    Raises:
        CorruptionError: Tidelake did not write it, or it has lost acknowledged entries. Nothing was changed.
        FormatTooNew: a newer Tidelake wrote it.
        sqlite3.Error: it cannot be opened. A missing file is not created.
        OSError: its files cannot be examined.
    """
    has_wal = _check_files(path, key)
    witness = _witness(path)
    try:
        if has_wal:
            lost = wal.lost(path + "-wal")
            if lost is not None:
                raise damaged(key, path, lost)
            # SUBTLE: when its last connection closes, SQLite deletes the write-ahead log, and with it what a
            # repair could recover. So the first check uses a read-only connection, which cannot delete it.
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
    """Open a database from its bytes, for reading only. Its write-ahead log is already merged into them.

    Args:
        path: path of the file that the bytes were read from.
        key: key of the entries.
        pages: the bytes of the database.
        witness: the bytes of its witness, read before those of the database.

    Raises:
        CorruptionError, FormatTooNew, sqlite3.Error: as `open_database`.
    """
    if pages[_VERSIONS] != b"\2\2":
        raise damaged(key, path, "it has no journal_mode=WAL")
    # SQLite refuses an in-memory database whose header asks for a write-ahead log, so the header is changed.
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
    """A witness whose content was read beforehand."""

    def __init__(self, acknowledged: Acknowledged | None) -> None:
        super().__init__("", "")
        self._acknowledged = acknowledged

    def read(self) -> Acknowledged | None:
        return self._acknowledged


class Database:
    """An open database. Used by one thread at a time.

    Attributes:
        path: path of its file.
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
        """Check that Tidelake wrote it and that it agrees with its witness; see `open_database`."""
        acknowledged = self._witness.read()  # read first, since others may append meanwhile
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
        """Append an entry iff the newest seqno is `expected`. REQUIRES: a write transaction."""
        if not self._linked:
            self._begin_links()
        acknowledged = self._witness.read()
        row = self.connection.execute(
            "SELECT seqno, link FROM entries ORDER BY seqno DESC LIMIT 1"
        ).fetchone()
        if row is None:
            raise self.damaged("it has no entries")
        head, before = row
        self._believe(acknowledged, head)
        if expected is None or head != expected:
            return False
        seqno, linked = head + 1, link(self._link(head, before), head + 1, data)
        self.connection.execute(
            "INSERT INTO entries (seqno, link, data) VALUES (?, ?, ?)", (seqno, linked, data)
        )
        self._appended = Acknowledged(seqno, linked)
        return True

    def acknowledge(self) -> None:
        """Write the appended entry to the witness. REQUIRES: it is durable, and the write lock is held."""
        appended, self._appended = self._appended, None
        if appended is not None:
            self._witness.write(appended)

    def truncate(self, seqno: int) -> int:
        """Remove the entries before `seqno`; return how many. REQUIRES: a write transaction."""
        check_truncation(self._key, self.head_seqno(), seqno)
        return self.connection.execute("DELETE FROM entries WHERE seqno < ?", (max(seqno, 0),)).rowcount

    def empty_wal(self) -> None:
        """Move all of the write-ahead log into the database, as far as other processes do not read it now.

        Removed entries would stay there until it is overwritten. REQUIRES: no transaction.
        """
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def flush_recovered(self, flush: Flush) -> None:
        """Flush the commits that a recovery has found in the write-ahead log. Call it before the first write.

        SUBTLE: the process that wrote these commits may have died before it flushed them. If a later commit
        were durable and these were not, `wal.lost` would report damage after a power cut.
        """
        if self._has_wal:
            with suppress(FileNotFoundError), wal.open_wal(self.path + "-wal") as file:
                flush(file)
            self._has_wal = False

    def close(self) -> None:
        """Close the database; an open transaction is rolled back."""
        self._witness.close()
        self.connection.close()

    def damaged(self, reason: str) -> CorruptionError:
        """The error that reports this file as damaged."""
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
                raise self.damaged(f"entry {found[-1].seqno + 1} is missing before entry {seqno}")
            found.append(self._entry(seqno, data, linked, before if found or seqno == start else None))
            before = self._link(seqno, linked)
        return found

    def _entry(self, seqno: int, data: object, linked: object, before: bytes | None) -> Entry:
        """Check the link of an entry; `before` is the link of the previous entry, None if unknown."""
        if seqno < 0 or type(data) is not bytes:
            raise self.damaged(f"its entry {seqno} holds {type(data).__name__}, not bytes")
        here, last = self._link(seqno, linked), b"" if seqno == 0 else before
        if last is not None and self._linked and here != (link(last, seqno, data) if here or last else b""):
            raise self.damaged(f"its entry {seqno} does not continue the one before it")
        return Entry(seqno, data)

    def _link_of(self, seqno: int) -> bytes | None:
        """The link of an entry, empty if it has none; None if there is no such entry."""
        row = self.connection.execute("SELECT link FROM entries WHERE seqno = ?", (seqno,)).fetchone()
        return None if row is None else self._link(seqno, row[0])

    def _link(self, seqno: int, found: object) -> bytes:
        if found is None:
            return b""
        if type(found) is not bytes or len(found) != LINK_BYTES:
            raise self.damaged(f"the link of its entry {seqno} is not {LINK_BYTES} bytes")
        return found

    def _begin_links(self) -> None:
        """Upgrade a database from format 1, unless another process has done so."""
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
    """Read all bytes of a database and of its write-ahead log, to find out whether the disk can read them.

    Raises:
        OSError: it cannot.
    """
    for name in (path, path + "-wal"):
        with suppress(FileNotFoundError), open(name, "rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def _witness(path: str) -> Witness:
    return Witness(witness_of(path), os.path.basename(path))


def _check_files(path: str, key: str) -> bool:
    """Check that the files of a database are regular files; return whether it has a write-ahead log.

    SUBTLE: the files are not opened, because closing a file releases all locks that this process has on it.

    Raises:
        CorruptionError: one of them is not a regular file, or the database is empty. SQLite would block on a
            pipe, follow a symbolic link, and delete the write-ahead log of an empty database.
    """
    has_wal = False
    for name in (path, path + "-wal", path + "-shm"):
        try:
            found = os.lstat(name)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise damaged(key, name, "it is not a regular file")
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
        check_same_thread=False,  # the lock of the handle makes it one thread at a time
    )
    # The table has no text, so text is damage: it is not decoded.
    connection.text_factory = bytearray
    try:
        connection.execute("PRAGMA synchronous = FULL")
        # Pages of removed entries are filled with zeros: what was erased must not stay in free pages. An
        # entry takes as many bytes as without it, and 35 µs of processor time instead of 34.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection
