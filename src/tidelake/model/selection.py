"""Selections: which rows and which columns a read returns.

Owns the two forms, as a user gives it and as it is carried out; must not know SQL.
`tidelake.data.query.selection` makes the second from the first, for the schema that the read uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tidelake.errors import UsageError
from tidelake.model.predicate import Predicate, columns_of
from tidelake.model.schema import Column, Schema

TimesAs: TypeAlias = Literal["int64", "timestamp"]
"""The type of times in what a read returns."""


@dataclass(frozen=True)
class ReadOptions:
    """What a user asks for, apart from the times. Names are checked later, against the schema.

    Attributes:
        columns: names of key and value columns, in the order wanted; None: all.
        where: an SQL condition on rows; None: all rows.
        matching: a further condition, bound to the schema that the read uses; None: none.
        timeout_s: how long to wait for the times to be closed; None: the setting `wait_timeout_s`.
        staged: do not wait. Of times that are open the answer has what is staged by now.
        schema_id: id of the schema to read under; None: the newest.
        times: the type of the time column: `int64`, or `timestamp` (in UTC), which only clocks have.
        complete: refuse a column that was dropped since the schema to read under; otherwise it is null.

    Raises:
        UsageError: an argument has the wrong type.
    """

    columns: Sequence[str] | None = None
    where: str | None = None
    timeout_s: float | None = None
    staged: bool = False
    schema_id: int | None = None
    times: TimesAs = "int64"
    complete: bool = False
    matching: Predicate | None = None

    def __post_init__(self) -> None:
        columns: object = self.columns
        if columns is not None:
            if (
                isinstance(columns, str | bytes)
                or not isinstance(columns, Sequence)
                or not all(isinstance(name, str) for name in columns)
            ):
                raise UsageError(
                    f"columns={columns!r} is not a list of column names: write columns=['name', ...]"
                )
            object.__setattr__(self, "columns", tuple(columns))
        where: object = self.where
        if where is not None and not isinstance(where, str):
            raise UsageError(
                f"where={where!r} is not SQL text: write where=\"price > 10 AND name LIKE 'a%'\""
            )
        timeout_s: object = self.timeout_s
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s >= 0):
            raise UsageError(f"timeout_s={timeout_s!r} must be a number of seconds that is not negative")
        if self.times not in get_args(TimesAs):
            raise UsageError(f"times={self.times!r} must be 'int64' or 'timestamp'")


@dataclass(frozen=True)
class Selection:
    """Rows and columns, checked against a schema.

    Attributes:
        columns: as in `ReadOptions`; times and `_diff` come after them.
        where: the condition on rows; None: all rows.
    """

    columns: tuple[str, ...] | None = None
    where: Predicate | None = None

    def needs(self, schema: Schema) -> list[Column]:
        """The columns of a schema that are returned or are in the condition, in the order of the schema."""
        asked = frozenset() if self.where is None else columns_of(self.where)
        return [c for c in schema.columns if self.columns is None or c.name in self.columns or c.id in asked]
