"""Eight processes that append to one shard whose log is in PostgreSQL, against bare compare-and-sets there.

    python -m bench.postgres_log postgresql://user@host/database [ROUNDS]

*Bare*: all processes raise one number, `UPDATE ... SET v = e + 1 WHERE v = e`, in transactions of their own;
who loses reads it and tries again. *Commits*: the same with entries of a log on one key, of as many bytes as
those of appends. *Appends*: all append to one collection, ten updates each. What is compared takes turns, and
the median of the rounds counts. Makes a database of its own on the server, and drops it.
"""

import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg

import tidelake
from bench.appends import SCHEMA, Numbers, inserts
from bench.contention import (
    PROCESSES,
    ROUNDS,
    Work,
    check_rows,
    entry_bytes,
    least_to_mean,
    median_rates,
    together,
)
from tidelake.env import SystemClock
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.log import PostgresVersionLog, create_log

PLACE = "memory://bench"


def raising(_place: Path, url: str) -> Iterator[Work]:
    """Raise the number by one."""
    with psycopg.connect(url, autocommit=True) as connection:
        known = 0

        def read() -> int:
            row = connection.execute("SELECT v FROM bare").fetchone()
            return int(row[0]) if row else 0

        def raise_() -> None:
            nonlocal known
            while not connection.execute("UPDATE bare SET v = %s + 1 WHERE v = %s", (known, known)).rowcount:
                known = read()
            known += 1

        yield raise_


def committing(_place: Path, url: str, lake: str, size_bytes: int) -> Iterator[Work]:
    """Append an entry to the log."""
    log = PostgresVersionLog(Address(url), lake, PLACE, SystemClock())
    data, known = bytes(size_bytes), 0

    def commit() -> None:
        nonlocal known
        while not log.compare_and_set("k", known, data):
            head = log.head("k")
            known = head.seqno if head else 0
        known += 1

    yield commit
    log.close()


def appending(place: Path, url: str) -> Iterator[Work]:
    """Append ten updates to the collection."""
    with tidelake.open(place / "lake", log=url) as lake:
        collection = lake.collection("c")
        tables = list(inserts(1_000))
        count = 0

        def append() -> None:
            nonlocal count
            collection.append(tables[count % len(tables)])
            count += 1

        yield append


def one_key(url: str, seconds: float, processes: int, rounds: int) -> Numbers:
    """All on one key, beside one process alone."""
    size_bytes = entry_bytes()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (v bigint) WITH (fillfactor = 50)")
        connection.execute("INSERT INTO bare VALUES (0)")
    lake_id = create_log(Address(url), uuid.uuid4().hex, PLACE, SystemClock())
    log = PostgresVersionLog(Address(url), lake_id, PLACE, SystemClock())
    log.compare_and_set("k", None, b"")
    log.close()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with tidelake.open(place / "lake", log=url) as lake:
            lake.create("c", SCHEMA, key=["key"])

        def load(kind: object, count: int, *given: object) -> object:
            return lambda: together(kind, place, [given] * count, seconds)  # type: ignore[arg-type]

        rates, shares = median_rates(
            {
                "appends": load(appending, processes, url),
                "commits": load(committing, processes, url, lake_id, size_bytes),
                "bare": load(raising, processes, url),
                "append_alone": load(appending, 1, url),
                "commit_alone": load(committing, 1, url, lake_id, size_bytes),
                "bare_alone": load(raising, 1, url),
            },  # type: ignore[arg-type]
            seconds,
            rounds,
        )
        with tidelake.open(place / "lake", log=url) as lake:
            collection = lake.collection("c")
            check_rows(collection, collection.state().written.appended_rows)
    return {
        "entry_bytes": float(size_bytes),
        **{f"{name}_s": rate for name, rate in rates.items()},
        "commits_to_bare": rates["commits"] / rates["bare"],
        "appends_to_bare": rates["appends"] / rates["bare"],
        "commit_alone_to_bare": rates["commit_alone"] / rates["bare_alone"],
        "least_to_mean": least_to_mean(shares),
    }


def main(url: str, rounds: int = ROUNDS) -> None:
    """Measure on a server."""
    name = f"bench{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            own = url.rpartition("/")[0] + f"/{name}"
            numbers = one_key(own, 3.0, PROCESSES, rounds)
            print({name: round(n, 3) for name, n in numbers.items() if not isinstance(n, list)})
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
