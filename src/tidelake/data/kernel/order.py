"""The one total order of rows, and the operations that need it on whole columns.

Owns sorting, comparing neighbours and searching. Rows are ordered by (key columns, value columns, time
columns), each ascending: NaN after all numbers, nulls last, strings by their UTF-8 bytes, lists item by item
with the shorter prefix first, structs by their fields. Must not know parts, diffs or which columns are keys.
Invariant: `sort_all`, `group_starts`, `row_tuple` and the encoding in `tidelake.data.kernel.encode` agree on
every pair of rows with canonical values.

Functions take record batches and order them by their first `width` columns; canonical update batches have
key, value and time columns first and `_diff` last.
"""

from bisect import bisect_left, bisect_right
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import as_mask, from_numpy, null_mask, raw, to_numpy
from tidelake.data.kernel.encode import encode, encode_key, truncate_lower, truncate_upper
from tidelake.data.kernel.types import data_type

__all__ = [
    "ascends",
    "differ",
    "disjoint",
    "encode",
    "encode_key",
    "equal_ranges",
    "group_starts",
    "integers",
    "numbers_of",
    "precede",
    "row_tuple",
    "search",
    "sort_all",
    "sortable",
    "truncate_lower",
    "truncate_upper",
]

Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.generic]
Comparable: TypeAlias = tuple[tuple[object, ...], ...]
# Up to so many columns pyarrow sorts by one radix pass after another. With more it compares whole rows, which
# takes several times as long where the leading columns repeat.
_SORT_KEYS_MAX = 8
_INTEGERS = frozenset(pa.from_numpy_dtype(f"{sign}{width}").id for sign in "iu" for width in (1, 2, 4, 8))
# Types whose Python values compare in the total order.
_PLAIN = _INTEGERS | {kind.id for kind in (pa.string(), pa.binary(), pa.bool_(), pa.decimal128(1))}


def group_starts(batch: pa.RecordBatch, width: int) -> Mask:
    """For each row, whether it differs from the one before in the first `width` columns; first True."""
    n = batch.num_rows
    starts = ~np.zeros(n, np.bool_)
    if n < 2:
        return starts
    # Rows that equal the one before in the columns so far; mostly few after the first columns.
    equal: npt.NDArray[np.int64] | None = None
    cheap_first = sorted(range(width), key=lambda i: not pa.types.is_primitive(batch.column(i).type))
    for i in cheap_first:
        column = batch.column(i)
        if equal is None or len(equal) * 4 > n:
            differs = differ(column.slice(0, n - 1), column.slice(1))
            keep = differs if equal is None else differs[equal - 1]
        else:
            keep = differ(column.take(from_numpy(equal - 1)), column.take(from_numpy(equal)))
        equal = (~keep).nonzero()[0] + 1 if equal is None else equal[~keep]
        if len(equal) == 0:
            return starts
    starts[equal] = False
    return starts


def ascends(batch: pa.RecordBatch, width: int) -> bool:
    """Whether each row is strictly after the one before, by the first `width` columns."""
    pairs = max(0, batch.num_rows - 1)
    leads = batch.column(0) if width and pairs else None
    if leads is not None and leads.type.id in _INTEGERS and not leads.null_count:
        # Mostly the first column decides.
        values = to_numpy(leads)
        before, after = values[:-1], values[1:]
        if np.logical_and.reduce(before < after):
            return True
        if np.logical_or.reduce(before > after):
            return False
    tied: Mask = np.ones(pairs, np.bool_)
    for i in range(width):
        before, after = batch.column(i).slice(0, pairs), batch.column(i).slice(1)
        if np.any(precede(after, before) & tied):
            return False
        tied &= ~differ(before, after)
        if not np.any(tied):
            return True
    return not pairs


def row_tuple(batch: pa.RecordBatch, row: int, width: int) -> Comparable:
    """One row's first `width` columns as a tuple that Python compares in the total order."""
    return tuple([_comparable(batch.column(i), row) for i in range(width)])


def search(batch: pa.RecordBatch, bound: Comparable, *, inclusive: bool) -> int:
    """How many rows come before `bound`; with `inclusive` also those equal to it."""
    low, high = 0, batch.num_rows
    for i, value in enumerate(bound):
        if low == high:
            break
        low, high = _equal_range(batch.column(i), low, high, value)
    return high if inclusive else low


