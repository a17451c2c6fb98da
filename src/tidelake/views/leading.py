"""Groups of which the first rows in an order say all: a greatest value, or the rows up to some place.

If a span takes n rows of such a group away, no more than n rows behind those come to the front. So they and
the rows that change are all that the group is computed from. Must not know where rows come from.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidelake.views.plan import Call, Redo

_RANKS = ("ROW_NUMBER()", "RANK()")
_LEAST = re.compile(r'(MAX|MIN)\((i0\."(?:[^"]|"")*")\)', re.IGNORECASE)
_ORDERS_MAX = 2


@dataclass(frozen=True)
class Leading:
    """The rows of a group up to a place in an order, `most`.

    The value is the first part of the order, or all of it, as an expression over `i0`; nulls are "FIRST" or
    "LAST".
    """

    most: int
    value: str
    descending: bool
    nulls: str

    @property
    def by(self) -> str:
        """A binary expression over `i0` that has the value, ascending."""
        # With a text behind it, it is never a number.
        direction = f"{'DESC' if self.descending else 'ASC'} NULLS {self.nulls}"
        return f"create_sort_key({self.value}, '{direction}', '', 'ASC NULLS LAST')"

    @property
    def places(self) -> int:
        """How many places are looked at; there may be none that matters."""
        return max(1, self.most)

    def foremost(self, rows: str) -> str:
        """An aggregate that has the values of so many first rows as a list, without NULL."""
        return f"{'max' if self.descending else 'min'}({self.value}, {rows})"

    def is_behind(self, value: str) -> str:
        """A condition: the row is behind all that have a value. False where NULL is."""
        return f"coalesce(({self.value}) {'<' if self.descending else '>'} {value}, false)"


@lru_cache(maxsize=256)
def leading(stage: Redo) -> tuple[Leading, ...]:
    """The orders whose first rows say all of a group; none: all rows are needed."""
    if stage.aggregate:
        found = [_LEAST.fullmatch(one.function) for one in stage.calls]
        orders = [f"ORDER BY {one[2]} {_direction(one[1])} NULLS LAST" for one in found if one is not None]
        if not 0 < len(orders) == len(found) <= _ORDERS_MAX:
            return ()
        return tuple(chain.from_iterable(_leading(1, order) for order in orders))
    if len(stage.calls) != 1 or stage.calls[0].function.upper() not in _RANKS or stage.where is None:
        return ()
    if not stage.compares_as_bytes:
        return ()
    (call,) = stage.calls
    places = [*_bounds(stage.where, call)]
    return _leading(min(places), call.over) if places else ()


def ordered(calls: Sequence[Call]) -> str | None:
    """The first part of the order of a rank, as an expression over `i0`; None: there is none."""
    ranks = [one.over for one in calls if one.function.upper() in _RANKS]
    found = _leading(1, ranks[0]) if ranks else ()
    return found[0].value if found else None


def _leading(most: int, over: str) -> tuple[Leading, ...]:
    """The rows up to a place; none: the order has a collation, which bytes do not know, or a frame."""
    try:
        order = sqlglot.parse_one(f"SELECT 1 {over}", dialect="duckdb").args.get("order")
    except SqlglotError:
        # Another dialect.
        return ()
    if order is None or "COLLATE" in over.upper():
        return ()
    first = order.expressions[0]
    nulls = "FIRST" if first.args.get("nulls_first") else "LAST"
    return (Leading(most, first.this.sql("duckdb"), bool(first.args.get("desc")), nulls),)


def _direction(name: str) -> str:
    return "DESC" if name.upper() == "MAX" else "ASC"


def _bounds(where: str, call: Call) -> Iterator[int]:
    """The last places of a call that a condition lets pass, by each part of it that all rows must meet."""
    try:
        condition = sqlglot.parse_one(where, dialect="duckdb")
    except SqlglotError:
        # Another dialect.
        return
    for part in _parts(condition):
        match part:
            case exp.LTE(this=left, expression=right) | exp.GTE(this=right, expression=left):
                more = 0
            case exp.LT(this=left, expression=right) | exp.GT(this=right, expression=left):
                more = -1
            case exp.EQ():
                left, right, more = part.left, part.right, 0
                left, right = (right, left) if isinstance(left.unnest(), exp.Literal) else (left, right)
            case _:
                continue
        place, most = left.unnest(), right.unnest()
        if isinstance(place, exp.Column) and (place.table, place.name) == ("g", call.name) and most.is_int:
            yield int(most.to_py()) + more


def _parts(condition: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(condition, exp.Paren):
        yield from _parts(condition.this)
    elif isinstance(condition, exp.And):
        yield from _parts(condition.left)
        yield from _parts(condition.right)
    else:
        yield condition
