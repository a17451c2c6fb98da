"""Retention filters: which keys and values of an arrangement are kept.

Owns the filters and what they drop, at reads and at merges; must not know batches, files or threads.

A filter applies to every read from the moment it is set. Merges then delete the rows that no read can see
any more. Set a filter repeatedly, each time stricter than before, as with a watermark that moves: rows that
an earlier filter dropped do not come back when a weaker one replaces it.

- A *predicate* on keys or values is a condition on the row; null counts as false.
- An *N-filter* (`last_n`, `top_n`, `bottom_n`) ranks, for each key, the values that are *live at the
  since*: the sum of their diffs at times at or before `since` is positive, over all batches. It drops
  the updates at or before `since` of values that are not among the first n, and of values whose sum is
  negative. Later updates are never dropped, so a value that was appended after `since` is visible
  until `since` passes it.

INVARIANT: what `kept_by_merge` drops changes no result of `visible`. A merge has only some batches, but ranks
over all of them, and drops a value only if no other batch has rows of it. So a value is dropped completely or
not at all.

SUBTLE: results are not exact for values that were dropped. If the values that outranked one are retracted
later, it may or may not be visible again. A retraction of a dropped value has a negative sum; therefore reads
under an N-filter leave out negative sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from tidelake.arrangement import arguments
from tidelake.arrangement.batch.layout import Layout
from tidelake.data.kernel.order import group_starts, sortable
from tidelake.data.kernel.sort import sort_indices
from tidelake.data.kernel.types import UNFIT
from tidelake.errors import UsageError
from tidelake.handle import door
from tidelake.model.frontier import Frontier
from tidelake.model.time import parts

Mask: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]
_LOW = np.int64(0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class Ranked:
    """An N-filter: build it with `last_n`, `top_n` or `bottom_n`.

    Attributes:
        n: number of live values that are kept for each key.
        first: whether the `greatest` or the `least` are kept.
        by: value columns that rank them; empty: all, in order.
        where: values that satisfy this condition are always kept, and not counted.
    """

    n: int
    first: Literal["greatest", "least"]
    by: tuple[str, ...] = ()
    where: pc.Expression | None = None

    def __post_init__(self) -> None:
        n: object = self.n
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise UsageError(f"n={self.n!r} must be a whole number: how many values of each key to keep")


@door
def last_n(n: int, where: pc.Expression | None = None) -> Ranked:
    """Keep the last n values of each key, in the total order of values (nulls last).

    Args:
        n: number of values to keep.
        where: also keep all values that satisfy this condition; they do not count. With "above a watermark",
            the last n values below the watermark are kept too.
    """
    return Ranked(n, "greatest", (), where)


@door
def top_n(n: int, by: str | Sequence[str], where: pc.Expression | None = None) -> Ranked:
    """Keep the n values of each key that are greatest in some columns; nulls and NaN are never preferred.

    Args:
        n: number of values to keep. Ties are broken by the total order of values, least first.
        by: value columns, the most significant first.
        where: also keep all values that satisfy this condition; they do not count.
    """
    return Ranked(n, "greatest", _names(by), where)


@door
def bottom_n(n: int, by: str | Sequence[str], where: pc.Expression | None = None) -> Ranked:
    """Keep the n values of each key that are least in some columns; otherwise as `top_n`."""
    return Ranked(n, "least", _names(by), where)


@dataclass(frozen=True, eq=False)
class RetentionFilters:
    """The filters of an arrangement at one moment.

    Attributes:
        keys: a predicate over key columns; rows that do not satisfy it are dropped. None: no filter.
        values: a predicate over key and value columns, or an N-filter. None: no filter.
    """

    layout: Layout
    keys: pc.Expression | None = None
    values: pc.Expression | Ranked | None = None
    version: int = 0

    def with_keys(self, predicate: pc.Expression) -> "RetentionFilters":
        """A copy with another filter on keys."""
        _check(predicate, self.layout, self.layout.key_width, "key")
        return replace(self, keys=predicate, version=self.version + 1)

    def with_values(self, rule: pc.Expression | Ranked) -> "RetentionFilters":
        """A copy with another filter on values."""
        layout = self.layout
        if isinstance(rule, Ranked):
            known = [column.name for column in layout.schema.value]
            if unknown := [name for name in rule.by if name not in known]:
                raise UsageError(f"no value column {unknown[0]!r} to rank by: there are {known}")
            if rule.where is not None:
                _check(rule.where, layout, layout.row_width, "key or value")
        else:
            _check(rule, layout, layout.row_width, "key or value")
        return replace(self, values=rule, version=self.version + 1)

    @property
    def whole_keys(self) -> bool:
        """Whether the filter needs all rows of a key to tell which of them are kept.

        If so, reads must also leave out rows whose diffs have a negative sum.
        """
        return isinstance(self.values, Ranked)

    @property
    def empty(self) -> bool:
        """Whether nothing is dropped."""
        return self.keys is None and self.values is None

    def satisfying(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that satisfy the predicates, in order; the batch itself if all do."""
        predicates = [p for p in (self.keys, self.values) if p is not None and not isinstance(p, Ranked)]
        if not predicates or not rows.num_rows:
            return rows
        mask = satisfies(rows, predicates[0])
        for predicate in predicates[1:]:
            mask &= satisfies(rows, predicate)
        return _kept(rows, mask)

    def visible(self, rows: pa.RecordBatch, since: Frontier) -> pa.RecordBatch:
        """The updates that a read sees, in order; the batch itself if all are."""
        rows = self.satisfying(rows)
        if not isinstance(self.values, Ranked) or not rows.num_rows:
            return rows
        return _kept(rows, ~_Ranking(self.layout, self.values, rows, since).dropped)

    def kept_by_merge(
        self, rows: pa.RecordBatch, others: Sequence[pa.RecordBatch], since: Frontier
    ) -> pa.RecordBatch:
        """The updates that a merge keeps."""
        rows = self.satisfying(rows)
        if not isinstance(self.values, Ranked) or not rows.num_rows:
            return rows
        beside = [other for other in map(self.satisfying, others) if other.num_rows]
        if not beside:
            return _kept(rows, ~_Ranking(self.layout, self.values, rows, since).dropped)
        together = pa.concat_batches([rows, *beside])
        order = np.asarray(sort_indices(together, self.layout.width), np.int64)
        ranking = _Ranking(self.layout, self.values, together.take(pa.array(order)), since)
        foreign = np.zeros(ranking.groups, np.bool_)
        foreign[ranking.group[ranking.folded & (order >= rows.num_rows)]] = True
        keep = np.empty(len(order), np.bool_)
        keep[order] = ~ranking.dropped | foreign[ranking.group]
        return _kept(rows, keep[: rows.num_rows])


