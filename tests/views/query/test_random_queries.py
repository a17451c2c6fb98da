"""Random queries over random tables: a plan answers as DuckDB does."""

import pytest
from query_cases import Databases
from random_queries import BASE, Queries, rows

from tiers import rounds

duckdb = pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def databases():
    made = Databases(duckdb)
    yield made
    made.close()


def _check(databases, first, depth, number):
    if number % 5 == 0:
        for name in BASE:
            databases.fill(name, rows(first + number, name))
    query = Queries(first + number).query(depth).sql
    found, wanted = databases.answers(query)
    assert found == wanted, f"query {first + number}: {query}"


@pytest.mark.grows
def test_a_plan_of_a_random_query_answers_as_the_engine_does(databases):
    for number in rounds(fast=0.5, full=36, soak=3_600, least=3):
        _check(databases, 100_000, 1 + number % 2, number)


@pytest.mark.full
def test_a_plan_of_a_query_nested_three_deep_answers_as_the_engine_does(databases):
    for number in rounds(full=58, soak=7_200, least=20):
        _check(databases, 500_000, 3, number)
