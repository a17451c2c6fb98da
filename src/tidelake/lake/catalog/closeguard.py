"""Closing a lake: calls of its stores are refused once the lake is closed.

Every method of a lake or a collection begins with a log call. So refusing log calls closes all of them, no
matter how the store below handles a close; and work that began earlier stores nothing any more. Streams of
rows can still be read. Must not know collections.

INVARIANT: after `shut`, no log call begins except those of commands that entered before; `shut` returns after
these have ended. So a command is either carried out and answered, or not begun.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tidelake.errors import Closed
from tidelake.store.layers import Operation

T = TypeVar("T")


class CloseGuard:
    """Counts the commands in progress on one lake handle. Thread-safe; a forked child starts at none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shut = False
        self._begin()

    def _begin(self) -> None:
        self._inside = 0
        self._changed = threading.Condition()
        self._own = threading.local()
        # Set last: a thread that sees the current pid uses the fields above.
        self._pid = os.getpid()

    def check(self) -> None:
        """Check that it is not shut.

        Raises:
            Closed: it is shut.
        """
        if self._shut:
            raise Closed(f"the lake at {self._url} was closed: open it again with tidelake.open")

    @contextmanager
    def command(self) -> Iterator[None]:
        """Enter: the body runs to its end, even if the gate is shut meanwhile.

        Raises:
            Closed: the gate is shut already.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            if not self._depth:
                self.check()
            self._enter()
        try:
            yield
        finally:
            self._leave()

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
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            self._shut = True
            # Do not wait for this thread's own command: a signal handler may call this during one.
            self._changed.wait_for(lambda: self._inside <= bool(self._depth))

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Let this thread finish its work after it has shut the gate."""
        with self._changed:
            self._enter()
        try:
            yield
        finally:
            self._leave()

    @property
    def _depth(self) -> int:
        """How many nested commands of this thread are in progress."""
        return getattr(self._own, "depth", 0)

    def _enter(self) -> None:
        self._inside += not self._depth
        self._own.depth = self._depth + 1

    def _leave(self) -> None:
        with self._changed:
            self._own.depth = self._depth - 1
            self._inside -= not self._depth
            self._changed.notify_all()
