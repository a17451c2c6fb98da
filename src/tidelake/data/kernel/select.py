"""Queries on columns: which updates are kept, and which times they get.

Owns the vectorised form of `tidelake.model.query` and of a part's metadata (rewritten times, narrowed
bounds); must not know keys, values or order. Invariant: every row is treated as the scalar algebra in
`tidelake.model` says. Nothing here consolidates.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import from_numpy, to_numpy
from tidelake.errors import InternalError, InvalidUpdates
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Fold, Query, Updates
from tidelake.model.schema import DIFF
from tidelake.model.time import Time, TimeDomain, parts

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def select(batch: pa.RecordBatch, query: Query, domain: TimeDomain) -> pa.RecordBatch:
    """Keep the updates that a query wants, in order, at the times that it wants; not consolidated."""
    return Selector(query, domain)(batch)


def one_time(query: Query) -> Time | None:
    """The time that a query gives all updates; None: they have several."""
    match query:
        case AsOf(time) | Changes(_, time):
            return time
        case _:
            return None


def selected(batch: pa.RecordBatch, query: Query, domain: TimeDomain) -> pa.RecordBatch:
    """As `select`, but without times where the query gives all updates the same one."""
    times = _times(batch, domain)
    match query:
        case AsOf(time):
            return _kept(batch, _before(times, time)).drop_columns(domain.columns)
        case Changes(after, through):
            mask = _before(times, through) & ~_before(times, after)
            return _kept(batch, mask).drop_columns(domain.columns)
        case Updates(lower, upper):
            return _kept(batch, _at_or_after(times, lower) & ~_at_or_after(times, upper))
        case Fold(since):
            return _advanced(batch, times, since, domain)


class Constants:
    """Columns of one value each, for batches that lack them.

    All batches share them: to make a column of equal values takes as long as to decode a column.
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = dict(values)
        self._rows, self._columns = 0, dict[str, pa.Array]()

    def __call__(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema: those with one value, and all others from a batch."""
        rows = batch.num_rows
        if not self._columns or rows > self._rows:
            self._rows = rows
            self._columns = {n: from_numpy(np.full(rows, v, np.int64)) for n, v in self._values.items()}
        columns = [
            self._columns[name].slice(0, rows) if name in self._columns else batch.column(name)
            for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class Timing:
    """Gives updates without times all the same time."""

    def __init__(self, time: Time, domain: TimeDomain) -> None:
        self._fields = [pa.field(name, pa.int64(), nullable=False) for name in domain.columns]
        self._constants = Constants(dict(zip(domain.columns, parts(time), strict=True)))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its times."""
        schema = pa.schema([*[*batch.schema][:-1], *self._fields, batch.schema.field(DIFF)])
        return self._constants(batch, schema)


class Selector:
    """`select` for the batches of one read."""

    def __init__(self, query: Query, domain: TimeDomain) -> None:
        self._query, self._domain = query, domain
        time = one_time(query)
        self._timing = None if time is None else Timing(time, domain)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The kept rows of a batch, with their times."""
        found = selected(batch, self._query, self._domain)
        return found if self._timing is None else self._timing(found)


def view(
    batch: pa.RecordBatch,
    domain: TimeDomain,
    rewrite: Time | None = None,
    lower: Frontier | None = None,
    upper: Frontier | None = None,
) -> pa.RecordBatch:
    """Rewrite times by the metadata of a part, so that rows may become equal; drop those out of bounds."""
    if rewrite is not None:
        if not domain.total_order:
            raise InternalError(f"times of unit {domain} cannot be rewritten")
        batch = _advanced(batch, _times(batch, domain), Frontier.of(rewrite), domain)
    if lower is None and upper is None:
        return batch
    times = _times(batch, domain)
    mask = np.ones(batch.num_rows, np.bool_)
    if lower is not None:
        mask &= _at_or_after(times, lower)
    if upper is not None:
        mask &= ~_at_or_after(times, upper)
    return _kept(batch, mask)


def taken_away(batch: pa.RecordBatch, upto: int, domain: TimeDomain) -> pa.RecordBatch:
    """The updates up to a time with the opposite diffs, in the same order."""
    kept = _kept(batch, _before(_times(batch, domain), upto))
    index = kept.schema.get_field_index(DIFF)
    try:
        opposite = pc.negate_checked(kept.column(index))
    except pa.ArrowInvalid as error:
        raise InvalidUpdates(
            f"a row has the {DIFF} {-(2**63)}, which has no opposite in int64: "
            "read the snapshots at both times instead of the changes between them"
        ) from error
    return kept.set_column(index, kept.schema.field(index), opposite)


def preserves_order(query: Query, domain: TimeDomain) -> bool:
    """Whether `select` leaves sorted rows sorted.

    Advancing tuples does not: (0, 5), (1, 0) advanced by (1, 0) are (1, 5), (1, 0).
    """
    return domain.total_order or domain.arity == 1 or not isinstance(query, Fold)


def _times(batch: pa.RecordBatch, domain: TimeDomain) -> list[Ints]:
    return [to_numpy(batch.column(name)) for name in domain.columns]


def _before(times: list[Ints], bound: Time) -> Mask:
    """Whether each time is less than or equal to `bound`, in every component."""
    mask: Mask = np.ones(len(times[0]), np.bool_)
    for component, limit in zip(times, parts(bound), strict=True):
        mask &= component <= limit
    return mask


def _at_or_after(times: list[Ints], frontier: Frontier) -> Mask:
    """Whether each time is at or after the frontier."""
    result: Mask = np.zeros(len(times[0]), np.bool_)
    for element in frontier:
        mask = np.ones(len(result), np.bool_)
        for component, limit in zip(times, parts(element), strict=True):
            mask &= component >= limit
        result |= mask
    return result


def _are_at_or_after(times: list[Ints], frontier: Frontier) -> bool:
    """Whether all times have one component and are at or after a frontier, so that advancing leaves them."""
    least, *others = frontier.elements
    return len(times) == 1 and not others and bool(times[0].min() >= parts(least)[0])


def _kept(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    # Counting is cheaper than copying, and most batches are kept or dropped whole.
    kept = int(np.count_nonzero(mask))
    if kept == len(mask):
        return batch
    return batch.filter(from_numpy(mask)) if kept else batch.slice(0, 0)


def _advanced(
    batch: pa.RecordBatch, times: list[Ints], frontier: Frontier, domain: TimeDomain
) -> pa.RecordBatch:
    """Each time replaced by the meet over the frontier's elements of its join with them."""
    if frontier.closed or not batch.num_rows or _are_at_or_after(times, frontier):
        return batch
    result: list[Ints] | None = None
    for element in frontier:
        joined = [np.maximum(x, limit) for x, limit in zip(times, parts(element), strict=True)]
        result = joined if result is None else [np.minimum(a, b) for a, b in zip(result, joined, strict=True)]
    return _with_times(batch, result or times, domain)


def _with_times(batch: pa.RecordBatch, times: list[Ints], domain: TimeDomain) -> pa.RecordBatch:
    columns = list(batch.columns)
    for name, values in zip(domain.columns, times, strict=True):
        columns[batch.schema.get_field_index(name)] = from_numpy(values)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
