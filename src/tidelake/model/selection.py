"""What a read shows of its answer: which rows and which columns.

Owns the two forms of it, as a user says it and as it is carried out; must not know SQL.
`tidelake.data.where` makes the one from the other, for the schema that is read under.
"""

from dataclasses import dataclass

from tidelake.model.predicate import Predicate


@dataclass(frozen=True)
class Wanted:
    """What a user asks for.

    Attributes:
        columns: names of key and value columns, in the order wanted; None: all.
        where: SQL that is to be true of a row; None: all rows.
    """

    columns: tuple[str, ...] | None = None
    where: str | None = None


@dataclass(frozen=True)
class Selection:
    """The same, checked against a schema.

    Attributes:
        columns: as in `Wanted`; times and `_diff` come after them.
        where: what is true of the rows; None: all.
    """

    columns: tuple[str, ...] | None = None
    where: Predicate | None = None
