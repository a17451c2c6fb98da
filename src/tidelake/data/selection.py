"""What a user asks for, checked against the schema that is read under.

Owns the columns; conditions are `tidelake.data.where`, which is loaded when the first one is asked for: it
brings a parser that takes a fifth of a second.
"""

from tidelake.errors import UsageError
from tidelake.model.schema import Schema
from tidelake.model.selection import Selection, Wanted


def bind(wanted: Wanted | Selection, schema: Schema) -> Selection:
    """Check what a user asks for; a selection is taken as it is.

    Raises:
        UsageError: a column that is not there, SQL that is not supported, a literal that cannot be compared
            with its column; names the piece and says what to write instead.
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
