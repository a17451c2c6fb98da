"""The open SQLite connections of this process: a bounded number, and none across a fork.

Owns which keys have a connection, and its locks. Must not know SQL statements or file layouts.

INVARIANT: no connection is open at the moment of a fork.

SUBTLE: connections must be closed before the fork. It is not enough that a child opens connections of its
own. SQLite keeps a table, per process, of open files and of the locks that it holds on them. The child
inherits this table but not the locks, so its new connections rely on locks that are not held, and the parent
deletes the write-ahead log while the child uses it. A trial with SQLite 3.40 lost 49 of 50 acknowledged
entries. Hence the fork hooks below, which the first log of a process installs.
"""

import os
import resource
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from tidelake.errors import Closed, StoreUnavailable
from tidelake.process import ProcessOrigin
from tidelake.store.sqlite_database import Database

_guard = threading.Lock()  # guards the handles of all pools; held across a fork
_pools: "WeakSet[ConnectionPool]" = WeakSet()
_hooked = False


_files = threading.Lock()  # guards the two tables below; nothing else is locked while it is held
# By device and inode: how many connections this process has to a database, and the descriptors of it that
# must stay open as long as there are any.
_connected: Counter[tuple[int, int]] = Counter()
_kept: dict[tuple[int, int], list[int]] = {}


# At least so many connections, and at most; in between, one for each so many descriptors of this process.
# SQLite takes 160 KiB for each.
_CONNECTIONS_MIN, _CONNECTIONS_MAX, _DESCRIPTORS_EACH = 64, 1024, 16


def connections_allowed() -> int:
    """How many connections a pool keeps open: their descriptors are a third of what is allowed."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _CONNECTIONS_MAX
    return min(max(allowed // _DESCRIPTORS_EACH, _CONNECTIONS_MIN), _CONNECTIONS_MAX)


def open_descriptor(path: str, flags: int) -> int:
    """Open a database file for reading, without SQLite. Close it by `close_descriptor`."""
    with _files:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            found = None
        kept = [] if found is None else _kept.get((found.st_dev, found.st_ino), [])
        return kept.pop() if kept else os.open(path, flags)


def close_descriptor(descriptor: int) -> None:
    """Close a descriptor from `open_descriptor`, or keep it as long as SQLite has the file open here.

    SUBTLE: closing a file releases all locks that this process has on it, also those of SQLite.
    """
    with _files:
        found = os.fstat(descriptor)
        file = (found.st_dev, found.st_ino)
        if _connected[file]:
            _kept.setdefault(file, []).append(descriptor)
        else:
            del _connected[file]
            os.close(descriptor)


class KeyHandle:
    """The open connection of this process for one key, and its locks.

    `writer` is held for a whole write, also while it waits for other processes; `lock` is held while the
    connection is used. A thread that needs both takes `writer` first. A handle is not retired while either
    is held.

    Attributes:
        database: the open database, if any.
        created: path of the database that was created through this handle, in a folder that was flushed then.
        flushed: whether what other processes may have left unflushed was flushed since the database is open.
        retired: the handle is no longer used; take another one.
    """

    _file: tuple[int, int] | None = None

    def __init__(self) -> None:
        self.writer = threading.Lock()
        self.lock = threading.Lock()
        self.database: Database | None = None
        self.created: str | None = None
        self.flushed = False
        self.retired = False

    def connect(self, path: str, opened: Callable[[str], Database]) -> Database:
        """Open the database at a path. Its other descriptors in this process stay open from now on.

        Raises:
            FileNotFoundError: there is none.
        """
        self.drop()
        found = os.stat(path)
        self._file = (found.st_dev, found.st_ino)
        with _files:
            _connected[self._file] += 1
        try:
            self.database = opened(path)
        except BaseException:
            self.drop()
            raise
        return self.database

    def drop(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        database, self.database = self.database, None
        self.flushed = False
        if database is not None:
            database.close()
        file, self._file = self._file, None
        if file is not None:
            _disconnect(file)


def _disconnect(file: tuple[int, int]) -> None:
    with _files:
        _connected[file] -= 1
        if not _connected[file]:
            del _connected[file]
            for descriptor in _kept.pop(file, ()):
                os.close(descriptor)


class ConnectionPool:
    """Handles by key. Above `limit`, the least recently used ones are closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._handles: OrderedDict[str, KeyHandle] = OrderedDict()
        self._closed = False
        self._origin = ProcessOrigin()
        _register(self)

    @contextmanager
    def reading(self, key: str) -> Iterator[KeyHandle]:
        """The handle of `key` with its `lock` held."""
        while True:
            handle = self._take(key)
            with handle.lock:
                if not handle.retired:
                    yield handle
                    return

    @contextmanager
    def writing(self, key: str, wait_s: float) -> Iterator[KeyHandle]:
        """The handle of `key` with its `writer` held; take its `lock` before using the connection.

        Raises:
            StoreUnavailable: another thread had it for so many seconds.
        """
        while True:
            handle = self._take(key)
            if not handle.writer.acquire(timeout=wait_s):
                raise StoreUnavailable(
                    f"cannot lock key {key!r}: another thread of this process has been writing to it for "
                    f"{wait_s:g} s"
                )
            try:
                if not handle.retired:
                    yield handle
                    return
            finally:
                handle.writer.release()

    def close(self) -> None:
        """Close all connections, after waiting for running operations."""
        with _guard:
            self._closed = True
            self.retire_all()

    def retire_all(self) -> None:
        """Close all connections, after waiting for running operations. REQUIRES: `_guard` is held."""
        while self._handles:
            _, handle = self._handles.popitem()
            with handle.writer, handle.lock:
                handle.retired = True
                handle.drop()

    def _take(self, key: str) -> KeyHandle:
        if not self._origin.is_here:
            self._adopt()
        with _guard:
            if self._closed:
                raise Closed(f"cannot use key {key!r}: the version log was closed; open it again")
            handle = self._handles.get(key)
            if handle is None:
                handle = self._handles[key] = KeyHandle()
            self._handles.move_to_end(key)
            if len(self._handles) > self._limit:
                self._retire_idle(key)
            return handle

    def _adopt(self) -> None:
        if self._handles:
            raise StoreUnavailable(
                "the process was forked with connections open, and not by Python: open the lake "
                "in the child only, or fork by os.fork or multiprocessing",
                False,
            )
        self._origin = ProcessOrigin()

    def _retire_idle(self, wanted: str) -> None:
        for key, handle in list(self._handles.items()):
            if len(self._handles) <= self._limit:
                return
            if key != wanted and handle.writer.acquire(blocking=False):
                try:
                    if handle.lock.acquire(blocking=False):
                        try:
                            handle.retired = True
                            handle.drop()
                            del self._handles[key]
                        finally:
                            handle.lock.release()
                finally:
                    handle.writer.release()


def _register(pool: ConnectionPool) -> None:
    global _hooked  # noqa: PLW0603 - set once per process, by its first log
    with _guard:
        _pools.add(pool)
        if not _hooked:
            os.register_at_fork(
                before=_before_fork, after_in_parent=_guard.release, after_in_child=_guard.release
            )
            _hooked = True


def _before_fork() -> None:
    _guard.acquire()
    for pool in list(_pools):
        pool.retire_all()
