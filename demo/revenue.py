"""The end of the demo: a view, and a late correction that changes yesterday's revenue in it.

Owns the rows of the example; must not know Spark.
"""

from pathlib import Path

import pyarrow as pa
from rich.console import Console

import tidelake
from demo.job import Check

_QUERY = 'SELECT day, count(*) AS orders, sum(euro) AS revenue FROM "demo orders" GROUP BY day'
_YESTERDAY, _TODAY = 20, 21


def revenue(place: Path, console: Console) -> list[Check]:
    """Make a view in a lake, correct what it is made of, and show what it says; each time is compared."""
    with tidelake.open(place) as lake:
        schema = {"id": "int64", "day": "int64", "euro": "int64"}
        orders = lake.create("demo orders", schema, key=["id"])
        orders.append(_rows((1, 19, 40), (2, _YESTERDAY, 25), (3, _YESTERDAY, 35)), time=_YESTERDAY)
        view = lake.view("demo revenue", _QUERY)
        console.print("\nA view: the revenue of each day, from a collection of orders.")
        console.print(f"  as of day {_YESTERDAY}: {_told(view, _YESTERDAY)}", markup=False)
        # The order of 35 was one of 30, and one came late.
        orders.upsert(_rows((3, _YESTERDAY, 30), (4, _YESTERDAY, 50)), time=_TODAY)
        (done,) = lake.refresh("demo revenue")
        console.print(
            f"A late correction of day {_YESTERDAY} comes on day {_TODAY}: {done.rows} rows change."
        )
        for day in (_YESTERDAY, _TODAY):
            console.print(f"  as of day {day}: {_told(view, day)}", markup=False)
        verified = [lake.verify("demo revenue", at=day) for day in (_YESTERDAY, _TODAY)]
        return [
            Check("the view", f"as of day {one.time}", one.rows, one.equal, tuple(map(str, one.missing)))
            for one in verified
        ]


def _rows(*orders: tuple[int, int, int]) -> pa.Table:
    ids, days, euros = zip(*orders, strict=True)
    return pa.table({"id": ids, "day": days, "euro": euros})


def _told(view: "tidelake.Collection", day: int) -> str:
    rows = sorted(view.snapshot(day).read_all().to_pylist(), key=lambda row: row["day"])
    return ", ".join(f"day {row['day']}: {row['revenue']} euro of {row['orders']} orders" for row in rows)
