"""A random history of a table, as steps that each tool tells in its own form, and what it means."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("price", pa.decimal128(8, 2)),
        ("ratio", pa.float64()),
        ("ok", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
    ]
)
Row = dict[str, Any]


def values(row: Row) -> tuple[Any, ...]:
    """A row as Arrow has it."""
    one = dict(row) | {"price": None if row["price"] is None else Decimal(row["price"])}
    kinds = {"day": pa.date32(), "at": pa.timestamp("us")}
    for name, kind in kinds.items():
        one[name] = None if row[name] is None else pa.scalar(row[name]).cast(kind).as_py()
    return tuple(one[name] for name in SCHEMA.names)


@dataclass(frozen=True)
class Step:
    """A change of one row, in a transaction."""

    number: int
    before: Row | None
    after: Row | None
    last: bool

    @property
    def kind(self) -> str:
        return "insert" if self.before is None else "delete" if self.after is None else "update"

    @property
    def row(self) -> Row:
        """The new row, or that which is removed."""
        found = self.after if self.after is not None else self.before
        assert found is not None
        return found


def texts(row: Row) -> Row:
    """All values as texts, booleans as 0 and 1."""
    return {n: v if v is None else str(int(v)) if isinstance(v, bool) else str(v) for n, v in row.items()}


def some_row(rng: random.Random, key: int) -> Row:
    def or_none(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    return {
        "id": key,
        "name": or_none(rng.choice(["Zürich", "東京 🗼", 'a "quoted"\n\\ name', "", "12"])),
        "price": or_none(f"{rng.randrange(-99999, 99999) / 100:.2f}"),
        "ratio": or_none(rng.choice([0.5, -2.25, 1e10])),
        "ok": or_none(rng.random() < 0.5),
        "day": or_none(f"2026-01-{rng.randrange(1, 28):02}"),
        "at": or_none(f"2026-01-31 12:00:00.{rng.randrange(10**6):06}"),
    }


def some_history(seed: int, count: int = 120) -> list[Step]:
    """Inserts, updates, changes of keys and deletes, in transactions."""
    rng = random.Random(seed)
    table: dict[int, Row] = {}
    steps: list[Step] = []
    while len(steps) < count:
        size = rng.randrange(1, 5)
        number = steps[-1].number + rng.randrange(1, 9) if steps else 3
        for i in range(size):
            key, last = rng.randrange(12), i == size - 1
            old = table.pop(key, None)
            new = None if old is not None and rng.random() < 0.25 else some_row(rng, key)
            if old is not None and new is not None and rng.random() < 0.3:
                free = [k for k in range(12) if k not in table]
                new["id"] = rng.choice(free)
            if old is not None and new is not None and rng.random() < 0.5:
                new = dict(old) | {"id": new["id"], "name": new["name"]}
            if new is not None:
                table[new["id"]] = new
            steps.append(Step(number, old, new, last))
    return steps


def truth(steps: Iterable[Step], time: Callable[[Step], int]) -> Counter[Any]:
    """(row, time) -> diff."""
    found: Counter[Any] = Counter()
    for step in steps:
        if step.before is not None:
            found[values(step.before), time(step)] -= 1
        if step.after is not None:
            found[values(step.after), time(step)] += 1
    return Counter({at: diff for at, diff in found.items() if diff})


def changed(old: Row, new: Row) -> Row:
    return {name: old[name] for name in old if old[name] != new[name]}


ROW: Row = {"id": 1, "name": "Zürich", "price": "1.50", "ratio": 0.5, "ok": True, "day": None, "at": None}
STEP = Step(5, None, ROW, True)
UPDATE = Step(6, ROW, ROW | {"name": None}, True)
DELETE = Step(7, ROW, None, True)
