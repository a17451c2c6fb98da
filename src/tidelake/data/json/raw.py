"""The columns that the fast JSON parser reads, and their conversion to the columns of a collection.

Owns, for each type of column, the type that Arrow reads and the conversion to the wanted type. A conversion
gives the same values as `values.column`, or raises `Unsure`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.json.base64 import decoded, whole_numbers
from tidelake.data.json.block import JsonMember, Unsure, struct_shape
from tidelake.data.json.encoding import Encoding
from tidelake.data.json.values import counted, forms, loads

# Where columns of dates and timestamps hold texts and not numbers: paths of names, a list's item is "".
Texts: TypeAlias = frozenset[tuple[str, ...]]
_SAMPLE = 50
# Below these, all whole numbers are values of the float with so many bits, and none becomes one by rounding.
_WHOLE_MAX = {16: 2**11, 32: 2**24, 64: 2**53}


@lru_cache(256)
def member(
    column: pa.Field, encoding: Encoding, texts: Texts, path: tuple[str, ...] = (), required: bool = True
) -> JsonMember:
    """How a field is read from a block."""
    return JsonMember(_kind(column.type, encoding, texts, path), _shape(column.type), required)


def _shape(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return struct_shape({f.name: JsonMember(f.type, _shape(f.type), True) for f in fields(kind)})
    if pa.types.is_list(kind):
        return list[_shape(kind.value_type)] | None  # type: ignore[misc]  # made at run time
    return msgspec.Raw


def _kind(kind: pa.DataType, encoding: Encoding, texts: Texts, path: tuple[str, ...]) -> pa.DataType:
    is_ = pa.types
    if is_.is_boolean(kind) or is_.is_integer(kind):
        return kind
    if is_.is_floating(kind):
        return pa.float64()
    if is_.is_decimal(kind):
        return _decimal_kind(kind, encoding)
    if is_.is_date(kind):
        return pa.string() if path in texts else pa.int32()
    if is_.is_timestamp(kind):
        return pa.string() if path in texts else pa.int64()
    if is_.is_struct(kind):
        inner = [(f.name, _kind(f.type, encoding.of(f.name), texts, (*path, f.name))) for f in fields(kind)]
        return pa.struct(inner)
    if is_.is_list(kind):
        return pa.list_(_kind(kind.value_type, encoding.of(""), texts, (*path, "")))
    if any(is_of(kind) for is_of in (is_.is_string, is_.is_large_string, is_.is_binary, is_.is_large_binary)):
        return pa.string()
    raise Unsure


def _decimal_kind(kind: pa.DataType, encoding: Encoding) -> pa.DataType:
    if encoding.form == "bytes" and pa.types.is_decimal128(kind):
        return pa.string()
    if encoding.form in ("plain", "untold") and (
        pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind)
    ):
        return kind
    raise Unsure


def fields(kind: pa.DataType) -> Sequence[pa.Field]:
    """Of a struct."""
    return [kind.field(i) for i in range(kind.num_fields)]


def finished(read: pa.Array, wanted: pa.Field, encoding: Encoding) -> pa.Array:
    """A column of a type from what was read."""
    if (read.null_count and not wanted.nullable) or encoding.form not in forms(wanted.type):
        raise Unsure
    try:
        return _finished(read, wanted.type, encoding)
    except pa.ArrowException:
        raise Unsure from None


def _finished(read: pa.Array, kind: pa.DataType, encoding: Encoding) -> pa.Array:
    is_ = pa.types
    if is_.is_floating(kind):
        return _float(read, kind)
    if is_.is_decimal(kind):
        if encoding.form == "bytes":
            return _decimal(read, kind, encoding)
        # The reader looks at the scale only.
        read.validate(full=True)
        return read
    if is_.is_date(kind):
        return read.cast(pa.date32()).cast(kind)
    if is_.is_timestamp(kind):
        return read.cast(kind) if is_.is_string(read.type) else counted(read, kind, encoding)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return _sure(decoded(read)).cast(kind)
    if is_.is_struct(kind):
        return _struct(read, kind, encoding)
    if is_.is_list(kind):
        items = finished(read.flatten(), kind.value_field, encoding.of(""))
        lengths = pc.fill_null(pc.list_value_length(read), 0).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=read.is_null())
    return read if read.type == kind else read.cast(kind)


def _sure(result: pa.Array | None) -> pa.Array:
    if result is None:
        raise Unsure
    return result


def _float(read: pa.Array, kind: pa.DataType) -> pa.Array:
    """A number in JSON may be whole and not exact, or a minus zero; and NaN is none."""
    values = read.drop_null().to_numpy()
    zeros = np.signbit(values) & (values == 0)
    if zeros.any() or not (np.abs(values) < _WHOLE_MAX[kind.bit_width]).all():
        raise Unsure
    if pa.types.is_float64(kind):
        return read
    return pc.cast(read, kind, safe=False)


def _decimal(read: pa.Array, kind: pa.DataType, encoding: Encoding) -> pa.Array:
    if encoding.scale not in (None, kind.scale):
        raise Unsure
    return _sure(whole_numbers(_sure(decoded(read)), kind))


def _struct(read: pa.StructArray, kind: pa.DataType, encoding: Encoding) -> pa.Array:
    there = read.is_valid()
    children = []
    for inner in fields(kind):
        child = read.field(inner.name)
        if not inner.nullable and child.filter(there).null_count:
            raise Unsure
        # Where the struct is null its fields are, whatever they allow.
        children.append(finished(child, inner.with_nullable(True), encoding.of(inner.name)))
    return pa.StructArray.from_arrays(children, fields=fields(kind), mask=read.is_null())


@dataclass
class SeenTexts:
    """Which columns of dates and timestamps are texts, as the last lines of the same columns had them."""

    _known: dict[pa.Schema, Texts] = field(default_factory=dict)

    def read(
        self, lines: pa.Array, schema: pa.Schema, at_once: Callable[[Texts], pa.StructArray]
    ) -> pa.StructArray:
        """What is read of lines at once; judged by the first of them if it is not as before."""
        known = self._known.get(schema, frozenset())
        try:
            return at_once(known)
        except Unsure:
            texts = _seen(lines.slice(0, _SAMPLE), schema)
            if texts == known:
                raise
        self._known[schema] = texts
        return at_once(texts)


def _seen(lines: pa.Array, schema: pa.Schema) -> Texts:
    found: dict[tuple[str, ...], bool] = {}
    for line in lines.to_pylist():
        try:
            row = loads(line.decode())
        except (ValueError, RecursionError):
            raise Unsure from None
        if isinstance(row, dict):
            for one in schema:
                _see(row.get(one.name), one.type, (one.name,), found)
    return frozenset(path for path, is_text in found.items() if is_text)


def _see(value: Any, kind: pa.DataType, path: tuple[str, ...], found: dict[tuple[str, ...], bool]) -> None:
    """Note of columns of dates and timestamps whether their first value, in parsed JSON, is a text."""
    if value is None:
        return
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for inner in fields(kind):
            _see(value.get(inner.name), inner.type, (*path, inner.name), found)
    elif pa.types.is_list(kind) and isinstance(value, list):
        for item in value[:1]:
            _see(item, kind.value_type, (*path, ""), found)
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        found.setdefault(path, isinstance(value, str))
