"""A cursor over keys, and over the values of each, forward and backward.

Owns the moves and what is read at a place; `places` owns where a key is found. Must not know how batches
are kept. Whole windows of keys are read at once; in Python only the key and the value stood at.

A cursor stands at a key that has rows, or at none: before the first, behind the last, or at the place of a
key that `seek_key_exact` did not find. A step from there leads to the next key on that side. Whenever it
comes to a key it stands at the key's first value. Values, which are tuples of the value columns, work
likewise: before the first and behind the last there is none. A row whose diffs sum to zero, as of the
cursor's time, is not there; nor is a key of such rows only.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import pyarrow as pa

from tidelake.arrangement.batch import Batch
from tidelake.arrangement.boundary import Predicate, Values, values_at
from tidelake.arrangement.keycursor import KeyCursor
from tidelake.arrangement.keys import row_batch
from tidelake.arrangement.view import View, check_kept
from tidelake.data import order
from tidelake.data.select import select
from tidelake.data.sums import sum_batch
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.query import Fold, Updates
from tidelake.model.time import Time


class Cursor(KeyCursor):
    """Keys as in `KeyCursor`, and the values of the key stood at. Not safe for several threads."""

    def __init__(self, batches: Sequence[Batch], view: View) -> None:
        """A cursor at the first key.

        Args:
            batches: held by whoever made the cursor, for as long as it is used.
            view: what is seen of them.
        """
        layout = view.layout
        self._value_columns = list(range(layout.key_width, layout.row_width))
        self._value = 0
        super().__init__(batches, view)

    @property
    def val_valid(self) -> bool:
        """Whether the cursor stands at a value."""
        first, end = self._rows_of_key()
        return first <= self._value < end

    @property
    def value(self) -> Values:
        """The value.

        Raises:
            UsageError: there is none here.
        """
        return values_at(self._window.rows, self._row(), self._value_columns)

    @property
    def weight(self) -> int:
        """How often this row is there; not zero, and negative if it was retracted more often than it came.

        Raises:
            UsageError: there is no value here.
        """
        return self._weight(self._row())

    def weight_checked(self) -> int:
        """The weight, if it is positive.

        Raises:
            UsageError: there is no value here.
            InvalidUpdates: the row was retracted more often than it came.
        """
        weight = self.weight
        if weight < 0:
            raise InvalidUpdates(f"the row of key {self.key} and value {self.value} is there {weight} times")
        return weight

    def step_value(self) -> None:
        """To the next value, or behind the last; no effect there."""
        self._value = min(self._value + 1, self._rows_of_key()[1])

    def step_value_reverse(self) -> None:
        """To the value before, or before the first; no effect there."""
        self._value = max(self._value - 1, self._rows_of_key()[0] - 1)

    def seek_value(self, value: Values) -> None:
        """To the first value that is not less; never backwards.

        Raises:
            InvalidUpdates: it does not fit the value columns.
        """
        self._value = max(self._value, self._place_of(value, inclusive=False))

    def seek_value_reverse(self, value: Values) -> None:
        """To the last value that is not greater; never forwards.

        Raises:
            InvalidUpdates: it does not fit the value columns.
        """
        self._value = min(self._value, self._place_of(value, inclusive=True) - 1)

    def seek_value_with(self, predicate: Predicate) -> None:
        """To the first value from here on of which `predicate` is true; of those after it it must be too."""
        first, end = self._rows_of_key()
        rows = range(max(self._value, first), end)
        count = bisect_left(rows, True, key=lambda row: predicate(self._value_at(row)))
        self._value = min(rows.start, end) + count

    def seek_value_with_reverse(self, predicate: Predicate) -> None:
        """To the last value up to here of which the predicate is true; of those before it it must be too."""
        first, end = self._rows_of_key()
        rows = range(first, min(self._value + 1, end))
        count = bisect_left(rows, True, key=lambda row: not predicate(self._value_at(row)))
        self._value = first + count - 1

    def rewind_values(self) -> None:
        """To the first value of this key."""
        self._value = self._rows_of_key()[0]

    def fast_forward_values(self) -> None:
        """To the last value of this key."""
        self._value = self._rows_of_key()[1] - 1

    def map_values(self, visit: Callable[[Values, int], None]) -> None:
        """Call `visit` with every value of this key, ascending, and its weight. Does not move."""
        for row in range(*self._rows_of_key()):
            visit(self._value_at(row), self._weight(row))

    def map_times(self, visit: Callable[[Time, int], None]) -> None:
        """Call `visit` with every time of this row, ascending, and the sum of its diffs. Does not move.

        Times before the frontier are shown as the frontier has them; those after the cursor's are left out.

        Raises:
            UsageError: there is no value here.
        """
        self._visit(self._updates(), visit)

    def map_times_through(self, as_of: Time, visit: Callable[[Time, int], None]) -> None:
        """`map_times` of the times at or before one.

        Raises:
            UsageError: there is no value here, or no such time.
            HistoryCompacted: `as_of` is before the frontier.
        """
        domain, frontier = self._layout.domain, self._view.frontier
        as_of = domain.check(as_of, "as_of")
        check_kept(as_of, frontier)
        until = Updates(Frontier.of(domain.minimum), Frontier.past(as_of))
        self._visit(select(self._updates(), until, domain), visit)

    def _arrived(self) -> None:
        self._value = self._rows_of_key()[0]

    def _row(self) -> int:
        if not self.val_valid:
            raise UsageError("the cursor is at no value: look at key_valid and val_valid first")
        return self._value

    def _weight(self, row: int) -> int:
        weight: int = self._window.rows.column(self._layout.row_width)[row].as_py()
        return weight

    def _value_at(self, row: int) -> Values:
        return values_at(self._window.rows, row, self._value_columns)

    def _place_of(self, value: Values, *, inclusive: bool) -> int:
        """The row before which the values of this key are less, or with `inclusive` not greater."""
        first, end = self._rows_of_key()
        if not self._value_columns:
            return end if inclusive else first
        bound = order.row_tuple(row_batch([value], self._layout.schema.value), 0, len(self._value_columns))
        values = self._window.rows.select(self._value_columns).slice(first, end - first)
        return first + order.search(values, bound, inclusive=inclusive)

    def _updates(self) -> pa.RecordBatch:
        """The updates of this row."""
        width = self._layout.row_width
        bound = order.row_tuple(self._window.rows, self._row(), width)
        found = self._window.sorted_updates
        first, end = (order.search(found, bound, inclusive=inclusive) for inclusive in (False, True))
        return found.slice(first, end - first)

    def _visit(self, updates: pa.RecordBatch, visit: Callable[[Time, int], None]) -> None:
        domain = self._layout.domain
        folded = sum_batch(select(updates, Fold(self._view.frontier), domain))[0]
        components = [folded.column(name).to_pylist() for name in domain.columns]
        weights = folded.column(self._layout.width).to_pylist()
        for *time, weight in zip(*components, weights, strict=True):
            visit(time[0] if domain.total_order else tuple(time), weight)
