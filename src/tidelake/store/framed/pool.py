"""The open files of this process: a bounded number of keys.

Owns which keys are open, and what a fork does with them. Must not know what the files hold.

A forked child opens its own files: those that it inherits are closed there, without an unlock.
"""

import os
import resource
import threading
from collections import OrderedDict
from weakref import WeakSet

from tidelake.errors import Closed, StoreUnavailable
from tidelake.process import ProcessOrigin
from tidelake.store.files import OpenFile
from tidelake.store.framed.keyfile import KeyFile

# At least so many keys, and at most; in between, one for each so many descriptors of this process.
_KEYS_MIN, _KEYS_MAX, _DESCRIPTORS_EACH = 48, 1024, 12


def files_allowed() -> int:
    """How many keys a pool keeps open: their descriptors are a quarter of what is allowed."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _KEYS_MAX
    return min(max(allowed // _DESCRIPTORS_EACH, _KEYS_MIN), _KEYS_MAX)


class FilePool:
    """Open files by key, each with an open lock file. Above `limit`, the least recently used are closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begin()
        _register(self)

    def _begin(self, *, is_closed: bool = False) -> None:
        self._origin = ProcessOrigin()
        self._lock = threading.Lock()
        self._unused = threading.Condition(self._lock)
        self._held: OrderedDict[str, KeyFile] = OrderedDict()
        self._using: dict[KeyFile, int] = {}
        self._locked: set[OpenFile] = set()
        # Taken by `dict.pop`: two threads never have the same one.
        self._unlocked: dict[str, OpenFile] = {}
        self._is_closed = is_closed

    def take(self, key: str) -> KeyFile | None:
        """The open file of a key, to be used until it is released; None if it is not open."""
        self._check_origin()
        with self._lock:
            if self._is_closed:
                raise Closed(f"cannot use key {key!r}: the version log was closed; open it again")
            file = self._held.get(key)
            if file is not None:
                self._held.move_to_end(key)
                self._using[file] = self._using.get(file, 0) + 1
            return file

    def add(self, key: str, file: KeyFile) -> None:
        """Keep a file that was opened, and take it."""
        with self._lock:
            self._using[file] = 1
            if self._is_closed:
                return
            self._retire(key)  # another thread may have opened it as well
            self._held[key] = file
            while len(self._held) > self._limit:
                self._retire(next(iter(self._held)))

    def release(self, key: str, file: KeyFile) -> None:
        """Note the end of a use."""
        with self._lock:
            users = self._using.pop(file, 1) - 1
            if users:
                self._using[file] = users
                return
            if self._held.get(key) is not file:
                file.close()
            if self._is_closed:
                self._unused.notify_all()

    def forget(self, key: str, file: KeyFile) -> None:
        """Use a file no more, once running calls have ended."""
        with self._lock:
            if self._held.get(key) is file:
                self._retire(key)

    def lock_of(self, key: str) -> OpenFile | None:
        """The open lock file of a key, for one caller; None if there is none."""
        self._check_origin()
        return self._unlocked.pop(key, None)

    def locked(self, lock: OpenFile) -> None:
        """Note a lock that this process has: a fork closes its copy."""
        self._locked.add(lock)

    def unlocked(self, key: str, lock: OpenFile, *, keep: bool) -> None:
        """Note that a lock was released, and keep its file open as long as that of the key."""
        with self._lock:
            self._locked.discard(lock)
            keep = keep and key in self._held
            if not keep or self._unlocked.setdefault(key, lock) is not lock:
                lock.close()

    def close(self) -> None:
        """Close all files, after waiting for running calls."""
        with self._lock:
            self._is_closed = True
            for key in list(self._held):
                self._retire(key)
            self._unused.wait_for(lambda: not self._using)

    def after_fork(self) -> None:
        """Begin anew in a child: its parent's threads, and their locks, are not here."""
        for file in {*self._held.values(), *self._using}:
            file.close()
        for lock in (*self._locked, *self._unlocked.values()):
            lock.close()
        self._begin(is_closed=self._is_closed)

    def _check_origin(self) -> None:
        # A lock that a child took through a file of its parent would be the parent's as well.
        if not self._origin.is_here:
            raise StoreUnavailable(
                "the process was forked with files of a log open, and not by Python: open the lake again in "
                "the child"
            )

    def _retire(self, key: str) -> None:
        file = self._held.pop(key, None)
        if file is not None and file not in self._using:
            file.close()
        lock = self._unlocked.pop(key, None)
        if lock is not None:
            lock.close()

    def __del__(self) -> None:
        """Close the lock files of a log that was dropped without a `close`; its other files say so."""
        for lock in self._unlocked.values():
            lock.close()


_pools: "WeakSet[FilePool]" = WeakSet()
_hooked = False


def _register(pool: FilePool) -> None:
    global _hooked  # noqa: PLW0603 - set once per process, by its first log
    _pools.add(pool)
    if not _hooked:
        os.register_at_fork(after_in_child=_after_fork)
        _hooked = True


def _after_fork() -> None:
    for pool in list(_pools):
        pool.after_fork()
