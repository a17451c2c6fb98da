"""A shop in MariaDB: several connections change its rows and its tables; and what it holds at barriers."""

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from tests.cdc.mariadb import DATABASE, MariaServer

_TABLES = """
CREATE TABLE items (id bigint PRIMARY KEY, n int, note varchar(200), body mediumtext, price decimal(12,2),
  at datetime(6), tx bigint NOT NULL);
CREATE TABLE places (place int, name varchar(20), qty int, tx bigint NOT NULL, PRIMARY KEY (place, name));
CREATE TABLE wiped (id bigint PRIMARY KEY, v text, tx bigint NOT NULL);
CREATE TABLE barriers (n int PRIMARY KEY, tx bigint NOT NULL);
CREATE TABLE beats (n bigint PRIMARY KEY);
INSERT INTO beats VALUES (1);
"""
TABLES = ("items", "places", "wiped", "barriers")
# How tables change, one after the other. What a statement writes no row of is written then.
CHANGES = (
    ("columns added", "ALTER TABLE items ADD COLUMN more{n} int NULL AFTER n; UPDATE items SET more{n} = id"),
    ("columns retyped", "ALTER TABLE items ADD COLUMN wide{n} int NULL; UPDATE items SET wide{n} = 7;"
     "ALTER TABLE items MODIFY COLUMN wide{n} bigint NULL; UPDATE items SET wide{n} = id + 5000000000"),
    ("columns renamed", "ALTER TABLE items RENAME COLUMN more{n} TO other{n}; UPDATE items SET tx = tx + 1"),
    ("columns dropped", "ALTER TABLE items DROP COLUMN other{n}"),
    ("columns added again", "ALTER TABLE items ADD COLUMN other{n} int NULL; UPDATE items SET other{n} = 3"),
    ("truncations amid", "TRUNCATE TABLE items"),
)  # fmt: skip


@dataclass(frozen=True)
class Barrier:
    """The whole database at a moment at which no transaction changed it.

    Attributes:
        n: its number.
        lsn: the position in the binlog, as a time of the collections.
        tables: the columns of each table, and its rows as texts.
    """

    n: int
    lsn: int
    tables: dict[str, tuple[list[str], list[tuple[str | None, ...]]]] = field(repr=False)


