"""The `schema` beside a `payload`: how Kafka Connect's JSON describes the encoding of values.

Owns the names of Kafka Connect's and Debezium's logical types. Of events it must know only where their rows
are.
"""

from collections.abc import Mapping
from typing import Any

from tidelake.data.json.encoding import PLAIN, Encoding

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_SCALED = "io.debezium.data.VariableScaleDecimal"
# Types whose name alone says what a number counts. Times of day and texts need no encoding.
_COUNTS: dict[str, Encoding] = {
    "org.apache.kafka.connect.data.Date": Encoding("days"),
    "org.apache.kafka.connect.data.Timestamp": Encoding("ms"),
    "io.debezium.time.Date": Encoding("days"),
    "io.debezium.time.Timestamp": Encoding("ms"),
    "io.debezium.time.MicroTimestamp": Encoding("us"),
    "io.debezium.time.NanoTimestamp": Encoding("ns"),
}


def row_encoding(schema: Any) -> Encoding:
    """How the rows of an event (`after`, else `before`) are encoded, by the schema of its envelope.

    Raises:
        ValueError: it is not a schema.
    """
    if schema is None:
        return PLAIN
    rows = dict(_fields(schema))
    row = rows.get("after", rows.get("before"))
    return PLAIN if row is None else _encoding(row)


def struct_encoding(schema: Any) -> Encoding:
    """How the fields of a struct are encoded, such as those of a message's key.

    Raises:
        ValueError: it is not a schema.
    """
    return PLAIN if schema is None else _encoding(schema)


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
    if isinstance(name, str) and name in _COUNTS:
        return _COUNTS[name]
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
