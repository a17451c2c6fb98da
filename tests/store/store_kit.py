"""Every store under one name each, and a clock that only the test moves."""

import random
from collections.abc import Callable

import pytest

from clocks import RecordingClock
from tests.doubles.buckets import MemoryBucket
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore, FaultyVersionLog
from tests.doubles.files import SimulatedDisk
from tests.store.servers import AzureServer, S3Server
from threads import at_once
from tidelake.env import Counters, SystemClock
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.layers import BlobLayer, LogLayer
from tidelake.store.local import LocalBlobStore
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.metered import metered
from tidelake.store.objects.address import parse_address
from tidelake.store.objects.cloud import CloudBucket
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.protocols import BlobStore, Entry, VersionLog
from tidelake.store.retrying import Retry

# The servers of the full tier are those that setup/servers.sh installs. No server here can check GCS.
FULL_STORES = ("versitygw", "azurite")
OBJECT_STORES = ["s3_server", *(pytest.param(one, marks=pytest.mark.full) for one in FULL_STORES)]

FLAKY = {Fault.UNAVAILABLE: 0.1, Fault.UNKNOWN_BEFORE: 0.1, Fault.UNKNOWN_AFTER: 0.1}
REFUSING = {Fault.UNAVAILABLE: 0.3}
ANSWERS_COUNT = ("blob.delete", "blob.delete_all", "log.compare_and_set", "log.truncate", "log.delete")
FLAKY_BY_OPERATION = dict.fromkeys(ANSWERS_COUNT, REFUSING)


def flaky_plan() -> FaultPlan:
    return FaultPlan(seed=7, rates=FLAKY, rates_by_operation=FLAKY_BY_OPERATION)


def retrying_blobs(inner: BlobStore) -> BlobStore:
    faulty = FaultyBlobStore(inner, flaky_plan())
    return BlobLayer(faulty, Retry(RecordingClock(), 1e6, random.Random(1).random).layer)


def retrying_log(inner: VersionLog) -> VersionLog:
    faulty = FaultyVersionLog(inner, flaky_plan())
    return LogLayer(faulty, Retry(RecordingClock(), 1e6, random.Random(1).random).layer)


BLOB_STORES: dict[str, Callable[[str], BlobStore]] = {
    "memory": lambda root: MemoryBlobStore(SystemClock()),
    "local": LocalBlobStore,
    "local-simulated": lambda root: LocalBlobStore(root, SimulatedDisk().process()),
    "metered": lambda root: BlobLayer(LocalBlobStore(root), metered(Counters())),
    "retrying-faulty-memory": lambda root: retrying_blobs(MemoryBlobStore(SystemClock())),
    "retrying-faulty-metered-local": lambda root: retrying_blobs(
        BlobLayer(LocalBlobStore(root), metered(Counters()))
    ),
}


def object_log(page: int = 1_000) -> VersionLog:
    """A log on objects whose removed entries do not stay: each answer is checked by the floor."""
    clock = RecordingClock()
    return ObjectVersionLog(MemoryBucket(clock, page), clock, grace_s=0)


def cloud_bucket(server: AzureServer | S3Server, prefix: str = "") -> CloudBucket:
    """A new bucket of a server, or a prefix in it."""
    made = f"s3://{server.new_bucket()}" if isinstance(server, S3Server) else f"az://{server.new_container()}"
    return CloudBucket(parse_address(made + prefix), server.options)


_DISK = SimulatedDisk()

VERSION_LOGS: dict[str, Callable[[str], VersionLog]] = {
    "memory": lambda root: MemoryVersionLog(),
    "framed": FramedVersionLog,
    "framed-two-open": lambda root: FramedVersionLog(root, opened_max=2),
    "framed-simulated": lambda root: FramedVersionLog(root, files=_DISK.process()),
    "objects-in-memory": lambda root: object_log(),
    "objects-in-memory-small-pages": lambda root: object_log(page=2),
    "retrying-faulty-objects-in-memory": lambda root: retrying_log(object_log()),
    "metered": lambda root: LogLayer(FramedVersionLog(root), metered(Counters())),
    "retrying-faulty-memory": lambda root: retrying_log(MemoryVersionLog()),
    "retrying-faulty-metered-framed": lambda root: retrying_log(
        LogLayer(FramedVersionLog(root), metered(Counters()))
    ),
}


def fill(log: VersionLog, key: str, count: int) -> list[Entry]:
    entries = [Entry(seqno, b"%d" % seqno) for seqno in range(count)]
    for entry in entries:
        assert log.compare_and_set(key, entry.seqno - 1 if entry.seqno else None, entry.data)
    return entries


def check_one_gets_each_seqno(open_log: Callable[[], VersionLog], writers: int, each: int) -> None:
    def write(number: int) -> list[tuple[int, bytes]]:
        log, acknowledged = open_log(), []
        for step in range(each):
            data = b"%d-%d" % (number, step)
            while True:
                head = log.head("race")
                expected = head.seqno if head else None
                if log.compare_and_set("race", expected, data):
                    acknowledged.append((0 if expected is None else expected + 1, data))
                    break
        return acknowledged

    acknowledged = sorted(pair for pairs in at_once(write, range(writers)) for pair in pairs)
    assert acknowledged == [(entry.seqno, entry.data) for entry in open_log().scan("race", 0)]
    assert [seqno for seqno, _ in acknowledged] == list(range(writers * each))
