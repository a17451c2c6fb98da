"""Keys as users write them: a value, one for each key column, or values by name."""

from collections.abc import Mapping

import pyarrow as pa

from tidelake.data.types import UNFIT
from tidelake.errors import UsageError
from tidelake.model.schema import Schema


def one_key(key: object, schema: Schema) -> pa.Table:
    """Convert a key to a table of one row with the key columns.

    Args:
        key: the value of the key column; of several, a tuple in their order, or a dict by name.
        schema: says which columns are the key.

    Returns:
        The values as Arrow takes them; whether they fit the columns is for `tidelake.data.ingest` to say.

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
    return pa.table([_column(value, name) for value, name in zip(values, names, strict=True)], names)


def _column(value: object, name: str) -> pa.Array:
    try:
        # Without the type of the column: Arrow would cut a fraction off to make a whole number.
        return pa.array([value])
    except (*UNFIT, OverflowError) as error:
        raise UsageError(f"key column {name!r} cannot have the value {value!r}: {error}") from error
