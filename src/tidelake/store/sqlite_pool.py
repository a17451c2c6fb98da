"""The open SQLite connections of this process: few, and none across a fork.

Owns which keys have a connection and who may use it. Must not know a statement or a file layout.

INVARIANT: no connection is open at the moment of a fork.

SUBTLE: closing before the fork is the only safe order. That a child does not touch what it inherited
and opens its own is not enough: SQLite keeps a table of open files and of the locks it holds on them per
process, the child inherits the table without the locks, and so its own connections believe in locks that
nobody holds; the parent then deletes the write-ahead log under them. Tried with SQLite 3.40: of 50
acknowledged entries 49 were gone. Hence the fork hooks below; the first log that is made sets them.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from tidelake.errors import Closed, StoreUnavailable
from tidelake.store.sqlite_database import Database

_guard = threading.Lock()  # of the books of all pools, and held across a fork
_pools: "WeakSet[ConnectionPool]" = WeakSet()
_hooked = False


# Descriptors of databases that could not be closed, by device and inode; see `close_descriptor`.
_kept: dict[tuple[int, int], list[int]] = {}


def close_descriptor(descriptor: int) -> None:
    """Close a descriptor of a database that was opened beside SQLite.

    SUBTLE: closing a file takes away all locks that this process has on it, those of SQLite included. So
    where this process has logs open for writing, one descriptor of each such file stays open.
    """
    with _guard:
        if not any(pool.locks for pool in _pools):
            os.close(descriptor)
            return
        found = os.fstat(descriptor)
        _kept.setdefault((found.st_dev, found.st_ino), []).append(descriptor)


def open_descriptor(path: str, flags: int) -> int:
    """A descriptor of a database for reading, to be given back to `close_descriptor`."""
    with _guard:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            found = None
        kept = [] if found is None else _kept.get((found.st_dev, found.st_ino), [])
        return kept.pop() if kept else os.open(path, flags)


class KeyHandle:
    """What this process holds open for one key.

    `writer` is held for a whole write, also while it waits for other processes; `lock` while the connection
    is used. Whoever needs both takes `writer` first. Holding either keeps the handle from being retired.
    """

    def __init__(self) -> None:
        self.writer = threading.Lock()
        self.lock = threading.Lock()
        self.database: Database | None = None
        self.flushed = False
        self.retired = False

    def drop(self) -> None:
        """Close the database; an open transaction is rolled back."""
        database, self.database = self.database, None
        self.flushed = False
        if database is not None:
            database.close()


class ConnectionPool:
    """Handles by key; those that were used longest ago are closed when there are more than `limit`."""

    def __init__(self, limit: int, *, locks: bool = True) -> None:
        # Whether SQLite has locks on files for its connections.
        self.locks = locks
        self._limit = limit
        self._handles: OrderedDict[str, KeyHandle] = OrderedDict()
        self._closed = False
        self._pid = os.getpid()
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
    def writing(self, key: str) -> Iterator[KeyHandle]:
        """The handle of `key` with its `writer` held; take its `lock` before using the connection."""
        while True:
            handle = self._take(key)
            with handle.writer:
                if not handle.retired:
                    yield handle
                    return

    def close(self) -> None:
        """Close all connections, after the operations that run."""
        with _guard:
            self._closed = True
            self.retire_all()

    def retire_all(self) -> None:
        """Close all connections, after the operations that run. REQUIRES: `_guard` is held."""
        while self._handles:
            _, handle = self._handles.popitem()
            with handle.writer, handle.lock:
                handle.retired = True
                handle.drop()

    def _take(self, key: str) -> KeyHandle:
        if self._pid != os.getpid():
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
                "the process was forked behind Python's back with connections open: open the lake "
                "in the child only, or fork by os.fork or multiprocessing",
                False,
            )
        self._pid = os.getpid()

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
    global _hooked  # noqa: PLW0603 - once per process, and only when the first log is made
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
