"""Group commit: does once what several threads ask for at the same time, such as commits and refreshes.

The first thread to arrive leads: it carries out its request at once. Threads that arrive meanwhile wait. When
the leader is done, the thread that waited longest leads, and carries out all waiting requests with its own.
So the work that answers a request always began after the request was made. Must not know what the work is.

With a clock, a leader first waits until as many threads are there as came together lately, at most as long
as the work took: threads that were answered together usually ask again together. A lone thread never waits,
nor does a thread that the others wait for (`hurried`).

Also owns the requests: the handle that asks, the decision, and the answer.

Source: flat combining (Hendler et al., SPAA 2010), known to databases as group commit.

INVARIANT: while a thread waits, another one leads. A thread whose call has ended, in whatever way, does not
lead, and no thread waits for it. No lock is held while `carry_out` runs.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from tidelake.env import Clock
from tidelake.errors import InternalError, TidelakeError
from tidelake.process import PerProcess
from tidelake.shard.engine.history import LoadedVersion
from tidelake.state.core.commands import Command, Commit, NoOp, Outcome, Refused
from tidelake.state.core.edits import Note
from tidelake.state.spine.fuel import MergeDue

A = TypeVar("A", bound="Request")
_SIZE_MAX = 256  # most requests that are carried out together
_GATHER_S_MAX, _GATHER_LOOK_S = 0.05, 0.0005


class Request:
    """The request of one thread.

    Attributes:
        hurried: whether its thread does not wait for others when it leads.
        answered: whether it is done, with a result or an error.
        guard: a lock that is released when the thread may go on; None: it did not have to wait.
        error: the error that its thread is to raise.
    """

    def __init__(self, *, alone: bool = False, hurried: bool = False) -> None:
        self.alone, self.hurried = alone, hurried
        self.answered = self.gone = False
        self.guard: threading.Lock | None = None
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """End the request with an error that all requests of the round get."""
        self.error = error if self.guard is None else _copied(error)
        self.answered = True

    def check(self) -> None:
        """Raise the error, if there is one."""
        # The traceback of an error refers to the frames it passed. If a frame referred to the error, that
        # cycle would keep alive what the frames hold.
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error


class RequestQueue:
    """Combines the requests of threads of one process. Thread-safe; still works after a fork.

    Args:
        clock: lets a leader wait for other threads; None: it does not wait.
        before: called by each leader before it takes the requests to carry out; it may wait.
    """

    def __init__(self, clock: Clock | None = None, before: Callable[[], None] = lambda: None) -> None:
        self._clock, self._before = clock, before
        self._lines = PerProcess(_Line)
        self._usual, self._took_s = 1, 0.0

    def run(self, request: A, carry_out: Callable[[Sequence[A]], None]) -> None:
        """Get a request answered: by this thread, together with waiting ones, or by another thread."""
        # After a fork, the threads that lead and wait exist in the parent only.
        line = self._lines.get()
        taken: list[A] = []
        try:
            guard = line.enter(request)
            if guard is not None:
                guard.acquire()
            if not request.answered:
                self._before()
                self._gather(line, request)
                taken = line.take(request, _SIZE_MAX)
                # A small round after a large one lowers this only by half: the many threads usually come
                # again. A round that waited for none of them says nothing about them.
                if not request.hurried:
                    self._usual = max(len(taken), (self._usual + len(taken)) // 2)
                clock = self._clock if self._usual > 1 else None
                started_s = 0.0 if clock is None else clock.monotonic_s()
                carry_out(taken)
                if clock is not None:
                    self._took_s = clock.monotonic_s() - started_s
        finally:
            try:
                line.leave(request, taken)
            except BaseException:
                # An interrupt came while it left: then all others would wait for it for ever.
                line.leave(request, taken)
                raise
        request.check()

    def _gather(self, line: "_Line", leader: Request) -> None:
        """Wait for as many requests as came together lately, but at most as long as the last round took."""
        if self._clock is None or self._usual < 2 or leader.alone or leader.hurried:
            return
        deadline_s = self._clock.monotonic_s() + min(self._took_s, _GATHER_S_MAX)
        while line.count() < self._usual and self._clock.monotonic_s() < deadline_s:
            self._clock.sleep(_GATHER_LOOK_S)


class _Line:
    """The request that leads, and those that wait, in order of arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leader: Request | None = None
        self._waiting: list[Request] = []

    def enter(self, request: Request) -> "threading.Lock | None":
        """Join the line. Returns None if this request leads, else the lock to wait at."""
        with self._lock:
            if self._leader is None:
                self._leader = request
                return None
            request.guard = threading.Lock()
            request.guard.acquire()
            self._waiting.append(request)
            return request.guard

    def count(self) -> int:
        """The number of requests that would be carried out together now."""
        return 1 + len(self._waiting)

    def take(self, leader: A, size_max: int) -> list[A]:
        """Take the requests to carry out together: the leader's and waiting ones."""
        if leader.alone or not self._waiting:
            return [leader]
        with self._lock:
            taken = [one for one in self._waiting if not one.alone][: size_max - 1]
            self._waiting = [one for one in self._waiting if one not in taken]
        return [leader, *taken]  # type: ignore[list-item] # all are of one kind

    def leave(self, request: Request, taken: Sequence[Request]) -> None:
        """End a call: let the answered requests go on, and if this one led, let the next one lead.

        May be repeated, wherever it was interrupted: no request is lost, or twice in the line.
        """
        with self._lock:
            request.gone = True
            for one in taken:
                if one.answered:
                    _open(one)
            left = {id(one): one for one in (*taken, *self._waiting) if one is not self._leader}
            self._waiting = [one for one in left.values() if not one.answered and not one.gone]
            if self._leader is request:
                self._leader = self._waiting[0] if self._waiting else None
            if self._leader is not None:
                self._waiting = [one for one in self._waiting if one is not self._leader]
                _open(self._leader)


