"""Tidelake itself, with its defaults: by its functions, and by SQL and its format."""

import os
from typing import Any

import tidelake
from bench.peers.spark import contract
from bench.peers.workload import SCHEMA
from tidelake import spark as ts


class Functions(contract.Peer):
    """By the functions of `tidelake.spark`."""

    def __init__(self, spark: Any, folder: str) -> None:
        super().__init__(spark, folder)
        self.lake = tidelake.open(os.path.join(folder, "lake"))

    @classmethod
    def conf(cls, _folder: str) -> dict[str, str]:
        return {}

    def create(self, table: str) -> None:
        self.lake.create(table, SCHEMA, key=["id"])

    def append(self, table: str, rows: Any) -> None:
        ts.append(self.lake[table], rows)

    def upsert(self, table: str, rows: Any) -> None:
        ts.upsert(self.lake[table], rows)

    def rest(self, table: str) -> None:
        ts.maintain(self.spark, self.lake, [table])

    def version(self, table: str) -> Any:
        return self.lake[table].last_time()

    def read(self, table: str) -> Any:
        return _rows(ts.snapshot(self.spark, self.lake[table]))

    def read_at(self, table: str, version: Any) -> Any:
        return _rows(ts.snapshot(self.spark, self.lake[table], version))

    def changes(self, table: str, after: Any, through: Any) -> Any:
        return _signed(ts.changes(self.spark, self.lake[table], after, through))

    def append_stream(self, table: str, rows: Any) -> Any:
        return rows.writeStream.foreachBatch(ts.sink(self.lake[table]))

    def upsert_stream(self, table: str, rows: Any) -> Any:
        return rows.writeStream.foreachBatch(ts.sink(self.lake[table], "upsert"))


class Format(Functions):
    """By SQL and the format `tidelake`."""

    def __init__(self, spark: Any, folder: str) -> None:
        super().__init__(spark, folder)
        ts.register(spark)

    def append(self, table: str, rows: Any) -> None:
        rows.write.format("tidelake").mode("append").save(self._place(table))

    def upsert(self, table: str, rows: Any) -> None:
        contract.Peer.upsert(self, table, rows)

    def read(self, table: str) -> Any:
        return self._read().load(self._place(table))

    def read_at(self, table: str, version: Any) -> Any:
        return self._read(asOf=version).load(self._place(table))

    def changes(self, table: str, after: Any, through: Any) -> Any:
        return _signed(self._read(after=after, through=through).load(self._place(table)))

    def append_stream(self, table: str, rows: Any) -> Any:
        return rows.writeStream.format("tidelake").option("path", self._place(table))

    def upsert_stream(self, table: str, rows: Any) -> Any:
        return self.append_stream(table, rows).option("envelope", "upsert")

    def named(self, table: str) -> str:
        return table

    def sql(self, text: str, spark: Any = None) -> Any:
        return ts.sql(spark or self.spark, text, lake=self.lake)

    def _place(self, table: str) -> str:
        return f"{self.lake.url}/{table}"

    def _read(self, **options: Any) -> Any:
        return self.spark.read.format("tidelake").options(**options)


def _rows(frame: Any) -> Any:
    return frame.select(*contract.COLUMNS)


def _signed(frame: Any) -> Any:
    return frame.selectExpr(*contract.COLUMNS, "_diff AS diff")
