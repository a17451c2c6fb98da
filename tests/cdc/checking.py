"""Compares the collections with the database: at barriers row by row, between them by the journal."""

import datetime
import json
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.cdc import bank_views
from tests.cdc.workload import TABLES, Barrier

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Checked:
    """What a comparison has looked at.

    Attributes:
        barriers: times at which all rows were compared.
        rows: that were compared at them.
        times: at which the journal was compared with the updates.
    """

    barriers: int
    rows: int
    times: int


def check(lake: Any, barriers: list[Barrier]) -> Checked:
    """Compare the group `bank`, and the views on it, with the database.

    Raises:
        AssertionError: they differ; names the barrier or the time, the table and some rows.
    """
    rows = sum(_check_barrier(lake, one) + bank_views.check(lake, one) for one in barriers)
    return Checked(len(barriers), rows, _check_times(lake, barriers[0].lsn, barriers[-1].lsn))


def _check_barrier(lake: Any, barrier: Barrier) -> int:
    count = 0
    for table in TABLES:
        snapshot = lake[f"bank.public.{table}"].snapshot(barrier.lsn).read_all()
        # Arrow's own values compare apart: NaN is no problem here, and -0.0 is none of the bank's numbers.
        found = Counter({_row(row): row["_diff"] for row in snapshot.to_pylist()})
        expected = Counter(_row(row) for row in barrier.tables[table])
        if found != expected:
            raise AssertionError(
                f"barrier {barrier.n} at {barrier.lsn}, table {table}: the database has, and the collection "
                f"has not:\n{_some(expected - found)}\nthe collection has, and the database has not:\n"
                f"{_some(found - expected)}"
            )
        count += len(expected)
    return count


def _check_times(lake: Any, first: int, last: int) -> int:
    """Each time after the first barrier has one whole transaction: what its row of the journal says."""
    by_time: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for table in TABLES:
        updates = lake[f"bank.public.{table}"].updates(first + 1, last + 1).read_all()
        for row in updates.to_pylist():
            by_time.setdefault(row["_time"], {}).setdefault(table, []).append(row)
    balance = sum(
        (row["balance"] for row in lake["bank.public.accounts"].snapshot(first).read_all().to_pylist()),
        Decimal(0),
    )
    for time, found in sorted(by_time.items()):
        journal = found.get("journal", [])
        assert len(journal) == 1, f"time {time} has {len(journal)} transactions: {journal}"
        (entry,) = journal
        told = Counter(json.loads(entry["added"])), Counter(json.loads(entry["removed"]))
        signed = (
            Counter({t: sum(r["_diff"] for r in rows if r["_diff"] > 0) for t, rows in found.items()}),
            Counter({t: -sum(r["_diff"] for r in rows if r["_diff"] < 0) for t, rows in found.items()}),
        )
        assert +signed[0] == +told[0] and +signed[1] == +told[1], (
            f"time {time}: {signed}, the journal: {told}"
        )
        numbers = {r["tx"] for rows in found.values() for r in rows if r["_diff"] > 0}
        assert numbers == {entry["tx"]}, f"time {time} has rows of transactions {numbers}"
        balance += sum((r["balance"] * r["_diff"] for r in found.get("accounts", [])), Decimal(0))
        assert balance == 0, f"at time {time} the bank has {balance}"
    return len(by_time)


def _some(rows: Counter[Row]) -> str:
    """A few rows for a message, without the rest of large values."""
    return "\n".join(
        f"{diff} of " + ", ".join(f"{name}={value!r:.40}" for name, value in row)
        for row, diff in list(rows.items())[:3]
    )


def _row(row: dict[str, Any]) -> Row:
    """The columns of a row of the table or the collection, as they compare."""
    return tuple((name, _value(row[name])) for name in sorted(row) if name not in {"_time", "_diff"})


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)
    return value
