"""Dates, times and durations of rows as texts and numbers that JSON and people read.

Pure. Python's own types cannot hold all that Arrow's do, so the texts are made by Arrow.
"""

import pyarrow as pa
import pyarrow.compute as pc

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S, _INT64_MAX = 86_400, 2**63 - 1
# Days since 1970.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times to texts and durations to numbers: Python's own types cannot hold all of them.

    A date or timestamp outside of the years 1 to 9999 becomes the text of its number.
    """
    columns = [_as_text(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _texts(type_: pa.DataType) -> pa.DataType:
    """The type with string for each date, time and timestamp, at any depth, and int64 for durations."""
    is_ = pa.types
    if is_.is_temporal(type_):
        return pa.int64() if is_.is_duration(type_) else pa.string()
    if is_.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return pa.struct([field.with_type(_texts(field.type)) for field in fields])
    if is_.is_fixed_size_list(type_):
        return pa.list_(type_.value_field.with_type(_texts(type_.value_type)), type_.list_size)
    if is_.is_list(type_):
        return pa.list_(type_.value_field.with_type(_texts(type_.value_type)))
    return type_


def _as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_interval(column.type):
        # Arrow has no texts of these, which only answers of SQL have.
        return pa.array([None if span is None else _span(span) for span in column.to_pylist()], pa.string())
    there = _has_text(column)
    if there is None or pc.all(there, min_count=0).as_py():
        return column.cast(_texts(column.type))
    numbers = _numbers(column).cast(pa.string())
    return pc.if_else(there, pc.if_else(there, column, None).cast(pa.string()), numbers)


def _span(span: pa.MonthDayNano) -> str:
    parts = [f"{n} {unit}" for n, unit in zip(span, ("months", "days", "nanoseconds"), strict=True) if n]
    return " ".join(parts) or "0 days"


def has_no_text(column: pa.Array) -> bool:
    """Whether a column has, at any depth, a date or timestamp outside of the years 1 to 9999."""
    is_, there = pa.types, _has_text(column)
    if there is not None:
        return not pc.all(there, min_count=0).as_py()
    if is_.is_struct(column.type):
        # Without what lies below a null.
        return any(map(has_no_text, column.flatten()))
    if is_.is_list(column.type) or is_.is_fixed_size_list(column.type):
        return has_no_text(column.flatten())
    return False


def _has_text(column: pa.Array) -> pa.Array | None:
    """Which dates and timestamps lie in the years 1 to 9999; null where they are. None: all have.

    SUBTLE: Arrow's own texts of later years are wrong, and look like others: the year is cut to 16 bits.
    """
    is_, kind = pa.types, column.type
    if is_.is_timestamp(kind):
        per_day = _DAY_S * _UNITS[kind.unit]
    elif is_.is_date(kind):
        per_day = 1 if is_.is_date32(kind) else _DAY_S * 1000
    else:
        return None
    first, last = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1
    if last > _INT64_MAX:
        # Nanoseconds end before the year 9999, and begin after the year 1.
        return None
    numbers = _numbers(column)
    return pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))


def _numbers(column: pa.Array) -> pa.Array:
    """Dates and timestamps as the numbers that are stored."""
    return column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64()).cast(pa.int64())