class Shop:
    """The database, and the connections that change it.

    Args:
        server: the server.
        seed: of the random choices.
        connections: that change the database at once.
    """

    def __init__(self, server: MariaServer, seed: int, connections: int = 3) -> None:
        self.server = server
        self.barriers: list[Barrier] = []
        self.done: Counter[str] = Counter()
        self._connections = connections
        self._random = Random(seed)
        self._numbers = count(1)
        self._changes = ((n, *change) for n in count() for change in CHANGES)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        server.run(f"CREATE DATABASE {DATABASE}; USE {DATABASE}; {_TABLES}")

    def start(self) -> None:
        """Let all connections begin."""
        self._stop.clear()
        seeds = [self._random.getrandbits(32) for _ in range(self._connections)]
        self._threads = [
            threading.Thread(target=self._run, args=(Random(seed),), daemon=True) for seed in seeds
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until all connections have ended their transactions."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def change(self) -> None:
        """Change a table while its rows are changed."""
        n, kind, script = next(self._changes)
        for statement in script.format(n=n).split(";"):
            while self._taken(f"{statement};") is None:
                # A deadlock with a transaction.
                self.done["given up by MariaDB"] += 1
        self.done[kind] += 1

    def barrier(self) -> Barrier:
        """Commit a row of its own while all connections wait, and read the whole database."""
        self.stop()
        n = len(self.barriers)
        self.server.run(f"INSERT INTO {DATABASE}.barriers VALUES ({n}, {next(self._numbers)})")
        ((file, at),) = [line.split("\t")[:2] for line in self.server.run("SHOW MASTER STATUS") or ()]
        tables = {table: self._rows(table) for table in TABLES}
        # It shows that the one before is whole. The connector's own beat is not sent again after a kill.
        self.server.run(f"UPDATE {DATABASE}.beats SET n = n + 1")
        self.barriers.append(Barrier(n, int(file.rpartition(".")[2]) << 32 | int(at), tables))
        return self.barriers[-1]

    def _rows(self, table: str) -> tuple[list[str], list[tuple[str | None, ...]]]:
        of_table = f"table_schema = '{DATABASE}' AND table_name = '{table}'"
        names = self.server.run(
            f"SELECT column_name FROM information_schema.columns WHERE {of_table} ORDER BY ordinal_position"
        )
        columns = ", ".join(f"CAST({name} AS CHAR)" for name in names or ())
        rows = self.server.run(f"SELECT JSON_ARRAY({columns}) FROM {DATABASE}.{table}")
        return names or [], [tuple(json.loads(row)) for row in rows or ()]

    def _run(self, random: Random) -> None:
        while not self._stop.is_set():
            kinds, script = self._transaction(random)
            if self._taken(script) is not None:
                self.done.update(kinds)
            else:
                self.done["given up by MariaDB"] += 1
            self._stop.wait(random.random() * 0.1)

    def _taken(self, script: str) -> list[str] | None:
        return self.server.run(f"USE {DATABASE}; {script}", check=False)

    def _transaction(self, random: Random) -> tuple[list[str], str]:
        tx = next(self._numbers)
        if random.random() < 0.03:
            return ["truncations"], "TRUNCATE TABLE wiped"
        kinds, script = [], ["START TRANSACTION"]
        for _ in range(random.randint(1, 5)):
            kind, step = self._step(random, tx)
            if random.random() < 0.2:
                script += ["SAVEPOINT s", step, "ROLLBACK TO SAVEPOINT s"]
                kinds.append("savepoints rolled back")
            else:
                script.append(step)
                kinds.append(kind)
        if random.random() < 0.1:
            return ["rolled back"], "; ".join([*script, "ROLLBACK"])
        return [*kinds, "committed"], "; ".join([*script, "COMMIT"])

    def _step(self, random: Random, tx: int) -> tuple[str, str]:
        new = next(self._numbers)
        note = random.choice(["NULL", "''", "'ü€\\\\n\\''", "'x'"])
        body = random.choice(["NULL", "REPEAT('long', 2000)"])
        at = random.choice(["NULL", "NOW(6)", "'1815-06-18 11:35:00.000001'"])
        some = "ORDER BY RAND() LIMIT 1"
        name = "".join(random.choice("abcdefgh") for _ in range(6))
        return random.choice(
            [
                (
                    "inserts",
                    f"INSERT INTO items (id, n, note, body, price, at, tx) VALUES ({new}, {new % 9}, {note}, "
                    f"{body}, {random.randint(-(10**6), 10**6)} / 100, {at}, {tx})",
                ),
                ("inserts", f"INSERT INTO places VALUES ({new % 5}, '{name}', 1, {tx})"),
                ("inserts", f"INSERT INTO wiped VALUES ({new}, {note}, {tx})"),
                ("updates", f"UPDATE items SET n = n + 1, tx = {tx} {some}"),
                ("updates", f"UPDATE places SET qty = qty + 1, tx = {tx} {some}"),
                ("keys changed", f"UPDATE items SET id = {new}, tx = {tx} {some}"),
                ("keys changed", f"UPDATE places SET name = '{name}', tx = {tx} {some}"),
                ("deletes", f"DELETE FROM items {some}"),
                ("deletes", f"DELETE FROM wiped {some}"),
            ]
        )


def check(lake: Any, barriers: list[Barrier]) -> int:
    """Compare all rows of all tables at barriers; how many there were.

    Raises:
        AssertionError: they differ; names the barrier, the table and some rows.
    """
    total = 0
    for barrier in barriers:
        for table, (columns, rows) in barrier.tables.items():
            name = f"bank.{DATABASE}.{table}"
            # Without an event of a row there is no collection.
            snapshot = lake[name].snapshot(barrier.lsn).read_all().to_pylist() if name in lake else []
            found = Counter({tuple(_text(row[name]) for name in columns): row["_diff"] for row in snapshot})
            expected = Counter(rows)
            assert found == expected, (
                f"barrier {barrier.n} at {barrier.lsn}, table {table}, columns {columns}: the database "
                f"has, and the collection has not, {list((expected - found).items())[:3]!r:.600}; the "
                f"collection has, and the database has not, {list((found - expected).items())[:3]!r:.600}"
            )
            total += len(rows)
    return total


def _text(value: Any) -> str | None:
    """A value as MariaDB writes it."""
    if value is None:
        return None
    return value.strftime("%Y-%m-%d %H:%M:%S.%f") if hasattr(value, "strftime") else str(value)
