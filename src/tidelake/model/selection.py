"""Selections: which rows and which columns a read returns.

Owns the two forms, as a user gives it and as it is carried out; must not know SQL. `tidelake.data.where`
makes the second from the first, for the schema that the read uses.
"""

from dataclasses import dataclass

from tidelake.model.predicate import Predicate


@dataclass(frozen=True)
class ReadOptions:
    """What a user asks for.

    Attributes:
        columns: names of key and value columns, in the order wanted; None: all.
        where: a SQL condition on rows; None: all rows.
    """

    columns: tuple[str, ...] | None = None
    where: str | None = None


@dataclass(frozen=True)
class Selection:
    """The same, checked against a schema.

    Attributes:
        columns: as in `ReadOptions`; times and `_diff` come after them.
        where: the condition on rows; None: all rows.
    """

    columns: tuple[str, ...] | None = None
    where: Predicate | None = None
