"""Keys as users write them: a value, one for each key column, or values by name."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidelake.data.kernel.types import UNFIT, arrow_type
from tidelake.errors import UsageError
from tidelake.model.schema import Column, Schema

_INT64_MAX = 2**63 - 1


def one_key(key: object, schema: Schema) -> pa.Table:
    """Convert a key to a table of one row with the key columns.

    Args:
        key: the value of the key column; of several, a tuple in their order, or a dict by name.
        schema: says which columns are the key.

    Returns:
        The values as Arrow takes them; whether they fit the columns is for `tidelake.data.ingest.updates` to
        say.

    Raises:
        UsageError: values are missing or too many, or Arrow does not take one; names the column.
    """
    names = [column.name for column in schema.key]
    match key:
        case Mapping():
            fits, values = key.keys() == set(names), [key.get(name) for name in names]
        case tuple() | list():
            fits, values = len(key) == len(names), list(key)
        case _:
            fits, values = len(names) == 1, [key]
    if not fits:
        raise UsageError(
            f"key={key!r} does not fit the key columns {', '.join(map(repr, names))}: give one value for "
            "each, in this order or as a dict by name"
        )
    return pa.table([_array(value, column) for value, column in zip(values, schema.key, strict=True)], names)


def _array(value: object, column: Column) -> pa.Array:
    # Without the type of the column: Arrow would cut a fraction off to make a whole number.
    kind = pa.uint64() if isinstance(value, int) and value > _INT64_MAX else None
    if isinstance(value, float) and column.type.name in {"float16", "float32"}:
        # Python has no narrower numbers: the nearest one of the column is meant.
        kind = arrow_type(column.type)
    try:
        found = pa.array([value], kind)
        if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
            # Arrow takes the instants and spans of pandas for microseconds, which would be another key.
            kind = found.type
            exact = pa.duration("ns") if pa.types.is_duration(kind) else pa.timestamp("ns", kind.tz)
            found = pa.array([value], exact)
    except (*UNFIT, OverflowError) as error:
        raise UsageError(f"key column {column.name!r} cannot have the value {value!r}: {error}") from error
    return found


def parsed_key(
    words: Sequence[str], names: Sequence[str], schema: pa.Schema, what: str
) -> tuple[object, ...]:
    """The values of a key, of one word for each key column. Binary values are hexadecimal.

    Args:
        words: what the user wrote.
        names: of the key columns, in their order.
        schema: has them.
        what: how the argument is called, for messages.

    Raises:
        UsageError: there are more or fewer words than key columns, or one is no value of its column.
    """
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
