"""Batches as polars and DuckDB can import them: some nested columns are copied if they are parts of others.

A part of a column shares the buffers of the whole one, and both libraries import columns in place. Polars 2.1
refuses a part of a fixed-size list with nulls; DuckDB 2.0 refuses a part of a struct in a struct, and a list
of a part of a struct. Owns which columns are copied; must not know where batches come from. Invariant: the
values are the same, and other columns are not touched.
"""

from collections.abc import Sequence

import pyarrow as pa


def hard_columns(schema: pa.Schema) -> tuple[int, ...]:
    """The places of columns with a fixed-size list in them, or with a struct within another type."""
    kinds = enumerate(schema.types)
    return tuple(i for i, kind in kinds if kind.num_fields and _is_hard(kind, inside=False))


def importable(batch: pa.RecordBatch, hard: Sequence[int]) -> pa.RecordBatch:
    """The same rows; of the columns at the places `hard`, those that are parts of others are copied."""
    for place in hard:
        column = batch.column(place)
        if _is_part(column):
            batch = batch.set_column(place, batch.schema.field(place), pa.concat_arrays([column]))
    return batch


def _is_hard(kind: pa.DataType, *, inside: bool) -> bool:
    if pa.types.is_fixed_size_list(kind) or (inside and pa.types.is_struct(kind)):
        return True
    return any(_is_hard(kind.field(i).type, inside=True) for i in range(kind.num_fields))


def _is_part(array: pa.Array) -> bool:
    """Whether a struct in it, or a fixed-size list with nulls, is only a part of what its buffers hold."""
    is_, kind = pa.types, array.type
    if is_.is_struct(kind):
        return array.offset > 0 or any(_is_part(array.field(i)) for i in range(kind.num_fields))
    if is_.is_fixed_size_list(kind):
        values, has_nulls = array.values, array.buffers()[0] is not None
        cut = array.offset > 0 or len(values) != len(array) * kind.list_size
        return (has_nulls and cut) or _is_part(values)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_map(kind):
        return _is_part(array.values)
    return False
