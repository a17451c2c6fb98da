"""Look-ups: reads the rows of some keys, usually a few of each run, however large the run is.

Owns how the rows of the runs are merged, and the use of the look-up cache; must not know what a look-up is
for.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import chain

import pyarrow as pa

from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.merge import merge
from tidelake.data.kernel.select import Selector
from tidelake.data.kernel.types import update_schema
from tidelake.model.query import Query
from tidelake.shard.engine.overlap import prefetch_all
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.cache import Whole, worth_keeping
from tidelake.shard.runs.far import readers, readers_of
from tidelake.shard.runs.partcaches import part_caches
from tidelake.shard.runs.scope import Scope, Source
from tidelake.shard.runs.stream import chunk_limits, is_here, streams, together, whole
from tidelake.store.protocols import BlobStore

_FEW_KEYS = 16
# Up to this fraction of a merge's memory, rows are gathered and sorted once instead of merged.
_GATHERED_SHARE = 8


def gathered(
    spec: ShardSpec, blobs: BlobStore, runs: list[Source], query: Query, scope: Scope
) -> Generator[pa.RecordBatch]:
    """The answer to a query over the keys of a scope."""
    inline: list[Source] = []
    here: list[Source] = []
    others: list[Source] = []
    for source in runs:
        if source.run.inline:
            inline.append(source)
        elif all(is_here(spec, part, lookup=True) for part in source.run.parts):
            here.append(source)
        else:
            others.append(source)
    with ExitStack() as stack:
        # Read ahead, except for runs that are inline or in the cache. To find a few keys in a store that is
        # near takes less time than threads do.
        is_small = scope.among is not None and len(scope.among) <= _FEW_KEYS
        threads = readers(blobs, 0) if is_small else readers_of(spec, blobs, others)
        ahead = stack.enter_context(prefetch_all(streams(spec, blobs, others, scope, runs), threads))
        found: list[Iterator[pa.RecordBatch]] = [
            stack.enter_context(closing(one)) for one in streams(spec, blobs, here, scope, runs)
        ]

        def sorted_() -> list[Iterator[pa.RecordBatch]]:
            return [stack.enter_context(closing(one)) for one in streams(spec, blobs, inline, scope, runs)]

        yield from _merged(spec, [*found, *ahead], query, together(spec, inline, scope), sorted_)


def _merged(
    spec: ShardSpec,
    runs: list[Iterator[pa.RecordBatch]],
    query: Query,
    inline: list[pa.RecordBatch],
    sorted_: Callable[[], list[Iterator[pa.RecordBatch]]],
) -> Iterator[pa.RecordBatch]:
    """The answer from sorted runs, and inline rows in no order, of which `sorted_` gives the sorted runs."""
    chunk_rows, chunk_bytes = chunk_limits(spec.config)
    held: list[deque[pa.RecordBatch]] = [deque() for _ in runs]
    wanted = Selector(query, spec.domain)
    tiny, bytes_max = [wanted(batch) for batch in inline], spec.config.merge_memory_bytes // _GATHERED_SHARE
    held_bytes = sum(batch.nbytes for batch in tiny)
    for batches, run in zip(held, runs, strict=True):
        while held_bytes <= bytes_max and (batch := next(run, None)) is not None:
            batches.append(wanted(batch))
            held_bytes += batches[-1].nbytes
    if held_bytes > bytes_max:
        # Too many rows: merge. The merge selects the held rows again, which changes nothing.
        left = [chain(_drain(batches), run) for batches, run in zip(held, runs, strict=True)]
        return merge(
            [*left, *sorted_()], spec.schema, spec.domain, query, chunk_rows, chunk_bytes=chunk_bytes
        )
    table = pa.Table.from_batches(chain(tiny, *held), update_schema(spec.schema, spec.domain))
    found = consolidate(table, spec.schema, spec.domain)
    return iter(found.to_batches(max_chunksize=spec.config.row_group_rows))


def _drain(held: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the held batches, and drop each one when it is yielded."""
    while held:
        yield held.popleft()


def catch_up(spec: ShardSpec, blobs: BlobStore, needed: Iterable[Source]) -> None:
    """Unpack new parts of a shard, if most of it is in the look-up cache of this process.

    Otherwise the next look-ups unpack them. Costs an `open` and some reads for each new part.
    """
    if spec.config.lookup_cache_bytes:
        part_caches().unpacked.catch_up(_kept(spec, blobs, needed))


def follow_merges(
    spec: ShardSpec, blobs: BlobStore, before: Iterable[Source], after: Iterable[Source]
) -> None:
    """Unpack what merges have made of a shard, if look-ups of this process keep it in the cache.

    Otherwise the next look-ups unpack it. Costs as `catch_up`.
    """
    if spec.config.lookup_cache_bytes:
        part_caches().unpacked.follow_merges(_kept(spec, blobs, before), _kept(spec, blobs, after))


def _kept(spec: ShardSpec, blobs: BlobStore, sources: Iterable[Source]) -> list[Whole]:
    """The parts of some runs that are large enough for the cache."""
    parts = chain.from_iterable(source.run.parts for source in sources)
    is_far = blobs.is_far
    return [whole(spec, blobs, p) for p in parts if worth_keeping(p, spec.config, is_far=is_far)]
