"""The open files of this process: a bounded number of keys.

Owns which keys are open, and what a fork does with them. Must not know what the files hold.

A file that is not kept any more is closed when the last call that uses it ends. A forked child opens its own
files: those that it inherits are closed there, without an unlock.
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
    """Open files by key, each with an open lock file. Above `limit`, the least recently used are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit, self._is_closed = limit, False
        self._begin()
        _register(self)

    def _begin(self) -> None:
        self._origin, self._changes = ProcessOrigin(), threading.Lock()
        self._kept: OrderedDict[str, KeyFile] = OrderedDict()
        # Locks of this process, of which a fork closes its copies; and lock files that are not locked. Two
        # threads never have the same one of these: they are taken by `dict.pop`.
        self._locked: set[OpenFile] = set()
        self._unlocked: dict[str, OpenFile] = {}

    def get(self, key: str) -> KeyFile | None:
        """The open file of a key, to be released after use; None if it is not open."""
        self._check_origin()
        with self._changes:
            if self._is_closed:
                raise Closed(f"cannot use key {key!r}: the version log was closed; open it again")
            file = self._kept.get(key)
            if file is not None:
                self._kept.move_to_end(key)
                file.users += 1
            return file

    def keep(self, key: str, file: KeyFile) -> None:
        """Keep a file that was opened, in the place of another one; it is to be released after use."""
        with self._changes:
            self._drop(key)
            self._kept[key], file.is_kept, file.users = file, True, 1
            while len(self._kept) > (0 if self._is_closed else self._limit):
                self._drop(next(iter(self._kept)))

    def release(self, file: KeyFile) -> None:
        """Note that a call uses a file no more."""
        with self._changes:
            file.users -= 1
            if not (file.users or file.is_kept):
                file.close()

    def forget(self, key: str, file: KeyFile) -> None:
        """Keep a file no more."""
        with self._changes:
            if self._kept.get(key) is file:
                self._drop(key)

    def lock_of(self, key: str) -> OpenFile | None:
        """The open lock file of a key, for one caller; None if there is none. Give it to `unlocked` later."""
        self._check_origin()
        return self._unlocked.pop(key, None)

    def locked(self, lock: OpenFile) -> None:
        """Note a lock that this process has taken."""
        self._locked.add(lock)

    def unlocked(self, key: str, lock: OpenFile) -> None:
        """Note that a lock was released, and keep its file open as long as that of the key."""
        with self._changes:
            self._locked.discard(lock)
            if key in self._kept:
                self._unlocked[key] = lock

    def close(self) -> None:
        """Keep no file any more."""
        with self._changes:
            self._is_closed = True
            for key in list(self._kept):
                self._drop(key)

    def after_fork(self) -> None:
        """Begin anew in a child: its parent's threads, and their locks, are not here."""
        for file in self._kept.values():
            file.close()
        for lock in (*self._locked, *self._unlocked.values()):
            lock.close()
        self._begin()

    def _drop(self, key: str) -> None:
        file = self._kept.pop(key, None)
        if file is not None:
            file.is_kept = False
            if not file.users:
                file.close()
        self._unlocked.pop(key, None)

    def _check_origin(self) -> None:
        # A lock that a child took through a file of its parent would be the parent's as well.
        if not self._origin.is_here:
            raise StoreUnavailable(
                "the process was forked with files of a log open, and not by Python: open the lake again in "
                "the child"
            )


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
