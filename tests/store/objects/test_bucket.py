"""What every `Bucket` must do: in memory, and on servers."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from store_kit import FULL_STORES, OBJECT_STORES, cloud_bucket

from tests.doubles.buckets import MemoryBucket
from tidelake.env import SystemClock
from tidelake.errors import BlobNotFound
from tidelake.store.objects.bucket import Bucket
from tidelake.store.objects.folder import FolderBucket

ODD_PREFIX = "/My lakes/ünï%20cøde 日本/+&=;,@~"
ODD_PREFIXES = ["s3_server odd", *(pytest.param(f"{one} odd", marks=pytest.mark.full) for one in FULL_STORES)]


@pytest.fixture(params=["memory", "folder", *OBJECT_STORES, *ODD_PREFIXES])
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    made = made_bucket(request)
    yield made
    made.close()


def made_bucket(request: pytest.FixtureRequest) -> Bucket:
    if request.param == "memory":
        return MemoryBucket(SystemClock())
    if request.param == "folder":
        return FolderBucket(MemoryBucket(SystemClock()), "a/b")
    name, _, odd = request.param.partition(" ")
    return cloud_bucket(request.getfixturevalue(name), ODD_PREFIX if odd else "")


def test_what_is_missing_is_told(bucket: Bucket) -> None:
    for call in (
        lambda: bucket.get("a"),
        lambda: bucket.get("a", 1),
        lambda: bucket.get("a", 0, 0),
        lambda: bucket.get("a", 2, 3),
        lambda: bucket.get_ranges("a", [(0, 1)]),
    ):
        with pytest.raises(BlobNotFound, match="'a'"):
            call()
    assert bucket.head("a") is None
    assert bucket.get_all([]) == []


def test_a_put_if_absent_is_refused_where_there_is_one(bucket: Bucket) -> None:
    assert bucket.put_new("a", b"first")
    assert not bucket.put_new("a", b"second")
    assert bucket.get("a") == b"first"
    bucket.put("a", b"third")
    assert bucket.get("a") == b"third"
    bucket.delete(["a"])
    assert bucket.put_new("a", b"fourth")


def test_of_racing_puts_one_wins(bucket: Bucket) -> None:
    barrier = threading.Barrier(4)

    def put(number: int, key: str) -> bool:
        barrier.wait()
        return bucket.put_new(key, b"%d" % number)

    with ThreadPoolExecutor(4) as threads:
        for key in ("x/1", "x/2", "x/3"):
            won = list(threads.map(put, range(4), [key] * 4))
            assert sum(won) == 1
            assert bucket.get(key) == b"%d" % won.index(True)


def test_many_objects_come_at_once(bucket: Bucket) -> None:
    keys = [f"many/{number:03}" for number in range(100)]
    for key in keys[::2]:
        bucket.put(key, key.encode())
    assert bucket.get_all(keys) == [key.encode() if at % 2 == 0 else None for at, key in enumerate(keys)]


def test_deleting_passes_over_what_is_not_there(bucket: Bucket) -> None:
    keys = [f"d/{number}" for number in range(20)]
    for key in keys:
        bucket.put(key, b"x")
    bucket.delete(["nothing", *keys[:15], "d/99"])
    bucket.delete(["nothing"])
    bucket.delete([])
    assert [info.key for page in bucket.list("") for info in page] == sorted(keys[15:])


def test_a_listing_ascends_and_a_prefix_is_one_of_characters(bucket: Bucket) -> None:
    keys = ["b", "a/1", "a-b", "a.b", "a0", "a/1-x", "A", "a/0/z", "a=1", "a_", "-", "a/10/x", "k~s/e/1"]
    for size, key in enumerate(keys):
        bucket.put(key, b"x" * size)
    for prefix in ("", "a", "a/", "a/1", "a/1/", "a/10/", "b", "c", "a/0/", "k~s/e/", "k~"):
        found = [info for page in bucket.list(prefix) for info in page]
        assert [info.key for info in found] == sorted(key for key in keys if key.startswith(prefix)), prefix
        assert all(info.size_bytes == keys.index(info.key) and info.modified_ms > 10**12 for info in found)
        assert all(bucket.head(info.key) == info for info in found[:2])


def test_folders_are_the_next_segments(bucket: Bucket) -> None:
    for key in ("a/x/1", "a/x/2", "a/y/z/3", "a/w", "ab/q/1", "b"):
        bucket.put(key, b"")
    assert list(bucket.folders("a/")) == ["x", "y"]
    assert list(bucket.folders("a/y/")) == ["z"]
    assert list(bucket.folders("none/")) == []
    assert list(bucket.folders("")) == ["a", "ab"]


def test_a_listing_goes_on_over_pages(bucket: Bucket, request: pytest.FixtureRequest) -> None:
    if "odd" in request.node.name or "azurite" in request.node.name:
        pytest.skip("the same pages for each prefix; azurite takes long, and its pages are longer")
    keys = [f"p/{number:04}" for number in range(1_100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: bucket.put(key, b""), keys))
    pages = list(bucket.list("p/"))
    assert [info.key for page in pages for info in page] == keys
    assert len(pages) == 2
    bucket.delete(keys)
    assert list(bucket.list("p/")) == []
