"""Statistics of a part, gathered while it is written.

Owns how bounds are computed, truncated and dropped to fit a budget; must not know files. Invariant:
a bound that is kept holds for every row of the part, whatever was truncated.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.config import Config
from tidelake.data.container import checksum
from tidelake.data.encode import encode, raw, truncate_lower, truncate_upper
from tidelake.data.sums import diffs, total
from tidelake.data.timecounts import TimeCounts
from tidelake.model.batch import ColumnStats, Part
from tidelake.model.schema import Column, Schema
from tidelake.model.time import Time, TimeDomain

# What a column's entry costs in the state beside its two bounds.
_ENTRY_BYTES = 12


@dataclass(frozen=True)
class StatsSettings:
    """What of the statistics is kept in the state; the settings of `Config` by the same names.

    Attributes:
        budget_bytes: column statistics are dropped, the largest first, until they fit.
        bound_bytes: to which key bounds and statistics are truncated.
        keep_names: columns of these names are never dropped, in any case; they count towards the budget.
        keep_prefixes: nor those whose names start so.
        keep_suffixes: nor those whose names end so.
    """

    budget_bytes: int
    bound_bytes: int
    keep_names: tuple[str, ...] = ()
    keep_prefixes: tuple[str, ...] = ()
    keep_suffixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Config) -> "StatsSettings":
        """Those of a lake."""
        return cls(
            config.stats_budget_bytes,
            config.bound_bytes,
            config.stats_keep_names,
            config.stats_keep_prefixes,
            config.stats_keep_suffixes,
        )

    def keeps(self, column: str) -> bool:
        """Whether a column's statistics are never dropped."""
        name = column.casefold()
        return (
            any(name == kept.casefold() for kept in self.keep_names)
            or any(name.startswith(kept.casefold()) for kept in self.keep_prefixes)
            or any(name.endswith(kept.casefold()) for kept in self.keep_suffixes)
        )


class Tally:
    """Takes batches, gives their statistics."""

    def __init__(self, schema: Schema, domain: TimeDomain) -> None:
        self.rows = 0
        self._schema, self._domain = schema, domain
        self._negative_rows = self._diff_sum = 0
        self._lower: list[int] = []
        self._upper: list[int] = []
        self._columns: dict[int, ColumnStats] = {}
        self._times = TimeCounts()

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
        if self._domain.total_order:
            self._times.add(times[0], least[0], greatest[0])
        for column in self._schema.columns:
            found = _bounds(batch.column(column.name), column)
            known = self._columns.get(column.id)
            self._columns[column.id] = found if known is None else _both(known, found)

    def part(
        self,
        name: str,
        data: bytes,
        schema_id: int,
        keys: tuple[bytes, bytes],
        settings: StatsSettings,
        *,
        inline: bool = False,
    ) -> Part:
        """The description of the rows that were counted, as a part.

        Args:
            name: of the part.
            data: the rows, encoded.
            schema_id: noted.
            keys: the first and the last key, encoded.
            settings: how far bounds are truncated and statistics trimmed.
            inline: whether the data are to be kept in the description itself.
        """
        first_key, last_key = keys
        return Part(
            name=name,
            size_bytes=len(data),
            checksum=checksum(data),
            rows=self.rows,
            negative_rows=self._negative_rows,
            diff_sum=self._diff_sum,
            schema_id=schema_id,
            key_lower=truncate_lower(first_key, settings.bound_bytes),
            key_upper=truncate_upper(last_key, settings.bound_bytes),
            time_lower=self._time(self._lower),
            time_upper=self._time(self._upper),
            stats=self._kept(settings),
            time_counts=self._times.result(),
            inline=data if inline else None,
        )

    def _kept(self, settings: StatsSettings) -> dict[int, ColumnStats]:
        """Column statistics, truncated and trimmed: the largest are dropped first."""
        cut = {id_: _truncated(stats, settings.bound_bytes) for id_, stats in self._columns.items()}
        kept = [c.id for c in self._schema.columns if c.id in cut and settings.keeps(c.name)]
        left = settings.budget_bytes - sum(_size(cut[id_]) for id_ in kept)
        for id_ in sorted(cut.keys() - set(kept), key=lambda id_: (_size(cut[id_]), id_)):
            left -= _size(cut[id_])
            if left < 0:
                break
            kept.append(id_)
        return {id_: cut[id_] for id_ in sorted(kept)}

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
