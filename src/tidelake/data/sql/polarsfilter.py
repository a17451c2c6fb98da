"""Filters of polars as conditions on rows.

Owns which filters mean the same to polars and to `tidelake.data.query.where`. Polars applies all of them
again, so a condition may let too many rows through, but never too few. Polars gives a filter as JSON, whose
form is its own affair: what is not known here is left out.
"""

import datetime
import io
import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidelake.data.query.where import predicate as bound
from tidelake.data.sql.needs import exact_number
from tidelake.errors import UsageError
from tidelake.model.schema import Column, Schema

_SIGNS = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_JOINS = {"And": "AND", "Or": "OR"}
_INTEGERS = ("Int", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_FLOATS = ("Float", "Float32", "Float64")


class Unknown(Exception):
    """A filter, or a piece of one, that is not known here."""


# What a form that is not known may lead to.
UNEXPECTED = (Unknown, LookupError, TypeError, ValueError, OverflowError, AttributeError, pa.ArrowException)


def condition(tree: Any, schema: Schema) -> str | None:
    """A condition that is true of all rows that the filter keeps; None: no such condition is known.

    Args:
        tree: the filter, as polars serializes it.
        schema: of the rows.
    """
    return all_known(_conjuncts(tree), _Writer(schema).text, schema)


def all_known(parts: Iterable[Any], text_of: Callable[[Any], str], schema: Schema) -> str | None:
    """The conjunction of those parts of a filter that are known, as a condition; None: none is.

    Args:
        parts: of any form.
        text_of: the condition of a part; raises `Unknown`, or whatever an unexpected form leads to.
        schema: of the rows.
    """
    found = []
    for part in parts:
        try:
            text = text_of(part)
            bound(text, schema)
        except (UsageError, *UNEXPECTED):
            continue
        found.append(text)
    return " AND ".join(found) or None


def without_hints(predicate: Any, tree: Any, polars: Any) -> Any:
    """The filter without pieces that only speed a query up, which cannot be applied; None: none is left."""
    parts = _conjuncts(tree)
    kept = [part for part in parts if not (isinstance(part, dict) and "Display" in part)]
    if len(kept) == len(parts):
        return predicate
    made = None
    for part in kept:
        one = polars.Expr.deserialize(io.StringIO(json.dumps(part)), format="json")
        made = one if made is None else made & one
    return made


def _conjuncts(tree: Any) -> list[Any]:
    pending, found = [tree], []
    while pending:
        node = pending.pop()
        joined = node.get("BinaryExpr") if isinstance(node, dict) else None
        if joined is not None and joined.get("op") == "And":
            pending += [joined["right"], joined["left"]]
        else:
            found.append(node)
    return found


class _Writer:
    def __init__(self, schema: Schema) -> None:
        self._columns = {column.name: column for column in schema.columns}

    def text(self, node: Any) -> str:
        ((kind, what),) = node.items()
        if kind == "Column":
            column = self._columns[what]
            if column.type.name == "bool":
                return column_name(column)
        if kind == "BinaryExpr":
            sign = what["op"]
            if sign in _JOINS:
                return f"({self.text(what['left'])} {_JOINS[sign]} {self.text(what['right'])})"
            column, is_left = self._column_of(what)
            value = _value(what["right" if is_left else "left"], column)
            sides = (column_name(column), value) if is_left else (value, column_name(column))
            return f"({sides[0]} {_SIGNS[sign]} {sides[1]})"
        if kind == "Function":
            return self._function(what["function"], what["input"])
        raise Unknown

    def _column_of(self, what: Any) -> tuple[Column, bool]:
        is_left = "Column" in what["left"]
        return self._columns[what["left" if is_left else "right"]["Column"]], is_left

    def _function(self, function: Any, inputs: list[Any]) -> str:
        ((group, which),) = function.items()
        if (group, which) == ("Boolean", "Not"):
            return f"(NOT {self.text(inputs[0])})"
        column = self._columns[inputs[0]["Column"]]
        name = column_name(column)
        if group == "Boolean" and which in ("IsNull", "IsNotNull"):
            return f"({name} IS {'NOT ' if which == 'IsNotNull' else ''}NULL)"
        if group == "Boolean" and "IsBetween" in which and which["IsBetween"] == {"closed": "Both"}:
            low, high = (_value(node, column) for node in inputs[1:])
            return f"({name} BETWEEN {low} AND {high})"
        if group == "Boolean" and "IsIn" in which and which["IsIn"] == {"nulls_equal": False}:
            values = _listed(inputs[1]["Literal"]["Scalar"]["List"])
            return f"({name} IN ({', '.join(written(value, column) for value in values)}))"
        if (group, which) == ("StringExpr", "StartsWith"):
            prefix = inputs[1]["Literal"]["Scalar"]["String"]
            if not set(prefix) & set("%_\\"):
                return f"({name} LIKE {written(prefix + '%', column)})"
        raise Unknown


def column_name(column: Column) -> str:
    """The name as an identifier of SQL."""
    return '"' + column.name.replace('"', '""') + '"'


def _value(node: Any, column: Column) -> str:
    literal = node["Literal"]
    ((kind, value),) = (literal["Dyn"] if "Dyn" in literal else literal["Scalar"]).items()
    if kind == "Date" and column.type.name == "date32":
        return _day(value)
    if kind in _INTEGERS or kind in _FLOATS or kind in ("String", "Boolean"):
        return written(value, column)
    raise Unknown


def written(value: object, column: Column) -> str:
    """A value as a literal, if it is exact in the type of the column."""
    name = column.type.name
    match value, name:
        case bool(), "bool":
            return str(value).upper()
        case str(), "string":
            return "'" + value.replace("'", "''") + "'"
        case bytes(), "binary":
            return f"X'{value.hex()}'"
        case datetime.datetime(), "timestamp":
            zone = "" if value.tzinfo is None else "Z"
            utc = value.astimezone(datetime.UTC).replace(tzinfo=None) if zone else value
            return f"TIMESTAMP '{utc.isoformat(' ')}{zone}'"
        case datetime.date(), "date32":
            return f"DATE '{value.isoformat()}'"
        case Decimal(), "decimal128" if value.is_finite():
            return format(value, "f")
        case float(), "float64" if math.isfinite(value):
            return f"DOUBLE '{value!r}'"
        case ((int() | float()), _) if not isinstance(value, bool) and not name.startswith("decimal"):
            digits = repr(abs(value))
            if exact_number(digits, column):
                return f"-{digits}" if value < 0 else digits
    raise Unknown


def _day(days: int) -> str:
    return f"DATE '{pa.scalar(days, pa.date32()).as_py().isoformat()}'"


def _listed(raw: list[int]) -> list[object]:
    """The values of a list, which polars writes as an Arrow stream."""
    column = pa.ipc.open_stream(bytes(raw)).read_all().column(0)
    values: list[object] = column.to_pylist()
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not values or any(value is None for value in values):
        raise Unknown
    return values
