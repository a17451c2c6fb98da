"""A bucket in memory, for tests of the stores that lie on object stores."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import takewhile

from tidelake.env import Clock
from tidelake.errors import BlobNotFound
from tidelake.store.objects.bucket import ObjectInfo

PAGE = 1_000


class MemoryBucket:
    """A `Bucket` in a dictionary. `clock` is the clock of the store."""

    def __init__(self, clock: Clock, page: int = PAGE) -> None:
        self._clock = clock
        self._page = page
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] = []  # ascending, so that a list costs what it answers

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of an object; see `Bucket.get`."""
        found = self._objects.get(key)
        if found is None:
            raise BlobNotFound(key)
        return found[0][start:] if length is None else found[0][start : start + length]

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects; see `Bucket.get_all`."""
        with self._lock:
            return [found[0] if (found := self._objects.get(key)) else None for key in keys]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; see `Bucket.get_ranges`."""
        return [self.get(key, start, length) for start, length in ranges]

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object if there is none; see `Bucket.put_new`."""
        with self._lock:
            if key in self._objects:
                return False
            self._put(key, data)
            return True

    def put(self, key: str, data: bytes) -> None:
        """Store an object; see `Bucket.put`."""
        with self._lock:
            self._put(key, data)

    def _put(self, key: str, data: bytes) -> None:
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = (bytes(data), self._clock.now_ms())

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; see `Bucket.delete`."""
        with self._lock:
            for key in keys:
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of an object; see `Bucket.head`."""
        found = self._objects.get(key)
        return None if found is None else ObjectInfo(key, len(found[0]), found[1])

    def list(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """List objects in pages; see `Bucket.list`."""
        last = ""
        while True:
            with self._lock:
                start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, last))
                found = takewhile(lambda key: key.startswith(prefix), self._keys[start : start + self._page])
                page = [ObjectInfo(key, len(self._objects[key][0]), self._objects[key][1]) for key in found]
            if not page:
                return
            yield page
            last = page[-1].key

    def folders(self, prefix: str) -> Iterator[str]:
        """The segments after a prefix; see `Bucket.folders`."""
        with self._lock:
            start = bisect_left(self._keys, prefix)
            found = takewhile(lambda key: key.startswith(prefix), self._keys[start:])
            rest = {key.removeprefix(prefix) for key in found}
        return iter(sorted({text.partition("/")[0] for text in rest if "/" in text}))

    def close(self) -> None:
        """Do nothing: there are no handles."""
