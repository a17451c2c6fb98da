"""Asking a shard for the rows of some keys: a read that leaves all others out.

Owns the read; which parts, row groups and rows are left out is `tidelake.shard.runs.scope`.
"""

import pyarrow as pa

from tidelake.data.ingest import normalize
from tidelake.data.keyset import KeySet
from tidelake.data.selection import bind
from tidelake.model.query import AsOf
from tidelake.model.schema import DIFF, Schema
from tidelake.model.selection import ReadOptions
from tidelake.shard.lease import Lease
from tidelake.shard.reading.query import any_stored, ready
from tidelake.shard.runs.read import rows, shown, sources
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec


def lookup(shard: Shard, keys: pa.Table, query: AsOf, options: ReadOptions) -> pa.Table:
    """The rows of some keys at a time: sorted by (key, value), consolidated.

    Args:
        shard: to read.
        keys: with the key columns, in any order, each key as often as it comes.
        query: the time.
        options: as for `tidelake.shard.reading.query.stream`, whose errors it has as well.

    Raises:
        InvalidUpdates: the table is none of keys; names the column and the row.
    """
    version = ready(shard, query, options).kept_by(Lease(shard))
    spec = version.spec.read_as(options.schema_id)
    selection = bind(options, spec.schema)
    schema, given = shown(spec, selection), _keys(keys, spec)
    if not given.num_rows:
        return schema.empty_table()
    needed = sources(version.state.batches(), query)
    among = KeySet.of(given, spec.schema)
    found = rows(spec, shard.stores.blobs, needed, query, selection=selection, among=among)
    if any_stored(needed):
        found = version.watch(found)
    return pa.Table.from_batches(found, schema)


def _keys(keys: pa.Table, spec: ShardSpec) -> pa.Table:
    key = Schema(spec.schema.key)
    table = normalize(keys, key, spec.domain, time=spec.domain.minimum)
    return table.drop_columns([*spec.domain.columns, DIFF])
