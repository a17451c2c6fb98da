"""A version log in SQLite: one database per key.

Owns the files of a key, the one table, and the order of the steps of a write. Must not try anything
again, nor know what the entries mean.

    <root>/<key, its / written as ~>/lock          held by whoever writes
                                     <id>.db       the entries; at most one
                                     <id>.db-wal, <id>.db-shm
                                     <id>.new      a database that is being made

INVARIANT: a key exists iff its folder has a `.db`, which has at least one entry from the moment it is there.

SUBTLE: a database never takes the file name of an earlier one (hence the ids). A connection that another
process still has to a deleted database removes the write-ahead log by its name when it closes, and would
remove the log of the successor.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tidelake.env import IdSource, RandomIds
from tidelake.errors import InternalError, TidelakeError
from tidelake.store.disk import Folders, unavailable, unknown
from tidelake.store.files import Flush, SystemFiles, is_file_at
from tidelake.store.names import (
    check_expected,
    check_limit,
    check_name,
    check_prefix,
    check_truncation,
    is_name,
)
from tidelake.store.protocols import Entry
from tidelake.store.sqlite_database import (
    append,
    make_database,
    open_database,
    read_entries,
    read_head,
    read_head_seqno,
    read_through,
    truncate,
)
from tidelake.store.sqlite_errors import at_commit, before_commit, primary_code
from tidelake.store.sqlite_pool import ConnectionPool, KeyHandle

T = TypeVar("T")


class SqliteVersionLog:
    """A `VersionLog` in a directory of a local file system.

    Args:
        root: the directory; made by the first write if it is missing.
        ids: where the names of new databases come from.
        flush: what makes a directory durable (SQLite flushes its files itself).
        connections_max: keys that are kept open; each takes three or four file descriptors.
    """

    def __init__(
        self,
        root: str,
        ids: IdSource | None = None,
        flush: Flush = os.fsync,
        connections_max: int = 64,
    ) -> None:
        self.root = os.path.abspath(root)
        self._ids = ids or RandomIds()
        self._files = SystemFiles(flush)  # SQLite itself knows no others
        self._folders = Folders(self.root, self._files)
        self._pool = ConnectionPool(connections_max)

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        with self._reading(check_name(key)) as connection:
            return None if connection is None else read_head(connection, key)

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        check_limit(check_name(key), limit)
        with self._reading(key) as connection:
            return [] if connection is None else read_entries(connection, start, limit)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`, with one flush; see `VersionLog.compare_and_set`."""
        check_expected(check_name(key), expected)
        with self._reading(key) as connection:  # a stale caller is told so without waiting for its turn
            if (None if connection is None else read_head_seqno(connection, key)) != expected:
                return False
        with self._writing(key, create=expected is None) as handle:
            if handle is None:
                return False
            if self._connect(key, handle) is None:
                if expected is None:
                    self._create(key, data)
                return expected is None
            return self._commit(key, handle, lambda connection: append(connection, key, expected, data))

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        check_name(key)
        with self._writing(key, create=False) as handle:
            if handle is None or self._connect(key, handle) is None:
                check_truncation(key, None, seqno)
                return 0
            return self._commit(key, handle, lambda connection: truncate(connection, key, seqno))

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        check_name(key)
        with self._writing(key, create=False) as handle:
            if handle is None:
                return False
            handle.drop()
            path = self._find(key)
            is_gone = False
            try:
                if path is not None:
                    os.unlink(path)
                    is_gone = True
                    self._folders.flush(self._folder(key))
                self._clean(key)
                self._remove_folder(key)
            except OSError as error:
                raise (unknown if is_gone else unavailable)("delete key", key, error) from error
            return path is not None

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
            if is_name(key) and key.startswith(prefix) and self._find(key) is not None:
                yield key

    def close(self) -> None:
        """Close the connections, after the operations that run."""
        self._pool.close()

    def _folder(self, key: str) -> str:
        return os.path.join(self.root, key.replace("/", "~"))

    def _find(self, key: str) -> str | None:
        folder = self._folder(key)
        try:
            for name in os.listdir(folder):
                if name.endswith(".db"):
                    return os.path.join(folder, name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable("read key", key, error) from error
        return None

    @contextmanager
    def _reading(self, key: str) -> Iterator[sqlite3.Connection | None]:
        with self._pool.reading(key) as handle:
            try:
                yield self._connect(key, handle)
            except sqlite3.Error as error:
                handle.drop()
                raise self._refused("read", key, error) from error

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

    def _connect(self, key: str, handle: KeyHandle) -> sqlite3.Connection | None:
        """The connection of a handle to the database that the key has now; `None` without the key."""
        if handle.connection is not None and handle.path is not None and os.path.exists(handle.path):
            return handle.connection
        handle.drop()
        path = self._find(key)
        if path is None:
            return None
        try:
            handle.connection, handle.path = open_database(path, key), path
        except sqlite3.Error as error:
            if not os.path.exists(path):  # deleted meanwhile
                return None
            raise self._refused("open", key, error) from error
        return handle.connection

    def _create(self, key: str, data: bytes) -> None:
        """Make the database aside with its first entry, then give it its name. REQUIRES: the lock file."""
        path = os.path.join(self._folder(key), self._ids.fresh())
        is_visible = False
        try:
            self._clean(key)
            try:
                make_database(path + ".new", data)
            except sqlite3.Error as error:
                self._clean(key)
                raise before_commit("create", key, error) from error
            os.rename(path + ".new", path + ".db")
            is_visible = True
            self._folders.flush(self._folder(key))
        except OSError as error:
            raise (unknown if is_visible else unavailable)("create key", key, error) from error

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

    def _refused(self, action: str, key: str, error: sqlite3.Error) -> TidelakeError:
        """The error for a read, or for a write that failed before its COMMIT; raise it `from error`.

        SUBTLE: where the disk does not give a page, SQLite says what it says of a damaged one. So the files
        are read once more: a disk that is away for a moment must not make anybody restore a copy.
        """
        if primary_code(error) == sqlite3.SQLITE_CORRUPT:
            path = self._find(key)
            try:
                if path is not None:
                    read_through(path)
            except OSError as unreadable:
                return unavailable(f"{action} key", key, unreadable)
        return before_commit(action, key, error)

    def _commit(self, key: str, handle: KeyHandle, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = handle.connection
        if connection is None:
            raise InternalError(f"no connection to write to key {key!r}")
        try:
            self._flush_once(key, handle)
            connection.execute("BEGIN IMMEDIATE")
            result = work(connection)
        except sqlite3.Error as error:
            handle.drop()
            raise self._refused("write", key, error) from error
        except BaseException:
            handle.drop()
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            handle.drop()
            raise at_commit("write", key, error) from error
        except BaseException:
            handle.drop()
            raise
        return result

    def _flush_once(self, key: str, handle: KeyHandle) -> None:
        # Whoever made the database may have died before it flushed the folder.
        if not handle.flushed:
            try:
                self._folders.flush(self._folder(key))
            except OSError as error:
                raise unavailable("write", key, error) from error
            handle.flushed = True


def _lock(path: str) -> int:
    """A descriptor of the lock file, locked; waits in line. Closing it releases the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
