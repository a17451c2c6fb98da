"""Windows: the contents of a range of consecutive keys, summed over several batches.

Owns how a reader moves over the keys of all batches, in both directions; must not know cursors. Invariant: a
window has all rows of the keys that it covers, and consecutive windows cover all keys.

A window takes as many blocks as fill a budget, from all batches, in the order of their last keys. It ends at
the last key of the last of these blocks; up to there, each batch may add one more block. A key whose rows
exceed the budget is read whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import islice

import numpy as np
import pyarrow as pa

from tidelake.arrangement.batch.batch import IndexBatch, Ints
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.batch.search import Bound, position
from tidelake.arrangement.read.view import UpdatesView
from tidelake.data.kernel.order import group_starts
from tidelake.data.kernel.sums import sum_batch

BUDGET_BYTES_MIN = 256 * 1024
BUDGET_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True)
class Edge:
    """Where a window begins or ends: at a key, or at the end of all keys.

    Attributes:
        bound: the key; None for the end of all keys.
        inside: whether that key itself is in the window.
    """

    bound: Bound | None = None
    inside: bool = False

    @property
    def adjacent(self) -> "Edge":
        """The same edge for the adjacent window."""
        return Edge(self.bound, inside=not self.inside)


# The edge of a range without bound.
ALL = Edge()


@dataclass(frozen=True)
class Window:
    """The contents of consecutive keys.

    Attributes:
        rows: key and value columns and `_diff`, sorted; may be empty.
    """

    rows: pa.RecordBatch
    updates: Sequence[pa.RecordBatch]
    lower: Edge
    upper: Edge
    layout: Layout

    @cached_property
    def keys(self) -> Ints:
        """The first row of each key, then the number of rows."""
        starts = np.flatnonzero(group_starts(self.rows, self.layout.key_width))
        return np.append(starts, self.rows.num_rows)

    @property
    def key_count(self) -> int:
        """The number of keys."""
        return len(self.keys) - 1

    def edge_at(self, key: int) -> Edge:
        """The edge at one of the keys, without that key."""
        return Edge(Bound.at(self.rows, int(self.keys[key]), self.layout))

    @cached_property
    def sorted_updates(self) -> pa.RecordBatch:
        """The updates, sorted and consolidated."""
        pieces = [piece for piece in self.updates if piece.num_rows]
        return sum_batch(pa.concat_batches(pieces)) if pieces else self.layout.empty


class Windows:
    """Reads windows of batches."""

    def __init__(self, batches: Sequence[IndexBatch], view: UpdatesView) -> None:
        self._batches, self.view = batches, view
        self.layout = view.layout

    def after(self, lower: Edge, budget_bytes: int, upper: Edge = ALL) -> Window:
        """The first window between two edges."""
        key = lower.bound.key if lower.bound is not None else b""
        found = [(batch, batch.find_block(key, after=not lower.inside)) for batch in self._batches]
        live = [(batch, block) for batch, block in found if block < batch.blocks]
        count = _count(live, budget_bytes)
        if sum(batch.blocks - block for batch, block in live) > count:
            ends = merge(*(_lasts(batch, block) for batch, block in live), key=_key)
            last, batch, block = next(islice(ends, count - 1, None))
            if upper.bound is None or last < upper.bound.key:
                rows = batch.block(block)
                upper = Edge(Bound.at(rows, rows.num_rows - 1, self.layout), inside=True)
        return self._window(lower, upper)

    def before(self, upper: Edge, budget_bytes: int, lower: Edge = ALL) -> Window:
        """The last window between two edges; arguments as `after`, in the other direction."""
        found = [(batch, self._last_block(batch, upper)) for batch in self._batches]
        live = [(batch, block) for batch, block in found if block >= 0]
        count = _count(live, budget_bytes)
        if sum(block + 1 for _, block in live) > count:
            begins = merge(*(_firsts(batch, block) for batch, block in live), key=_key, reverse=True)
            first, batch, block = next(islice(begins, count - 1, None))
            if lower.bound is None or first > lower.bound.key:
                lower = Edge(Bound.at(batch.block(block), 0, self.layout), inside=True)
        return self._window(lower, upper)

    def upwards(self, lower: Edge = ALL, upper: Edge = ALL) -> Iterator[Window]:
        """The windows between two edges, ascending; they begin small, for readers that need few rows."""
        budget = BUDGET_BYTES_MIN
        while True:
            window = self.after(lower, budget, upper)
            yield window
            if window.upper is upper:
                return
            lower, budget = window.upper.adjacent, min(2 * budget, BUDGET_BYTES_MAX)

    def downwards(self, lower: Edge = ALL, upper: Edge = ALL) -> Iterator[Window]:
        """The windows between two edges, descending."""
        budget = BUDGET_BYTES_MIN
        while True:
            window = self.before(upper, budget, lower)
            yield window
            if window.lower is lower:
                return
            upper, budget = window.lower.adjacent, min(2 * budget, BUDGET_BYTES_MAX)

    def only(self, bound: Bound, pieces: Iterable[pa.RecordBatch]) -> Window:
        """The window of one key, given its updates."""
        edge = Edge(bound, inside=True)
        rows, updates = self.view.netted([piece for piece in pieces if piece.num_rows])
        return Window(rows, updates, edge, edge, self.layout)

    def _window(self, lower: Edge, upper: Edge) -> Window:
        pieces = [piece for batch in self._batches for piece in self._between(batch, lower, upper)]
        rows, updates = self.view.netted(pieces)
        return Window(rows, updates, lower, upper, self.layout)

    def _between(self, batch: IndexBatch, lower: Edge, upper: Edge) -> Iterable[pa.RecordBatch]:
        """The rows of a batch between two edges: a list of one piece, or empty."""
        first = 0
        if lower.bound is not None:
            first = batch.find_block(lower.bound.key, after=not lower.inside)
        end = self._last_block(batch, upper) + 1
        if first >= end:
            return []
        blocks = [batch.block(i) for i in range(first, end)]
        if upper.bound is not None:
            count = position(blocks[-1], upper.bound, self.layout, after=upper.inside)
            blocks[-1] = blocks[-1].slice(0, count)
        if lower.bound is not None:
            start = position(blocks[0], lower.bound, self.layout, after=not lower.inside)
            blocks[0] = blocks[0].slice(start)
        rows = [block for block in blocks if block.num_rows]
        return [pa.concat_batches(rows) if len(rows) > 1 else rows[0]] if rows else []

    def _last_block(self, batch: IndexBatch, upper: Edge) -> int:
        """The last block with a key below an upper edge; -1 if there is none."""
        if upper.bound is None:
            return batch.blocks - 1
        key = upper.bound.key
        block = batch.find_block(key, after=upper.inside)
        if block == batch.blocks:
            return block - 1
        first = batch.first_key(block)
        return block if first < key or (upper.inside and first == key) else block - 1


def _count(live: list[tuple[IndexBatch, int]], budget_bytes: int) -> int:
    """How many blocks fit into a budget, by the average size of a block; at least one."""
    size = sum(batch.size_bytes for batch, _ in live)
    return max(1, budget_bytes * sum(batch.blocks for batch, _ in live) // max(1, size))


def _lasts(batch: IndexBatch, block: int) -> Iterator[tuple[bytes, IndexBatch, int]]:
    """The last key of each block from `block` on."""
    return ((batch.last_key(i), batch, i) for i in range(block, batch.blocks))


def _firsts(batch: IndexBatch, block: int) -> Iterator[tuple[bytes, IndexBatch, int]]:
    """The first key of each block from `block` down to the first."""
    return ((batch.first_key(i), batch, i) for i in range(block, -1, -1))


def _key(place: tuple[bytes, IndexBatch, int]) -> bytes:
    return place[0]
