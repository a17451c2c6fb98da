"""Bringing rows in: tables of updates become runs of parts in the blob store.

Parts are uploaded before any state names them; a crash in between leaves blobs that nobody names,
which collection finds. Workers hand back an `Upload` as bytes, and the driver appends it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.consolidate import consolidate
from tidelake.data.ingest import normalize
from tidelake.data.part import write_parts
from tidelake.data.select import view
from tidelake.env import Env
from tidelake.errors import OutcomeUnknown, StoreUnavailable, UpdateBeyondUpper, UpdateNotBeyondLower
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain
from tidelake.shard import names
from tidelake.shard.spec import ShardSpec, stores_of
from tidelake.state.codec import decode_record, encode_record
from tidelake.store.protocols import BlobStore

_GROUP_SHARE = 256


def write_run(
    spec: ShardSpec,
    blobs: BlobStore,
    env: Env,
    batches: Iterable[pa.RecordBatch],
    part_bytes: int | None = None,
) -> Run | None:
    """Store sorted, consolidated batches as one run; None if there are no rows.

    Parts end at `part_target_bytes`, or at `part_bytes` if that is less. One `put` a part. If it fails
    half-way, the parts already stored are deleted again.
    """
    parts: list[Part] = []
    pieces = write_parts(
        batches,
        spec.schema,
        spec.domain,
        spec.schema_id,
        target_bytes=min(spec.config.part_target_bytes, part_bytes or spec.config.part_target_bytes),
        row_group_rows=spec.config.row_group_rows,
        stats_budget_bytes=spec.config.stats_budget_bytes,
        bound_bytes=spec.config.bound_bytes,
        # The merge that reads these parts holds several copies of a row group of every run.
        group_bytes=spec.config.merge_memory_bytes // _GROUP_SHARE,
        name=lambda: names.part(spec.shard_id, env.ids),
    )
    try:
        for part, data in pieces:
            blobs.put(part.name, data)
            parts.append(part)
            # Else it would be held until the next part is encoded.
            del data
    except BaseException:
        discard(blobs, env, [Run(tuple(parts))] if parts else [])
        raise
    return Run(tuple(parts)) if parts else None


def discard(blobs: BlobStore, env: Env, runs: Iterable[Run]) -> None:
    """Delete the parts of runs that certainly no state names.

    Only tidies up: a store that fails here must not take the place of the answer that is on its way.
    """
    for run in runs:
        for part in run.parts:
            try:
                blobs.delete(part.name)
            except (StoreUnavailable, OutcomeUnknown):
                env.recorder.count("shard.discard.failed")


def write_table(spec: ShardSpec, blobs: BlobStore, env: Env, table: pa.Table) -> tuple[Run, ...]:
    """Store a table of unsorted updates as one run, or none if it cancels to nothing."""
    rows = consolidate(table, spec.schema, spec.domain, spec.config.merge_chunk_rows)
    run = write_run(spec, blobs, env, rows.to_batches(max_chunksize=spec.config.row_group_rows * 4))
    return () if run is None else (run,)


def check_times(table: pa.Table, domain: TimeDomain, lower: Frontier | None, upper: Frontier | None) -> None:
    """Check that all times lie in `[lower, upper)`; None is without bound.

    Raises:
        UpdateNotBeyondLower, UpdateBeyondUpper: naming an offending time and the frontier.
    """
    batches = table.to_batches()
    if lower is not None and sum(view(b, domain, None, lower, None).num_rows for b in batches) < len(table):
        raise UpdateNotBeyondLower(next(t for t in _times(table, domain) if not lower.less_equal(t)), lower)
    if upper is not None and sum(view(b, domain, None, None, upper).num_rows for b in batches) < len(table):
        raise UpdateBeyondUpper(next(t for t in _times(table, domain) if upper.less_equal(t)), upper)


def _times(table: pa.Table, domain: TimeDomain) -> Iterator[Time]:
    """The distinct times, earliest first; for error messages only."""
    distinct = table.select(domain.columns).group_by(list(domain.columns)).aggregate([])
    rows = sorted(zip(*(distinct.column(c).to_pylist() for c in domain.columns), strict=True))
    return (row if domain.unit == "tuple" else row[0] for row in rows)


def time_range(table: pa.Table, domain: TimeDomain) -> tuple[int, int] | None:
    """Least and greatest time of an int domain, or None without rows."""
    if table.num_rows == 0:
        return None
    ends = pc.min_max(table.column(domain.columns[0])).as_py()
    return ends["min"], ends["max"]


@dataclass(frozen=True)
class Upload:
    """Stored runs that no state names yet, on their way to whoever appends them.

    Attributes:
        shard_id: the shard that they were written for.
        schema_id: the schema that they were written under.
        runs: what was stored.
        lower: all times are beyond it, if that was checked row by row.
        upper: no time is beyond it, if that was checked row by row.
    """

    shard_id: str
    schema_id: int
    runs: tuple[Run, ...]
    lower: Frontier | None
    upper: Frontier | None


@dataclass(frozen=True)
class Uploader:
    """Uploads updates from any process. Goes there as bytes.

    Attributes:
        spec: the shard.
        lower: refuse times that are not beyond it; None: whoever appends checks.
        upper: refuse times beyond it; None: whoever appends checks.
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
        return decode_record("uploader", data, cls, "uploader")

    def upload(self, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Store updates, in any order; the returned `Upload` goes to `append_uploaded`.

        Batches have the shard's update columns (see `tidelake.data.types.update_schema`), unsorted; they
        are checked and made canonical like those of an append.
        Holds about one part of rows in memory at a time; each such piece becomes a run. Returns
        `b""` if nothing is left after consolidation. One `put` a part.
        """
        stores, env = stores_of(self.spec), Env()
        runs: list[Run] = []
        try:
            for piece in _pieces(batches, self.spec.config.part_target_bytes):
                table = normalize(piece, self.spec.schema, self.spec.domain)
                check_times(table, self.spec.domain, self.lower, self.upper)
                runs.extend(write_table(self.spec, stores.blobs, env, table))
        except BaseException:
            discard(stores.blobs, env, runs)
            raise
        if not runs:
            return b""
        upload = Upload(self.spec.shard_id, self.spec.schema_id, tuple(runs), self.lower, self.upper)
        return encode_record("upload", upload)


def _pieces(batches: Iterable[pa.RecordBatch], size_bytes: int) -> Iterator[pa.Table]:
    """Tables of about `size_bytes` in memory."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= size_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def decode_upload(data: bytes) -> Upload:
    """Read what `Uploader.upload` returned (not `b""`)."""
    return decode_record("upload", data, Upload, "upload")
