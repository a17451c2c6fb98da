"""One merge: combines several batches into one, in steps of a chosen size, in bounded memory.

Owns how rows get from the inputs to the output; must not know levels, locks or threads. Invariant: the
output is the sum of the inputs, with times before since folded into it and without the rows that
filters drop; inputs are not changed, and a merge that is given up leaves nothing behind.

A merge holds at most one chunk, beside a block of each input and what the builder keeps. Under an N-filter it
needs all rows of a key at once, so a key with more rows than a chunk is held whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelake.arrangement.batch.batch import Builder, IndexBatch
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.read.retention import RetentionFilters
from tidelake.data.kernel.merge import merge
from tidelake.data.kernel.order import group_starts
from tidelake.model.frontier import Frontier
from tidelake.model.query import Fold


@dataclass(frozen=True)
class MergeRules:
    """`since` and the filters that a merge or a read applies to rows."""

    layout: Layout
    since: Frontier
    retention: RetentionFilters

    def same(self, other: "MergeRules") -> bool:
        """Whether both rules make the same batch of the same inputs."""
        return self.since == other.since and self.retention.version == other.retention.version


class Merge:
    """A merge under way; for one thread at a time.

    Attributes:
        rules: `since` and the filters when the merge began.
        rows_read: rows of all inputs that were read so far.
    """

    def __init__(
        self,
        inputs: Sequence[IndexBatch],
        others: Sequence[IndexBatch],
        rules: MergeRules,
        build: Callable[[], Builder],
        chunk: tuple[int, int],
    ) -> None:
        """Prepare a merge; nothing is read or written before its first step."""
        self.inputs = tuple(inputs)
        self.rules = rules
        self.rows_read = self.rows_written = 0
        self._others = tuple(others)
        self._build = build
        self._builder: Builder | None = None
        self._chunk = chunk
        self._source: Iterator[pa.RecordBatch] | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the inputs."""
        return sum(batch.rows for batch in self.inputs)

    def step(self, rows: int) -> bool:
        """Read at least this many rows, in whole chunks; returns whether the merge is complete."""
        if self._builder is None or self._source is None:
            self._builder, self._source = self._build(), self._merged()
        until = self.rows_read + rows
        while self.rows_read < until:
            chunk = next(self._source, None)
            if chunk is None:
                return True
            self.rows_written += chunk.num_rows
            self._builder.add(chunk)
        return False

    def finish(self) -> IndexBatch | None:
        """The output, after a step returned True; None if no row is left."""
        self._source = None
        return None if self._builder is None else self._builder.finish()

    def abandon(self) -> None:
        """Remove what was written. May be repeated."""
        self._source = None
        if self._builder is not None:
            self._builder.abandon()

    def _merged(self) -> Iterator[pa.RecordBatch]:
        layout, retention = self.rules.layout, self.rules.retention
        rows, size = self._chunk
        runs = [self._read(batch) for batch in self.inputs]
        query = Fold(self.rules.since)
        merged = merge(runs, layout.schema, layout.domain, query, rows, chunk_bytes=size)
        if retention.empty:
            return merged
        if not retention.whole_keys:
            return map(retention.satisfying, merged)
        return map(self._ranked, whole_keys(merged, layout.key_width))

    def _read(self, batch: IndexBatch) -> Iterator[pa.RecordBatch]:
        for rows in batch.scan():
            self.rows_read += rows.num_rows
            yield rows

    def _ranked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        rules = self.rules
        keys = Keys.sorted_from(rows, rules.layout)
        beside = [batch.lookup(keys) for batch in self._others]
        return rules.retention.kept_by_merge(rows, beside, rules.since)


def whole_keys(batches: Iterator[pa.RecordBatch], width: int) -> Iterator[pa.RecordBatch]:
    """The same rows, cut into batches so that no key spans two of them."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        joined = pa.concat_batches([held[-1].slice(held[-1].num_rows - 1), batch]) if held else batch
        # Where keys begin, but for the first one. Of the held rows only the last one is compared again.
        borders = np.flatnonzero(group_starts(joined, width))[1:]
        if not len(borders):
            held.append(batch)
            continue
        cut = int(borders[-1]) - (1 if held else 0)
        yield pa.concat_batches([*held, batch.slice(0, cut)])
        held = [batch.slice(cut)]
    if held:
        yield pa.concat_batches(held)