def equal_ranges(numbers: Numbers, wanted: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the numbers equal to each wanted one begin and end; where it would stand if there is none."""
    starts = numbers.searchsorted(wanted)
    if numbers.dtype.kind == "f" or not len(numbers):
        return starts, numbers.searchsorted(wanted, "right")
    # Most are there once or not at all, and checking the found places is cheaper than a second search.
    last = len(numbers) - 1
    ends = starts + (numbers[np.minimum(starts, last)] == wanted)
    again = (numbers[np.minimum(ends, last)] == wanted).nonzero()[0]
    ends[again] = numbers.searchsorted(wanted[again], "right")
    return starts, ends


def integers(column: pa.Array) -> Numbers | None:
    """The values as numpy integers in the same order; None if there are nulls, or for other types."""
    is_, kind = pa.types, column.type
    return numbers_of(column) if not column.null_count and not is_.is_floating(kind) else None


def disjoint(runs: list[list[pa.RecordBatch]], width: int) -> bool:
    """Whether sorted, non-empty runs stay sorted when joined in this order; looks only at their borders."""
    # Mostly the first column decides.
    return all(
        row_tuple(a[-1], a[-1].num_rows - 1, columns) <= row_tuple(b[0], 0, columns)
        for columns in (1, width)
        for a, b in pairwise(runs)
    )


def sort_all(columns: list[pa.Array]) -> pa.Array:
    """The permutation that sorts rows of these columns, each of a type from `sortable`."""
    if len(columns) > _SORT_KEYS_MAX:
        return _sort_many(columns)
    names = [str(i) for i in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(columns, names)
    # Nulls go last by default; the argument that says so differs between versions.
    return pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in names])


def _sort_many(columns: list[pa.Array]) -> pa.Array:
    """Sort by the first columns, then only the rows that are equal in them by the rest."""
    head, rest = columns[:_SORT_KEYS_MAX], columns[_SORT_KEYS_MAX:]
    order = to_numpy(sort_all(head)).astype(np.int64)
    taken = from_numpy(order)
    sorted_head = [column.take(taken) for column in head]
    batch = pa.RecordBatch.from_arrays(sorted_head, [str(i) for i in range(len(head))])
    starts = group_starts(batch, len(head))
    tied = ~starts
    tied[:-1] |= ~starts[1:]
    ties = tied.nonzero()[0]
    if len(ties):
        rows = order[ties]
        groups = from_numpy(np.cumsum(starts)[ties])
        picked = from_numpy(rows)
        order[ties] = rows[to_numpy(sort_all([groups, *(c.take(picked) for c in rest)]))]
    return from_numpy(order)


def sortable(column: pa.Array) -> pa.Array:
    """The column itself, or one of the same order in a type that pyarrow sorts."""
    is_, kind = pa.types, column.type
    if is_.is_nested(kind):
        return encode(column, data_type(kind, "sorted"))
    if is_.is_float16(kind):
        return _float32(column)
    if is_.is_decimal(kind) and kind.bit_width < 128:
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    return column


def _float32(column: pa.Array) -> pa.Array:
    # Not by a cast, which some versions of pyarrow lack for float16.
    values = raw(column, np.dtype(np.float16)).astype(np.float32)
    return from_numpy(values, null_mask(column))


def numbers_of(column: pa.Array) -> Numbers | None:
    """The values as numpy numbers in the same order, arbitrary where null; None for other types."""
    is_, kind = pa.types, column.type
    if is_.is_float64(kind) or is_.is_float32(kind):
        return raw(column, np.dtype(f"f{kind.bit_width // 8}"))
    if not (is_.is_integer(kind) or is_.is_temporal(kind)):
        return None
    sign = "u" if is_.is_unsigned_integer(kind) else "i"
    return raw(column, np.dtype(f"{sign}{kind.bit_width // 8}"))


def differ(a: pa.Array, b: pa.Array) -> Mask:
    """Where two columns of one type differ, row by row; nulls are equal."""
    is_, kind = pa.types, a.type
    if is_.is_nested(kind):
        described = data_type(kind, "compared")
        a, b = encode(a, described), encode(b, described)
        return as_mask(pc.not_equal(a, b))
    differs: Mask
    if is_.is_integer(kind) or is_.is_temporal(kind) or is_.is_floating(kind):
        # Floats by their bits: canonical floats are equal iff their bits are, NaN included.
        dtype = np.dtype(f"i{kind.bit_width // 8}")
        differs = raw(a, dtype) != raw(b, dtype)
    else:
        differs = as_mask(pc.not_equal(a, b))
    if a.null_count or b.null_count:
        null_a, null_b = null_mask(a), null_mask(b)
        differs = (differs & ~null_a & ~null_b) | (null_a != null_b)
    return differs


def precede(a: pa.Array, b: pa.Array) -> Mask:
    """Where a value of one column comes before that of another column of its type, row by row."""
    a, b = sortable(a), sortable(b)
    before = pc.less(a, b)
    if pa.types.is_floating(a.type):
        before = pc.or_(before, pc.and_not(pc.is_nan(b), pc.is_nan(a)))
    if not (a.null_count or b.null_count):
        return as_mask(before)
    # A value comes before null, and null comes before nothing.
    return np.where(null_mask(b), ~null_mask(a), as_mask(before))


def _comparable(column: pa.Array, row: int) -> tuple[object, ...]:
    """(0, value), (1,) for NaN or (2,) for null."""
    scalar = column[row]
    if not scalar.is_valid:
        return (2,)
    kind = column.type
    # Asking Arrow for each property would take longer than everything else here.
    if kind.id in _PLAIN:
        return (0, scalar.as_py())
    is_ = pa.types
    if is_.is_nested(kind):
        return (0, encode(column.slice(row, 1), data_type(kind, "compared"))[0].as_py())
    if is_.is_temporal(kind):
        return (0, scalar.value)
    value = scalar.as_py()
    if is_.is_floating(kind):
        return (1,) if np.isnan(value) else (0, float(value))
    return (0, value)


def _equal_range(column: pa.Array, low: int, high: int, value: tuple[object, ...]) -> tuple[int, int]:
    """The half-open range of rows in [low, high) with this value; empty, at its place, if there is none."""
    numbers = numbers_of(column)
    if numbers is not None:
        known = high - (column.slice(low, high - low).null_count if column.null_count else 0)
        if value[0] == 2:
            return known, high
        # The bound may come from a column of another width and be outside this column's range.
        bound = np.array(value[1] if value[0] == 0 else np.nan, numbers.dtype)
        first = low + int(np.searchsorted(numbers[low:known], bound))
        # Mostly no row is equal, and checking that is cheaper than a second search.
        if first == known or bound < numbers[first]:
            return first, first
        return first, first + int(np.searchsorted(numbers[first:known], bound, side="right"))
    key = partial(_comparable, column)
    first = bisect_left(range(high), value, low, high, key=key)
    return first, bisect_right(range(high), value, first, high, key=key)
