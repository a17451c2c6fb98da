"""Asking a shard for the rows of some keys: at a time, or through all times. All other rows are left out.

Owns the reads; which parts, row groups and rows are left out is `tidelake.shard.runs.scope`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.select import select
from tidelake.data.kernel.timestamps import check_clock, with_timestamps
from tidelake.data.keys.keyset import KeySet
from tidelake.errors import HistoryCompacted
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Fold, Query, Updates
from tidelake.model.schema import DIFF, Schema
from tidelake.model.selection import ReadOptions
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.engine.version import Version
from tidelake.shard.reading.query import read, wait

Keys: TypeAlias = Callable[[Schema], pa.Table]
"""Makes a table of keys for the schema of the version that is read."""


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
    return _among(shard, lambda _: keys, query, options, seen)


def history(
    shard: Shard, key: Keys, lower: Frontier | None, upper: Frontier | None, options: ReadOptions
) -> pa.Table:
    """The updates of a key in the order of time; of one time the removed rows come first, then by value.

    Args:
        shard: to read.
        key: makes, for the schema of the version that is read, one row with the key columns.
        lower: the first times; None: what is known, which begins with the contents at `since`.
        upper: updates before it; None: all closed ones or, with `staged`, all.
        options: as for `tidelake.shard.reading.query.read`, whose errors it has as well.
    """
    version, plain = shard.version(), replace(options, times="int64")
    domain = version.spec.domain
    if options.times == "timestamp":
        check_clock(domain)
    end = upper if upper is not None else Frontier() if options.staged else version.upper
    if lower is not None:
        found = _among(shard, key, Updates(lower, lower.join(end)), plain, version)
    else:
        if not options.staged and not end <= version.upper:
            version = wait(shard, lambda state: end <= state.upper, end, options.timeout_s)
        since = version.state.since
        if upper is not None and since != version.state.minimum and not since < upper:
            raise HistoryCompacted(upper, since).of(domain.unit)
        folded = _among(shard, key, Fold(since), plain, version)
        closed = Updates(Frontier.of(domain.minimum), end)
        kept = [select(batch, closed, domain) for batch in folded.to_batches()]
        found = pa.Table.from_batches(kept, folded.schema)
    ordered = _by_time(found, domain)
    return ordered if options.times == "int64" else with_timestamps(ordered, domain)


def _by_time(updates: pa.Table, domain: TimeDomain) -> pa.Table:
    """Updates that are sorted by value, sorted by time."""
    times = [updates[name].to_numpy() for name in reversed(domain.columns)]
    order = np.lexsort((updates[DIFF].to_numpy() > 0, *times))
    return updates.take(pa.array(order))


def _among(shard: Shard, keys: Keys, query: Query, options: ReadOptions, seen: Version | None) -> pa.Table:
    asked = read(shard, query, options, seen)
    given = keys_of(keys(asked.spec.schema), asked.spec)
    return asked.among(KeySet.of(given, asked.spec.schema)) if given.num_rows else asked.schema.empty_table()


def keys_of(keys: pa.Table, spec: ShardSpec) -> pa.Table:
    """The keys of a table, checked and made canonical, with the key columns only; errors as `lookup`."""
    key = Schema(spec.schema.key)
    table = normalize(keys, key, spec.domain, time=spec.domain.minimum)
    return table.drop_columns([*spec.domain.columns, DIFF])
