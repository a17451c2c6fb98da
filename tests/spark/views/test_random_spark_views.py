"""Random queries in Spark's SQL over random histories: a view is Spark's answer at every time."""

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlglot

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from random_lakes import ARROW, TIMES, history, table
from random_queries import BASE, Queries

import tidelake
from tidelake import spark as ts
from tidelake.errors import UsageError
from tiers import rounds

QUERIES = 6


def check(spark: Any, place: Path, seed: int) -> int:
    """Make views of random queries, refresh them at random times, and compare each time. Returns how many."""
    rng, views = Random(seed), list[str]()
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
                # What Spark has not, or a view of its SQL may not have, is left out.
                with contextlib.suppress(UsageError):
                    ts.view(spark, lake, f"v{number}", sqlglot.transpile(text, "duckdb", "spark")[0])
                    views.append(f"v{number}")
            if time > first and rng.random() < 0.6:
                ts.refresh(spark, lake)
        ts.refresh(spark, lake)
        for name in views:
            for time in range(TIMES):
                found = ts.verify(spark, lake, name, time)
                assert found.equal, f"seed {seed}: {found}"
    return len(views)


@pytest.mark.soak
def test_views_of_random_queries_are_sparks_answers(spark: Any, tmp_path: Path, rng: Random) -> None:
    for number in rounds(full=1, soak=600):
        check(spark, tmp_path / f"lake{number}", rng.randrange(1 << 32))
