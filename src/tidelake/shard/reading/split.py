"""A read in several streams, for several threads of this process: each a range of keys.

Where the ranges are cut is `tidelake.shard.runs.shares`; `tidelake.shard.runs.plan` does the same for other
processes.

INVARIANT: the streams, one after the other, are the answer: disjoint ranges of keys, ascending.
"""

import pyarrow as pa

from tidelake.data.selection import bind
from tidelake.errors import BlobNotFound
from tidelake.model.query import Query
from tidelake.model.selection import ReadOptions
from tidelake.shard.lease import Lease, explained
from tidelake.shard.reading.query import any_stored, ready
from tidelake.shard.runs.read import rows, shown, sources
from tidelake.shard.runs.scope import KeyRange, Scope, matching
from tidelake.shard.runs.shares import share_keys
from tidelake.shard.shard import Shard
from tidelake.shard.version import Version


def split(shard: Shard, asked: Query, n: int, options: ReadOptions) -> list[pa.RecordBatchReader]:
    """The answer in `n` streams of about equal size, as `tidelake.shard.reading.query.stream` gives one.

    Where there are fewer keys than streams, some are empty. Arguments and errors as there.
    """
    version = ready(shard, asked, options).kept_by(Lease(shard))
    return split_of(shard, version, asked, n, options)


def split_of(
    shard: Shard, version: Version, asked: Query, n: int, options: ReadOptions
) -> list[pa.RecordBatchReader]:
    """The same from a version that knows the answer, as `tidelake.shard.reading.query.streamed`."""
    spec, blobs = version.spec.read_as(options.schema_id), shard.stores.blobs
    selection = bind(options, spec.schema)
    needed = matching(sources(version.state.batches(), asked), Scope(spec, where=selection.where))
    try:
        cuts = share_keys(spec, blobs, needed, asked, n, selection=selection)
    except BlobNotFound as error:
        raise explained(shard, error.name, version.state.seqno, version.hold_id) from error
    edges = [None, *cuts, None]
    ranges: list[KeyRange | None] = [KeyRange(edges[i], edges[i + 1]) for i in range(len(edges) - 1)]
    ranges += [None] * (n - len(ranges))
    readers = []
    for keys in ranges:
        within = [] if keys is None else needed
        batches = rows(spec, blobs, within, asked, keys, selection=selection)
        if any_stored(within):
            batches = version.watch(batches)
        readers.append(pa.RecordBatchReader.from_batches(shown(spec, selection), batches))
    return readers
