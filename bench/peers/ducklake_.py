"""DuckLake: Parquet files, and a catalog in a file of DuckDB."""

import importlib
import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bench.peers import contract


class Peer(contract.Peer):
    """It keeps all snapshots until they are expired."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.connection = duckdb.connect()
        for name in ("parquet", "ducklake"):
            (at,) = importlib.import_module(f"duckdb_extension_{name}").__path__
            (file,) = Path(at).rglob("*.duckdb_extension")
            self.connection.execute(f"LOAD '{file}'")
        catalog, data = (os.path.join(folder, name) for name in ("peers.ducklake", "data"))
        self.connection.execute(f"ATTACH 'ducklake:{catalog}' AS lake (DATA_PATH '{data}')")
        self.connection.execute("USE lake")

    def again(self) -> "Peer":
        # A process attaches the file of the catalog once.
        self.connection.close()
        self.__init__(self.folder)  # type: ignore[misc]
        return self

    def create(self, table: str, schema: pa.Schema) -> None:
        self.connection.execute(f"CREATE TABLE {table} (id BIGINT, n BIGINT, s VARCHAR, x DOUBLE)")

    def _run(self, statement: str, rows: pa.Table) -> None:
        self.connection.register("given", rows)
        self.connection.execute(statement)
        self.connection.unregister("given")

    def append(self, table: str, rows: pa.Table) -> None:
        self._run(f"INSERT INTO {table} SELECT * FROM given", rows)

    def upsert(self, table: str, rows: pa.Table) -> None:
        self._run(
            f"MERGE INTO {table} USING given ON {table}.id = given.id "
            "WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT",
            rows,
        )

    def rest(self, table: str) -> None:
        self.connection.execute("CALL ducklake_merge_adjacent_files('lake')")

    def version(self, table: str) -> Any:
        return self.connection.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchone()[
            0
        ]

    def read(self, table: str) -> pa.Table:
        return self._found(f"SELECT * FROM {table}")

    def read_at(self, table: str, version: Any) -> pa.Table:
        return self._found(f"SELECT * FROM {table} AT (VERSION => {version})")

    def changes(self, table: str, after: Any, through: Any) -> pa.Table:
        sign = "CASE WHEN change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"
        feed = f"ducklake_table_changes('lake', 'main', '{table}', {after + 1}, {through})"
        return contract.summed(self._found(f"SELECT id, n, s, x, ({sign})::BIGINT AS diff FROM {feed}"))

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        self.connection.register("given", ids)
        return self._found(f"SELECT {table}.* FROM {table} JOIN given USING (id)")

    def _found(self, statement: str) -> pa.Table:
        return self.connection.execute(statement).to_arrow_table()
