"""Statistics of a part, gathered while it is written.

Owns how bounds are computed, truncated and dropped to fit a budget; must not know files. Invariant: every
bound that is kept holds for all rows of the part, even if it was truncated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt
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
from tidelake.model.batch import ROW_HASHES, ColumnStats, Part
from tidelake.model.schema import Column, Schema
from tidelake.model.time import Time, TimeDomain

Ints = npt.NDArray[np.int64]
# Size of a column's entry in the state, without its two bounds.
_ENTRY_BYTES = 12
# Extremes are collected from so many batches before they are joined, or from fewer if they are wide.
_HELD_MAX, _HELD_BYTES = 64, 4096
BUCKETS_MAX = 8
# While streaming; enough buckets that joining neighbours of equal weight leaves the final ones even.
_SKETCH_MAX = 64
_SKETCH_LEFT = 32
# At most so many boundaries come from one batch at either end.
_NEW_MAX = 16
# In a range of times this small, each time is counted by itself.
_RANGE_MAX = 65_536


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


_NULLS = attrgetter("null_count")


def summary(
    batch: pa.RecordBatch,
    schema: Schema,
    domain: TimeDomain,
    *,
    bounds: bool = True,
    filtered: bool = False,
) -> Summary:
    """Look at a batch of updates, not empty, sorted by the first column at least."""
    values = diffs(batch)
    times = list(map(to_numpy, map(batch.column, domain.columns)))
    columns = [batch.column(column.name) for column in schema.columns] if bounds else []
    return Summary(
        batch,
        # As `count_nonzero`, `min` and `max`, which take more calls.
        int(np.add.reduce(values < 0)),
        total(values),
        tuple(map(int, map(np.minimum.reduce, times))),
        tuple(map(int, map(np.maximum.reduce, times))),
        tuple(map(_NULLS, columns)),
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
        self._extremes = list(map(_Extremes, columns))
        self._times = TimeCounts()

    def add(self, part: Summary) -> None:
        """Count the rows of a batch."""
        self.rows += part.rows.num_rows
        self._negative_rows += part.negative_rows
        self._diff_sum += part.diff_sum
        self._row_hash = (self._row_hash + part.row_hash) % ROW_HASHES
        least, greatest = part.time_lower, part.time_upper
        self._lower = list(map(min, self._lower or least, least))
        self._upper = list(map(max, self._upper or greatest, greatest))
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
        """The description of the rows that were counted, as a part."""
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


class TimeCounts:
    """How many rows lie at or before a time, at most: a histogram of int times in any order.

    INVARIANT: every row is counted once, in the last bucket whose first time is not after the row's time. So
    the buckets up to a time count all rows up to it, and perhaps some later ones.

    It holds at most about 100 numbers. A boundary is never put between rows that were counted already, and
    dropping one joins its bucket to the one before.
    """

    def __init__(self) -> None:
        self._firsts: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)
        self._least = self._greatest = self._at_least = 0

    def add(self, times: Ints, least: int, greatest: int) -> None:
        """Count times; not empty, `least` and `greatest` are their extremes."""
        if least == greatest and not len(self._firsts) and (not self._at_least or least == self._least):
            # While all rows have one time, there are no buckets.
            self._least = self._greatest = least
            self._at_least += len(times)
            return
        if self._at_least and not len(self._firsts):
            self._firsts, self._counts = np.array([self._least]), np.array([self._at_least])
        seen = bool(len(self._firsts))
        if not seen or least < self._least:
            self._least, self._at_least = least, 0
        if least == self._least:
            at_least = len(times) if least == greatest else int(np.count_nonzero(times == least))
            self._at_least += at_least
        if not seen:
            self._insert(_boundaries(times, least, greatest, _SKETCH_LEFT))
        else:
            if least < self._firsts[0]:
                early = times[times < self._firsts[0]]
                self._insert(_boundaries(early, least, int(early.max()), _NEW_MAX))
            if greatest > self._greatest:
                late = times[times > self._greatest]
                self._insert(_boundaries(late, int(late.min()), greatest, _NEW_MAX))
        self._greatest = max(greatest, self._greatest) if seen else greatest
        self._count(times, least, greatest)
        if len(self._firsts) > _SKETCH_MAX:
            self._firsts, self._counts = _joined(self._firsts, self._counts, _SKETCH_LEFT)

    def result(self) -> tuple[tuple[int, int], ...]:
        """Ascending pairs `(first, rows)`, as `Part.time_counts` describes them; empty without rows."""
        if not len(self._firsts):
            return ((self._least, self._at_least),) if self._at_least else ()
        counts = self._counts.copy()
        counts[0] -= self._at_least
        firsts = self._firsts.copy()
        # Later than the least time; where exactly is not known.
        firsts[0] = min(self._least + 1, self._greatest)
        held = counts > 0
        pairs = [(self._least, self._at_least)]
        if held.any():
            firsts, counts = _joined(firsts[held], counts[held], BUCKETS_MAX - 1)
            pairs += zip(firsts.tolist(), counts.tolist(), strict=True)
        return tuple(pairs)

    def _insert(self, firsts: Ints) -> None:
        """Add empty buckets, all of them before those that exist or all after."""
        firsts_, counts = (self._firsts, firsts), (self._counts, np.zeros(len(firsts), np.int64))
        if len(self._firsts) and firsts[0] < self._firsts[0]:
            firsts_, counts = firsts_[::-1], counts[::-1]
        self._firsts, self._counts = np.concatenate(firsts_), np.concatenate(counts)

    def _count(self, times: Ints, least: int, greatest: int) -> None:
        first, last = np.searchsorted(self._firsts, (least, greatest), side="right") - 1
        if first == last:
            self._counts[first] += len(times)
            return
        within = self._firsts[first + 1 : last + 1]
        if greatest - least < _RANGE_MAX:
            # Ten times as fast as searching for every row.
            each = np.bincount(times - least, minlength=greatest - least + 1)
            self._counts[first : last + 1] += np.add.reduceat(each, np.append(0, within - least))
        else:
            found = np.searchsorted(within, times, side="right")
            self._counts[first : last + 1] += np.bincount(found, minlength=last + 1 - first)


def _boundaries(times: Ints, least: int, greatest: int, most: int) -> Ints:
    """First times of at most `most` buckets with about equally many of these times; the least is one."""
    if least == greatest:
        return np.array([least], np.int64)
    # Folded rows pile up at the least time. A sample decides where to cut the others; the counts are exact
    # wherever the cuts are.
    times = times[times > least]
    sample = np.sort(times[:: max(1, len(times) // 4096)])
    picks = sample[np.linspace(0, len(sample) - 1, most - 1).astype(np.int64)]
    return np.unique(np.append(picks, least))


def _joined(firsts: Ints, counts: Ints, most: int) -> tuple[Ints, Ints]:
    """At most `most` buckets of about equal weight."""
    if len(firsts) <= most:
        return firsts, counts
    before = np.cumsum(counts) - counts
    targets = np.linspace(0, float(before[-1]), most)
    starts = np.unique(np.searchsorted(before, targets, side="left"))
    starts = np.unique(np.append(0, np.minimum(starts, len(firsts) - 1)))[:most]
    return firsts[starts], np.add.reduceat(counts, starts)
