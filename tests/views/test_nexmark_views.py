"""The queries of Nexmark whose answers are corrected, as views over bids that are corrected too."""

from pathlib import Path
from random import Random

import pytest

pytest.importorskip("duckdb")

from nexmark import QUERIES, Market

import tidelake
from killed import killed_before
from tidelake.lake.api.lake import Lake
from tiers import rounds

# Each stands on the one before, and all on query 9.
CHAIN = {
    "sellers": "SELECT seller, count(*) AS sold, sum(price) AS turnover FROM q9 GROUP BY seller",
    "best": "SELECT seller, turnover FROM sellers ORDER BY turnover DESC, seller LIMIT 3",
    "named": "SELECT best.*, p.name FROM best LEFT JOIN person p ON best.seller = p.id",
}


def verified(lake: Lake, names: list[str], times: set[int]) -> None:
    for name in names:
        for time in sorted(times):
            found = lake.verify(name, at=time)
            assert found.equal, f"{name} at {time}: {found}"


def refresh(place: Path) -> None:
    with tidelake.open(place) as lake:
        lake.refresh()


@pytest.mark.promise(
    "Nexmark's queries with retractions, as views, are the queries recomputed, at random times",
    rule="`views/rules.py`",
)
@pytest.mark.full
def test_nexmarks_queries_are_the_queries_recomputed(tmp_path: Path, rng: Random) -> None:
    market = Market(tmp_path / "lake", rng)
    with tidelake.open(market.place) as lake:
        market.trade(lake, 4)
        for name, sql in QUERIES.items():
            lake.view(name, sql)
        for _ in range(6):
            market.trade(lake, 4)
            if rng.random() < 0.6:
                lake.refresh()
        lake.refresh()
        verified(lake, [*QUERIES], {market.time - 1, rng.randrange(market.time)})


@pytest.mark.promise(
    "A chain of views whose refreshes are killed again and again is its queries, at random times",
    rule="`compare_and_append` in `views/refresh.py`",
)
@pytest.mark.full
@pytest.mark.grows
def test_a_chain_whose_refreshes_are_killed_is_its_queries(tmp_path: Path, rng: Random) -> None:
    market = Market(tmp_path / "lake", rng)
    names = ["q9", *CHAIN]
    with tidelake.open(market.place) as lake:
        market.trade(lake, 4)
        lake.view("q9", QUERIES["q9"])
        for name, sql in CHAIN.items():
            lake.view(name, sql, together=rng.choice(["", "board"]) if name != "sellers" else "")
    killed = list[bool]()
    for _ in rounds(full=5, soak=300, least=3, soak_until=lambda: sum(killed) >= 50):
        with tidelake.open(market.place) as lake:
            for _ in range(rng.randint(1, 3)):
                market.trade(lake, 4)
        killed.append(not killed_before(market.place, refresh, rng.randrange(1, 60)))
    assert any(killed)
    with tidelake.open(market.place) as lake:
        lake.refresh()
        verified(lake, names, {market.time - 1, *(rng.randrange(market.time) for _ in range(3))})
