"""Computes the updates that change the rows of some runs into given rows: merges two sorted streams.

Owns the way from a full dump, or from other runs, to updates; must not know what they are for. Invariant: old
rows plus updates are the new rows, and rows that are both old and new are in no update.
"""

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from tidelake.data.kernel.merge import merge
from tidelake.data.kernel.sums import opposite
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Query, Updates
from tidelake.model.selection import Selection
from tidelake.model.time import Time
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.read import rows, shown
from tidelake.shard.runs.scope import KeyRange, Source
from tidelake.store.protocols import BlobStore


def differences(
    spec: ShardSpec,
    blobs: BlobStore,
    old: list[Source],
    new: Iterable[pa.RecordBatch],
    *,
    at: Time,
    keys: KeyRange | None = None,
) -> Generator[pa.RecordBatch]:
    """The updates that change the old rows into the new rows: at one time, sorted and consolidated."""
    everything = Updates(Frontier.of(spec.domain.minimum), Frontier())
    with closing(rows(spec, blobs, old, AsOf(at), keys)) as there:
        runs = [map(negated, there), iter(new)]
        yield from merge(runs, spec.schema, spec.domain, everything, spec.config.merge_chunk_rows)


def minus(
    spec: ShardSpec,
    blobs: BlobStore,
    new: list[Source],
    old: list[Source],
    query: Query,
    *,
    selection: Selection,
) -> Generator[pa.RecordBatch]:
    """The rows of some runs less those of others, as the answer to a query: sorted, consolidated."""
    if not old:
        yield from rows(spec, blobs, new, query, selection=selection)
        return
    # Rows that are equal in some columns only are different ones.
    whole, names = replace(selection, columns=None), shown(spec, selection).names
    with (
        closing(rows(spec, blobs, old, query, selection=whole)) as there,
        closing(rows(spec, blobs, new, query, selection=whole)) as here,
    ):
        runs = [map(negated, there), here]
        for batch in merge(runs, spec.schema, spec.domain, query, spec.config.merge_chunk_rows):
            yield batch.select(names)


def negated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as their retractions."""
    diffs = opposite(batch.column(batch.num_columns - 1))
    return pa.RecordBatch.from_arrays([*batch.columns[:-1], diffs], schema=batch.schema)
