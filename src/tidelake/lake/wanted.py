"""Which rows and columns a read is to give, and in how many streams, as users write it."""

from collections.abc import Sequence

from tidelake.errors import UsageError
from tidelake.model.selection import Wanted


def wanted(columns: object, where: object) -> Wanted:
    """The arguments of a read, of the right kinds; the schema is looked at when it is known.

    Raises:
        UsageError: one is of another kind.
    """
    if columns is not None and (
        isinstance(columns, str | bytes)
        or not isinstance(columns, Sequence)
        or not all(isinstance(name, str) for name in columns)
    ):
        raise UsageError(f"columns={columns!r} is not a list of column names: write columns=['name', ...]")
    if where is not None and not isinstance(where, str):
        raise UsageError(f"where={where!r} is not SQL text: write where=\"price > 10 AND name LIKE 'a%'\"")
    return Wanted(None if columns is None else tuple(columns), where)


def streams(n: object) -> int:
    """A number of streams, checked."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"n={n!r} must be a whole number of streams, at least 1")
    return n
