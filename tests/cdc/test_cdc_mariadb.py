"""A real MariaDB by Debezium, Kafka and Spark into collections: its tables change, and parts are killed."""

import time
from random import Random

import pytest

pytest.importorskip("pyspark")

from tests.cdc.mariadb import DATABASE, mariadb, of_mariadb
from tests.cdc.pipeline import pipeline
from tests.cdc.shop import CHANGES, Shop, check

_PARTS = ("driver", "kafka", "connector", "mariadb")
_ROUNDS = 2
# What transactions must have done at least once.
_KINDS = (
    *("inserts", "updates", "deletes", "keys changed", "truncations", "committed", "rolled back"),
    *("savepoints rolled back", *(kind for kind, _ in CHANGES)),
)


@pytest.mark.promise(
    "Collections are a MariaDB at every barrier, without GTIDs, whose rows, keys and columns change "
    "and whose tables are truncated, whatever is killed",
    rule="`_of_connector` in `cdc/times/positions.py`, `feeds/tabletargets.py`",
    also=["spark/envelopes/test_commit_times.py"],
)
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(0)
def test_the_collections_are_a_mariadb_whose_tables_change(rng: Random) -> None:
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} s  {text}", flush=True)

    with pipeline(mariadb, of_mariadb) as parts:
        shop = Shop(parts.database, rng.getrandbits(32))
        shop.start()
        parts.start()
        parts.follow(shop.barrier().lsn)
        for _ in range(_ROUNDS):
            for _ in CHANGES:
                shop.start()
                time.sleep(rng.uniform(0.5, 1.5))
                shop.change()
                time.sleep(rng.uniform(0.5, 1.5))
                parts.follow(shop.barrier().lsn)
            say(
                f"equal after changes of tables: {check(parts.lake, shop.barriers[-1 - len(CHANGES) :])} rows"
            )
            for part in rng.sample(_PARTS, len(_PARTS)):
                parts.kill_amid(part, shop, rng, say)
            say(f"equal after kills: {check(parts.lake, shop.barriers[-1 - len(_PARTS) :])} rows")
        say(f"{len(shop.barriers)} barriers; {dict(shop.done)}")
        assert not [kind for kind in _KINDS if not shop.done[kind]]
        # Rows that the new key tells apart would replace each other.
        parts.database.run(
            f"USE {DATABASE}; ALTER TABLE wiped DROP PRIMARY KEY, ADD PRIMARY KEY (id, tx);"
            "INSERT INTO wiped VALUES (-1, 'a', 1), (-1, 'b', 2)"
        )
        assert "the key of the collection is 'id'" in parts.wait_for_the_end()
        check(parts.lake, shop.barriers)
