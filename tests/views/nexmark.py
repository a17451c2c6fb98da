"""Nexmark: people, auctions and bids that are corrected, and the queries whose answers are corrected too."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa

import tidelake
from tidelake.lake.api.lake import Lake

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
