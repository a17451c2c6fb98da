"""Overlap: an iterator that runs ahead of its reader, and jobs that run beside their caller.

Owns the start and the end of all threads whose work somebody waits for (what goes on by itself is started by
the `Spawner` of `tidelake.env`); must not know what they carry. Invariant: the reader of `prefetch` sees the
same items, then the same exception or end, as without the thread; once the generator is closed, exhausted
or collected, the thread has ended and the source is closed. A `Background` runs every job that it takes to
its end, and hands every error to its caller.

Threads start when there is work, belong to one process, and are never kept across a fork. Inside of
`sequential()` none is started at all: for a debugger, and for runs that must repeat exactly. Where the system
has no thread left for this process, the caller does the work, as inside of `sequential()`.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any, Generic, TypeVar

from tidelake.errors import InternalError, UsageError

S = TypeVar("S")
T = TypeVar("T")

_in_sequence: ContextVar[bool] = ContextVar("tidelake-sequential", default=False)


@contextmanager
def sequential() -> Generator[None]:
    """Let everything here run in the thread of its caller, at the moment it is asked for.

    Answers and errors stay the same; only speed is lost. Holds for what the current thread (more exactly:
    its context) begins inside of the block. Useful with a debugger, whose steps then follow one another.
    """
    token = _in_sequence.set(True)
    try:
        yield
    finally:
        _in_sequence.reset(token)


def _started(thread: threading.Thread) -> bool:
    """Start a thread; False if the system has none left."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


class _End:
    """The source is exhausted, or failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def over(self) -> list[Any]:
        """Nothing; raises what the source raised."""
        if self.error is not None:
            raise self.error
        return []


def prefetch(source: Iterable[T], depth: int = 2) -> Generator[T]:
    """Iterate `source` in a thread, at most `depth` items ahead.

    Args:
        source: iterated by the thread only. If it is a generator, it is closed there.
        depth: items held besides the one that the source is making.

    Yields:
        The items of `source`, in order.

    Raises:
        Exception: whatever the source raised, after the items before it.
        UsageError: it is read in a fork, where the thread is not.
    """
    if _in_sequence.get():
        yield from source
        return
    ready: queue.Queue[T | _End] = queue.Queue()
    room = threading.Semaphore(max(1, depth))
    stopped = threading.Event()
    pid = os.getpid()

    def run() -> None:
        error: BaseException | None = None
        try:
            items = iter(source)
            try:
                while True:
                    room.acquire()
                    if stopped.is_set():
                        break
                    try:
                        # Not in a variable: it would be held until the next one is there.
                        ready.put(next(items))
                    except StopIteration:
                        break
            finally:
                _close(items)
        except BaseException as caught:
            # Not lost: the reader raises it.
            error = caught
        ready.put(_End(error))

    def take() -> list[T]:
        if os.getpid() != pid:
            raise UsageError("a stream of rows does not survive a fork: read it in the process that began it")
        item = ready.get()
        if isinstance(item, _End):
            return item.over()
        # Room first: the thread makes the next item while the reader works on this one.
        room.release()
        return [item]

    thread = threading.Thread(target=run, name="tidelake-prefetch", daemon=True)
    if not _started(thread):
        yield from source
        return
    try:
        # Not in a variable: it would be held until the reader asks for the next one.
        while one := take():
            yield one.pop()
    finally:
        # In a fork there is no thread to stop, and its locks are as they were at that moment.
        if os.getpid() == pid:
            stopped.set()
            room.release()
            # The collector may close an abandoned generator in any thread, this very one included.
            if thread is not threading.current_thread():
                thread.join()


class Job(Generic[T]):
    """What a `Background` was given to do."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._pid = os.getpid()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def result(self) -> T:
        """What it returned; waits for that.

        Raises:
            UsageError: in a fork, unless it had ended before.
            BaseException: whatever it raised.
        """
        if not self.done and os.getpid() != self._pid:
            raise UsageError("background work does not survive a fork: wait for it where it was begun")
        self._ended.wait()
        if self._error is not None:
            raise self._error
        if not self._answer:
            raise InternalError("a job ended without an answer")
        return self._answer[0]

    def _run(self) -> BaseException | None:
        try:
            if self._work is not None:
                self._answer.append(self._work())
        except BaseException as error:
            # Not lost: whoever asks for the result, or submits the next job, gets it.
            self._error = error
        finally:
            # What the work holds in memory goes before there is room for the next job.
            self._work = None
        return self._error


