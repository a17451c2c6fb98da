"""A buffer of updates that is emptied in loads of bounded size.

Owns what is held in memory before rows are sorted; must not know parts or threads. Invariant: every row that
goes in comes out once; with `whole_groups` a group of equal rows may come out as a few rows with the same
sum. At most `limit_bytes` and one piece are held, all of it copied from the caller's memory.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidelake.data.kernel.consolidate import copied, pieces
from tidelake.data.kernel.order import group_starts, row_tuple
from tidelake.data.kernel.sums import diffs, total, with_diffs

# Many small batches cost more than their rows, so they are joined once there are this many.
_SMALL_BYTES, _SMALL_MAX = 64 * 1024, 64
_INT64_MAX = 2**63 - 1
Load = list[pa.RecordBatch]


class RowBuffer:
    """Takes canonical updates in any order and returns loads of about `limit_bytes`.

    With `whole_groups`, equal rows that follow each other are never divided between two loads; so the loads
    of sorted input, each consolidated, together form one run.
    """

    def __init__(self, limit_bytes: int, *, whole_groups: bool) -> None:
        self._limit_bytes = limit_bytes
        self._whole_groups = whole_groups
        self._held: Load = []
        self._small: Load = []
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes held."""
        return self._bytes

    def add(self, table: pa.Table) -> Iterator[Load]:
        """Take a table; yields loads as the buffer fills, none of them empty."""
        for batch in table.to_batches():
            for piece in pieces(batch, max(1, batch.num_rows), max(1, self._limit_bytes // 4)):
                if self._bytes and self._bytes + piece.nbytes > self._limit_bytes:
                    load = self._load()
                    if load:
                        yield load
                self._hold(piece)

    def take(self) -> Load:
        """All rows that are left."""
        load = [*self._held, *self._small]
        self._held, self._small, self._bytes = [], [], 0
        return load

    def _hold(self, piece: pa.RecordBatch) -> None:
        piece = copied(piece)
        self._bytes += piece.nbytes
        if piece.nbytes >= _SMALL_BYTES:
            self._join_small()
            self._held.append(piece)
            return
        self._small.append(piece)
        if len(self._small) >= _SMALL_MAX:
            self._join_small()

    def _join_small(self) -> None:
        if self._small:
            self._held.append(pa.concat_batches(self._small))
            self._small = []

    def _load(self) -> Load:
        """The next load: all rows, without the last group of equal rows if that may continue."""
        load = self.take()
        if not self._whole_groups:
            return load
        groups: Load = []
        width = load[-1].num_columns - 1
        last = load[-1].slice(load[-1].num_rows - 1)
        end = row_tuple(last, 0, width)
        while load and row_tuple(load[-1], load[-1].num_rows - 1, width) == end:
            batch = load.pop()
            start = int(group_starts(batch, width).nonzero()[0][-1])
            groups.append(batch.slice(start))
            if start:
                load.append(batch.slice(0, start))
                break
        kept = _summed(last, sum(total(diffs(group)) for group in groups))
        if kept.num_rows:
            self._hold(kept)
        return load


def _summed(row: pa.RecordBatch, diff: int) -> pa.RecordBatch:
    """The row with this diff, in as many rows as are needed to hold it; none for 0."""
    whole, rest = divmod(abs(diff), _INT64_MAX)
    sign = 1 if diff > 0 else -1
    values = [sign * _INT64_MAX] * whole + ([sign * rest] if rest else [])
    return with_diffs(row.take(pa.array([0] * len(values), pa.int64())), np.array(values, np.int64))
