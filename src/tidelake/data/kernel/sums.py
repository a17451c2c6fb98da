"""Sums of diffs: one batch sorted and consolidated, exactly.

Owns the arithmetic of diffs; must not know runs, queries or parts. Invariant: every sum that is returned is
exact. A sum that does not fit into an int64 is an error and never wraps; an intermediate sum that does not
fit is no error.

Sums that might not fit are kept in two halves, `high * 2^32 + low`; no array has enough rows to overflow
either half.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import from_numpy, places, raw
from tidelake.data.kernel.order import Comparable, Mask, group_starts, row_tuple
from tidelake.data.kernel.sort import sort_indices, sorted_groups
from tidelake.errors import InvalidUpdates

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_LOW = np.int64(0xFFFFFFFF)
_INT64 = np.dtype(np.int64)
Ints = npt.NDArray[np.int64]
A = TypeVar("A", pa.Array, pa.ChunkedArray)


@dataclass(frozen=True)
class Open:
    """The last group of a chunk, whose rows may go on in the next one.

    Attributes:
        row: a batch of one row of it, its diff meaningless.
        diff: the exact sum so far, which may exceed an int64.
    """

    row: pa.RecordBatch
    at: Comparable
    diff: int


def diffs(batch: pa.RecordBatch) -> Ints:
    """The last column, `_diff`, as numpy."""
    values: Ints = raw(batch.column(batch.num_columns - 1), _INT64).view(np.int64)
    return values


def total(values: Ints) -> int:
    """The exact sum."""
    if _fits(values):
        return int(np.add.reduce(values))
    return (int((values >> 32).sum()) << 32) + int((values & _LOW).sum())


def opposite(values: A) -> A:
    """The diffs that take rows away."""
    try:
        return pc.negate_checked(values)
    except pa.ArrowInvalid as error:
        raise InvalidUpdates("a row has the multiplicity -2^63, whose negation does not fit") from error


def sort_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sort a batch of updates by all columns but `_diff`."""
    return batch.take(sort_indices(batch, batch.num_columns - 1))


def sum_sorted(batch: pa.RecordBatch, starts: Mask | None = None) -> pa.RecordBatch:
    """`sum_batch` of a batch that is sorted already."""
    if starts is None:
        starts = group_starts(batch, batch.num_columns - 1)
    if np.logical_and.reduce(starts) and np.logical_and.reduce(diffs(batch)):
        return batch
    _, body, _ = _summed(batch, None, starts)
    return body


def sum_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sort rows, sum the diffs of equal ones and drop those that come to zero."""
    _, body, _ = _summed(batch, *sorted_groups(batch, batch.num_columns - 1))
    return body


def sum_chunk(
    batch: pa.RecordBatch, before: Open | None, *, in_order: bool, keep_open: bool
) -> tuple[list[pa.RecordBatch], Open | None]:
    """As `sum_batch`, for one chunk of several.

    Args:
        batch: canonical updates; no row outside `batch` and `before` equals one of theirs.
        before: the group that the last chunk left open; it is not after the least row.
        in_order: whether the rows are sorted already.
        keep_open: whether the last group may continue in the next chunk.

    Returns:
        The sorted, consolidated rows without the group that stays open, and that group. The rows are at most
        two batches, none empty: joining them would copy all rows for the sake of the first.

    Raises:
        InvalidUpdates: a sum does not fit into an int64; names the row.
    """
    width = batch.num_columns - 1
    order, starts = (None, group_starts(batch, width)) if in_order else sorted_groups(batch, width)
    head, body, opened = _summed(batch, order, starts, before, keep_open=keep_open)
    return [rows for rows in (head, body) if rows is not None and rows.num_rows], opened


def close(group: Open, like: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a group that is complete: one, or none if its sum is zero."""
    if group.diff == 0:
        return like.slice(0, 0)
    if not _INT64_MIN <= group.diff <= _INT64_MAX:
        raise _overflow(group.row, group.diff)
    return with_diffs(group.row, np.array([group.diff], np.int64))


def with_diffs(batch: pa.RecordBatch, values: Ints) -> pa.RecordBatch:
    """The batch with other diffs."""
    return pa.RecordBatch.from_arrays([*batch.columns[:-1], from_numpy(values)], schema=batch.schema)