class Background:
    """Runs at most `depth` jobs at once, each in a thread that ends with it.

    For one caller at a time. Threads that are under way when the caller is interrupted run to their end;
    `close` waits for them.
    """

    def __init__(self, depth: int, stalled: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            depth: jobs at once.
            stalled: called when a job has to wait for room.
        """
        self._room = threading.Semaphore(depth)
        self._stalled = stalled
        self._pid = os.getpid()
        self._threads: set[threading.Thread] = set()
        self._error: BaseException | None = None

    @property
    def foreign(self) -> bool:
        """Whether this process is a fork of the one that made it: its threads are not here."""
        return os.getpid() != self._pid

    def submit(self, work: Callable[[], T]) -> Job[T]:
        """Start a job, or wait until there is room for it.

        Raises:
            UsageError: in a fork.
            BaseException: whatever an earlier job raised; this one was not started then.
        """
        if self.foreign:
            raise UsageError("background work does not survive a fork: start it in the process that uses it")
        if not self._room.acquire(blocking=False):
            self._stalled()
            self._room.acquire()
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        if self._error is not None:
            self._room.release()
            raise self._error
        job = Job(work)
        if _in_sequence.get():
            self._run(job)
            return job
        thread = threading.Thread(target=self._run, args=(job,), name="tidelake-background", daemon=True)
        if _started(thread):
            self._threads.add(thread)
        else:
            self._run(job)
        return job

    def _run(self, job: Job[T]) -> None:
        error = job._run()
        if error is not None and self._error is None:
            self._error = error
        job._ended.set()
        self._room.release()

    def close(self) -> None:
        """Wait until no job runs. May be repeated; raises nothing."""
        if self.foreign:
            return
        for thread in self._threads:
            # The collector may close an abandoned owner in any thread, a job's own included.
            if thread is not threading.current_thread():
                thread.join()
        self._threads = set()


def mapped(work: Callable[[S], T], items: Iterable[S], threads: int) -> Generator[T]:
    """What some work makes of each item, in their order; up to `threads` of them are worked on at once.

    Args:
        work: called in a thread of its own for each item; by the caller if there is only one.
        items: iterated by the caller.
        threads: at least 1: then all of it is done by the caller.

    Raises:
        BaseException: whatever the work raised, after what it made of the items before, or earlier.
    """
    left = iter(items)
    some = deque(islice(left, 2))
    few = len(some) < 2
    # Taken out as they are worked on: a list would hold the first items until the last one is done.
    given = chain((some.popleft() for _ in range(len(some))), left)
    if threads == 1 or few:
        yield from map(work, given)
        return
    background, jobs = Background(threads, lambda: None), deque[Job[T]]()
    try:
        for item in given:
            jobs.append(background.submit(partial(work, item)))
            del item
            if len(jobs) == threads:
                yield jobs.popleft().result()
        while jobs:
            yield jobs.popleft().result()
    finally:
        background.close()


@contextmanager
def beside(work: Callable[[], object]) -> Generator[None]:
    """Do something beside a block, which ends when both have ended.

    Raises:
        BaseException: whatever the block raised, else what the work did.
    """
    background = Background(1, lambda: None)
    job = background.submit(work)
    try:
        yield
    finally:
        background.close()
    # In a fork that leaves the block there is nothing to wait for.
    if not background.foreign:
        job.result()


@contextmanager
def prefetch_all(sources: Sequence[Iterable[T]], threads: int) -> Generator[list[Iterator[T]]]:
    """Iterate several sources ahead of their reader, by a few threads together, one item ahead each.

    Args:
        sources: each is iterated by one thread at a time. Generators are closed at the end.
        threads: at most so many.

    Yields:
        As many iterators: each the items of its source, in order, then what the source raised. Once the
        block is left, the threads have ended and the sources are closed.
    """
    crew = _Crew([_Lane(iter(source)) for source in sources])
    wanted = 0 if _in_sequence.get() else min(threads, len(sources))
    every = (threading.Thread(target=crew.work, name="tidelake-prefetch", daemon=True) for _ in range(wanted))
    running = list(takewhile(_started, every))
    if not running:
        try:
            yield [lane.items for lane in crew.lanes]
        finally:
            for lane in crew.lanes:
                _close(lane.items)
        return
    try:
        yield [crew.read(lane) for lane in crew.lanes]
    finally:
        crew.stop()
        for thread in running:
            thread.join()
        for lane in crew.lanes:
            _close(lane.items)


def _close(items: Iterator[T]) -> None:
    """End a generator; other iterators have no end to be told of."""
    close = getattr(items, "close", None)
    if close is not None:
        close()


class _Lane(Generic[T]):
    """One source, and what was read of it."""

    def __init__(self, items: Iterator[T]) -> None:
        self.items = items
        self.ready: deque[T | _End] = deque()
        # Whether a thread is at it, or it has come to its end.
        self.taken = False


class _Crew(Generic[T]):
    """Threads that read on wherever nothing is ready; one lock guards all lanes."""

    def __init__(self, lanes: list[_Lane[T]]) -> None:
        self.lanes = lanes
        self._changed = threading.Condition()
        self._stopped = False

    def work(self) -> None:
        while (lane := self._next_lane()) is not None:
            item: T | _End
            try:
                item = next(lane.items)
            except StopIteration:
                item = _End(None)
            except BaseException as caught:
                # Not lost: the reader raises it.
                item = _End(caught)
            with self._changed:
                lane.ready.append(item)
                lane.taken = isinstance(item, _End)
                self._changed.notify_all()
            # Else it would be held until there is something else to do.
            del item

    def read(self, lane: _Lane[T]) -> Iterator[T]:
        # Not in a variable: every run would hold the batch that it gave last.
        while one := self._take(lane):
            yield one.pop()

    def _take(self, lane: _Lane[T]) -> list[T]:
        """The next item of a lane, or none at its end."""
        with self._changed:
            while not lane.ready:
                self._changed.wait()
            item = lane.ready.popleft()
            self._changed.notify_all()
        return item.over() if isinstance(item, _End) else [item]

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _next_lane(self) -> _Lane[T] | None:
        with self._changed:
            while not self._stopped:
                for lane in self.lanes:
                    if not lane.taken and not lane.ready:
                        lane.taken = True
                        return lane
                self._changed.wait()
        return None
