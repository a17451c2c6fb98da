"""The log in an object store, on servers: what several clients see of each other's commits."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from store_kit import OBJECT_STORES, cloud_bucket

from clocks import RecordingClock
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.protocols import Entry

Logs = Callable[[], ObjectVersionLog]


@pytest.fixture(params=OBJECT_STORES)
def logs(request: pytest.FixtureRequest) -> Iterator[Logs]:
    """Logs of several clients on one bucket, which removes entries at once."""
    bucket = cloud_bucket(request.getfixturevalue(request.param))
    yield partial(ObjectVersionLog, bucket, RecordingClock(), 0)
    bucket.close()


def filled(log: ObjectVersionLog, key: str, count: int) -> list[Entry]:
    for n in range(count):
        assert log.compare_and_set(key, n - 1 if n else None, b"%d" % n)
    return [Entry(n, b"%d" % n) for n in range(count)]


def test_of_four_clients_one_gets_each_seqno(logs: Logs) -> None:
    def write(number: int) -> list[tuple[int, bytes]]:
        log, acknowledged = logs(), []
        for step in range(3):
            data = b"%d-%d" % (number, step)
            while True:
                head = log.head("race")
                expected = head.seqno if head else None
                if log.compare_and_set("race", expected, data):
                    acknowledged.append((0 if expected is None else expected + 1, data))
                    break
        return acknowledged

    with ThreadPoolExecutor(4) as threads:
        acknowledged = [pair for pairs in threads.map(write, range(4)) for pair in pairs]
    assert sorted(acknowledged) == [(entry.seqno, entry.data) for entry in logs().scan("race", 0)]
    assert [seqno for seqno, _ in sorted(acknowledged)] == list(range(12))


def test_what_one_client_truncates_and_deletes_others_see(logs: Logs) -> None:
    log, other = logs(), logs()
    entries = filled(log, "a/b", 12)
    filled(log, "c", 1)
    assert other.newer("a/b", 2) == entries[3:]
    assert other.newer("a/b", 2, 5) == entries[3:6]
    assert log.truncate("a/b", 10) == 10
    assert other.scan("a/b", 0) == entries[10:] and other.head("a/b") == entries[-1]
    assert other.newer("a/b", 2) is None and other.newer("a/b", 11) == []
    assert other.compare_and_set("a/b", 11, b"12") and not log.compare_and_set("a/b", 11, b"lost")
    assert [*other.keys()] == ["a/b", "c"]
    assert log.delete("a/b")
    assert other.head("a/b") is None and other.newer("a/b", 12) is None
    assert not other.compare_and_set("a/b", None, b"again")
    assert [*other.keys()] == ["c"]
