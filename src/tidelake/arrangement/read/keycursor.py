"""The position of a cursor among keys, and its moves.

Owns the position and the window of rows around it; must not know values. Invariant: the position is a key of
the current window, or between keys; then the edges of the keys above and below it are known.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tidelake.arrangement.batch.batch import IndexBatch
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.batch.search import Bound, position
from tidelake.arrangement.read.view import UpdatesView
from tidelake.arrangement.read.windows import ALL, BUDGET_BYTES_MAX, BUDGET_BYTES_MIN, Edge, Window, Windows
from tidelake.data.ingest.keyvalues import key_values
from tidelake.errors import UsageError

Values = tuple[object, ...]
Predicate = Callable[[Values], bool]


class KeyCursor:
    """Moves over keys; `tidelake.arrangement.read.cursor` adds the values."""

    def __init__(self, batches: Sequence[IndexBatch], view: UpdatesView) -> None:
        self._batches, self._view, self._layout = batches, view, view.layout
        self._key_columns = list(range(view.layout.key_width))
        self._windows = Windows(batches, view)
        self._window = self._windows.only(Bound(b""), [])
        self._key: int | None = None
        self._above: Edge | None = None
        self._below: Edge | None = None
        self.rewind()

    @property
    def key_valid(self) -> bool:
        """Whether the cursor is at a key."""
        return self._key is not None

    @property
    def key(self) -> Values:
        """The values of the key columns.

        Raises:
            UsageError: the cursor is at no key.
        """
        if self._key is None:
            raise UsageError("the cursor is at no key: check key_valid first")
        return values_at(self._window.rows, self._rows_of_key()[0], self._key_columns)

    def rewind(self) -> None:
        """Move to the first key."""
        self._asked: bytes | None = None
        self._restart()
        self._up(ALL)

    def fast_forward(self) -> None:
        """Move to the last key."""
        self._asked = None
        self._restart()
        self._down(ALL)

    def step_key(self) -> None:
        """Move to the next key, or after the last; no effect there."""
        if self._key is None:
            if self._above is not None:
                self._up(self._above)
        elif self._key + 1 < self._window.key_count:
            self._stand(self._window, self._key + 1)
        else:
            self._leave_up()

    def step_key_reverse(self) -> None:
        """Move to the previous key, or before the first; no effect there."""
        if self._key is None:
            if self._below is not None:
                self._down(self._below)
        elif self._key > 0:
            self._stand(self._window, self._key - 1)
        else:
            self._leave_down()

    def seek_key(self, key: object) -> None:
        """Move forward to the first key that is not less than `key`; never backward.

        `key` is a value, a tuple of several, or a dict by name. Reads a block or two of each batch.

        Raises:
            InvalidUpdates: it does not fit the key columns.
        """
        self._seek(self._bound_of(self._keys_of(key)))

    def seek_key_reverse(self, key: object) -> None:
        """Move backward to the last key that is not greater than `key`; never forward.

        Raises:
            InvalidUpdates: it does not fit the key columns.
        """
        self._seek_reverse(self._bound_of(self._keys_of(key)))

    def seek_key_exact(self, key: object) -> bool:
        """Move to a key if it has rows, else between the keys around it; returns whether it has rows.

        Key range and filter of each batch are checked before any block is read. Pass `Keys` with one key to
        several cursors, and its hash is computed once.

        Raises:
            UsageError: the key is less than one sought since `rewind`, or `Keys` does not have just one key.
            InvalidUpdates: it does not fit the key columns.
        """
        keys = key if isinstance(key, Keys) else self._keys_of(key)
        if len(keys) != 1:
            raise UsageError(f"{len(keys)} keys are given: seek one at a time, or use `lookup`")
        bound = self._bound_of(keys)
        if self._asked is not None and bound.key < self._asked:
            raise UsageError(f"key {key} is less than one sought before: seek ascending keys, or rewind")
        self._asked = bound.key
        self._restart()
        window = self._windows.only(bound, [batch.lookup(keys) for batch in self._batches])
        if window.key_count:
            self._stand(window, 0)
        else:
            self._stand_nowhere(Edge(bound), Edge(bound))
        return self.key_valid

    def seek_key_with(self, predicate: Predicate) -> None:
        """Move forward to the first key that satisfies a predicate.

        The predicate must be monotonic: once true, it stays true for all greater keys. It is called for a
        few keys, also for keys without rows.
        """
        if self.key_valid and predicate(self.key):
            return
        edge = self._window.edge_at(self._key) if self._key is not None else self._above
        if edge is None:
            return
        found = self._turns(_first_with, predicate)
        if not found:
            self._stand_nowhere(below=ALL)
            return
        least = min(found, key=lambda bound: bound.key)
        self._restart()
        self._up(edge if edge.bound is not None and edge.bound.key >= least.key else Edge(least, inside=True))

    def seek_key_with_reverse(self, predicate: Predicate) -> None:
        """Move backward to the last key that satisfies a predicate.

        The predicate must be monotonic: once true, it stays true for all smaller keys.
        """
        if self.key_valid and predicate(self.key):
            return
        edge = self._window.edge_at(self._key) if self._key is not None else self._below
        if edge is None:
            return
        found = self._turns(_last_with, predicate)
        if not found:
            self._stand_nowhere(above=ALL)
            return
        greatest = max(found, key=lambda bound: bound.key)
        self._restart()
        passed = edge.bound is not None and edge.bound.key <= greatest.key
        self._down(edge if passed else Edge(greatest, inside=True))

    def position(self) -> tuple[int, int]:
        """The number of updates in all batches, and about how many of them are before the current key."""
        total = sum(batch.rows for batch in self._batches)
        if self._key is None and (self._above is None or self._above.bound is None):
            return total, total if self._above is None else 0
        edge = self._window.edge_at(self._key) if self._key is not None else self._above
        key = edge.bound.key if edge is not None and edge.bound is not None else b""
        return total, sum(int(batch.block_starts[batch.find_block(key)]) for batch in self._batches)

    def _arrived(self) -> None:
        """Called after each move."""

    def _rows_of_key(self) -> tuple[int, int]:
        """The rows [first, end) of the window with the current key; none if there is no key."""
        if self._key is None:
            return 0, 0
        return int(self._window.keys[self._key]), int(self._window.keys[self._key + 1])

    def _turns(
        self, find: Callable[[IndexBatch, Predicate, Layout], Bound | None], predicate: Predicate
    ) -> list[Bound]:
        """The bounds that `find` returns for the batches, without None."""
        each = (find(batch, predicate, self._layout) for batch in self._batches)
        return [bound for bound in each if bound is not None]

    def _keys_of(self, key: object) -> Keys:
        names = [column.name for column in self._layout.schema.key]
        return Keys.of_values([key_values(key, names)], self._layout)

    def _bound_of(self, keys: Keys) -> Bound:
        return Bound(keys.first, None if self._layout.number is not None else keys.tuple(0))

    def _seek(self, target: Bound) -> None:
        edge = Edge(target, inside=True)
        if self._key is None:
            if self._above is not None:
                passed = self._above.bound is not None and self._above.bound.key >= target.key
                self._restart()
                self._up(self._above if passed else edge)
            return
        window, last = self._window, self._window.upper.bound
        if last is not None and last.key < target.key:
            self._restart()
            self._up(edge)
            return
        row = position(window.rows, target, self._layout, after=False)
        place = max(self._key, int(np.searchsorted(window.keys[:-1], row)))
        if place < window.key_count:
            if place != self._key:
                self._stand(window, place)
        else:
            self._leave_up()

    def _seek_reverse(self, target: Bound) -> None:
        edge = Edge(target, inside=True)
        if self._key is None:
            if self._below is not None:
                passed = self._below.bound is not None and self._below.bound.key <= target.key
                self._restart()
                self._down(self._below if passed else edge)
            return
        window, first = self._window, self._window.lower.bound
        if first is not None and first.key > target.key:
            self._restart()
            self._down(edge)
            return
        row = position(window.rows, target, self._layout, after=True)
        place = min(self._key, int(np.searchsorted(window.keys[:-1], row)) - 1)
        if place >= 0:
            if place != self._key:
                self._stand(window, place)
        else:
            self._leave_down()

    def _leave_up(self) -> None:
        if self._window.upper.bound is None:
            self._stand_nowhere(below=ALL)
        else:
            self._up(self._window.upper.adjacent)

    def _leave_down(self) -> None:
        if self._window.lower.bound is None:
            self._stand_nowhere(above=ALL)
        else:
            self._down(self._window.lower.adjacent)

    def _up(self, lower: Edge) -> None:
        """Move to the first key above an edge."""
        while True:
            window = self._windows.after(lower, self._grown())
            if window.key_count:
                return self._stand(window, 0)
            if window.upper.bound is None:
                return self._stand_nowhere(below=ALL)
            lower = window.upper.adjacent

    def _down(self, upper: Edge) -> None:
        """Move to the last key below an edge."""
        while True:
            window = self._windows.before(upper, self._grown())
            if window.key_count:
                return self._stand(window, window.key_count - 1)
            if window.lower.bound is None:
                return self._stand_nowhere(above=ALL)
            upper = window.lower.adjacent

    def _stand(self, window: Window, key: int) -> None:
        self._window, self._key = window, key
        self._arrived()

    def _stand_nowhere(self, above: Edge | None = None, below: Edge | None = None) -> None:
        """Be at no key: keys above begin at edge `above`, keys below end at `below`; None: there are none."""
        self._key = None
        self._above, self._below = above, below
        self._arrived()

    def _restart(self) -> None:
        """Begin with small windows: a seek needs few keys, repeated steps need many."""
        self._budget = BUDGET_BYTES_MIN

    def _grown(self) -> int:
        budget = self._budget
        self._budget = min(2 * budget, BUDGET_BYTES_MAX)
        return budget


def values_at(rows: pa.RecordBatch, row: int, columns: Sequence[int]) -> Values:
    """Some columns of a row as Python values."""
    return tuple(rows.column(i)[row].as_py() for i in columns)


def _first_with(batch: IndexBatch, predicate: Predicate, layout: Layout) -> Bound | None:
    """The first key that satisfies a predicate that is false, then true; None if no key satisfies it.

    Bisects over blocks first, reading one row of each block that it visits, then over the rows of one block.
    """
    columns = range(layout.key_width)

    def holds_at_end(i: int) -> bool:
        block = batch.block(i)
        return predicate(values_at(block, block.num_rows - 1, columns))

    found = bisect_left(range(batch.blocks), True, key=holds_at_end)
    if found == batch.blocks:
        return None
    block = batch.block(found)
    row = bisect_left(range(block.num_rows), True, key=lambda i: predicate(values_at(block, i, columns)))
    return Bound.at(block, row, layout)


def _last_with(batch: IndexBatch, predicate: Predicate, layout: Layout) -> Bound | None:
    """The last key that satisfies a predicate that is true, then false; None if no key satisfies it."""
    columns = range(layout.key_width)

    def fails_at(rows: pa.RecordBatch, row: int) -> bool:
        return not predicate(values_at(rows, row, columns))

    found = bisect_left(range(batch.blocks), True, key=lambda i: fails_at(batch.block(i), 0)) - 1
    if found < 0:
        return None
    block = batch.block(found)
    row = bisect_left(range(block.num_rows), True, key=lambda i: fails_at(block, i)) - 1
    return Bound.at(block, row, layout)
