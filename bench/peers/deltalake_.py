"""delta-rs, with its change data feed."""

import os
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc

from bench.peers import contract


class Peer(contract.Peer):
    """A folder for each table. A look-up reads by way of pyarrow's dataset, as its documentation has it."""

    def _path(self, table: str) -> str:
        return os.path.join(self.folder, table)

    def _table(self, table: str, version: Any = None) -> Any:
        return deltalake.DeltaTable(self._path(table), version=version)

    def create(self, table: str, schema: pa.Schema) -> None:
        deltalake.DeltaTable.create(
            self._path(table), schema, configuration={"delta.enableChangeDataFeed": "true"}
        )

    def append(self, table: str, rows: pa.Table) -> None:
        deltalake.write_deltalake(self._path(table), rows, mode="append")

    def upsert(self, table: str, rows: pa.Table) -> None:
        merger = self._table(table).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def rest(self, table: str) -> None:
        self._table(table).optimize.compact()

    def version(self, table: str) -> Any:
        return self._table(table).version()

    def read(self, table: str) -> pa.Table:
        return self._table(table).to_pyarrow_table()

    def read_at(self, table: str, version: Any) -> pa.Table:
        return self._table(table, version).to_pyarrow_table()

    def changes(self, table: str, after: Any, through: Any) -> pa.Table:
        feed = self._table(table).load_cdf(starting_version=after + 1, ending_version=through)
        found = pa.table(feed.read_all())
        kind = found["_change_type"].cast(pa.string())
        added = pc.is_in(kind, pa.array(["insert", "update_postimage"]))
        diff = pc.subtract(pc.multiply(added.cast(pa.int64()), 2), 1)
        columns = [found[field.name].cast(field.type) for field in contract.SCHEMA]
        return contract.summed(pa.table([*columns, diff], names=[*contract.SCHEMA.names, "diff"]))

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        dataset = self._table(table).to_pyarrow_dataset()
        return dataset.to_table(filter=pc.field("id").isin(ids["id"].combine_chunks()))
