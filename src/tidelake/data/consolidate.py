"""Consolidation of a whole table: equal updates summed, zeros dropped, in the total order.

Owns the way from unsorted rows in memory to one sorted run; must not know queries, parts or files.
Invariant: the result has the same sum for every (key, value, time) as the input, and every sum is
exact.
"""

import pyarrow as pa

from tidelake.data.merge import merge
from tidelake.data.sums import sort_batch, sum_batch
from tidelake.data.types import update_schema
from tidelake.errors import InvalidUpdates
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain


def consolidate(table: pa.Table, schema: Schema, domain: TimeDomain, chunk_rows: int = 262_144) -> pa.Table:
    """Sort and consolidate updates.

    Args:
        table: canonical updates in any order, as `normalize` makes them.
        schema: of the rows.
        domain: of the times.
        chunk_rows: rows that are sorted at once.

    Returns:
        The same updates in the total order, each (key, value, time) once, none with diff 0.

    Raises:
        InvalidUpdates: a sum of diffs does not fit into an int64; names the row.
    """
    rows_schema = update_schema(schema, domain)
    everything = Updates(Frontier.of(domain.minimum), Frontier())
    try:
        runs = [[_consolidated(batch)] for batch in _slices(table, chunk_rows)]
        merged = runs[0] if len(runs) == 1 else list(merge(runs, schema, domain, everything, chunk_rows))
    except InvalidUpdates:
        # The sum within one slice may leave an int64 where the sum over all does not: let all decide.
        merged = [_consolidated(batch) for batch in _slices(table, max(1, table.num_rows))]
    return pa.Table.from_batches(merged, rows_schema)


def _slices(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    """The table as batches of `rows` rows, whatever its chunks are."""
    slices = (table.slice(start, rows) for start in range(0, table.num_rows, rows))
    return [pa.concat_batches(piece.to_batches()) for piece in slices]


def _consolidated(batch: pa.RecordBatch) -> pa.RecordBatch:
    return sum_batch(sort_batch(batch))[0]
