"""Finds keys that cut an answer into about equal shares.

They come from the sparse index of the parts (the first key of every row group), so that shares have about the
same number of stored bytes; or from the rows themselves if there are too few row groups. Must not know what
the shares are for.

INVARIANT: cuts ascend, and no cut is the least key, so that no share is empty if there are enough keys.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from functools import partial

import pyarrow as pa

from tidelake.data.kernel.encode import encode_key
from tidelake.data.part.rowgroups import index_of
from tidelake.model.batch import Part
from tidelake.model.query import Query
from tidelake.model.schema import Schema
from tidelake.model.selection import Selection
from tidelake.shard.engine.overlap import mapped
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.far import footer_of, readers
from tidelake.shard.runs.read import rows
from tidelake.shard.runs.scope import KeyRange, Scope, Source
from tidelake.store.protocols import BlobStore

# With fewer row groups in a share, shares may differ by a third: then the rows are read instead.
_GROUPS_MIN = 4
# Number of keys that are sampled from the rows, for each share.
_SAMPLES = 64


def group_keys(
    spec: ShardSpec, blobs: BlobStore, needed: Iterable[Source], within: KeyRange
) -> list[tuple[bytes, int]]:
    """First keys of the runs' row groups, ascending, with their stored bytes. Reads each part's index."""
    parts = (part for source in needed for part in source.run.parts)
    with closing(mapped(partial(group_sizes, spec, blobs), parts, readers(blobs, 1))) as found:
        return sorted(group for groups in found for group in groups if within.holds(group[0]))


def group_sizes(spec: ShardSpec, blobs: BlobStore, part: Part) -> list[tuple[bytes, int]]:
    """First keys of the row groups of a part, with their sizes in bytes. Reads its index."""
    if part.inline is not None:
        return [(part.key_lower, part.size_bytes)]
    index = index_of(footer_of(spec, blobs, part))
    return list(zip(index.first_keys, index.size_bytes, strict=True))


def quantiles(weighted: Sequence[tuple[bytes, int]], count: int) -> list[bytes]:
    """Keys that cut into at most `count` about equal shares."""
    total = sum(weight for _, weight in weighted)
    cuts: list[bytes] = []
    seen = 0
    for key, weight in weighted:
        if seen >= total * (len(cuts) + 1) / count and key > (cuts[-1] if cuts else weighted[0][0]):
            cuts.append(key)
        seen += weight
    return cuts[: count - 1]


def share_keys(
    spec: ShardSpec, blobs: BlobStore, needed: list[Source], query: Query, count: int, *, selection: Selection
) -> list[bytes]:
    """Encoded keys, ascending, that cut an answer into `count` about equal shares; fewer if it has few keys.

    Reads the index of every part; if there are few row groups, also all keys of the answer.
    """
    if count == 1 or not needed:
        return []
    groups = group_keys(spec, blobs, needed, Scope(spec, where=selection.where).keys)
    if len(groups) >= _GROUPS_MIN * count:
        return quantiles(groups, count)
    keys_only = Selection(tuple(column.name for column in spec.schema.key), selection.where)
    with closing(rows(spec, blobs, needed, query, selection=keys_only)) as found:
        return quantiles([(key, 1) for key in _sampled(found, spec.schema, _SAMPLES * count)], count)


def _sampled(batches: Generator[pa.RecordBatch], schema: Schema, most: int) -> list[bytes]:
    """Every n-th key of the rows, with n so that at most 2 * `most` keys are kept."""
    keys: list[bytes] = []
    step, seen = 1, 0
    for batch in batches:
        chosen = pa.array(range(-seen % step, batch.num_rows, step), pa.int64())
        keys += encode_key(batch.take(chosen), schema).to_pylist()
        seen += batch.num_rows
        while len(keys) > 2 * most:
            keys, step = keys[::2], step * 2
    return keys
