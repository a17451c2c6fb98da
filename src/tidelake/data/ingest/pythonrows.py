"""Rows that are dicts of Python, as Arrow tables.

Owns which dicts are rows and which are columns, and what Arrow would lose or garble of Python's objects; must
not know collections. Invariant: every value of a table is the one that was handed in.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidelake.data.kernel.types import UNFIT
from tidelake.errors import InvalidUpdates

_INT64_MAX = 2**63 - 1
_COLUMN = (list, tuple, pa.Array, pa.ChunkedArray)


def is_rows(data: object) -> bool:
    """Whether data is a dict, or a list of dicts."""
    return isinstance(data, Mapping) or (
        isinstance(data, list) and bool(data) and all(isinstance(row, Mapping) for row in data)
    )


def table_of(data: Any) -> pa.Table:
    """A table of one row (a dict), of several (a list of dicts), or of columns (a dict of lists).

    A row has a key, which is no list, so it is never taken for columns.
    """
    if isinstance(data, Mapping):
        if data and all(_is_column(values) for values in data.values()):
            return _table(data)
        data = [data]
    names = tuple(data[0])
    for row, values in enumerate(data):
        if values.keys() != data[0].keys():
            odd = sorted(map(str, values.keys() ^ data[0].keys()))[0]
            raise InvalidUpdates(
                f"row {row} and row 0 do not have the same names: {odd!r} is in one of them only; give None "
                "where there is no value"
            )
    return _table({name: [values[name] for values in data] for name in names})


def check_values(name: str, values: Any, kind: pa.DataType) -> None:
    """Refuse objects of a column that Arrow changes when it makes values of a type.

    Objects of several types are told apart by the first one only.
    """
    fault = _fault_of(kind)
    if fault is None:
        return
    for row, value in enumerate(values):
        reason = fault(value)
        if reason:
            raise InvalidUpdates(f"column {name!r} holds {value!r} in row {row}, {reason}")


def _is_column(values: object) -> bool:
    return isinstance(values, _COLUMN) or (isinstance(values, np.ndarray) and values.ndim == 1)


def _table(columns: Mapping[Any, Any]) -> pa.Table:
    for name in columns:
        if not isinstance(name, str):
            raise InvalidUpdates(f"the name of a column is {name!r}, which is no text")
    arrays = [_array(name, values) for name, values in columns.items()]
    lengths = {name: len(array) for name, array in zip(columns, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise InvalidUpdates(f"columns have different numbers of values: {told}")
    return pa.table(arrays, list(columns))


def _array(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    # Arrow guesses int64 for all whole numbers.
    is_python = isinstance(values, list | tuple)
    large = is_python and any(isinstance(value, int) and value > _INT64_MAX for value in values)
    try:
        found = pa.array(values, pa.uint64() if large else None)
    # Python's errors for numbers past 64 bits, and texts that are not Unicode.
    except (*UNFIT, ValueError, OverflowError, TypeError, RecursionError) as error:
        reason = str(error).split("\n", 1)[0][:300]
        raise InvalidUpdates(f"column {name!r} cannot be read: {reason}") from error
    check_values(name, values, found.type)
    return found


def _fault_of(kind: pa.DataType) -> Callable[[Any], str] | None:
    """What finds an object that is changed; None: there is none."""
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
