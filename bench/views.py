"""Refreshes of views beside DuckDB's recompute of the same queries.

    from bench.views import run; run(1_000_000)

A lake of facts and one percent as many customers. Each view is refreshed after changes of ten and of 10,000
rows, half of them gone and half new, at random places. Times are processor time in milliseconds, the least
of `ROUNDS`: of the refresh, and of the query by DuckDB from its own table, from Parquet, and by `lake.sql`,
which compute all of the answer and compare nothing. *read* is the share of the rows of the inputs and of what
the view keeps that the refresh decoded.
"""

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidelake
from tidelake.data.part import scan
from tidelake.views.state import states_of

ROUNDS = 3
CHANGES = (10, 10_000)
GROUPS = 10
"""Groups of `max of huge groups`."""
QUERIES = {
    "filter": "SELECT id, x * 2 AS y FROM facts WHERE x > 900000",
    "join with sum": "SELECT c.country, count(*) AS n, sum(f.amount) AS s "
    "FROM facts f JOIN customers c ON f.customer = c.customer GROUP BY c.country",
    "left join": "SELECT c.customer, c.country, f.id, f.x "
    "FROM customers c LEFT JOIN facts f ON c.customer = f.customer",
    "max per group of ten": "SELECT ten, max(x) AS m FROM facts GROUP BY ten",
    "max of huge groups": f"SELECT id % {GROUPS} AS k, max(x) AS m FROM facts GROUP BY id % {GROUPS}",
    "top ten per customer": "SELECT customer, id, x FROM facts "
    "QUALIFY row_number() OVER (PARTITION BY customer ORDER BY x DESC, id) <= 10",
}
FACTS = {"id": "int64", "customer": "int64", "ten": "int64", "x": "int64", "amount": "int64"}


def facts(ids: np.ndarray, customers: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    customer, x, amount = (rng.integers(0, most, len(ids)) for most in (customers, 1_000_000, 10_000))
    return pa.table({"id": ids, "customer": customer, "ten": ids // 10, "x": x, "amount": amount})


def filled(place: Path, rows: int) -> tuple[tidelake.Lake, pa.Table]:
    """A lake with the facts and customers."""
    lake, customers = tidelake.open(place), rows // 100
    lake.create("facts", FACTS, key=["id"])
    lake.create("customers", {"customer": "int64", "country": "string"}, key=["customer"])
    first = facts(np.arange(rows), customers, 1)
    of = pa.table({"customer": np.arange(customers), "country": [f"c{n % 50}" for n in range(customers)]})
    lake["facts"].append(first, time=0)
    lake["customers"].append(of, time=0)
    return lake, first


def changes(first: pa.Table) -> Iterator[Callable[[int], pa.Table]]:
    """Makes changes, of which no two remove the same row."""
    rng, customers = np.random.default_rng(2), len(first) // 100
    order, at = rng.permutation(len(first)), 0
    for turn in itertools.count(1):

        def change(count: int, turn: int = turn) -> pa.Table:
            nonlocal at
            gone = first.take(pa.array(np.sort(order[at : at + count // 2])))
            at += count // 2
            new = facts(len(first) * (turn + 1) + np.arange(count // 2), customers, turn + 1)
            pairs = [(gone, -1), (new, 1)]
            return pa.concat_tables(t.append_column("_diff", pa.array([diff] * len(t))) for t, diff in pairs)

        yield change


@contextmanager
def decoded() -> Iterator[list[int]]:
    """Counts the rows that reads decode."""
    original, found = scan._decoded, [0]

    def counted(*args, **named):
        for one in original(*args, **named):
            found[0] += one.num_rows
            yield one

    scan._decoded = counted
    try:
        yield found
    finally:
        scan._decoded = original


def cpu_ms(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return 1_000 * (time.process_time() - start)


def recomputed(lake: tidelake.Lake, folder: Path, sql: str) -> dict[str, float]:
    """The query by DuckDB, from three places."""
    with duckdb.connect() as own, duckdb.connect() as parquet:
        for name in ("facts", "customers"):
            rows = lake[name].snapshot().read_all().drop_columns(["_time", "_diff"])
            path = folder / f"{name}.parquet"
            pq.write_table(rows, path)
            own.execute(f"CREATE TABLE {name} AS FROM rows")
            parquet.execute(f"CREATE VIEW {name} AS FROM '{path}'")
        works = {
            "duckdb table": lambda: own.sql(sql).to_arrow_table(),
            "duckdb parquet": lambda: parquet.sql(sql).to_arrow_table(),
            "lake.sql": lambda: lake.sql(sql).read_all(),
        }
        return {name: min(cpu_ms(work) for _ in range(ROUNDS)) for name, work in works.items()}


def run(rows: int) -> dict[str, dict[str, float]]:
    """The measurements, by query and number of changed rows."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        lake, first = filled(Path(place) / "lake", rows)
        made = {name: cpu_ms(lambda name=name: lake.view(name, QUERIES[name])) for name in QUERIES}
        turn = changes(first)
        for count in CHANGES:
            spent = {name: [] for name in QUERIES}
            for _ in range(ROUNDS):
                (upper,) = lake["facts"].upper
                lake["facts"].append(next(turn)(count), time=upper)
                lake["customers"].seal(upper + 1)
                for name in QUERIES:
                    with decoded() as seen:
                        spent[name].append((cpu_ms(lambda name=name: lake.refresh(name)), seen[0]))
            for name, sql in QUERIES.items():
                kept = states_of(lake, lake[name].id)
                totals = [one.state().spine.totals for one in kept]
                all_rows = rows + rows // 100 + sum(one.rows for one in totals)
                found[f"{name}, {count:,} changes"] = {
                    "refresh ms": min(ms for ms, _ in spent[name]),
                    "read %": 100 * min(seen for _, seen in spent[name]) / all_rows,
                    **recomputed(lake, Path(place), sql),
                    "first refresh ms": made[name],
                    "state bytes": sum(one.size_bytes for one in totals),
                }
        lake.close()
    return found


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000), indent=1))
