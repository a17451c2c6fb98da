"""A random change feed of several tables, as Debezium writes it, and what a replay of it leaves in each."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

UNAVAILABLE = "__debezium_unavailable_value"
_TYPES = {"id": ("int64", False), "n": ("int32", False), "big": ("string", True), "more": ("string", True)}


def connect(table: str, columns: dict[str, tuple[str, bool]]) -> dict[str, Any]:
    """The schema that Kafka Connect puts beside the payload."""

    def row(side: str) -> dict[str, Any]:
        fields = [{"field": n, "type": kind, "optional": null} for n, (kind, null) in columns.items()]
        return {"type": "struct", "fields": fields, "optional": True, "name": f"{table}.Value", "field": side}

    return {
        "type": "struct",
        "fields": [row("before"), row("after"), {"type": "string", "optional": False, "field": "op"}],
        "name": f"{table}.Envelope",
    }


@dataclass
class Feed:
    """Transactions on tables `public.t0`, `public.t1`, …, each at its own time.

    Attributes:
        lines: the transactions: their time and their lines.
        states: the rows of each table by key, after each transaction.
        postgres: events have positions as PostgreSQL gives them, from which the times are to be found.
    """

    seed: int
    tables: int = 3
    postgres: bool = False
    lines: list[tuple[int, list[str]]] = field(default_factory=list)
    states: list[dict[str, dict[int, dict[str, Any]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.time = self.committed = self._own = 0
        self.now: dict[str, dict[int, dict[str, Any]]] = {}
        self.columns = {
            f"t{i}": {name: _TYPES[name] for name in ("id", "n", "big")} for i in range(self.tables)
        }

    def transactions(self, count: int) -> "Feed":
        """Add so many transactions."""
        for _ in range(count):
            self.time += self.random.randint(1, 3) * (1000 if self.postgres else 1)
            # Positions of events ascend in a transaction, and go back and forth between transactions.
            self._own = self.random.randint(1, 1 << 40)
            lines = [line for _ in range(self.random.randint(1, 6)) for line in self._statement()]
            if self.random.random() < 0.2 and not self.postgres:
                lines.append(self._mark())
            if lines:
                self.committed = self.time
            self.lines.append((self.time - self.postgres, lines))
            self.states.append({t: {k: dict(r) for k, r in rows.items()} for t, rows in self.now.items()})
        return self

    def _mark(self) -> str:
        return json.dumps({"op": "m", "source": {"lsn": self.time, "schema": "", "table": ""}})

    def _statement(self) -> list[str]:
        table = self.random.choice(sorted(self.columns))
        rows = self.now.setdefault(table, {})
        key = self.random.randint(0, 5)
        chance = self.random.random()
        if chance < 0.04:
            rows.clear()
            return [self._line(table, "t", None, None)]
        if chance < 0.07:
            # The source gets a column, or a wider one.
            name = self.random.choice(["more", "n"])
            self.columns[table][name] = _TYPES["more"] if name == "more" else ("int64", False)
            return []
        if key not in rows:
            rows[key] = self._row(table, key)
            return [self._line(table, "c", None, rows[key])]
        old = rows.pop(key)
        if chance < 0.2:
            return [self._line(table, "d", {"id": key}, None)]
        new = self._row(table, key)
        if chance < 0.35 and (free := [k for k in range(6) if k not in rows and k != key]):
            new["id"] = self.random.choice(free)
            rows[new["id"]] = new
            if chance < 0.27:
                return [self._line(table, "u", {"id": key}, new)]
            return [self._line(table, "d", {"id": key}, None), self._line(table, "c", None, new)]
        rows[key] = new
        if self.random.random() < 0.5:
            new["big"] = old["big"]
            return [self._line(table, "u", None, {**new, "big": UNAVAILABLE})]
        return [self._line(table, "u", {"id": key}, new)]

    def _row(self, table: str, key: int) -> dict[str, Any]:
        wide = self.columns[table]["n"][0] == "int64"
        row = {"id": key, "n": self.random.randint(0, 9) << (40 if wide else 0)}
        row["big"] = self.random.choice([None, "x" * self.random.randint(1, 9)])
        return row | ({"more": self.random.choice([None, "m"])} if "more" in self.columns[table] else {})

    def _line(self, table: str, op: str, before: Any, after: Any) -> str:
        source: dict[str, Any] = {"db": "d", "schema": "public", "table": table, "lsn": self.time}
        if self.postgres:
            # The commit before tells transactions apart.
            commit = json.dumps([str(self.committed) if self.committed else None, "0"])
            self._own += 1
            source |= {"connector": "postgresql", "lsn": self._own, "sequence": commit, "snapshot": "false"}
        payload = {"before": before, "after": after, "op": op, "source": source}
        return json.dumps({"schema": connect(table, self.columns[table]), "payload": payload})


def contents(collection: Any, at: int) -> dict[int, dict[str, Any]]:
    """The rows of a collection by key, which has one row each; without the columns that are null."""
    found: dict[int, dict[str, Any]] = {}
    for row in collection.snapshot(at).read_all().to_pylist():
        assert row.pop("_diff") == 1
        del row["_time"]
        assert row["id"] not in found
        found[row["id"]] = told(row)
    return found


def told(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its nulls."""
    return {name: value for name, value in row.items() if value is not None}
