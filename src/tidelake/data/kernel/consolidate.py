"""Consolidation of a whole table: equal updates summed, zeros dropped, in the total order.

Owns the way from unsorted rows in memory to one sorted run; must not know queries, parts or files.
Invariant: the result has the same sum for every (key, value, time) as the input, and every sum is
exact.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import from_numpy
from tidelake.data.kernel.merge import merge
from tidelake.data.kernel.order import Comparable, Mask, ascends, row_tuple
from tidelake.data.kernel.sort import sorted_groups
from tidelake.data.kernel.sums import diffs, sum_sorted
from tidelake.data.kernel.types import update_schema
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

# So many rows are sorted at once: a row then takes some 32 bytes, most of which stay in the cache.
SORTED_ROWS = 1024 * 1024
# Wide rows fill memory before they fill a slice, which is copied while it is sorted if it has several chunks.
_SORTED_BYTES = 256 * 1024 * 1024
# A slice of more chunks than this is copied until all of its rows are handed on.
_CHUNKS_MAX = 64
# What is handed on at once: so many rows, or fewer of so many bytes.
_BATCH_ROWS, _BATCH_BYTES = 65_536, 16 * 1024 * 1024
# Several sorted slices are merged in chunks of so many rows, and each hands on at least so many.
_MERGED_ROWS, _TAKEN_ROWS = 65_536, 4_096
# Chunks of a table are joined up to this size.
_JOINED_BYTES = 16 * 1024 * 1024


def consolidate(
    table: pa.Table, schema: Schema, domain: TimeDomain, sorted_rows: int = SORTED_ROWS
) -> pa.Table:
    """As `consolidated`, but a table that shares no memory with the one that is given."""
    batches = _batches(table)
    done = _is_consolidated(batches)
    found = map(copied, batches) if done else _in_order(batches, schema, domain, sorted_rows)
    return pa.Table.from_batches(found, update_schema(schema, domain))


def consolidated(
    table: pa.Table, schema: Schema, domain: TimeDomain, sorted_rows: int = SORTED_ROWS
) -> Iterator[pa.RecordBatch]:
    """Sort and consolidate updates, batch by batch.

    Beside the table this holds a number for each row, and no copy of all rows, unless they come in tiny
    chunks. Many rows that are consolidated already are yielded as views of the table.

    Yields:
        The same updates in the total order, each (key, value, time) once, none with diff 0; no empty batch.
    """
    batches = _batches(table)
    if not _is_consolidated(batches):
        return _in_order(batches, schema, domain, sorted_rows)
    if table.num_rows <= _BATCH_ROWS:
        # A view of few rows may keep far larger buffers.
        return map(copied, batches)
    return (piece for batch in batches for piece in pieces(batch, _BATCH_ROWS, _BATCH_BYTES))


def pieces(batch: pa.RecordBatch, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of at most `rows` rows and `size` bytes; a larger row is a piece of its own."""
    for start in range(0, batch.num_rows, rows):
        waiting = [batch.slice(start, rows)]
        while waiting:
            piece = waiting.pop()
            if piece.num_rows <= 1 or _takes_at_most(piece, size):
                yield piece
            else:
                half = piece.num_rows // 2
                waiting += [piece.slice(half), piece.slice(0, half)]


def _takes_at_most(batch: pa.RecordBatch, size: int) -> bool:
    """Whether the rows of a batch take so many bytes at most; what its buffers take is known at once."""
    return bool(batch.get_total_buffer_size() <= size or batch.nbytes <= size)


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the rows, which may be views of larger buffers or of a caller's arrays."""
    return pa.concat_batches([batch, batch.slice(0, 0)])


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    """The chunks of a table that are not empty; one if they are small."""
    if table.get_total_buffer_size() <= _JOINED_BYTES:
        table = table.combine_chunks()
    return list(filter(len, table.to_batches()))


def _is_consolidated(batches: list[pa.RecordBatch]) -> bool:
    """Whether the rows are strictly in order and have no diff of 0. Checking costs a tenth of sorting."""
    width = batches[0].num_columns - 1 if batches else 0
    last: Comparable | None = None
    for batch in batches:
        if last is not None and last >= row_tuple(batch, 0, width):
            return False
        if not (ascends(batch, width) and np.logical_and.reduce(diffs(batch))):
            return False
        last = row_tuple(batch, batch.num_rows - 1, width)
    return True


