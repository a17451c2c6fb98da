"""Batches in other types, where no value may change."""

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.errors import InvalidUpdates


def convert(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the column order and types of `schema`; no value may change."""
    return pa.RecordBatch.from_arrays([_column(batch.column(f.name), f) for f in schema], schema=schema)


def _column(values: pa.Array, field: pa.Field) -> pa.Array:
    if values.type == field.type:
        return values
    try:
        if pa.types.is_decimal(values.type) and pa.types.is_uint64(field.type):
            # Arrow 26 casts a decimal to unsigned through int64, which overflows: cast through text.
            return pc.cast(pc.cast(values, pa.string()), field.type)
        if pa.types.is_struct(field.type):
            return _struct(values, field)
        result = pc.cast(values, field.type)
    except pa.ArrowInvalid as error:
        raise InvalidUpdates(f"column {field.name!r} does not fit {field.type}: {error}") from error
    if not _same_floats(values, result):
        raise InvalidUpdates(f"column {field.name!r} does not fit {field.type}: a value would be rounded")
    return result


def _same_floats(values: pa.Array, result: pa.Array) -> bool:
    """Whether no float changed, at any depth: Arrow rounds to a narrower float silently."""
    if pa.types.is_struct(result.type) and pa.types.is_struct(values.type):
        return all(_same_floats(a, b) for a, b in zip(values.flatten(), result.flatten(), strict=True))
    if pa.types.is_nested(result.type) and pa.types.is_nested(values.type):
        return _same_floats(values.flatten(), result.flatten())
    if not (pa.types.is_floating(values.type) and pa.types.is_floating(result.type)):
        return True
    if result.type.bit_width >= values.type.bit_width:
        return True
    back = pc.cast(result, values.type)
    same = pc.or_(pc.equal(values, back), pc.and_(pc.is_nan(values), pc.is_nan(back)))
    return bool(pc.all(same, min_count=0).as_py())


def _struct(values: pa.StructArray, field: pa.Field) -> pa.StructArray:
    """Cast field by field: Arrow's own cast refuses a "not null" field in a null struct."""
    kinds = [field.type.field(i) for i in range(field.type.num_fields)]
    children = [_column(values.field(i), kind) for i, kind in enumerate(kinds)]
    return pa.StructArray.from_arrays(children, fields=kinds, mask=values.is_null())
