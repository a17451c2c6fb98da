"""What is counted."""

from pathlib import Path

import pytest

from tidelake.env import Counters, SystemClock
from tidelake.errors import BlobNotFound
from tidelake.store.layers import BlobLayer, LogLayer
from tidelake.store.local import LocalBlobStore
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.metered import metered


def test_blob_calls_and_bytes_are_counted() -> None:
    counters = Counters()
    store = BlobLayer(MemoryBlobStore(SystemClock()), metered(counters))
    store.put("a", b"0123456789")
    store.get("a", 2, 3)
    assert store.get_ranges("a", [(0, 2), (8, 9)]) == [b"01", b"89"]
    list(store.list())
    store.delete("a")
    with pytest.raises(BlobNotFound):
        store.get("a")
    assert dict(counters.counts) == {
        "blob.put": 1,
        "blob.put.bytes": 10,
        "blob.get": 2,
        "blob.get_ranges": 1,
        "blob.get.bytes": 7,
        "blob.list": 1,
        "blob.delete": 1,
    }


def test_each_read_of_an_opened_object_is_a_get(tmp_path: Path) -> None:
    counters = Counters()
    store = BlobLayer(LocalBlobStore(str(tmp_path)), metered(counters))
    store.put("a", b"0" * 100_000)
    with store.open("a") as file:
        file.seek(10)
        file.read(20)
        file.readinto(bytearray(30))  # type: ignore[attr-defined]
        file.read()
    assert counters.counts["blob.open"] == 1
    assert counters.counts["blob.get"] == 3
    assert counters.counts["blob.get.bytes"] == 100_000 - 10


def test_log_calls_entries_and_bytes_are_counted() -> None:
    counters = Counters()
    log = LogLayer(MemoryVersionLog(), metered(counters))
    assert log.compare_and_set("k", None, b"12")
    assert log.compare_and_set("k", 0, b"345")
    assert not log.compare_and_set("k", 0, b"6")
    log.head("k")
    log.scan("k", 0)
    log.newer("k", 0)
    log.truncate("k", 1)
    list(log.keys())
    log.delete("k")
    assert dict(counters.counts) == {
        "log.compare_and_set": 3,
        "log.compare_and_set.bytes": 5,
        "log.head": 1,
        "log.scan": 1,
        "log.scan.entries": 2,
        "log.scan.bytes": 5,
        "log.newer": 1,
        "log.newer.entries": 1,
        "log.newer.bytes": 3,
        "log.truncate": 1,
        "log.keys": 1,
        "log.delete": 1,
    }
