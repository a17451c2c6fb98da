"""Stores that seem to be far away: every call takes a round trip, and round trips are counted.

Owns the layers that wait, and what a round trip is: calls that run at the same time are one. Must not know
what is read or written.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from tidelake.env import Clock
from tidelake.store.layers import BlobLayer, LogLayer, Operation
from tidelake.store.protocols import BlobInfo, BlobStore, VersionLog
from tidelake.store.reader import read_through

T = TypeVar("T")


class RoundTrips:
    """Counts the round trips of the calls that it makes; each call takes at least `delay_s`. Thread-safe.

    A call that begins after n round trips have ended is part of round trip n + 1. So calls side by side count
    once, and `count` is the length of the longest chain of calls that waited for each other. Threads that
    begin a few milliseconds apart are side by side only if `delay_s` is longer.

    Attributes:
        delay_s: what a call takes at least, in seconds; may be changed at any time.
        calls: how often each operation was called.
    """

    def __init__(self, clock: Clock, delay_s: float = 0.02) -> None:
        self.delay_s = delay_s
        self._clock = clock
        self.calls: Counter[str] = Counter()
        self._ended = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Round trips that have ended since the last `reset`."""
        return self._ended

    def reset(self) -> None:
        """Count from zero. REQUIRES: no call is under way."""
        with self._lock:
            self._ended = 0
            self.calls.clear()

    def around(self, operation: Operation, call: Callable[[], T]) -> T:
        """Make a call; an `Around`."""
        with self._lock:
            mine = self._ended + 1
            self.calls[operation] += 1
        if self.delay_s:
            self._clock.sleep(self.delay_s)
        try:
            return call()
        finally:
            with self._lock:
                self._ended = max(self._ended, mine)


class FarBlobStore(BlobLayer):
    """A `BlobStore` whose calls are round trips. Each read of an opened object is one; opening is none."""

    is_far = True

    def __init__(self, inner: BlobStore, trips: RoundTrips) -> None:
        super().__init__(inner, trips.around)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List objects; see `BlobStore.list`. One round trip, however many there are."""
        return iter(self._around("blob.list", lambda: list(self._inner.list(prefix))))

    def open(self, name: str) -> BinaryIO:
        """Open a reader; see `BlobStore.open`."""
        inner = self._inner.open(name)
        return read_through(inner, lambda file, size: self._around("blob.read", lambda: file.read(size)))


class FarVersionLog(LogLayer):
    """A `VersionLog` whose calls are round trips."""

    def __init__(self, inner: VersionLog, trips: RoundTrips) -> None:
        super().__init__(inner, trips.around)
