"""Draining: staged updates of closed times come into the spine.

A step that closes times moves whole staged batches into the spine itself. Left are batches that hold later
times as well; they are read here and written in two: what lies before the upper, sorted and consolidated,
for the spine, and the rest, staged again. Anyone may do it at any time; the first one wins, and what the
others wrote in vain is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tidelake.data.types import update_schema
from tidelake.errors import InvalidUpdates
from tidelake.model import time as times
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.shard.runs.read import rows, sources
from tidelake.shard.runs.upload import discard, write_rows, write_run
from tidelake.shard.shard import Shard
from tidelake.state import staging
from tidelake.state.staging import Split, splits, staged_parts
from tidelake.state.state import ShardState

# So little is brought together here and now, and may stay inline.
_TINY_ROWS = 65_536
_TINY_BYTES = 4 * 1024 * 1024
# So many batches that are near each other in time become one, if there are too many.
_GATHERED = 16


@dataclass(frozen=True)
class Drained:
    """What draining did.

    Attributes:
        moves: how often the end of the spine moved.
        rows_read: updates of staged batches that were read.
    """

    moves: int = 0
    rows_read: int = 0


class Drainer:
    """Drains one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def run(self, rows_max: int | None = None) -> Drained:
        """Drain until the spine ends at `upper`, or more than `rows_max` rows are to be read."""
        moves = rows_read = 0
        while True:
            state = self._shard.known()
            if state.drained == state.upper:
                return Drained(moves, rows_read)
            names = splits(state)
            count = sum(part.rows for part in staged_parts(state, names))
            if rows_max is not None and rows_read + count > rows_max:
                return Drained(moves, rows_read)
            moves += self._put(self._split(state, names, state.upper))
            rows_read += count

    def make_room(self) -> None:
        """Bring staged batches together if there are more than the setting `runs_max`; else no store call."""
        state = self._shard.known()
        if state.staged.totals.runs <= self._shard.spec.config.runs_max:
            return
        # The larger ones are left as they are: each row is written again a few times only.
        whole = [one for one in state.staged if not any(run.truncated for run in one.batch.runs)]
        few = sorted(whole, key=lambda one: one.batch.rows)[: -(-len(whole) // 2)]
        few.sort(key=lambda one: min(times.parts(part.seen_times[0]) for part in one.batch.parts()))
        for start in range(0, len(few), _GATHERED):
            group = few[start : start + _GATHERED]
            if len(group) > 1:
                state = self._shard.known()
                self._put(self._split(state, tuple(one.name for one in group), state.drained))

    def _put(self, split: Split | None) -> bool:
        if split is None:
            self._shard.state()
            return False
        applied = self._shard.run(partial(staging.drain, split=split))
        if not applied:
            # Said on the newest state: nothing names them.
            discard(self._shard.stores.blobs, self._shard.env, (*split.below, *split.above))
        return applied

    def _split(self, state: ShardState, names: tuple[str, ...], upper: Frontier) -> Split | None:
        """Read staged batches and write them in two; None if they are no longer there."""
        if any(name not in state.staged.batches for name in names):
            return None
        batches = [state.staged.batches[name].batch for name in names]
        try:
            return self._written(batches, names, state.drained, upper)
        except InvalidUpdates:
            # A sum over all of them does not fit; over each it does, or it would not have been staged.
            apart = [self._written([batch], names, state.drained, upper) for batch in batches]
            below = tuple(run for one in apart for run in one.below)
            return Split(names, upper, below, tuple(run for one in apart for run in one.above))

    def _written(
        self, batches: Sequence[HollowBatch], names: tuple[str, ...], end: Frontier, upper: Frontier
    ) -> Split:
        below = self._run(batches, Updates(end, upper)) if end != upper else ()
        try:
            return Split(names, upper, below, self._run(batches, Updates(upper, Frontier())))
        except BaseException:
            discard(self._shard.stores.blobs, self._shard.env, below)
            raise

    def _run(self, batches: Sequence[HollowBatch], query: Updates) -> tuple[Run, ...]:
        """One run of what some batches hold of an interval; none if that is nothing."""
        spec, blobs, env = self._shard.spec, self._shard.stores.blobs, self._shard.env
        found = rows(spec, blobs, sources(batches, query), query)
        if (
            sum(batch.rows for batch in batches) <= _TINY_ROWS
            and sum(b.size_bytes for b in batches) <= _TINY_BYTES
        ):
            table = pa.Table.from_batches(found, update_schema(spec.schema, spec.domain))
            room = sum(batch.inline_bytes for batch in batches)
            run = write_rows(spec, blobs, env, table, inline_bytes_max=room)
        else:
            run = write_run(spec, blobs, env, found)
        return () if run is None else (run,)