def _in_order(
    batches: list[pa.RecordBatch], schema: Schema, domain: TimeDomain, sorted_rows: int
) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1 and batches[0].num_rows <= sorted_rows and _takes_at_most(batches[0], _SORTED_BYTES):
        return _summed(batches[0])
    slices = list(_slices(batches, sorted_rows))
    everything = Updates(Frontier.of(domain.minimum), Frontier())
    merged_rows = min(sorted_rows, _MERGED_ROWS)
    rows = max(_TAKEN_ROWS, merged_rows // len(slices))
    # A sum within one slice may not fit into an int64 while the total does, so only the merge sums.
    runs = [_sorted(slice_, rows) for slice_ in slices]
    return merge(runs, schema, domain, everything, merged_rows)


def _slices(batches: list[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """The rows in slices of `rows` rows, or fewer that fill `_SORTED_BYTES`; only many batches are joined."""
    held: list[pa.RecordBatch] = []
    count = size = 0

    def taken() -> list[pa.RecordBatch]:
        return held if len(held) <= _CHUNKS_MAX else [_joined(held)]

    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows - count)
            start += part.num_rows
            for piece in pieces(part, rows, _SORTED_BYTES):
                if held and size + piece.nbytes > _SORTED_BYTES:
                    yield taken()
                    held, count, size = [], 0, 0
                held.append(piece)
                count += piece.num_rows
                size += piece.nbytes
            if count >= rows:
                yield taken()
                held, count, size = [], 0, 0
    if held:
        yield taken()


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _summed(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    order, starts = sorted_groups(batch, batch.num_columns - 1)
    for at in _cuts(starts, _batch_rows(batch)):
        found = sum_sorted(_taken(batch, order[at]), starts[at])
        if found.num_rows:
            yield found


def _sorted(slice_: list[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The rows of a slice in order, in batches of at most so many."""
    joined = _joined(slice_)
    # Held until the merge ends, so in as few bytes as will do.
    order = sorted_groups(joined, joined.num_columns - 1)[0].astype(np.uint32)
    rows = min(most, _batch_rows(joined))
    # The slice is not held twice.
    del joined
    first_rows = np.cumsum([0, *(batch.num_rows for batch in slice_[:-1])])
    for start in range(0, len(order), rows):
        yield _gathered(slice_, first_rows, order[start : start + rows])


def _gathered(
    slice_: list[pa.RecordBatch], first_rows: npt.NDArray[np.int64], rows: npt.NDArray[np.uint32]
) -> pa.RecordBatch:
    """The rows of these numbers, of a slice whose batches begin at `first_rows`."""
    if len(slice_) == 1:
        return _taken(slice_[0], rows)
    owners = np.searchsorted(first_rows, rows, side="right") - 1
    # Batch by batch; few bits are sorted by counting.
    order = np.argsort(owners.astype(np.uint8), kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(slice_)))
    by_batch = np.split(rows[order], ends[:-1])
    found = [_taken(b, own - first) for b, own, first in zip(slice_, by_batch, first_rows, strict=True)]
    places = np.empty(len(rows), np.uint32)
    places[order] = np.arange(len(rows), dtype=np.uint32)
    return _taken(pa.concat_batches(found), places)


def _taken(batch: pa.RecordBatch, rows: npt.NDArray[np.integer[Any]]) -> pa.RecordBatch:
    # The numbers take fewer bytes, and need no check.
    return pc.take(batch, from_numpy(rows.astype(np.uint32, copy=False)), boundscheck=False)


def _cuts(starts: Mask, rows: int) -> Iterator[slice]:
    """Cuts sorted rows into slices of whole groups, of `rows` rows or the end of the group after them."""
    start, count = 0, len(starts)
    while start < count:
        stop = min(start + rows, count)
        if stop < count:
            further = int(starts[stop:].argmax())
            stop = stop + further if starts[stop + further] else count
        yield slice(start, stop)
        start = stop


def _batch_rows(batch: pa.RecordBatch) -> int:
    """Rows of a batch that is handed on, by their mean size."""
    if _takes_at_most(batch, _BATCH_BYTES):
        return _BATCH_ROWS
    of_size: int = _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)
    return max(1, min(_BATCH_ROWS, of_size))
