"""Counts rows with a negative multiplicity: they were deleted more often than they were added.

This is not damage, and reads return such rows with their multiplicity. Most often a writer deleted rows that
it had not written, so a check reports them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidelake.model import time as times
from tidelake.model.query import AsOf
from tidelake.model.schema import DIFF
from tidelake.model.time import TIME_MAX
from tidelake.shard.runs.read import rows, sources
from tidelake.shard.spec import ShardSpec
from tidelake.state.state import ShardState
from tidelake.store.protocols import BlobStore


@dataclass(frozen=True)
class Negatives:
    """The number of rows with a negative multiplicity.

    Attributes:
        as_of: the time of the contents that were counted.
        rows: number of distinct rows with a negative multiplicity.
        example: one of them as text; empty if there is none.
    """

    as_of: int
    rows: int
    example: str = ""


def negatives(spec: ShardSpec, blobs: BlobStore, state: ShardState) -> Negatives | None:
    """Count them at the last closed time. Costs a read of the contents; none if nothing was ever deleted.

    Args:
        spec: the spec of the shard, with all schemas of the state.
        blobs: the store that holds its parts.
        state: the state as readers see it; its parts must exist for as long as this takes.

    Returns:
        The count; None if no time is closed, or times are tuples, which have no last one.

    Raises:
        BlobNotFound: a part is gone.
    """
    if not state.domain.total_order or state.dropped:
        return None
    last = TIME_MAX if state.upper.closed else times.parts(state.upper.elements[0])[0] - 1
    if last < 0 or not state.since.less_equal(last):
        return None
    if not any(part.negative_rows for part in state.parts()):
        return Negatives(last, 0)
    found, example = 0, ""
    for batch in rows(spec, blobs, sources(state.batches(), AsOf(last)), AsOf(last)):
        counts: npt.NDArray[np.int64] = batch.column(DIFF).to_numpy()
        below = np.flatnonzero(counts < 0)
        if len(below) and not found:
            example = str(batch.slice(int(below[0]), 1).to_pylist()[0])[:200]
        found += len(below)
    return Negatives(last, found, example)
