"""The open files of this process: a bounded number of keys.

Owns which keys are open, and what a fork does with them. Must not know what the files hold.

A forked child opens its own files: those that it inherits are closed there, without an unlock.
"""

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from tidelake.errors import Closed, StoreUnavailable
from tidelake.process import ProcessOrigin
from tidelake.store.files import Files
from tidelake.store.framed.keyfile import KeyFile

# At least so many keys, and at most; in between, one for each so many descriptors of this process.
_KEYS_MIN, _KEYS_MAX, _DESCRIPTORS_EACH = 64, 1024, 8


def files_allowed() -> int:
    """How many keys a pool keeps open: their descriptors are a quarter of what is allowed."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _KEYS_MAX
    return min(max(allowed // _DESCRIPTORS_EACH, _KEYS_MIN), _KEYS_MAX)


class _Held:
    """An open file, and how many calls use it."""

    def __init__(self, file: KeyFile) -> None:
        self.file, self.users, self.is_retired = file, 0, False


class FilePool:
    """Open files by key. Above `limit`, the least recently used ones are closed."""

    def __init__(self, limit: int, files: Files) -> None:
        self._limit, self._files = limit, files
        self._origin = ProcessOrigin()
        self._begin()
        _register(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._using: set[_Held] = set()
        self._locks: set[int] = set()
        self._is_closed = False

    @contextmanager
    def use(
        self, key: str, opened: Callable[[], KeyFile | None], is_valid: Callable[[KeyFile], bool]
    ) -> Iterator[KeyFile | None]:
        """The open file of a key, for a block; None if the key does not exist.

        Args:
            key: the key.
            opened: opens the file.
            is_valid: whether an open file may still be used.
        """
        held = self._taken(key)
        if held is not None:
            is_kept = False
            try:
                is_kept = is_valid(held.file)
            finally:
                if not is_kept:
                    self.forget(key, held.file)
                    self._release(held)
            held = held if is_kept else None
        if held is None:
            file = opened()
            if file is None:
                yield None
                return
            held = self._added(key, file)
        try:
            yield held.file
        finally:
            self._release(held)

    def forget(self, key: str, file: KeyFile) -> None:
        """Use a file no more, once running calls have ended."""
        with self._changed:
            held = self._held.get(key)
            if held is not None and held.file is file:
                self._retire(key)

    def locked(self, descriptor: int) -> None:
        """Note a descriptor whose lock this process holds: a fork closes its copy."""
        self._locks.add(descriptor)

    def unlocking(self, descriptor: int) -> None:
        """Note that a lock is being released."""
        self._locks.discard(descriptor)

    def close(self) -> None:
        """Close all files, after waiting for running calls."""
        with self._changed:
            self._is_closed = True
            for key in list(self._held):
                self._retire(key)
            self._changed.wait_for(lambda: not self._using)

    def after_fork(self) -> None:
        """Begin anew in a child: its parent's threads, and their locks, are not here."""
        is_closed = self._is_closed
        inherited = {*self._held.values(), *self._using}
        for descriptor in self._locks:
            self._files.close(descriptor)
        for held in inherited:
            held.file.close()
        self._origin = ProcessOrigin()
        self._begin()
        self._is_closed = is_closed

    def _taken(self, key: str) -> _Held | None:
        if not self._origin.is_here:
            raise StoreUnavailable(
                "the process was forked with files of a log open, and not by Python: open the lake again in "
                "the child"
            )
        with self._changed:
            if self._is_closed:
                raise Closed(f"cannot use key {key!r}: the version log was closed; open it again")
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
                self._used(held)
            return held

    def _added(self, key: str, file: KeyFile) -> _Held:
        with self._changed:
            held = _Held(file)
            self._used(held)
            if self._is_closed:
                held.is_retired = True
                return held
            if key in self._held:  # another thread has opened it as well
                self._retire(key)
            self._held[key] = held
            while len(self._held) > self._limit:
                self._retire(next(iter(self._held)))
            return held

    def _used(self, held: _Held) -> None:
        held.users += 1
        self._using.add(held)

    def _retire(self, key: str) -> None:
        held = self._held.pop(key)
        held.is_retired = True
        if not held.users:
            held.file.close()

    def _release(self, held: _Held) -> None:
        with self._changed:
            held.users -= 1
            if held.users:
                return
            self._using.discard(held)
            if held.is_retired:
                held.file.close()
            self._changed.notify_all()


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
