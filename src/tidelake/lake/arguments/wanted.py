"""Checks of the arguments that all reads share: columns, condition, number of streams."""

from collections.abc import Sequence

from tidelake.errors import UsageError
from tidelake.model.selection import ReadOptions


def wanted(columns: object, where: object) -> ReadOptions:
    """Check the types of `columns` and `where`; names are checked later, against the schema.

    Raises:
        UsageError: an argument has the wrong type.
    """
    if columns is not None and (
        isinstance(columns, str | bytes)
        or not isinstance(columns, Sequence)
        or not all(isinstance(name, str) for name in columns)
    ):
        raise UsageError(f"columns={columns!r} is not a list of column names: write columns=['name', ...]")
    if where is not None and not isinstance(where, str):
        raise UsageError(f"where={where!r} is not SQL text: write where=\"price > 10 AND name LIKE 'a%'\"")
    return ReadOptions(None if columns is None else tuple(columns), where)


def streams(n: object) -> int:
    """Check a number of streams."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"n={n!r} must be a whole number of streams, at least 1")
    return n
