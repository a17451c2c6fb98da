"""The queries of TPC-H and TPC-DS are views, which stay DuckDB's answers."""

from random import Random

import pytest

pytest.importorskip("duckdb")

from corpus import Rows, appended, corpus, created

import tidelake
from tidelake.views.plan import recomputes_whole
from tidelake.views.query.compile import compiled

# Of random days a month has several numbers, where it asks for one.
NO_ANSWER = {("tpcds", 6)}


def follow(place, rng, name, numbers, refreshes):
    """Make views of some queries, and compare them with these after each refresh; half span two times."""
    tables, texts = corpus(name)
    rows = Rows(rng, tables, texts)
    with tidelake.open(place) as lake:
        created(lake, tables)
        appended(lake, rows, 0, gone=0, come=30)
        for number in numbers:
            lake.view(f"q{number}", texts[number - 1])
        time = 1
        for _ in range(refreshes):
            for _ in range(rng.choice([1, 2])):
                appended(lake, rows, time, gone=3, come=3)
                time += 1
            lake.refresh()
            for number in numbers:
                found = lake.verify(f"q{number}")
                assert found.equal, f"{name} {found}"


@pytest.mark.parametrize(
    ("name", "queries", "whole_most"),
    [
        pytest.param("tpch", 22, 0, marks=pytest.mark.full),
        pytest.param("tpcds", 99, 2, marks=pytest.mark.soak),
    ],
)
def test_the_queries_of_a_benchmark_are_accepted(name, queries, whole_most):
    tables, texts = corpus(name)
    plans = [compiled(text, tables.get) for text in texts]
    assert len(plans) == queries
    assert sum(any(map(recomputes_whole, plan.stages)) for plan in plans) <= whole_most


@pytest.mark.full
@pytest.mark.promise(
    "Views of TPC-H's queries are DuckDB's answers after rows came, went and were corrected",
    rule="`views/rules.py`",
)
def test_some_queries_of_a_benchmark_stay_its_answers(tmp_path, rng):
    # An aggregate, outer joins, a top ten, and subqueries.
    follow(tmp_path, rng, "tpch", [1, 2, 3, 4, 13, 21, 22], 3)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "queries"), [("tpch", 22), ("tpcds", 99)])
def test_all_queries_of_a_benchmark_stay_its_answers(tmp_path, rng: Random, name, queries):
    for first in range(1, queries + 1, 11):
        numbers = [number for number in range(first, first + 11) if (name, number) not in NO_ANSWER]
        follow(tmp_path / str(first), rng, name, numbers, 20)
