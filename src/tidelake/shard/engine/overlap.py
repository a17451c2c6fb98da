"""Threads that work for a caller: iterators that run ahead of their reader, and background jobs.

Owns the start and the end of all threads that a caller waits for (the `Spawner` of `tidelake.env` starts
threads that live on their own); must not know what they do. Invariant: the reader of `prefetch` sees the
same items, then the same exception or end, as without the thread; once the generator is closed, exhausted
or collected, the thread has ended and the source is closed. A `Background` runs every job that it takes to
its end, and hands every error to its caller.

Threads start when there is work, belong to one process, and are never kept across a fork. Inside
`sequential()` no thread starts at all: for a debugger, and for runs that must repeat exactly. If the system
has no thread left for this process, the caller does the work, as inside `sequential()`.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any, Generic, TypeVar

from tidelake.errors import InternalError, UsageError
from tidelake.process import ProcessOrigin

S = TypeVar("S")
T = TypeVar("T")

_in_sequence: ContextVar[bool] = ContextVar("tidelake-sequential", default=False)


@contextmanager
def sequential() -> Generator[None]:
    """Run everything of this module in the thread of its caller, at the moment the result is asked for.

    Answers and errors stay the same; only speed is lost. Applies to what the current thread (more exactly:
    its context) starts inside the block. Useful with a debugger, which then steps through one thread.
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


def _join(thread: threading.Thread) -> None:
    """Wait for the end of a thread, which may not have begun; a thread does not wait for itself."""
    # The garbage collector may close an abandoned generator or `Background` in any thread, even in this one.
    if thread is not threading.current_thread() and thread.is_alive():
        thread.join()


class _End:
    """Marks the end of a source, which is exhausted or failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def over(self) -> list[Any]:
        """Raise the error of the source; an empty list if it has none."""
        if self.error is not None:
            raise self.error
        return []


def prefetch(source: Iterable[T], depth: int = 2) -> Generator[T]:
    """Iterate `source` in a thread, at most `depth` items ahead.

    Args:
        source: iterated by the thread only. If it is a generator, it is closed there.
        depth: number of items held, besides the one that the source is making.

    Yields:
        The items of `source`, in order.

    Raises:
        Exception: the error of the source, after the items before it.
        UsageError: it is read in a fork, where the thread does not exist.
    """
    if _in_sequence.get():
        yield from source
        return
    ready: queue.Queue[T | _End] = queue.Queue()
    room = threading.Semaphore(max(1, depth))
    stopped = threading.Event()
    origin = ProcessOrigin()

    def take() -> list[T]:
        if not origin.is_here:
            raise UsageError("a stream of rows does not survive a fork: read it in the process that began it")
        item = ready.get()
        if isinstance(item, _End):
            return item.over()
        # Release first, so that the thread makes the next item while the reader works on this one.
        room.release()
        return [item]

    fill = partial(_fill, source, ready, room, stopped)
    thread = threading.Thread(target=fill, name="tidelake-prefetch", daemon=True)
    try:
        # An interrupt may come while the thread starts: then it is stopped as well.
        if not _started(thread):
            yield from source
            return
        # Not in a variable: that would hold the item until the reader asks for the next one.
        while one := take():
            yield one.pop()
    finally:
        # In a fork there is no thread to stop, and its locks are as they were at the fork.
        if origin.is_here:
            stopped.set()
            room.release()
            _join(thread)


def _fill(
    source: Iterable[T], ready: "queue.Queue[T | _End]", room: threading.Semaphore, stopped: threading.Event
) -> None:
    """The thread of `prefetch`: take an item whenever there is room, until the source ends or is stopped."""
    error: BaseException | None = None
    try:
        items = iter(source)
        try:
            while True:
                room.acquire()
                if stopped.is_set():
                    break
                try:
                    # Not in a variable: that would hold the item until the next one is there.
                    ready.put(next(items))
                except StopIteration:
                    break
        finally:
            _close(items)
    except BaseException as caught:
        # The reader raises it.
        error = caught
    ready.put(_End(error))


class Job(Generic[T]):
    """A job of a `Background`."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._origin = ProcessOrigin()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def result(self) -> T:
        """The result of the job; waits for it.

        Raises:
            UsageError: called in a fork, and the job had not ended before the fork.
            BaseException: the error of the job.
        """
        if not self.done and not self._origin.is_here:
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
            # `result`, and the next `submit`, raise it.
            self._error = error
        finally:
            # Free the memory that the work holds before the next job may start.
            self._work = None
        return self._error