def satisfies(rows: pa.RecordBatch, predicate: pc.Expression) -> Mask:
    """For each row, whether it satisfies an expression; null counts as false."""
    try:
        return _answers(rows, predicate)
    except UNFIT as error:
        raise UsageError(f"the filter {predicate} fails: {error}; set another one") from error


def _answers(rows: pa.RecordBatch, predicate: pc.Expression) -> Mask:
    # `RecordBatch.filter` with an expression takes three times as long, and may change the order of rows.
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([rows])))
    project = acero.Declaration("project", acero.ProjectNodeOptions([predicate], ["mask"]))
    answer = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    column = answer.column(0)
    if not pa.types.is_boolean(column.type):
        raise pa.ArrowInvalid(f"an expression of type {column.type} is not a condition")
    mask: Mask = pc.fill_null(column, False).to_numpy()
    return mask


class _Ranking:
    """Which rows an N-filter drops.

    Attributes:
        groups: number of distinct pairs of key and value.
        group: for each row, the number of its pair.
        folded: for each row, whether it is at or before `since`.
    """

    def __init__(self, layout: Layout, rule: Ranked, rows: pa.RecordBatch, since: Frontier) -> None:
        starts = group_starts(rows, layout.row_width)
        begins = np.flatnonzero(starts)
        self.groups = len(begins)
        self.group: Ints = np.cumsum(starts) - 1
        self.folded = _at_or_before(rows, layout, since)
        values: Ints = rows.column(rows.num_columns - 1).to_numpy()
        signs = _signs(np.where(self.folded, values, 0), begins)
        first = rows.take(pa.array(begins))
        ranked = signs > 0
        if rule.where is not None:
            ranked &= ~satisfies(first, rule.where)
        key: Ints = np.cumsum(group_starts(first, layout.key_width)) - 1
        # The ranked groups in order of their keys, the preferred groups of each key first.
        order = _preferred(first, key, np.flatnonzero(ranked), rule)
        victims = signs < 0
        if len(order):
            keys = key[order]
            begin = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
            rank = np.arange(len(order)) - np.repeat(begin, np.diff(np.append(begin, len(order))))
            victims[order[rank >= rule.n]] = True
        self.dropped: Mask = self.folded & victims[self.group]