def _summed(
    batch: pa.RecordBatch,
    order: Ints | None,
    starts: Mask,
    before: Open | None = None,
    *,
    keep_open: bool = False,
) -> tuple[pa.RecordBatch | None, pa.RecordBatch, Open | None]:
    """Sum rows in `order`: the group before, if it ended; the other rows; the group that stays open."""
    if batch.num_rows == 0:
        return (None, batch, before) if keep_open or before is None else (close(before, batch), batch, None)
    begins = starts.nonzero()[0]
    rows = begins if order is None else order[begins]
    width = batch.num_columns - 1
    first_joins = before is not None and before.at == row_tuple(batch, int(rows[0]), width)
    head = None if before is None or first_joins else close(before, batch)
    carried = before.diff if before is not None and first_joins else 0

    opened: Open | None = None
    if keep_open:
        last, row = int(begins[-1]), int(rows[-1])
        at = row_tuple(batch, row, width)
        # A copy: a slice would keep the whole chunk.
        copied = batch.take(places(row))
        values = diffs(batch)[last:] if order is None else diffs(batch)[order[last:]]
        opened = Open(copied, at, total(values) + (carried if last == 0 else 0))
        carried = 0 if last == 0 else carried
        starts, rows = starts[:last], rows[:-1]
    sums = _group_sums(batch, order, starts, rows, carried)
    return head, _picked(batch, rows, sums, in_order=order is None), opened


def _picked(batch: pa.RecordBatch, rows: Ints, sums: Ints, *, in_order: bool) -> pa.RecordBatch:
    """The rows whose sum is not zero, with their sums as diffs."""
    keep = (sums != 0).nonzero()[0]
    if len(keep) < len(rows):
        rows, sums = rows[keep], sums[keep]
    adjoin = in_order and len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1
    # A slice of a few rows would keep its whole batch in memory.
    if adjoin and 2 * len(rows) >= batch.num_rows:
        kept = batch.slice(int(rows[0]), len(rows)).select(range(batch.num_columns - 1))
    else:
        picked = from_numpy(rows.astype(np.uint32))
        # The indices take half as many bytes, and need no check.
        kept = pc.take(batch.select(range(batch.num_columns - 1)), picked, boundscheck=False)
    return pa.RecordBatch.from_arrays([*kept.columns, from_numpy(sums)], schema=batch.schema)


def _group_sums(batch: pa.RecordBatch, order: Ints | None, starts: Mask, rows: Ints, carried: int) -> Ints:
    """The sum of each group: they begin at `starts` in `order`, with these rows of the batch."""
    values = diffs(batch)
    if not carried and _fits(values):
        # Most groups have one row; `reduceat` over all groups takes three times as long.
        sums = values[rows]
        rest = (~starts).nonzero()[0]
        np.add.at(sums, rest - np.arange(1, len(rest) + 1), values[rest if order is None else order[rest]])
        return sums
    if not len(rows):
        return values[:0]
    values = values[: len(starts)] if order is None else values[order[: len(starts)]]
    begins = starts.nonzero()[0]
    high: Ints = np.add.reduceat(values >> 32, begins)
    low: Ints = np.add.reduceat(values & _LOW, begins)
    high[0] += carried >> 32
    low[0] += carried & 0xFFFFFFFF
    high += low >> 32
    outside = (high < -(2**31)) | (high >= 2**31)
    if outside.any():
        group = int(np.argmax(outside))
        exact = (int(high[group]) << 32) + int(low[group] & _LOW)
        raise _overflow(batch.slice(int(rows[group]), 1), exact)
    return (high << 32) | (low & _LOW)


def _fits(values: Ints) -> bool:
    """Whether no sum of some of the values can leave an int64."""
    if len(values) == 0:
        return True
    greatest = max(int(np.maximum.reduce(values)), -int(np.minimum.reduce(values)))
    return greatest * len(values) <= _INT64_MAX


def _overflow(row: pa.RecordBatch, exact: int) -> InvalidUpdates:
    # Not through Python values, which have no nanoseconds and end with the year 9999.
    values = (column.to_string(skip_new_lines=True)[1:-1] for column in row.columns[:-1])
    shown = ", ".join(f"{name}={value}" for name, value in zip(row.schema.names, values, strict=False))
    return InvalidUpdates(
        f"the diffs of one row sum to {exact}, which does not fit into an int64: {shown}; "
        "correct the diffs of this row"
    )
