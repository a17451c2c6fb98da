"""A user's selection, checked against the schema that the read uses.

Owns the columns; `tidelake.data.where` owns conditions, and is loaded only when the first one is given,
because loading its parser takes a fifth of a second.
"""

from tidelake.errors import UsageError
from tidelake.model.schema import Schema
from tidelake.model.selection import ReadOptions, Selection


def bind(wanted: ReadOptions | Selection, schema: Schema) -> Selection:
    """Check a user's selection; one that was checked already is returned as it is.

    Raises:
        UsageError: a column is missing, some SQL is not supported, or a literal cannot be compared with its
            column; names the piece and says what to write instead.
    """
    if isinstance(wanted, Selection):
        return wanted
    if wanted.columns is not None:
        _check(wanted.columns, schema)
    if wanted.where is None:
        return Selection(wanted.columns)
    from tidelake.data.where import predicate

    return Selection(wanted.columns, predicate(wanted.where, schema))


def _check(columns: tuple[str, ...], schema: Schema) -> None:
    names = [column.name for column in schema.columns]
    for name in columns:
        if name not in names:
            raise UsageError(
                f"columns={list(columns)}: no column named {name!r}: there are {', '.join(map(repr, names))}"
                "; times and _diff are always given"
            )
        if columns.count(name) > 1:
            raise UsageError(f"columns={list(columns)}: column {name!r} appears twice")
