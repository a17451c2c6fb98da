"""DuckDB: one file, tables with a primary key."""

import os

import duckdb
import pyarrow as pa

from bench.peers import contract


class Peer(contract.Peer):
    """It keeps the newest rows only."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.connection = duckdb.connect(os.path.join(folder, "peers.db"))

    def create(self, table: str, schema: pa.Schema) -> None:
        self.connection.execute(
            f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, n BIGINT, s VARCHAR, x DOUBLE)"
        )

    def _run(self, statement: str, rows: pa.Table) -> None:
        self.connection.register("given", rows)
        self.connection.execute(statement)
        self.connection.unregister("given")

    def append(self, table: str, rows: pa.Table) -> None:
        self._run(f"INSERT INTO {table} SELECT * FROM given", rows)

    def upsert(self, table: str, rows: pa.Table) -> None:
        self._run(f"INSERT OR REPLACE INTO {table} SELECT * FROM given", rows)

    def read(self, table: str) -> pa.Table:
        return self.connection.execute(f"SELECT * FROM {table}").to_arrow_table()

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        self.connection.register("given", ids)
        return self.connection.execute(
            f"SELECT {table}.* FROM {table} JOIN given USING (id)"
        ).to_arrow_table()
