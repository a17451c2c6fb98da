"""Types that Delta Lake and Iceberg both have, and how rows of a collection become such rows.

Pure: Arrow in, Arrow out. Every cast keeps the value; a type whose values would change is refused.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidelake.errors import UsageError

_CASTS = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_KEPT = frozenset(
    (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32())
)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as a table of Delta Lake or Iceberg has them, without what Arrow alone knows of them."""
    _check_case(schema.names)
    return pa.schema([pa.field(f.name, _plain(f.type, f.name), nullable=f.nullable) for f in schema])


def is_plain_as_stored(schema: pa.Schema, *, zones: bool) -> bool:
    """Whether any reader finds the plain types in parts with these columns."""
    is_ = pa.types
    return all(
        kind in _KEPT
        or (is_.is_timestamp(kind) and kind.unit == "us" and (zones or kind.tz in {None, "UTC"}))
        or is_.is_decimal128(kind)
        for kind in schema.types
    )


def as_plain(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows with the columns and types of a schema that `plain_schema` returned; no value changes."""
    for batch in batches:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_case(names: Iterable[str]) -> None:
    """Refuse names that the readers of such tables take for one."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(
                f"columns {other!r} and {name!r} differ by case only, and readers of tables of Delta Lake "
                "or Iceberg take them for one: rename one, or leave it out of a mirror with columns=[...]"
            )


def _plain(kind: pa.DataType, where: str) -> pa.DataType:
    is_ = pa.types
    if kind in _KEPT:
        return kind
    if kind in _CASTS:
        return _CASTS[kind]
    if is_.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if is_.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if is_.is_large_string(kind):
        return pa.string()
    if is_.is_fixed_size_binary(kind) or is_.is_large_binary(kind):
        return pa.binary()
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        item = kind.value_field
        return pa.list_(pa.field("element", _plain(item.type, f"{where}[]"), nullable=item.nullable))
    if is_.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        _check_case(f"{where}.{field.name}" for field in fields)
        return pa.struct([f.with_type(_plain(f.type, f"{where}.{f.name}")) for f in fields])
    raise UsageError(
        f"column {where!r} has type {kind}, which a table of Delta Lake or Iceberg cannot hold without "
        f"changing values: leave it out of a mirror with columns=[...], or keep it as another type, such as "
        f"{'timestamp[us]' if is_.is_timestamp(kind) else 'int64 or string'}"
    )
