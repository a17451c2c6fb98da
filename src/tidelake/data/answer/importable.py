"""Batches as polars and DuckDB can import them: some nested columns are copied if they are parts of others.

A part of a column shares the buffers of the whole one, and both libraries import columns in place. Polars 2.1
refuses a part of a fixed-size list with nulls; DuckDB 2.0 refuses a part of a struct in a struct, and a list
of a part of a struct. DuckDB takes names that differ only in the case of ASCII
letters for one, and reads the first. Owns which columns are copied and which are refused; must not know where
batches come from. Invariant: the values are the same, and other columns are not touched.
"""

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from tidelake.errors import UsageError


def hard_columns(schema: pa.Schema) -> tuple[int, ...]:
    """The places of columns with a fixed-size list in them, or with a struct within another type."""
    kinds = enumerate(schema.types)
    return tuple(i for i, kind in kinds if kind.num_fields and _is_hard(kind, inside=False))


# Decimals of both libraries have 128 bits.
_DIGITS_MAX = 38


def check_for_duckdb(schema: pa.Schema) -> None:
    """Refuse columns that DuckDB cannot read, or of which it would read another."""
    if not len(schema):
        raise UsageError("DuckDB has no relations without columns: name one, or count the rows of to_arrow()")
    _check_types(schema, "DuckDB", lambda kind: _is_wide(kind) or pa.types.is_float16(kind))
    _check_alike("columns", schema, "choose one of them by columns=[...], or rename one by evolve")
    for field in schema:
        _check_fields(f"fields in column {field.name!r},", field.type)


def check_for_polars(schema: pa.Schema) -> None:
    """Refuse columns that polars cannot read."""
    _check_types(schema, "polars", _is_wide)


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.precision > _DIGITS_MAX)


def _check_types(schema: pa.Schema, library: str, lacks: Callable[[pa.DataType], bool]) -> None:
    for field in schema:
        if _has(field.type, lacks):
            raise UsageError(
                f"column {field.name!r} is a {field.type}, which {library} lacks: leave it out by "
                "columns=[...], or read it by to_arrow"
            )


def _has(kind: pa.DataType, is_such: Callable[[pa.DataType], bool]) -> bool:
    return is_such(kind) or any(_has(kind.field(i).type, is_such) for i in range(kind.num_fields))


def _check_fields(what: str, kind: pa.DataType) -> None:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    _check_alike(what, fields, "read the column by to_arrow")
    for field in fields:
        _check_fields(what, field.type)


def _check_alike(what: str, fields: Iterable[pa.Field], remedy: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        other = seen.setdefault(lowered(field.name), field.name)
        if other != field.name:
            raise UsageError(
                f"DuckDB takes {what} {other!r} and {field.name!r} for one, as only their case differs: "
                f"{remedy}"
            )


def lowered(name: str) -> str:
    """A name as DuckDB compares it."""
    return "".join(one.lower() if one.isascii() else one for one in name)


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
