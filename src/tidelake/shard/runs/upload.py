"""Writes rows: turns tables of updates into runs of parts, in the blob store or inline.

Parts are uploaded before any state names them. A crash in between leaves blobs that no state names, which
garbage collection finds.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.consolidate import SORTED_ROWS, consolidated
from tidelake.data.kernel.select import view
from tidelake.data.part.inline import decode_inline, encode_inline
from tidelake.data.part.part import Ahead, write_parts
from tidelake.data.part.stats import StatsSettings
from tidelake.env import Env
from tidelake.errors import (
    InternalError,
    OutcomeUnknown,
    StoreUnavailable,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
)
from tidelake.model import names
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.engine.overlap import Background, Job, prefetch
from tidelake.shard.engine.spec import ShardSpec
from tidelake.store.protocols import BlobStore

_GROUP_SHARE = 256


def normalized(spec: ShardSpec, updates: object, time: Time | None = None) -> pa.Table:
    """Updates from a user, checked and made canonical, with the columns of the spec's schema.

    They may have been made before a change of the schema: columns that they lack become null. Errors as
    `normalize`.
    """
    return normalize(
        updates, spec.schema, spec.domain, time=time, optional=spec.optional, dropped=spec.dropped
    )


def write_run(
    spec: ShardSpec,
    blobs: BlobStore,
    env: Env,
    batches: Iterable[pa.RecordBatch],
    *,
    part_bytes: int | None = None,
    rows_max: int | None = None,
    ahead: Ahead = iter,
) -> Run | None:
    """Store sorted, consolidated batches as one run; None if there are no rows.

    Parts end at `part_target_bytes`, or at `part_bytes` if that is less. One `put` for each part. If it fails
    half-way, the parts already stored are deleted. `rows_max` and `ahead` are as for `write_parts`.
    """
    parts: list[Part] = []
    pieces = write_parts(
        batches,
        spec.schema,
        spec.domain,
        spec.schema_id,
        target_bytes=min(spec.config.part_target_bytes, part_bytes or spec.config.part_target_bytes),
        row_group_rows=spec.config.row_group_rows,
        stats=StatsSettings.of(spec.config),
        # Bounded, since a merge that reads these parts holds several copies of a row group of every run.
        group_bytes=spec.config.merge_memory_bytes // _GROUP_SHARE,
        filtered=True,
        name=lambda: names.part(spec.shard_id, spec.seqno, env.ids.fresh()),
        rows_max=rows_max,
        ahead=ahead,
    )
    try:
        # Closed even if the traceback of an error still refers to it, so that no thread is left behind.
        with closing(pieces), _putting(blobs, spec.config.upload_parts_max) as put:
            for part, data in pieces:
                # Noted before the put, which may store it even if its outcome is unknown.
                parts.append(part)
                put(part.name, data)
                # Otherwise the bytes would be held until the next part is encoded.
                del data
    except BaseException:
        discard(blobs, env, [Run(tuple(parts))] if parts else [])
        raise
    return Run(tuple(parts)) if parts else None


@contextmanager
def _putting(blobs: BlobStore, at_once: int) -> Generator[Callable[[str, bytes], object]]:
    """A function that puts an object: into a store that is far in the background, a few at once.

    No put is under way when the block has been left, whether it ended well or not.
    """
    if not blobs.is_far:
        yield blobs.put
        return
    background, jobs = Background(at_once, lambda: None), list[Job[None]]()
    try:
        yield lambda name, data: jobs.append(background.submit(partial(blobs.put, name, data)))
    finally:
        background.close()
    for job in jobs:
        job.result()


def discard(blobs: BlobStore, env: Env, runs: Iterable[Run]) -> None:
    """Delete the stored parts of runs that certainly no state names.

    This only tidies up. Failures of the store are counted, not raised, so that they do not replace the answer
    or error of the caller.
    """
    for run in runs:
        for part in run.parts:
            if part.inline is not None:
                continue
            try:
                blobs.delete(part.name)
            except (StoreUnavailable, OutcomeUnknown):
                env.failed("discard.failed")


def write_rows(
    spec: ShardSpec, blobs: BlobStore, env: Env, rows: pa.Table, *, inline_bytes_max: int | None = None
) -> Run | None:
    """Write a table of sorted, consolidated updates as one run: inline if it is tiny, else as stored parts.

    None if there are no rows. One `put` for each stored part. `inline_bytes_max` lowers the limit of the
    settings for inline parts.
    """
    limit_bytes = spec.config.inline_part_bytes
    if inline_bytes_max is not None:
        limit_bytes = min(limit_bytes, inline_bytes_max + 1)
    if rows.num_rows and (run := _inline(spec, env, rows, limit_bytes)):
        return run
    batches = rows.to_batches(max_chunksize=spec.config.row_group_rows * 4)
    return write_run(spec, blobs, env, batches, rows_max=rows.num_rows)


def _inline(spec: ShardSpec, env: Env, rows: pa.Table | pa.RecordBatch, limit_bytes: int) -> Run | None:
    """Sorted, consolidated rows, at least one, as an inline part; None if it takes `limit_bytes` or more."""
    # The encoding is about as large as the rows in memory: do not encode large tables just to measure them.
    # Buffers, as measuring what is used of them takes as long as encoding a few rows.
    if rows.get_total_buffer_size() >= 2 * limit_bytes:
        return None
    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks().to_batches()[0]
    part = encode_inline(
        rows,
        spec.schema,
        spec.domain,
        spec.schema_id,
        limit_bytes=limit_bytes,
        stats=StatsSettings.of(spec.config),
        name=names.part(spec.shard_id, spec.seqno, env.ids.fresh()),
    )
    return None if part is None else Run((part,))


def write_table(
    spec: ShardSpec,
    blobs: BlobStore,
    env: Env,
    table: pa.Table,
    *,
    watch: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    sorted_rows: int = SORTED_ROWS,
) -> tuple[Run, ...]:
    """Write a table of unsorted updates as one run, or as no run if the updates cancel out.

    No copy of all rows is made, but of `sorted_rows`, which are sorted at once. `watch` is called with the
    sorted rows, batch by batch, and returns them.
    """
    found = consolidated(table, spec.schema, spec.domain, sorted_rows)
    found = found if watch is None else map(watch, found)
    first, second = next(found, None), next(found, None)
    if first is None:
        return ()
    if second is None:
        run = _inline(spec, env, first, spec.config.inline_part_bytes) or write_run(spec, blobs, env, [first])
    else:
        # One thread sorts and computes statistics, one encodes, and this one fills the filter of keys, and
        # hashes and stores the bytes.
        batches = chain((first, second), found)
        ahead = partial(prefetch, depth=1)
        run = write_run(spec, blobs, env, batches, rows_max=table.num_rows, ahead=ahead)
    return () if run is None else (run,)


def stored(spec: ShardSpec, blobs: BlobStore, env: Env, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The runs with inline parts moved to stored parts; other parts stay. One `put` for each moved part."""
    made: list[Run] = []
    fresh: list[Part] = []
    try:
        for run in runs:
            parts: list[Part] = []
            for part in run.parts:
                if part.inline is None:
                    parts.append(part)
                    continue
                moved = _stored(spec, blobs, env, part)
                fresh += moved
                parts += moved
            made.append(Run(tuple(parts), run.truncated))
    except BaseException:
        discard(blobs, env, [Run(tuple(fresh))] if fresh else [])
        raise
    return tuple(made)


