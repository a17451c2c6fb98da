"""Overlap: an iterator that runs ahead of its reader, in a thread of its own.

The one file that starts threads: owns their start and end; must not know what they carry. Invariant: the
reader sees the same items, then the same exception or end, as without the thread; once the generator
is closed, exhausted or collected, the thread has ended and the source is closed.

It is for one generator within one process: it is started by the first `next`, never kept across a fork.
"""

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class _End:
    """The source is exhausted, or failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch(source: Iterable[T], depth: int = 2) -> Generator[T]:
    """Iterate `source` in a thread, at most `depth` items ahead.

    Args:
        source: iterated by the thread only. If it is a generator, it is closed there.
        depth: items held besides the one that the source is making.

    Yields:
        The items of `source`, in order.

    Raises:
        Exception: whatever the source raised, after the items before it.
    """
    ready: queue.Queue[T | _End] = queue.Queue()
    room = threading.Semaphore(max(1, depth))
    stopped = threading.Event()

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
                        item = next(items)
                    except StopIteration:
                        break
                    ready.put(item)
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    close()
        except BaseException as caught:
            # Not lost: the reader raises it.
            error = caught
        ready.put(_End(error))

    thread = threading.Thread(target=run, name="tidelake-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            # Room first: the thread makes the next item while the reader works on this one.
            room.release()
            yield item
    finally:
        stopped.set()
        room.release()
        # The collector may close an abandoned generator in any thread, this very one included.
        if thread is not threading.current_thread():
            thread.join()


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
    running = [
        threading.Thread(target=crew.work, name="tidelake-prefetch", daemon=True)
        for _ in range(min(threads, len(sources)))
    ]
    for thread in running:
        thread.start()
    try:
        yield [crew.read(lane) for lane in crew.lanes]
    finally:
        crew.stop()
        for thread in running:
            thread.join()
        for lane in crew.lanes:
            close = getattr(lane.items, "close", None)
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

    def read(self, lane: _Lane[T]) -> Iterator[T]:
        while True:
            with self._changed:
                while not lane.ready:
                    self._changed.wait()
                item = lane.ready.popleft()
                self._changed.notify_all()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

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