class Background:
    """Runs at most `depth` jobs at once, each in a thread of its own.

    For one caller at a time. If the caller is interrupted, the running jobs go on to their end; `close` waits
    for them.
    """

    def __init__(self, depth: int, stalled: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            depth: number of jobs at once.
            stalled: called when a job has to wait until another one ends.
        """
        self._room = threading.Semaphore(depth)
        self._stalled = stalled
        self._origin = ProcessOrigin()
        self._threads: set[threading.Thread] = set()
        self._error: BaseException | None = None

    @property
    def foreign(self) -> bool:
        """Whether this process is a fork of the one that made it, so that its threads do not exist here."""
        return not self._origin.is_here

    def submit(self, work: Callable[[], T]) -> Job[T]:
        """Start a job; waits while `depth` jobs are running.

        Raises:
            UsageError: called in a fork.
            BaseException: the error of an earlier job; this job was not started then.
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
        run = partial(copy_context().run, self._run, job)
        thread = threading.Thread(target=run, name="tidelake-background", daemon=True)
        # Before it starts, as an interrupt may come meanwhile.
        self._threads.add(thread)
        if not _started(thread):
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
            _join(thread)
        self._threads = set()


def mapped(work: Callable[[S], T], items: Iterable[S], threads: int) -> Generator[T]:
    """As `map(work, items)`, in the same order, with up to `threads` items worked on at once.

    Args:
        work: called for each item in a thread of its own; by the caller if there is only one item.
        items: iterated by the caller.
        threads: at least 1. With 1 the caller does all the work.

    Raises:
        BaseException: the error of the work, possibly before the results of earlier items were yielded.
    """
    left = iter(items)
    some = deque(islice(left, 2))
    few = len(some) < 2
    # Popped as they are worked on: a list would hold the first items until the last one is done.
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
    """Run `work` in a thread while the block runs; leaving the block waits for both.

    Raises:
        BaseException: the error of the block, else that of the work.
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
def prefetch_all(
    sources: Sequence[Iterable[T]], threads: int, depth: int = 1
) -> Generator[list[Iterator[T]]]:
    """Iterate several sources ahead of their reader with a few shared threads.

    Args:
        sources: each is iterated by one thread at a time. Generators are closed at the end.
        threads: the most threads to use.
        depth: the most items of each source that are held.

    Yields:
        One iterator for each source: its items in order, then the error that the source raised, if any. Once
        the block is left, the threads have ended and the sources are closed.
    """
    crew = _Crew([_Lane(iter(source)) for source in sources], depth)
    wanted = 0 if _in_sequence.get() else min(threads, len(sources))
    every = [threading.Thread(target=crew.work, name="tidelake-prefetch", daemon=True) for _ in range(wanted)]
    try:
        # An interrupt may come while they start: then they are stopped as well.
        running = list(takewhile(_started, every))
        yield [crew.read(lane) if running else lane.items for lane in crew.lanes]
    finally:
        crew.stop()
        for thread in every:
            _join(thread)
        for lane in crew.lanes:
            _close(lane.items)


def _close(items: Iterator[T]) -> None:
    """Close a generator; other iterators need no close."""
    close = getattr(items, "close", None)
    if close is not None:
        close()


class _Lane(Generic[T]):
    """One source, and the items that were read ahead."""

    def __init__(self, items: Iterator[T]) -> None:
        self.items = items
        self.ready: deque[T | _End] = deque()
        # Whether a thread is reading it, or it is at its end.
        self.taken = False


class _Crew(Generic[T]):
    """Threads that read the next item of any lane that has few ready. One lock guards all lanes."""

    def __init__(self, lanes: list[_Lane[T]], depth: int) -> None:
        self.lanes, self._depth = lanes, depth
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
                # The reader raises it.
                item = _End(caught)
            with self._changed:
                lane.ready.append(item)
                lane.taken = isinstance(item, _End)
                self._changed.notify_all()
            # Otherwise the item would be held until there is other work.
            del item

    def read(self, lane: _Lane[T]) -> Iterator[T]:
        # Not in a variable: every lane would hold the last item that it yielded.
        while one := self._take(lane):
            yield one.pop()

    def _take(self, lane: _Lane[T]) -> list[T]:
        """The next item of a lane; an empty list at its end."""
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
                    if not lane.taken and len(lane.ready) < self._depth:
                        lane.taken = True
                        return lane
                self._changed.wait()
        return None
