"""Random queries in Spark's SQL over random histories: a view is Spark's answer at every time."""

import contextlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlglot

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from pyspark.errors import AnalysisException
from random_lakes import ARROW, TIMES, contents, history, plain, table
from random_queries import BASE, Queries

import tidelake
from tidelake import spark as ts
from tidelake.errors import UsageError
from tidelake.model.schema import DIFF
from tiers import rounds

QUERIES = 12
# Few rows: a job for a query, and not one for each shuffle and broadcast of it.
ONE_JOB = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
}


def check(spark: Any, place: Path, seed: int) -> int:
    """Make views of random queries, refresh them at random times, and compare each time. Returns how many."""
    rng, views = Random(seed), dict[str, str]()
    tables = {name: history(rng, name, negative=False) for name in BASE}
    first = rng.randrange(TIMES)
    with contextlib.closing(tidelake.open(place)) as lake:
        for name, columns in BASE.items():
            lake.create(name, {c: ARROW[kind] for c, kind in columns.items()}, key=[next(iter(columns))])
        for time in range(TIMES):
            for name, rows in tables.items():
                lake[name].append(table(name, [row for row in rows if row[-2] == time]), upper=time + 1)
            for number in range(QUERIES if time == first else 0):
                text = Queries(seed * 1_000 + number).query(rng.choice([1, 1, 2])).sql
                text = sqlglot.transpile(text, "duckdb", "spark")[0]
                # What Spark has not, or a view of its SQL may not have, is left out.
                with contextlib.suppress(UsageError):
                    ts.view(spark, lake, f"v{number}", text)
                    views[f"v{number}"] = text
            if time > first and rng.random() < 0.6:
                ts.refresh(spark, lake)
        ts.refresh(spark, lake)
        session = spark.newSession()
        for name, value in ONE_JOB.items():
            session.conf.set(name, value)
        for time in range(TIMES):
            for name, rows in tables.items():
                there = [(*row[:-1], time, 1) for row in contents(rows, time) for _ in range(row[-1])]
                given = table(name, there).select([*BASE[name]])
                session.createDataFrame(given).createOrReplaceTempView(name)
            for name, text in list(views.items()):
                try:
                    wanted = answer(session, text)
                except AnalysisException:
                    # Spark reads it and finds no plan for it, whatever the rows are; a view has one.
                    del views[name]
                    continue
                assert stored(lake[name], time) == wanted, f"seed {seed}: {text} at {time}"
        for name in list(views)[:1]:
            assert ts.verify(spark, lake, name).equal, f"seed {seed}"
    return len(views)


def answer(session: Any, text: str) -> Counter[tuple[Any, ...]]:
    """The rows of a query, with their multiplicities."""
    columns = [map(plain, column.to_pylist()) for column in session.sql(text).toArrow().columns]
    return Counter(zip(*columns, strict=True))


def stored(of: Any, time: int) -> Counter[tuple[Any, ...]]:
    """The rows of a view, with their multiplicities."""
    found, names = Counter[tuple[Any, ...]](), of.schema.names
    for batch in of.snapshot(time):
        columns = [map(plain, batch.column(name).to_pylist()) for name in (*names, DIFF)]
        for *row, many in zip(*columns, strict=True):
            found[tuple(row)] += many
    return found


@pytest.mark.full
@pytest.mark.promise(
    "A view of Spark's SQL is Spark's answer at every time, whatever the query, history and refreshes",
    rule="`views/rules.py`, `SparkEngine` in `spark/views/engine.py`",
)
def test_views_of_random_queries_are_sparks_answers(spark: Any, tmp_path: Path) -> None:
    for seed in range(4):
        assert check(spark, tmp_path / f"lake{seed}", seed)


@pytest.mark.soak
def test_views_of_fresh_random_queries_are_sparks_answers(spark: Any, tmp_path: Path, rng: Random) -> None:
    for number in rounds(full=1, soak=600):
        assert check(spark, tmp_path / f"lake{number}", rng.randrange(1 << 32))