def _stored(spec: ShardSpec, blobs: BlobStore, env: Env, part: Part) -> tuple[Part, ...]:
    """An inline part as stored parts: several if it is larger than `part_target_bytes`."""
    schema = spec.written_under(part.schema_id)
    as_written = replace(spec, schema_id=part.schema_id)
    run = write_run(as_written, blobs, env, [decode_inline([part], schema, spec.domain)])
    if run is None:
        raise InternalError(f"inline part {part.name} holds no rows")
    return tuple(replace(stored_, rewrite=part.rewrite) for stored_ in run.parts)


def check_times(table: pa.Table, domain: TimeDomain, lower: Frontier | None, upper: Frontier | None) -> None:
    """Check that all times lie in `[lower, upper)`; None: no bound."""
    ends = time_range(table, domain) if domain.total_order else None
    if ends is not None and _lie_within(ends, lower, upper):
        return
    batches = table.to_batches()
    if lower is not None and sum([view(b, domain, None, lower, None).num_rows for b in batches]) < len(table):
        early = next(t for t in _times(table, domain) if not lower.less_equal(t))
        raise UpdateBeforeLower(early, lower).of(domain.unit)
    if upper is not None and sum([view(b, domain, None, None, upper).num_rows for b in batches]) < len(table):
        late = next(t for t in _times(table, domain) if upper.less_equal(t))
        raise UpdateNotBeforeUpper(late, upper).of(domain.unit)


def _lie_within(ends: tuple[int, int], lower: Frontier | None, upper: Frontier | None) -> bool:
    early = lower is not None and not lower.less_equal(ends[0])
    return not early and (upper is None or not upper.less_equal(ends[1]))


def _times(table: pa.Table, domain: TimeDomain) -> Iterator[Time]:
    """The distinct times, earliest first; for error messages only."""
    distinct = table.select(domain.columns).group_by(list(domain.columns)).aggregate([])
    rows = sorted(zip(*(distinct.column(c).to_pylist() for c in domain.columns), strict=True))
    return (row if domain.unit == "tuple" else row[0] for row in rows)


def time_range(table: pa.Table, domain: TimeDomain) -> tuple[int, int] | None:
    """Least and greatest time of a table with integer times; None if it has no rows."""
    if table.num_rows == 0:
        return None
    ends = pc.min_max(table.column(domain.columns[0]))
    return ends["min"].as_py(), ends["max"].as_py()
