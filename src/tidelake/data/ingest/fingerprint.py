"""A short text that tells tables with different rows apart, whatever the order of the rows.

Owns what it is made from: the number of rows, and for each column its name, its number of nulls, its least
and its greatest value. Equal rows always have the same fingerprint; different rows may have the same one as
well.
"""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc


def fingerprint(table: pa.Table, without: tuple[str, ...] = ()) -> str:
    """The fingerprint of a table. Costs about one pass over it.

    A column of nulls adds nothing, so a table from before such a column was added has the same fingerprint.
    """
    found = []
    for name in sorted({*table.column_names} - {*without}):
        column = table.column(name)
        if column.null_count < len(column):
            found.append(f"{name!r} {column.null_count} {_ends(column)}")
    details = hashlib.blake2b("\n".join(found).encode(errors="surrogatepass"), digest_size=12).hexdigest()
    return f"{table.num_rows} rows {details}"


def _ends(column: pa.ChunkedArray) -> str:
    """The least and greatest value, for types with an order that Arrow knows."""
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_float16(kind):
        return ""
    if pa.types.is_temporal(kind):
        # Python has no values for the first and last values of these types.
        number = pa.int64() if kind.bit_width == 64 else pa.int32()
        column = pa.chunked_array([chunk.view(number) for chunk in column.chunks], number)
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        column = column.cast(pa.decimal128(kind.precision, kind.scale))
    ends = pc.min_max(column).as_py()
    least, greatest = ends["min"], ends["max"]
    if pa.types.is_floating(kind):
        # Of the two zeros Arrow returns the one that comes first.
        least, greatest = least + 0.0, greatest + 0.0
    return f"{least!r} {greatest!r}"
