"""Shows a database that is followed, by `make demo-cdc`; see docs/cdc.md.

python -m tests.cdc [SEED]
"""

import os
import shutil
import sys
import time
from random import Random

from tests.cdc.bank_views import VIEWS
from tests.cdc.checking import check
from tests.cdc.pipeline import PARTS, pipeline
from tests.cdc.workload import TABLES, Bank
from tests.spark.kafka_broker import jars
from tests.store.servers import found_program

_BEGAN_S = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _BEGAN_S:6.1f} s  {text}", flush=True)


def main(seed: str = "0") -> int:
    """Run it; 1 if one row differs from the database, or something is not there that it needs."""
    random = Random(int(seed))
    if missing := _missing():
        say(f"This cannot be shown here, as there is no {', no '.join(missing)}: `setup/servers.sh` says why")
        return 1
    try:
        return _run(random)
    except AssertionError as error:
        say(f"The collections differ from the database: {error}")
    return 1


def _missing() -> list[str]:
    """What is not on this machine of all that it needs."""
    java = os.environ.get("JAVA_HOME", "") or shutil.which("java")
    programs = [name for name in ("postgres", "initdb") if found_program(name) is None]
    folders = {"kafka": "Kafka", "spark-kafka": "Kafka for Spark", "debezium": "Debezium"}
    return [
        *([] if java else ["Java"]),
        *programs,
        *(told for name, told in folders.items() if not jars(name)),
    ]


def _run(random: Random) -> int:
    say("Starting PostgreSQL (wal_level=logical) and Kafka, on this machine only")
    with pipeline() as parts:
        bank = Bank(parts.database, random.getrandbits(32))
        say(f"Four connections change the tables {', '.join(TABLES)} all the time")
        bank.start()
        say("Starting Debezium: it copies the tables, and then sends every change to one topic of Kafka")
        parts.connector.start()
        parts.connector.wait()
        say("Starting a driver of Spark: tables_sink follows the topic into a group of collections; then it")
        say(f"refreshes views, of which some stand on others: {', '.join(VIEWS)}")
        parts.driver.start()
        parts.follow(bank.barrier().lsn)
        for part in random.sample(PARTS, len(PARTS)):
            parts.kill_amid(part, bank, random, say)
        say(f"The transactions: {', '.join(f'{count} {kind}' for kind, count in sorted(bank.done.items()))}")
        for barrier in bank.barriers:
            rows = ", ".join(f"{table} {len(found)}" for table, found in barrier.tables.items())
            say(f"As of {barrier.lsn} the collections must have: {rows}")
        checked = check(parts.lake, bank.barriers)
        say(
            f"Equal, as are the views to their queries in PostgreSQL: {checked.rows} rows at "
            f"{checked.barriers} positions; and each of {checked.times} times "
            "between them is one whole transaction"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
