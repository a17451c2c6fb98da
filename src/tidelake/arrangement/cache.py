"""Blocks of files that were read lately, within a bound; and counts of what reads found.

Owns the bound on decoded blocks in memory; must not know files. Invariant: the blocks that are held take
at most `capacity_bytes`; a block larger than that is not held.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

Place = tuple[object, int]


@dataclass
class ReadCounts:
    """What look-ups found, for reports. Not locked: a count in a thousand may be lost between threads.

    Attributes:
        cache_hits: blocks that were in the cache.
        cache_misses: blocks that were read.
        range_misses: look-ups of a batch that its range of keys answered.
        filter_misses: look-ups of a batch that its filter answered.
        filter_hits: look-ups of a batch that its filter let pass.
        filter_errors: those of them that found no row.
    """

    cache_hits: int = 0
    cache_misses: int = 0
    range_misses: int = 0
    filter_misses: int = 0
    filter_hits: int = 0
    filter_errors: int = 0


class BlockCache:
    """The blocks used last, of all files of an arrangement. Safe for several threads.

    Attributes:
        capacity_bytes: the bound.
        counts: of the arrangement's reads.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.counts = ReadCounts()
        self._held: OrderedDict[Place, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What the held blocks take."""
        return self._bytes

    def get(self, owner: object, block: int, read: Callable[[int], pa.RecordBatch]) -> pa.RecordBatch:
        """A block, read if it is not held. The read is outside of the lock; two threads may both do it.

        Args:
            owner: stands for the file.
            block: its number in the file.
            read: called with it if need be.
        """
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
        """Let go of all blocks of a file, of which there are `blocks`."""
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
