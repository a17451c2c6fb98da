"""What belongs to one process. A fork copies the memory of its parent, but none of its threads.

Owns the process id: other modules ask here whether an object is such a copy, and keep here what every process
makes for itself. Must not know what it keeps.
"""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ProcessOrigin:
    """Remembers the process that made it. A copy of it in a fork is not from there."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this process made it."""
        return self._pid == os.getpid()


class PerProcess(Generic[T]):
    """A value that each process makes for itself, when it first asks. Thread-safe.

    A fork makes its own: its parent's locks may be held by threads that the fork does not have. The copy of
    the parent's value is dropped, not closed.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Make nothing yet.

        Args:
            make: makes a value. Two threads that ask first may both make one; both get the same.
        """
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """The value of this process."""
        pid = os.getpid()
        # SUBTLE: no lock, because a thread of the parent could hold it at the fork. `setdefault` is atomic.
        if pid not in self._made:
            self._made.setdefault(pid, self._make())
            for parent in [other for other in self._made.copy() if other != pid]:
                self._made.pop(parent, None)
        return self._made[pid]
