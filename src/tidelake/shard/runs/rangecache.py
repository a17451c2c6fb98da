"""The range cache: bytes of parts that lie far away, kept by this process in memory and on local disk.

Footers, small parts and the row groups of look-ups are kept, so that the next look-up of them needs no
round trip. Memory holds the last ones; what leaves it goes to a file without a name, which is written in
rounds: new bytes take the place of the oldest. Owns what is kept; must not know what the bytes mean.

INVARIANT: `get` returns the bytes that were put, or nothing: every item has a checksum, which is compared
each time.
"""

import os
import tempfile
import threading
import zlib
from collections import OrderedDict
from typing import IO, TypeAlias

from tidelake.shard.runs.cache import Identity
from tidelake.store.unnamed import spare_bytes

_Key: TypeAlias = tuple[Identity, int, int]


class RangeCache:
    """Ranges of parts, by the identity of the part, start and end. Thread-safe; belongs to one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Least recently used first, each with its checksum.
        self._held: OrderedDict[_Key, tuple[bytes, int]] = OrderedDict()
        self._held_bytes = 0
        self._ring: _Ring | None = None
        self.hits = self.misses = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes that are held in memory."""
        return self._held_bytes

    @property
    def disk_bytes(self) -> int:
        """Size of the file."""
        return 0 if self._ring is None else self._ring.size_bytes

    def get(self, id_: Identity, start: int, end: int) -> bytes | None:
        """The bytes `[start, end)` of a part, if exactly this range is kept and intact."""
        key = (id_, start, end)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            elif self._ring is not None:
                found = self._ring.get(key)
            self.hits += found is not None
            self.misses += found is None
        if found is None:
            return None
        if zlib.crc32(found[0]) == found[1]:
            return found[0]
        self.forget(id_)
        return None

    def put(self, id_: Identity, start: int, data: bytes, memory_bytes: int, disk_bytes: int) -> None:
        """Keep the bytes from `start` on, if they are few; evict what was used longest ago."""
        key = (id_, start, start + len(data))
        with self._lock:
            if key in self._held or 4 * len(data) > memory_bytes:
                return
            self._held[key] = data, zlib.crc32(data)
            self._held_bytes += len(data)
            while self._held_bytes > memory_bytes:
                oldest, kept = self._held.popitem(last=False)
                self._held_bytes -= len(kept[0])
                if self._ring is None:
                    self._ring = _Ring(disk_bytes)
                self._ring.put(oldest, *kept)

    def forget(self, id_: Identity) -> None:
        """Drop everything of a part, as it may be damaged."""
        with self._lock:
            for key in [key for key in self._held if key[0] == id_]:
                self._held_bytes -= len(self._held.pop(key)[0])
            if self._ring is not None:
                self._ring.forget(id_)


class _Ring:
    """Items in a file without a name. Not thread-safe; an error of the file only loses items."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = min(bytes_max, spare_bytes())
        self._file: IO[bytes] | None = None
        # Offset, size and checksum, oldest first: those that the next item will be written over.
        self._items: OrderedDict[_Key, tuple[int, int, int]] = OrderedDict()
        self._at = self.size_bytes = 0

    def get(self, key: _Key) -> tuple[bytes, int] | None:
        item = self._items.get(key)
        if item is None or self._file is None:
            return None
        try:
            return os.pread(self._file.fileno(), item[1], item[0]), item[2]
        except OSError:
            return None

    def put(self, key: _Key, data: bytes, crc: int) -> None:
        if key in self._items or len(data) > self._bytes_max:
            return
        if self._at + len(data) > self._bytes_max:
            self._drop(self._at, self._bytes_max)
            self._at = 0
        self._drop(self._at, self._at + len(data))
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="tidelake-")  # noqa: SIM115 - it lives as the process
            written = os.pwrite(self._file.fileno(), data, self._at)
        except OSError:
            return
        if written == len(data):
            self._items[key] = self._at, len(data), crc
            self._at += len(data)
            self.size_bytes = max(self.size_bytes, self._at)

    def _drop(self, start: int, end: int) -> None:
        """Drop the oldest items, as far as they lie in a stretch of the file."""
        while self._items:
            key, (at, size, _) = next(iter(self._items.items()))
            if at >= end or at + size <= start:
                return
            del self._items[key]

    def forget(self, id_: Identity) -> None:
        for key in [key for key in self._items if key[0] == id_]:
            del self._items[key]
