"""What callers hand in as rows, in any library's form, as an Arrow table that is not checked yet.

Owns the forms that are taken, and what a library would lose or garble on the way to Arrow; must not know
collections. Invariant: every value of the table is the one that was handed in.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidelake.data.kernel.types import UNFIT
from tidelake.errors import InvalidUpdates, UsageError

_REASON_MAX = 300
_FORMS = "hand in a pyarrow table, a DataFrame, or anything else that exports Arrow streams"
# Types of polars that Arrow lacks.
_NOT_ARROW = {"Int128": "pl.Decimal(38, 0)", "UInt128": "pl.Decimal(38, 0)", "Object": "pl.String"}


def as_table(data: object, what: str = "updates") -> pa.Table:
    """Data in any of Arrow's forms, or a pandas DataFrame, as an unchecked table. Reads a stream to its end.

    Args:
        data: the rows.
        what: what they are, for messages.

    Raises:
        InvalidUpdates: the data has none of these forms, or a column that has no type of Arrow.
    """
    table = _as_table(data, what)
    column_names(table)
    return table


def column_names(table: pa.Table) -> list[str]:
    """The names of the columns.

    Raises:
        InvalidUpdates: one is no text.
    """
    try:
        names: list[str] = table.column_names
    except UnicodeDecodeError as error:
        raise InvalidUpdates(f"the name of a column is not UTF-8: {error}; rename it") from error
    return names


def check_polars(columns: Any, refusal: type[UsageError] = UsageError) -> None:
    """Check that Arrow has the types of a polars schema, a mapping of names to types.

    Raises:
        UsageError: it has not; names the column and the remedy.
    """
    for name, kind in columns.items():
        for odd, instead in _NOT_ARROW.items():
            if re.search(rf"\b{odd}\b", str(kind)):
                raise refusal(
                    f"column {name!r} has the type {kind} of polars, which Arrow lacks: cast it to {instead}"
                )


def first_line(error: Exception) -> str:
    """The first line of another library's message, cut to a readable length."""
    line = str(error).split("\n", 1)[0]
    return line if len(line) <= _REASON_MAX else line[: _REASON_MAX - 3] + "..."


def _as_table(data: object, what: str) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    kind = type(data)
    library = kind.__module__.partition(".")[0]
    try:
        if isinstance(data, pa.RecordBatch):
            return pa.Table.from_batches([data])
        if isinstance(data, pa.RecordBatchReader):
            return data.read_all()
        if library == "pandas" and hasattr(data, "columns"):
            return _from_pandas(data, what)
        if library == "polars" and hasattr(data, "__arrow_c_stream__") and hasattr(data, "schema"):
            check_polars(data.schema, InvalidUpdates)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data).read_all()
        if hasattr(data, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(data)])
    except UNFIT as error:
        raise InvalidUpdates(f"cannot read {what} from a {kind.__name__}: {first_line(error)}") from error
    hint = "collect() it first" if hasattr(data, "collect") else _FORMS
    raise InvalidUpdates(f"cannot read {what} from a {kind.__name__}: {hint}")


def _from_pandas(data: Any, what: str) -> pa.Table:
    """A DataFrame without its index, which its own stream would add as a column."""
    try:
        table = pa.Table.from_pandas(data, preserve_index=False)
    # Python's errors for duplicate names, numbers past 64 bits, and texts that are not Unicode.
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise InvalidUpdates(f"cannot read {what} from a DataFrame: {first_line(error)}") from error
    for place, field in enumerate(table.schema):
        fault = _fault_of(field.type)
        if fault is not None and data.dtypes.iloc[place].kind == "O":
            for row, value in enumerate(data.iloc[:, place]):
                reason = fault(value)
                if reason:
                    raise InvalidUpdates(f"column {field.name!r} holds {value!r} in row {row}, {reason}")
    return table


def _fault_of(kind: pa.DataType) -> Callable[[Any], str] | None:
    """What finds a Python object that Arrow changes when it makes a value of a type; None: there is none.

    The objects of a column without a type of NumPy are told apart by their first one only.
    """
    is_ = pa.types
    if is_.is_timestamp(kind):
        return lambda value: _moment_fault(value, kind)
    if is_.is_duration(kind):
        return lambda value: _fine_fault(getattr(value, "nanoseconds", 0), kind)
    if is_.is_date(kind):
        return lambda value: "a time beside dates: use dates only" if hasattr(value, "hour") else ""
    if is_.is_time(kind):
        return lambda value: (
            "whose zone would be lost: leave it out" if getattr(value, "tzinfo", None) else ""
        )
    if is_.is_list(kind):
        inner = _fault_of(kind.value_type)
        return inner and (lambda value: _first(map(inner, _items(value))))
    if is_.is_struct(kind):
        faults = {kind.field(i).name: _fault_of(kind.field(i).type) for i in range(kind.num_fields)}
        found = [(name, fault) for name, fault in faults.items() if fault is not None]
        if found:
            return lambda value: _first(f(value.get(n)) for n, f in found) if isinstance(value, dict) else ""
    return None


def _first(reasons: Any) -> str:
    return next(filter(None, reasons), "")


def _items(value: Any) -> Any:
    return value if hasattr(value, "__iter__") and not isinstance(value, str) else ()


def _moment_fault(value: Any, kind: pa.DataType) -> str:
    if value != value:  # noqa: PLR0124 - a NaT of pandas
        return ""
    if hasattr(value, "tzinfo") and (value.tzinfo is None) != (kind.tz is None):
        return "beside times with a zone and without one: give all a zone, or none"
    return _fine_fault(getattr(value, "nanosecond", 0), kind)


def _fine_fault(nanoseconds: Any, kind: pa.DataType) -> str:
    if nanoseconds and not math.isnan(nanoseconds) and kind.unit != "ns":
        return "whose nanoseconds Arrow drops in a column of Python objects: use pandas' own type"
    return ""
