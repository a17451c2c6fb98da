"""What upserts do, said with a dictionary: the slow model that tests compare with."""

from collections import Counter
from dataclasses import dataclass, field

from tidelake.testing.oracle import canonical, rank


@dataclass(frozen=True)
class Event:
    row: tuple
    time: int
    removed: bool = False
    order: object = None


@dataclass
class Model:
    """Rows with their multiplicity, and how many of the first columns are the key.

    `stored_order` is the column by which a stored row may be newer than an event. `removed` counts the rows
    that removals took away, `absent` the removals of keys that were not there.
    """

    key: int
    stored_order: int | None = None
    rows: Counter = field(default_factory=Counter)
    removed: int = 0
    absent: int = 0

    def key_of(self, row):
        return tuple(canonical(value) for value in row[: self.key])

    def of_key(self, key):
        return {row: n for row, n in self.rows.items() if row[: self.key] == key and n}

    def apply(self, events):
        """Take events in; the netted differences, (row, time) -> diff."""
        by_key = {}
        for event in events:
            by_key.setdefault(self.key_of(event.row), []).append(event)
        found = Counter()
        for key, of_key in by_key.items():
            for event in self.accepted(key, of_key):
                before = self.of_key(key)
                row = tuple(canonical(value) for value in event.row)
                if event.removed:
                    came = any(one.time == event.time and not one.removed for one in of_key)
                    self.removed += sum(before.values())
                    self.absent += not (before or came)
                after = {} if event.removed else {row: 1}
                for changed in before.keys() | after.keys():
                    found[changed, event.time] += after.get(changed, 0) - before.get(changed, 0)
                    self.rows[changed] = after.get(changed, 0)
        self.rows = Counter({row: n for row, n in self.rows.items() if n})
        return {change: diff for change, diff in found.items() if diff}

    def accepted(self, key, events):
        """The events that count, in the order of their times."""
        best = {}
        for event in events:
            known = best.get(event.time)
            if (
                known is None
                or event.order is None
                or rank(canonical(event.order)) >= rank(canonical(known.order))
            ):
                best[event.time] = event
        if self.stored_order is None:
            return [best[time] for time in sorted(best)]
        orders = [row[self.stored_order] for row in self.of_key(key)]
        newest = max((rank(o) for o in orders if o is not None), default=None)
        result = []
        for time in sorted(best):
            own = rank(canonical(best[time].order))
            if newest is None or own >= newest:
                result.append(best[time])
                newest = own
        return result
