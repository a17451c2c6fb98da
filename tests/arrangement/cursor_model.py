"""A cursor over a sorted list of rows, of obvious lines: what the real one must do."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

from arrangement_rows import Update, contents, ranked

Values = tuple[object, ...]


class ModelCursor:
    """Stands at `keys[i]`, or in the gap before it if `on` is False; values likewise, without gaps inside."""

    def __init__(self, held: Iterable[Update], key_width: int, as_of: int | None, since: int = 0) -> None:
        self.held, self.width, self.as_of, self.since = list(held), key_width, as_of, since
        rows: dict[Values, list[tuple[Values, int]]] = {}
        found = contents(self.held, as_of)
        for row in sorted(found, key=ranked):
            rows.setdefault(row[:key_width], []).append((row[key_width:], found[row]))
        self.rows = rows
        self.keys = list(rows)
        self.ranks = [ranked(key) for key in self.keys]
        self.rewind()

    def _go(self, i: int, on: bool = True) -> None:
        """To key i; out of range to the gap at that end."""
        self.on = on and 0 <= i < len(self.keys)
        self.i = min(max(i, 0), len(self.keys))
        self.j = 0

    @property
    def values(self) -> list[tuple[Values, int]]:
        return self.rows[self.keys[self.i]] if self.on else []

    @property
    def key_valid(self) -> bool:
        return self.on

    @property
    def key(self) -> Values:
        return self.keys[self.i]

    def rewind(self) -> None:
        self._go(0)

    def fast_forward(self) -> None:
        self._go(len(self.keys) - 1)

    def step_key(self) -> None:
        self._go(self.i + 1 if self.on else self.i)

    def step_key_reverse(self) -> None:
        self._go(self.i - 1)

    def _move(self, i: int) -> None:
        if not (self.on and i == self.i):
            self._go(i)

    def seek_key(self, key: Values) -> None:
        self._move(max(self.i, bisect_left(self.ranks, ranked(key))))

    def seek_key_reverse(self, key: Values) -> None:
        last = self.i if self.on else self.i - 1
        self._move(min(last, bisect_right(self.ranks, ranked(key)) - 1))

    def seek_key_exact(self, key: Values) -> bool:
        i = bisect_left(self.ranks, ranked(key))
        self._go(i, on=i < len(self.keys) and self.ranks[i] == ranked(key))
        return self.on

    def seek_key_with(self, predicate: Callable[[Values], bool]) -> None:
        self._move(
            next((i for i in range(self.i, len(self.keys)) if predicate(self.keys[i])), len(self.keys))
        )

    def seek_key_with_reverse(self, predicate: Callable[[Values], bool]) -> None:
        last = self.i if self.on else self.i - 1
        self._move(next((i for i in range(last, -1, -1) if predicate(self.keys[i])), -1))

    @property
    def val_valid(self) -> bool:
        return 0 <= self.j < len(self.values)

    @property
    def value(self) -> Values:
        return self.values[self.j][0]

    @property
    def weight(self) -> int:
        return self.values[self.j][1]

    def rewind_values(self) -> None:
        self.j = 0

    def fast_forward_values(self) -> None:
        self.j = len(self.values) - 1

    def step_value(self) -> None:
        self.j = min(self.j + 1, len(self.values))

    def step_value_reverse(self) -> None:
        self.j = max(self.j - 1, -1)

    def seek_value(self, value: Values) -> None:
        self.j = max(self.j, bisect_left([ranked(v) for v, _ in self.values], ranked(value)))

    def seek_value_reverse(self, value: Values) -> None:
        self.j = min(self.j, bisect_right([ranked(v) for v, _ in self.values], ranked(value)) - 1)

    def seek_value_with(self, predicate: Callable[[Values], bool]) -> None:
        places = range(max(self.j, 0), len(self.values))
        self.j = next((j for j in places if predicate(self.values[j][0])), len(self.values))

    def seek_value_with_reverse(self, predicate: Callable[[Values], bool]) -> None:
        places = range(min(self.j, len(self.values) - 1), -1, -1)
        self.j = next((j for j in places if predicate(self.values[j][0])), -1)

    def map_values(self, visit: Callable[[Values, int], None]) -> None:
        for value, weight in self.values:
            visit(value, weight)

    def times(self, through: int | None) -> list[tuple[int, int]]:
        """Of this row: time -> sum of diffs, as since has it."""
        row, sums = ranked((*self.key, *self.value)), dict[int, int]()
        last = min(t for t in (self.as_of, through, 10**9) if t is not None)
        for found, time, diff in self.held:
            if ranked(found) == row and max(time, self.since) <= last:  # type: ignore[call-overload]
                at = max(time, self.since)  # type: ignore[call-overload]
                sums[at] = sums.get(at, 0) + diff
        return [(time, total) for time, total in sorted(sums.items()) if total]
