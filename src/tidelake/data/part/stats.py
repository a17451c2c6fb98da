"""Statistics of a part, gathered while it is written.

Owns how bounds are computed, truncated and dropped to fit a budget; must not know files. Invariant: every
bound that is kept holds for all rows of the part, even if it was truncated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.config import Config
from tidelake.data.kernel.arrays import from_numpy, null_mask, places, raw, to_numpy
from tidelake.data.kernel.encode import encode, truncate_lower, truncate_upper
from tidelake.data.kernel.sums import diffs, total
from tidelake.data.keys.keyhash import Hashes
from tidelake.data.part.container import checksum, with_row_hash
from tidelake.data.part.partfilter import key_hashes
from tidelake.data.part.rowhash import row_hash
from tidelake.data.part.timecounts import TimeCounts
from tidelake.model.batch import ROW_HASHES, ColumnStats, Part
from tidelake.model.schema import Column, Schema
from tidelake.model.time import Time, TimeDomain

# Size of a column's entry in the state, without its two bounds.
_ENTRY_BYTES = 12
# Extremes are collected from so many batches before they are joined, or from fewer if they are wide.
_HELD_MAX, _HELD_BYTES = 64, 4096


@dataclass(frozen=True)
class StatsSettings:
    """Which statistics are kept in the state; the settings of `Config` with the same names.

    Attributes:
        budget_bytes: column statistics are dropped, the largest first, until they fit.
        bound_bytes: length to which key bounds and statistics are truncated.
        keep_names: columns with these names, in any case, are never dropped; they count in the budget.
        keep_prefixes: the same for columns whose names begin with one of these.
        keep_suffixes: the same for columns whose names end with one of these.
    """

    budget_bytes: int
    bound_bytes: int
    keep_names: tuple[str, ...] = ()
    keep_prefixes: tuple[str, ...] = ()
    keep_suffixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Config) -> "StatsSettings":
        """The settings of a lake."""
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


@dataclass(frozen=True)
class Summary:
    """The statistics of a batch for which every value must be looked at.

    Attributes:
        rows: the batch.
        negative_rows: rows whose diff is negative.
        diff_sum: of all rows, exact.
        time_lower: the least value of each time column.
        time_upper: the greatest.
        nulls: of each column that was asked for.
        ends: of each column the least and the greatest value, or an empty array of its type if they are not
            used; None if all values are null.
        row_hash: as `tidelake.data.part.rowhash` makes it.
        keys: hashes of the distinct keys, as `tidelake.data.part.partfilter` makes them; None: not asked for.
    """

    rows: pa.RecordBatch
    negative_rows: int
    diff_sum: int
    time_lower: tuple[int, ...]
    time_upper: tuple[int, ...]
    nulls: tuple[int, ...]
    ends: tuple[pa.Array | None, ...]
    row_hash: int
    keys: Hashes | None = None


def summary(
    batch: pa.RecordBatch,
    schema: Schema,
    domain: TimeDomain,
    *,
    bounds: bool = True,
    filtered: bool = False,
) -> Summary:
    """Look at a batch of updates, not empty, sorted by the first column at least.

    Args:
        batch: the updates.
        schema: of them.
        domain: of the times.
        bounds: whether nulls and extremes of columns are wanted.
        filtered: whether the hashes of its keys are wanted.
    """
    values = diffs(batch)
    times = [to_numpy(batch.column(name)) for name in domain.columns]
    columns = [batch.column(column.name) for column in schema.columns] if bounds else []
    return Summary(
        batch,
        int(np.count_nonzero(values < 0)),
        total(values),
        # As `min` and `max`, which take more calls.
        tuple([int(np.minimum.reduce(t)) for t in times]),
        tuple([int(np.maximum.reduce(t)) for t in times]),
        tuple([column.null_count for column in columns]),
        tuple([_extremes(column, leads=i == 0) for i, column in enumerate(columns)]),
        row_hash(batch, schema),
        key_hashes(batch, schema) if filtered else None,
    )


def _extremes(array: pa.Array, *, leads: bool) -> pa.Array | None:
    known = len(array) - array.null_count
    if not known:
        return None
    if pa.types.is_nested(array.type):
        # Nested columns are not used for pruning, and encoding their values would cost more than the rest.
        return array.slice(0, 0)
    # Rows are sorted by the first column, so its ends are its first and last values.
    return array.take(places(0, known - 1)) if leads else _ends(array)


class Tally:
    """Takes summaries of batches and returns the statistics of all their rows."""

    def __init__(self, columns: Sequence[Column], domain: TimeDomain) -> None:
        """Of no batch yet; `columns` as for `summary`."""
        self.rows = 0
        self._columns, self._domain = columns, domain
        self._negative_rows = self._diff_sum = 0
        self._row_hash = 0
        self._lower: list[int] = []
        self._upper: list[int] = []
        self._extremes = [_Extremes(column) for column in columns]
        self._times = TimeCounts()

    def add(self, part: Summary) -> None:
        """Count the rows of a batch."""
        self.rows += part.rows.num_rows
        self._negative_rows += part.negative_rows
        self._diff_sum += part.diff_sum
        self._row_hash = (self._row_hash + part.row_hash) % ROW_HASHES
        least, greatest = part.time_lower, part.time_upper
        self._lower = [min(x) for x in zip(self._lower or least, least, strict=True)]
        self._upper = [max(x) for x in zip(self._upper or greatest, greatest, strict=True)]
        if self._domain.total_order:
            times = to_numpy(part.rows.column(self._domain.columns[0]))
            self._times.add(times, least[0], greatest[0])
        for extremes, nulls, ends in zip(self._extremes, part.nulls, part.ends, strict=True):
            extremes.add(nulls, ends)

    def part(
        self,
        name: str,
        data: bytes,
        schema_id: int,
        keys: tuple[bytes, bytes],
        settings: StatsSettings,
        *,
        inline: bool = False,
        checksum_: str | None = None,
    ) -> Part:
        """The description of the rows that were counted, as a part.

        Args:
            name: of the part.
            data: the rows, encoded.
            schema_id: noted.
            keys: the first and the last key, encoded.
            settings: how far to truncate bounds and trim statistics.
            inline: whether to keep the data in the description itself.
            checksum_: of the data, if it is known already.
        """
        first_key, last_key = keys
        return Part(
            name=name,
            size_bytes=len(data),
            checksum=with_row_hash(checksum_ or checksum(data), self._row_hash),
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
        if not self._extremes:
            return {}
        cut = {e.column.id: _truncated(e.result(), settings.bound_bytes) for e in self._extremes}
        kept = [c.id for c in self._columns if c.id in cut and settings.keeps(c.name)]
        left = settings.budget_bytes - sum(_size(cut[id_]) for id_ in kept)
        for id_ in sorted(cut.keys() - set(kept), key=lambda id_: (_size(cut[id_]), id_)):
            left -= _size(cut[id_])
            if left < 0:
                break
            kept.append(id_)
        return {id_: cut[id_] for id_ in sorted(kept)}

    def _time(self, components: list[int]) -> Time:
        return tuple(components) if self._domain.unit == "tuple" else components[0]


class _Extremes:
    """The least and greatest value of one column; encoded once at the end, because encoding costs most."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self._nulls = 0
        self._held: list[pa.Array] = []

    def add(self, nulls: int, ends: pa.Array | None) -> None:
        """Add those of a batch."""
        self._nulls += nulls
        if ends is None:
            return
        if self.column.type.nested:
            self._held = [ends]
            return
        self._held.append(ends)
        if len(self._held) >= _HELD_MAX or self._held[-1].nbytes > _HELD_BYTES:
            self._held = [_ends(pa.concat_arrays(self._held))]

    def result(self) -> ColumnStats:
        """The bounds of all values that were seen, not truncated."""
        if not self._held:
            return ColumnStats(None, None, self._nulls)
        if self.column.type.nested:
            return ColumnStats(b"", None, self._nulls)
        # The extremes of a single batch need no joining.
        ends = self._held[0] if len(self._held) == 1 else _ends(pa.concat_arrays(self._held))
        if self.column.type.name in ("decimal32", "decimal64"):
            ends = ends.cast(pa.decimal128(ends.type.precision, ends.type.scale))
        lower, upper = encode(ends, self.column.type).to_pylist()
        return ColumnStats(lower, upper, self._nulls)


