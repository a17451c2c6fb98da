"""Rows cut into ranges of keys, so that each range can be processed in bounded memory.

Owns where ranges begin; must not know what is done with them. Invariant: all rows of one key are in one
range, in the order in which they came in, and ranges come in ascending order of their keys.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelake.data.kernel.arrays import from_numpy
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.order import group_starts
from tidelake.data.kernel.sort import sort_indices
from tidelake.errors import UsageError
from tidelake.model.schema import Schema

_ROW = "_tidelake_row"
# Fewer rows at once take hardly less time.
_ENOUGH_ROWS = 4096


@dataclass(frozen=True)
class RangeLimits:
    """How large a range with more than one key may be.

    Attributes:
        ranges: this many ranges together must be within the limits. Rows that fit at once are cut as well,
            unless they are few.
    """

    rows: int
    size: int
    ranges: int = 1

    def rows_of(self, table: pa.Table) -> int:
        """How many rows like these a range may have."""
        if not table.num_rows:
            return self.rows
        fitting: int = self.size * table.num_rows // max(1, table.nbytes)
        return max(1, min(self.rows, fitting))


def key_ranges(tables: Iterable[pa.Table], schema: Schema, limits: RangeLimits) -> Iterator[pa.Table]:
    """Sort rows by key, stably, and cut them where a key begins."""
    held: list[pa.Table] = []
    most = 0
    done: bytes | None = None
    for table in tables:
        held.append(table)
        joined = pa.concat_tables(held)
        held = [joined]
        # If one key fills a range, its rows are sorted again only once there are twice as many.
        if joined.num_rows <= max(most, limits.rows_of(joined)):
            continue
        # The last range may continue with the rows that follow.
        held.clear()
        for found in _cut(joined, schema, limits):
            if held:
                _check_after(done, held[0], schema)
                done = _key(held[0], -1, schema)
                yield held.pop()
            held.append(found)
        most = 2 * held[0].num_rows
    for joined in held:
        for found in _cut(joined, schema, limits):
            _check_after(done, found, schema)
            yield found
            if found.num_rows < joined.num_rows:
                done = _key(found, -1, schema)


def _cut(table: pa.Table, schema: Schema, limits: RangeLimits) -> Iterator[pa.Table]:
    """All rows of the table, in ranges."""
    if not table.num_rows:
        return
    names = [column.name for column in schema.key]
    keys = table.select(names).append_column(_ROW, from_numpy(np.arange(table.num_rows)))
    batch = keys.combine_chunks().to_batches()[0]
    order = sort_indices(batch, len(names) + 1)
    starts = group_starts(batch.select(names).take(order), len(names)).nonzero()[0]
    edges = np.append(starts[1:], table.num_rows)
    most = limits.rows_of(table)
    wanted = max(_ENOUGH_ROWS, -(-table.num_rows // limits.ranges))
    at, rows = 0, max(1, min(most // limits.ranges, wanted))
    while at < table.num_rows:
        # Up to the last key that ends within the limit, or the first key, however large it is.
        fits = max(np.searchsorted(edges, at + rows, "right") - 1, np.searchsorted(edges, at, "right"))
        yield table.take(order.slice(at, int(edges[fits]) - at))
        at = int(edges[fits])


def _check_after(done: bytes | None, found: pa.Table, schema: Schema) -> None:
    """Refuse a range that does not begin past the last key of those before."""
    if done is not None and _key(found, 0, schema) <= done:
        raise UsageError(
            f"more rows than fit into memory must come sorted by {', '.join(c.name for c in schema.key)}, "
            "nulls last: sort them first"
        )


def _key(rows: pa.Table, at: int, schema: Schema) -> bytes:
    found: bytes = encode_key(rows.slice(at % rows.num_rows, 1), schema)[0].as_py()
    return found
