"""Tidelake itself, with its defaults."""

import os
from typing import Any

import pyarrow as pa

import tidelake
from bench.peers import contract


class Peer(contract.Peer):
    """A lake; each write takes the next time."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.lake = tidelake.open(os.path.join(folder, "lake"))
        self.tables: dict[str, Any] = {}

    def again(self) -> "Peer":
        made = Peer(self.folder)
        made.tables = {table: made.lake.collection(table) for table in made.lake.list()}
        return made

    def create(self, table: str, schema: pa.Schema) -> None:
        self.tables[table] = self.lake.create(table, schema, key=["id"])

    def append(self, table: str, rows: pa.Table) -> None:
        if table not in self.tables:
            self.tables[table] = self.lake.collection(table)
        self.tables[table].append(rows)

    def upsert(self, table: str, rows: pa.Table) -> None:
        self.tables[table].upsert(rows)

    def rest(self, table: str) -> None:
        self.tables[table].maintain()

    def version(self, table: str) -> Any:
        (upper,) = self.tables[table].state().upper.elements
        return upper - 1

    def read(self, table: str) -> pa.Table:
        return self.tables[table].snapshot().read_all()

    def read_at(self, table: str, version: Any) -> pa.Table:
        return self.tables[table].snapshot(version).read_all()

    def changes(self, table: str, after: Any, through: Any) -> pa.Table:
        found = self.tables[table].changes(after, through).read_all()
        return found.rename_columns(["diff" if name == "_diff" else name for name in found.column_names])

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        return self.tables[table].lookup(ids)
