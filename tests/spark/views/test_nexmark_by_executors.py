"""The queries of Nexmark as views in Spark's SQL, which executors refresh."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlglot

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from nexmark import QUERIES, Market

import tidelake
from tidelake import spark as ts
from tidelake.spark.views import engine, executors

# Spark's `explode` is refused, and the parser makes another query of a condition on two windows.
HOPS = " UNION ALL ".join(
    f"SELECT auction, ts // 2 * 2 - {back} AS start FROM bid" for back in range(0, 10, 2)
)
SPARK = QUERIES | {
    "q5": (
        "SELECT auction, start, num FROM (SELECT *, max(num) OVER (PARTITION BY start) AS most FROM "
        f"(SELECT auction, start, count(*) AS num FROM ({HOPS}) GROUP BY auction, start)) WHERE num = most"
    ),
    "q19": (
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, id) AS place "
        "FROM bid) WHERE place <= 10"
    ),
}


@pytest.mark.soak
@pytest.mark.promise(
    "Nexmark's queries with retractions, as views of Spark's SQL that executors refresh at random times, are "
    "the queries recomputed",
    rule="`SparkExecutors` in `spark/views/executors.py`",
)
def test_nexmarks_queries_are_the_queries_recomputed_by_spark(
    spark: Any, tmp_path: Path, monkeypatch: Any, rng: Random
) -> None:
    market = Market(tmp_path / "lake", rng)
    with tidelake.open(market.place) as lake:
        market.trade(lake, 4)
        for name, sql in SPARK.items():
            ts.view(spark, lake, name, sqlglot.transpile(sql, "duckdb", "spark")[0])
        monkeypatch.setattr(engine, "DRIVER_ROWS_MAX", 0)
        monkeypatch.setattr(executors, "FEW_ROWS", rng.choice([0, 10_000]))
        for _ in range(4):
            market.trade(lake, 4)
            if rng.random() < 0.6:
                ts.refresh(spark, lake)
        done = [one for one in ts.refresh(spark, lake) if not one.already and any(one.read.values())]
        assert {one.place for one in done} <= {"executors"}
        for name in QUERIES:
            for time in {market.time - 1, rng.randrange(market.time)}:
                found = ts.verify(spark, lake, name, time)
                assert found.equal, f"{name} at {time}: {found}"
