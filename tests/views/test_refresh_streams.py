"""Orders that come and go, as TPC-H's refresh functions have it, and prices that are corrected.

The views ask what queries of TPC-H ask; the texts are our own.
"""

import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("duckdb")

import tidelake

TABLES = {
    "customer": ({"c": "int64", "segment": "string", "nation": "int64"}, ["c"]),
    "orders": ({"o": "int64", "c": "int64", "status": "string", "placed": "date32"}, ["o"]),
    "lineitem": (
        {
            **{"o": "int64", "line": "int64", "supplier": "int64", "quantity": "int64"},
            **{"price": "decimal128(12, 2)", "discount": "decimal128(4, 2)", "flag": "string"},
            **{"shipped": "date32", "due": "date32", "received": "date32"},
        },
        ["o", "line"],
    ),
}
LATE = "l.received > l.due"
VIEWS = {
    "summary": (
        "SELECT flag, status, sum(quantity) AS quantity, sum(price * (1 - discount)) AS price, "
        "avg(price) AS mean, count(*) AS n FROM lineitem JOIN orders USING (o) "
        "WHERE shipped <= DATE '2024-09-01' GROUP BY ALL"
    ),
    "unshipped": (
        "SELECT p.o, p.placed, sum(l.price * (1 - l.discount)) AS revenue FROM customer k JOIN orders p "
        "ON k.c = p.c JOIN lineitem l ON l.o = p.o WHERE k.segment = 'BUILDING' AND l.shipped > p.placed "
        "GROUP BY p.o, p.placed ORDER BY revenue DESC, p.o LIMIT 10"
    ),
    "late": (
        f"SELECT month(placed) AS m, count(*) AS n FROM orders p WHERE EXISTS (SELECT * FROM lineitem l "
        f"WHERE l.o = p.o AND {LATE}) GROUP BY month(placed)"
    ),
    "patient": (
        "SELECT many, count(*) AS customers FROM (SELECT k.c, count(p.o) AS many FROM customer k LEFT JOIN "
        "orders p ON k.c = p.c AND p.status <> 'F' GROUP BY k.c) GROUP BY many"
    ),
    "large": (
        "SELECT o, c, (SELECT sum(quantity) FROM lineitem l WHERE l.o = orders.o) AS quantity FROM orders "
        "WHERE o IN (SELECT o FROM lineitem GROUP BY o HAVING sum(quantity) > 60)"
    ),
    "alone": (
        f"SELECT l.supplier, count(*) AS waits FROM lineitem l WHERE {LATE} AND NOT EXISTS (SELECT * FROM "
        "lineitem other WHERE other.o = l.o AND other.supplier <> l.supplier AND other.received > other.due) "
        "GROUP BY l.supplier"
    ),
    "above": (
        "SELECT o, line, price FROM lineitem l WHERE price > (SELECT 1.2 * avg(price) FROM lineitem x "
        "WHERE x.supplier = l.supplier)"
    ),
    "none": "SELECT nation, count(*) AS n FROM customer WHERE c NOT IN (SELECT c FROM orders) GROUP BY ALL",
}
DAY = datetime.date(2024, 1, 1)


class Shop:
    """The rows that the collections must have, and how they change."""

    def __init__(self, lake: Any, random: Random) -> None:
        self.lake, self.random, self.time = lake, random, 0
        self.orders: dict[int, list[dict[str, Any]]] = {}
        for name, (columns, key) in TABLES.items():
            fields = [
                pa.field(
                    of,
                    pa.type_for_alias(type_)
                    if "(" not in type_
                    else pa.decimal128(*map(int, type_[11:-1].split(","))),
                )
                for of, type_ in columns.items()
            ]
            lake.create(name, pa.schema(fields), key=key)
        people = [(n, random.choice(["BUILDING", "MACHINERY"]), n % 5) for n in range(30)]
        self._write({"customer": [dict(zip(TABLES["customer"][0], one, strict=True)) for one in people]}, 1)

    def come(self, many: int) -> None:
        """RF1: new orders with their lines."""
        pick, first = self.random.randrange, max(self.orders, default=0) + 1
        orders, lines = [], []
        for o in range(first, first + many):
            placed = DAY + self._days(300)
            orders.append({"o": o, "c": pick(40), "status": "FOP"[pick(3)], "placed": placed})
            self.orders[o] = [orders[-1]]
            for line in range(1, 1 + pick(1, 6)):
                shipped = placed + self._days(60)
                row = {
                    "o": o,
                    "line": line,
                    "supplier": pick(8),
                    "quantity": pick(1, 30),
                    "price": self._price(),
                }
                row |= {"discount": f"0.0{pick(9)}", "flag": "ANR"[pick(3)], "shipped": shipped}
                lines.append(row | {"due": placed + self._days(60), "received": shipped + self._days(10)})
            self.orders[o] += lines[-line:]
        self._write({"orders": orders, "lineitem": lines}, 1)

    def go(self, many: int) -> None:
        """RF2: orders and their lines are gone."""
        gone = [self.orders.pop(o) for o in self.random.sample(sorted(self.orders), many)]
        self._write(
            {"orders": [one[0] for one in gone], "lineitem": [row for one in gone for row in one[1:]]}, -1
        )

    def correct(self, many: int) -> None:
        """Prices were wrong."""
        old, new = [], []
        for o in self.random.sample(sorted(self.orders), many):
            old += self.orders[o][1:]
            self.orders[o][1:] = [row | {"price": self._price()} for row in self.orders[o][1:]]
            new += self.orders[o][1:]
        self._write({"lineitem": old}, -1, new)

    def _days(self, most: int) -> datetime.timedelta:
        return datetime.timedelta(days=self.random.randrange(most))

    def _price(self) -> str:
        return f"{self.random.randrange(10, 999)}.{self.random.randrange(10, 99)}"

    def _write(self, rows: dict[str, list[dict[str, Any]]], diff: int, more: Any = ()) -> None:
        with self.lake.transaction(upper=self.time + 1) as transaction:
            for name, (columns, _) in TABLES.items():
                given = [(row, diff) for row in rows.get(name, ())]
                given += [(row, 1) for row in more if name in rows]
                schema = self.lake[name].schema
                arrays = {of: pa.array([row[of] for row, _ in given]) for of in columns}
                table = pa.table({of: array.cast(schema.field(of).type) for of, array in arrays.items()})
                many = pa.array([sign for _, sign in given], pa.int64())
                transaction.write(
                    name, table.append_column("_diff", many), time=self.time, upper=self.time + 1
                )
        self.time += 1


@pytest.mark.promise(
    "Views of the questions of TPC-H are exact after each of its refresh functions, and after corrections",
    rule="`views/rules.py`",
)
@pytest.mark.full
def test_views_are_exact_after_each_refresh_function(tmp_path: Path, rng: Random) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        shop = Shop(lake, rng)
        shop.come(120)
        for name, sql in VIEWS.items():
            lake.view(name, sql)
        for change in (shop.come, shop.go, shop.correct, shop.go):
            change(12)
            lake.refresh()
            for name in VIEWS:
                found = lake.verify(name)
                assert found.equal, f"after {change.__name__}: {name}: {found}"
