"""Patches: a sorted stream of rows with few changes put in, without sorting the stream.

Owns where changes go; must not know runs, times or parts. Invariant: the output is what sorting and summing
all rows of the stream and the changes gives.

The changes are sorted batches, each of which is cut where the batches of the stream begin. So what is done
to one batch depends on no other one.

What upserts leave are *swaps*: of a number of the first column, one row is taken back and one comes. Where
the batch has just the row that is taken back, the other one is put in its place, and nothing is sorted. Of
the other changes, the rows of a batch that agree with them in the first column are sorted and summed,
together with the changes. The others keep their order, and no row of the sums agrees with them in the first
column. If that has no integers, or nulls, their codes are put before it (`tidelake.data.kernel.codes`): that
rows which differ in the first column may have one code costs time only. Without codes the batch is sorted
whole. One without changes is handed on as it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import from_numpy, raw
from tidelake.data.kernel.codes import code
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
from tidelake.errors import InvalidUpdates

# So many values are compared before all are.
_FIRST = 64
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Share: TypeAlias = tuple[list[pa.RecordBatch], list[pa.RecordBatch]]
"""A batch, which `put` takes out of the list; and the changes that belong there."""


def shares(stream: Iterable[pa.RecordBatch], changes: Sequence[pa.RecordBatch]) -> Iterator[Share]:
    """What `put` is to do, in any thread; the batches that it makes are sorted and consolidated together.

    Args:
        stream: sorted and consolidated batches, none empty, with `_diff` as the last column.
        changes: sorted batches.
    """
    batches, left = iter(stream), list(changes)
    ahead = next(batches, None)
    while ahead is not None:
        batch, ahead = ahead, next(batches, None)
        here, left = (left, []) if ahead is None else _cut(left, ahead)
        share = [batch], here
        del batch, here
        yield share
        del share
    yield [], left


def _cut(
    changes: list[pa.RecordBatch], next_: pa.RecordBatch
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The changes before the first row of a batch, and the others."""
    bound = row_tuple(next_, 0, next_.num_columns - 1)
    ends = [search(batch, bound, inclusive=False) for batch in changes]
    before = [batch.slice(0, end) for batch, end in zip(changes, ends, strict=True) if end]
    after = [b.slice(end) for b, end in zip(changes, ends, strict=True) if end < b.num_rows]
    return before, after


def put(share: Share) -> pa.RecordBatch | None:
    """A batch with its changes; None if no row is left.

    Raises:
        InvalidUpdates: a sum of diffs does not fit into an int64.
    """
    held, several = share
    if not several:
        return held.pop() if held else None
    changes = pa.concat_batches(several)
    found = _with(held.pop(), changes) if held else sum_batch(changes)
    return found if found.num_rows else None


def _with(batch: pa.RecordBatch, changes: pa.RecordBatch) -> pa.RecordBatch:
    leads, theirs = integers(batch.column(0)), integers(changes.column(0))
    try:
        if leads is not None and theirs is not None:
            return _patched(batch, leads, changes, theirs)
        found = code(pa.concat_arrays([batch.column(0), changes.column(0)]))
        if found is not None:
            # Ordered by their codes first, the rows are in the same order.
            leads, theirs = found.values[: batch.num_rows], found.values[batch.num_rows :]
            rows = _patched(_led(leads, batch), leads, _led(theirs, changes), theirs)
            return pa.RecordBatch.from_arrays(rows.columns[1:], schema=batch.schema)
    except InvalidUpdates:
        # Sums of all rows may fit.
        pass
    return sum_batch(pa.concat_batches([batch, changes]))


def _led(leads: Numbers, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with one more column, the first."""
    column = from_numpy(leads)
    schema = pa.schema([pa.field("", column.type), *batch.schema])
    return pa.RecordBatch.from_arrays([column, *batch.columns], schema=schema)


def _patched(
    batch: pa.RecordBatch, leads: Numbers, changes: pa.RecordBatch, theirs: Numbers
) -> pa.RecordBatch:
    """A batch with changes, whose first columns have these integers."""
    found, others = _swapped(batch, _Patch.of(changes, theirs), leads)
    return _summed(found, others, leads) if others.num_rows else found


@dataclass(frozen=True)
class _Patch:
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
    def of(cls, changes: pa.RecordBatch, leads: Numbers) -> "_Patch":
        """Changes in any order, whose first column has these integers.

        Raises:
            InvalidUpdates: a sum of diffs does not fit into an int64.
        """
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

    def unswapped(self, swaps: Mask) -> "_Patch":
        """The same, with some swaps among the others."""
        which, left = from_numpy(swaps), from_numpy(~swaps)
        moved = [self.others, self.old.filter(which), self.new.filter(which)]
        return _Patch(self.old.filter(left), self.new.filter(left), sum_batch(pa.concat_batches(moved)))


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


def _swapped(batch: pa.RecordBatch, patch: _Patch, leads: Numbers) -> tuple[pa.RecordBatch, pa.RecordBatch]:
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
    # Mostly keys: their first values tell.
    if before is None and all(_are_there(old, at[:n], new.slice(0, n)) for n in (_FIRST, len(at))):
        return old
    if before is None or after is None or old.null_count or new.null_count:
        return pc.take(pa.concat_arrays([old, new]), from_numpy(rows), boundscheck=False)
    # Not to copy a column, or by one call of NumPy, is most of what this spares.
    if np.array_equal(before[at], after):
        return old
    before = before.copy()
    before[at] = after
    return pa.Array.from_buffers(old.type, len(old), [None, pa.py_buffer(before)])


def _are_there(column: pa.Array, at: Places, values: pa.Array) -> bool:
    return not differ(column.take(from_numpy(at)), values).any()


def _places(leads: Numbers, wanted: Numbers) -> Places:
    """The rows of these numbers, ascending."""
    starts, ends = equal_ranges(leads, wanted)
    counts = ends - starts
    firsts = np.repeat(starts - np.cumsum(counts) + counts, counts)
    found: Places = firsts + np.arange(len(firsts))
    return found
