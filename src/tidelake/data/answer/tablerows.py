"""Rows in table form: each is repeated as often as its multiplicity says.

Pure: Arrow in, Arrow out. Rows are repeated in pieces, so that one row a billion times needs no memory.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.data.kernel.arrays import from_numpy, to_numpy
from tidelake.errors import InvalidUpdates
from tidelake.model.schema import DIFF

Ints = npt.NDArray[np.int64]
PIECE_ROWS = 65_536


def expanded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Repeat each row of a batch as often as its `_diff` says; the columns stay as they are."""
    counts: Ints = to_numpy(batch.column(DIFF))
    negative = np.flatnonzero(counts < 0)
    if len(negative):
        row = batch.slice(int(negative[0]), 1).to_pylist()[0]
        raise InvalidUpdates(
            f"a row has the multiplicity {counts[negative[0]]}, which a table cannot show: {str(row)[:300]}; "
            "read with multiplicities (snapshot, or option withDiff=true), or append the row again with the "
            "opposite _diff"
        )
    return repeated(batch, counts)


def repeated(batch: pa.RecordBatch, counts: Ints) -> Iterator[pa.RecordBatch]:
    """Repeat each row of a batch, in order; yields batches of bounded size."""
    if not len(counts) or int(counts.max()) == 1:
        yield batch
        return
    start = 0
    while start < len(counts):
        # Take as many rows as fit into a piece, or one row. Counts are capped, so that sums do not overflow.
        within = np.cumsum(np.minimum(counts[start : start + PIECE_ROWS], PIECE_ROWS + 1))
        rows = max(1, int(np.searchsorted(within, PIECE_ROWS, side="right")))
        piece, times = batch.slice(start, rows), counts[start : start + rows]
        if rows == 1:
            yield from _one(piece, int(times[0]))
        else:
            yield piece.take(from_numpy(np.repeat(np.arange(rows), times)))
        start += rows


def _one(row: pa.RecordBatch, count: int) -> Iterator[pa.RecordBatch]:
    whole = row.take(from_numpy(np.zeros(min(count, PIECE_ROWS), np.int64)))
    for _ in range(count // PIECE_ROWS):
        yield whole
    if count % PIECE_ROWS:
        yield whole.slice(0, count % PIECE_ROWS)
