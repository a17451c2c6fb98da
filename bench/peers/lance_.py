"""Lance: one dataset for each table."""

import os
from typing import Any

import lance
import pyarrow as pa

from bench.peers import contract


class Peer(contract.Peer):
    """Its versions are read one by one: changes are those between two."""

    def _path(self, table: str) -> str:
        return os.path.join(self.folder, f"{table}.lance")

    def create(self, table: str, schema: pa.Schema) -> None:
        lance.write_dataset(schema.empty_table(), self._path(table))

    def append(self, table: str, rows: pa.Table) -> None:
        lance.write_dataset(rows, self._path(table), mode="append")

    def upsert(self, table: str, rows: pa.Table) -> None:
        merge = lance.dataset(self._path(table)).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def rest(self, table: str) -> None:
        lance.dataset(self._path(table)).optimize.compact_files()

    def version(self, table: str) -> Any:
        return lance.dataset(self._path(table)).version

    def read(self, table: str) -> pa.Table:
        return lance.dataset(self._path(table)).to_table()

    def read_at(self, table: str, version: Any) -> pa.Table:
        return lance.dataset(self._path(table), version=version).to_table()

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        wanted = ", ".join(map(str, ids["id"].to_pylist()))
        return lance.dataset(self._path(table)).to_table(filter=f"id IN ({wanted})")
