"""The queries of TPC-H and TPC-DS in Spark's SQL are views: see `tests/views/query/test_corpus.py`."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlglot

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from corpus import Rows, appended, corpus, created

import tidelake
from tidelake import spark as ts
from tidelake.errors import UsageError
from tidelake.spark.views.engine import SparkEngine

REFUSED = {17: "stddev_samp", 35: "stddev_samp", 39: "stddev_samp"}


@pytest.mark.parametrize(
    ("name", "queries", "refused"),
    [
        pytest.param("tpch", 22, {}, marks=pytest.mark.full),
        pytest.param("tpcds", 99, REFUSED, marks=pytest.mark.soak),
    ],
)
def test_the_queries_of_a_benchmark_are_accepted_by_spark(
    spark: Any, name: str, queries: int, refused: dict[int, str]
) -> None:
    engine, found, (told, texts) = SparkEngine(spark), dict[int, str](), corpus(name)
    tables = {
        table: {column: type_.replace("VARCHAR", "STRING") for column, type_ in columns.items()}
        for table, columns in told.items()
    }
    assert len(texts) == queries
    for number, text in enumerate(texts, 1):
        try:
            assert engine.compiled(sqlglot.transpile(text, "duckdb", "spark")[0], tables.get).stages
        except UsageError as error:
            found[number] = str(error)
    assert found.keys() == refused.keys()
    assert all(why in found[number] for number, why in refused.items())


def follow(spark: Any, place: Path, random: Random, name: str, numbers: list[int]) -> int:
    """Make views of some queries, refresh them after changes, and compare each time. Returns how many."""
    (tables, texts), views = corpus(name), list[str]()
    rows = Rows(random, tables, texts)
    with tidelake.open(place) as lake:
        created(lake, tables)
        appended(lake, rows, 0, gone=0, come=30)
        for number in numbers:
            ts.view(spark, lake, f"q{number}", sqlglot.transpile(texts[number - 1], "duckdb", "spark")[0])
            views.append(f"q{number}")
        for time in (1, 3):
            appended(lake, rows, time, gone=4, come=3)
            appended(lake, rows, time + 1, gone=3, come=4)
            ts.refresh(spark, lake)
            for view in views:
                found = ts.verify(spark, lake, view)
                assert found.equal, f"{name} {found}"
    return len(views)


@pytest.mark.full
@pytest.mark.promise(
    "Views of TPC-H's queries in Spark's SQL are Spark's answers after rows came, went and were corrected",
    rule="`views/rules.py`, `SparkEngine` in `spark/views/engine.py`",
)
def test_some_queries_of_a_benchmark_stay_sparks_answers(spark: Any, tmp_path: Path, rng: Random) -> None:
    # An aggregate, an outer join with two groups, and a subquery.
    assert follow(spark, tmp_path, rng, "tpch", [1, 13, 4]) == 3


@pytest.mark.soak
@pytest.mark.parametrize(("name", "queries"), [("tpch", 22), ("tpcds", 99)])
def test_all_queries_of_a_benchmark_stay_sparks_answers(
    spark: Any, tmp_path: Path, rng: Random, name: str, queries: int
) -> None:
    for number in range(1, queries + 1):
        if name == "tpch" or number not in REFUSED:
            assert follow(spark, tmp_path / f"{number}", rng, name, [number])
