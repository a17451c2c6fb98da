"""Filters of polars as predicates.

Owns which filters mean the same to polars and to `tidelake.data.query.comparing`. Polars applies all of them
again, so a predicate may let too many rows through, but never too few. Polars gives a filter as JSON, whose
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

from tidelake.data.query.comparing import FLIPPED, Sign, among, compared, is_too_long, null, starting
from tidelake.data.query.literal import Day, Double, Place, Value, exact_number, place
from tidelake.model.instants import moment
from tidelake.model.predicate import Predicate, all_of, any_of
from tidelake.model.schema import Column, Schema

_SIGNS: dict[str, Sign] = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_JOINS = ("And", "Or")
_INTEGERS = ("Int", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_FLOATS = ("Float", "Float32", "Float64")


class Unknown(Exception):
    """A filter, or a piece of one, that is not known here."""


# What a form that is not known may lead to.
UNEXPECTED = (
    *(Unknown, LookupError, TypeError, ValueError, OverflowError, AttributeError, RecursionError),
    pa.ArrowException,
)


def condition(tree: Any, schema: Schema) -> Predicate | None:
    """A predicate that is true of all rows that the filter keeps; None: no such one is known."""
    return all_known(_conjuncts(tree), _Reader(schema).predicate)


def all_known(parts: Iterable[Any], predicate_of: Callable[[Any], Predicate]) -> Predicate | None:
    """The conjunction of those parts of a filter that are known; None: none is."""
    found = []
    for part in parts:
        try:
            one = predicate_of(part)
        except UNEXPECTED:
            continue
        if not is_too_long(one):
            found.append(one)
    return all_of(found) if found else None


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


class _Reader:
    def __init__(self, schema: Schema) -> None:
        self._columns = {column.name: column for column in schema.columns}

    def predicate(self, node: Any, *, negated: bool = False) -> Predicate:
        """What is true where the filter is true, or false with `negated`."""
        ((kind, what),) = node.items()
        if kind == "Column":
            column = self._columns[what]
            if column.type.name == "bool":
                return among(column, [placed(not negated, column)])
        if kind == "BinaryExpr":
            sign = what["op"]
            if sign in _JOINS:
                join = all_of if (sign == "And") != negated else any_of
                return join([self.predicate(what[side], negated=negated) for side in ("left", "right")])
            is_left = "Column" in what["left"]
            column = self._columns[what["left" if is_left else "right"]["Column"]]
            at = _placed(what["right" if is_left else "left"], column)
            return compared(column, _SIGNS[sign] if is_left else FLIPPED[_SIGNS[sign]], at, negated=negated)
        if kind == "Function":
            return self._function(what["function"], what["input"], negated=negated)
        raise Unknown

    def _function(self, function: Any, inputs: list[Any], *, negated: bool) -> Predicate:
        ((group, which),) = function.items()
        if (group, which) == ("Boolean", "Not"):
            return self.predicate(inputs[0], negated=not negated)
        column = self._columns[inputs[0]["Column"]]
        if group == "Boolean" and which in ("IsNull", "IsNotNull"):
            return null(column, negated=negated != (which == "IsNotNull"))
        if group == "Boolean" and "IsBetween" in which and which["IsBetween"] == {"closed": "Both"}:
            low, high = (_placed(node, column) for node in inputs[1:])
            join = any_of if negated else all_of
            both = (
                compared(column, ">=", low, negated=negated),
                compared(column, "<=", high, negated=negated),
            )
            return join(both)
        if group == "Boolean" and "IsIn" in which and which["IsIn"] == {"nulls_equal": False}:
            values = _listed(inputs[1]["Literal"]["Scalar"]["List"])
            return among(column, [placed(value, column) for value in values], negated=negated)
        if (group, which) == ("StringExpr", "StartsWith") and column.type.name == "string":
            return starting(column, inputs[1]["Literal"]["Scalar"]["String"], negated=negated)
        raise Unknown


def _placed(node: Any, column: Column) -> Place:
    literal = node["Literal"]
    ((kind, value),) = (literal["Dyn"] if "Dyn" in literal else literal["Scalar"]).items()
    if kind == "Date" and column.type.name == "date32":
        return _place(Day(value), column)
    if kind in _INTEGERS or kind in _FLOATS or kind in ("String", "Boolean"):
        return placed(value, column)
    raise Unknown


def placed(value: object, column: Column) -> Place:
    """Where a value stands among those of a column, if it is exact in the type of the column."""
    name = column.type.name
    match value, name:
        case bool(value), "bool":
            return _place(value, column)
        case str(value), "string":
            return _place(value, column)
        case bytes(value), "binary":
            return _place(value, column)
        case datetime.datetime(), "timestamp":
            zone = "" if value.tzinfo is None else "Z"
            utc = value.astimezone(datetime.UTC).replace(tzinfo=None) if zone else value
            return _place(moment(f"{utc.isoformat(' ')}{zone}"), column)
        case datetime.date(), "date32":
            return _place(Day(pa.scalar(value, pa.date32()).value), column)
        case Decimal(), "decimal128" if value.is_finite():
            return _place(value, column)
        case float(), "float64" if math.isfinite(value):
            return _place(Double(value), column)
        case ((int() | float()), _) if not isinstance(value, bool) and not name.startswith("decimal"):
            if exact_number(repr(abs(value)), column):
                return _place(Decimal(repr(value)), column)
    raise Unknown


def _place(value: Value | None, column: Column) -> Place:
    found = None if value is None else place(value, column)
    if found is None:
        raise Unknown
    return found


def _listed(raw: list[int]) -> list[object]:
    """The values of a list, which polars writes as an Arrow stream."""
    column = pa.ipc.open_stream(bytes(raw)).read_all().column(0)
    values: list[object] = column.to_pylist()
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not values or any(value is None for value in values):
        raise Unknown
    return values
