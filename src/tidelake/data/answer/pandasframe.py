"""Rows as a frame of pandas, which has no type of its own for much of what a collection keeps.

Owns which type of pandas a column gets; must not know where rows come from. Invariant: the frame holds the
values that the rows have, and a table made of it (`Table.from_pandas`) holds them again. NumPy's types are
used where they can hold the values; a column of NumPy has no null beside integers and booleans, takes NaN for
null, and the least 64-bit number for "no time".
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.answer.timecells import has_no_text

_RELEASED_BYTES = 1 << 24
_JOINED_ROWS = 262_144
_NOT_A_TIME = -(2**63)
# Options of pyarrow by which a caller chooses these types.
_CHOICES = ("types_mapper", "integer_object_nulls")


def frame(schema: pa.Schema, batches: Iterable[pa.RecordBatch], pandas: Any, options: dict[str, Any]) -> Any:
    """A DataFrame of rows. One column is converted after the other, and freed."""
    rows = pa.Table.from_batches(_joined(batches), schema)
    if not rows.num_columns:
        return rows.to_pandas(**options)
    fields, columns, freed = rows.schema, rows.columns, 0
    del rows
    converted = {}
    for number, field in enumerate(fields):
        one = pa.table([columns.pop(0)], schema=pa.schema([field]))
        freed += one.nbytes
        how = {"split_blocks": one.column(0).num_chunks > 1, "self_destruct": True}
        if not any(options.get(choice) for choice in _CHOICES):
            how["types_mapper"] = _mapper(one.column(0), pandas)
        # A column in one piece would be used as it is, which pandas could not write to.
        found = one.to_pandas(**{**how, **options})
        converted[number] = found.iloc[:, 0]
        del one
        if freed > _RELEASED_BYTES:
            # Arrow's allocator would keep it, beside what pandas takes for the next columns.
            pa.default_memory_pool().release_unused()
            freed = 0
    made = pandas.DataFrame(converted, copy=False)
    made.columns = fields.names
    return made


def _mapper(column: pa.ChunkedArray, pandas: Any) -> Any:
    """What pyarrow asks for the type of a column; None: NumPy's, which holds the values."""
    is_, kind = pa.types, column.type
    if column.null_count and (is_.is_integer(kind) or is_.is_boolean(kind)):
        name = "boolean" if is_.is_boolean(kind) else str(kind).replace("i", "I").replace("u", "U")
        return lambda _: pandas.api.types.pandas_dtype(name)
    return pandas.ArrowDtype if _only_arrow(column) else None


def _only_arrow(column: pa.ChunkedArray) -> bool:
    """Whether only pandas' Arrow types hold the values."""
    is_, kind = pa.types, column.type
    if is_.is_floating(kind):
        return any(_is_true(pc.is_nan(chunk)) for chunk in column.chunks)
    if is_.is_timestamp(kind) or is_.is_duration(kind):
        return any(_is_true(pc.equal(chunk.view(pa.int64()), _NOT_A_TIME)) for chunk in column.chunks)
    if is_.is_date(kind):
        # Python's dates end with the year 9999.
        return any(map(has_no_text, column.chunks))
    # Python's times have no nanoseconds. In lists and structs, Python's values lose their types.
    return bool((is_.is_time64(kind) and kind.unit == "ns") or is_.is_nested(kind))


def _is_true(mask: pa.Array) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are large enough for Arrow's allocator to give a freed column back."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= _JOINED_ROWS:
            yield pa.concat_batches(held)
            held, rows = [], 0
    if held:
        yield pa.concat_batches(held)
