"""Lakes in an object store: how they are made, found and refused."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from store_kit import OBJECT_STORES, cloud_bucket

import tidelake
from tests.doubles.buckets import MemoryBucket
from tests.store.servers import S3Server
from tidelake.env import RandomIds, SystemClock
from tidelake.errors import CorruptionError, FormatTooNew, NotALake, StoreUnavailable, UsageError
from tidelake.store.marker import Marker
from tidelake.store.objects.address import BucketAddress, parse_address
from tidelake.store.objects.cloud import CloudBucket
from tidelake.store.objects.lake import PROBES, find_marker, make_lake, probe
from tidelake.store.retrying import Retry
from tied_process import tied

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


@pytest.mark.parametrize("store", OBJECT_STORES)
def test_a_lake_lives_in_a_bucket(store: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(store)
    place, options = cloud_bucket(server, "/a folder/lake é").address.url, server.options()
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
    told = {"lake_format": 1, "place": place, "log": "objects", "grace_s": 600}
    assert marker == {"lake": marker["lake"], **told}
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
        (b'{"lake_format": 3}', FormatTooNew),
        (b'{"lake_format": 1, "lake": "x"}', CorruptionError),
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


def test_a_secret_is_nowhere_in_a_lake_nor_in_what_leaves_the_process(
    place: str, options: dict[str, str], s3_server: S3Server, tmp_path: Path
) -> None:
    secret = s3_server.secret_key
    with tidelake.open(place, store_options=options) as lake:
        stock = lake.create("stock", SCHEMA, key=["item"])
        stock.append(rows("ham", "jam"), upper=5)
        distributed = stock.distributed
        uploader, uploads = distributed.uploader(), []
        uploads.append(uploader.upload(rows("tea", time=5).to_batches()))
        distributed.append_uploaded(uploads, lower=5, upper=6)
        plan, reader = distributed.plan(None, 2), stock.reader("a test")
        kept = (lake, lake.url, stock, distributed, lake.env, uploader, reader, plan, lake._stores)
        told = (
            repr(kept)
            + repr(uploads)
            + repr([pickle.dumps(uploader), pickle.dumps(plan), uploader.to_bytes()])
        )
        reader.close()
    bucket = CloudBucket(parse_address(place), lambda: options)
    stored = b"".join(bucket.get(info.key) for page in bucket.list("") for info in page)
    assert secret not in told
    assert secret.encode() not in stored
    assert len(stored) > 1_000


def test_the_command_line_finds_stores_by_the_environment(
    place: str, options: dict[str, str], s3_server: S3Server, tmp_path: Path
) -> None:
    (tmp_path / "providing.py").write_text(
        "import os\ndef options(): return {'secret_access_key': os.environ['HERE']}\n"
    )
    with tidelake.open(place, store_options=options) as lake:
        lake.create("stock", SCHEMA, key=["item"]).append(rows("ham"), upper=5)
    plain = {**os.environ, **s3_server.environment()}
    plain["HERE"] = plain.pop("AWS_SECRET_ACCESS_KEY")
    provided = {**plain, "TIDELAKE_STORE_OPTIONS": "providing:options"}
    provided["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{provided.get('PYTHONPATH', '')}"
    named = {name: value for name, value in provided.items() if name != "TIDELAKE_STORE_OPTIONS"}
    for environment, url in ((provided, place), (named, f"{place}#store_options=providing:options")):
        done = subprocess.run(
            tied(sys.executable, "-m", "tidelake.cli.main", "snapshot", url, "stock"),
            capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        assert "ham" in done.stdout, done.stderr
        assert s3_server.secret_key not in done.stdout + done.stderr


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


def test_what_an_earlier_probe_has_left_is_in_no_way() -> None:
    bucket = MemoryBucket(SystemClock())
    bucket.put(f"{PROBES}old", b"")
    made = make_lake(
        bucket, MemoryBucket(SystemClock()), BucketAddress("s3", "bucket", "lake"),
        lambda: Marker("id", "objects", PLACE, 600), ids=RandomIds(), retry=RETRY,
    )  # fmt: skip
    assert made == find_marker(bucket, PLACE, RETRY)
