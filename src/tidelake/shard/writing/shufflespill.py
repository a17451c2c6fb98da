"""Spills rows for another process, which merges the rows of many processes.

Owns how rows that are not updates yet are kept between two processes: as sorted runs in the blob store,
under part names that no state ever names, so that garbage collection removes forgotten runs. Must not know
what the rows mean. Invariant: the rows that are read are those that were put, in ascending order of keys.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from typing import cast

import pyarrow as pa

from tidelake.data.keys.keyruns import merged, plain, sorted_run
from tidelake.errors import BlobNotFound, CorruptionError, OutcomeUnknown, StoreUnavailable, UploadExpired
from tidelake.model import names
from tidelake.shard.engine.spec import ShardSpec, decoded, env_here, stores_of
from tidelake.state.core.codec import encode_record
from tidelake.state.core.partnames import given_up
from tidelake.state.core.state import ShardState

# A run is this fraction of the memory: to sort it takes the rows, a sorted copy, and the encoding.
_RUN_SHARE = 8
_BATCH_ROWS = 4096
# The most runs that are read at once; more are merged in steps. Bounds open files and the rows held of each.
_RUNS_MAX = 64
# So many bytes of a run are read at once from a store that is far.
_AHEAD_BYTES = 1 << 20

Keys = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True)
class ShuffleSpill:
    """Puts and reads spilled rows of one shard. Goes to other processes as bytes.

    Attributes:
        spec: the shard; rows are sorted by its key.
    """

    spec: ShardSpec

    def to_bytes(self) -> bytes:
        """A form for another process; no credentials."""
        return encode_record("spill", self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "ShuffleSpill":
        """Read `to_bytes`."""
        return decoded("spill", data, cls, "spill")

    @property
    def run_bytes(self) -> int:
        """The most that a run takes in memory."""
        return self.spec.config.merge_memory_bytes // _RUN_SHARE

    def put(self, batches: Iterable[pa.RecordBatch], keys: Keys) -> tuple[str, ...]:
        """Store rows in runs that are sorted by key. One `put` for each run. Memory: `merge_memory_bytes`.

        Args:
            batches: the rows; all batches have equal columns.
            keys: maps a batch to its key columns, in the collection's types.

        Returns:
            The names of the runs, for `rows`.
        """
        return tuple([self._put(run) for run in self._runs(batches, keys)])

    def _put(self, run: pa.Table) -> str:
        name = names.part(self.spec.shard_id, self.spec.seqno, env_here().ids.fresh())
        # The batches of as many runs as are read at once fit into the memory of a run.
        fitting = run.num_rows * self.run_bytes // _RUNS_MAX // max(1, run.nbytes)
        stores_of(self.spec).blobs.put(name, _encoded(run, max(1, min(fitting, _BATCH_ROWS))))
        return name

    def _runs(self, batches: Iterable[pa.RecordBatch], keys: Keys) -> Iterator[pa.Table]:
        for held in self._pieces(batches):
            rows = pa.concat_batches(held)
            yield sorted_run(pa.Table.from_batches([rows]), keys(rows), self.spec.schema)

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
        """The batches in lists that each fit into memory several times over."""
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if held and size + batch.nbytes > self.run_bytes:
                yield held
                held, size = [], 0
            held.append(batch)
            size += batch.nbytes
        if any(batch.num_rows for batch in held):
            yield held

    def rows(self, stored: Sequence[str], at: ShardState) -> Iterator[pa.RecordBatch]:
        """The rows of runs, in ascending order of keys. One `open` for each run.

        Holds few rows of each run. More than 64 runs are merged in several steps, each of which
        stores all rows once more until this iterator ends.

        Args:
            stored: the names of the runs.
            at: the state of the shard that the rows are to be written to.

        Raises:
            UploadExpired: a run was put so long ago that it was collected, or before rows were erased.
        """
        runs: list[tuple[str, ...]] = [(self._own(name),) for name in stored]
        late = given_up(at, stored)
        if late is not None:
            raise late
        made: list[str] = []
        try:
            while len(runs) > _RUNS_MAX:
                groups = [runs[i : i + _RUNS_MAX] for i in range(0, len(runs), _RUNS_MAX)]
                runs = [self._put_merged(group, made) for group in groups]
            with closing(self._merged(runs)) as found:
                yield from map(plain, found)
        finally:
            self.discard(made)

    def _put_merged(self, runs: Sequence[Sequence[str]], made: list[str]) -> tuple[str, ...]:
        """Merge several runs into one, in as many objects as the memory bound requires; note their names."""
        stored: list[str] = []
        with closing(self._merged(runs)) as found:
            for held in self._pieces(found):
                stored.append(self._put(pa.Table.from_batches(held).combine_chunks()))
                made.append(stored[-1])
        return tuple(stored)

    def _merged(self, runs: Sequence[Sequence[str]]) -> Generator[pa.RecordBatch]:
        with ExitStack() as opened:
            yield from merged([opened.enter_context(closing(self._read(run))) for run in runs])

    def _read(self, run: Sequence[str]) -> Generator[pa.RecordBatch]:
        """The rows of one run: those of its objects, one after the other."""
        blobs = stores_of(self.spec).blobs
        for name in run:
            try:
                with blobs.open(name) as file:
                    # Arrow reads in small pieces, each of which would be a round trip.
                    pieces = BufferedReader(cast(RawIOBase, file), _AHEAD_BYTES) if blobs.is_far else file
                    yield from pa.ipc.open_stream(pieces)
            except BlobNotFound as error:
                raise UploadExpired(name, names.uploaded_at(name) or 0, self.spec.seqno) from error

    def _own(self, name: str) -> str:
        """Check that the name of a run, which came in a message, is one of `put`; return it."""
        if names.owner(name) != self.spec.shard_id:
            raise CorruptionError("spill", f"it names {name!r}, which is no run of this shard")
        return name

    def discard(self, stored: Sequence[str]) -> None:
        """Delete runs that are no longer needed. Collection deletes those that the store does not."""
        blobs = stores_of(self.spec).blobs
        for name in map(self._own, stored):
            try:
                blobs.delete(name)
            except (StoreUnavailable, OutcomeUnknown):
                env_here().failed("discard.failed")


def _encoded(run: pa.Table, rows_max: int) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, run.schema, options=options) as writer:
        writer.write_table(run, max_chunksize=rows_max)
    return bytes(sink.getvalue())
