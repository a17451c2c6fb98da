"""The queries of Nexmark whose answers are corrected, as views over bids that are corrected too."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

pytest.importorskip("duckdb")

import tidelake
from killed import killed_before
from tidelake.lake.api.lake import Lake
from tiers import rounds

TABLES = {
    "person": {"id": "int64", "name": "string", "city": "string", "state": "string", "ts": "int64"},
    "auction": {"id": "int64", "category": "int64", "seller": "int64", "expires": "int64", "ts": "int64"},
    "bid": {"id": "int64", "auction": "int64", "bidder": "int64", "price": "int64", "ts": "int64"},
}
MEETS = "auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires"
# Windows of ten seconds; those of query 5 begin every two.
HOPS = "SELECT auction, unnest(range(ts // 2 * 2 - 8, ts // 2 * 2 + 1, 2)) AS start FROM bid"
QUERIES = {
    "q3": (
        "SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"
    ),
    "q4": (
        f"SELECT category, avg(final) AS price FROM (SELECT a.category, max(b.price) AS final FROM {MEETS} "
        "GROUP BY a.id, a.category) GROUP BY category"
    ),
    "q5": (
        f"SELECT auction, start, count(*) AS num FROM ({HOPS}) GROUP BY auction, start "
        "QUALIFY count(*) = max(count(*)) OVER (PARTITION BY start)"
    ),
    "q7": (
        "SELECT b.auction, b.price, b.bidder, b.ts FROM bid b JOIN (SELECT ts // 10 AS w, max(price) AS most "
        "FROM bid GROUP BY ts // 10) m ON b.ts // 10 = m.w AND b.price = m.most"
    ),
    "q8": (
        "SELECT p.id, p.name, p.ts // 10 AS w FROM person p JOIN (SELECT DISTINCT seller, ts // 10 AS w "
        "FROM auction) a ON p.id = a.seller AND p.ts // 10 = a.w"
    ),
    "q9": (
        f"SELECT a.id, a.category, a.seller, b.bidder, b.price, b.ts FROM {MEETS} "
        "QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts, b.id) = 1"
    ),
    "q18": (
        "SELECT * FROM bid QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC, id) = 1"
    ),
    "q19": (
        "SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, id) AS place FROM bid "
        "QUALIFY place <= 10"
    ),
    "q20": (
        "SELECT b.id, b.auction, b.price, a.category, a.seller FROM bid b JOIN auction a ON b.auction = a.id "
        "WHERE a.category = 10"
    ),
}
# Each stands on the one before, and all on query 9.
CHAIN = {
    "sellers": "SELECT seller, count(*) AS sold, sum(price) AS turnover FROM q9 GROUP BY seller",
    "best": "SELECT seller, turnover FROM sellers ORDER BY turnover DESC, seller LIMIT 3",
    "named": "SELECT best.*, p.name FROM best LEFT JOIN person p ON best.seller = p.id",
}


class Market:
    """People, auctions and bids: new ones, corrected ones, and ones that are taken back."""

    def __init__(self, place: Path, random: Random) -> None:
        self.place, self.time, self._random = place, 0, random
        with tidelake.open(place) as lake:
            for name, columns in TABLES.items():
                lake.create(name, columns, key=["id"])

    def trade(self, lake: Lake, many: int) -> None:
        """One transaction."""
        with lake.transaction(time=self.time) as transaction:
            for name, share in (("person", 1), ("auction", 2), ("bid", 6)):
                rows = list(self._rows(name, many * share))
                names = [*TABLES[name], "gone"]
                table = pa.table({one: [row[one] for row in rows] for one in names})
                transaction.upsert(name, table, delete_column="gone")
        self.time += 1

    def _rows(self, name: str, many: int) -> Iterator[dict[str, object]]:
        pick = self._random.randrange
        for id_ in self._random.sample(range(many * 12), many):
            row: dict[str, object] = {"id": id_, "ts": pick(60), "gone": self._random.random() < 0.2}
            match name:
                case "person":
                    row |= {
                        "name": f"n{pick(9)}",
                        "city": f"c{pick(4)}",
                        "state": ["OR", "ID", "CA", "WA"][pick(4)],
                    }
                case "auction":
                    row |= {"category": 9 + pick(3), "seller": pick(40), "expires": pick(90)}
                case _:
                    row |= {"auction": pick(80), "bidder": pick(20), "price": pick(50)}
            yield row


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
