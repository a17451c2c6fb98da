"""Whether a view is what its query says: the rows in which they differ, judged.

Sums of floats may differ in their last digits: a view has the exact sum, rounded once, an engine the sum in
some order. Must not know where rows come from.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from tidelake.tabletext import FieldsAsHtml
from tidelake.views.rules import REPEATS_MAX

_SHOWN = 5
_NEAR = 1e-9
Row = tuple[object, ...]


@dataclass(frozen=True)
class Verified(FieldsAsHtml):
    """What a comparison found.

    Attributes:
        view: its name.
        time: that was compared.
        equal: whether the view has the rows of its query.
        rows: of the query.
        missing: rows that the view lacks; the first ones.
        unexpected: rows that it has too many; the first ones.
        notes: what the view decides where SQL leaves a choice: the query may have another one of equal rows.
    """

    view: str
    time: object
    equal: bool
    rows: int
    missing: tuple[Row, ...] = ()
    unexpected: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()


def compared(view: str, time: object, rows: int, lacked: pa.Table, owed: pa.Table) -> Verified:
    """Judge the rows of a query that its view lacks, and those that it has too many."""
    missing, more = _sorted(_rows(lacked)), _sorted(_rows(owed))
    if len(missing) == len(more) and all(map(_near, missing, more)):
        return Verified(view, time, equal=True, rows=rows)
    return Verified(view, time, False, rows, tuple(missing[:_SHOWN]), tuple(more[:_SHOWN]))


def too_often(collection: str, times: str) -> str:
    """Why rows that are there so many times are not compared."""
    return (
        f"collection {collection!r} has a row {times} times, and verify repeats each row: it takes rows that "
        f"are there at most {REPEATS_MAX:,} times"
    )


def _rows(table: pa.Table) -> Iterable[Row]:
    columns = [map(_frozen, column.to_pylist()) for column in table.columns]
    return zip(*columns, strict=True)


def _frozen(value: object) -> object:
    """A value that can be counted: NaN is one value, and -0.0 is 0.0."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return value + 0.0
        case list():
            return tuple(map(_frozen, value))
        case dict():
            return tuple((name, _frozen(one)) for name, one in value.items())
        case _:
            return value


def _sorted(rows: Iterable[Row]) -> list[Row]:
    """Rows in an order in which those that differ in the last digits of floats stand at the same place."""
    return sorted(
        rows,
        key=lambda row: (
            [repr(one) for one in row if not isinstance(one, float)],
            [one for one in row if isinstance(one, float)],
        ),
    )


def _near(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_NEAR, abs_tol=_NEAR)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_near, one, other))
    return one == other
