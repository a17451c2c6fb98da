"""Turns: processes of one machine that want the same thing let each other go first.

Owns the files that say whose turn it is. Must not know what is done in a turn.

INVARIANT: a turn is a courtesy. Nothing is right only because of it; where none can be kept, everybody goes
at once.

    <root>/<key, its / written as ~>/<name>.turn     locked by whoever has the turn; empty
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Turns(Protocol):
    """Turns by key and name."""

    def take(self, key: str, name: str, *, wait: bool = True) -> AbstractContextManager[bool]:
        """A context in which nobody else has this turn, if it says True. No store call.

        Args:
            key: of the version log.
            name: of the turn; ASCII letters.
            wait: in line, until whoever has it gives it up or dies; else it says False at once.
        """


class NoTurns:
    """For stores of one process, or of many machines: everybody goes at once."""

    @contextmanager
    def take(self, key: str, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Always had; see `Turns.take`."""
        yield True


class FileTurns:
    """Turns by locks on files, which end with their process.

    Args:
        root: the folder of the version log: a turn's file goes with its key.
    """

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)

    @contextmanager
    def take(self, key: str, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Lock the file of a turn; see `Turns.take`."""
        path = os.path.join(self._root, key.replace("/", "~"), f"{name}.turn")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:  # no such key yet, a full disk, no permission: then without
            yield True
            return
        try:
            had = _lock(descriptor, wait=wait)
            try:
                yield had
            finally:
                # Closing does not do it: a child that was forked meanwhile has the file open as well.
                if had:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: then without
        return True
    return True
