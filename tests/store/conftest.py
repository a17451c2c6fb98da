from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_kit import BLOB_STORES, OBJECT_STORES, VERSION_LOGS, cloud_bucket

from clocks import RecordingClock
from tests.doubles.buckets import MemoryBucket
from tidelake.env import SystemClock
from tidelake.store.objects.blobs import ObjectBlobStore
from tidelake.store.protocols import BlobStore, VersionLog


@pytest.fixture
def clock() -> RecordingClock:
    return RecordingClock()


@pytest.fixture(params=[*BLOB_STORES, "objects-in-memory", *OBJECT_STORES])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
    if request.param in BLOB_STORES:
        store = BLOB_STORES[request.param](str(tmp_path / "new" / "blobs"))
    elif request.param == "objects-in-memory":
        store = ObjectBlobStore(MemoryBucket(SystemClock()))
    else:
        store = ObjectBlobStore(cloud_bucket(request.getfixturevalue(request.param)))
    yield store
    store.close()


@pytest.fixture(params=VERSION_LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VersionLog]:
    store = VERSION_LOGS[request.param](str(tmp_path / "new" / "log"))
    yield store
    store.close()


@pytest.fixture(params=VERSION_LOGS)
def make_log(request: pytest.FixtureRequest) -> Callable[[str], VersionLog]:
    return VERSION_LOGS[request.param]
