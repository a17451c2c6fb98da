"""Asking a shard for the rows of some keys: a read that leaves all others out.

Owns the read; which parts, row groups and rows are left out is `tidelake.shard.runs.scope`.
"""

import pyarrow as pa

from tidelake.data.ingest import normalize
from tidelake.data.keyset import KeySet
from tidelake.model.query import AsOf
from tidelake.model.schema import DIFF, Schema
from tidelake.model.selection import ReadOptions
from tidelake.shard.reading.query import read
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.version import Version


def lookup(
    shard: Shard, keys: pa.Table, query: AsOf, options: ReadOptions, seen: Version | None = None
) -> pa.Table:
    """The rows of some keys at a time: sorted by (key, value), consolidated.

    Args:
        shard: to read.
        keys: with the key columns, in any order, each key as often as it comes.
        query: the time.
        options: as for `tidelake.shard.reading.query.read`, whose errors it has as well.
        seen: likewise.

    Raises:
        InvalidUpdates: the table is none of keys; names the column and the row.
    """
    asked = read(shard, query, options, seen)
    given = _keys(keys, asked.spec)
    return asked.among(KeySet.of(given, asked.spec.schema)) if given.num_rows else asked.schema.empty_table()


def _keys(keys: pa.Table, spec: ShardSpec) -> pa.Table:
    key = Schema(spec.schema.key)
    table = normalize(keys, key, spec.domain, time=spec.domain.minimum)
    return table.drop_columns([*spec.domain.columns, DIFF])
