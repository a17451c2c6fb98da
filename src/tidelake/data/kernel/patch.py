"""Patches: a sorted stream of rows with few changes put in, without sorting the stream.

Owns where changes go; must not know runs, times or parts. Invariant: the output is what sorting and summing
all rows of the stream and the changes gives.

Of each batch only the rows that agree with a change in the first column are sorted and summed, together with
the changes. The others keep their order, and no row of the sums agrees with them in the first column. A batch
whose first column has no integers, or nulls, is sorted whole; one without changes is handed on as it is.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import from_numpy, raw
from tidelake.data.kernel.order import Numbers, equal_ranges, integers, numbers_of, row_tuple, search
from tidelake.data.kernel.sums import sum_batch

Places = npt.NDArray[np.int64]


def patched(stream: Iterable[pa.RecordBatch], changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Put changes into a stream; both are sorted and consolidated, with `_diff` as the last column.

    Yields:
        Sorted, consolidated batches, none empty.
    """
    width, batches = changes.num_columns - 1, iter(stream)
    ahead = next(batches, None)
    while ahead is not None:
        batch, ahead = ahead, next(batches, None)
        # An update of the last key may come after its old row, so not the last row but its key is the end.
        count = search(changes, row_tuple(batch, batch.num_rows - 1, 1), inclusive=True)
        if ahead is not None:
            count = min(count, search(changes, row_tuple(ahead, 0, width), inclusive=False))
        found = _with(batch, changes.slice(0, count)) if count else batch
        changes = changes.slice(count)
        del batch
        if found.num_rows:
            yield found
        del found
    if changes.num_rows:
        yield changes


def _with(batch: pa.RecordBatch, changes: pa.RecordBatch) -> pa.RecordBatch:
    leads, wanted = integers(batch.column(0)), integers(changes.column(0))
    if leads is None or wanted is None:
        return sum_batch(pa.concat_batches([batch, changes]))
    touched = _places(leads, np.unique(wanted))
    sums = sum_batch(pa.concat_batches([batch.take(from_numpy(touched)), changes]))
    theirs = raw(sums.column(0), leads.dtype)
    if np.array_equal(theirs, leads[touched]):
        return _replaced(batch, touched, sums)
    kept = np.ones(batch.num_rows, np.bool_)
    kept[touched] = False
    # Each sum comes after the kept rows that are less in the first column.
    before = leads.searchsorted(theirs)
    at = before - touched.searchsorted(before) + np.arange(sums.num_rows)
    is_sum = np.zeros(batch.num_rows - len(touched) + sums.num_rows, np.bool_)
    is_sum[at] = True
    rows = np.empty(len(is_sum), np.uint32)
    rows[is_sum] = np.arange(batch.num_rows, batch.num_rows + sums.num_rows, dtype=np.uint32)
    rows[~is_sum] = kept.nonzero()[0]
    return pc.take(pa.concat_batches([batch, sums]), from_numpy(rows), boundscheck=False)


def _replaced(batch: pa.RecordBatch, at: Places, by: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with other rows at some places; the first column is the same."""
    rows = np.arange(batch.num_rows, dtype=np.uint32)
    rows[at] = np.arange(batch.num_rows, batch.num_rows + len(at), dtype=np.uint32)
    pairs = zip(batch.columns[1:], by.columns[1:], strict=True)
    columns = [batch.column(0), *(_put(old, at, new, rows) for old, new in pairs)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _put(old: pa.Array, at: Places, new: pa.Array, rows: npt.NDArray[np.uint32]) -> pa.Array:
    """One column of `_replaced`; `rows` says where its rows stand in both columns, one after the other."""
    before, after = numbers_of(old), numbers_of(new)
    if before is None or after is None or old.null_count or new.null_count:
        return pc.take(pa.concat_arrays([old, new]), from_numpy(rows), boundscheck=False)
    # Not to copy a column, or by one call of NumPy, is most of what this spares.
    if np.array_equal(before[at], after):
        return old
    before = before.copy()
    before[at] = after
    return pa.Array.from_buffers(old.type, len(old), [None, pa.py_buffer(before)])


def _places(leads: Numbers, wanted: Numbers) -> Places:
    """The rows of these numbers, ascending."""
    starts, ends = equal_ranges(leads, wanted)
    counts = ends - starts
    firsts = np.repeat(starts - np.cumsum(counts) + counts, counts)
    found: Places = firsts + np.arange(len(firsts))
    return found
