"""pypaimon: tables with a primary key, in one bucket."""

from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

from bench.peers import contract


class Peer(contract.Peer):
    """Changes are those between two versions."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.catalog = CatalogFactory.create({"warehouse": folder})
        self.catalog.create_database("peers", True)

    def _table(self, table: str) -> Any:
        return self.catalog.get_table(f"peers.{table}")

    def create(self, table: str, schema: pa.Schema) -> None:
        keyed = pa.schema([schema.field("id").with_nullable(False), *list(schema)[1:]])
        made = Schema.from_pyarrow_schema(keyed, primary_keys=["id"], options={"bucket": "1"})
        self.catalog.create_table(f"peers.{table}", made, False)

    def append(self, table: str, rows: pa.Table) -> None:
        builder = self._table(table).new_batch_write_builder()
        writer, commit = builder.new_write(), builder.new_commit()
        keyed = pa.schema([rows.schema.field("id").with_nullable(False), *list(rows.schema)[1:]])
        writer.write_arrow(rows.cast(keyed))
        commit.commit(writer.prepare_commit())
        writer.close()
        commit.close()

    def upsert(self, table: str, rows: pa.Table) -> None:
        self.append(table, rows)

    def version(self, table: str) -> Any:
        return self._table(table).snapshot_manager().get_latest_snapshot().id

    def read(self, table: str) -> pa.Table:
        return _read(self._table(table).new_read_builder())

    def read_at(self, table: str, version: Any) -> pa.Table:
        return _read(self._table(table).copy({"scan.snapshot-id": str(version)}).new_read_builder())

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        builder = self._table(table).new_read_builder()
        wanted = builder.new_predicate_builder().is_in("id", ids["id"].to_pylist())
        return _read(builder.with_filter(wanted))


def _read(builder: Any) -> pa.Table:
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())
