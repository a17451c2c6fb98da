"""What changes the rows of some runs into others: two sorted streams, netted.

Owns the way from a full dump to updates; must not know who asks. Invariant: the rows that are there and the
updates, summed, are the rows that are to be there; rows that are both are in no update.
"""

from collections.abc import Generator, Iterable
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.merge import merge
from tidelake.errors import InvalidUpdates
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Updates
from tidelake.model.time import Time
from tidelake.shard.runs.read import rows
from tidelake.shard.runs.scope import KeyRange, Source
from tidelake.shard.spec import ShardSpec
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
    """What changes some rows into others: updates at one time, sorted and consolidated.

    Args:
        spec: of the shard.
        blobs: with its parts.
        old: runs that hold the rows that are there, at times up to `at`.
        new: the rows that are to be there, at `at`; sorted, consolidated.
        at: the time.
        keys: of the old rows; default: all.
    """
    everything = Updates(Frontier.of(spec.domain.minimum), Frontier())
    with closing(rows(spec, blobs, old, AsOf(at), keys)) as there:
        runs = [map(_negated, there), iter(new)]
        yield from merge(runs, spec.schema, spec.domain, everything, spec.config.merge_chunk_rows)


def _negated(batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        diffs = pc.negate_checked(batch.column(batch.num_columns - 1))
    except pa.ArrowInvalid as error:
        raise InvalidUpdates("a row is there -2^63 times, and cannot be added as often") from error
    return pa.RecordBatch.from_arrays([*batch.columns[:-1], diffs], schema=batch.schema)
