"""Keys as users write them. A key is a value, a tuple with one for each key column, or a dict by name.

Several keys are a list or a set of these, or a table in any of Arrow's forms. Whether the values fit the
columns is for `tidelake.data.ingest.updates` to say.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from tidelake.data.ingest.astable import as_table, is_table
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import UNFIT, arrow_type, row_schema
from tidelake.errors import InvalidUpdates
from tidelake.model.schema import Column, Schema
from tidelake.model.time import TimeDomain

_INT64_MAX = 2**63 - 1


def key_values(key: object, names: Sequence[str], what: str = "key") -> tuple[object, ...]:
    """The values of a key, or of `what` else it is, in the order of the columns.

    Raises:
        InvalidUpdates: values are missing or too many.
    """
    match key:
        case Mapping():
            fits, values = key.keys() == set(names), tuple(key.get(name) for name in names)
        case tuple():
            fits, values = len(key) == len(names), key
        case _:
            fits, values = len(names) == 1, (key,)
    if not fits:
        raise InvalidUpdates(
            f"{what}={key!r} does not fit the {what} columns {', '.join(map(repr, names))}: give one value "
            "for each, as a tuple in this order or as a dict by name"
        )
    return values


def one_key(key: object, schema: Schema) -> pa.Table:
    """A key as a table of one row with the key columns.

    Raises:
        InvalidUpdates: values are missing or too many, or Arrow does not take one; names the column.
    """
    names = [column.name for column in schema.key]
    values = zip(key_values(key, names), schema.key, strict=True)
    return pa.table([_array(value, column) for value, column in values], names)


def key_maker(keys: object) -> Callable[[Schema], pa.Table]:
    """Makes a table of keys in any form, for a schema. A table is read at once, and not checked."""
    if not is_table(keys):
        return partial(key_table, keys)
    table = as_table(keys, "keys")
    return lambda _schema: table


def key_table(keys: object, schema: Schema) -> pa.Table:
    """A key, or a list or a set of keys, as a table.

    Raises:
        InvalidUpdates: as `one_key`.
    """
    # Each key has the types that Arrow takes it for. Those of the same types are checked together: another
    # key must not change what a value is.
    by_types: dict[tuple[pa.DataType, ...], list[pa.Table]] = {}
    for key in keys if isinstance(keys, list | set | frozenset) else [keys]:
        row = one_key(key, schema)
        by_types.setdefault(tuple(row.schema.types), []).append(row)
    own = Schema(schema.key)
    found = [row_schema(own).empty_table()]
    for rows in by_types.values():
        checked = normalize(pa.concat_tables(rows).combine_chunks(), own, TimeDomain(), time=0)
        found.append(checked.select(found[0].column_names))
    return pa.concat_tables(found)


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
    # Python's errors too, such as those of NumPy's days and of pandas' NaT.
    except (*UNFIT, ValueError, OverflowError, TypeError, RecursionError) as error:
        raise InvalidUpdates(
            f"key column {column.name!r} cannot have the value {value!r}: {error}"
        ) from error
    return found
