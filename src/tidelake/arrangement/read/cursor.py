"""A cursor over keys, and over the values of each, forward and backward.

Owns the moves over the values of a key; `keycursor` owns the moves over keys. Must not know how batches are
kept. A cursor reads whole windows of keys; only the current key and value become Python objects.

A cursor is at a key that has rows, or at none: before the first, after the last, or where a key would be that
`seek_key_exact` did not find. A step from there goes to the next key on that side. A move to a key also moves
to its first value. Values are tuples of the value columns; there is none before the first or after the last.
A row whose diffs sum to zero as of the cursor's time is skipped, and so is a key that has only such rows.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import pyarrow as pa

from tidelake.arrangement.batch.batch import IndexBatch
from tidelake.arrangement.batch.keys import row_batch
from tidelake.arrangement.read.keycursor import KeyCursor, Predicate, Values, values_at
from tidelake.arrangement.read.view import UpdatesView, check_kept
from tidelake.data.ingest.keyvalues import key_values
from tidelake.data.kernel import order
from tidelake.data.kernel.select import select
from tidelake.data.kernel.sums import sum_batch
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.query import Fold, Updates
from tidelake.model.time import Time


class Cursor(KeyCursor):
    """A `KeyCursor` that also moves over the values of its key. Not thread-safe."""

    def __init__(self, batches: Sequence[IndexBatch], view: UpdatesView) -> None:
        """A cursor at the first key.

        Args:
            batches: the caller holds them for as long as the cursor is used.
            view: time and filters of the read.
        """
        layout = view.layout
        self._value_columns = list(range(layout.key_width, layout.row_width))
        self._value = 0
        super().__init__(batches, view)

    @property
    def val_valid(self) -> bool:
        """Whether the cursor is at a value."""
        first, end = self._rows_of_key()
        return first <= self._value < end

    @property
    def value(self) -> Values:
        """The current value.

        Raises:
            UsageError: the cursor is at no value.
        """
        return values_at(self._window.rows, self._row(), self._value_columns)

    @property
    def weight(self) -> int:
        """The multiplicity of the current row: not zero; negative if retractions outnumber insertions.

        Raises:
            UsageError: the cursor is at no value.
        """
        return self._weight(self._row())

    def weight_checked(self) -> int:
        """The weight, which must be positive.

        Raises:
            UsageError: the cursor is at no value.
            InvalidUpdates: the weight is negative.
        """
        weight = self.weight
        if weight < 0:
            raise InvalidUpdates(f"the row of key {self.key} and value {self.value} has weight {weight}")
        return weight

    def step_value(self) -> None:
        """Move to the next value, or after the last; no effect there."""
        self._value = min(self._value + 1, self._rows_of_key()[1])

    def step_value_reverse(self) -> None:
        """Move to the previous value, or before the first; no effect there."""
        self._value = max(self._value - 1, self._rows_of_key()[0] - 1)

    def seek_value(self, value: object) -> None:
        """Move forward to the first value that is not less than `value`; never backward.

        Raises:
            InvalidUpdates: it does not fit the value columns.
        """
        self._value = max(self._value, self._place_of(value, inclusive=False))

    def seek_value_reverse(self, value: object) -> None:
        """Move backward to the last value that is not greater than `value`; never forward.

        Raises:
            InvalidUpdates: it does not fit the value columns.
        """
        self._value = min(self._value, self._place_of(value, inclusive=True) - 1)

    def seek_value_with(self, predicate: Predicate) -> None:
        """Move forward to the first value that satisfies a predicate.

        The predicate must be monotonic: once true, it stays true for all greater values.
        """
        first, end = self._rows_of_key()
        rows = range(max(self._value, first), end)
        count = bisect_left(rows, True, key=lambda row: predicate(self._value_at(row)))
        self._value = min(rows.start, end) + count

    def seek_value_with_reverse(self, predicate: Predicate) -> None:
        """Move backward to the last value that satisfies a predicate.

        The predicate must be monotonic: once true, it stays true for all smaller values.
        """
        first, end = self._rows_of_key()
        rows = range(first, min(self._value + 1, end))
        count = bisect_left(rows, True, key=lambda row: not predicate(self._value_at(row)))
        self._value = first + count - 1

    def rewind_values(self) -> None:
        """Move to the first value of this key."""
        self._value = self._rows_of_key()[0]

    def fast_forward_values(self) -> None:
        """Move to the last value of this key."""
        self._value = self._rows_of_key()[1] - 1

    def map_values(self, visit: Callable[[Values, int], None]) -> None:
        """Call `visit` with each value of this key and its weight, in ascending order. Does not move."""
        for row in range(*self._rows_of_key()):
            visit(self._value_at(row), self._weight(row))

    def map_times(self, visit: Callable[[Time, int], None]) -> None:
        """Call `visit` with each time of this row and the sum of its diffs, ascending. Does not move.

        Times before `since` are folded to it; times after the cursor's own are left out.

        Raises:
            UsageError: the cursor is at no value.
        """
        self._visit(self._updates(), visit)

    def map_times_through(self, as_of: TimeLike, visit: Callable[[Time, int], None]) -> None:
        """Like `map_times`, for the times at or before `as_of`.

        Raises:
            UsageError: the cursor is at no value, or `as_of` is not a time.
            HistoryCompacted: `as_of` is before `since`.
        """
        domain, since = self._layout.domain, self._view.since
        as_of = domain.check(as_of, "as_of")
        check_kept(as_of, since, domain)
        until = Updates(Frontier.of(domain.minimum), Frontier.past(as_of))
        self._visit(select(self._updates(), until, domain), visit)

    def _arrived(self) -> None:
        self._value = self._rows_of_key()[0]

    def _row(self) -> int:
        if not self.val_valid:
            raise UsageError("the cursor is at no value: check key_valid and val_valid first")
        return self._value

    def _weight(self, row: int) -> int:
        weight: int = self._window.rows.column(self._layout.row_width)[row].as_py()
        return weight

    def _value_at(self, row: int) -> Values:
        return values_at(self._window.rows, row, self._value_columns)

    def _place_of(self, value: object, *, inclusive: bool) -> int:
        """The first row of this key whose value is not less, or with `inclusive` is greater."""
        first, end = self._rows_of_key()
        if not self._value_columns:
            return end if inclusive else first
        columns = self._layout.schema.value
        values = key_values(value, [column.name for column in columns], "value")
        bound = order.row_tuple(row_batch([values], columns), 0, len(columns))
        held = self._window.rows.select(self._value_columns).slice(first, end - first)
        return first + order.search(held, bound, inclusive=inclusive)

    def _updates(self) -> pa.RecordBatch:
        """The updates of this row."""
        width = self._layout.row_width
        bound = order.row_tuple(self._window.rows, self._row(), width)
        found = self._window.sorted_updates
        first, end = (order.search(found, bound, inclusive=inclusive) for inclusive in (False, True))
        return found.slice(first, end - first)

    def _visit(self, updates: pa.RecordBatch, visit: Callable[[Time, int], None]) -> None:
        domain = self._layout.domain
        folded = sum_batch(select(updates, Fold(self._view.since), domain))
        components = [folded.column(name).to_pylist() for name in domain.columns]
        weights = folded.column(self._layout.width).to_pylist()
        for *time, weight in zip(*components, weights, strict=True):
            visit(time[0] if domain.total_order else tuple(time), weight)
