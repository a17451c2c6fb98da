"""Batches as descriptions: parts, runs and bounds, without the rows.

A *part* is one immutable stored object. A *run* is a list of parts that are sorted and disjoint, a
*batch* one or more runs that together hold all updates of its bounds. All byte bounds here are in
the order-preserving encoding of `tidelake.data.kernel.encode`: comparing the bytes compares the values, so
nothing at this level needs to know types.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter

from tidelake.model import time as times
from tidelake.model.bounds import Bounds
from tidelake.model.names import ObjectName
from tidelake.model.time import Time

ROW_HASHES = 1 << 64
"""How many hashes of rows there are: sums of them are taken modulo this."""


@dataclass(frozen=True)
class ColumnStats:
    """Bounds on the values of one column in one part.

    Attributes:
        lower: no non-null value is less; encoded, perhaps truncated. None: all values are null.
        upper: no non-null value is greater; encoded. None: all values are null, or no bound is known.
        null_count: rows with a null.
    """

    lower: bytes | None
    upper: bytes | None
    null_count: int


@dataclass(frozen=True)
class Part:
    """One piece of sorted, consolidated updates: a stored object, or the bytes themselves if tiny.

    Attributes:
        name: name of the blob in the lake. Never used twice, even by inline parts.
        size_bytes: size of the blob, or of the inline bytes.
        checksum: of these bytes, as `tidelake.data.part.container.checksum` makes it; for a blob the checksum
            of its footer follows. Last comes `+` and `row_hash` in 16 hexadecimal digits.
        rows: number of updates, before any truncation.
        negative_rows: how many of them have a negative diff.
        diff_sum: sum of all diffs, exact (may exceed int64).
        schema_id: the schema it was written under.
        key_lower: no key is less; encoded, perhaps truncated.
        key_upper: no key is greater; encoded; None if no bound is known.
        time_lower: component-wise least time, before any rewrite.
        time_upper: component-wise greatest time, before any rewrite.
        stats: by column id; columns may be missing.
        time_counts: a histogram of int times, as ascending pairs `(first, rows)`: the number of rows from
            `first` up to the next pair's. The first pair counts the rows at exactly the least time. Empty for
            tuples.
        rewrite: readers advance all times to this one.
        inline: the rows themselves, as `tidelake.data.part.inline` encodes them; then no blob has the name.
            None: the rows are in the blob.
    """

    name: ObjectName
    size_bytes: int
    checksum: str
    rows: int
    negative_rows: int
    diff_sum: int
    schema_id: int
    key_lower: bytes
    key_upper: bytes | None
    time_lower: Time
    time_upper: Time
    stats: dict[int, ColumnStats] = field(default_factory=dict)
    time_counts: tuple[tuple[int, int], ...] = ()
    rewrite: Time | None = None
    inline: bytes | None = None

    @property
    def row_hash(self) -> int | None:
        """The sum of the hashes of its rows, each times its diff, modulo `ROW_HASHES`; None if not known.

        It depends on neither the order nor the times of the rows, but on the schema of the part.
        """
        found = self.checksum.partition("+")[2]
        return int(found, 16) if found else None

    @property
    def seen_times(self) -> tuple[Time, Time]:
        """The least and the greatest time, as readers see them; component-wise for tuples."""
        if self.rewrite is None:
            return self.time_lower, self.time_upper
        return times.join(self.time_lower, self.rewrite), times.join(self.time_upper, self.rewrite)


@dataclass(frozen=True)
class Run:
    """Parts in ascending order of `(key, value, time)`, no two of them overlapping.

    Attributes:
        parts: at least one.
        truncated: the batch's bounds are narrower than what the parts hold; readers drop the rest,
            and the sum of diffs is not known.
    """

    parts: tuple[Part, ...]
    truncated: bool = False

    @cached_property
    def rows(self) -> int:
        """Updates in it; an upper bound if truncated."""
        return sum(p.rows for p in self.parts)

    @cached_property
    def inline(self) -> bool:
        """Whether all of its rows are in the state."""
        return all(p.inline is not None for p in self.parts)

    @property
    def size_bytes(self) -> int:
        """Stored bytes."""
        return sum(p.size_bytes for p in self.parts)

    @property
    def diff_sum(self) -> int | None:
        """Sum of diffs, or None if truncation hides some."""
        return None if self.truncated else sum(p.diff_sum for p in self.parts)

    @property
    def row_hash(self) -> int | None:
        """As that of a part; None if truncation hides some rows, or it is not known of a part."""
        hashes = [p.row_hash for p in self.parts]
        known = [one for one in hashes if one is not None]
        return None if self.truncated or len(known) < len(hashes) else sum(known) % ROW_HASHES


_PARTS = attrgetter("parts")


@dataclass(frozen=True)
class HollowBatch:
    """The description of a batch: `runs` that together hold the updates of `bounds`.

    Without runs it only moves the frontier.
    """

    bounds: Bounds
    runs: tuple[Run, ...] = ()

    @cached_property
    def _sums(self) -> tuple[int, int, int, int]:
        """Sums over its parts, which every commit asks for of many batches."""
        rows = size_bytes = inline_bytes = negative_rows = 0
        for part in self.parts():
            rows += part.rows
            size_bytes += part.size_bytes
            inline_bytes += 0 if part.inline is None else len(part.inline)
            negative_rows += part.negative_rows
        return rows, size_bytes, inline_bytes, negative_rows

    @cached_property
    def rows(self) -> int:
        """Updates in it; an upper bound if a run is truncated."""
        return self._sums[0]

    @cached_property
    def size_bytes(self) -> int:
        """Stored bytes."""
        return self._sums[1]

    @cached_property
    def inline_bytes(self) -> int:
        """Bytes of inline parts, which are in the state."""
        return self._sums[2]

    @cached_property
    def negative_rows(self) -> int:
        """Updates that take rows away; an upper bound if a run is truncated."""
        return self._sums[3]

    @property
    def diff_sum(self) -> int | None:
        """Sum of diffs, or None if any run's is unknown."""
        total = 0
        for run in self.runs:
            if run.diff_sum is None:
                return None
            total += run.diff_sum
        return total

    def parts(self) -> Iterator[Part]:
        """All parts, run by run."""
        return chain.from_iterable(map(_PARTS, self.runs))
