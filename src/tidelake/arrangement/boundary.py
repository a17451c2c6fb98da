"""Finds the key of a batch at which a monotonic predicate changes its answer.

Owns the bisection of a batch by a predicate on keys; must not know cursors. It bisects over blocks first,
reading one row of each block that it visits, and then over the rows of one block.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import pyarrow as pa

from tidelake.arrangement.batch import Batch
from tidelake.arrangement.layout import Layout
from tidelake.arrangement.search import Bound

Values = tuple[object, ...]
Predicate = Callable[[Values], bool]


def values_at(rows: pa.RecordBatch, row: int, columns: Sequence[int]) -> Values:
    """Some columns of a row as Python values."""
    return tuple(rows.column(i)[row].as_py() for i in columns)


def first_with(batch: Batch, predicate: Predicate, layout: Layout) -> Bound | None:
    """The first key that satisfies a predicate that is false, then true; None if no key satisfies it."""
    columns = range(layout.key_width)

    def holds_at_end(i: int) -> bool:
        block = batch.block(i)
        return predicate(values_at(block, block.num_rows - 1, columns))

    found = bisect_left(range(batch.blocks), True, key=holds_at_end)
    if found == batch.blocks:
        return None
    block = batch.block(found)
    row = bisect_left(range(block.num_rows), True, key=lambda i: predicate(values_at(block, i, columns)))
    return Bound.at(block, row, layout)


def last_with(batch: Batch, predicate: Predicate, layout: Layout) -> Bound | None:
    """The last key that satisfies a predicate that is true, then false; None if no key satisfies it."""
    columns = range(layout.key_width)

    def fails_at(rows: pa.RecordBatch, row: int) -> bool:
        return not predicate(values_at(rows, row, columns))

    found = bisect_left(range(batch.blocks), True, key=lambda i: fails_at(batch.block(i), 0)) - 1
    if found < 0:
        return None
    block = batch.block(found)
    row = bisect_left(range(block.num_rows), True, key=lambda i: fails_at(block, i)) - 1
    return Bound.at(block, row, layout)
