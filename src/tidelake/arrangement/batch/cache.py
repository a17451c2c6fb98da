"""An LRU cache of decoded blocks, and counters of look-ups.

Owns the bound on decoded blocks in memory; must not know files. Invariant: the cached blocks take at most
`capacity_bytes`; a block larger than that is not cached.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

Place = tuple[object, int]


@dataclass
class ReadCounts:
    """Counters of look-ups, for reports. Not locked, so concurrent threads may lose a few counts.

    Attributes:
        cache_hits: blocks that were in the cache.
        cache_misses: blocks that were read.
        range_misses: look-ups of a batch whose key range excluded all keys.
        filter_misses: look-ups of a batch whose filter excluded all keys.
        filter_hits: look-ups of a batch whose filter let a key pass.
        filter_errors: filter hits that found no row.
    """

    cache_hits: int = 0
    cache_misses: int = 0
    range_misses: int = 0
    filter_misses: int = 0
    filter_hits: int = 0
    filter_errors: int = 0


class BlockCache:
    """The most recently used blocks of all files of an arrangement. Thread-safe.

    Attributes:
        capacity_bytes: upper bound on the bytes of cached blocks.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.counts = ReadCounts()
        self._held: OrderedDict[Place, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Bytes of the cached blocks."""
        return self._bytes

    def get(self, owner: object, block: int, read: Callable[[int], pa.RecordBatch]) -> pa.RecordBatch:
        """A block, read if it is not cached. Two threads may both read it."""
        place = (owner, block)
        with self._lock:
            found = self._held.get(place)
            if found is not None:
                self._held.move_to_end(place)
                self.counts.cache_hits += 1
                return found[0]
            self.counts.cache_misses += 1
        rows = read(block)
        self._put(place, rows, rows.get_total_buffer_size())
        return rows

    def drop(self, owner: object, blocks: int) -> None:
        """Remove all blocks of a file that has `blocks` blocks."""
        with self._lock:
            for block in range(blocks) if blocks < len(self._held) else self._blocks_of(owner):
                gone = self._held.pop((owner, block), None)
                self._bytes -= gone[1] if gone else 0

    def _blocks_of(self, owner: object) -> list[int]:
        return [block for held, block in self._held if held is owner]

    def _put(self, place: Place, rows: pa.RecordBatch, size: int) -> None:
        if size > self.capacity_bytes:
            return
        with self._lock:
            if place in self._held:
                return
            self._held[place] = (rows, size)
            self._bytes += size
            while self._bytes > self.capacity_bytes:
                _, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed
