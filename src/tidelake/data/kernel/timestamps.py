"""The times of rows as Arrow timestamps, for those who ask for them. Stored, they are int64.

Pure. A time and its timestamp are the same number of the same unit, in UTC, so nothing is copied or rounded,
and every time has one. Times of unit `date` are dates (`date32`) instead, which end with day 2^31 - 1.
Python's `datetime` ends with the year 9999: later timestamps stay in Arrow.
"""

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.time import TimeDomain
from tidelake.timetext import is_clock

R = TypeVar("R", pa.RecordBatch, pa.Table)
ZONE = "UTC"
_PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def check_clock(domain: TimeDomain, asked: str = "times='timestamp'") -> None:
    """Check that times have timestamps."""
    if not is_clock(domain.unit):
        raise UsageError(
            f"{asked}: times of unit {domain} do not count from 1970, and have no timestamps: leave it out"
        )


def timestamp_type(domain: TimeDomain) -> pa.DataType:
    """The type of the timestamps of a clock; of its dates, if it counts days."""
    return pa.date32() if domain.unit == "date" else pa.timestamp(domain.unit, ZONE)


def timestamp_schema(schema: pa.Schema, domain: TimeDomain) -> pa.Schema:
    """A schema whose time column, if it has one, is of timestamps."""
    (name,) = domain.columns
    at = schema.get_field_index(name)
    return schema if at < 0 else schema.set(at, schema.field(at).with_type(timestamp_type(domain)))


def with_timestamps(rows: R, domain: TimeDomain) -> R:
    """The same rows, with timestamps in the time column if they have one. Copies nothing but dates."""
    (name,) = domain.columns
    at = rows.schema.get_field_index(name)
    if at < 0:
        return rows
    values = rows.column(at)
    if domain.unit == "date":
        try:
            values = values.cast(pa.int32())
        except pa.ArrowInvalid as error:
            raise UsageError(
                f"time {pc.max(values)} is past the last date, day 2^31 - 1: ask for int64, or to_arrow()"
            ) from error
    # SUBTLE: a cast from int64 takes the number as it is, and copies nothing.
    values = values.cast(timestamp_type(domain))
    return rows.set_column(at, timestamp_schema(rows.schema, domain).field(at), values)


def days_of(values: pa.Array, name: str) -> pa.Array:
    """Dates, or timestamps at midnight UTC, as days since 1970 (int64). What has no zone is in UTC."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32()).cast(pa.int64())
    per_day = _PER_DAY["ms" if pa.types.is_date64(values.type) else values.type.unit]
    numbers = values.view(pa.int64())
    # Division rounds towards 0, which is right for the multiples, and only they are kept.
    days = pc.divide(numbers, per_day)
    wrong = pc.not_equal(pc.multiply(days, per_day), numbers)
    if pc.any(wrong, min_count=0).as_py():
        first = values.filter(wrong)[0]
        raise InvalidUpdates(
            f"column {name!r} holds {first}, which is not at midnight UTC, and times of unit date are days: "
            "give dates"
        )
    return days


def stream(batches: Generator[pa.RecordBatch], domain: TimeDomain) -> Generator[pa.RecordBatch]:
    """`with_timestamps` of each batch; closes `batches` at its own end."""
    with closing(batches):
        for batch in batches:
            yield with_timestamps(batch, domain)
