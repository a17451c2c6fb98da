"""A version log in SQLite: one database per key.

Owns the files of a key, the one table, and the order of the steps of a write. Must not try anything
again, nor know what the entries mean.

    <root>/<key, its / written as ~>/lock          held by whoever writes
                                     <id>.db       the entries; at most one
                                     <id>.db-wal, <id>.db-shm
                                     <id>.witness  what is known to be in it
                                     <id>.new      a database that is being made
                                     <id>.db.damaged, <id>.db-wal.damaged   what was mended

INVARIANT: a key exists iff its folder has a `.db`, which has at least one entry from the moment it is there.
It has a witness only while it exists: where there is a witness alone, the database was lost.
Nothing is opened or removed by way of a symbolic link below the root: SQLite would write beside what that
leads to.

SUBTLE: a database never takes the file name of an earlier one (hence the ids). A connection that another
process still has to a deleted database removes the write-ahead log by its name when it closes, and would
remove the log of the successor.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from tidelake.env import IdSource, RandomIds
from tidelake.errors import CorruptionError, InternalError, SymbolicLink, TidelakeError
from tidelake.store.disk import Folders, unavailable, unknown
from tidelake.store.files import Flush, SystemFiles, is_file_at, refuse_links
from tidelake.store.names import (
    check_expected,
    check_limit,
    check_name,
    check_prefix,
    check_truncation,
    is_name,
)
from tidelake.store.protocols import Entry, Mended
from tidelake.store.salvage import salvage
from tidelake.store.sqlite_database import (
    Database,
    is_witness,
    make_database,
    note,
    noted,
    open_database,
    read_through,
    witness_of,
)
from tidelake.store.sqlite_errors import at_commit, before_commit, damaged, primary_code
from tidelake.store.sqlite_pool import ConnectionPool, KeyHandle
from tidelake.store.witness import LINK_BYTES, Acknowledged, link

T = TypeVar("T")

_DAMAGED = ".damaged"
_OF_PAGES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB)
# What comes of damaged files: the last two from what SQLite gives, and from the text of its own errors.
_RAW = (sqlite3.Error, UnicodeDecodeError, OverflowError)


class SqliteVersionLog:
    """A `VersionLog` in a directory of a local file system.

    Args:
        root: the directory; made by the first write if it is missing.
        ids: where the names of new databases come from.
        flush: what makes a directory durable (SQLite flushes its files itself).
        connections_max: keys that are kept open; each takes four or five file descriptors.
        base: no symbolic link below it is followed; default: the root.
        locks: whether SQLite opens files, and locks them.
    """

    def __init__(
        self,
        root: str,
        ids: IdSource | None = None,
        flush: Flush = os.fsync,
        connections_max: int = 64,
        base: str | None = None,
        *,
        locks: bool = True,
    ) -> None:
        self.root = os.path.abspath(root)
        self._base = self.root if base is None else os.path.abspath(base)
        self._ids = ids or RandomIds()
        self._files = SystemFiles(flush)  # SQLite itself knows no others
        self._folders = Folders(self.root, self._files)
        self._pool = ConnectionPool(connections_max, locks=locks)

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        with self._reading(check_name(key)) as database:
            return None if database is None else database.head()

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        check_limit(check_name(key), limit)
        with self._reading(key) as database:
            return [] if database is None else database.entries(start, limit)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`, with one flush; see `VersionLog.compare_and_set`."""
        check_expected(check_name(key), expected)
        with self._reading(key) as database:  # a stale caller is told so without waiting for its turn
            if (None if database is None else database.head_seqno()) != expected:
                return False
        with self._writing(key, create=expected is None) as handle:
            if handle is None:
                return False
            if self._connect(key, handle) is None:
                if expected is None:
                    self._create(key, data)
                return expected is None
            return self._commit(key, handle, lambda database: database.append(expected, data))

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        check_name(key)
        with self._writing(key, create=False) as handle:
            if handle is None or self._connect(key, handle) is None:
                check_truncation(key, None, seqno)
                return 0
            return self._commit(key, handle, lambda database: database.truncate(seqno))

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        check_name(key)
        with self._writing(key, create=False) as handle:
            if handle is None:
                return False
            handle.drop()
            self._database(key, self._names(key))
            is_gone = False
            try:
                # The witness first, and for good: where it is alone, the database was lost.
                is_there = self._unlink(key, is_witness)
                is_gone = self._unlink(key, _is_database)
                self._clean(key)
                self._remove_folder(key)
            except OSError as error:
                raise (unknown if is_gone else unavailable)("delete key", key, error) from error
            return is_there or is_gone

    def mend(self, key: str, starts: Collection[int]) -> Mended | None:
        """Take back what is sound, into a database of its own; see `VersionLog.mend`."""
        check_name(key)
        with self._writing(key, create=False) as handle:
            if handle is None:
                return None
            handle.drop()
            try:
                database = self._connect(key, handle)
                if database is not None:
                    database.entries(0, None)
                return None
            except SymbolicLink:
                raise
            except CorruptionError as error:
                damage = error
            except _RAW as error:
                refused = self._refused("read", key, error)
                if not isinstance(refused, CorruptionError):
                    raise refused from error
                damage = refused
            handle.drop()
            try:
                return self._mended(key, damage, starts)
            except OSError as error:
                raise unavailable("mend key", key, error) from error

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Ascending keys, by reading each folder; see `VersionLog.keys`."""
        check_prefix(prefix)
        try:
            names = [folder.replace("~", "/") for folder in os.listdir(self.root)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise unavailable("list keys", prefix, error) from error
        for key in sorted(names):
            if is_name(key) and key.startswith(prefix) and self._is_there(key):
                yield key

    def close(self) -> None:
        """Close the connections, after the operations that run."""
        self._pool.close()

    def _folder(self, key: str) -> str:
        return os.path.join(self.root, key.replace("/", "~"))

    def _is_there(self, key: str) -> bool:
        # What stands behind a link is not looked at; but nobody may think that the key is gone.
        return self._files.islink(self._folder(key)) or any(map(_is_of_key, self._names(key)))

    def _find(self, key: str) -> str | None:
        """The path of the database that the key has now; None without the key.

        Raises:
            CorruptionError: it has a witness, and no database.
        """
        names = self._names(key)
        path = self._database(key, names)
        if path is not None:
            return path
        if any(map(is_witness, names)) and any(map(is_witness, names := self._names(key))):
            # SUBTLE: looked at again, for a listing is no snapshot, and the key may just be made anew.
            if any(map(_is_database, names)):
                return self._find(key)
            raise damaged(key, self._folder(key), "its database is missing")
        return None

    def _database(self, key: str, names: list[str]) -> str | None:
        """The path of the database among the files of a key, none of which may be a link."""
        self._refuse_links(self._folder(key))
        found = next(filter(_is_database, names), None)
        if found is None:
            return None
        path = os.path.join(self._folder(key), found)
        for file in (path, path + "-wal", path + "-shm", path + "-journal", witness_of(path)):
            self._refuse_links(file)
        return path

    def _names(self, key: str) -> list[str]:
        try:
            return os.listdir(self._folder(key))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unavailable("read key", key, error) from error

    def _unlink(self, key: str, which: Callable[[str], bool]) -> bool:
        """Remove the files of a kind, durably; whether there were any."""
        names = list(filter(which, self._names(key)))
        for name in names:
            os.unlink(os.path.join(self._folder(key), name))
        if names:
            self._folders.flush(self._folder(key))
        return bool(names)

    def _refuse_links(self, path: str) -> None:
        refuse_links(self._files, self._base, path)

    @contextmanager
    def _reading(self, key: str) -> Iterator[Database | None]:
        with self._pool.reading(key) as handle, self._checked(key, handle):
            yield self._connect(key, handle)

    @contextmanager
    def _checked(self, key: str, handle: KeyHandle) -> Iterator[None]:
        """A block that reads; after an error whoever comes next looks at all of it again."""
        try:
            yield
        except _RAW as error:
            handle.drop()
            raise self._refused("read", key, error) from error
        except CorruptionError:
            handle.drop()
            raise

    @contextmanager
    def _writing(self, key: str, *, create: bool) -> Iterator[KeyHandle | None]:
        """The handle of a key while no other thread or process writes to it; `None` without its folder."""
        with self._pool.writing(key) as handle, self._locked(key, create=create) as is_locked:
            if not is_locked:
                yield None
                return
            with handle.lock:
                yield handle

    @contextmanager
    def _locked(self, key: str, *, create: bool) -> Iterator[bool]:
        # SUBTLE: `delete` removes the lock file as well, so the file that we waited for may be another one
        # than the file of that name now.
        path = os.path.join(self._folder(key), "lock")
        while True:
            self._refuse_links(path)
            try:
                if create:
                    self._folders.ensure(self._folder(key))
                descriptor = _lock(path)
            except FileNotFoundError:
                if create:
                    continue  # a delete took the folder away again
                descriptor = None
            except OSError as error:
                raise unavailable("lock key", key, error) from error
            if descriptor is None:
                yield False
                return
            try:
                if is_file_at(self._files, descriptor, path):
                    yield True
                    return
            finally:
                os.close(descriptor)

    def _connect(self, key: str, handle: KeyHandle) -> Database | None:
        """The database that the key has now, opened by a handle; `None` without the key."""
        if handle.database is not None and os.path.exists(handle.database.path):
            return handle.database
        handle.drop()
        path = self._find(key)
        if path is None:
            return None
        try:
            handle.database = open_database(path, key)
        except _RAW as error:
            if not os.path.exists(path):  # deleted meanwhile
                return None
            raise self._refused("open", key, error) from error
        except OSError as error:
            raise unavailable("open key", key, error) from error
        return handle.database

    def _create(self, key: str, data: bytes) -> None:
        """Make the database aside with its first entry, then give it its name. REQUIRES: the lock file."""
        path, first = os.path.join(self._folder(key), self._ids.fresh()), link(b"", 0, data)
        is_visible = False
        try:
            self._clean(key)
            try:
                make_database(path + ".new", [(0, first, data)])
            except sqlite3.Error as error:
                self._clean(key)
                raise before_commit("create", key, path, error) from error
            os.rename(path + ".new", path + ".db")
            is_visible = True
            self._folders.flush(self._folder(key))
            note(path + ".db", Acknowledged(0, first))
        except OSError as error:
            raise (unknown if is_visible else unavailable)("create key", key, error) from error

    def _mended(self, key: str, damage: CorruptionError, starts: Collection[int]) -> Mended:
        """Put a database of what is sound in the place of a damaged one. REQUIRES: the lock file.

        SUBTLE: there is a witness all the time, so that a key whose database has just been set aside is
        damaged, and not gone. Whoever comes next goes on from what was set aside.
        """
        folder, names = self._folder(key), self._names(key)
        stem = next((name.removesuffix(".db") for name in names if _is_database(name)), None)
        suffix = ""
        if stem is None:
            stem = next((name.removesuffix(".witness") for name in names if is_witness(name)), "")
            suffix = _DAMAGED
        old = os.path.join(folder, stem + ".db")
        new = os.path.join(folder, self._ids.fresh())
        acknowledged = noted(old)
        found = salvage(old + suffix, old + "-wal" + suffix, acknowledged, starts, new + ".new")
        if found is None:
            raise damage
        linked = found.links[-1]
        rows = zip(found.entries, found.links, strict=True)
        make_database(new + ".new", [(entry.seqno, link_ or None, entry.data) for entry, link_ in rows])
        if acknowledged is None:
            note(old, Acknowledged(found.head, linked or bytes(LINK_BYTES)))
        self._folders.flush(folder)
        for name in (old, old + "-wal"):
            with suppress(FileNotFoundError):
                os.rename(name, name + _DAMAGED)
        with suppress(FileNotFoundError):
            os.unlink(old + "-shm")
        os.rename(new + ".new", new + ".db")
        self._folders.flush(folder)
        if linked:
            note(new + ".db", Acknowledged(found.head, linked))
        with suppress(FileNotFoundError):
            os.unlink(witness_of(old))
        self._folders.flush(folder)
        known = None if acknowledged is None else acknowledged.seqno
        return Mended(damage.reason, found.entries[0].seqno, found.head, known, old + _DAMAGED)

    def _clean(self, key: str) -> None:
        # What a crash left over. REQUIRES: the lock file, and that the key has no database.
        for name in os.listdir(self._folder(key)):
            if name != "lock":
                os.unlink(os.path.join(self._folder(key), name))

    def _remove_folder(self, key: str) -> None:
        # REQUIRES: the lock file, which ends with this.
        os.unlink(os.path.join(self._folder(key), "lock"))
        try:
            os.rmdir(self._folder(key))
        except OSError as error:
            # Whoever waited for the lock goes on with a new one, and may already make the key again.
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise

    def _refused(self, action: str, key: str, error: Exception) -> TidelakeError:
        """The error for a read, or for a write that failed before its COMMIT; raise it `from error`.

        SUBTLE: where the disk does not give a page, SQLite says what it says of a damaged one. So the files
        are read once more: a disk that is away for a moment must not make anybody restore a copy.
        """
        path = self._find(key) or self._folder(key)
        if isinstance(error, sqlite3.Error) and primary_code(error) in _OF_PAGES:
            try:
                read_through(path)
            except OSError as unreadable:
                return unavailable(f"{action} key", key, unreadable)
        return before_commit(action, key, path, error)

    def _commit(self, key: str, handle: KeyHandle, work: Callable[[Database], T]) -> T:
        database = handle.database
        if database is None:
            raise InternalError(f"no database to write to for key {key!r}")
        try:
            self._flush_once(key, handle, database)
            database.connection.execute("BEGIN IMMEDIATE")
            result = work(database)
        except _RAW as error:
            handle.drop()
            raise self._refused("write", key, error) from error
        except BaseException:
            handle.drop()
            raise
        try:
            database.connection.execute("COMMIT")
        except sqlite3.Error as error:
            handle.drop()
            raise at_commit("write", key, database.path, error) from error
        except BaseException:
            handle.drop()
            raise
        database.acknowledge()
        return result

    def _flush_once(self, key: str, handle: KeyHandle, database: Database) -> None:
        # Whoever made the database may have died before it flushed the folder, or after its last commit.
        if not handle.flushed:
            try:
                self._folders.flush(self._folder(key))
                database.settle(self._files.fsync)
            except OSError as error:
                raise unavailable("write", key, error) from error
            handle.flushed = True


def _is_database(name: str) -> bool:
    return name.endswith(".db")


def _is_of_key(name: str) -> bool:
    return _is_database(name) or is_witness(name)


def _lock(path: str) -> int:
    """A descriptor of the lock file, locked; waits in line. Closing it releases the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
