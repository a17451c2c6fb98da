"""Builds a batch from more rows than fit into memory, here or in another process (`Uploader`).

Owns when a part is cut, which parts make a run, and when runs are merged while the batch is being built; must
not know how it is appended. Invariant: runs are sorted even if the caller wrongly said that the rows are; and
unless a batch was handed out, everything that was stored is deleted.

Memory: one load in the buffer, of `part_target_bytes` or, if that is less, a quarter of
`merge_memory_bytes`; for the part in progress, or `upload_parts_max` if the store is far, its load, copies of
some chunks, and the encoded bytes; for each of `merge_fan_in` runs in a merge 4 MiB, or what
`merge_chunk_rows` rows take; and the table that is being added. The number of rows does not matter, except
for about 500 bytes of description per part.
"""

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import pyarrow as pa

from tidelake.data.kernel.order import Comparable, row_tuple
from tidelake.data.kernel.rowbuffer import Load, RowBuffer
from tidelake.data.kernel.types import update_schema
from tidelake.data.part.lasttimes import LastTimes
from tidelake.env import Env
from tidelake.errors import OutcomeUnknown, StoreUnavailable, UpdateNotBeforeUpper, UsageError
from tidelake.handle import Handle
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.shard.engine.allocator import lean_memory
from tidelake.shard.engine.overlap import Background, Job
from tidelake.shard.engine.spec import ShardSpec, decoded, env_here, stores_of
from tidelake.shard.runs.read import Source, rows
from tidelake.shard.runs.upload import check_times, discard, normalized, write_run, write_table
from tidelake.shard.writing.batch import Batch, check_frontier, warn_forgotten
from tidelake.shard.writing.mergetree import next_merge, runs_waiting_max
from tidelake.state.core.codec import encode_record
from tidelake.store.layers import BlobLayer
from tidelake.store.protocols import BlobStore


class Ledger(BlobLayer):
    """A `BlobStore` that lists the objects that were put through it and not deleted. Thread-safe."""

    def __init__(self, inner: BlobStore) -> None:
        super().__init__(inner)
        self._names: dict[str, None] = {}
        self._lock = threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        """Put if absent; see `BlobStore.put`."""
        # List it before the put, whose outcome may be unknown.
        with self._lock:
            self._names[name] = None
        self._inner.put(name, data)

    def delete(self, name: str) -> bool:
        """Remove; see `BlobStore.delete`."""
        present = self._inner.delete(name)
        with self._lock:
            self._names.pop(name, None)
        return present

    def close(self) -> None:
        """Do nothing: others use the store below too."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the objects that may exist, in the order in which they were put."""
        with self._lock:
            return tuple(self._names)

    def delete_all_but(self, kept: Iterable[str], env: Env) -> None:
        """Delete all listed objects but the `kept` ones. Counts failures, whose names stay listed."""
        wanted = set(kept)
        for name in self.names:
            if name in wanted:
                continue
            try:
                self.delete(name)
            except (StoreUnavailable, OutcomeUnknown):
                env.failed("discard.failed")


# A load is at most this fraction of a merge's memory: one fills while others are sorted and stored.
_LOAD_SHARE = 4


@dataclass(frozen=True)
class Added:
    """The answer to `BatchBuilder.add`.

    Attributes:
        rows: number of updates that were added, before consolidation.
        cut: whether the buffer was full, so that a part is on its way to the store.
    """

    rows: int
    cut: bool


@dataclass(frozen=True)
class _Piece:
    """A run that was made of one load, with its first and last row."""

    run: Run
    first: Comparable
    last: Comparable


