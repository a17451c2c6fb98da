"""The `schema` beside a `payload`: how Kafka Connect's JSON describes columns, and the encoding of values.

Owns the names of Kafka Connect's and Debezium's logical types. Of events it must know only where their rows
are.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidelake.data.json.encoding import PLAIN, Encoding
from tidelake.errors import UsageError

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_SCALED = "io.debezium.data.VariableScaleDecimal"
# Of a number whose schema does not say what it counts, if it is of a date or time: a name of Tidelake's own.
UNTOLD = "tidelake.Untold"
_DIGITS_MAX = 38
_TYPES = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
# What a name of a type alone says: the type, and what a number counts. Times of day need neither.
_NAMED: dict[str, tuple[pa.DataType, Encoding]] = {
    "org.apache.kafka.connect.data.Date": (pa.date32(), Encoding("days")),
    "org.apache.kafka.connect.data.Timestamp": (pa.timestamp("ms"), Encoding("ms")),
    "io.debezium.time.Date": (pa.date32(), Encoding("days")),
    "io.debezium.time.Timestamp": (pa.timestamp("ms"), Encoding("ms")),
    "io.debezium.time.MicroTimestamp": (pa.timestamp("us"), Encoding("us")),
    "io.debezium.time.NanoTimestamp": (pa.timestamp("ns"), Encoding("ns")),
    "io.debezium.time.ZonedTimestamp": (pa.timestamp("us", "UTC"), PLAIN),
}


def row_encoding(schema: Any) -> Encoding:
    """How the rows of an event (`after`, else `before`) are encoded, by the schema of its envelope."""
    return struct_encoding(_row(schema))


def struct_encoding(schema: Any) -> Encoding:
    """How the fields of a struct are encoded, such as those of a message's key."""
    return PLAIN if schema is None else _encoding(schema)


def row_fields(schema: Any) -> list[dict[str, Any]] | None:
    """The columns of the rows of an event (`after`, else `before`), by the schema of its envelope.

    Returns:
        What Connect says of each column; None if it does not tell columns.
    """
    row = _row(schema)
    if row is None or _object(row).get("type", "struct") != "struct":
        # MongoDB's are texts.
        return None
    return [dict(_object(of)) for _, of in _fields(row)]


def _row(schema: Any) -> Any:
    rows = {} if schema is None else dict(_fields(schema))
    return rows.get("after", rows.get("before"))


def columns_of(fields: list[dict[str, Any]]) -> pa.Schema:
    """The columns that `row_fields` describes."""
    return pa.schema([_column(one) for one in fields])


def _column(kind: Mapping[str, Any]) -> pa.Field:
    name = kind.get("field")
    if not isinstance(name, str):
        raise ValueError("a field of it has no name")
    return pa.field(name, _type(kind, name), nullable=bool(kind.get("optional")))


def _type(kind: Mapping[str, Any], where: str) -> pa.DataType:
    name, base = kind.get("name"), kind.get("type")
    if name == _DECIMAL:
        scale = _scale(kind)
        known = (kind.get("parameters") or {}).get("connect.decimal.precision")
        precision = int(str(known), 10) if known is not None else max(38, scale)
        if precision > _DIGITS_MAX:
            raise UsageError(
                f"column {where!r} is a number of {precision} digits, and Spark holds {_DIGITS_MAX}: let the "
                "connector write texts (decimal.handling.mode=string), or leave it out (column.exclude.list)"
            )
        return pa.decimal128(precision, scale)
    if name == _SCALED:
        raise UsageError(
            f"column {where!r} is a number without a fixed scale: let the connector write texts "
            "(decimal.handling.mode=string), or create the collection with a decimal type first"
        )
    if isinstance(name, str) and name in _NAMED:
        return _NAMED[name][0]
    if base == "struct":
        return pa.struct([_column(of) for _, of in _fields(kind)])
    if base == "array":
        items = _object(kind.get("items", {}))
        return pa.list_(pa.field("item", _type(items, where), nullable=bool(items.get("optional"))))
    if isinstance(base, str) and base in _TYPES:
        return _TYPES[base]
    raise UsageError(
        f"column {where!r} has the type {base!r} of Kafka Connect, which no collection can keep: let the "
        "connector leave it out (column.exclude.list)"
    )


def _fields(schema: Any) -> list[tuple[str, Any]]:
    fields = _object(schema).get("fields", [])
    if not isinstance(fields, list):
        raise ValueError("its 'fields' are no array")
    found = []
    for field in fields:
        name = _object(field).get("field")
        if not isinstance(name, str):
            raise ValueError("a field of it has no name")
        found.append((name, field))
    return found


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def _encoding(schema: Any) -> Encoding:
    kind = _object(schema)
    name = kind.get("name")
    if name == _DECIMAL:
        return Encoding("bytes", _scale(kind))
    if name == _SCALED:
        return Encoding("scaled")
    if name == UNTOLD:
        return Encoding("untold")
    if isinstance(name, str) and name in _NAMED:
        return _NAMED[name][1]
    if kind.get("type") == "struct":
        inner = [(field, _encoding(of)) for field, of in _fields(kind)]
    elif kind.get("type") == "array":
        inner = [("", _encoding(kind.get("items", {})))]
    else:
        return PLAIN
    return Encoding(inner=tuple((field, one) for field, one in inner if one != PLAIN))


def _scale(kind: Mapping[str, Any]) -> int:
    parameters = kind.get("parameters")
    scale = parameters.get("scale") if isinstance(parameters, dict) else None
    try:
        # Connect writes the scale as text. Going through `str` refuses a bool, which is an int in Python.
        return int(str(scale), 10)
    except ValueError:
        raise ValueError("a decimal of it has no scale") from None
