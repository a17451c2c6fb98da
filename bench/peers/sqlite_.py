"""SQLite of the standard library: a write-ahead log, which each commit flushes."""

import os
import sqlite3

import pyarrow as pa

from bench.peers import contract


class Peer(contract.Peer):
    """It keeps the newest rows only."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.connection = sqlite3.connect(os.path.join(folder, "peers.db"), isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")

    def create(self, table: str, schema: pa.Schema) -> None:
        self.connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, n INTEGER, s TEXT, x REAL)")

    def _run(self, statement: str, rows: pa.Table) -> None:
        columns = [rows[name].to_pylist() for name in contract.SCHEMA.names]
        self.connection.execute("BEGIN")
        self.connection.executemany(statement, zip(*columns, strict=True))
        self.connection.execute("COMMIT")

    def append(self, table: str, rows: pa.Table) -> None:
        self._run(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)

    def upsert(self, table: str, rows: pa.Table) -> None:
        self._run(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)", rows)

    def read(self, table: str) -> pa.Table:
        return _table(self.connection.execute(f"SELECT id, n, s, x FROM {table}").fetchall())

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        found: list[tuple[int, int, str, float]] = []
        for id_ in ids["id"].to_pylist():
            found += self.connection.execute(f"SELECT id, n, s, x FROM {table} WHERE id = ?", (id_,))
        return _table(found)


def _table(rows: list[tuple[int, int, str, float]]) -> pa.Table:
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=contract.SCHEMA)
