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
from typing import Any, get_args

from tidelake.errors import Closed
from tidelake.process import PerProcess
from tidelake.store.layers import LogOperation, Method, Methods

_LOG = get_args(LogOperation)


class CloseGuard:
    """Counts the commands in progress on one lake handle. Thread-safe; a forked child starts at none.

    Attributes:
        command: a context manager whose body runs to its end, even if the guard is shut meanwhile; raises
            `Closed` on entry if it is shut already.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._shut = False
        self._inside = PerProcess(lambda: _Inside(self.check))
        self.command: Callable[[], AbstractContextManager[None]] = self._inside.get

    def check(self) -> None:
        """Check that it is not shut."""
        if self._shut:
            raise Closed(f"the lake at {self._url} was closed: open it again with tidelake.open")

    def layer(self, below: Methods) -> Methods:
        """Make a call of the log, or a put, as a command; a `Layer`.

        Other calls of the blob store are made even when the guard is shut, so that streams can be read to
        their end and unused uploads deleted.
        """

        def guarded(method: Method) -> Method:
            def call(*args: Any, **named: Any) -> Any:
                with self.command():
                    return method(*args, **named)

            return call

        return {
            operation: guarded(method) if operation in _LOG or operation == "blob.put" else method
            for operation, method in below.items()
        }

    def shut(self) -> None:
        """Refuse new commands, and wait for those in progress. May be repeated."""
        inside = self._inside.get()
        with inside.lock:
            self._shut = inside.is_waited_for = True
            # Do not wait for this thread's own command: a signal handler may call this during one.
            inside.ended.wait_for(lambda: inside.count <= bool(inside.own.depth))

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Let this thread finish its work after it has shut the guard."""
        inside = self._inside.get()
        with inside.lock:
            inside.enter()
        try:
            yield
        finally:
            inside.leave()


class _Depth(threading.local):
    """How many nested commands of this thread are in progress."""

    depth = 0


class _Inside:
    """The commands of one process that are in progress; as a context manager, one more of them.

    Attributes:
        count: how many; nested commands of a thread are one.
        lock: guards the count. May be taken again: a signal handler may close the lake.
        ended: told of the end of each command, if it `is_waited_for`.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.count = 0
        self.own = _Depth()
        self.lock = threading.RLock()
        self.ended = threading.Condition(self.lock)
        self.is_waited_for = False

    def __enter__(self) -> None:
        if self.own.depth:
            # The command that this one is part of is counted already.
            self.own.depth += 1
            return
        with self.lock:
            self._check()
            self.enter()

    def __exit__(self, *_: object) -> None:
        if self.own.depth > 1:
            self.own.depth -= 1
        else:
            self.leave()

    def enter(self) -> None:
        """Begin a command of this thread. REQUIRES: `lock` is held."""
        self.count += not self.own.depth
        self.own.depth += 1

    def leave(self) -> None:
        """End it."""
        with self.lock:
            self.own.depth -= 1
            self.count -= not self.own.depth
            if self.is_waited_for:
                self.ended.notify_all()
