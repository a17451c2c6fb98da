"""A real PostgreSQL by Debezium, Kafka and Spark into a group of collections, each of them killed amid it."""

import json
import time
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("psycopg")

from run_page import blocks
from tests.cdc.checking import check
from tests.cdc.connector import CONVERTERS, SETTINGS, connector, of_postgres
from tests.cdc.pipeline import PARTS, pipeline
from tests.cdc.workload import Bank
from tests.spark.kafka_broker import broker
from tests.store.servers import postgres

# What transactions must have done at least once.
KINDS = (
    *("inserts", "updates", "deletes", "truncations", "keys changed", "updates that leave large values"),
    *("committed", "rolled back", "savepoints rolled back"),
)


def test_the_page_has_the_settings_of_the_connector_that_is_tested() -> None:
    page = Path(__file__).parents[2] / "docs" / "cdc.md"
    told, _ = [json.loads("\n".join(b.lines)) for b in blocks(page.read_text()) if b.language == "json"]
    told = {name: value for name, value in told.items() if not name.startswith("database.")}
    # There is one broker here, and no copy of a topic.
    assert told | {"topic.creation.default.replication.factor": "1"} == SETTINGS | CONVERTERS


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_truncation_waits_for_the_first_copy() -> None:
    import psycopg

    with (
        postgres(wal_level="logical") as database,
        broker() as server,
        connector(server, of_postgres(database)) as worker,
        psycopg.connect(database.url(), autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY)")
        connection.execute("INSERT INTO a SELECT n, repeat('x', 200) FROM generate_series(1, 60000) n")
        connection.execute("INSERT INTO b VALUES (1); SET lock_timeout = '500ms'")
        worker.start()
        # The tables are read one after the other: b is not yet.
        reads = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT %%' || %s"
        while not connection.execute(reads, ['FROM "public"."a"']).fetchone():
            assert worker.state() != "FAILED", worker.log()
            time.sleep(0.01)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("TRUNCATE b")


@pytest.mark.promise(
    "A PostgreSQL database that is followed through Debezium, Kafka and Spark is in the "
    "collections, row by row, at every position that was looked at, views on them are its answers, and "
    "each time is one whole transaction, whichever of the four is killed and started again; a slot that was "
    "lost stops the stream",
    rule="all of these rules",
)
@pytest.mark.spark
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(1, marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
        pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
    ],
)
def test_the_collections_are_the_database_whatever_is_killed(rounds: int, rng: Random) -> None:
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} s  {text}", flush=True)

    with pipeline() as parts:
        bank = Bank(parts.database, rng.getrandbits(32))
        # The tables are copied while they change.
        bank.start()
        parts.start()
        parts.follow(bank.barrier().lsn)
        for _ in range(rounds):
            for part in rng.sample(PARTS, len(PARTS)):
                parts.kill_amid(part, bank, rng, say)
            checked = check(parts.lake, bank.barriers[-1 - len(PARTS) :])
            assert checked.times > len(PARTS) and checked.rows
            say(f"equal: {checked}")
        checked = check(parts.lake, bank.barriers)
        assert checked.barriers == 1 + rounds * len(PARTS)
        assert not [kind for kind in KINDS if not bank.done[kind]]
        # The connector copies the tables again, since it does not know what has changed meanwhile.
        bank.start()
        parts.lose_slot()
        bank.stop()
        assert "began its first copy of the tables again" in parts.wait_for_the_end()
        assert check(parts.lake, bank.barriers) == checked
