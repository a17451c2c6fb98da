"""Keys as words of a command line, and what a delete takes."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from tidelake.data.ingest.astable import as_table, is_table
from tidelake.data.ingest.events import OF_KEYS, removals
from tidelake.data.ingest.keyvalues import key_table
from tidelake.errors import UsageError
from tidelake.model.schema import Schema
from tidelake.model.time import Time
from tidelake.shard.writing.derived import Deletion, RowChanges


def parsed_key(
    words: Sequence[str], names: Sequence[str], schema: pa.Schema, what: str
) -> tuple[object, ...]:
    """The values of a key, of one word for each key column. Binary values are hexadecimal."""
    if len(words) != len(names):
        named = ", ".join(map(repr, names))
        raise UsageError(f"the key columns are {named}: give a {what} for each, in this order")
    return tuple(_parsed(word, schema.field(name), what) for word, name in zip(words, names, strict=True))


def _parsed(word: str, field: pa.Field, what: str) -> object:
    try:
        if pa.types.is_binary(field.type) or pa.types.is_fixed_size_binary(field.type):
            return pa.scalar(bytes.fromhex(word), field.type)
        return pa.scalar(word).cast(field.type)
    except (ValueError, pa.ArrowException) as error:
        raise UsageError(
            f"{what} {word!r} is no {field.type}, the type of key column {field.name!r}"
        ) from error


def deletion(
    keys: object, where: object, time: Time | None, schema: Callable[[], Schema]
) -> RowChanges | Deletion:
    """What `delete` removes: rows of keys, or those of a condition. Keys without names need the schema."""
    if (keys is None) == (where is None):
        raise UsageError("delete takes keys or where=...: give one of the two; where='TRUE' deletes all rows")
    if where is None:
        table = as_table(keys, "keys") if is_table(keys) else key_table(keys, schema())
        return RowChanges(removals(table), OF_KEYS, time)
    if not isinstance(where, str):
        raise UsageError(f"where={where!r} is no text: write a condition, such as where=\"state = 'old'\"")
    return Deletion(where, time)
