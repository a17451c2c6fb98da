"""Consolidation of a whole table: equal updates summed, zeros dropped, in the total order.

Owns the way from unsorted rows in memory to one sorted run; must not know queries, parts or files.
Invariant: the result has the same sum for every (key, value, time) as the input, and every sum is
exact.
"""

from collections.abc import Iterator

import pyarrow as pa

from tidelake.data.merge import merge
from tidelake.data.order import ascends
from tidelake.data.sums import diffs, sort_batch, sum_batch
from tidelake.data.types import update_schema
from tidelake.errors import InvalidUpdates
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

# Wide rows fill memory before they fill a slice; 32-bit offsets end at 2 GiB, far above.
_SLICE_BYTES = 128 * 1024 * 1024


def consolidate(table: pa.Table, schema: Schema, domain: TimeDomain, chunk_rows: int = 262_144) -> pa.Table:
    """Sort and consolidate updates.

    Args:
        table: canonical updates in any order, as `normalize` makes them.
        schema: of the rows.
        domain: of the times.
        chunk_rows: rows that are sorted at once.

    Returns:
        The same updates in the total order, each (key, value, time) once, none with diff 0. They share no
        memory with the table.

    Raises:
        InvalidUpdates: a sum of diffs does not fit into an int64; names the row.
    """
    rows_schema = update_schema(schema, domain)
    everything = Updates(Frontier.of(domain.minimum), Frontier())
    try:
        runs = [[_consolidated(batch)] for batch in _slices(table, chunk_rows)]
        merged = runs[0] if len(runs) == 1 else list(merge(runs, schema, domain, everything, chunk_rows))
    except InvalidUpdates:
        # A sum within one slice may not fit into an int64 while the total does. `merge` decides, because its
        # sums stay exact from chunk to chunk.
        runs = [[sort_batch(batch)] for batch in _slices(table, chunk_rows)]
        merged = list(merge(runs, schema, domain, everything, chunk_rows))
    return pa.Table.from_batches(merged, rows_schema)


def pieces(batch: pa.RecordBatch, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of at most `rows` rows and `size` bytes; a larger row is a piece of its own."""
    for start in range(0, batch.num_rows, rows):
        waiting = [batch.slice(start, rows)]
        while waiting:
            piece = waiting.pop()
            if piece.num_rows <= 1 or piece.nbytes <= size:
                yield piece
            else:
                half = piece.num_rows // 2
                waiting += [piece.slice(half), piece.slice(0, half)]


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the rows, which may be views of larger buffers or of a caller's arrays."""
    return pa.concat_batches([batch, batch.slice(0, 0)])


def _slices(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    """The table as batches of `rows` rows, whatever its chunks are, or of fewer that fill `_SLICE_BYTES`."""
    if 0 < table.num_rows <= rows and table.get_total_buffer_size() <= _SLICE_BYTES:
        # Adding up the sizes of pieces, as below, takes longer than sorting a few rows.
        yield from table.combine_chunks().to_batches()
        return
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in table.to_batches():
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows - count)
            start += part.num_rows
            for piece in pieces(part, rows, _SLICE_BYTES):
                if held and size + piece.nbytes > _SLICE_BYTES:
                    yield pa.concat_batches(held)
                    held, count, size = [], 0, 0
                held.append(piece)
                count += piece.num_rows
                size += piece.nbytes
            if count >= rows:
                yield pa.concat_batches(held)
                held, count, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _consolidated(batch: pa.RecordBatch) -> pa.RecordBatch:
    # Rows that were read from a run are in order already; checking that takes a tenth of sorting them.
    if ascends(batch, batch.num_columns - 1) and diffs(batch).all():
        # A copy, as sums are.
        return copied(batch)
    return sum_batch(batch)
