"""Turns: advisory locks, so that one of several processes or threads of a machine does a piece of work.

Owns the lock files. Must not know what is done in a turn.

INVARIANT: no process waits for a turn without end, and correctness never depends on one. If a turn cannot be
locked, the work is done without.

    <root>/<key, with / written as ~>/<name>.turn     empty; locked by the process that has the turn
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Protocol

from tidelake.errors import SymbolicLink
from tidelake.process import PerProcess
from tidelake.store.files import SYSTEM_FILES, Files, Wait, locked, looked, refuse_links


class AdvisoryLocks(Protocol):
    """Turns by key and name."""

    @property
    def spans_processes(self) -> bool:
        """Whether another process cannot take a turn that this one has."""

    def take(self, key: str, name: str, wait: Wait | None = None) -> AbstractContextManager[bool]:
        """Take a turn for the block; False if another process or thread has it. No store call."""


class ThreadAdvisoryLocks:
    """Turns between the threads of a process, for stores without files: each process does the work."""

    spans_processes = False

    def __init__(self) -> None:
        # The turns that are taken. `setdefault` is atomic, so they need no lock; a fork begins with none.
        self._taken = PerProcess(dict[tuple[str, str], object])

    @contextmanager
    def take(self, key: str, name: str, wait: Wait | None = None) -> Iterator[bool]:
        """Take a turn in this process; see `AdvisoryLocks.take`."""
        taken, mine = self._taken.get(), object()
        is_ours = looked(lambda: taken.setdefault((key, name), mine) is mine, wait)
        try:
            yield is_ours
        finally:
            if is_ours:
                taken.pop((key, name), None)


class FileAdvisoryLocks:
    """Turns by locks on files. The end of a process releases its locks.

    Args:
        root: the folder of the version log. The file of a turn is deleted with its key.
        files: the file system.
        base: no symbolic link below it is followed; default: the root.
    """

    spans_processes = True

    def __init__(self, root: str, files: Files = SYSTEM_FILES, base: str | None = None) -> None:
        self._root, self._files = os.path.abspath(root), files
        self._base = self._root if base is None else os.path.abspath(base)

    @contextmanager
    def take(self, key: str, name: str, wait: Wait | None = None) -> Iterator[bool]:
        """Lock the file of a turn; see `AdvisoryLocks.take`."""
        path = os.path.join(self._root, key.replace("/", "~"), f"{name}.turn")
        held = ExitStack()
        try:
            refuse_links(self._files, self._base, path)
            is_ours = held.enter_context(locked(self._files, path, wait))
        except (OSError, SymbolicLink):
            # A deleted key, a full disk, no permission, a symbolic link, or no support for locks: the work
            # itself will report what matters.
            is_ours = True
        try:
            yield is_ours
        finally:
            with suppress(OSError):  # as above
                held.close()
