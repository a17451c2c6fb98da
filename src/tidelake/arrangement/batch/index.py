"""The sparse index of a batch: the first and last key of every block.

Owns the search for the blocks that may hold a key; must not know where blocks are kept.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from tidelake.arrangement.batch.keys import Keys, Places
from tidelake.arrangement.batch.layout import NULL_KEY, Layout, Numbers

_OBJECT_BYTES = 33 + 8


class BlockIndex:
    """First and last keys, encoded, of consecutive blocks of sorted rows."""

    def __init__(self, layout: Layout, firsts: list[bytes], lasts: list[bytes]) -> None:
        self.firsts, self.lasts = firsts, lasts
        self._layout = layout

    def __len__(self) -> int:
        return len(self.lasts)

    @property
    def memory_bytes(self) -> int:
        """Estimated bytes in memory."""
        return sum(len(key) + _OBJECT_BYTES for keys in (self.firsts, self.lasts) for key in keys)

    def find(self, key: bytes, *, after: bool) -> int:
        """See `Batch.find_block`."""
        return bisect_right(self.lasts, key) if after else bisect_left(self.lasts, key)

    def blocks_of(self, keys: Keys, places: Places) -> Iterator[tuple[int, int, int]]:
        """Blocks that may hold some keys, ascending, each with its range [first, end) of `places`."""
        if len(places) == 1:
            key = keys.encodings[int(places[0])]
            for block in range(bisect_left(self.lasts, key), bisect_right(self.firsts, key)):
                yield block, 0, 1
            return
        begins, ends = self._spans(keys, places)
        # A block's keys are those whose block range [begin, end) has it; both bounds ascend with the keys.
        touched = np.zeros(len(self) + 1, np.int64)
        there = ends > begins
        np.add.at(touched, begins[there], 1)
        np.add.at(touched, ends[there], -1)
        blocks = np.flatnonzero(np.cumsum(touched[:-1]))
        firsts, lasts = np.searchsorted(ends, blocks, "right"), np.searchsorted(begins, blocks, "right")
        yield from zip(blocks.tolist(), firsts.tolist(), lasts.tolist(), strict=True)

    def _spans(self, keys: Keys, places: Places) -> tuple[Places, Places]:
        """For each key, the range [begin, end) of blocks that may hold it; both ascend."""
        if self._layout.number is not None and not keys.nulls:
            firsts, lasts = self._numbers
            wanted = keys.numbers[places]
            return lasts.searchsorted(wanted), firsts.searchsorted(wanted, "right")
        found = [keys.encodings[i] for i in places.tolist()]
        begins = np.array([bisect_left(self.lasts, key) for key in found], np.int64)
        ends = np.array([bisect_right(self.firsts, key) for key in found], np.int64)
        return begins, ends

    @cached_property
    def _numbers(self) -> tuple[Numbers, Numbers]:
        """First and last keys as numbers, without blocks whose first key is null."""
        known = bisect_left(self.firsts, NULL_KEY)
        return self._decoded(self.firsts[:known]), self._decoded(self.lasts[:known])

    def _decoded(self, keys: list[bytes]) -> Numbers:
        # At most one block ends with null keys. It may hold any number, so its last key is the greatest one.
        found = self._layout.decoded_all([key for key in keys if key != NULL_KEY])
        if len(found) == len(keys):
            return found
        greatest = np.nan if found.dtype.kind == "f" else np.iinfo(found.dtype.name).max
        return np.append(found, np.array([greatest], found.dtype))
