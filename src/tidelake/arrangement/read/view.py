"""Sums the updates of some keys to their contents as of a time, under the filters that are set.

Owns the sum; must not know batches. Invariant: the result is the exact multiset of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.read.retention import RetentionFilters
from tidelake.data.kernel.select import select
from tidelake.data.kernel.sums import diffs, sum_batch, sum_sorted
from tidelake.errors import HistoryCompacted
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.model.time import Time, TimeDomain


def check_kept(as_of: Time, since: Frontier, domain: TimeDomain) -> None:
    """Refuse a time before the `since` of an arrangement."""
    if not (since.closed or since.less_equal(as_of)):
        remedy = (
            "that is the since of the arrangement, before which times are folded: read as of a time from "
            "there on, or use arrange(as_of=...) to keep history"
        )
        raise HistoryCompacted(as_of, since, remedy).of(domain.unit)


@dataclass(frozen=True)
class UpdatesView:
    """Time and filters of a read.

    Attributes:
        as_of: the time of the read; None for the sum of all updates.
    """

    layout: Layout
    retention: RetentionFilters
    since: Frontier
    as_of: Time | None

    def netted(self, pieces: Sequence[pa.RecordBatch]) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        """The contents of some keys, sorted, each row once; and the updates that were summed."""
        kept = list(pieces) if self.retention.empty else self._retained(pieces)
        if self.as_of is not None:
            kept = [select(piece, self._until, self.layout.domain) for piece in kept]
        width = self.layout.row_width
        columns = [*range(width), self.layout.width]
        contents = [piece.select(columns) for piece in kept if piece.num_rows]
        if not contents:
            return _no_contents(self.layout), kept
        if len(contents) == 1:
            found = contents[0] if contents[0].num_rows == 1 else sum_sorted(contents[0])
        else:
            found = sum_batch(pa.concat_batches(contents))
        if self.retention.whole_keys and found.num_rows:
            found = found.filter(pa.array(diffs(found) > 0))
        return found, kept

    @cached_property
    def _until(self) -> Updates:
        """Selects updates at times at or before `as_of`."""
        domain = self.layout.domain
        last = self.as_of if self.as_of is not None else domain.minimum
        return Updates(Frontier.of(domain.minimum), Frontier.past(last))

    def _retained(self, pieces: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        if len(pieces) > 1 and self.retention.whole_keys:
            pieces = [sum_batch(pa.concat_batches(pieces))]
        return [self.retention.visible(piece, self.since) for piece in pieces]


def _no_contents(layout: Layout) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], layout.contents)
