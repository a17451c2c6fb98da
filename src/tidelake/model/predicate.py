"""Predicates: which rows a read returns, as a formula over sets of encoded column values.

A leaf says that the value of one column lies in a set of half-open byte intervals, in the order-preserving
encoding of `tidelake.data.kernel.encode`. Comparisons, IN, BETWEEN, prefixes and IS NULL all become such
leaves, so neither this module nor the pruning needs to know types. Must not know SQL, Arrow or parts.

There is no NOT and no NULL. `tidelake.data.query.where` removes SQL's third truth value: it moves a NOT down
to the leaves and negates these except for nulls. AND and OR of the remaining leaves are true for the same
rows whether a leaf that is NULL counts as NULL or as false.

Encodings of non-null values begin with 01, that of null is 02. None is a proper prefix of another, and what
follows a value in a key begins with 01 or 02; so `value + FF` is past that value, alone and in a key.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias

from tidelake.model.batch import ColumnStats

Interval: TypeAlias = tuple[bytes, bytes]
Intervals: TypeAlias = tuple[Interval, ...]

PAST = b"\xff"
NULL = b"\x02"
IS_NULL: Intervals = ((NULL, NULL + PAST),)
NOT_NULL: Intervals = ((b"\x01", NULL),)


@dataclass(frozen=True)
class Predicate:
    """A formula that is true or false for every row.

    Attributes:
        op: `in`: the value of `column` is in one of the intervals; `and`, `or`: joins the formulas in `of`.
        An
            empty `and` is true, an empty `or` false.
        column: of a leaf: the id of its column.
        intervals: of a leaf: its values, as half-open intervals, ascending, none touching the next.
        of: the formulas that are joined.
    """

    op: Literal["in", "and", "or"]
    column: int = -1
    intervals: Intervals = ()
    of: tuple["Predicate", ...] = ()


TRUE, FALSE = Predicate("and"), Predicate("or")


def leaf(column: int, intervals: Iterable[Interval]) -> Predicate:
    """True if a column's value is in one of these intervals, given in any order; empty ones are ignored."""
    joined = _joined(intervals)
    return Predicate("in", column, joined) if joined else FALSE


def all_of(parts: Iterable[Predicate]) -> Predicate:
    """The conjunction; leaves of one column become one."""
    leaves: dict[int, list[Intervals]] = {}
    others: list[Predicate] = []
    for part in _flat("and", parts):
        if part == FALSE:
            return FALSE
        if part.op == "in":
            leaves.setdefault(part.column, []).append(part.intervals)
        else:
            others.append(part)
    common = {column: _common_of_all(found) for column, found in leaves.items()}
    if not all(common.values()):
        return FALSE
    return _of("and", [*(Predicate("in", c, i) for c, i in common.items()), *others])


def any_of(parts: Iterable[Predicate]) -> Predicate:
    """The disjunction; leaves of one column become one."""
    leaves: dict[int, list[Interval]] = {}
    others: list[Predicate] = []
    for part in _flat("or", parts):
        if part == TRUE:
            return TRUE
        if part.op == "in":
            leaves.setdefault(part.column, []).extend(part.intervals)
        else:
            others.append(part)
    return _of("or", [*(leaf(c, i) for c, i in leaves.items()), *others])


def columns_of(predicate: Predicate) -> frozenset[int]:
    """Ids of the columns in the predicate."""
    if predicate.op == "in":
        return frozenset((predicate.column,))
    return frozenset().union(*(columns_of(part) for part in predicate.of))


def comparisons(predicate: Predicate) -> int:
    """How many leaves the predicate has: each costs one comparison with all rows, whatever its intervals."""
    return 1 if predicate.op == "in" else sum(map(comparisons, predicate.of))


def may_match(predicate: Predicate, stats: Mapping[int, ColumnStats]) -> bool:
    """Whether rows with these statistics may satisfy the predicate.

    The statistics are by column id. Columns without any may have every value.
    """
    if predicate.op == "and":
        return all(may_match(part, stats) for part in predicate.of)
    if predicate.op == "or":
        return any(may_match(part, stats) for part in predicate.of)
    known = stats.get(predicate.column)
    return known is None or any(_reaches(interval, known) for interval in predicate.intervals)


