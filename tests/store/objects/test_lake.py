"""Lakes in an object store: how they are made, found and refused."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import tidelake
from tests.store.servers import S3Server
from tidelake.env import RandomIds, SystemClock
from tidelake.errors import CorruptionError, FormatTooNew, NotALake, StoreUnavailable, UsageError
from tidelake.store.marker import Marker
from tidelake.store.objects.address import BucketAddress, parse_address
from tidelake.store.objects.cloud import CloudBucket
from tidelake.store.objects.lake import PROBES, find_marker, make_lake, probe
from tidelake.store.retrying import Retry
from tidelake.testing.buckets import MemoryBucket

SCHEMA = pa.schema([("item", pa.string()), ("count", pa.int64())])
RETRY = Retry(SystemClock(), 0.0, lambda: 0.0)
PLACE = "s3://bucket/lake"


def rows(*items: str, time: int = 1) -> pa.Table:
    return pa.table(
        {"item": items, "count": [1] * len(items), "_time": [time] * len(items), "_diff": [1] * len(items)}
    )


@pytest.fixture
def place(s3_server: S3Server) -> str:
    return f"s3://{s3_server.new_bucket()}/a folder/lake é"


@pytest.fixture
def options(s3_server: S3Server) -> dict[str, str]:
    return s3_server.options()


def test_a_lake_lives_in_a_bucket(place: str, options: dict[str, str]) -> None:
    with tidelake.open(place, store_options=options) as lake:
        lake.create("stock", SCHEMA, key=["item"]).append(rows("ham", "jam"), upper=5)
    with tidelake.open(place + "/", store_options=options, create=False) as lake:
        stock = lake["stock"]
        assert sorted(pa.table(stock.snapshot())["item"].to_pylist()) == ["ham", "jam"]
        stock.append(pa.table({"item": [str(n) for n in range(3_000)], "count": range(3_000),
                               "_time": [5] * 3_000, "_diff": [1] * 3_000}), upper=6)  # fmt: skip
        stock.merge()
        assert pa.table(stock.snapshot()).num_rows == 3_002
        assert lake.fsck().findings == ()
    with tidelake.open(place, store_options=options, read_only=True) as lake:
        assert pa.table(lake["stock"].snapshot()).num_rows == 3_002
        with pytest.raises(tidelake.errors.ReadOnlyLake):
            lake["stock"].append(rows("no", time=6), upper=7)


def test_the_marker_tells_where_the_lake_is(place: str, options: dict[str, str]) -> None:
    tidelake.open(place, store_options=options).close()
    bucket = CloudBucket(parse_address(place), lambda: options)
    marker = json.loads(bucket.get("tidelake.json"))
    assert marker == {"format": 2, "lake": marker["lake"], "place": place, "log": "objects", "grace_s": 600}
    assert [info.key for page in bucket.list("") for info in page] == ["tidelake.json"]


def test_a_lake_that_is_not_there_is_not_made(place: str, options: dict[str, str]) -> None:
    for given in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotALake, match="there is no lake"):
            tidelake.open(place, store_options=options, **given)
    bucket = CloudBucket(parse_address(place), lambda: options)
    assert list(bucket.list("")) == []


def test_lakes_do_not_lie_inside_each_other_or_among_other_objects(
    place: str, options: dict[str, str]
) -> None:
    tidelake.open(place, store_options=options).close()
    for inside in (f"{place}/x", f"{place}/x/y/z"):
        with pytest.raises(NotALake, match="is inside the lake at"):
            tidelake.open(inside, store_options=options)
    above = place.rpartition("/")[0]
    with pytest.raises(NotALake, match="holds other objects and no lake"):
        tidelake.open(above, store_options=options)
    tidelake.open(f"{above}/beside", store_options=options).close()


def test_a_copied_prefix_is_refused(place: str, options: dict[str, str]) -> None:
    with tidelake.open(place, store_options=options) as lake:
        lake.create("stock", SCHEMA, key=["item"])
    bucket = CloudBucket(parse_address(place), lambda: options)
    copy = CloudBucket(parse_address(f"{place}-copy"), lambda: options)
    for page in bucket.list(""):
        for info in page:
            copy.put(info.key, bucket.get(info.key))
    with pytest.raises(NotALake, match="holds a copy of the objects of the lake"):
        tidelake.open(f"{place}-copy", store_options=options)


def test_four_at_once_make_one_lake(place: str, options: dict[str, str]) -> None:
    def made(_: int) -> None:
        tidelake.open(place, store_options=options).close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(made, range(4)))
    bucket = CloudBucket(parse_address(place), lambda: options)
    keys = [info.key for page in bucket.list("") for info in page]
    assert keys == ["tidelake.json"]


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        (b"{", CorruptionError),
        (b'{"format": 3}', FormatTooNew),
        (b'{"format": 2, "lake": "x"}', CorruptionError),
    ],
)
def test_a_bad_marker_is_told(
    place: str, options: dict[str, str], marker: bytes, error: type[Exception]
) -> None:
    CloudBucket(parse_address(place), lambda: options).put("tidelake.json", marker)
    with pytest.raises(error, match=r"tidelake\.json"):
        tidelake.open(place, store_options=options)


def test_a_bucket_that_does_not_exist_is_told(options: dict[str, str]) -> None:
    with pytest.raises(StoreUnavailable, match="there is no such bucket"):
        tidelake.open("s3://no-such-bucket-anywhere/x", store_options=options)


def test_options_that_do_not_fit_are_refused(place: str, options: dict[str, str], tmp_path: object) -> None:
    with pytest.raises(UsageError, match=r"unknown store_options .*pasword.*secret_access_key"):
        tidelake.open(place, store_options={**options, "pasword": "x"})
    for local in ("memory://m", tmp_path):
        with pytest.raises(UsageError, match="leave out store_options"):
            tidelake.open(local, store_options=options)
    tidelake.open(place, store_options=options).close()
    for url in ("memory://m", place):
        with pytest.raises(UsageError, match="leave out log="):
            tidelake.open(url, log="postgresql://x/y", store_options=None if url != place else options)


class Overwriting(MemoryBucket):
    """A store that accepts the condition of a put and ignores it."""

    def put_new(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


class Racing(MemoryBucket):
    """A store that looks first and writes later: of puts at once several win."""

    def put_new(self, key: str, data: bytes) -> bool:
        with self._lock:
            is_free = key not in self._objects
        SystemClock().sleep(0.01)
        if is_free:
            self.put(key, data)
        return is_free


class Late(MemoryBucket):
    """A store whose listings are behind."""

    def list(self, prefix: str):
        return iter([])


@pytest.mark.parametrize(
    ("store", "told"),
    [(Overwriting, "must not overwrite"), (Racing, "race for one object"), (Late, "does not list")],
)
def test_a_store_that_would_lose_writes_is_refused(store: Callable[..., MemoryBucket], told: str) -> None:
    bucket = store(SystemClock())
    address = BucketAddress("s3", "bucket", "lake")
    with pytest.raises(StoreUnavailable, match=told) as caught:
        make_lake(
            bucket, MemoryBucket(SystemClock()), address, lambda: Marker("id", "objects", PLACE, 600),
            ids=RandomIds(), retry=RETRY,
        )  # fmt: skip
    assert not caught.value.retryable
    assert bucket._objects == {}


def test_a_probe_passes_a_store_that_is_right_and_leaves_nothing() -> None:
    bucket = MemoryBucket(SystemClock())
    probe(bucket, PLACE, RandomIds(), RETRY)
    assert bucket._objects == {}


def test_what_an_earlier_probe_has_left_is_in_nobodys_way() -> None:
    bucket = MemoryBucket(SystemClock())
    bucket.put(f"{PROBES}old", b"")
    made = make_lake(
        bucket, MemoryBucket(SystemClock()), BucketAddress("s3", "bucket", "lake"),
        lambda: Marker("id", "objects", PLACE, 600), ids=RandomIds(), retry=RETRY,
    )  # fmt: skip
    assert made == find_marker(bucket, PLACE, RETRY)
