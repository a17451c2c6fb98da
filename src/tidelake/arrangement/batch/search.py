"""Search for keys in sorted rows in memory.

Owns the search; must not know batches or files. Invariant: `rows_of` returns all rows that have one of the
keys, in order, and no others.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.layout import Layout
from tidelake.data.kernel import order
from tidelake.data.kernel.order import Comparable

Ints = npt.NDArray[np.int64]
# Up to this many keys are searched for one by one; for more it is faster to encode all rows.
_FEW = 8


@dataclass(frozen=True)
class Bound:
    """A key at which a range of rows begins or ends.

    Attributes:
        key: the encoding of all key columns, or of the first ones.
        row: the key as a tuple, which is faster to search for; None if it is not known.
    """

    key: bytes
    row: Comparable | None = None

    @classmethod
    def at(cls, rows: pa.RecordBatch, row: int, layout: Layout) -> "Bound":
        """The key of a row."""
        plain = None if layout.number is not None else order.row_tuple(rows, row, layout.key_width)
        return cls(layout.encoded_at(rows, row), plain)


def position(rows: pa.RecordBatch, bound: Bound, layout: Layout, *, after: bool) -> int:
    """The number of rows whose key is less than the bound, or with `after` less or equal."""
    key = bound.key
    if layout.number is not None:
        numbers = layout.numbers(rows)
        number = layout.decoded(key)
        if number is None:
            return rows.num_rows if after else len(numbers)
        return int(numbers.searchsorted(number, "right" if after else "left")[0])
    if bound.row is not None:
        return order.search(rows, bound.row, inclusive=after)
    encoded = layout.encode(rows)
    bisect = bisect_right if after else bisect_left
    return bisect(range(rows.num_rows), key, key=lambda i: encoded[i].as_py())


def rows_of(rows: pa.RecordBatch, keys: Keys, first: int, end: int) -> pa.RecordBatch:
    """The rows that have one of the keys at [first, end); a view of `rows` if they are adjacent."""
    if keys.layout.number is not None:
        return _by_numbers(rows, keys, first, end)
    if end - first > _FEW:
        found = pc.is_in(keys.layout.encode(rows), value_set=keys.encoded.slice(first, end - first))
        return rows.filter(found)
    key_columns = rows.select(range(keys.layout.key_width))
    starts, ends = [], []
    for i in range(first, end):
        bound = keys.tuple(i)
        starts.append(order.search(key_columns, bound, inclusive=False))
        ends.append(order.search(key_columns, bound, inclusive=True))
    return _ranges(rows, np.array(starts, np.int64), np.array(ends, np.int64))


def _by_numbers(rows: pa.RecordBatch, keys: Keys, first: int, end: int) -> pa.RecordBatch:
    numbers = keys.layout.numbers(rows)
    known = len(keys) - keys.nulls
    wanted = keys.numbers[first : min(end, known)]
    starts, ends = order.equal_ranges(numbers, wanted)
    if end > known:
        starts, ends = np.append(starts, len(numbers)), np.append(ends, rows.num_rows)
    return _ranges(rows, starts, ends)


def _ranges(rows: pa.RecordBatch, starts: Ints, ends: Ints) -> pa.RecordBatch:
    """The rows of ascending ranges [start, end), concatenated."""
    if len(starts) == 1:
        return rows.slice(int(starts[0]), int(ends[0] - starts[0]))
    counts = ends - starts
    total = int(counts.sum())
    if not total:
        return rows.slice(0, 0)
    there = np.flatnonzero(counts)
    least, greatest = int(starts[there[0]]), int(ends[there[-1]])
    if greatest - least == total:
        return rows.slice(least, total)
    before = np.cumsum(counts) - counts
    places = np.repeat(starts - before, counts) + np.arange(total)
    return pc.take(rows, pa.array(places), boundscheck=False)
