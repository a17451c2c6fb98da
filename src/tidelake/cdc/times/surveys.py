"""What a task tells the driver of its lines: where the transactions begin, and which may be there twice.

Owns the surveys of lines, and what tells events apart. Must not know lines of Spark, nor times.

A connector that restarts delivers events again. The events of one batch of lines are compared with each
other (`Timeline.again`). Batches are not, so a survey also tells which part of a transaction is in a batch:
`twice` finds the transactions of which two batches may have the same events.

INVARIANT: an event that is in two batches is of a transaction that `twice` names.
"""

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import among, mask, numbers, one_batch
from tidelake.cdc.core.events import Ints, Mask
from tidelake.cdc.debezium.connectors import connector_of
from tidelake.cdc.times.positions import NONE, ROWS, Positions

# Roles of rows of a survey that are no lines. EDGE: of the first and of the last transaction in a batch, the
# first (`clock`) and the last position (`end`) that an event in the batch has. BACK: from position `start` to
# `end` the lines of a batch go back.
EDGE, BACK = 32, 64
# Columns of surveys of which the least value counts.
_LEAST = ("start", "first", "begin", "stamp")
# What a task tells the driver of its lines.
SURVEY = pa.schema(
    [
        pa.field("connector", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("roles", pa.int8(), nullable=False),
        pa.field("clock", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("group", pa.string()),
    ]
)


def told_apart(lines: pa.Array) -> pa.Array:
    """What tells events apart: their lines (binary), without the moments at which they were delivered.

    Each event has its own position in the log, so only an event that is delivered again has an equal text.
    """
    texts = lines.view(pa.string())
    return pc.replace_substring_regex(texts, r'"ts_[mun]s":\s*[0-9]+', "").view(pa.binary())


def _has_alike(survey: pa.Table) -> bool:
    return any(connector_of(name).has_alike for name in survey.column("connector").unique().to_pylist())


def fingerprints(lines: pa.Array) -> pa.Array:
    """`told_apart`, as digests of 16 bytes."""
    digests = [blake2b(text, digest_size=16).digest() for text in told_apart(lines).to_pylist()]
    return pa.array(digests, pa.binary())


def survey(found: Positions) -> pa.RecordBatch:
    """The transactions of some lines, each position once, as `SURVEY`. Only END events have no connector."""
    table = pa.table(told(found), schema=SURVEY).filter(pa.array(found.starts >= 0))
    return one_batch(pa.concat_tables([merged_surveys(table), edges(found, SURVEY)]))


def told(found: Positions) -> dict[str, pa.Array]:
    """The columns of `SURVEY` of lines, a row a line."""
    count = len(found.starts)
    columns = (found.starts, found.roles.astype(np.int8), found.clocks, found.ends)
    return {
        "connector": pa.repeat(pa.scalar(found.connector), count),
        **dict(zip(("start", "roles", "clock", "end"), map(pa.array, columns), strict=True)),
        "group": pa.nulls(count, pa.string()) if found.groups is None else found.groups,
    }


def merged_surveys(table: pa.Table) -> pa.Table:
    """Each position of each role once; of transactions with names only the first position.

    Those of messages, in `tidelake.cdc.times.partitions`, once in each partition.
    """
    by_position = table.column("group").null_count == table.num_rows
    apart = ["connector", "roles", "start" if by_position else "group", "topic", "partition", "number"]
    names = [name for name in apart if name in table.schema.names]
    sums = [(name, "min" if name in _LEAST else "max") for name in table.schema.names if name not in names]
    grouped = table.group_by(names, use_threads=False).aggregate(sums)
    renamed = grouped.rename_columns(
        [name.removesuffix("_max").removesuffix("_min") for name in grouped.column_names]
    )
    return renamed.select(table.schema.names).cast(table.schema)


def goes_back(found: Positions, rows: Ints) -> Mask:
    """Which events may have been there before: their position is not after that of the event before.

    Returns:
        For each event but the first. An equal position is one that was there before; not for Oracle, where
        the texts of two events may be equal.
    """
    starts, ends = np.diff(found.starts[rows]), np.diff(found.ends[rows])
    again = (ends < 0) if connector_of(found.connector).has_alike else (ends <= 0)
    back: Mask = (starts < 0) | ((starts == 0) & again)
    return back


def edges(found: Positions, schema: pa.Schema) -> pa.Table:
    """The rows of a survey, of a schema, that `twice` needs beside those of the transactions."""
    rows = np.flatnonzero(((found.roles & ROWS) > 0) & (found.starts >= 0))
    starts, ends = found.starts[rows], found.ends[rows]
    told: list[dict[str, object]] = []
    if len(rows):
        for at in {int(starts.min()), int(starts.max())}:
            of_it = ends[starts == at]
            told.append({"start": at, "roles": EDGE, "clock": int(of_it.min()), "end": int(of_it.max())})
        back = goes_back(found, rows) if connector_of(found.connector).has_own else np.diff(starts) < 0
        if back.any():
            least = int(starts[1:][back].min())
            told.append({"start": least, "roles": BACK, "clock": NONE, "end": int(starts.max())})
    named = [{"connector": found.connector} | one for one in told]
    return pa.Table.from_pylist(named, schema=schema)


@dataclass(frozen=True)
class Twice:
    """Transactions of which two batches of lines may have the same events.

    Attributes:
        starts: their positions.
        groups: the names of transactions, where the source gives names.
    """

    starts: Ints = field(repr=False)
    groups: tuple[str, ...] = field(repr=False)

    def __bool__(self) -> bool:
        return bool(len(self.starts) or self.groups)

    def has(self, found: Positions) -> Mask:
        """Which lines are events of these transactions."""
        here: Mask = np.isin(found.starts, self.starts)
        if found.groups is not None:
            here = here | among(found.groups, self.groups)
        return here & ((found.roles & ROWS) > 0)


def twice(found: pa.Table, done: int) -> Twice:
    """The transactions of which two batches may have the same events."""
    roles, starts = found.column("roles").to_numpy(), found.column("start").to_numpy()
    back = found.filter(pa.array((roles & BACK) > 0))
    events = found.filter(pa.array(((roles & ROWS) > 0) & (starts >= done)))
    named = mask(events.column("group").is_valid())
    groups = events.column("group").combine_chunks().dictionary_encode()
    starts, ends = events.column("start").to_numpy(), events.column("end").to_numpy()
    codes = np.where(named, groups.indices.fill_null(-1).to_numpy(), starts)
    if "begin" in found.schema.names:
        again = _in_partitions(events, codes)
    else:
        # The row of a transaction with a name has its first position.
        again = np.where(named, _overlap([codes], starts, ends), False)
        again |= ~named & np.isin(
            starts, _at_edges(starts[~named], found.filter(pa.array((roles & EDGE) > 0)))
        )
    for first, last in zip(back.column("start").to_pylist(), back.column("end").to_pylist(), strict=True):
        # An event may lie before the position of its transaction, which is that of the commit.
        again |= (np.maximum(starts, ends) >= first) & (starts <= last)
    texts = groups.dictionary.take(pa.array(np.unique(codes[again & named]))).to_pylist()
    return Twice(np.unique(starts[again & ~named]), tuple(texts))


def _at_edges(starts: Ints, edges: pa.Table) -> Ints:
    """Transactions in several batches that are more than the last of one and the first of the next."""
    found, counts = np.unique(starts, return_counts=True)
    found, counts = found[counts > 1], counts[counts > 1]
    edges = edges.filter(pc.is_in(edges.column("start"), value_set=pa.array(found)))
    of_edge = edges.column("start").to_numpy()
    told, of_told = np.unique(of_edge, return_counts=True)
    known = np.zeros(len(found), np.int64)
    known[np.searchsorted(found, told)] = of_told
    alike = _has_alike(edges)
    touching = _overlap([of_edge], edges.column("clock").to_numpy(), edges.column("end").to_numpy())
    return np.union1d(found[known < counts], of_edge[touching & (not alike)])


def _in_partitions(events: pa.Table, codes: Ints) -> Mask:
    """Which rows of `PLACED` may have events that are in others too: of a number, or of a part of the log."""
    number = numbers(events.column("number"))
    none = np.zeros(len(codes), np.int64)
    by_number = _overlap([codes, number], none, none)
    topics = events.column("topic").combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    places = [codes, topics.astype(np.int64), pc.fill_null(events.column("partition"), -1).to_numpy()]
    alike = _has_alike(events)
    by_place = _overlap(places, events.column("begin").to_numpy(), events.column("end").to_numpy())
    return np.where(number != NONE, by_number, by_place & (not alike))


def _overlap(keys: list[Ints], first: Ints, last: Ints) -> Mask:
    """Which intervals, both ends included, have a number in common with another one of equal keys.

    Of several that overlap at least two are named.
    """
    found = np.zeros(len(first), np.bool_)
    order = np.lexsort((first, *keys))
    same = np.ones(max(len(first) - 1, 0), np.bool_)
    for key in keys:
        same &= key[order][1:] == key[order][:-1]
    meets = same & (first[order][1:] <= last[order][:-1])
    found[order[1:][meets]] = found[order[:-1][meets]] = True
    return found
