"""Schemas as users hand them in: of Arrow, of frames, of Spark, or a dict of names and types."""

import datetime
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidelake.data.ingest.astable import check_polars, with_named_index
from tidelake.errors import UsageError

_PYTHON: dict[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us", "UTC"),
}
_SPARK = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal(?:128)?\s*\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns), *(?:tz=)?([^\]]+)\]")
# Types of frames that differ from others only in how they are laid out.
_LAYOUTS = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_SAY = "give an Arrow schema or table, a frame of pandas, polars or Spark, or a dict such as {'id': 'int64'}"


def schema_of(given: Any) -> pa.Schema:
    """The columns that a user means; rows of a frame are not looked at."""
    if isinstance(given, pa.Schema):
        return given
    module = type(given).__module__.partition(".")[0]
    if module == "pyspark":
        return _of_spark(given)
    if module == "pandas":
        return _plain(pa.Schema.from_pandas(with_named_index(given), preserve_index=False))
    if module == "polars" and (isinstance(given, Mapping) or hasattr(given, "collect_schema")):
        # Of a lazy frame only the schema is asked.
        told: Any = given if isinstance(given, Mapping) else given.collect_schema()
        check_polars(told)
        return _plain(told.to_frame().to_arrow().schema)
    if isinstance(given, Mapping):
        return pa.schema([_field(name, kind) for name, kind in given.items()])
    schema = getattr(given, "schema", None)
    if isinstance(schema, pa.Schema):
        return schema
    for method, kind in (("__arrow_c_schema__", pa.Schema), ("__arrow_c_stream__", pa.RecordBatchReader)):
        if hasattr(given, method):
            try:
                found = kind._import_from_c_capsule(getattr(given, method)())
            except pa.ArrowInvalid as error:
                raise UsageError(f"schema is a {type(given).__name__}, not of columns: {_SAY}") from error
            return _plain(found if isinstance(found, pa.Schema) else found.schema)
    raise UsageError(f"schema={str(given)[:80]!r} is a {type(given).__name__}: {_SAY}")


def _plain(schema: pa.Schema) -> pa.Schema:
    """A schema without the layouts, dictionaries and notes of a library."""
    return pa.schema([pa.field(f.name, _layout(f.type), f.nullable) for f in schema])


def _layout(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _layout(kind.value_type)
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_layout(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _layout(f.type), f.nullable) for f in kind])
    return _LAYOUTS.get(kind, kind)


def _field(name: object, kind: Any) -> pa.Field:
    if not isinstance(name, str):
        raise UsageError(f"column name {name!r} is not a text")
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    try:
        if not isinstance(kind, str):
            return pa.field(name, _PYTHON[kind])
        text = kind.strip()
        bare = re.sub(r"\s+not\s+null$", "", text, flags=re.IGNORECASE)
        return pa.field(name, _named(bare), nullable=bare == text)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"column {name!r} has the type {kind!r}: give an Arrow type or its name, such as 'int64', "
            "'string', 'double', 'date32', 'decimal(10, 2)' or 'timestamp[us, UTC]'"
        ) from error


def _named(text: str) -> pa.DataType:
    if found := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    return pa.type_for_alias(text)


def _of_spark(given: Any) -> pa.Schema:
    """The columns of a schema or DataFrame of Spark."""
    told: Any = getattr(given, "schema", given)
    if not hasattr(told, "jsonValue"):
        raise UsageError(f"schema is a {type(given).__name__}: {_SAY}")
    return pa.schema([_spark_field(one) for one in told.jsonValue()["fields"]])


def _spark_field(told: Mapping[str, Any]) -> pa.Field:
    return pa.field(told["name"], _spark_type(told["type"], told["name"]), told["nullable"])


def _spark_type(told: Any, name: str) -> pa.DataType:
    if isinstance(told, str):
        if found := _DECIMAL.fullmatch(told):
            return pa.decimal128(int(found[1]), int(found[2]))
        if told in _SPARK:
            return _SPARK[told]
    elif told["type"] == "struct":
        return pa.struct([_spark_field(one) for one in told["fields"]])
    elif told["type"] == "array":
        return pa.list_(pa.field("item", _spark_type(told["elementType"], name), told["containsNull"]))
    raise UsageError(f"column {name!r} has the type {told!r} of Spark, which a collection lacks: cast it")