def _copied(error: Exception) -> Exception:
    """A copy of an error for one of several threads that raise it: raising changes the error's traceback."""
    try:
        copied = copy.copy(error)
    except Exception:
        # Some errors, perhaps those of a store's library, cannot be copied.
        return error
    copied.__cause__ = error
    return copied


def _open(request: Request) -> None:
    if request.guard is not None and not request.gone and request.guard.locked():
        request.guard.release()


R = TypeVar("R")
NOTE: ContextVar[Note | None] = ContextVar("NOTE", default=None)
"""What is said of the commits that are asked for here; threads that work for this one have it too."""


@dataclass(frozen=True)
class Done(Generic[R]):
    """A command's result, and the work that is now due.

    Attributes:
        rollup_due: whether the caller should write a rollup, which makes opening the shard cheaper. Only one
            of the commands that were committed together is told so.
        merges_due: merges that the levels of the spine have decided on.
    """

    result: R
    rollup_due: bool
    merges_due: tuple[MergeDue, ...] = ()


@dataclass(frozen=True)
class Failed:
    """The outcome of a command that raised an unexpected error instead of being refused."""

    error: Exception


Decided: TypeAlias = Outcome[R] | Failed


class Requester(Protocol):
    """The handle that a command comes from."""

    def named(self, error: TidelakeError) -> TidelakeError:
        """The error with the name of the shard that its user knows."""

    @property
    def seen(self) -> LoadedVersion | None:
        """The newest version that it has seen."""

    def adopt(self, known: LoadedVersion) -> LoadedVersion:
        """Take over a newer version."""


class CommitRequest(Request, Generic[R]):
    """The request of one thread to carry out a command.

    Attributes:
        others: requests of the same thread, which are carried out with this one, and before it.
        attempt: the commit attempt that it is part of, from before the attempt until its outcome is known.
    """

    def __init__(
        self,
        machine: Requester,
        command: Command[R],
        *,
        alone: bool = False,
        hurried: bool = False,
        others: "Sequence[CommitRequest[R]]" = (),
    ) -> None:
        super().__init__(alone=alone, hurried=hurried)
        self.machine, self.command, self.others, self.note = machine, command, others, NOTE.get()
        self.attempt: object = None
        self._done: Done[R] | None = None

    def answer(self, decided: Decided[R], *, rollup_due: bool) -> bool:
        """Answer the request. Returns whether a rollup is due that another request has to write."""
        match decided:
            case NoOp(result):
                self._done = Done(result, rollup_due)
            case Commit(_, result, due):
                self._done = Done(result, rollup_due, due)
            case Refused(error):
                self.error = self.machine.named(error)
            case Failed(broken):
                self.error = broken
        self.answered = True
        return rollup_due and (self._done is None or self.gone)

    def fail(self, error: Exception) -> None:
        """End the request with an error that all requests of the round get."""
        self.attempt = None
        super().fail(error)

    def done(self) -> Done[R]:
        """The answer."""
        if self._done is None:
            raise InternalError("a command was not answered")
        return self._done


class RefreshRequest(Request):
    """The request of one thread to refresh the newest state."""

    def __init__(self, machine: Requester) -> None:
        super().__init__()
        self.machine = machine
