"""Patches: a sorted stream of rows with few changes put in, without sorting the stream.

Owns where changes go; must not know runs, times or parts. Invariant: the output is what sorting and summing
all rows of the stream and the changes gives.

What upserts leave are *swaps*: of a number of the first column, one row is taken back and one comes. Where
the batch has just the row that is taken back, the other one is put in its place, and nothing is sorted. Of
the other changes, the rows of a batch that agree with them in the first column are sorted and summed,
together with the changes. The others keep their order, and no row of the sums agrees with them in the first
column. A batch whose first column has no integers, or nulls, is sorted whole; one without changes is handed
on as it is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import from_numpy, raw
from tidelake.data.kernel.order import (
    Numbers,
    differ,
    equal_ranges,
    integers,
    numbers_of,
    row_tuple,
    search,
)
from tidelake.data.kernel.sums import diffs, sum_batch

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Patch:
    """Changes, `_diff` the last column, each number of the first column in either the swaps or the others.

    Attributes:
        old: the rows that swaps take back, by ascending numbers, which differ.
        new: those that come instead, in the same order.
        others: all other changes, sorted and consolidated.
    """

    old: pa.RecordBatch
    new: pa.RecordBatch
    others: pa.RecordBatch

    @classmethod
    def of(cls, changes: pa.RecordBatch) -> "Patch":
        """Changes in any order.

        Raises:
            InvalidUpdates: a sum of diffs does not fit into an int64.
        """
        leads = integers(changes.column(0))
        if leads is None:
            none = changes.slice(0, 0)
            return cls(none, none, sum_batch(changes))
        swaps, left = _swaps(changes, leads)
        # What remains of several changes of one number is mostly a swap, too.
        summed = sum_batch(_taken(changes, left))
        netted = raw(summed.column(0), leads.dtype)
        more, left = _swaps(summed, netted)
        rows = pa.concat_batches([changes, summed])
        swaps = np.hstack([swaps, more + changes.num_rows])
        order = np.append(leads, netted)[swaps[0]].argsort(kind="stable")
        old, new = swaps[:, order]
        return cls(_taken(rows, old), _taken(rows, new), _taken(summed, left))

    def sliced(self, swaps: slice, others: slice) -> "Patch":
        """Some of the swaps, and some of the others."""
        return Patch(self.old[swaps], self.new[swaps], self.others[others])

    def unswapped(self, swaps: Mask) -> "Patch":
        """The same, with some swaps among the others."""
        if not swaps.any():
            return self
        which, left = from_numpy(swaps), from_numpy(~swaps)
        moved = [self.others, self.old.filter(which), self.new.filter(which)]
        return Patch(self.old.filter(left), self.new.filter(left), sum_batch(pa.concat_batches(moved)))


def _swaps(changes: pa.RecordBatch, leads: Numbers) -> tuple[Places, Places]:
    """The rows of the old and of the new halves of swaps, and all others; each by ascending numbers."""
    # The changes are mostly few sorted runs, which the stable sort merges.
    order = leads.argsort(kind="stable")
    numbers, signs = leads[order], diffs(changes)[order]
    differs = np.ones(len(order) + 1, np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=differs[1:-1])
    # A number that is there just twice.
    first = (differs[:-2] & ~differs[1:-1] & differs[2:]).nonzero()[0]
    first = first[(np.abs(signs[first]) == 1) & (signs[first] == -signs[first + 1])]
    others = np.ones(len(order), np.bool_)
    others[first] = others[first + 1] = False
    new = first + (signs[first] < 0)
    return order[np.stack([2 * first + 1 - new, new])], order[others]


def patched(stream: Iterable[pa.RecordBatch], patch: Patch) -> Iterator[pa.RecordBatch]:
    """Put changes into a stream that is sorted and consolidated, with `_diff` as the last column.

    Yields:
        Sorted, consolidated batches, none empty.
    """
    width, batches = patch.others.num_columns - 1, iter(stream)
    ahead = next(batches, None)
    while ahead is not None:
        batch, ahead = ahead, next(batches, None)
        # An update of the last key may come after its old row, so not the last row but its key is the end.
        end = row_tuple(batch, batch.num_rows - 1, 1)
        swaps = search(patch.old, end, inclusive=True)
        if swaps and ahead is not None and row_tuple(ahead, 0, 1) == end:
            # The number goes on, and each row of the swap may belong to either batch.
            at = np.arange(patch.old.num_rows) >= search(patch.old, end, inclusive=False)
            at[swaps:] = False
            patch = patch.unswapped(at)
            swaps -= int(at.sum())
        count = search(patch.others, end, inclusive=True)
        if ahead is not None:
            count = min(count, search(patch.others, row_tuple(ahead, 0, width), inclusive=False))
        here = patch.sliced(slice(0, swaps), slice(0, count))
        found = _with(batch, here) if swaps or count else batch
        patch = patch.sliced(slice(swaps, None), slice(count, None))
        del batch
        if found.num_rows:
            yield found
        del found
    left = patch.unswapped(np.ones(patch.old.num_rows, np.bool_)).others
    if left.num_rows:
        yield left


def _with(batch: pa.RecordBatch, patch: Patch) -> pa.RecordBatch:
    leads = integers(batch.column(0))
    if leads is None:
        return sum_batch(pa.concat_batches([batch, patch.old, patch.new, patch.others]))
    batch, changes = _swapped(batch, patch, leads)
    return _summed(batch, changes, leads) if changes.num_rows else batch


def _swapped(batch: pa.RecordBatch, patch: Patch, leads: Numbers) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The batch with the swaps that fit, and all other changes, in no order."""
    if not patch.old.num_rows:
        return batch, patch.others
    wanted = raw(patch.old.column(0), leads.dtype)
    at, last = leads.searchsorted(wanted), len(leads) - 1
    # There is no number after the last one, so each row of these numbers is here.
    there = _taken(batch, np.minimum(at, last))
    fits = raw(there.column(0), leads.dtype) == wanted
    fits &= (at >= last) | (leads[np.minimum(at + 1, last)] != wanted)
    fits &= diffs(there) == 1
    for mine, theirs in zip(there.columns[1:-1], patch.old.columns[1:-1], strict=True):
        fits &= ~differ(mine, theirs)
    if fits.all():
        return _replaced(batch, at, patch.new), patch.others
    others = patch.unswapped(~fits)
    return (_replaced(batch, at[fits], others.new) if others.new.num_rows else batch), others.others


def _summed(batch: pa.RecordBatch, changes: pa.RecordBatch, leads: Numbers) -> pa.RecordBatch:
    """The batch with changes; its first column has these numbers."""
    touched = _places(leads, np.unique(raw(changes.column(0), leads.dtype)))
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


def _taken(batch: pa.RecordBatch, rows: Places) -> pa.RecordBatch:
    # The numbers take fewer bytes, and need no check.
    return pc.take(batch, from_numpy(rows.astype(np.uint32)), boundscheck=False)


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
