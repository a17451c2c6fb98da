"""Tables with what breaks views, and queries over them: a plan must answer as DuckDB does."""

from collections import Counter
from typing import Any

from plan_reference import counted, evaluated, fill

from tidelake.views.query.compile import compiled
from tidelake.views.query.engine import DuckAnalyzer

TABLES: dict[str, dict[str, str]] = {
    "a": {"k": "INTEGER", "x": "INTEGER", "f": "DOUBLE", "s": "VARCHAR"},
    "b": {"k": "INTEGER", "y": "DECIMAL(10,2)", "s": "VARCHAR"},
    "t": {"i": "BIGINT", "w": "TIMESTAMP", "l": "INTEGER[]", "p": "STRUCT(u INTEGER, v VARCHAR)"},
    "e": {"k": "INTEGER", "x": "INTEGER"},
}
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "a": [
        (1, 10, 0.5, "p", 2),
        (1, None, 1.5, "q", 1),
        (None, 5, None, "p", 1),
        (2, 7, float("nan"), None, 1),
        (3, 7, -1.0, "z", 3),
        (4, 4, 1e16, "p", 1),
        (4, 4, 1.1, "q", 1),
        (4, 3, -1e16, "q", 1),
    ],
    "b": [
        (1, "1.50", "p", 1),
        (1, "2.25", "q", 2),
        (3, None, "z", 1),
        (None, "7.00", None, 1),
        (5, "1.00", "p", 1),
        (2, "66.67", "r", 3),
    ],
    "t": [
        (1, "2024-01-01 00:00:00", [1, 2], {"u": 1, "v": "p"}, 1),
        (1, "2024-01-02 00:00:00", [], {"u": 2, "v": None}, 1),
        (2, "2024-01-03 12:00:00", None, None, 2),
        (3, None, [3, None, 3], {"u": 1, "v": "p"}, 1),
    ],
    "e": [],
}


class Databases:
    """One database with multiplicities for plans, one with each row as often as it is there for DuckDB."""

    def __init__(self, duckdb: Any) -> None:
        # Tables of a few rows take half the time without threads.
        self.plans, self.queries = (duckdb.connect(config={"threads": 1}) for _ in range(2))
        for connection in (self.plans, self.queries):
            connection.execute("SET TimeZone = 'UTC'")

    def close(self) -> None:
        self.plans.close()
        self.queries.close()

    def fill(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        fill(self.plans, name, TABLES[name], rows)
        fill(self.queries, name, TABLES[name], rows)
        self.queries.execute(
            f"CREATE OR REPLACE TABLE {name} AS SELECT * EXCLUDE (__m, __n) FROM "
            f"(SELECT *, unnest(range(__m)) AS __n FROM {name} WHERE __m > 0)"
        )

    def answers(self, query: str) -> tuple[Counter[Any], Counter[Any]]:
        """What the plan says, and what DuckDB says."""
        plan = compiled(query, TABLES.get, lambda: DuckAnalyzer(self.plans))
        found = evaluated(plan, self.plans)
        return found, counted((row, 1) for row in self.queries.execute(query).fetchall())
