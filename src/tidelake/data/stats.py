"""Statistics of a part, gathered while it is written.

Owns how bounds are computed, truncated and dropped to fit a budget; must not know files. Invariant:
a bound that is kept holds for every row of the part, whatever was truncated.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.encode import encode, raw, truncate_lower, truncate_upper
from tidelake.data.sums import diffs, total
from tidelake.model.batch import ColumnStats
from tidelake.model.schema import Column, Schema
from tidelake.model.time import Time, TimeDomain

# What a column's entry costs in the state beside its two bounds.
_ENTRY_BYTES = 12


@dataclass(frozen=True)
class Totals:
    """What a part's description says about its rows."""

    rows: int
    negative_rows: int
    diff_sum: int
    time_lower: Time
    time_upper: Time
    stats: dict[int, ColumnStats]


class Tally:
    """Takes batches, gives their statistics."""

    def __init__(self, schema: Schema, domain: TimeDomain) -> None:
        self.rows = 0
        self._schema, self._domain = schema, domain
        self._negative_rows = self._diff_sum = 0
        self._lower: list[int] = []
        self._upper: list[int] = []
        self._columns: dict[int, ColumnStats] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch of updates, not empty."""
        self.rows += batch.num_rows
        values = diffs(batch)
        self._negative_rows += int(np.count_nonzero(values < 0))
        self._diff_sum += total(values)
        times = [batch.column(name).to_numpy() for name in self._domain.columns]
        least, greatest = [int(t.min()) for t in times], [int(t.max()) for t in times]
        self._lower = [min(x) for x in zip(self._lower or least, least, strict=True)]
        self._upper = [max(x) for x in zip(self._upper or greatest, greatest, strict=True)]
        for column in self._schema.columns:
            found = _bounds(batch.column(column.name), column)
            known = self._columns.get(column.id)
            self._columns[column.id] = found if known is None else _both(known, found)

    def totals(self, stats_budget_bytes: int, bound_bytes: int) -> Totals:
        """The statistics, truncated and trimmed: the largest columns are dropped first."""
        cut = {id_: _truncated(stats, bound_bytes) for id_, stats in self._columns.items()}
        by_size = sorted(cut, key=lambda id_: (_size(cut[id_]), id_))
        left, kept = stats_budget_bytes, []
        for id_ in by_size:
            left -= _size(cut[id_])
            if left < 0:
                break
            kept.append(id_)
        return Totals(
            rows=self.rows,
            negative_rows=self._negative_rows,
            diff_sum=self._diff_sum,
            time_lower=self._time(self._lower),
            time_upper=self._time(self._upper),
            stats={id_: cut[id_] for id_ in sorted(kept)},
        )

    def _time(self, components: list[int]) -> Time:
        return tuple(components) if self._domain.unit == "tuple" else components[0]


def _bounds(array: pa.Array, column: Column) -> ColumnStats:
    if array.null_count == len(array):
        return ColumnStats(None, None, array.null_count)
    if column.type.nested:
        # Nobody prunes by a nested column, and encoding every value would cost more than the rest.
        return ColumnStats(b"", None, array.null_count)
    if column.type.name in ("float16", "float32", "float64"):
        return _float_bounds(array, column)
    if column.type.name in ("decimal32", "decimal64"):
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    if column.type.name == "duration":
        # The one integer-like type that pyarrow finds no least value of.
        array = array.view(pa.int64())
    found = pc.min_max(array)
    ends = (
        pa.array([found["min"].as_py(), found["max"].as_py()], array.type) if _simple(array) else _ends(found)
    )
    lower, upper = encode(ends, column.type).to_pylist()
    return ColumnStats(lower, upper, array.null_count)


def _simple(array: pa.Array) -> bool:
    return bool(pa.types.is_string(array.type) or pa.types.is_binary(array.type))


def _ends(found: pa.StructScalar) -> pa.Array:
    # Not by way of Python values, which hold no nanoseconds.
    return pa.concat_arrays([pa.repeat(found["min"], 1), pa.repeat(found["max"], 1)])


def _float_bounds(array: pa.Array, column: Column) -> ColumnStats:
    """NaN is the greatest value, where pyarrow's minimum and maximum leave it out."""
    values = raw(array, np.dtype(f"f{array.type.bit_width // 8}"))
    if array.null_count:
        values = values[array.is_valid().to_numpy(zero_copy_only=False)]
    numbers = values[~np.isnan(values)]
    least = numbers.min() if len(numbers) else np.nan
    greatest = numbers.max() if len(numbers) == len(values) else np.nan
    ends = pa.array(np.array([least, greatest], values.dtype))
    lower, upper = encode(ends, column.type).to_pylist()
    return ColumnStats(lower, upper, array.null_count)


def _both(a: ColumnStats, b: ColumnStats) -> ColumnStats:
    nulls = a.null_count + b.null_count
    if a.lower is None or b.lower is None:
        other = b if a.lower is None else a
        return ColumnStats(other.lower, other.upper, nulls)
    upper = None if a.upper is None or b.upper is None else max(a.upper, b.upper)
    return ColumnStats(min(a.lower, b.lower), upper, nulls)


def _truncated(stats: ColumnStats, n: int) -> ColumnStats:
    if stats.lower is None:
        return stats
    upper = None if stats.upper is None else truncate_upper(stats.upper, n)
    return ColumnStats(truncate_lower(stats.lower, n), upper, stats.null_count)


def _size(stats: ColumnStats) -> int:
    return _ENTRY_BYTES + len(stats.lower or b"") + len(stats.upper or b"")
