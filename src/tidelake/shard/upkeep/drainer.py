"""Draining: moves staged updates of closed times into the spine.

A command that closes times moves staged batches into the spine if all of their times are closed. This module
handles batches that also hold later times: it reads them and writes them as two parts, the updates before the
upper, sorted and consolidated, for the spine, and the rest, which stays staged. Any process may drain at any
time; the first one wins, and the parts that the others wrote in vain are deleted.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from tidelake.data.kernel.types import update_schema
from tidelake.errors import (
    BlobNotFound,
    CorruptionError,
    InvalidUpdates,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeWarning,
)
from tidelake.model import time as times
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.shard.engine.requestqueue import Request
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.read import rows, sources
from tidelake.shard.runs.upload import discard, write_rows, write_run
from tidelake.state.core.state import ShardState
from tidelake.state.write import staging
from tidelake.state.write.staging import Split, splits, staged_parts

# At most this much is split in memory, and may stay inline.
_TINY_ROWS = 65_536
_TINY_BYTES = 4 * 1024 * 1024
# This many batches that are close in time become one, if there are too many batches.
_GATHERED = 16
_TURN = "gather"


@dataclass(frozen=True)
class Drained:
    """What draining did.

    Attributes:
        moves: how often the end of the spine moved.
        rows_read: number of updates of staged batches that were read.
    """

    moves: int = 0
    rows_read: int = 0


class Drainer:
    """Drains one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def run(self, rows_max: int | None = None) -> Drained:
        """Drain until the spine has all times that are closed now, but read at most `rows_max` rows.

        Times that are closed meanwhile are left to the next run: with a busy shard this one would never end.
        """
        moves = rows_read = 0
        closed = self._shard.known().upper
        while True:
            state = self._shard.known()
            if closed <= state.drained:
                return Drained(moves, rows_read)
            names = splits(state)
            count = sum(part.rows for part in staged_parts(state, names))
            if rows_max is not None and rows_read + count > rows_max:
                return Drained(moves, rows_read)
            moves += self._put(self._drained(state, names))
            rows_read += count

    def make_room(self) -> None:
        """Merge staged batches if there are too many, which bounds the number of runs that readers merge.

        Too many means more runs than the setting `runs_max`, or inline parts that take half of the bytes
        allowed in the state. Otherwise no store call. One thread of one process does it; the other threads of
        the process wait.
        """
        if not self._crowded():
            return
        shard = self._shard
        try:
            shard.group_commit.gathers.run(Request(), self._gather_for)
        except (BlobNotFound, CorruptionError) as error:
            message = f"staged batches cannot be merged: {error}"
            warnings.warn(TidelakeWarning(message), stacklevel=2)
        except OutcomeUnknown as error:
            message = f"nothing was staged, since a merge that had to come first failed: {error}"
            raise StoreUnavailable(message) from error
        shard.env.recorder.count("staged.gathered")

    def _crowded(self) -> bool:
        totals, config = self._shard.known().staged.totals, self._shard.spec.config
        return totals.runs > config.runs_max or (
            totals.members > 1 and totals.inline_bytes * 2 > config.inline_total_bytes
        )

    def _gather_for(self, asking: Sequence[Request]) -> None:
        try:
            # Only one process at a time: the others would read and write the same batches in vain.
            with self._shard.stores.locks.take(self._shard.spec.shard_id, _TURN) as is_ours:
                if is_ours:
                    self._gather()
        except Exception as error:
            for request in asking:
                request.fail(error)
        for request in asking:
            request.answered = True

    def _gather(self) -> None:
        """Merge batches that are close in time, a few at a time.

        The larger half of the batches is left as it is, so that each row is rewritten only a few times.
        """
        state = self._shard.state()
        if not self._crowded():
            return
        whole = [one for one in state.staged if not any(run.truncated for run in one.batch.runs)]
        few = sorted(whole, key=lambda one: one.batch.rows)[: -(-len(whole) // 2)]
        few.sort(key=lambda one: min(times.parts(part.seen_times[0]) for part in one.batch.parts()))
        for start in range(0, len(few), _GATHERED):
            group = few[start : start + _GATHERED]
            if len(group) > 1:
                state = self._shard.known()
                # If a sum does not fit, they stay as they are: later updates may make it fit.
                with suppress(InvalidUpdates):
                    self._put(self._split(state, tuple(one.name for one in group), state.drained))

    def _put(self, split: Split | None) -> bool:
        if split is None:
            self._shard.state()
            return False
        applied = self._shard.run(partial(staging.drain, split=split))
        if not applied:
            # The command was refused on the newest state, so no state names the parts.
            discard(self._shard.stores.blobs, self._shard.env, (*split.below, *split.above))
        return applied

    def _split(
        self, state: ShardState, names: tuple[str, ...], upper: Frontier, *, apart: bool = False
    ) -> Split | None:
        """Read staged batches and write them as two: updates before `upper`, and the rest.

        With `apart`, each run is rewritten by itself; otherwise all runs are merged.

        Returns:
            The result; None if the batches are no longer staged.
        """
        if not _has(state, names):
            return None
        batches = [state.staged.batches[name].batch for name in names]
        groups = [[replace(batch, runs=(run,))] for batch in batches for run in batch.runs]
        try:
            return self._written(groups if apart else [batches], names, state, upper)
        except BlobNotFound:
            if _has(self._shard.state(), names):
                raise
            return None

    def _drained(self, state: ShardState, names: tuple[str, ...]) -> Split | None:
        """Split at the upper, run by run if a sum over all runs does not fit: within a run every sum fits."""
        try:
            return self._split(state, names, state.upper)
        except InvalidUpdates:
            return self._split(state, names, state.upper, apart=True)

    def _written(
        self,
        groups: Sequence[Sequence[HollowBatch]],
        names: tuple[str, ...],
        state: ShardState,
        upper: Frontier,
    ) -> Split:
        """Write each group of batches of a state as a run before `upper` and a run of the rest."""
        below: list[Run] = []
        above: list[Run] = []
        spec = self._shard.version_of(state).spec
        try:
            for batches in groups:
                if state.drained != upper:
                    below += self._run(spec, batches, Updates(state.drained, upper))
                above += self._run(spec, batches, Updates(upper, Frontier()))
        except BaseException:
            discard(self._shard.stores.blobs, self._shard.env, (*below, *above))
            raise
        return Split(names, upper, tuple(below), tuple(above), state.seqno)

    def _run(self, spec: ShardSpec, batches: Sequence[HollowBatch], query: Updates) -> tuple[Run, ...]:
        """Write the updates of some batches in an interval as one run; no run if there are no updates."""
        blobs, env = self._shard.stores.blobs, self._shard.env
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


def _has(state: ShardState, names: Sequence[str]) -> bool:
    return all(name in state.staged.batches for name in names)
