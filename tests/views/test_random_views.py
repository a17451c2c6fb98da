"""The judge of all of views: random queries over random histories, random cuts and kills, through a lake."""

import pytest
from random_lakes import check, texts

from tidelake.views import state
from tiers import rounds

duckdb = pytest.importorskip("duckdb")

# 2,016 cases in the full tier: each of 672 queries over three histories.
PARTS, SETS, QUERIES, HISTORIES = 8, 3, 28, 3


@pytest.mark.parametrize("rows_per_key", [0, 10**9])
def test_views_store_how_the_answers_of_their_queries_differ(tmp_path, monkeypatch, rows_per_key):
    # All is looked up by keys, or read whole.
    monkeypatch.setattr(state, "_ROWS_PER_KEY", rows_per_key)
    assert check(duckdb, tmp_path / "lake", 7, texts(7, 4))


@pytest.mark.full
@pytest.mark.promise(
    "A view stores, row for row, how the answers of its query over the snapshots differ from one time to the "
    "next, whatever the query, the history, the refreshes and the kills",
    rule="`views/rules.py`, `compare_and_append` in `views/refresh.py`",
)
@pytest.mark.parametrize("part", range(PARTS))
def test_views_of_many_random_queries_are_exact_at_every_time(tmp_path, part):
    for number in range(part * SETS, (part + 1) * SETS):
        queries = texts(number, QUERIES)
        for history in range(HISTORIES):
            seed = number * HISTORIES + history
            assert check(duckdb, tmp_path / f"lake{seed}", seed, queries) > QUERIES // 2


@pytest.mark.soak
def test_views_of_fresh_random_queries_are_exact_at_every_time(tmp_path, rng):
    for number in rounds(full=1, soak=3_600):
        queries = texts(rng.randrange(1 << 32), QUERIES)
        for history in range(HISTORIES):
            check(duckdb, tmp_path / f"lake{number}-{history}", rng.randrange(1 << 32), queries)
