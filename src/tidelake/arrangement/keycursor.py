"""The keys of a cursor: where it stands among them, and how it moves.

Owns the place and the windows around it; must not know values. Invariant: the place is a key of the window
that is held, or one of no key with the edges between which it lies.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tidelake.arrangement.batch import Batch
from tidelake.arrangement.boundary import Predicate, Values, first_with, last_with, values_at
from tidelake.arrangement.keys import Keys
from tidelake.arrangement.layout import Layout
from tidelake.arrangement.search import Bound, position
from tidelake.arrangement.view import View
from tidelake.arrangement.windows import ALL, BUDGET_BYTES_MAX, BUDGET_BYTES_MIN, Edge, Window, Windows
from tidelake.errors import UsageError


class KeyCursor:
    """See `tidelake.arrangement.cursor`."""

    def __init__(self, batches: Sequence[Batch], view: View) -> None:
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
        """Whether the cursor stands at a key."""
        return self._key is not None

    @property
    def key(self) -> Values:
        """The values of the key columns.

        Raises:
            UsageError: there is no key here.
        """
        if self._key is None:
            raise UsageError("the cursor is at no key: look at key_valid first")
        return values_at(self._window.rows, self._rows_of_key()[0], self._key_columns)

    def rewind(self) -> None:
        """To the first key."""
        self._asked: bytes | None = None
        self._restart()
        self._up(ALL)

    def fast_forward(self) -> None:
        """To the last key."""
        self._asked = None
        self._restart()
        self._down(ALL)

    def step_key(self) -> None:
        """To the next key, or behind the last; no effect there."""
        if self._key is None:
            if self._above is not None:
                self._up(self._above)
        elif self._key + 1 < self._window.key_count:
            self._stand(self._window, self._key + 1)
        else:
            self._leave_up()

    def step_key_reverse(self) -> None:
        """To the key before, or before the first; no effect there."""
        if self._key is None:
            if self._below is not None:
                self._down(self._below)
        elif self._key > 0:
            self._stand(self._window, self._key - 1)
        else:
            self._leave_down()

    def seek_key(self, key: Values) -> None:
        """To the first key that is not less; never backwards. From each batch a block or two are read.

        Raises:
            InvalidUpdates: it does not fit the key columns.
        """
        self._seek(self._bound_of(self._keys_of(key)))

    def seek_key_reverse(self, key: Values) -> None:
        """To the last key that is not greater; never forwards.

        Raises:
            InvalidUpdates: it does not fit the key columns.
        """
        self._seek_reverse(self._bound_of(self._keys_of(key)))

    def seek_key_exact(self, key: Values | Keys) -> bool:
        """To a key if it has rows, else to no key at its place; whether it has.

        Range and filter of each batch are asked before any block is read. `Keys` of one key may be given
        to several cursors: its hash is computed once.

        Raises:
            UsageError: the key is less than one that was asked for since `rewind`, or `Keys` has not one key.
            InvalidUpdates: it does not fit the key columns.
        """
        keys = key if isinstance(key, Keys) else self._keys_of(key)
        if len(keys) != 1:
            raise UsageError(f"{len(keys)} keys are given: seek one at a time, or fetch them")
        bound = self._bound_of(keys)
        if self._asked is not None and bound.key < self._asked:
            raise UsageError(f"key {key} is less than one that was sought before: ascend, or rewind first")
        self._asked = bound.key
        self._restart()
        window = self._windows.only(bound, [batch.fetch(keys) for batch in self._batches])
        if window.key_count:
            self._stand(window, 0)
        else:
            self._stand_nowhere(Edge(bound), Edge(bound))
        return self.key_valid

    def seek_key_with(self, predicate: Predicate) -> None:
        """To the first key from here on of which the predicate is true; of those after it it must be too.

        It is asked of some keys, some of which may have no rows.
        """
        if self.key_valid and predicate(self.key):
            return
        edge = self._window.edge_at(self._key) if self._key is not None else self._above
        if edge is None:
            return
        found = self._turns(first_with, predicate)
        if not found:
            self._stand_nowhere(below=ALL)
            return
        least = min(found, key=lambda bound: bound.key)
        self._restart()
        self._up(edge if edge.bound is not None and edge.bound.key >= least.key else Edge(least, inside=True))

    def seek_key_with_reverse(self, predicate: Predicate) -> None:
        """To the last key up to here of which the predicate is true; of those before it it must be too."""
        if self.key_valid and predicate(self.key):
            return
        edge = self._window.edge_at(self._key) if self._key is not None else self._below
        if edge is None:
            return
        found = self._turns(last_with, predicate)
        if not found:
            self._stand_nowhere(above=ALL)
            return
        greatest = max(found, key=lambda bound: bound.key)
        self._restart()
        passed = edge.bound is not None and edge.bound.key <= greatest.key
        self._down(edge if passed else Edge(greatest, inside=True))

    def position(self) -> tuple[int, int]:
        """How many updates there are, and about how many of them are before this key."""
        total = sum(batch.rows for batch in self._batches)
        if self._key is None and (self._above is None or self._above.bound is None):
            return total, total if self._above is None else 0
        edge = self._window.edge_at(self._key) if self._key is not None else self._above
        key = edge.bound.key if edge is not None and edge.bound is not None else b""
        return total, sum(int(batch.block_starts[batch.find_block(key)]) for batch in self._batches)

    def _arrived(self) -> None:
        """Called whenever the place has changed."""

    def _rows_of_key(self) -> tuple[int, int]:
        """The rows [first, end) of the window that are the key's; none if there is no key."""
        if self._key is None:
            return 0, 0
        return int(self._window.keys[self._key]), int(self._window.keys[self._key + 1])

    def _turns(
        self, find: Callable[[Batch, Predicate, Layout], Bound | None], predicate: Predicate
    ) -> list[Bound]:
        """What `find` finds in each batch."""
        each = (find(batch, predicate, self._layout) for batch in self._batches)
        return [bound for bound in each if bound is not None]

    def _keys_of(self, key: Values) -> Keys:
        return Keys.of_values([key], self._layout)

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
            self._up(self._window.upper.beyond)

    def _leave_down(self) -> None:
        if self._window.lower.bound is None:
            self._stand_nowhere(above=ALL)
        else:
            self._down(self._window.lower.beyond)

    def _up(self, lower: Edge) -> None:
        """To the first key from an edge on."""
        while True:
            window = self._windows.after(lower, self._grown())
            if window.key_count:
                return self._stand(window, 0)
            if window.upper.bound is None:
                return self._stand_nowhere(below=ALL)
            lower = window.upper.beyond

    def _down(self, upper: Edge) -> None:
        """To the last key up to an edge."""
        while True:
            window = self._windows.before(upper, self._grown())
            if window.key_count:
                return self._stand(window, window.key_count - 1)
            if window.lower.bound is None:
                return self._stand_nowhere(above=ALL)
            upper = window.lower.beyond

    def _stand(self, window: Window, key: int) -> None:
        self._window, self._key = window, key
        self._arrived()

    def _stand_nowhere(self, above: Edge | None = None, below: Edge | None = None) -> None:
        """At no key: keys above are from one edge on, those below up to the other; None: there are none."""
        self._key = None
        self._above, self._below = above, below
        self._arrived()

    def _restart(self) -> None:
        """Begin with small windows: who seeks needs few keys, who steps on and on needs many."""
        self._budget = BUDGET_BYTES_MIN

    def _grown(self) -> int:
        budget = self._budget
        self._budget = min(2 * budget, BUDGET_BYTES_MAX)
        return budget
