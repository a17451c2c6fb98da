"""Stores that seem to be far away: every call takes a round trip, and round trips and requests are counted.

Owns the layers that wait, and what a round trip is: calls that run at the same time are one. Must not know
what is read or written.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO, TypeVar

from tidelake.config import MIB
from tidelake.env import Clock
from tidelake.store.layers import BlobLayer, LogLayer, around
from tidelake.store.objects.bucket import Bucket, ObjectInfo
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
        calls: how often each operation was called; of a bucket, its requests by kind.
        bytes_in: bytes that were read from a bucket.
        bytes_out: bytes that were written to it.
    """

    def __init__(self, clock: Clock, delay_s: float = 0.02) -> None:
        self.delay_s = delay_s
        self._clock = clock
        self.calls: Counter[str] = Counter()
        self.bytes_in = self.bytes_out = 0
        self._ended = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Round trips that have ended since the last `reset`."""
        return self._ended

    def reset(self) -> None:
        """Count from zero. REQUIRES: no call is under way."""
        with self._lock:
            self._ended = self.bytes_in = self.bytes_out = 0
            self.calls.clear()

    def moved(self, bytes_in: int, bytes_out: int) -> None:
        """Count bytes."""
        with self._lock:
            self.bytes_in += bytes_in
            self.bytes_out += bytes_out

    def around(self, operation: str, call: Callable[[], T], /, requests: int = 1) -> T:
        """Make a call, which takes some requests at the same time."""
        with self._lock:
            mine = self._ended + 1
            self.calls[operation] += requests
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
        super().__init__(inner, around(trips.around))
        self._trips = trips

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List objects; see `BlobStore.list`. One round trip, however many there are."""
        return iter(self._trips.around("blob.list", lambda: list(self._inner.list(prefix))))

    def open(self, name: str) -> BinaryIO:
        """Open a reader; see `BlobStore.open`."""
        inner = self._inner.open(name)
        return read_through(
            inner, lambda file, size: self._trips.around("blob.read", lambda: file.read(size))
        )


class FarVersionLog(LogLayer):
    """A `VersionLog` whose calls are round trips."""

    def __init__(self, inner: VersionLog, trips: RoundTrips) -> None:
        super().__init__(inner, around(trips.around))


class FarBucket:
    """A `Bucket` whose calls are round trips; its requests are counted as `get`, `put`, `list` and `delete`.

    A request for the time of an object counts as a `get`, as stores charge for it. The requests that a call
    makes at the same time are one round trip.
    """

    def __init__(self, inner: Bucket, trips: RoundTrips) -> None:
        self._inner, self._trips = inner, trips

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of an object; see `Bucket.get`."""
        found = self._trips.around("get", lambda: self._inner.get(key, start, length))
        self._trips.moved(len(found), 0)
        return found

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects; see `Bucket.get_all`."""
        if not keys:
            return []
        found = self._trips.around("get", lambda: self._inner.get_all(keys), len(keys))
        self._trips.moved(sum(len(data) for data in found if data is not None), 0)
        return found

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; see `Bucket.get_ranges`. Those with a gap below a MiB share a request."""
        ends = sorted((start, start + length) for start, length in ranges)
        gaps = sum(1 for before, after in pairwise(ends) if after[0] > before[1] + MIB)
        found = self._trips.around("get", lambda: self._inner.get_ranges(key, ranges), 1 + gaps)
        self._trips.moved(sum(map(len, found)), 0)
        return found

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object if there is none; see `Bucket.put_new`."""
        self._trips.moved(0, len(data))
        return self._trips.around("put", lambda: self._inner.put_new(key, data))

    def put(self, key: str, data: bytes) -> None:
        """Store an object; see `Bucket.put`. One request, however large it is."""
        self._trips.moved(0, len(data))
        self._trips.around("put", lambda: self._inner.put(key, data))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; see `Bucket.delete`."""
        self._trips.around("delete", lambda: self._inner.delete(keys))

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of an object; see `Bucket.head`."""
        return self._trips.around("get", lambda: self._inner.head(key))

    def list(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """List objects in pages, each a round trip; see `Bucket.list`."""
        pages = self._inner.list(prefix)
        while page := self._trips.around("list", lambda: next(pages, None)):
            yield page

    def folders(self, prefix: str) -> Iterator[str]:
        """The segments after a prefix; see `Bucket.folders`."""
        return iter(self._trips.around("list", lambda: list(self._inner.folders(prefix))))

    def close(self) -> None:
        """Close the inner bucket."""
        self._inner.close()
