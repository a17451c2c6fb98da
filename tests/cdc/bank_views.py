"""Five views of the bank that stand on each other: made and refreshed beside the stream, and compared."""

from collections import Counter
from typing import Any

import psycopg

VIEWS = {
    # A join, an aggregate of it, a top-k, a window, and an aggregate of that.
    "last": "SELECT a.id, a.active, a.balance, j.work FROM accounts a JOIN journal j ON a.tx = j.tx",
    "sums": "SELECT active, work, count(*) AS n, sum(balance) AS balance FROM last GROUP BY active, work",
    "rich": "SELECT id, owner, balance FROM accounts ORDER BY balance DESC, id LIMIT 10",
    "running": (
        "SELECT id, active, sum(balance) OVER (PARTITION BY active ORDER BY id) AS running FROM accounts"
    ),
    "most": "SELECT active, max(running) AS most, min(running) AS least FROM running GROUP BY active",
}
Rows = Counter[tuple[Any, ...]]


def refresh(lake: Any) -> None:
    """Make the views as soon as their inputs are there, and refresh them."""
    if "bank.public.accounts" not in lake or "bank.public.journal" not in lake:
        return
    for name, sql in VIEWS.items():
        lake.view(name, _of_collections(sql))
    lake.refresh()


def answers(connection: psycopg.Connection[Any]) -> dict[str, Rows]:
    """What the queries answer in the database."""
    chain = ", ".join(f"{name} AS ({sql})" for name, sql in VIEWS.items())
    return {
        name: Counter(connection.execute(f"WITH {chain} SELECT * FROM {name}").fetchall()) for name in VIEWS
    }


def check(lake: Any, barrier: Any) -> int:
    """Compare the views with the database at a barrier; returns how many rows it has.

    Raises:
        AssertionError: they differ.
    """
    refresh(lake)
    for name, expected in barrier.answers.items():
        columns = [column.to_pylist() for column in lake[name].snapshot(barrier.lsn).read_all()]
        found = Counter({tuple(row): many for *row, _, many in zip(*columns, strict=True)})
        assert found == expected, (
            f"barrier {barrier.n} at {barrier.lsn}, view {name}: the database has, and the view has not: "
            f"{[*(expected - found).items()][:3]}; the view has, and the database has not: "
            f"{[*(found - expected).items()][:3]}"
        )
    return sum(len(rows) for rows in barrier.answers.values())


def _of_collections(sql: str) -> str:
    for table in ("accounts", "journal"):
        sql = " ".join(f'"bank.public.{table}"' if word == table else word for word in sql.split(" "))
    return sql
