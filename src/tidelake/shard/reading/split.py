"""A read in several streams, for several threads of this process: each a range of keys.

Where the ranges are cut is `tidelake.shard.runs.shares`; `tidelake.shard.runs.plan` does the same for other
processes.

INVARIANT: the streams, one after the other, are the answer: disjoint ranges of keys, ascending.
"""

import pyarrow as pa

from tidelake.data.selection import bind
from tidelake.errors import BlobNotFound
from tidelake.model.query import Query
from tidelake.model.selection import Wanted
from tidelake.shard.lease import Lease, explained
from tidelake.shard.reading.query import any_stored, ready
from tidelake.shard.runs.read import rows, shown, sources
from tidelake.shard.runs.scope import KeyRange, Scope, matching
from tidelake.shard.runs.shares import share_keys
from tidelake.shard.shard import Shard
from tidelake.state.state import ShardState


def split(
    shard: Shard, asked: Query, n: int, timeout_s: float | None = None, *, wanted: Wanted
) -> list[pa.RecordBatchReader]:
    """The answer in `n` streams of about equal size, as `tidelake.shard.reading.query.stream` gives one.

    Where there are fewer keys than streams, some are empty. Arguments and errors as there.
    """
    return split_of(shard, ready(shard, asked, timeout_s), asked, n, lease=Lease(shard), wanted=wanted)


def split_of(
    shard: Shard, state: ShardState, asked: Query, n: int, *, lease: Lease, wanted: Wanted
) -> list[pa.RecordBatchReader]:
    """The same as of a state that knows the answer, as `tidelake.shard.reading.query.streamed`."""
    # Asked for after the state, so that it knows the schemas of all parts.
    spec, blobs = shard.spec, shard.stores.blobs
    selection = bind(wanted, spec.schema)
    found = sources(state.batches(), asked)
    needed = matching(found, Scope(spec, where=selection.where))
    try:
        cuts = share_keys(spec, blobs, needed, asked, n, selection=selection)
    except BlobNotFound as error:
        raise explained(shard, error.name, state.seqno, lease.id) from error
    edges = [None, *cuts, None]
    ranges: list[KeyRange | None] = [KeyRange(edges[i], edges[i + 1]) for i in range(len(edges) - 1)]
    ranges += [None] * (n - len(ranges))
    readers = []
    for keys in ranges:
        within = [] if keys is None else needed
        batches = rows(spec, blobs, within, asked, keys, selection=selection)
        if any_stored(within):
            batches = lease.watch(state, batches)
        readers.append(pa.RecordBatchReader.from_batches(shown(spec, selection), batches))
    return readers