class BatchBuilder(Handle):
    """Takes tables of updates, stores them as parts in the background, and returns a `Batch`.

    Use it in a `with` block: leaving the block deletes what was stored, unless `finish` returned the batch.
    An error of `add` or `finish` does the same at once. For one thread of one process.
    """

    def __init__(
        self,
        spec: ShardSpec,
        blobs: BlobStore,
        env: Env,
        lower: Frontier,
        *,
        sorted: bool = False,  # noqa: A002 - the word of the interface
        upper: Frontier | None = None,
    ) -> None:
        """Start a batch; nothing is stored yet.

        Args:
            spec: the spec of the shard.
            blobs: the store for the parts.
            env: source of ids, and the recorder.
            lower: all times must be at or after it.
            sorted: rows come sorted by key, value and time, and are kept as one run. Where rows are out of
                order, a new run begins.
            upper: if given, times at or after it are refused at once; `finish` checks in any case.
        """
        self._spec, self._env = spec, env
        self._blobs, self._ledger = blobs, Ledger(blobs)
        self._lower, self._upper = lower, upper
        self._sorted = sorted
        self._last_times = LastTimes(spec.domain)
        limit_bytes = min(spec.config.part_target_bytes, spec.config.merge_memory_bytes // _LOAD_SHARE)
        self._buffer = RowBuffer(limit_bytes, whole_groups=sorted)
        # One part is sorted, encoded and hashed by several threads, which only a far store lets wait.
        depth = spec.config.upload_parts_max if blobs.is_far else 1
        self._background = Background(depth, lambda: env.recorder.count("builder.stalled"))
        self._pieces: deque[Job[_Piece | None]] = deque()
        self._runs: list[Run] = []
        self._end: Comparable | None = None
        self._merging: tuple[int, int, Job[Run | None]] | None = None
        self._open = True

    def __enter__(self) -> "BatchBuilder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, updates: object) -> Added:
        """Add updates with their times, in the forms that `Collection.append` takes.

        Waits while a part is in progress, or `upload_parts_max` if the store is far. A table is checked as a
        whole first, so add a long stream batch by batch.

        Raises:
            InvalidUpdates: they do not fit the collection.
            UpdateBeforeLower: a time is before the batch's lower.
            TidelakeError: storing a part of this call or an earlier one failed.
        """
        self._check_open()
        try:
            return self._add(normalized(self._spec, updates))
        except BaseException:
            self.close()
            raise

    def _add(self, table: pa.Table) -> Added:
        check_times(table, self._spec.domain, self._lower, self._upper)
        self._last_times.add(table)
        cut = False
        for load in self._buffer.add(table):
            self._cut(load)
            cut = True
        return Added(table.num_rows, cut)

    def finish(self, upper: Frontier) -> Batch:
        """Store the rest and return the batch of `[lower, upper)`, whose parts the caller owns from now on.

        Raises:
            UpdateNotBeforeUpper: a time that was added is at or after `upper`.
            UsageError: `upper` is not a frontier (the builder can still be used), or is before the lower.
            TidelakeError: storing a part failed.
        """
        self._check_open()
        check_frontier(upper, "upper")
        try:
            bounds = Bounds(self._lower, upper, Frontier.of(self._spec.domain.minimum))
            late = self._last_times.at_or_after(upper)
            if late is not None:
                raise UpdateNotBeforeUpper(late, upper).of(self._spec.domain.unit)
            rest = self._buffer.take()
            if rest:
                self._cut(rest)
            self._finish_parts()
            if not self._last_times.complete:
                self._check_stored(upper)
        except BaseException:
            self.close()
            raise
        self._open = False
        hollow = HollowBatch(bounds, tuple(self._runs))
        # Delete the inputs of merges that the store failed to delete before.
        self._ledger.delete_all_but((part.name for part in hollow.parts()), self._env)
        return Batch(self._spec, self._blobs, self._env, hollow)

    def close(self) -> None:
        """Delete what was stored, unless `finish` returned the batch. May be repeated."""
        if not self._open or self._background.foreign:
            return
        self._open = False
        self._buffer.take()
        self._background.close()
        self._ledger.delete_all_but((), self._env)

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("this builder is finished or closed: make another one")
        if self._background.foreign:
            raise UsageError("a builder belongs to the process that made it: make another one in this fork")

    def _cut(self, load: Load) -> None:
        self._pieces.append(
            self._background.submit(partial(_stored, self._spec, self._ledger, self._env, load))
        )
        self._collect(wait=False)
        self._merge(last=False)
        # Wait for merges if parts come faster than they can be merged.
        config = self._spec.config
        while self._merging and len(self._runs) > config.builder_runs_max + runs_waiting_max(
            config.merge_fan_in
        ):
            self._collect_merge()
            self._merge(last=False)

    def _finish_parts(self) -> None:
        """Wait for all parts in progress, and merge until there are few enough runs."""
        self._collect(wait=True)
        self._collect_merge()
        self._merge(last=True)
        while self._merging:
            self._collect_merge()
            self._merge(last=True)
        self._background.close()

    def _collect(self, *, wait: bool) -> None:
        """Collect the parts that are stored, in the order in which they were cut."""
        while self._pieces and (wait or self._pieces[0].done):
            piece = self._pieces.popleft().result()
            if piece is None:
                continue
            if self._sorted and self._runs and self._end is not None and self._end < piece.first:
                self._runs[-1] = Run(self._runs[-1].parts + piece.run.parts)
            else:
                self._runs.append(piece.run)
            self._end = piece.last
        if self._merging and self._merging[2].done:
            self._collect_merge()

    def _collect_merge(self) -> None:
        if self._merging is None:
            return
        start, end, job = self._merging
        run = job.result()
        self._merging = None
        self._runs[start:end] = [] if run is None else [run]

    def _merge(self, *, last: bool) -> None:
        """Start a merge if there are too many runs and no merge is running."""
        config = self._spec.config
        sizes = [run.size_bytes for run in self._runs]
        found = next_merge(sizes, config.builder_runs_max, config.merge_fan_in, last=last)
        if self._merging or found is None:
            return
        start, end = found
        group = tuple(self._runs[start:end])
        if end == len(self._runs):
            # The last run is being merged, so no more parts may be added to it.
            self._end = None
        job = self._background.submit(partial(_merged, self._spec, self._ledger, self._env, group))
        self._merging = start, end, job
        self._env.recorder.count("builder.merges")

    def _check_stored(self, upper: Frontier) -> None:
        """Check the times of every stored row: there were too many different last times to keep in memory."""
        for run in self._runs:
            with closing(
                rows(self._spec, self._ledger, [_whole(self._spec, run)], _all(self._spec))
            ) as found:
                for batch in found:
                    check_times(pa.Table.from_batches([batch]), self._spec.domain, None, upper)

    def __del__(self) -> None:
        # Only warn, do not delete: the garbage collector may call this at any time, in any thread.
        if getattr(self, "_open", False) and not self._background.foreign and self._ledger.names:
            warn_forgotten("a batch builder was neither finished nor closed", self._ledger.names, self)


def add_canonical(builder: BatchBuilder, table: pa.Table) -> None:
    """Add updates that were made of rows of the collection: only their times are checked.

    If it fails, close the builder. Errors as for `BatchBuilder.add`.
    """
    builder._add(table)


def _stored(spec: ShardSpec, ledger: Ledger, env: Env, load: Load) -> _Piece | None:
    """Store one load as a run of its own; None if its updates cancel out."""
    table = pa.Table.from_batches(load, update_schema(spec.schema, spec.domain))
    # The list belongs to this function, so clear it: its rows are freed as soon as they are stored.
    load.clear()
    width = table.num_columns - 1
    first: list[Comparable] = []
    last: list[Comparable] = []

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not first:
            first.append(row_tuple(batch, 0, width))
        last[:] = [row_tuple(batch, batch.num_rows - 1, width)]
        return batch

    with lean_memory():
        runs = write_table(spec, ledger, env, table, watch=noted, sorted_rows=spec.config.merge_chunk_rows)
    del table
    _release()
    return _Piece(runs[0], first[0], last[0]) if runs else None


def _merged(spec: ShardSpec, ledger: Ledger, env: Env, group: tuple[Run, ...]) -> Run | None:
    """Merge several runs into one and delete them; None if their updates cancel out."""
    needed = [_whole(spec, run) for run in group]
    with lean_memory(), closing(rows(spec, ledger, needed, _all(spec))) as found:
        run = write_run(spec, ledger, env, found)
    discard(ledger, env, group)
    _release()
    return run


def _release() -> None:
    # Arrow's allocator keeps freed memory for the thread that freed it, which is about to end. Without this,
    # a process was measured to grow to twice its size.
    pa.default_memory_pool().release_unused()


def _whole(spec: ShardSpec, run: Run) -> Source:
    return Source(run, Frontier.of(spec.domain.minimum), Frontier())


def _all(spec: ShardSpec) -> Updates:
    return Updates(Frontier.of(spec.domain.minimum), Frontier())


@dataclass(frozen=True)
class Uploader:
    """Uploads updates from any process. Goes there as bytes.

    Attributes:
        spec: the shard.
        lower: times that are not at or after it are refused; None: the append checks.
        upper: times at or after it are refused; None: the append checks.
    """

    spec: ShardSpec
    lower: Frontier | None = None
    upper: Frontier | None = None

    def to_bytes(self) -> bytes:
        """A form for another process: URL, ids, schema and settings; no credentials."""
        return encode_record("uploader", self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Uploader":
        """Read `to_bytes`."""
        return decoded("uploader", data, cls, "uploader")

    def upload(self, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Store updates, in any order; the returned bytes go to `append_uploaded`.

        Batches have the shard's update columns (see `tidelake.data.kernel.types.update_schema`); they are
        checked and made canonical like those of an append. Returns `b""` if nothing is left after
        consolidation. If it fails, what was stored is deleted. One `put` for each part. Memory is bounded as
        for `BatchBuilder`.
        """
        lower = Frontier.of(self.spec.domain.minimum) if self.lower is None else self.lower
        upper = Frontier() if self.upper is None else self.upper
        with BatchBuilder(self.spec, stores_of(self.spec).blobs, env_here(), lower, upper=upper) as builder:
            for batch in batches:
                builder.add(batch)
            built = builder.finish(upper)
        return built.to_bytes() if built.runs else b""
