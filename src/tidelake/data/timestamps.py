"""The times of rows as Arrow timestamps, for those who ask for them. Stored, they are int64.

Pure. A time and its timestamp are the same number of the same unit, in UTC, so nothing is copied or rounded,
and every time has one. Python's `datetime` ends with the year 9999: later timestamps stay in Arrow.
"""

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

import pyarrow as pa

from tidelake.errors import UsageError
from tidelake.model.time import TimeDomain

R = TypeVar("R", pa.RecordBatch, pa.Table)
ZONE = "UTC"
_UNITS = ("ms", "us")


def check_clock(domain: TimeDomain, asked: str = "times='timestamp'") -> None:
    """Check that times have timestamps.

    Raises:
        UsageError: the unit is no clock; names what was asked for.
    """
    if domain.unit not in _UNITS:
        raise UsageError(
            f"{asked}: times of unit {domain} do not count from 1970, and have no timestamps: leave it out"
        )


def timestamp_type(domain: TimeDomain) -> pa.DataType:
    """The type of the timestamps of a clock."""
    return pa.timestamp(domain.unit, ZONE)


def timestamp_schema(schema: pa.Schema, domain: TimeDomain) -> pa.Schema:
    """A schema whose time column, if it has one, is of timestamps."""
    (name,) = domain.columns
    at = schema.get_field_index(name)
    return schema if at < 0 else schema.set(at, schema.field(at).with_type(timestamp_type(domain)))


def with_timestamps(rows: R, domain: TimeDomain) -> R:
    """The same rows, with timestamps in the time column if they have one. No copy."""
    (name,) = domain.columns
    at = rows.schema.get_field_index(name)
    if at < 0:
        return rows
    # SUBTLE: a cast from int64 takes the number as it is, and copies nothing.
    values = rows.column(at).cast(timestamp_type(domain))
    return rows.set_column(at, timestamp_schema(rows.schema, domain).field(at), values)


def stream(batches: Generator[pa.RecordBatch], domain: TimeDomain) -> Generator[pa.RecordBatch]:
    """`with_timestamps` of each batch; closes `batches` at its own end."""
    with closing(batches):
        for batch in batches:
            yield with_timestamps(batch, domain)
