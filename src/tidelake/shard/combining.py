"""Doing once what several threads ask for at the same time: commits to a shard, looks at it, relief of it.

The first to come leads, at once and alone. Whoever comes while it is at work waits; when it is done, the one
that waited longest leads, and takes along all that wait. What a thread gets was begun after it asked. Must
not know what is done.

With a clock, a leader waits for as many as came together of late, no longer than it takes to carry them out:
those that were answered together mostly ask again together. Whoever is alone never waits.

Source: flat combining (Hendler et al., SPAA 2010), which databases know as group commit.

INVARIANT: while somebody waits somebody leads. A thread that ends its call, in whatever way, leads no more
and is not waited for. No lock is held while others are called.
"""

import copy
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from tidelake.env import Clock

A = TypeVar("A", bound="Request")
_GATHER_S_MAX, _GATHER_LOOK_S = 0.05, 0.0005


class Request:
    """What one thread asks for.

    Attributes:
        alone: it is carried out with no other.
        answered: nothing is left to do for it.
        gone: its thread waits no longer.
        gate: open when the thread is to go on; None: it never had to wait.
        error: that its thread is to raise.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self.alone = alone
        self.answered = self.gone = False
        self.gate: threading.Lock | None = None
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Tell of an error that all hear of who were to be carried out together."""
        self.error = error if self.gate is None else _copied(error)
        self.answered = True

    def check(self) -> None:
        """Raise the error, if there is one."""
        # An error knows the frames that it has passed, so nothing in them may lead to it: nobody would ever
        # forget what they hold.
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error


class Combiner:
    """Threads that ask for the same kind of thing, in one process. Thread-safe, and of use in a fork.

    Args:
        clock: for one whose leader may wait for others; None: it does not.
        size_max: requests that are carried out together, at most.
    """

    def __init__(self, clock: Clock | None = None, size_max: int = 256) -> None:
        self._clock, self._size_max = clock, size_max
        self._line = _Line()
        self._usual, self._took_s = 1, 0.0

    def run(self, request: A, carry_out: Callable[[Sequence[A]], None]) -> None:
        """Have a request answered: by this thread, with others that wait, or by another one.

        Args:
            request: of this thread.
            carry_out: answers all that it is given. What it raises is for this thread; those that it has not
                answered then are given to another one.

        Raises:
            Exception: the request failed.
        """
        line = self._line
        if line.pid != os.getpid():
            # In a fork the threads that lead and wait are the parent's.
            line = self._line = _Line()
        taken: list[A] = []
        try:
            gate = line.enter(request)
            if gate is not None:
                gate.acquire()
            if not request.answered:
                self._gather(line, request)
                taken = line.take(request, self._size_max)
                self._timed(taken, carry_out)
        finally:
            line.leave(request, taken)
        request.check()

    def _gather(self, line: "_Line", leader: Request) -> None:
        """Wait for as many as came together of late, but no longer than carrying them out took."""
        if self._clock is None or self._usual < 2 or leader.alone:
            return
        deadline_s = self._clock.monotonic_s() + min(self._took_s, _GATHER_S_MAX)
        while line.count() < self._usual and self._clock.monotonic_s() < deadline_s:
            self._clock.sleep(_GATHER_LOOK_S)

    def _timed(self, taken: Sequence[A], carry_out: Callable[[Sequence[A]], None]) -> None:
        # Where few follow many, as a merge that is alone between two rounds, the many come again.
        self._usual = max(len(taken), (self._usual + len(taken)) // 2)
        if self._clock is None or self._usual < 2:
            carry_out(taken)
            return
        started_s = self._clock.monotonic_s()
        carry_out(taken)
        self._took_s = self._clock.monotonic_s() - started_s


class _Line:
    """Who leads, and who waits, in the order in which they came."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._leader: Request | None = None
        self._waiting: list[Request] = []

    def enter(self, request: Request) -> "threading.Lock | None":
        """Lead (None), or wait at a gate."""
        with self._lock:
            if self._leader is None:
                self._leader = request
                return None
            request.gate = threading.Lock()
            request.gate.acquire()
            self._waiting.append(request)
            return request.gate

    def count(self) -> int:
        """How many would be carried out together now."""
        return 1 + len(self._waiting)

    def take(self, leader: A, size_max: int) -> list[A]:
        """Those that are carried out together, of whom one leads."""
        if leader.alone:
            return [leader]
        with self._lock:
            taken = [one for one in self._waiting if not one.alone][: size_max - 1]
            self._waiting = [one for one in self._waiting if one not in taken]
        return [leader, *taken]  # type: ignore[list-item] # all are of one kind

    def leave(self, request: Request, taken: Sequence[Request]) -> None:
        """End a call: those that were answered go on, and if it led, the next one leads."""
        with self._lock:
            request.gone = True
            left = [one for one in (*taken, *self._waiting) if not one.answered and not one.gone]
            for one in taken:
                if one.answered:
                    _open(one)
            self._waiting = left
            if self._leader is request:
                self._leader = self._waiting.pop(0) if self._waiting else None
                if self._leader is not None:
                    _open(self._leader)


def _copied(error: Exception) -> Exception:
    """An error for one of several threads that raise it: each writes into what it raises."""
    try:
        copied = copy.copy(error)
    except Exception:
        # Of a store, perhaps, which makes its errors in a way of its own.
        return error
    copied.__cause__ = error
    return copied


def _open(request: Request) -> None:
    if request.gate is not None and not request.gone:
        request.gate.release()