def _reaches(interval: Interval, stats: ColumnStats) -> bool:
    start, stop = interval
    if stats.null_count and start <= NULL < stop:
        return True
    # A truncated lower bound is before all values, and a truncated upper bound after all of them.
    if stats.lower is None or stop <= stats.lower:
        return False
    return start < NULL if stats.upper is None else start <= stats.upper


def key_bounds(predicate: Predicate, key: Sequence[int]) -> tuple[bytes | None, bytes | None]:
    """The range of keys that holds all rows that satisfy the predicate.

    Returns:
        A lower bound, inclusive, and an upper bound, exclusive, both encoded; None where there is no bound.
    """
    if predicate.op == "or":
        found = [key_bounds(part, key) for part in predicate.of]
        starts, stops = [start for start, _ in found], [stop for _, stop in found]
        return (
            None if None in starts else min((s for s in starts if s is not None), default=b""),
            None if None in stops else max((s for s in stops if s is not None), default=b""),
        )
    parts = predicate.of if predicate.op == "and" else (predicate,)
    low, high = _prefix_bounds({p.column: p.intervals for p in parts if p.op == "in"}, key)
    for part in parts:
        if part.op != "in":
            start, stop = key_bounds(part, key)
            low, high = later(low, start), earlier(high, stop)
    return low, high


def keys_asked(predicate: Predicate, key: Sequence[int], most: int) -> list[bytes] | None:
    """The only keys that rows that satisfy the predicate can have, encoded, ascending, distinct.

    None: it does not fix all key columns, or there are more than `most` keys, or none.
    """
    if predicate.op == "or":
        found = [keys_asked(part, key, most) for part in predicate.of]
        if None in found:
            return None
        keys = {one for part in found if part is not None for one in part}
        return sorted(keys) if 0 < len(keys) <= most else None
    parts = predicate.of if predicate.op == "and" else (predicate,)
    leaves = {part.column: part.intervals for part in parts if part.op == "in"}
    values = [leaves.get(column, ()) for column in key]
    if not all(values) or any(stop != start + PAST for column in values for start, stop in column):
        return None
    if math.prod(map(len, values)) > most:
        return None
    return [b"".join(start for start, _ in chosen) for chosen in product(*values)]


def later(a: bytes | None, b: bytes | None) -> bytes | None:
    """The narrower of two lower bounds."""
    return max(a, b) if a is not None and b is not None else a or b


def earlier(a: bytes | None, b: bytes | None) -> bytes | None:
    """The narrower of two upper bounds."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _prefix_bounds(leaves: Mapping[int, Intervals], key: Sequence[int]) -> tuple[bytes | None, bytes | None]:
    """Bounds from single values of the first key columns, followed by at most one range."""
    prefix = b""
    for column in key:
        if column not in leaves:
            break
        start, stop = leaves[column][0][0], leaves[column][-1][1]
        if stop != start + PAST:
            return prefix + start, prefix + stop
        prefix += start
    return (prefix, prefix + PAST) if prefix else (None, None)


def _flat(op: str, parts: Iterable[Predicate]) -> Iterator[Predicate]:
    for part in parts:
        # Its own formulas were flattened when it was made.
        if part.op == op:
            yield from part.of
        else:
            yield part


def _of(op: Literal["and", "or"], parts: list[Predicate]) -> Predicate:
    return parts[0] if len(parts) == 1 else Predicate(op, of=tuple(parts))


def _joined(intervals: Iterable[Interval]) -> Intervals:
    result: list[Interval] = []
    for start, stop in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return tuple(result)


def _common_of_all(found: list[Intervals]) -> Intervals:
    """The values in all of them. Neighbours first, so that a long chain takes few passes."""
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=False)
        found = [_common(a, b) for a, b in pairs] + found[len(found) & ~1 :]
    return found[0]


def _common(a: Intervals, b: Intervals) -> Intervals:
    """The values in both: two ascending lists, walked together."""
    result: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, stop = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < stop:
            result.append((start, stop))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(result)
