"""A real PostgreSQL by Debezium, Kafka and Spark into a group of collections, each of them killed amid it."""

from random import Random

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("psycopg")

from tests.cdc.checking import check
from tests.cdc.pipeline import PARTS, pipeline
from tests.cdc.workload import Bank

# What transactions must have done at least once.
KINDS = (
    *("inserts", "updates", "deletes", "keys changed", "updates that leave large values"),
    *("committed", "rolled back", "savepoints rolled back"),
)


@pytest.mark.spark
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.full), pytest.param(20, marks=pytest.mark.soak)]
)
def test_the_collections_are_the_database_whatever_is_killed(rounds: int, rng: Random) -> None:
    with pipeline() as parts:
        bank = Bank(parts.database, rng.getrandbits(32))
        # The tables are copied while they change.
        bank.start()
        parts.start()
        barrier = bank.barrier()
        lake = parts.follow(barrier.lsn)
        for _ in range(rounds):
            for part in rng.sample(PARTS, len(PARTS)):
                lake = parts.kill_amid(part, bank, rng)
            checked = check(lake, bank.barriers[-1 - len(PARTS) :])
            assert checked.times > len(PARTS) and checked.rows
        checked = check(lake, bank.barriers)
        assert checked.barriers == 1 + rounds * len(PARTS)
        assert not [kind for kind in KINDS if not bank.done[kind]]
        # The connector copies the tables again, since it does not know what has changed meanwhile.
        bank.start()
        parts.lose_slot()
        bank.stop()
        assert "began its first copy of the tables again" in parts.wait_for_the_end()
        assert check(lake, bank.barriers) == checked