def _preferred(first: pa.RecordBatch, key: Ints, ranked: Ints, rule: Ranked) -> Ints:
    """The ranked groups in order of their keys, and for each key in order of preference."""
    if not len(ranked):
        return ranked
    if not rule.by:
        # Groups are in the total order. For the greatest, reverse them, then sort by key with a stable sort.
        turned = ranked[::-1] if rule.first == "greatest" else ranked
        return turned[np.argsort(key[turned], kind="stable")]
    picked = pa.array(ranked)
    columns = [pa.array(key[ranked]), *(sortable(first.column(name).take(picked)) for name in rule.by)]
    names = [str(i) for i in range(len(columns))]
    direction = "descending" if rule.first == "greatest" else "ascending"
    keys = [(names[0], "ascending"), *((name, direction) for name in names[1:])]
    order = pc.sort_indices(pa.RecordBatch.from_arrays(columns, names), sort_keys=keys)
    places: Ints = order.to_numpy().astype(np.int64)
    return ranked[places]


def _signs(values: Ints, begins: Ints) -> Ints:
    """The sign of the exact sum of each group; sums the halves of numbers, since a sum may overflow int64."""
    high: Ints = np.add.reduceat(values >> 32, begins)
    low: Ints = np.add.reduceat(values & _LOW, begins)
    high += low >> 32
    positive = (high > 0) | ((low & _LOW) > 0)
    signs: Ints = positive.astype(np.int64)
    signs[high < 0] = -1
    return signs


def _at_or_before(rows: pa.RecordBatch, layout: Layout, since: Frontier) -> Mask:
    """The rows at or before all elements of `since`: those that every read as of a time includes."""
    mask: Mask = np.ones(rows.num_rows, np.bool_)
    for element in since:
        for name, limit in zip(layout.domain.columns, parts(element), strict=True):
            mask &= rows.column(name).to_numpy() <= limit
    return mask


def _kept(rows: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    kept = int(np.count_nonzero(mask))
    if kept == len(mask):
        return rows
    return rows.filter(pa.array(mask)) if kept else rows.slice(0, 0)


def _names(by: str | Sequence[str]) -> tuple[str, ...]:
    names = (by,) if isinstance(by, str) else tuple(arguments.names("by", by))
    if not names:
        raise UsageError("by=[] ranks nothing: name a value column, or use last_n")
    return names


def _check(predicate: pc.Expression, layout: Layout, width: int, kind: str) -> None:
    if not isinstance(predicate, pc.Expression):
        raise UsageError(
            f"a filter is an expression such as pyarrow.compute.field('ts') > 3, not {predicate!r}"
        )
    columns = pa.schema([layout.arrow.field(i) for i in range(width)])
    try:
        _answers(_no_rows(columns), predicate)
    except UNFIT as error:
        raise UsageError(
            f"{predicate} is not a condition over the {kind} columns {columns.names}: {error}"
        ) from error


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
