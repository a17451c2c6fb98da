"""Rows of one schema as rows of another: columns by their ids, widened, null, or gone.

Owns the mapping of columns and its effect on the order of rows; must not know parts or registries. Invariant:
the same rows are returned, each with the target's columns, in the target's total order. Rows that have become
equal are not summed here, because the merge kernel does that exactly.

A column that is null everywhere, or wider, leaves rows in order. Once a column is dropped, the rows are
sorted only by the columns before it, since all later columns, times too, were ordered within its values. They
are sorted again group by group, where a group has equal values in those columns; one group is in memory at a
time.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelake.data.kernel.arrays import raw
from tidelake.data.kernel.canonical import canonical
from tidelake.data.kernel.order import Comparable, group_starts, row_tuple
from tidelake.data.kernel.sums import sort_batch
from tidelake.data.kernel.types import update_schema
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain


@dataclass(frozen=True)
class Projection:
    """How update batches of one schema become batches of another.

    Attributes:
        target: of the batches that come out, as `update_schema` makes it.
        places: for each target column, its place in the source; None: null in every row.
        prefix: target columns by which the rows stay sorted; None: the whole order stays.
    """

    target: pa.Schema
    places: tuple[int | None, ...]
    prefix: int | None

    @classmethod
    def of(cls, source: Schema, target: Schema, domain: TimeDomain, live: Collection[int]) -> "Projection":
        """The projection between two schemas of one collection."""
        at = {column.id: i for i, column in enumerate(source.columns) if column.id in live}
        places = [at.get(column.id) for column in target.columns]
        width = len(source.columns)
        taken = {place for place in places if place is not None}
        first_gone = next((i for i in range(width) if i not in taken), None)
        places += range(width, width + domain.arity + 1)
        prefix = None
        if first_gone is not None:
            prefix = next(i for i, place in enumerate(places) if place is not None and place > first_gone)
        return cls(update_schema(target, domain), tuple(places), prefix)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the target's columns; its rows stay in their order."""
        columns = [
            pa.nulls(batch.num_rows, field.type)
            if place is None
            else _widened(batch.column(place), field.type)
            for place, field in zip(self.places, self.target, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.target)


def _widened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if pa.types.is_float16(column.type):
        # Not by a cast, which some versions of pyarrow lack for float16.
        values = raw(column, np.dtype(np.float16)).astype(np.float32)
        column = pa.array(values, mask=column.is_null().to_numpy(zero_copy_only=False))
    return canonical(column.cast(kind))


def in_order(batches: Iterable[pa.RecordBatch], prefix: int) -> Iterator[pa.RecordBatch]:
    """Sort updates that are sorted by their first columns only; holds one batch, and one group."""
    held: list[pa.RecordBatch] = []
    end: Comparable | None = None
    for batch in batches:
        # The last group may continue in the next batch.
        last = int(group_starts(batch, prefix).nonzero()[0][-1])
        if held and (last or row_tuple(batch, 0, prefix) != end):
            yield sort_batch(pa.concat_batches([*held, batch.slice(0, last)]))
            held = []
        elif last:
            yield sort_batch(batch.slice(0, last))
        held.append(batch.slice(last))
        end = row_tuple(batch, batch.num_rows - 1, prefix)
    if held:
        yield sort_batch(pa.concat_batches(held))
