"""Whether a description of a part is true of its rows.

Owns what is compared, and how a key is shown to people; must not know stores or states. Invariant: of a
part that was written by `tidelake.data.part.part` or `tidelake.data.part.inline` nothing is complained about.
Takes the rows batch by batch and keeps some hundred numbers of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.order import Comparable, row_tuple
from tidelake.data.kernel.sort import sorted_groups
from tidelake.data.kernel.sums import diffs
from tidelake.data.part.container import whole_checksum
from tidelake.data.part.stats import StatsSettings, Tally, summary
from tidelake.model.batch import ColumnStats, Part
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

# Nothing is truncated or dropped: what is compared with is exact.
_EXACT = StatsSettings(budget_bytes=1 << 62, bound_bytes=1 << 31)


@dataclass(frozen=True)
class Complaint:
    """Something that is not as it should be.

    Attributes:
        kind: `unsorted`, `unconsolidated`, `rows`, `diffs`, `keys`, `times` or `stats`.
    """

    kind: str
    message: str


@dataclass(frozen=True)
class Edges:
    """The first and the last row of a part, as tuples that compare in the order of rows."""

    first: Comparable
    last: Comparable


class PartCheck:
    """Takes the rows of one part; `complaints` and `edges` are there once all were taken."""

    def __init__(self, part: Part, schema: Schema, domain: TimeDomain) -> None:
        self._part, self._schema, self._domain = part, schema, domain
        self._tally = Tally(schema.columns, domain)
        self._width = len(schema.columns) + len(domain.columns)
        self._before: npt.NDArray[np.int64] = np.zeros(len(part.time_counts) + 1, np.int64)
        self._first: pa.RecordBatch | None = None
        self._last: pa.RecordBatch | None = None
        self._unsorted = self._zeros = 0
        self._twice = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at the next rows, not empty, with the columns of `update_schema`."""
        self._tally.add(summary(batch, self._schema, self._domain))
        if self._first is None:
            self._first = _copied(batch, 0)
        order, starts = sorted_groups(batch, self._width)
        self._unsorted += int(np.count_nonzero(np.diff(order) < 0))
        self._twice += int(np.count_nonzero(~starts))
        self._zeros += int(np.count_nonzero(diffs(batch) == 0))
        if self._last is not None:
            before, after = self._tuple(self._last), row_tuple(batch, 0, self._width)
            self._unsorted += before > after
            self._twice += before == after
        self._last = _copied(batch, batch.num_rows - 1)
        if self._part.time_counts and self._domain.total_order:
            firsts = np.array([first for first, _ in self._part.time_counts], np.int64)
            found = np.searchsorted(firsts, batch.column(self._domain.columns[0]).to_numpy(), side="right")
            self._before += np.bincount(found, minlength=len(firsts) + 1)

    @property
    def edges(self) -> Edges | None:
        """Of the rows that were taken; None if there were none."""
        if self._first is None or self._last is None:
            return None
        return Edges(self._tuple(self._first), self._tuple(self._last))

    def _tuple(self, row: pa.RecordBatch) -> Comparable:
        return row_tuple(row, 0, self._width)

    def complaints(self) -> Iterator[Complaint]:
        """What is not true of the rows that were taken."""
        part = self._part
        if self._first is None or self._last is None:
            yield Complaint("rows", f"it holds no rows instead of {part.rows}")
            return
        if self._unsorted:
            yield Complaint("unsorted", f"its rows are out of order at {self._unsorted} places or more")
        if self._twice or self._zeros:
            yield Complaint(
                "unconsolidated", f"{self._twice} rows are there twice and {self._zeros} have a diff of zero"
            )
        keys = [encode_key(row, self._schema)[0].as_py() for row in (self._first, self._last)]
        found = self._tally.part(
            part.name, b"", part.schema_id, (keys[0], keys[1]), _EXACT, checksum_=whole_checksum(part)
        )
        told = ("rows",) if part.row_hash is None else ("rows", "row_hash")
        yield from _differences("rows", part, found, told)
        yield from _differences("diffs", part, found, ("negative_rows", "diff_sum"))
        yield from _differences("times", part, found, ("time_lower", "time_upper"))
        if part.key_lower > keys[0] or (part.key_upper is not None and part.key_upper < keys[1]):
            yield Complaint("keys", f"its keys {keys[0].hex()} to {keys[1].hex()} lie past its bounds")
        yield from self._time_counts(found)
        for id_, said in sorted(part.stats.items()):
            true = found.stats.get(id_)
            if true is None:
                yield Complaint("stats", f"column {id_} has statistics, and is not in its schema")
            elif not _holds(said, true):
                yield Complaint("stats", f"the statistics of column {id_} do not hold for all of its rows")

    def _time_counts(self, found: Part) -> Iterator[Complaint]:
        """The pairs up to any time count all rows up to it; the first one is exact, and so is their sum."""
        said = self._part.time_counts
        if not said:
            if self._domain.total_order:
                yield Complaint("times", "its times are not counted")
            return
        counts = np.array([count for _, count in said])
        firsts = [first for first, _ in said]
        # Item i + 1 of `_before` counts the rows from the first time of pair i up to that of the next.
        enough = np.cumsum(counts) >= np.cumsum(self._before[1:])
        exact = said[0] == found.time_counts[0] and self._before[0] == 0 and int(counts.sum()) == found.rows
        if firsts != sorted(firsts) or not exact or not enough.all():
            yield Complaint("times", f"its times are not counted by {said}")


def _differences(kind: str, said: Part, found: Part, fields: Iterable[str]) -> Iterator[Complaint]:
    for name in fields:
        if getattr(said, name) != getattr(found, name):
            yield Complaint(kind, f"{name} is {getattr(found, name)} instead of {getattr(said, name)}")


def _holds(said: ColumnStats, true: ColumnStats) -> bool:
    if said.null_count != true.null_count or (said.lower is None) != (true.lower is None):
        return False
    if said.lower is None or true.lower is None:
        return True
    above = said.upper is None or (true.upper is not None and said.upper >= true.upper)
    return said.lower <= true.lower and above


def _copied(batch: pa.RecordBatch, row: int) -> pa.RecordBatch:
    # A slice would keep the whole batch.
    return batch.take(pa.array([row]))
