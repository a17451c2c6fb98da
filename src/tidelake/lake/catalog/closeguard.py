"""Closing a lake: calls of its stores are refused once the lake is closed.

Every method of a lake or a collection begins with a log call. So refusing log calls closes all of them, no
matter how the store below handles a close; and work that began earlier stores nothing any more. Streams of
rows can still be read. Must not know collections.

INVARIANT: after `shut`, no log call begins except those of commands that entered before; `shut` returns after
these have ended. So a command is either carried out and answered, or not begun.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from tidelake.errors import Closed
from tidelake.process import PerProcess
from tidelake.store.layers import Operation

T = TypeVar("T")


class CloseGuard:
    """Counts the commands in progress on one lake handle. Thread-safe; a forked child starts at none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shut = False
        self._inside = PerProcess(lambda: _Inside(self.check))

    def check(self) -> None:
        """Check that it is not shut.

        Raises:
            Closed: it is shut.
        """
        if self._shut:
            raise Closed(f"the lake at {self._url} was closed: open it again with tidelake.open")

    def command(self) -> AbstractContextManager[None]:
        """Enter: the body runs to its end, even if the gate is shut meanwhile.

        Raises:
            Closed: on entry, the gate is shut already.
        """
        return self._inside.get()

    def around(self, operation: Operation, call: Callable[[], T]) -> T:
        """Make a call of the log, or a put, as a command; an `Around`.

        Other calls of the blob store are made even when the gate is shut, so that streams can be read to
        their end and unused uploads deleted.
        """
        if operation.startswith("blob.") and operation != "blob.put":
            return call()
        with self.command():
            return call()

    def shut(self) -> None:
        """Refuse new commands, and wait for those in progress. May be repeated."""
        inside = self._inside.get()
        with inside.changed:
            self._shut = True
            # Do not wait for this thread's own command: a signal handler may call this during one.
            inside.changed.wait_for(lambda: inside.count <= bool(inside.depth))

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Let this thread finish its work after it has shut the gate."""
        inside = self._inside.get()
        with inside.changed:
            inside.enter()
        try:
            yield
        finally:
            inside.leave()


class _Inside:
    """The commands of one process that are in progress; as a context manager, one more of them."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.count = 0
        self.changed = threading.Condition()
        self._own = threading.local()

    def __enter__(self) -> None:
        depth = self.depth
        if depth:
            # The command that this one is part of is counted already.
            self._own.depth = depth + 1
            return
        with self.changed:
            self._check()
            self.enter()

    def __exit__(self, *_: object) -> None:
        depth = self.depth
        if depth > 1:
            self._own.depth = depth - 1
        else:
            self.leave()

    @property
    def depth(self) -> int:
        """How many nested commands of this thread are in progress."""
        return getattr(self._own, "depth", 0)

    def enter(self) -> None:
        """Begin a command of this thread. REQUIRES: `changed` is held."""
        self.count += not self.depth
        self._own.depth = self.depth + 1

    def leave(self) -> None:
        """End it."""
        with self.changed:
            self._own.depth = self.depth - 1
            self.count -= not self.depth
            self.changed.notify_all()
