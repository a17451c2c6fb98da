"""SlateDB: keys and values, in files of a local folder. A write is answered when its log is stored."""

import asyncio
import struct
from typing import Any

import pyarrow as pa
from slatedb.uniffi import DbBuilder, KeyRange, ObjectStore, WriteBatch

from bench.peers import contract

ALL = KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=True)


class Peer(contract.Peer):
    """A database for each table: the id is the key, the rest the value. It keeps the newest rows only."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.loop = asyncio.new_event_loop()
        self.databases: dict[str, Any] = {}

    def create(self, table: str, schema: pa.Schema) -> None:
        async def opened() -> Any:
            return await DbBuilder(f"{self.folder[1:]}/{table}", ObjectStore.resolve("file:///")).build()

        self.databases[table] = self.loop.run_until_complete(opened())

    def append(self, table: str, rows: pa.Table) -> None:
        batch = WriteBatch()
        for id_, n, s, x in zip(*(rows[name].to_pylist() for name in contract.SCHEMA.names), strict=True):
            batch.put(id_.to_bytes(8, "big"), struct.pack(">qd", n, x) + s.encode())

        async def written() -> None:
            handle = await self.databases[table].write(batch)
            await handle.await_durable()

        self.loop.run_until_complete(written())

    def upsert(self, table: str, rows: pa.Table) -> None:
        self.append(table, rows)

    def read(self, table: str) -> pa.Table:
        async def scanned() -> list[Any]:
            found: list[Any] = []
            rows = await self.databases[table].scan(ALL)
            while some := await rows.next_batch(10_000):
                found += some
            return found

        return _table([(one.key, one.value) for one in self.loop.run_until_complete(scanned())])

    def lookup(self, table: str, ids: pa.Table) -> pa.Table:
        keys = [id_.to_bytes(8, "big") for id_ in ids["id"].to_pylist()]

        async def got() -> list[Any]:
            return [await self.databases[table].get(key) for key in keys]

        found = zip(keys, self.loop.run_until_complete(got()), strict=True)
        return _table([(key, value) for key, value in found if value is not None])


def _table(found: list[tuple[bytes, bytes]]) -> pa.Table:
    columns = [
        [int.from_bytes(key, "big") for key, _ in found],
        [struct.unpack(">q", value[:8])[0] for _, value in found],
        [value[16:].decode() for _, value in found],
        [struct.unpack(">d", value[8:16])[0] for _, value in found],
    ]
    return pa.table([pa.array(column) for column in columns], schema=contract.SCHEMA)
