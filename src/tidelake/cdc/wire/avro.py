"""Messages of Avro as Kafka Connect's JSON: `{"schema": ..., "payload": ...}`.

Owns how a schema of Avro becomes one of Connect, and a value its JSON. Connect's own names of types are in
the schema (`connect.name`), where its converter has written it; else Avro's logical types stand for them.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
import msgspec
from fastavro.schema import SchemaParseException

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.wire.connectjson import DECIMAL, Convert, begun, finite
from tidelake.errors import UsageError

_BASIC = {
    **{"boolean": "boolean", "int": "int32", "long": "int64", "float": "float", "double": "double"},
    **{"string": "string", "bytes": "bytes", "fixed": "bytes", "enum": "string"},
}
_LOGICAL = {
    "decimal": DECIMAL,
    "date": "org.apache.kafka.connect.data.Date",
    "timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
    "local-timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "local-timestamp-micros": "io.debezium.time.MicroTimestamp",
    "timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "local-timestamp-nanos": "io.debezium.time.NanoTimestamp",
}
_TOO_LARGE = 64


@dataclass(frozen=True)
class AvroSchema:
    """How the messages of one schema are read.

    Attributes:
        reads: the schema without logical types, so that values come as they are stored.
        prefix: the JSON before the payload.
        convert: makes the payload.
    """

    reads: Any
    prefix: bytes
    convert: Convert

    @classmethod
    def of(cls, schemas: list[Any]) -> "AvroSchema":
        """That of the last of some schemas, which may refer to those before."""
        names: dict[str, Any] = {}
        bare: dict[str, Any] = {}
        parsed: Any = None
        reads: Any = None
        try:
            for one in schemas:
                parsed = fastavro.parse_schema(one, named_schemas=names)
                reads = fastavro.parse_schema(_without_logical(one), named_schemas=bare)
        except (SchemaParseException, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"a schema is not one of Avro: {error}") from None
        kind, convert = _connect(parsed, names, ())
        return cls(reads, begun(kind), convert)

    def text(self, data: bytes, *, key: bool) -> bytes:  # noqa: ARG002 - nulls are told in both
        """A message, or the key of one, as JSON."""
        stream = io.BytesIO(data)
        try:
            value: Any = fastavro.schemaless_reader(stream, self.reads, None)
        except (EOFError, ValueError, IndexError, TypeError, OverflowError, StopIteration) as error:
            raise Unfit(f"its bytes do not match its Avro schema: {error}") from None
        if stream.tell() != len(data):
            raise Unfit(f"its bytes do not match its Avro schema: {len(data) - stream.tell()} are left over")
        payload = value if self.convert is None else self.convert(value)
        return b"%b%b}" % (self.prefix, msgspec.json.encode(payload))


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType"}
    return {
        name: _without_logical(value) if name in ("type", "fields", "items", "values") else value
        for name, value in kept.items()
    }


def _connect(schema: Any, names: Mapping[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], Convert]:
    """The schema of Connect for one of Avro, and what makes its values."""
    where = ".".join(path) or "the message"
    if len(path) > _TOO_LARGE:
        raise UsageError(f"the type of {path[0]!r} holds itself, which no collection can keep")
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise UsageError(f"the type of {where!r} is one of {len(others)}, which no column can keep")
        kind, convert = _connect(others[0], names, path)
        inner = convert
        return kind | {"optional": True}, None if inner is None else lambda v: None if v is None else inner(v)
    if isinstance(schema, str) and schema in names:
        return _connect(names[schema], names, path)
    given: Mapping[str, Any] = {"type": schema} if isinstance(schema, str) else schema
    base = given["type"]
    if not isinstance(base, str):
        return _connect(base, names, path)
    if base in names:
        return _connect(names[base], names, path)
    told: dict[str, Any] = {"optional": False}
    name = given.get("connect.name") or _LOGICAL.get(given.get("logicalType", ""))
    if name:
        told["name"] = name
    if base == "record":
        return _record(given, names, path, told)
    if base in ("array", "map"):
        key = "items" if base == "array" else "values"
        kind, convert = _connect(given[key], names, path)
        of = convert
        if base == "array":
            return (
                told | {"type": "array", "items": kind},
                None if of is None else lambda v: [of(one) for one in v],
            )
        return (
            told | {"type": "map", "keys": {"type": "string", "optional": False}, "values": kind},
            None if of is None else lambda v: {name: of(one) for name, one in v.items()},
        )
    if base not in _BASIC:
        raise UsageError(f"the type of {where!r} is {base!r}, which Avro does not have")
    told["type"] = given.get("connect.type") or _BASIC[base]
    if name == DECIMAL:
        parameters = {"scale": given.get("scale", 0), "connect.decimal.precision": given.get("precision")}
        own = {key: str(value) for key, value in parameters.items() if value is not None}
        named: Mapping[str, str] = given.get("connect.parameters") or {}
        told["parameters"] = {**own, **named}
    return told, finite if base in ("float", "double") else None


def _record(
    given: Mapping[str, Any], names: Mapping[str, Any], path: tuple[str, ...], told: dict[str, Any]
) -> tuple[dict[str, Any], Convert]:
    fields: list[dict[str, Any]] = []
    converts: dict[str, Callable[[Any], Any]] = {}
    for one in given["fields"]:
        kind, convert = _connect(one["type"], names, (*path, one["name"]))
        fields.append(kind | {"field": one["name"]})
        if convert is not None:
            converts[one["name"]] = convert
    made = {"name": given["name"]} | told | {"type": "struct", "fields": fields}
    if not converts:
        return made, None

    def convert_all(row: dict[str, Any]) -> dict[str, Any]:
        return row | {name: convert(row[name]) for name, convert in converts.items()}

    return made, convert_all