def _ends(array: pa.Array) -> pa.Array:
    """The least and the greatest value of an array with at least one that is not null."""
    is_, kind = pa.types, array.type
    if is_.is_floating(kind):
        return _float_ends(array)
    if is_.is_decimal(kind) and (at := _short_decimal_ends(array)) is not None:
        return array.take(places(*at))
    if is_.is_decimal(kind) and kind.bit_width < 128:
        found = pc.min_max(array.cast(pa.decimal128(kind.precision, kind.scale)))
        return pa.concat_arrays([pa.repeat(found[end], 1) for end in ("min", "max")]).cast(kind)
    if is_.is_duration(kind):
        # The only integer-like type without a minimum in pyarrow.
        return _ends(array.view(pa.int64())).view(kind)
    found = pc.min_max(array)
    if is_.is_string(kind) or is_.is_binary(kind):
        return pa.array([found["min"].as_py(), found["max"].as_py()], kind)
    # Not through Python values, which have no nanoseconds.
    return pa.concat_arrays([pa.repeat(found["min"], 1), pa.repeat(found["max"], 1)])


def _float_ends(array: pa.Array) -> pa.Array:
    """The least and greatest float. NaN is the greatest; pyarrow's minimum and maximum leave it out."""
    values = raw(array, np.dtype(f"f{array.type.bit_width // 8}"))
    if array.null_count:
        values = values[~null_mask(array)]
    # `fmin` leaves NaN out unless all values are NaN; `max` is NaN if any value is.
    return from_numpy(np.array([np.fmin.reduce(values), values.max()], values.dtype))


def _short_decimal_ends(array: pa.Array) -> list[int] | None:
    """The positions of the extremes, if the column has no nulls and all numbers fit into 64 bits."""
    if array.null_count or array.type.bit_width != 128:
        return None
    halves = np.frombuffer(array.buffers()[1], np.int64, 2 * (array.offset + len(array)))
    low, high = halves[2 * array.offset :: 2], halves[2 * array.offset + 1 :: 2]
    return [int(low.argmin()), int(low.argmax())] if (high == low >> 63).all() else None


def _truncated(stats: ColumnStats, n: int) -> ColumnStats:
    if stats.lower is None:
        return stats
    upper = None if stats.upper is None else truncate_upper(stats.upper, n)
    return ColumnStats(truncate_lower(stats.lower, n), upper, stats.null_count)


def _size(stats: ColumnStats) -> int:
    return _ENTRY_BYTES + len(stats.lower or b"") + len(stats.upper or b"")
