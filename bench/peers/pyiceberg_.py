"""pyiceberg, with its catalog in SQLite."""

import os
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import In

from bench.peers import contract


class Peer(contract.Peer):
    """A warehouse in a folder. It has no scan of changes: both versions are read."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        place = {"uri": f"sqlite:///{os.path.join(folder, 'catalog.db')}", "warehouse": f"file://{folder}"}
        self.catalog = SqlCatalog("peers", **place)
        self.catalog.create_namespace("peers")

    def _table(self, table: str) -> Any:
        return self.catalog.load_table(f"peers.{table}")

    def create(self, table: str, schema: pa.Schema) -> None:
        self.catalog.create_table(f"peers.{table}", schema)

    def append(self, table: str, rows: pa.Table) -> None:
        self._table(table).append(rows)

    def upsert(self, table: str, rows: pa.Table) -> None:
        self._table(table).upsert(rows, join_cols=["id"])

    def version(self, table: str) -> Any:
        return self._table(table).current_snapshot().snapshot_id

    def read(self, table: str) -> pa.Table:
        return _plain(self._table(table).scan().to_arrow())

    def read_at(self, table: str, version: Any) -> pa.Table:
        return _plain(self._table(table).scan(snapshot_id=version).to_arrow())

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        return _plain(self._table(table).scan(row_filter=In("id", ids["id"].to_pylist())).to_arrow())


def _plain(rows: pa.Table) -> pa.Table:
    return rows.cast(contract.SCHEMA)
