"""The columns and the condition of a read, checked against the schema that the read uses.

Owns the columns; `tidelake.data.query.where` owns conditions, and is loaded only when the first one is given,
because loading its parser takes a fifth of a second.
"""

from collections.abc import Sequence

from tidelake.errors import UsageError
from tidelake.model.predicate import all_of
from tidelake.model.schema import Schema
from tidelake.model.selection import ReadOptions, Selection


def bind(options: ReadOptions, schema: Schema) -> Selection:
    """Check the columns and the condition that a user gives."""
    columns = None if options.columns is None else tuple(options.columns)
    if columns is not None:
        _check(columns, schema)
    if options.where is None:
        return Selection(columns, options.matching)
    from tidelake.data.query.where import predicate

    where = predicate(options.where, schema)
    return Selection(columns, where if options.matching is None else all_of([where, options.matching]))


def _check(columns: Sequence[str], schema: Schema) -> None:
    names = [column.name for column in schema.columns]
    for name in columns:
        if name not in names:
            raise UsageError(
                f"columns={list(columns)}: no column named {name!r}: there are {', '.join(map(repr, names))}"
                "; times and _diff are always given"
            )
        if columns.count(name) > 1:
            raise UsageError(f"columns={list(columns)}: column {name!r} appears twice")
