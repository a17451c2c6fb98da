"""Objects on a bucket whose answers say less than what happened."""

import uuid

import pytest

from clocks import MovedClock
from tables import SCHEMA, rows
from tests.doubles.buckets import MemoryBucket
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import BlobExists
from tidelake.lake.api.lake import Lake
from tidelake.store.objects.blobs import ObjectBlobStore
from tidelake.store.objects.folder import FolderBucket
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.url import Stores


class RefusingBucket(MemoryBucket):
    """Each put lands, and every second one is answered as if it had not."""

    def __init__(self) -> None:
        super().__init__(MovedClock())
        self.puts = 0

    def put_new(self, key: str, data: bytes) -> bool:
        self.puts += 1
        return super().put_new(key, data) and self.puts % 2 == 0


def test_a_put_that_landed_and_was_refused_has_succeeded() -> None:
    blobs = ObjectBlobStore(RefusingBucket())
    for name in ("a", "b"):
        blobs.put(name, b"x")
        blobs.put(name, b"x")
        with pytest.raises(BlobExists):
            blobs.put(name, b"y")
        assert blobs.get(name) == b"x"


def test_a_lake_works_although_the_store_refuses_what_has_landed() -> None:
    bucket = RefusingBucket()
    log = ObjectVersionLog(FolderBucket(bucket, "l"), MovedClock(), 600)
    config = Config(inline_part_bytes=0, rollup_bytes_min=1024, merge_budget_s=0)
    lake = Lake(f"memory://{uuid.uuid4().hex}", Stores(ObjectBlobStore(bucket), log), config, Env())
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(9):
        c.append(rows(n))
    c.maintain()
    lake.fork("c", "d")
    lake.write({name: rows(20) for name in ("c", "d")})
    for name in ("c", "d"):
        found = lake.collection(name).snapshot().read_all()["id"].to_pylist()
        assert found == [*range(9), 20]
