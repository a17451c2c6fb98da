"""Eight processes that append to one shard whose log is in PostgreSQL, against bare compare-and-sets there.

    python -m bench.postgres_log postgresql://user@host/database [ROUNDS]

*Bare*: all processes raise one number, `UPDATE ... SET v = e + 1 WHERE v = e`, in transactions of their own;
who loses reads it and tries again. *Commits*: the same with entries of a log on one key, of as many bytes as
those of appends. *Appends*: all append to one collection, ten updates each. What is compared takes turns, and
the median of the rounds counts. Makes a database of its own on the server, and drops it.
"""

import multiprocessing
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypeAlias

import psycopg

import tidelake
from bench.appends import SCHEMA, Numbers, inserts
from bench.contention import PROCESSES, ROUNDS, Work, check_rows, entry_bytes, least_to_mean
from tidelake.env import SystemClock
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.log import PostgresVersionLog, create_log

PLACE = "memory://bench"
Turns: TypeAlias = tuple[Barrier, float, int]
Count: TypeAlias = tuple[str, int, int]


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


def taking_turns(
    number: int, place: Path, log: tuple[str, str, int], turns: Turns, counts: "Queue[Count]"
) -> None:
    """A process: each kind of work for some seconds, in turn with the others; then what it did alone."""
    (url, lake, size_bytes), (start, seconds, rounds) = log, turns
    loads = {
        "bare": raising(place, url),
        "commits": committing(place, url, lake, size_bytes),
        "appends": appending(place, url),
    }
    works = {name: next(load) for name, load in loads.items()}
    for _ in range(rounds):
        for name, work in works.items():
            for alone in (False, True):
                start.wait()
                end_s, count = time.monotonic() + seconds, 0
                while time.monotonic() < end_s and (number == 0 or not alone):
                    work()
                    count += 1
                counts.put((f"{name}, alone" if alone else name, number, count))
    for load in loads.values():
        next(load, None)


def one_key(url: str, seconds: float, processes: int, rounds: int) -> Numbers:
    """All on one key, and one process alone, in turn. The smallest share is of the worst round of appends."""
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
        spawn = multiprocessing.get_context("spawn")
        turns, counts = (spawn.Barrier(processes), seconds, rounds), spawn.Queue()
        children = [
            spawn.Process(
                target=taking_turns, args=(n, place, (url, lake_id, size_bytes), turns, counts), daemon=True
            )
            for n in range(processes)
        ]
        for child in children:
            child.start()
        told = [counts.get(timeout=600) for _ in range(6 * rounds * processes)]
        for child in children:
            child.join()
        with tidelake.open(place / "lake", log=url) as lake:
            collection = lake.collection("c")
            check_rows(collection, collection.state().written.appended_rows)
    done: dict[str, list[list[int]]] = {}
    for load, number, count in told:
        done.setdefault(load, [[] for _ in range(processes)])[number].append(count)
    sums = {load: [sum(of_round) for of_round in zip(*found, strict=True)] for load, found in done.items()}
    rates = {load: statistics.median(found) / seconds for load, found in sums.items()}
    return {
        "entry_bytes": float(size_bytes),
        **{f"{load}_s": rate for load, rate in rates.items()},
        "commits_to_bare": rates["commits"] / rates["bare"],
        "appends_to_bare": rates["appends"] / rates["bare"],
        "commit_alone_to_bare": rates["commits, alone"] / rates["bare, alone"],
        "least_to_mean": least_to_mean([list(shares) for shares in zip(*done["appends"], strict=True)]),
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
