"""Orders that come and go, as TPC-H's refresh functions have it, and prices that are corrected.

The views ask what queries of TPC-H ask; the texts are our own. `SCALE_1` orders have as many lines, customers
and suppliers as those of TPC-H at scale 1.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SCALE_1 = 1_500_000
"""Orders of TPC-H at scale 1."""
TABLES = {
    "customer": ({"c": pa.int64(), "segment": pa.string(), "nation": pa.int64()}, ["c"]),
    "orders": (
        {"o": pa.int64(), "c": pa.int64(), "status": pa.string(), "placed": pa.date32()},
        ["o"],
    ),
    "lineitem": (
        {
            **{"o": pa.int64(), "line": pa.int64(), "supplier": pa.int64(), "quantity": pa.int64()},
            **{"price": pa.decimal128(12, 2), "discount": pa.decimal128(4, 2), "flag": pa.string()},
            **{"shipped": pa.date32(), "due": pa.date32(), "received": pa.date32()},
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
        "WHERE o IN (SELECT o FROM lineitem GROUP BY o HAVING sum(quantity) > 200)"
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
DAY = 19_723
"""The first day of 2024."""


class Shop:
    """The rows that the collections must have, and how they change.

    Args:
        lake: gets the collections.
        seed: decides all choices.
        orders: how many there are in the beginning.
    """

    def __init__(self, lake: Any, seed: int, orders: int) -> None:
        self.lake, self.random, self.time = lake, np.random.default_rng(seed), 0
        self.customers, self.suppliers = max(30, orders // 10), max(8, orders // 150)
        self.there: dict[str, pa.Table] = {}
        for name, (columns, key) in TABLES.items():
            schema = pa.schema([*columns.items()])
            lake.create(name, schema, key=key)
            self.there[name] = schema.empty_table()
        people = np.arange(self.customers)
        segments = self._one_of(["BUILDING", "MACHINERY"], len(people))
        self._write({"customer": self._rows("customer", people, segments, people % 5)}, {})
        self.come(orders)

    def come(self, many: int) -> None:
        """RF1: new orders with their lines."""
        pick, first = self.random.integers, 1 + (pc.max(self.there["orders"]["o"]).as_py() or 0)
        # Some have no customer, and of three customers one has no order.
        customer = pick(0, self.customers * 4 // 3, many)
        customer -= customer % 3 == 0
        o, placed = np.arange(first, first + many), DAY + pick(0, 300, many)
        orders = self._rows("orders", o, customer, self._one_of("FOP", many), placed)
        of = np.repeat(np.arange(many), pick(1, 8, many))
        many = len(of)
        line = np.arange(many) - np.searchsorted(of, of) + 1
        shipped = placed[of] + pick(0, 60, many)
        lines = self._rows(
            "lineitem",
            *(o[of], line, pick(0, self.suppliers, many), pick(1, 51, many)),
            *(self._prices(many), _hundredths(pick(0, 10, many)), self._one_of("ANR", many)),
            *(shipped, placed[of] + pick(0, 60, many), shipped + pick(0, 10, many)),
        )
        self._write({"orders": orders, "lineitem": lines}, {})

    def go(self, many: int) -> None:
        """RF2: orders and their lines are gone."""
        gone = self._some(many)
        self._write({}, {name: self._of(name, gone) for name in ("orders", "lineitem")})

    def correct(self, many: int) -> None:
        """Prices were wrong."""
        old = self._of("lineitem", self._some(many))
        columns = {**dict(zip(old.schema.names, old.columns, strict=True)), "price": self._prices(len(old))}
        new = self._rows("lineitem", *columns.values())
        self._write({"lineitem": new}, {"lineitem": old})

    def _some(self, many: int) -> pa.Array:
        return pa.array(self.random.choice(self.there["orders"]["o"].to_numpy(), many, replace=False))

    def _of(self, name: str, orders: pa.Array) -> pa.Table:
        return self.there[name].filter(pc.is_in(self.there[name]["o"], orders))

    def _one_of(self, words: Sequence[str], many: int) -> pa.Array:
        return pa.array([*words]).take(pa.array(self.random.integers(0, len(words), many)))

    def _prices(self, many: int) -> pa.Array:
        return _hundredths(self.random.integers(1_000, 99_900, many))

    def _rows(self, name: str, *columns: Any) -> pa.Table:
        schema = pa.schema([*TABLES[name][0].items()])
        return pa.table(
            [_cast(column, one.type) for column, one in zip(columns, schema, strict=True)], schema
        )

    def _write(self, come: dict[str, pa.Table], gone: dict[str, pa.Table]) -> None:
        with self.lake.transaction(upper=self.time + 1) as transaction:
            for name, there in self.there.items():
                new, old = come.get(name, there[:0]), gone.get(name, there[:0])
                stays = pc.invert(pc.is_in(there[TABLES[name][1][0]], old[TABLES[name][1][0]]))
                self.there[name] = pa.concat_tables([there.filter(stays), new]).combine_chunks()
                counts = pa.array([1] * len(new) + [-1] * len(old), pa.int64())
                rows = pa.concat_tables([new, old]).append_column("_diff", counts)
                transaction.write(name, rows, time=self.time, upper=self.time + 1)
        self.time += 1


def _hundredths(numbers: np.ndarray) -> pa.Array:
    return pc.multiply(pa.array(numbers), pa.scalar(Decimal("0.01")))


def _cast(column: Any, type_: pa.DataType) -> pa.Array:
    array = pa.array(column) if isinstance(column, np.ndarray) else column
    return array.cast(pa.int32()).cast(type_) if type_ == pa.date32() else array.cast(type_)
