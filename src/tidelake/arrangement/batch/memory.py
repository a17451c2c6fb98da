"""Batches in memory.

Owns one record batch, its index and filter; must not know files. Numeric keys are searched for in their
column itself, without an index, and in small batches without a filter. Blocks are slices. A column of more
than 2 GiB does not fit into one record batch: such batches go to files.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidelake.arrangement.batch.batch import FilterPlan, Ints, Mask
from tidelake.arrangement.batch.cache import ReadCounts
from tidelake.arrangement.batch.filters import Filter, filter_builder
from tidelake.arrangement.batch.index import BlockIndex
from tidelake.arrangement.batch.keys import Keys, Places
from tidelake.arrangement.batch.layout import Layout, detached
from tidelake.arrangement.batch.search import rows_of
from tidelake.data.kernel.consolidate import pieces
from tidelake.data.kernel.order import row_tuple
from tidelake.data.kernel.sums import diffs
from tidelake.errors import InternalError

_BLOCK_ROWS = 4096
# Binary search in a column of numbers is as fast as a filter while the column is in the processor's cache.
# Larger batches come from merges, which build the filter in the background.
_FILTER_ROWS_MIN = 65_536
_PIECE_ROWS, _PIECE_BYTES = 65_536, 16 * 1024 * 1024
_VIEWS_MAX = 64


class MemoryBatch:
    """See `IndexBatch`. There are no resources to release: `acquire` and `release` do nothing."""

    on_disk = False

    def __init__(
        self, layout: Layout, id_: str, rows: pa.RecordBatch, filter_: Filter | None, counts: ReadCounts
    ) -> None:
        self.id = id_
        self.rows: int = rows.num_rows
        self.size_bytes: int = rows.nbytes
        self._layout, self._rows, self._filter, self._counts = layout, rows, filter_, counts
        self._numbers = layout.numbers(rows) if layout.number is not None else None
        self.key_lower, self.key_upper = layout.encoded_at(rows, 0), layout.encoded_at(rows, self.rows - 1)

    @cached_property
    def negative_rows(self) -> int:
        """See `IndexBatch`."""
        return int(np.count_nonzero(diffs(self._rows) < 0))

    @cached_property
    def memory_bytes(self) -> int:
        """See `IndexBatch`."""
        return self.size_bytes + (self._filter.words.nbytes if self._filter is not None else 0)

    @property
    def blocks(self) -> int:
        """See `IndexBatch`."""
        return -(-self.rows // _BLOCK_ROWS)

    @property
    def block_starts(self) -> Ints:
        """See `IndexBatch`."""
        return np.append(np.arange(0, self.rows, _BLOCK_ROWS), self.rows)

    def block(self, i: int) -> pa.RecordBatch:
        """See `IndexBatch`."""
        return self._rows.slice(i * _BLOCK_ROWS, _BLOCK_ROWS)

    def first_key(self, i: int) -> bytes:
        """See `IndexBatch`."""
        return self._index.firsts[i]

    def last_key(self, i: int) -> bytes:
        """See `IndexBatch`."""
        return self._index.lasts[i]

    def find_block(self, key: bytes, *, after: bool = False) -> int:
        """See `IndexBatch`."""
        return self._index.find(key, after=after)

    def scan(self, first_block: int = 0) -> Iterator[pa.RecordBatch]:
        """See `IndexBatch`."""
        yield self._rows.slice(first_block * _BLOCK_ROWS)

    def may_hold(self, keys: Keys) -> Mask:
        """See `IndexBatch`."""
        mask = np.zeros(len(keys), np.bool_)
        first, end = keys.between(self.key_lower, self.key_upper)
        mask[first:end] = True if self._filter is None else self._filter.may_hold(keys, first, end)
        return mask

    def lookup(self, keys: Keys) -> pa.RecordBatch:
        """See `IndexBatch`."""
        numbers = self._numbers
        if numbers is not None and (one := keys.one) is not None:
            # The most frequent look-up by far, repeated for many batches: keep the number of calls small.
            if self._filter is not None and not self._filter.may_hold_one(keys):
                self._counts.filter_misses += 1
                return self._layout.empty
            start = int(numbers.searchsorted(one))
            if start == len(numbers) or numbers[start] != one:
                return self._layout.empty
            return self._rows.slice(start, int(numbers.searchsorted(one, "right")) - start)
        first, end = keys.between(self.key_lower, self.key_upper)
        if first == end:
            self._counts.range_misses += 1
            return self._layout.empty
        if self._filter is None:
            return rows_of(self._rows, keys, first, end)
        places = possible(self._filter, keys, first, end, self._counts)
        if not len(places):
            return self._layout.empty
        taken = keys.take(places)
        if numbers is not None:
            return joined([rows_of(self._rows, taken, 0, len(taken))], self._layout, self._counts)
        blocks = self._index.blocks_of(keys, places)
        found = (rows_of(self.block(b), taken, first, end) for b, first, end in blocks)
        return joined(found, self._layout, self._counts)

    def acquire(self) -> None:
        """See `IndexBatch`."""

    def release(self) -> None:
        """See `IndexBatch`."""

    @cached_property
    def _index(self) -> BlockIndex:
        starts = np.arange(0, self.rows, _BLOCK_ROWS)
        ends = np.minimum(starts + _BLOCK_ROWS, self.rows) - 1
        key_columns = self._rows.select(range(self._layout.key_width))
        firsts, lasts = (self._layout.encode(key_columns.take(pa.array(at))) for at in (starts, ends))
        return BlockIndex(self._layout, firsts.to_pylist(), lasts.to_pylist())


class MemoryBuilder:
    """See `Builder`. Copies the rows at the end if they are views of larger buffers."""

    def __init__(
        self, layout: Layout, id_: str, plan: FilterPlan | None = None, counts: ReadCounts | None = None
    ) -> None:
        """Begin a batch."""
        self._layout, self._id, self._plan = layout, id_, plan
        self._counts = counts if counts is not None else ReadCounts()
        self._added: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """See `Builder`."""
        if not rows.num_rows:
            return
        if self._added:
            check_follows(self._added[-1], rows, self._layout)
        self._added.append(rows)

    def taken(self) -> list[pa.RecordBatch]:
        """Remove and return the rows that were added so far."""
        added, self._added = self._added, []
        return added

    def finish(self) -> MemoryBatch | None:
        """See `Builder`."""
        if not self._added:
            return None
        added = self.taken()
        rows = pa.concat_batches(added) if len(added) > 1 else detached(added[0])
        return MemoryBatch(self._layout, self._id, rows, self._filter(rows), self._counts)

    def abandon(self) -> None:
        """See `Builder`."""
        self._added = []

    def _filter(self, rows: pa.RecordBatch) -> Filter | None:
        if self._layout.number is not None and rows.num_rows < _FILTER_ROWS_MIN:
            return None
        plan = self._plan if self._plan is not None else FilterPlan(rows.num_rows)
        builder = filter_builder(self._layout, FilterPlan(rows.num_rows, plan.key_lower, plan.key_upper))
        # In pieces: the encodings of all keys may be larger than the rows, and than an Arrow array can be.
        for piece in pieces(rows, _PIECE_ROWS, _PIECE_BYTES):
            builder.add(piece)
        return builder.finish()


def possible(filter_: Filter, keys: Keys, first: int, end: int, counts: ReadCounts) -> Places:
    """The keys of [first, end), not empty, that a filter does not exclude; counts the look-up."""
    if len(keys) == 1:
        places = np.arange(1 if filter_.may_hold_one(keys) else 0)
    else:
        places = np.flatnonzero(filter_.may_hold(keys, first, end)) + first
    counts.filter_hits += len(places) > 0
    counts.filter_misses += len(places) == 0
    return places


def joined(pieces: Iterable[pa.RecordBatch], layout: Layout, counts: ReadCounts) -> pa.RecordBatch:
    """The rows found in blocks, as one batch; counts a filter error if there are none."""
    found: list[pa.RecordBatch] = []
    loose = 0
    for rows in pieces:
        if not rows.num_rows:
            continue
        found.append(rows)
        loose += 1
        if loose == _VIEWS_MAX:
            # Each piece is a view of its block: copy some at a time, or all blocks would stay in memory.
            found[-loose:] = [pa.concat_batches(found[-loose:])]
            loose = 0
    if not found:
        counts.filter_errors += 1
        return layout.empty
    return found[0] if len(found) == 1 else pa.concat_batches(found)


def check_follows(before: pa.RecordBatch, rows: pa.RecordBatch, layout: Layout) -> None:
    """Check that rows are greater than the rows before, by their first and last row."""
    last = row_tuple(before, before.num_rows - 1, layout.width)
    first = row_tuple(rows, 0, layout.width)
    if not last < first:
        raise InternalError(f"rows of a batch are not sorted: row {first} comes after row {last}")
