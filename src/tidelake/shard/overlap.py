"""Overlap: an iterator that runs ahead of its reader, in a thread of its own.

The one file that starts threads: owns their start and end; must not know what they carry. Invariant: the
reader sees the same items, then the same exception or end, as without the thread; once the generator
is closed, exhausted or collected, the thread has ended and the source is closed.

It is for one generator within one process: it is started by the first `next`, never kept across a fork.
"""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

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
