"""The log in an object store, on servers: what several clients see of each other's commits."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from store_kit import OBJECT_STORES, check_one_gets_each_seqno, cloud_bucket, fill

from clocks import RecordingClock
from tidelake.store.objects.log import ObjectVersionLog

Logs = Callable[[], ObjectVersionLog]


@pytest.fixture(params=OBJECT_STORES)
def logs(request: pytest.FixtureRequest) -> Iterator[Logs]:
    """Logs of several clients on one bucket, which removes entries at once."""
    bucket = cloud_bucket(request.getfixturevalue(request.param))
    yield partial(ObjectVersionLog, bucket, RecordingClock(), 0)
    bucket.close()


def test_of_four_clients_one_gets_each_seqno(logs: Logs) -> None:
    check_one_gets_each_seqno(logs, 4, 3)


def test_what_one_client_truncates_and_deletes_others_see(logs: Logs) -> None:
    log, other = logs(), logs()
    entries = fill(log, "a/b", 12)
    fill(log, "c", 1)
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
