"""The rest of a slice, kept for the next small steps of a tail.

A step that takes a few of the times of a slice decodes all of it, since a slice is sorted by key. So the
first such step keeps the rows of the later times, and the steps after it decode nothing until one reaches
into the next slice. A slice is decoded twice at most. Owns when that is done, and how much is kept.

INVARIANT: the rows of a step are those that a read of the step gives. Updates of closed times never change
while their history is held, so they may come from a version that is older than the step.
"""

from dataclasses import replace

import pyarrow as pa

from tidelake.config import MIB
from tidelake.data.kernel.select import select
from tidelake.model.query import Query, Updates
from tidelake.model.selection import ReadOptions
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import Version
from tidelake.shard.reading.versionread import VersionRead
from tidelake.state.core.backlog import CLOSED, end_of, frontier_of, spans
from tidelake.state.core.state import ShardState
from tidelake.state.spine.bases import needed

# A step of more updates is not small: what it decodes in vain is less than what it takes.
_STEP_ROWS = 65_536
# What is kept of a slice in memory. Of a larger one each step decodes what it needs.
_KEPT_BYTES = 64 * MIB
# Stored bytes take several times as much in memory.
_STORED_BYTES = _KEPT_BYTES // 4


class ReadAhead:
    """What one tail keeps: updates of one interval of times, of all columns, in the order of rows.

    Args:
        shard: that the tail follows.
        options: of the tail.
    """

    def __init__(self, shard: Shard, options: ReadOptions) -> None:
        self._shard = shard
        # Tasks select the columns themselves.
        self._options = replace(options, columns=None, times="int64")
        self._batches: list[pa.RecordBatch] = []
        self._lower = self._upper = self._schemas = 0
        self._too_large: int | None = None

    def rows(self, version: Version, asked: Query) -> list[pa.RecordBatch] | None:
        """The answer to a small step, from what is kept or read ahead now; None: read it as usual."""
        if not isinstance(asked, Updates) or asked.lower.closed or asked.upper.closed:
            return None
        lower, upper = end_of(asked.lower), end_of(asked.upper)
        kept = self._lower <= lower and upper <= self._upper and self._schemas == len(version.spec.schemas)
        if not kept:
            stop = _rest(version.state, asked, lower, upper)
            if stop is None or stop == self._too_large or not self._fill(version, lower, stop):
                return None
        found = (select(batch, asked, version.spec.domain) for batch in self._batches)
        return [batch for batch in found if batch.num_rows]

    def clear(self) -> None:
        """Keep nothing."""
        self._batches = []
        self._lower = self._upper = 0

    def _fill(self, version: Version, lower: int, stop: int) -> bool:
        """Read an interval; False if it is too large to be kept."""
        self.clear()
        asked = Updates(frontier_of(lower), frontier_of(stop))
        batches, size_bytes = [], 0
        for batch in VersionRead.of(self._shard, version, asked, self._options).stream():
            batches.append(batch)
            size_bytes += batch.nbytes
            if size_bytes > _KEPT_BYTES:
                self._too_large = stop
                return False
        self._batches, self._lower, self._upper = batches, lower, stop
        self._schemas = len(version.spec.schemas)
        return True


def _rest(state: ShardState, asked: Updates, lower: int, upper: int) -> int | None:
    """Where the slices or other batches end that a small step reads a part of; None: read no more than asked.

    Costs O(parts).
    """
    closed = end_of(state.upper)
    ends = [end_of(batch.bounds.upper) for batch in needed(state, asked).batches]
    stop = min(max((end for end in ends if end != CLOSED), default=0), closed)
    if stop <= upper:
        return None
    ahead = needed(state, Updates(asked.lower, frontier_of(stop))).batches
    if sum(batch.size_bytes for batch in ahead) > _STORED_BYTES:
        return None
    rows = sum(span.rows for span in spans(state, lower, upper))
    return stop if rows <= min(_STEP_ROWS, sum(batch.rows for batch in ahead) // 2) else None
