"""Asking a shard for the rows of some keys: at a time, or through all times. All other rows are left out.

Owns the reads; which parts, row groups and rows are left out is `tidelake.shard.runs.scope`.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.select import select
from tidelake.data.kernel.timestamps import check_clock, with_timestamps
from tidelake.data.keys.keyset import KeySet
from tidelake.errors import HistoryCompacted
from tidelake.model.frontier import Frontier
from tidelake.model.predicate import PAST
from tidelake.model.query import AsOf, Fold, Updates
from tidelake.model.schema import DIFF, Schema
from tidelake.model.selection import ReadOptions
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.engine.version import Version
from tidelake.shard.reading.query import read, wait
from tidelake.shard.reading.versionread import VersionRead
from tidelake.shard.runs.scope import KeyRange

Keys: TypeAlias = Callable[[Schema], pa.Table]
"""Makes a table of keys for the schema of the version that is read."""


def lookup(
    shard: Shard, keys: Keys, query: AsOf, options: ReadOptions, seen: Version | None = None
) -> pa.Table:
    """The rows of some keys at a time: sorted by (key, value), consolidated."""
    asked = read(shard, query, options, seen)
    table, key = keys(asked.spec.schema), asked.spec.schema.key
    columns = {*table.column_names}
    first = tuple(takewhile(lambda column: column.name in columns, key))
    # Of a table with a later one too, one is missing.
    if not first or any(column.name in columns for column in key[len(first) :]) or len(first) == len(key):
        return _among(asked, table)
    given = _canonical(table, Schema(first), asked.spec.domain)
    ranges = KeySet.of(given, Schema(first)).keys.to_pylist() if given.num_rows else []
    found = asked.as_one(batch for start in ranges for batch in beginning(asked, start))
    return pa.Table.from_batches(found, asked.schema)


def few(asked: VersionRead, rows: int, starts: Iterable[bytes]) -> VersionRead:
    """A read of which hardly more than so many rows will be taken from each of these keys on.

    No more are merged at once, and small runs are read once.
    """
    found = asked.holding_small(starts)
    config = replace(asked.spec.config, merge_chunk_rows=rows, fold_rows=rows)
    return replace(found, spec=replace(asked.spec, config=config))


def beginning(asked: VersionRead, start: bytes) -> Generator[pa.RecordBatch]:
    """The rows whose encoded keys begin so, in order. They may be left at any time."""
    return asked.between(KeyRange(start, start + PAST))


def history(
    shard: Shard, key: Keys, lower: Frontier | None, upper: Frontier | None, options: ReadOptions
) -> pa.Table:
    """The updates of a key in the order of time; of one time the removed rows come first, then by value."""
    version, plain = shard.version(), replace(options, times="int64")
    domain = version.spec.domain
    if options.times == "timestamp":
        check_clock(domain)
    end = upper if upper is not None else Frontier() if options.staged else version.upper
    if lower is not None:
        asked = read(shard, Updates(lower, lower.join(end)), plain, version)
        found = _among(asked, key(asked.spec.schema))
    else:
        if not options.staged and not end <= version.upper:
            version = wait(shard, lambda state: end <= state.upper, end, options.timeout_s)
        since = version.state.since
        if upper is not None and since != version.state.minimum and not since < upper:
            raise HistoryCompacted(upper, since).of(domain.unit)
        asked = read(shard, Fold(since), plain, version)
        folded = _among(asked, key(asked.spec.schema))
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


def _among(asked: VersionRead, keys: pa.Table) -> pa.Table:
    given = keys_of(keys, asked.spec)
    return asked.among(KeySet.of(given, asked.spec.schema)) if given.num_rows else asked.schema.empty_table()


def keys_of(keys: pa.Table, spec: ShardSpec) -> pa.Table:
    """The keys of a table, checked and made canonical, with the key columns only; errors as `lookup`."""
    return _canonical(keys, Schema(spec.schema.key), spec.domain)


def _canonical(keys: pa.Table, key: Schema, domain: TimeDomain) -> pa.Table:
    table = normalize(keys, key, domain, time=domain.minimum)
    return table.drop_columns([*domain.columns, DIFF])
