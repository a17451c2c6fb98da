"""Rows with a column that says in words what happened to each, and with times that are texts."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.errors import InvalidUpdates

# The column by which rows remove their keys.
REMOVED = "_tidelake_removed_key"


def is_among(words: pa.Array, column: str, others: Collection[str], searched: Collection[str]) -> pa.Array:
    """Which rows have one of the searched words; every row has one of these or of the others."""
    found = words.cast(pa.string())
    known = pc.is_in(found, value_set=pa.array([*others, *searched]))
    if not pc.all(known, min_count=0).as_py():
        word = found[pc.index(known, False).as_py()].as_py()
        raise InvalidUpdates(f"column {column!r} holds {word!r}: known are {', '.join((*others, *searched))}")
    return pc.is_in(found, value_set=pa.array(searched))


def with_instants(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """Read a column of texts without a zone, such as `2026-01-31 12:00:00.5`, as instants of UTC.

    A batch without such texts stays as it is.
    """
    at = batch.schema.get_field_index(column)
    if at < 0 or not (pa.types.is_string(kind := batch.schema.types[at]) or pa.types.is_large_string(kind)):
        return batch
    try:
        return batch.set_column(at, column, batch.column(at).cast(pa.timestamp("us")))
    except pa.ArrowInvalid as error:
        raise InvalidUpdates(f"column {column!r} holds no times: {error}") from error
