"""Planning a batch read: its columns, the schema that it reads under, and its query.

Must not know holds or workers.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from tidelake.data.answer import changefeed
from tidelake.data.kernel.timestamps import check_clock, timestamp_type, with_timestamps
from tidelake.data.kernel.types import row_schema
from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Query, Updates
from tidelake.model.schema import DIFF
from tidelake.model.selection import ReadOptions
from tidelake.model.time import TimeDomain
from tidelake.shard.runs.plan import ReadPlan
from tidelake.spark.columns import frame_schema
from tidelake.spark.source.options import FormatReadOptions, RowShape
from tidelake.spark.source.times import frontier_of, time_of

# Stored bytes of one task; fewer if that would make fewer tasks than the machine has cores.
_TASK_BYTES = 32 * 1024 * 1024


def shown(rows: pa.Schema, domain: TimeDomain, asked: RowShape) -> pa.Schema:
    """The columns of a read: those asked for, and those that describe changes."""
    names = rows.names if asked.columns is None else asked.columns
    unknown = [name for name in names if name not in rows.names]
    if unknown:
        raise UsageError(f"no column named {unknown[0]!r}: there are {', '.join(map(repr, rows.names))}")
    fields = [rows.field(name) for name in names]
    if asked.rows == "updates":
        if asked.times == "timestamp":
            check_clock(domain, "option times=timestamp")
        kind = timestamp_type(domain) if asked.times == "timestamp" else pa.int64()
        fields += [pa.field(name, kind, nullable=False) for name in domain.columns]
        fields.append(pa.field(DIFF, pa.int64(), nullable=False))
    elif asked.rows == "feed":
        changefeed.check_feed(names, domain)
        fields += changefeed.FIELDS
    return pa.schema(fields)


def timed(batches: Iterator[pa.RecordBatch], asked: RowShape, domain: TimeDomain) -> Iterator[pa.RecordBatch]:
    """Updates whose times have the type that is asked for."""
    if asked.times == "int64":
        return batches
    return (with_timestamps(batch, domain) for batch in batches)


@dataclass(frozen=True)
class Readable:
    """How columns that Spark has asked for can be read.

    Attributes:
        schema_id: of the schema to read under.
        columns: the columns to read under it.
        key: its key columns.
    """

    schema_id: int
    columns: list[str]
    key: tuple[str, ...]


def planned(
    collection: Collection, asked: FormatReadOptions, wanted: StructType
) -> tuple[ReadPlan, Readable]:
    """The plan of a read that returns at least the columns in `wanted`, and under which schema it reads."""
    under = readable(collection, asked.shape, wanted)
    plan = collection.distributed.plan(
        query_of(collection, asked),
        asked.parallelism or os.cpu_count() or 1,
        ReadOptions(
            under.columns,
            asked.shape.where,
            asked.timeout_s,
            asked.staged,
            under.schema_id,
            complete=True,
        ),
        task_bytes_max=_TASK_BYTES if asked.parallelism is None else None,
    )
    return plan, under


def query_of(collection: Collection, asked: FormatReadOptions) -> Query | None:
    """The query that the options ask for; None: the contents at the last closed time."""
    times, staged = times_of(collection), asked.staged
    if asked.after is not None:
        after = time_of(asked.after, times, "after", staged=staged)
        if asked.through is None:
            return Changes(after, collection.last_staged() if asked.staged else collection.last_time())
        return Changes(after, time_of(asked.through, times, "through", staged=staged))
    if asked.lower is not None:
        lower = frontier_of(asked.lower, times, "lower", staged=staged)
        if asked.last is not None:
            last = time_of(asked.last, times, "endingVersion", staged=staged)
            return Updates(lower, Frontier.past(last))
        if asked.upper is None:
            return Updates(lower, Frontier() if asked.staged else lower.join(collection.upper))
        return Updates(lower, frontier_of(asked.upper, times, "upper", staged=staged))
    return None if asked.as_of is None else AsOf(time_of(asked.as_of, times, "asOf", staged=staged))


def readable(collection: Collection, asked: RowShape, wanted: StructType) -> Readable:
    """The newest schema that has the columns in `wanted`, and the columns to read under it.

    A DataFrame is planned when it is first used. The collection's columns may have changed since Spark asked
    for them: then rows are read under the earlier schema.
    """
    if not wanted.fields:
        raise UsageError("the schema has no columns: name one at least")
    schemas = collection.state().schemas
    reasons: list[str] = []
    for schema_id in sorted(schemas, reverse=True):
        rows = row_schema(schemas[schema_id].schema)
        if asked.columns is not None and not set(asked.columns) <= set(rows.names):
            reasons.append(f"columns={list(asked.columns)} are not all there")
            continue
        reason = _unlike(wanted, frame_schema(shown(rows, collection.domain, asked)))
        if reason is None:
            key = tuple(column.name for column in schemas[schema_id].schema.key)
            # A change feed needs the key.
            needed = {*wanted.names, *(key if asked.rows == "feed" else ())}
            return Readable(schema_id, [name for name in rows.names if name in needed], key)
        reasons.append(reason)
    raise UsageError(f"collection {collection.name!r} cannot be read with this schema: {reasons[0]}")


def _unlike(wanted: StructType, offered: StructType) -> str | None:
    """Why `wanted` is not a subset of `offered`; None if it is."""
    fields = {field.name: field for field in offered}
    for field in wanted:
        found = fields.get(field.name)
        if found is None:
            more = "; _diff and the times come with withDiff=true" if field.name.startswith("_") else ""
            return f"no column {field.name!r}: there are {', '.join(map(repr, fields))}{more}"
        have, want = found.dataType.simpleString(), field.dataType.simpleString()
        if found.dataType != field.dataType:
            return (
                f"column {field.name!r} is {have}, not {want}: leave the schema as it is, and cast afterwards"
            )
        if found.nullable and not field.nullable:
            return f"column {field.name!r} may be null: leave NOT NULL out"
    return None
