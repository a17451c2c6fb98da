"""A version log in SQLite: one database per key.

Owns the files of a key, and the order of the steps of a write. Must not retry anything, nor know what the
entries mean.

    <root>/<key, with / written as ~>/lock          locked by the process that writes; holds its id
                                      <id>.db       the database of the entries; at most one
                                      <id>.db-wal, <id>.db-shm
                                      <id>.witness  the newest acknowledged entry (`tidelake.store.witness`)
                                      <id>.new      a database that is being created
                                      <id>.db.damaged, <id>.db-wal.damaged   kept by a repair

INVARIANT: a key exists iff its folder has a `.db` file, which holds at least one entry as soon as it is
visible. A witness exists only while its key exists: a witness without a database means that the database was
lost. Nothing is opened or removed through a symbolic link below the root, because SQLite would create its
files next to the target of the link.

SUBTLE: a new database never reuses the file name of an earlier one, hence the ids. When another process
closes its connection to a deleted database, SQLite removes the write-ahead log by name. With a reused name,
that would be the log of the new database.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from tidelake.env import Clock, IdSource, RandomIds, SystemClock
from tidelake.errors import CorruptionError, InternalError, StoreUnavailable, SymbolicLink, TidelakeError
from tidelake.model.names import is_object
from tidelake.store.disk import Folders, unavailable, unknown
from tidelake.store.files import Flush, SystemFiles, is_file_at, lock_within, refuse_links
from tidelake.store.names import (
    check_expected,
    check_limit,
    check_name,
    check_prefix,
    check_truncation,
)
from tidelake.store.protocols import Entry, Ghost, MendedLog, following
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
from tidelake.store.sqlite_pool import ConnectionPool, KeyHandle, connections_allowed
from tidelake.store.witness import LINK_BYTES, Acknowledged, link

T = TypeVar("T")

_DAMAGED = ".damaged"
_OF_PAGES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB)
# Errors that damaged files cause. The last two: when Python converts what SQLite returns, or its messages.
_RAW = (sqlite3.Error, UnicodeDecodeError, OverflowError)


class SqliteVersionLog:
    """A `VersionLog` in a directory of a local file system.

    Args:
        root: the directory; created by the first write if it is missing.
        ids: source of names for new databases.
        flush: makes a directory durable (SQLite flushes its own files).
        connections_max: most keys that are kept open; each takes four or five file descriptors. Default: by
            the limit of this process on descriptors (`connections_allowed`).
        base: no symbolic link below it is followed; default: the root.
        wait_s: how long a write waits for the lock of a key that another process or thread has.
        clock: measures that.
    """

    def __init__(
        self,
        root: str,
        ids: IdSource | None = None,
        flush: Flush = os.fsync,
        connections_max: int | None = None,
        base: str | None = None,
        *,
        wait_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self._base = self.root if base is None else os.path.abspath(base)
        self._ids = ids or RandomIds()
        self._files = SystemFiles(flush)  # SQLite cannot use simulated files
        self._folders = Folders(self.root, self._files)
        self._pool = ConnectionPool(connections_max or connections_allowed())
        self._wait_s, self._clock = wait_s, clock or SystemClock()

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        with self._reading(check_name(key)) as database:
            return None if database is None else database.head()

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        check_limit(check_name(key), limit)
        with self._reading(key) as database:
            return [] if database is None else database.entries(start, limit)

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Entries after `seqno`; see `VersionLog.newer`."""
        # From the known entry on: the newest entry is always there while the key exists.
        return following(self.scan(key, seqno), seqno, through)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`, with one flush; see `VersionLog.compare_and_set`."""
        check_expected(check_name(key), expected)
        with self._writing(key, create=expected is None) as handle:
            if handle is None:
                return False
            if self._connect(key, handle) is None:
                if expected is None:
                    self._create(key, handle, data)
                return expected is None
            return self._commit(key, handle, lambda database: database.append(expected, data))

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        check_name(key)
        with self._writing(key, create=False) as handle:
            if handle is None or self._connect(key, handle) is None:
                check_truncation(key, None, seqno)
                return 0
            removed = self._commit(key, handle, lambda database: database.truncate(seqno))
            self._empty_wal(key, handle)
            return removed

    def delete(self, key: str) -> bool:
        """Delete the key; see `VersionLog.delete`."""
        check_name(key)
        with self._writing(key, create=False) as handle:
            if handle is None:
                return False
            handle.drop()
            self._database(key, self._names(key))
            is_gone = False
            try:
                # The witness goes first, durably: a witness without a database means a lost database.
                is_there = self._unlink(key, is_witness)
                is_gone = self._unlink(key, _is_database)
                self._clean(key)
                self._remove_folder(key)
            except OSError as error:
                raise (unknown if is_gone else unavailable)("delete key", key, error) from error
            return is_there or is_gone

    def mend(self, key: str, starts: Collection[int]) -> MendedLog | None:
        """Copy the intact entries into a new database; see `VersionLog.mend`."""
        check_name(key)
        with self._writing(key, create=False) as handle:
            if handle is None:
                return None
            handle.drop()
            try:
                database = self._connect(key, handle)
                return None if database is None else self._finished(key, database, database.entries(0, None))
            except SymbolicLink:
                raise
            except CorruptionError as error:
                damage = error
            except OSError as error:
                raise unavailable("mend key", key, error) from error
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

    def ghosts(self) -> list[Ghost]:
        """None: no write lands late; see `VersionLog.ghosts`."""
        return []

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List keys in ascending order; reads the folder of each. See `VersionLog.keys`."""
        check_prefix(prefix)
        try:
            names = [folder.replace("~", "/") for folder in os.listdir(self.root)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise unavailable("list keys", prefix, error) from error
        for key in sorted(names):
            if is_object(key) and key.startswith(prefix) and self._is_there(key):
                yield key

    def close(self) -> None:
        """Close the connections, after waiting for running operations."""
        self._pool.close()

    def _folder(self, key: str) -> str:
        return os.path.join(self.root, key.replace("/", "~"))

    def _is_there(self, key: str) -> bool:
        # A symbolic link is not followed, but its key is listed, so that it is not taken for deleted.
        return self._files.islink(self._folder(key)) or any(map(_is_of_key, self._names(key)))

    def _find(self, key: str) -> str | None:
        """The path of the current database of a key; None if the key does not exist.

        Raises:
            CorruptionError: the key has a witness but no database.
        """
        names = self._names(key)
        path = self._database(key, names)
        if path is not None:
            return path
        if any(map(is_witness, names)) and any(map(is_witness, names := self._names(key))):
            # SUBTLE: listed again, since a listing is not atomic and the key may be just being created anew.
            if any(map(_is_database, names)):
                return self._find(key)
            raise damaged(key, self._folder(key), "its database is missing")
        return None

    def _database(self, key: str, names: list[str]) -> str | None:
        """The path of the database among the files of a key; refuses symbolic links."""
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
        """Remove the files whose names `which` accepts, durably; return whether there were any."""
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
        """Translate the errors of a read. They close the database, so that the next call checks it again."""
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
        """Hold the write lock of a key; yields its handle, or `None` if its folder does not exist."""
        with self._pool.writing(key, self._wait_s) as handle:
            descriptor = self._lock(key, create=create)
            if descriptor is None:
                yield None
                return
            try:
                with handle.lock:
                    yield handle
            finally:
                os.close(descriptor)

    def _lock(self, key: str, *, create: bool) -> int | None:
        """The descriptor of the locked lock file of a key; None if its folder does not exist."""
        # SUBTLE: `delete` removes the lock file too, so the file that we have locked may not be the one that
        # has this name now.
        path = os.path.join(self._folder(key), "lock")
        while True:
            self._refuse_links(path)
            try:
                if create:
                    self._folders.ensure(self._folder(key))
                descriptor = self._locked(path, key)
            except FileNotFoundError:
                if create:
                    continue  # a delete has just removed the folder
                return None
            except OSError as error:
                raise unavailable("lock key", key, error) from error
            is_there = False
            try:
                is_there = is_file_at(self._files, descriptor, path)
            finally:
                if not is_there:
                    os.close(descriptor)
            if is_there:
                return descriptor

    def _locked(self, path: str, key: str) -> int:
        """Open and lock the lock file of a key, and note this process in it. Closing it releases the lock.

        Raises:
            StoreUnavailable: another process has had it for too long, such as one that is stopped.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            if not lock_within(self._files, descriptor, self._clock, self._wait_s):
                raise StoreUnavailable(
                    f"cannot lock key {key!r}: {_holder(descriptor)} has held {path!r} for "
                    f"{self._wait_s:g} s; let it go on, or end it"
                )
            with suppress(OSError):  # such as a full disk
                os.pwrite(descriptor, b"%-20d\n" % os.getpid(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _connect(self, key: str, handle: KeyHandle) -> Database | None:
        """The current database of a key, opened in its handle; `None` if the key does not exist."""
        if handle.database is not None and os.path.exists(handle.database.path):
            return handle.database
        handle.drop()
        path = self._find(key)
        if path is None:
            return None
        try:
            return handle.connect(path, partial(open_database, key=key))
        except FileNotFoundError:  # deleted since it was listed
            return None
        except _RAW as error:
            if not os.path.exists(path):  # deleted since it was listed
                return None
            raise self._refused("open", key, error) from error
        except OSError as error:
            raise unavailable("open key", key, error) from error

    def _create(self, key: str, handle: KeyHandle, data: bytes) -> None:
        """Create the database with its first entry under a temporary name; rename it. REQUIRES: the lock."""
        path, first = os.path.join(self._folder(key), self._ids.fresh()), link(b"", 0, data)
        is_visible = False
        try:
            self._clean(key)
            try:
                make_database(path + ".new", [(0, first, data)], self._files.fsync)
            except sqlite3.Error as error:
                self._clean(key)
                raise before_commit("create", key, path, error) from error
            os.rename(path + ".new", path + ".db")
            is_visible = True
            self._folders.flush(self._folder(key))
            handle.created = path + ".db"
            note(path + ".db", Acknowledged(0, first))
        except OSError as error:
            raise (unknown if is_visible else unavailable)("create key", key, error) from error

    def _mended(self, key: str, damage: CorruptionError, starts: Collection[int]) -> MendedLog:
        """Replace a damaged database by one of the intact entries. REQUIRES: the lock.

        SUBTLE: a process that dies here leaves each file of the old database under one of two names, and the
        next repair reads it where it is. A witness exists at every step, so that a key whose database has
        just been renamed counts as damaged and not as deleted.
        """
        folder, names = self._folder(key), self._names(key)
        stem = _damaged_stem(names)
        for name in names:
            if _is_unfinished(name) or (is_witness(name) and name != stem + ".witness"):
                os.unlink(os.path.join(folder, name))
        old = os.path.join(folder, stem + ".db")
        new = os.path.join(folder, self._ids.fresh())
        acknowledged = noted(old)
        found = salvage(_kept(old), _kept(old + "-wal"), acknowledged, starts, new + ".new")
        if found is None:
            raise damage
        linked = found.links[-1]
        rows = zip(found.entries, found.links, strict=True)
        made = [(entry.seqno, link_ or None, entry.data) for entry, link_ in rows]
        make_database(new + ".new", made, self._files.fsync)
        if acknowledged is None:
            note(old, Acknowledged(found.head, linked or bytes(LINK_BYTES)))
        self._folders.flush(folder)
        for name in (old, old + "-wal"):
            with suppress(FileNotFoundError):
                os.rename(name, name + _DAMAGED)
            # A database whose write-ahead log is gone would be opened without it.
            self._folders.flush(folder)
        with suppress(FileNotFoundError):
            os.unlink(old + "-shm")
        if linked:
            note(new + ".db", Acknowledged(found.head, linked))
        os.rename(new + ".new", new + ".db")
        self._folders.flush(folder)
        self._forget_witness(old)
        known = None if acknowledged is None else acknowledged.seqno
        return MendedLog(damage.reason, found.entries[0].seqno, found.head, known, old + _DAMAGED)

    def _finished(self, key: str, database: Database, entries: Sequence[Entry]) -> MendedLog | None:
        """Finish a repair that died when the new database was in its place. REQUIRES: the lock."""
        own = os.path.basename(witness_of(database.path))
        left = next((name for name in self._names(key) if is_witness(name) and name != own), None)
        if left is None:
            return None
        old = os.path.join(self._folder(key), left.removesuffix(".witness") + ".db")
        acknowledged = noted(old)
        self._forget_witness(old)
        known = None if acknowledged is None else acknowledged.seqno
        reason = "a repair of it was interrupted before its end"
        return MendedLog(reason, entries[0].seqno, entries[-1].seqno, known, old + _DAMAGED)

    def _forget_witness(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(witness_of(path))
        self._folders.flush(os.path.dirname(path))

    def _clean(self, key: str) -> None:
        # Removes what a crash left. REQUIRES: the lock, and that the key has no database.
        for name in os.listdir(self._folder(key)):
            if name != "lock":
                os.unlink(os.path.join(self._folder(key), name))

    def _remove_folder(self, key: str) -> None:
        # REQUIRES: the lock, whose file is removed here.
        os.unlink(os.path.join(self._folder(key), "lock"))
        try:
            os.rmdir(self._folder(key))
        except OSError as error:
            # A process that waited for this lock makes a new lock file, and may already create the key again.
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise

    def _refused(self, action: str, key: str, error: Exception) -> TidelakeError:
        """The error for a read, or for a write that failed before its COMMIT; raise it `from error`.

        SUBTLE: SQLite reports a page that the disk cannot read with the same codes as a damaged page. So the
        files are read again: a disk that is briefly away must not be reported as damage, for then the user
        might restore an old backup.
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

    def _empty_wal(self, key: str, handle: KeyHandle) -> None:
        """See `Database.empty_wal`. What was committed stays so if it fails, and may be repeated."""
        if handle.database is None:
            raise InternalError(f"no database to write to for key {key!r}")
        try:
            handle.database.empty_wal()
        except sqlite3.Error as error:
            handle.drop()
            raise self._refused("write", key, error) from error

    def _flush_once(self, key: str, handle: KeyHandle, database: Database) -> None:
        # The process that created the database may have died before it flushed the folder or a last commit.
        if not handle.flushed:
            try:
                if handle.created != database.path:
                    self._folders.flush(self._folder(key))
                database.flush_recovered(self._files.fsync)
            except OSError as error:
                raise unavailable("write", key, error) from error
            handle.flushed = True


def _is_database(name: str) -> bool:
    return name.endswith(".db")


def _is_unfinished(name: str) -> bool:
    """Whether a file belongs to a database that was being made when its process died."""
    return name.endswith(".new") or ".new-" in name


def _damaged_stem(names: Collection[str]) -> str:
    """The name, without its end, of the damaged database among the files of a key."""
    current = [name.removesuffix(".db") for name in names if _is_database(name)]
    lost = [name.removesuffix(".witness") for name in names if is_witness(name)]
    renamed = [stem for stem in lost if stem + ".db" + _DAMAGED in names]
    return next(iter([*current, *renamed, *lost]), "")


def _kept(path: str) -> str:
    """Where a file of a damaged database is: under its own name, or that which a repair gave it."""
    return path if os.path.lexists(path) else path + _DAMAGED


def _is_of_key(name: str) -> bool:
    return _is_database(name) or is_witness(name)


def _holder(descriptor: int) -> str:
    """The process that has locked a lock file, as the file says."""
    noted = os.pread(descriptor, 20, 0).strip()
    return f"process {int(noted)}" if noted.isdigit() else "another process"
