"""A bank in PostgreSQL that several connections change at once, and what it holds at barriers.

Each transaction writes its number (`tx`) into the rows that it inserts or updates, and a row of the journal
that says how many rows of each table it added and removed. Money is moved, and never made: the sum of all
balances is always 0. So a state that shows half a transaction can be told from a whole one.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
from psycopg import errors

from tests.cdc import bank_views
from tests.store.servers import PostgresServer

TABLES = {
    "accounts": (
        "id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(20,4) NOT NULL, opened timestamptz, "
        "tags text[], limits integer[], active boolean, tx bigint NOT NULL"
    ),
    "documents": (
        "id bigint PRIMARY KEY, account bigint, body text, meta jsonb, seen timestamptz, at timestamp, "
        "due date, hash bytea, score double precision, tx bigint NOT NULL"
    ),
    "notes": (
        "place integer, name text, body text, pages text[], tx bigint NOT NULL, PRIMARY KEY (place, name)"
    ),
    "journal": "tx bigint PRIMARY KEY, work text NOT NULL, added jsonb, removed jsonb",
    "barriers": "n integer PRIMARY KEY, told timestamptz NOT NULL, tx bigint NOT NULL",
}
KEYS = {"notes": ("place", "name"), "journal": ("tx",), "barriers": ("n",)}
# Large values are kept outside of the rows, so that the log leaves them out where they did not change. Of
# `notes`, whose keys change, the log has the old rows.
_MORE = """
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL;
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL, ALTER pages SET STORAGE EXTERNAL;
ALTER TABLE notes REPLICA IDENTITY FULL;
CREATE SEQUENCE txs;
CREATE SEQUENCE ids;
"""
_LARGE = 3_000
# What comes out when the server is gone; the last one if it went amid a rollback.
_BROKEN = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.Rollback)
# PostgreSQL gave up one of two transactions that were in each other's way.
_CLASHES = (errors.DeadlockDetected, errors.SerializationFailure, errors.UniqueViolation)


def key_of(table: str) -> tuple[str, ...]:
    """The key columns of a table."""
    return KEYS.get(table, ("id",))


@dataclass(frozen=True)
class Barrier:
    """The whole database at a moment at which no transaction changed it.

    Attributes:
        n: its number.
        lsn: the position in the log, as a number.
        tables: the rows of each table, as dictionaries, in the order of their keys.
        answers: of the queries of the views.
    """

    n: int
    lsn: int
    tables: dict[str, list[dict[str, Any]]] = field(repr=False)
    answers: dict[str, bank_views.Rows] = field(repr=False)


class Bank:
    """The database, and the connections that change it.

    Args:
        server: PostgreSQL with `wal_level=logical`.
        seed: of the random choices.
        connections: that change the database at once.
    """

    def __init__(self, server: PostgresServer, seed: int, connections: int = 4) -> None:
        self.server = server
        self.barriers: list[Barrier] = []
        self.done: Counter[str] = Counter()
        self._connections = connections
        self._seeds = Random(seed)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failed: list[BaseException] = []
        with self._connect() as connection:
            for table, columns in TABLES.items():
                connection.execute(f"CREATE TABLE {table} ({columns})")
            connection.execute(_MORE)

    def start(self) -> None:
        """Let all connections begin."""
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._run, args=(Random(self._seeds.getrandbits(32)),), daemon=True)
            for _ in range(self._connections)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until all connections have ended their transactions."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        if self._failed:
            raise self._failed[0]

    def barrier(self) -> Barrier:
        """Commit a row of its own while all connections wait, and read the whole database."""
        self.stop()
        n = len(self.barriers)
        with self._connect() as connection:
            with connection.transaction():
                work = Work(connection, Random(n))
                connection.execute("INSERT INTO barriers VALUES (%s, clock_timestamp(), %s)", [n, work.tx])
                work.added["barriers"] += 1
                work.end("barrier")
            with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
                lsn = cursor.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint AS at").fetchone()["at"]
                tables = {
                    table: cursor.execute(
                        f"SELECT * FROM {table} ORDER BY {', '.join(key_of(table))}"
                    ).fetchall()
                    for table in TABLES
                }
            answers = bank_views.answers(connection)
        self.barriers.append(Barrier(n, lsn, tables, answers))
        return self.barriers[-1]

    @contextlib.contextmanager
    def _connect(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute("SET TIME ZONE 'Asia/Kolkata'")
            # As texts: they are not parsed, and written again in another way.
            connection.adapters.register_loader("jsonb", psycopg.types.string.TextLoader)
            yield connection

    def _run(self, random: Random) -> None:
        try:
            while not self._stop.is_set():
                with contextlib.suppress(*_BROKEN), self._connect() as connection:
                    while not self._stop.is_set():
                        self._transaction(connection, random)
                self._stop.wait(0.1)
        except BaseException as error:
            self._failed.append(error)

    def _transaction(self, connection: psycopg.Connection[Any], random: Random) -> None:
        try:
            with connection.transaction() as transaction:
                # PostgreSQL shows a table that is truncated amid a first copy as empty.
                work = Work(connection, random, truncates=bool(self.barriers))
                for _ in range(random.randint(1, 6)):
                    work.step()
                if random.random() < 0.15:
                    self.done["rolled back"] += 1
                    raise psycopg.Rollback(transaction)
                work.end("work")
            self.done["committed"] += 1
            self.done.update(work.told)
        except _CLASHES:
            self.done["given up by PostgreSQL"] += 1
        # The pace of a busy application, and not that of a benchmark.
        self._stop.wait(random.random() * 0.1)


class Work:
    """One transaction: its steps, and how many rows it has added to each table and removed from it."""

    def __init__(
        self, connection: psycopg.Connection[Any], random: Random, *, truncates: bool = False
    ) -> None:
        self.connection, self.random = connection, random
        self.tx: int = self._one("SELECT nextval('txs')")
        self.added: Counter[str] = Counter({"journal": 1})
        self.removed: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        # No row is changed twice, which would add one row only.
        self._touched: set[object] = set()
        self._kinds = {
            **{self._open: 3, self._move: 3, self._close: 1, self._renumber: 2},
            **{self._write: 3, self._touch: 4, self._drop: 1, self._clear: 0.3 * truncates},
            **{self._note: 3, self._annotate: 4, self._rename: 2, self._tear: 1},
        }

    def step(self) -> None:
        """Change some rows. In a savepoint at times, which is rolled back at times."""
        if self.random.random() < 0.3:
            before = self.added.copy(), self.removed.copy(), self.told.copy()
            with self.connection.transaction() as savepoint:
                self._change()
                if self.random.random() < 0.5:
                    self.added, self.removed, self.told = before
                    self.told["savepoints rolled back"] += 1
                    raise psycopg.Rollback(savepoint)
        else:
            self._change()

    def end(self, work: str) -> None:
        """Write the journal."""
        told = [psycopg.types.json.Jsonb(dict(counts)) for counts in (self.added, self.removed)]
        self.connection.execute("INSERT INTO journal VALUES (%s, %s, %s, %s)", [self.tx, work, *told])

    def _change(self) -> None:
        self.random.choices(*zip(*self._kinds.items(), strict=True))[0]()

    def _one(self, statement: str, *values: object) -> Any:
        row = self.connection.execute(statement, values).fetchone()
        return None if row is None else row[0]

    def _count(self, table: str, added: int, removed: int, told: str) -> None:
        self.added[table] += added
        self.removed[table] += removed
        if added or removed:
            self.told[told] += 1

    def _own(self, key: object) -> bool:
        """Whether a row was not changed yet by this transaction."""
        mine = key not in self._touched
        self._touched.add(key)
        return mine

    def _some(self, table: str, keys: str) -> Any:
        """The key of a random row that this transaction has not changed; None: there is none."""
        statement = f"SELECT {keys} FROM {table} WHERE tx <> %s ORDER BY random() LIMIT 1"
        row = self.connection.execute(statement, [self.tx]).fetchone()
        return row if row is not None and self._own((table, row)) else None

    def _text(self, least: int, most: int) -> str:
        """Random characters, of which some take several bytes."""
        return "".join(self.random.choices("abcdefgh ij'\"\\\nüß€😀", k=self.random.randint(least, most)))

    def _large(self) -> str:
        return self._text(_LARGE, 2 * _LARGE)

    def _open(self) -> None:
        values = (
            self._text(1, 9),
            self.random.choice([None, [], ["a", None, 'quote " and , comma'], ["ü"]]),
            self.random.choice([None, [], [1, None, -(2**31)], [2**31 - 1]]),
            self.random.choice([True, False, None]),
            self.tx,
        )
        self.connection.execute(
            "INSERT INTO accounts VALUES (nextval('ids'), %s, 0, clock_timestamp(), %s, %s, %s, %s)", values
        )
        self._count("accounts", 1, 0, "inserts")

    def _move(self) -> None:
        one, other = self._some("accounts", "id"), self._some("accounts", "id")
        if one and other:
            amount = self.random.choice(["0.0001", "12.5", "123456789012.3456"])
            for (key,), by in ((one, f"-{amount}"), (other, amount)):
                statement = "UPDATE accounts SET balance = balance + %s::numeric, tx = %s WHERE id = %s"
                done = self.connection.execute(statement, [by, self.tx, key]).rowcount
                if not done:
                    # Another connection has deleted it: the money must not get lost.
                    raise errors.SerializationFailure
                self._count("accounts", 1, 1, "updates")

    def _close(self) -> None:
        one, other = self._some("accounts", "id"), self._some("accounts", "id")
        if one and other:
            balance = self._one("DELETE FROM accounts WHERE id = %s RETURNING balance", *one)
            if balance is None:
                raise errors.SerializationFailure
            statement = "UPDATE accounts SET balance = balance + %s, tx = %s WHERE id = %s"
            if not self.connection.execute(statement, [balance, self.tx, *other]).rowcount:
                raise errors.SerializationFailure
            self._count("accounts", 1, 2, "deletes")

    def _renumber(self) -> None:
        one = self._some("accounts", "id")
        if one:
            statement = "UPDATE accounts SET id = nextval('ids'), tx = %s WHERE id = %s"
            done = self.connection.execute(statement, [self.tx, *one]).rowcount
            self._count("accounts", done, done, "keys changed")

    def _write(self) -> None:
        meta = self.random.choice(
            ['{"b": [1, 2.50, null], "a": {"ü": "€\\n"}}', "null", '"text"', None, "[]"]
        )
        stamps = [
            "2024-02-29 23:59:59.123456+05:30",
            "1969-12-31 23:59:59.999999Z",
            "1600-01-01 00:00Z",
            None,
        ]
        self.connection.execute(
            "INSERT INTO documents VALUES (nextval('ids'), %s, %s, %s::jsonb, %s, %s, %s, %s, %s, %s)",
            [
                self.random.choice([None, 2**63 - 1, -(2**63)]),
                self.random.choice([None, "", self._large()]),
                meta,
                self.random.choice(stamps),
                self.random.choice([None, "2026-11-25 01:02:03.000001", "1815-06-18 11:35"]),
                self.random.choice([None, "2024-02-29", "1600-01-01"]),
                self.random.choice([None, b"", b"\0\xff'\\", self.random.randbytes(9)]),
                self.random.choice([None, 0.1, -1e300, 5e-324, float("inf")]),
                self.tx,
            ],
        )
        self._count("documents", 1, 0, "inserts")

    def _touch(self) -> None:
        one = self._some("documents", "id")
        if one:
            statement = "UPDATE documents SET seen = clock_timestamp(), tx = %s WHERE id = %s"
            done = self.connection.execute(statement, [self.tx, *one]).rowcount
            self._count("documents", done, done, "updates that leave large values")

    def _drop(self) -> None:
        one = self._some("documents", "id")
        if one:
            done = self.connection.execute("DELETE FROM documents WHERE id = %s", one).rowcount
            self._count("documents", 0, done, "deletes")

    def _clear(self) -> None:
        if self.added["documents"] or self.removed["documents"]:
            return
        # No row of another connection comes between.
        self.connection.execute("LOCK TABLE documents IN ACCESS EXCLUSIVE MODE")
        removed = self._one("SELECT count(*) FROM documents")
        self.connection.execute("TRUNCATE documents")
        self._count("documents", 0, removed, "truncations")

    def _note(self) -> None:
        place, name = self.random.randint(0, 9), self._text(1, 3)
        pages = self.random.choice([None, [self._large(), None], ["p"]])
        done = self.connection.execute(
            "INSERT INTO notes VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [place, name, self.random.choice([None, self._large()]), pages, self.tx],
        ).rowcount
        self._touched.add(("notes", (place, name)))
        self._count("notes", done, 0, "inserts")

    def _rename(self) -> None:
        one, new = self._some("notes", "place, name"), self._text(4, 6)
        if one:
            statement = "UPDATE notes SET name = %s, tx = %s WHERE place = %s AND name = %s"
            done = self.connection.execute(statement, [new, self.tx, *one]).rowcount
            self._count("notes", done, done, "keys changed")

    def _annotate(self) -> None:
        one = self._some("notes", "place, name")
        if one:
            statement = "UPDATE notes SET pages = ARRAY['new'], tx = %s WHERE place = %s AND name = %s"
            done = self.connection.execute(statement, [self.tx, *one]).rowcount
            self._count("notes", done, done, "updates that leave large values")

    def _tear(self) -> None:
        one = self._some("notes", "place, name")
        if one:
            done = self.connection.execute("DELETE FROM notes WHERE place = %s AND name = %s", one).rowcount
            self._count("notes", 0, done, "deletes")
