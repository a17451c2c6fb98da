"""Bringing rows out: runs of parts become one sorted, consolidated stream.

Skips parts that the query or key range cannot need, reads tiny runs together in memory, and leaves
the k-way merge to `tidelake.data.merge`. Memory is bounded by `merge_chunk_rows` and the batches in
flight, not by the size of the collection.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidelake.data.consolidate import consolidate
from tidelake.data.merge import merge
from tidelake.data.scan import read_part
from tidelake.data.select import select, view
from tidelake.errors import InternalError
from tidelake.model import time as times
from tidelake.model.batch import Batch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Fold, Query, Updates
from tidelake.shard.overlap import prefetch
from tidelake.shard.spec import ShardSpec
from tidelake.store.protocols import BlobStore

_PREFETCHED_RUNS_MAX = 8


@dataclass(frozen=True)
class Source:
    """A run, and the bounds outside of which its rows are to be dropped.

    Attributes:
        run: the parts.
        lower: of the batch that the run belongs to.
        upper: of that batch.
    """

    run: Run
    lower: Frontier
    upper: Frontier


@dataclass(frozen=True)
class KeyRange:
    """Keys from `start` up to but without `stop`, encoded; None is without bound."""

    start: bytes | None = None
    stop: bytes | None = None

    def may_hold(self, part: Part) -> bool:
        """Whether the part's key bounds reach into the range."""
        # A truncated upper bound is at or after every key of the part, a lower one at or before.
        before = self.start is not None and part.key_upper is not None and part.key_upper < self.start
        after = self.stop is not None and part.key_lower >= self.stop
        return not (before or after)


def sources(batches: Iterable[Batch], query: Query) -> list[Source]:
    """The runs that a query needs, without the parts whose times it cannot see."""
    found: list[Source] = []
    for batch in batches:
        for run in batch.runs:
            parts = tuple(part for part in run.parts if _may_match(part, query))
            if parts:
                found.append(Source(Run(parts, run.truncated), batch.bounds.lower, batch.bounds.upper))
    return found


def _may_match(part: Part, query: Query) -> bool:
    """Whether a time of the part may be one that the query keeps."""
    first, last = part.time_lower, part.time_upper
    if part.rewrite is not None:
        first, last = times.join(first, part.rewrite), times.join(last, part.rewrite)
    match query:
        case AsOf(time):
            return times.less_equal(first, time)
        case Changes(after, through):
            return times.less_equal(first, through) and not times.less_equal(last, after)
        case Updates(lower, upper):
            return lower.less_equal(last) and not upper.less_equal(first)
        case Fold(_):
            return True


def rows(
    spec: ShardSpec, blobs: BlobStore, needed: list[Source], query: Query, keys: KeyRange | None = None
) -> Iterator[pa.RecordBatch]:
    """The answer to a query over some runs: sorted by (key, value, time), consolidated.

    Batches have the columns of `update_schema`. Costs an `open` and a few range reads a part.
    """
    within = keys or KeyRange()
    runs = [
        Source(Run(parts, source.run.truncated), source.lower, source.upper)
        for source in needed
        if (parts := tuple(part for part in source.run.parts if within.may_hold(part)))
    ]
    chunk_rows = spec.config.merge_chunk_rows
    batch_rows = max(1024, chunk_rows // max(1, len(runs)))
    large = [s for s in runs if s.run.rows * 2 > spec.config.fold_rows]
    small = [s for s in runs if s.run.rows * 2 <= spec.config.fold_rows]
    # Fetching and decoding ahead of the kernel; with many runs they take turns enough by themselves.
    ahead = prefetch if len(large) <= _PREFETCHED_RUNS_MAX else iter
    streams: list[Iterable[pa.RecordBatch]] = [
        ahead(_stream(spec, blobs, s, within, batch_rows)) for s in large
    ]
    if len(small) + len(streams) > 1:
        streams.extend(_folded(spec, blobs, small, query, within))
    else:
        streams.extend(_stream(spec, blobs, s, within, batch_rows) for s in small)
    yield from merge(streams, spec.schema, spec.domain, query, chunk_rows)


def _stream(
    spec: ShardSpec, blobs: BlobStore, source: Source, keys: KeyRange, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows of one run, in order, after rewrite and truncation."""
    for part in source.run.parts:
        if part.schema_id != spec.schema_id:
            raise InternalError(f"part {part.name} has schema {part.schema_id}, expected {spec.schema_id}")
        lower, upper = (source.lower, source.upper) if source.run.truncated else (None, None)
        with blobs.open(part.name) as file:
            for batch in read_part(
                file,
                part,
                spec.schema,
                spec.domain,
                batch_rows=batch_rows,
                key_from=keys.start,
                key_below=keys.stop,
            ):
                seen = view(batch, spec.domain, part.rewrite, lower, upper)
                if seen.num_rows:
                    yield seen


def _folded(
    spec: ShardSpec, blobs: BlobStore, small: list[Source], query: Query, keys: KeyRange
) -> Iterator[list[pa.RecordBatch]]:
    """Small runs, read whole and consolidated in memory, some `fold_rows` at a time.

    A shard of many tiny appends would otherwise be a merge of as many streams.
    """
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for source in small:
        for batch in _stream(spec, blobs, source, keys, spec.config.fold_rows):
            kept = select(batch, query, spec.domain)
            if kept.num_rows:
                held.append(kept)
                held_rows += kept.num_rows
        if held_rows >= spec.config.fold_rows:
            yield _in_memory(spec, held)
            held, held_rows = [], 0
    if held:
        yield _in_memory(spec, held)


def _in_memory(spec: ShardSpec, held: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    table = consolidate(pa.Table.from_batches(held), spec.schema, spec.domain, spec.config.merge_chunk_rows)
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=spec.config.row_group_rows)
    return batches
