"""Streams the rows of one run: rewritten, truncated, and under the schema to read under.

Owns which row groups of its parts are decoded, and what is done to each row on its own. Must not know that
there are other runs.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa

from tidelake.config import Config
from tidelake.data.kernel.project import Projection, in_order
from tidelake.data.kernel.select import taken_away, view
from tidelake.data.keys.keyset import KeySet
from tidelake.data.part.inline import decode_inline
from tidelake.data.part.rowgroups import rows_among
from tidelake.data.part.scan import Mapped, one_by_one, read_part
from tidelake.model.batch import Part
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.cache import Whole, identity, worth_keeping
from tidelake.shard.runs.far import FarPart, Open, footer_of, opener
from tidelake.shard.runs.partcaches import part_caches
from tidelake.shard.runs.scope import Scope, Source
from tidelake.store.protocols import BlobStore

# When many runs are read, each of their batches is at least this fraction of a chunk: every batch has a cost.
SHARES_MAX = 16
# A chunk is this fraction of a merge's memory: it exists as slices of the runs, joined, sorted, and on its
# way to the writer, and every run is read ahead.
_CHUNK_SHARE = 32


def chunk_limits(config: Config) -> tuple[int, int]:
    """The most rows, and the most bytes, that are merged at once."""
    return config.merge_chunk_rows, config.merge_memory_bytes // _CHUNK_SHARE


def streams(
    spec: ShardSpec, blobs: BlobStore, of: Sequence[Source], scope: Scope, runs: Sequence[Source]
) -> list[Generator[pa.RecordBatch]]:
    """A stream of the rows of each run in `of`, in order. All of `runs` are read at once.

    A batch is the share of its run in a chunk: the fewer rows are decoded at once, the longer each takes.
    """
    if not of:
        return []
    chunk_rows, chunk_bytes = chunk_limits(spec.config)
    rows = max(1, sum(source.run.rows for source in runs))
    found: list[Generator[pa.RecordBatch]] = []
    for one in of:
        share = max(one.run.rows / rows, 1 / max(1, min(len(runs), SHARES_MAX)))
        size = {"batch_rows": max(64, int(chunk_rows * share)), "batch_bytes": int(chunk_bytes * share)}
        found.append(stream(spec, blobs, one, scope, **size, runs=len(runs)))
    return found


def stream(
    spec: ShardSpec,
    blobs: BlobStore,
    source: Source,
    scope: Scope,
    *,
    batch_rows: int,
    batch_bytes: int,
    runs: int = 1,
) -> Generator[pa.RecordBatch]:
    """The rows of one run of several, in order: rewritten, truncated, and under the schema to read under."""
    by_schema = {
        id_: Projection.of(spec.written_under(id_), spec.schema, spec.domain, spec.live)
        for id_ in {part.schema_id for part in source.run.parts}
        # To read under an older schema, even its own parts are projected: they have values dropped since.
        if id_ != spec.schema_id or not spec.newest
    }
    prefixes = [projection.prefix for projection in by_schema.values() if projection.prefix is not None]
    with closing(
        seen(spec, blobs, source, scope, by_schema, batch_rows=batch_rows, batch_bytes=batch_bytes, runs=runs)
    ) as found:
        # Parts of one run that differ in schema have no key in common, and every prefix includes the key.
        yield from in_order(found, min(prefixes)) if prefixes else found


def together(spec: ShardSpec, of: Sequence[Source], scope: Scope) -> list[pa.RecordBatch]:
    """The rows of runs that are in the state, in no order: what `streams` gives, for a fraction of the calls.

    Only for readers that sort and consolidate all that they get.
    """
    alike: dict[tuple[int, Time | None, Frontier | None, Frontier | None, int | None], list[Part]] = {}
    for source in of:
        lower, upper = (source.lower, source.upper) if source.run.truncated else (None, None)
        for part in source.run.parts:
            alike.setdefault((part.schema_id, part.rewrite, lower, upper, source.less), []).append(part)
    found: list[pa.RecordBatch] = []
    for (id_, rewrite, lower, upper, less), parts in alike.items():
        schema, keys = spec.written_under(id_), scope.keys
        rows = decode_inline(
            parts, schema, spec.domain, key_from=keys.start, key_below=keys.stop, among=scope.among
        )
        rows = view(rows, spec.domain, rewrite, lower, upper)
        if less is not None:
            rows = taken_away(rows, less, spec.domain)
        if not rows.num_rows:
            continue
        if id_ != spec.schema_id or not spec.newest:
            rows = Projection.of(schema, spec.schema, spec.domain, spec.live).rows(rows)
        found.append(scope.rows(rows))
    return found


def seen(
    spec: ShardSpec,
    blobs: BlobStore,
    source: Source,
    scope: Scope,
    by_schema: dict[int, Projection],
    *,
    batch_rows: int,
    batch_bytes: int,
    runs: int = 1,
    columns: Collection[str] | None = None,
    mapped: Mapped = one_by_one,
) -> Generator[pa.RecordBatch]:
    """The rows of one run of several in stored order: rewritten, truncated, with the columns to read.

    Rows out of scope are dropped here, before equal rows are summed: no row out of scope equals one in scope.
    """
    lookup = scope.only_keys and columns is None
    fetched = [part for part in source.run.parts if not is_here(spec, part, lookup=lookup)]
    decode = partial(_decoded, batch_rows=batch_rows, batch_bytes=batch_bytes, columns=columns, mapped=mapped)
    with opener(spec, blobs, fetched, scope, runs) as open_:
        for part in source.run.parts:
            lower, upper = (source.lower, source.upper) if source.run.truncated else (None, None)
            # The only run mostly has the keys, so its filters would spare nothing.
            decoded = decode(spec, blobs, part, scope, open_, filtered=runs > 1)
            # Not a loop: its variables would hold a batch of every run while the run waits to be read on.
            viewed = map(
                partial(view, domain=spec.domain, rewrite=part.rewrite, lower=lower, upper=upper), decoded
            )
            if source.less is not None:
                viewed = map(partial(taken_away, upto=source.less, domain=spec.domain), viewed)
            kept = filter(_holds_rows, viewed)
            projection = by_schema.get(part.schema_id)
            projected = kept if projection is None else map(projection.rows, kept)
            yield from projected if scope.where is None else filter(_holds_rows, map(scope.rows, projected))


def is_here(spec: ShardSpec, part: Part, *, lookup: bool) -> bool:
    """Whether a part needs no store: it is in the state, or a look-up finds it unpacked."""
    return part.inline is not None or (lookup and part_caches().unpacked.has(identity(spec, part)))


def _holds_rows(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows)


def _decoded(
    spec: ShardSpec,
    blobs: BlobStore,
    part: Part,
    scope: Scope,
    open_: Open,
    *,
    batch_rows: int,
    batch_bytes: int,
    filtered: bool,
    columns: Collection[str] | None,
    mapped: Mapped,
) -> Generator[pa.RecordBatch]:
    """The rows of a part as written, in the range of keys, without the row groups that the scope skips."""
    keys = scope.keys
    schema = spec.written_under(part.schema_id)
    if part.inline is not None:
        yield decode_inline(
            [part], schema, spec.domain, key_from=keys.start, key_below=keys.stop, among=scope.among
        )
        return
    asked = partial(
        _read,
        spec,
        part,
        open_,
        key_from=keys.start,
        key_below=keys.stop,
        among=scope.among,
        filtered=filtered,
        row_groups=scope.row_groups(part),
        columns=columns,
        mapped=mapped,
    )
    # Look-ups only: a merge writes what it reads, so it must read the stored part, which has checksums.
    kept = scope.only_keys and columns is None and worth_keeping(part, spec.config, is_far=blobs.is_far)
    size = {"batch_rows": batch_rows, "batch_bytes": batch_bytes}
    if kept and scope.among is not None:
        yield from part_caches().unpacked.rows(whole(spec, blobs, part), scope.among, asked, **size)
    else:
        yield from asked(batch_rows=batch_rows, batch_bytes=batch_bytes)


def _read(
    spec: ShardSpec,
    part: Part,
    open_: Open,
    *,
    among: KeySet | None = None,
    filtered: bool = False,
    **what: Any,
) -> Generator[pa.RecordBatch]:
    """As `read_part`; with `filtered`, its filter is read and kept, and few keys are looked for first."""
    filters = part_caches().filters
    with open_(part) as file:
        footer = file.footer if isinstance(file, FarPart) else None
        if among is not None and (among := filters.among(spec, part, among)) is None:
            return
        # Of a part that is far it was read with the footer; one that is kept was asked already.
        id_ = identity(spec, part)
        unread = filtered and footer is None and not filters.has(id_)
        keep = partial(filters.keep, id_) if unread else None
        schema = spec.written_under(part.schema_id)
        yield from read_part(
            file,
            part,
            schema,
            spec.domain,
            among=among,
            footer=footer,
            filtered=keep,
            probed=filtered,
            **what,
        )


def _read_whole(spec: ShardSpec, blobs: BlobStore, part: Part, **what: Any) -> Generator[pa.RecordBatch]:
    """All rows of a part, as `read_part`."""
    with opener(spec, blobs, [part], Scope(spec)) as open_:
        yield from _read(spec, part, open_, **what)


def whole(spec: ShardSpec, blobs: BlobStore, part: Part) -> Whole:
    """A part with the functions that a cache needs to unpack it."""
    schema = spec.written_under(part.schema_id)

    def among_rows(among: KeySet) -> int:
        return rows_among(footer_of(spec, blobs, part), part, schema, among)

    config = spec.config
    return Whole(
        identity(spec, part),
        part,
        schema,
        partial(_read_whole, spec, blobs, part),
        among_rows,
        config.row_group_rows,
        part_caches().budget(config, is_far=blobs.is_far).unpacked_bytes,
    )
