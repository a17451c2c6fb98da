"""Comparisons of a column with values, as predicates.

Owns what a comparison, a list, a prefix or a test for null is true of, and its negation. Must not know
in which form SQL, polars or Arrow write them.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from tidelake.data.query.literal import Place, beginning
from tidelake.model.predicate import IS_NULL, NOT_NULL, NULL, Intervals, Predicate, comparisons, leaf
from tidelake.model.schema import Column

Sign: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]

FLIPPED: dict[Sign, Sign] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Each comparison looks at every row.
COMPARISONS_MAX = 10_000


def compared(column: Column, sign: Sign, at: Place, *, negated: bool = False) -> Predicate:
    """A comparison with a value; true of no null, negated or not."""
    if sign in ("=", "<>"):
        return among(column, [at], negated=negated != (sign == "<>"))
    edge = at.least if sign in ("<", ">=") else at.above
    below = (sign in ("<", "<=")) != negated
    return leaf(column.id, [(NOT_NULL[0][0], edge) if below else (edge, NULL)])


def among(column: Column, places: Sequence[Place], *, negated: bool = False) -> Predicate:
    """Whether the value is one of several; true of no null, negated or not."""
    within = leaf(column.id, [(at.least, at.above) for at in places])
    return leaf(column.id, _outside(within.intervals)) if negated else within


def starting(column: Column, prefix: str, *, negated: bool = False) -> Predicate:
    """Whether a text begins with another one; true of no null, negated or not."""
    within: Intervals = (beginning(prefix),)
    return leaf(column.id, _outside(within) if negated else within)


def null(column: Column, *, negated: bool = False) -> Predicate:
    """Whether there is no value."""
    return leaf(column.id, NOT_NULL if negated else IS_NULL)


def is_too_long(predicate: Predicate) -> bool:
    """Whether it makes too many comparisons, after those of one column are joined."""
    return comparisons(predicate) > COMPARISONS_MAX


def _outside(intervals: Intervals) -> Iterator[tuple[bytes, bytes]]:
    """All values except these intervals and null."""
    start = NOT_NULL[0][0]
    for begin, end in intervals:
        yield start, begin
        start = end
    yield start, NULL
