"""Reads rows: merges runs of parts into one sorted, consolidated stream.

Skips parts that the query or key range cannot need, reads the smallest runs together in memory, and leaves
the k-way merge to `tidelake.data.kernel.merge`. Memory is bounded by `fold_rows`, `merge_chunk_rows` and one
row group for each further run, not by the size of the collection.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise, takewhile

import pyarrow as pa

from tidelake.data.kernel.arrays import TEXTS
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.merge import chunks, sums
from tidelake.data.kernel.order import integers
from tidelake.data.kernel.patch import put, shares
from tidelake.data.kernel.select import Constants, Selector, Timing, one_time, selected
from tidelake.data.kernel.sums import sort_batch
from tidelake.data.kernel.types import arrow_type, update_schema
from tidelake.data.keys.keyset import KeySet
from tidelake.data.part.inline import encode_inline
from tidelake.data.part.stats import StatsSettings
from tidelake.errors import InvalidUpdates
from tidelake.model import names
from tidelake.model import time as times
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Fold, Query, Updates
from tidelake.model.schema import DIFF, Schema
from tidelake.model.selection import Selection
from tidelake.shard.engine.overlap import mapped, prefetch, prefetch_all
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.far import readers_of
from tidelake.shard.runs.gather import gathered
from tidelake.shard.runs.scope import KeyRange, Scope, Source, matching
from tidelake.shard.runs.stream import SHARES_MAX, chunk_limits, seen, stream, streams, together
from tidelake.state.core.state import ShardState
from tidelake.state.spine import bases
from tidelake.store.protocols import BlobStore

__all__ = ["KeyRange", "Source", "rows", "rows_merged", "shown", "sources", "sources_of"]

# Of a run that is read alone so many batches are decoded at once: a quarter of a merge's memory.
_DECODERS_MAX = 8
# So many batches are patched at once: each is there before and after, with what is between.
_PATCHERS_MAX = 4
# Chunks grow with the number of runs, up to this many runs.
_RUNS_MAX = 64
# A run is patched with the rows of others if these are at most this fraction; if the first column tells rows
# apart, at most that fraction, and so many times `fold_rows`.
_PATCHED_SHARE, _SWAPPED_SHARE, _SWAPPED_FOLDS = 8, 2, 4
# The rows with which a run is patched take at most this fraction of a merge's memory.
_PATCH_MEMORY_SHARE = 4
# Runs of at most this fraction of `fold_rows` are short.
_SHORT_SHARE = 16
# Of the smallest runs at most this fraction of `fold_rows` is held for several reads.
_HELD_SHARE = 4
_NO_ID = "0" * 32  # of a part that is in memory only
_FOLD_BYTES_MAX = 128 * 1024 * 1024
_ALL = Selection()


def sources_of(state: ShardState, query: Query) -> tuple[list[Source], Query]:
    """The runs of a state that a query needs, and what to ask of them.

    No more than a base and what came after it is needed for a snapshot, and no more than two snapshots for
    changes: then the contents at the first time are taken away from those at the last; see
    `tidelake.state.spine.bases.needed`.
    """
    found = bases.needed(state, query)
    runs = sources(found.batches, found.query)
    if found.after is not None:
        taken = sources(found.less, AsOf(found.after))
        runs += [replace(source, less=found.after) for source in taken]
    return runs, found.query


def sources(batches: Iterable[HollowBatch], query: Query) -> list[Source]:
    """The runs that a query needs, without the parts whose times it cannot see."""
    found: list[Source] = []
    matches = partial(_may_match, query=query)
    for batch in batches:
        for run in batch.runs:
            parts = list(filter(matches, run.parts))
            if parts:
                kept = run if len(parts) == len(run.parts) else Run(tuple(parts), run.truncated)
                found.append(Source(kept, batch.bounds.lower, batch.bounds.upper))
    return found


def _may_match(part: Part, query: Query) -> bool:
    """Whether the part may have a time that the query needs."""
    first, last = (part.time_lower, part.time_upper) if part.rewrite is None else part.seen_times
    match query:
        case AsOf(time):
            # Most times are one number, and a look-up asks for each of many tiny parts.
            if isinstance(first, int) and isinstance(time, int):
                return first <= time
            return times.less_equal(first, time)
        case Changes(after, through):
            return times.less_equal(first, through) and not times.less_equal(last, after)
        case Updates(lower, upper):
            return lower.less_equal(last) and not upper.less_equal(first)
        case Fold(_):
            return True


def rows(
    spec: ShardSpec,
    blobs: BlobStore,
    needed: list[Source],
    query: Query,
    keys: KeyRange | None = None,
    *,
    selection: Selection = _ALL,
    among: KeySet | None = None,
) -> Generator[pa.RecordBatch]:
    """The answer to a query over some runs: sorted by (key, value, time), and consolidated.

    Batches have the columns of `spec.schema`, or the selected ones, whatever schema the parts were written
    under. With `among`, only rows with one of these keys. Costs an `open` and a few range reads for each part
    that may hold such rows.
    """
    scope = Scope(spec, keys, selection.where, among)
    runs = matching(needed, scope)
    # Of the rows of some keys, `_merged` keeps those that it has unpacked.
    if (among is None or selection.columns is not None) and len(runs) == 1:
        (source,) = runs
        if _is_consolidated(spec, source, query):
            return _direct(spec, blobs, source, query, scope, selection=selection)
    merged = _merged(spec, blobs, runs, query, scope)
    return merged if selection.columns is None else _cut(merged, _names(spec, selection))


def with_small_held(
    spec: ShardSpec, blobs: BlobStore, runs: list[Source], query: Query, starts: Sequence[bytes]
) -> list[Source]:
    """The runs for several reads, each of the keys from one of `starts` on, ascending, up to the next one.

    Of small ones the rows are read now, consolidated, and held in the place of the runs.
    """
    by_rows = sorted(runs, key=lambda source: source.run.rows)
    # The largest is not read whole.
    count = min(_fitting(by_rows, spec.config.fold_rows // _HELD_SHARE), len(runs) - 1)
    folded = _folded(spec, blobs, by_rows[:count], query, Scope(spec)) if count > 1 and spec.newest else None
    if folded is None:
        return runs
    rows_ = pa.Table.from_batches(folded, update_schema(spec.schema, spec.domain)).combine_chunks()
    keys = encode_key(rows_, spec.schema)
    first_at = partial(bisect_left, range(len(keys)), key=lambda place: keys[place].as_py())
    edges = [*map(first_at, starts), len(keys)]
    pieces = [
        rows_.slice(first, last - first).to_batches() for first, last in pairwise(edges) if first < last
    ]
    held = held_source(spec, pieces, _FOLD_BYTES_MAX)
    return runs if held is None else [*by_rows[count:], *([held] if pieces else [])]


def held_source(spec: ShardSpec, pieces: Iterable[list[pa.RecordBatch]], bytes_max: int) -> Source | None:
    """A run of rows in memory, in parts that are sorted, one behind the other; None if one has more bytes."""
    parts = [
        encode_inline(
            pa.concat_batches(piece),
            spec.schema,
            spec.domain,
            spec.schema_id,
            limit_bytes=bytes_max,
            stats=StatsSettings.of(spec.config),
            name=names.part(spec.shard_id, spec.seqno, _NO_ID),
        )
        for piece in pieces
    ]
    run = Run(tuple(part for part in parts if part is not None))
    everywhere = Frontier.of(spec.domain.minimum), Frontier()
    return Source(run, *everywhere) if len(run.parts) == len(parts) else None


def shown(spec: ShardSpec, selection: Selection) -> pa.Schema:
    """The schema of the batches of `rows`."""
    schema = update_schema(spec.schema, spec.domain)
    return (
        schema if selection.columns is None else pa.schema([schema.field(n) for n in _names(spec, selection)])
    )


def _names(spec: ShardSpec, selection: Selection) -> list[str]:
    return [*(selection.columns or ()), *spec.domain.columns, DIFF]


def _cut(batches: Generator[pa.RecordBatch], names: list[str]) -> Generator[pa.RecordBatch]:
    with closing(batches):
        for batch in batches:
            yield batch.select(names)


def _is_consolidated(spec: ShardSpec, source: Source, query: Query) -> bool:
    """Whether the stored rows of a run need no consolidation: no two of them have to be summed."""
    parts = source.run.parts
    if not spec.newest or any(part.rewrite is not None or part.schema_id != spec.schema_id for part in parts):
        return False
    # Within a run, two rows can differ in their time alone only if there are several times.
    return isinstance(query, Updates) or len({t for p in parts for t in (p.time_lower, p.time_upper)}) == 1


def _direct(
    spec: ShardSpec, blobs: BlobStore, source: Source, query: Query, scope: Scope, *, selection: Selection
) -> Generator[pa.RecordBatch]:
    """A run that needs no consolidation. Of other columns than the selected, decodes predicate and keys."""
    names = shown(spec, selection).names
    needed = set(names)
    if selection.columns is not None:
        keys = spec.schema.key if scope.keys != KeyRange() else ()
        needed |= {column.name for column in (*keys, *selection.needs(spec.schema))}
    schema = pa.schema([f for f in update_schema(spec.schema, spec.domain) if f.name in needed])
    wanted, known, time = Selector(query, spec.domain), _ones(source), one_time(query)
    keeps_all = time is not None and _keeps_all(source, query)
    if time is not None and keeps_all:
        # All rows get the query's time, whatever their own is.
        known |= dict(zip(spec.domain.columns, times.parts(time), strict=True))
    threads = readers_of(spec, blobs, [source])
    found = _stored(spec, blobs, source, scope, schema=schema, known=known, threads=threads)
    with closing(prefetch(found, 1) if threads else found) as ahead:
        for batch in ahead:
            kept = batch if keeps_all else wanted(batch)
            if kept.num_rows:
                yield kept.select(names)


def _stored(
    spec: ShardSpec,
    blobs: BlobStore,
    source: Source,
    scope: Scope,
    *,
    schema: pa.Schema,
    known: Mapping[str, int],
    threads: int,
) -> Generator[pa.RecordBatch]:
    """Columns of a consolidated run; several batches are decoded at once.

    Those of one known value are not decoded, as long as one is.
    """
    chunk_rows, chunk_bytes = chunk_limits(spec.config)
    decode = partial(mapped, threads=_decoders(threads))
    size = {"batch_rows": chunk_rows, "batch_bytes": chunk_bytes}
    columns = {name for name in schema.names if name not in known} or {DIFF}
    constants = Constants({name: value for name, value in known.items() if name not in columns})
    with closing(seen(spec, blobs, source, scope, {}, **size, columns=columns, mapped=decode)) as found:
        for batch in found:
            yield constants(batch, schema)


def _ones(source: Source) -> dict[str, int]:
    """The value of all diffs of a run, if its statistics say that it is 1."""
    parts = source.run.parts
    # No diff is 0.
    is_one = all(part.negative_rows == 0 and part.diff_sum == part.rows for part in parts)
    return {DIFF: 1} if is_one and source.less is None else {}


def _decoders(threads: int) -> int:
    """How many batches of a run are decoded at once, if others than the caller read it."""
    return min(pa.cpu_count(), _DECODERS_MAX) if threads else 1


def _keeps_all(source: Source, query: Query) -> bool:
    """Whether a query keeps all rows of a run whose rows have one time."""
    cut = source.run.truncated or source.less is not None
    return not cut and all(_may_match(part, query) for part in source.run.parts)


def _patchable(spec: ShardSpec, runs: list[Source], query: Query) -> Source | None:
    """The run whose stored rows are the answer but for fewer changes, which the others have; if there is one.

    Its rows all count, and no two of them have to be summed.
    """
    if len(runs) < 2 or not isinstance(query, AsOf):
        return None
    base, changes = _largest(runs)
    few = _are_few(spec, base, changes) or (
        _tells_rows_apart(spec.schema)
        and changes <= min(_SWAPPED_FOLDS * spec.config.fold_rows, base.run.rows // _SWAPPED_SHARE)
    )
    large = base.run.rows * _SHORT_SHARE > spec.config.fold_rows
    fits = few and large and _keeps_all(base, query) and _is_consolidated(spec, base, query)
    return base if fits else None


def _tells_rows_apart(schema: Schema) -> bool:
    """Whether the first column has numbers, or texts that are the whole key, by which rows are put in."""
    kind = arrow_type(schema.columns[0].type)
    return integers(pa.nulls(0, kind)) is not None or (kind.id in TEXTS and len(schema.key) == 1)


def _are_few(spec: ShardSpec, base: Source, changes: int) -> bool:
    return changes <= min(spec.config.fold_rows, base.run.rows // _PATCHED_SHARE)


def _largest(runs: list[Source]) -> tuple[Source, int]:
    """The largest run, and the rows of the others."""
    largest = max(runs, key=lambda source: source.run.rows)
    return largest, sum(source.run.rows for source in runs) - largest.run.rows


def rows_merged(spec: ShardSpec, runs: list[Source], query: Query) -> int:
    """How many rows are put into the largest run; 0: it is patched with few, or all are few: little work."""
    if len(runs) < 2:
        return 0
    largest, others = _largest(runs)
    if _are_few(spec, largest, others) and _patchable(spec, runs, query) is not None:
        return 0
    return others if largest.run.rows * _SHORT_SHARE > spec.config.fold_rows else 0


def _patched(
    spec: ShardSpec, blobs: BlobStore, base: Source, changes: list[Source], *, query: AsOf, scope: Scope
) -> Generator[pa.RecordBatch, None, bool]:
    """The rows of a base with the changes since. Returns False, and gives nothing, if these are too wide."""
    threads = readers_of(spec, blobs, [base])
    every = update_schema(spec.schema, spec.domain)
    schema = pa.schema([field for field in every if field.name not in spec.domain.columns])
    found = _stored(spec, blobs, base, scope, schema=schema, known=_ones(base), threads=threads)
    with prefetch_all([found], threads, max(1, _DECODERS_MAX - _decoders(threads))) as (ahead,):
        bytes_max = spec.config.merge_memory_bytes // _PATCH_MEMORY_SHARE
        untimed = partial(selected, query=query, domain=spec.domain)
        held = _held(spec, blobs, changes, scope, untimed, bytes_max=bytes_max)
        if held is None:
            return False
        unsorted, ordered = held
        parts = shares(ahead, [*map(sort_batch, unsorted), *ordered])
        del held, unsorted, ordered
        with closing(mapped(put, parts, min(_decoders(threads), _PATCHERS_MAX))) as made:
            yield from map(Timing(query.time, spec.domain), filter(None, made))
    return True


def _merged(
    spec: ShardSpec, blobs: BlobStore, runs: list[Source], query: Query, scope: Scope
) -> Generator[pa.RecordBatch]:
    """The answer with all columns."""
    if scope.among is not None:
        yield from gathered(spec, blobs, runs, query, scope)
        return
    base = _patchable(spec, runs, query)
    if base is not None and isinstance(query, AsOf):
        changes = [source for source in runs if source is not base]
        if (yield from _patched(spec, blobs, base, changes, query=query, scope=scope)):
            return
    small, large = _divided(runs, spec.config.fold_rows)
    chunk_rows, chunk_bytes = chunk_limits(spec.config)
    several = partial(streams, spec, blobs, scope=scope, runs=runs)
    # Fetch and decode ahead of the merge, while the small runs are folded.
    threads = readers_of(spec, blobs, runs)
    with prefetch_all(several(large), threads) as ahead:
        folded = _folded(spec, blobs, small, query, scope)
        if folded is not None and not large:
            # There is nothing to merge it with, so it is the answer.
            yield from folded
            return
        with prefetch_all(several(small if folded is None else []), threads) as others:
            runs_ = [*ahead, *others, *([folded] if folded else [])]
            # With many runs, let the chunk grow, since otherwise the slice of each run gets tiny.
            grown = chunk_bytes * max(1, min(len(runs_), _RUNS_MAX) // SHARES_MAX)
            cut = chunks(runs_, spec.schema, spec.domain, query, chunk_rows, chunk_bytes=grown)
            # Cut and join the next chunk in a thread while this one is sorted and summed.
            with closing(prefetch(cut, 1) if large and threads else cut) as joined:
                yield from sums(joined, spec.domain, query, chunk_rows)


def _divided(runs: list[Source], rows_max: int) -> tuple[list[Source], list[Source]]:
    """Divide runs into the smallest, at least two with at most `rows_max` rows in all, and the others.

    If not all of them are that small, only short ones are: sorting longer ones twice takes longer than
    merging them.
    """
    by_rows = sorted(runs, key=lambda source: source.run.rows)
    count = _fitting(by_rows, rows_max)
    if count == len(by_rows) and by_rows and by_rows[-1].run.rows * _SHORT_SHARE > rows_max:
        # The largest run is sorted already: merging the others into it is cheaper than sorting all again.
        count -= 1
    if count < len(by_rows):
        count = sum(source.run.rows * _SHORT_SHARE <= rows_max for source in by_rows[:count])
    count = count if count > 1 else 0
    return by_rows[:count], by_rows[count:]


def _fitting(by_rows: list[Source], rows_max: int) -> int:
    """How many runs, from the first one on, have together at most so many rows."""
    totals = accumulate(source.run.rows for source in by_rows)
    return sum(1 for _ in takewhile(lambda total: total <= rows_max, totals))


def _folded(
    spec: ShardSpec, blobs: BlobStore, small: list[Source], query: Query, scope: Scope
) -> list[pa.RecordBatch] | None:
    """Small runs, read whole and consolidated in memory as one; None if that is not possible.

    Without it, reading a shard of many tiny appends would merge as many streams. It is not possible if the
    rows are too wide, or if a sum over these runs does not fit, as the sum over all runs may fit.
    """
    bytes_max = min(_FOLD_BYTES_MAX, chunk_limits(spec.config)[1])
    held = _held(spec, blobs, small, scope, Selector(query, spec.domain), bytes_max=bytes_max)
    if held is None:
        return None
    table = pa.Table.from_batches(chain(*held), update_schema(spec.schema, spec.domain))
    try:
        rows_ = consolidate(table, spec.schema, spec.domain)
    except InvalidUpdates:
        return None
    batches: list[pa.RecordBatch] = rows_.to_batches(max_chunksize=spec.config.row_group_rows)
    return batches


def _held(
    spec: ShardSpec,
    blobs: BlobStore,
    small: list[Source],
    scope: Scope,
    wanted: Callable[[pa.RecordBatch], pa.RecordBatch],
    *,
    bytes_max: int,
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]] | None:
    """The wanted rows of runs in memory; None if they take more bytes.

    Those in the state, in no order, and those that are stored, each batch in order.
    """
    held: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = [], []
    held_bytes = 0
    one_of = partial(stream, spec, blobs, batch_rows=spec.config.fold_rows, batch_bytes=bytes_max)
    inline, stored = list[Source](), list[Source]()
    for source in small:
        (inline if source.run.inline else stored).append(source)
    found = [one_of(source=source, scope=scope, runs=len(small)) for source in stored]
    # Runs that are far are fetched at the same time.
    with prefetch_all(found, readers_of(spec, blobs, small)) as ahead:
        for place, batches in ((0, together(spec, inline, scope)), (1, chain(*ahead))):
            for batch in batches:
                kept = wanted(batch)
                held[place].append(kept)
                held_bytes += kept.get_total_buffer_size()
                # Slices of one buffer count it several times; to add up their exact sizes takes long.
                if held_bytes > bytes_max:
                    held_bytes = sum(one.nbytes for one in chain(*held))
                    if held_bytes > bytes_max:
                        return None
    return held
