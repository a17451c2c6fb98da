"""Collection in an object store: one request deletes up to a thousand objects."""

import pytest

from clocks import MovedClock
from tables import SCHEMA, ids, rows
from tests.doubles.buckets import MemoryBucket
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.lake.api.lake import Lake
from tidelake.store.objects.blobs import ObjectBlobStore
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.url import Stores

CONFIG = Config(inline_part_bytes=0, merge_budget_s=0.0, runs_max=10**6)
APPENDS = 40


class CountedBucket(MemoryBucket):
    """Remembers what each request deletes, and fails those that name `stuck` objects: nothing is deleted."""

    def __init__(self, clock):
        super().__init__(clock)
        self.requests, self.stuck, self.error = [], frozenset(), StoreUnavailable("no permission", False)

    def delete(self, keys):
        self.requests.append(list(keys))
        if self.stuck.intersection(keys):
            raise self.error
        super().delete(keys)


@pytest.fixture
def lake():
    clock = MovedClock()
    bucket = CountedBucket(clock)
    stores = Stores(ObjectBlobStore(bucket), ObjectVersionLog(bucket, clock, 600.0), clock=clock)
    with Lake("memory://far", stores, CONFIG, Env(clock=clock)) as lake:
        yield lake, bucket, clock


def garbage_of(lake, clock):
    """A collection with so many parts that are garbage."""
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(APPENDS):
        c.append(rows(n))
    c.merge()
    clock.sleep(2 * CONFIG.garbage_age_s)
    garbage = {name for name in c.state().garbage if "/parts/" in name}
    assert len(garbage) >= APPENDS
    return c, garbage


def parts_of(bucket, c):
    return {info.key for page in bucket.list(f"{c.id}/parts/") for info in page}


def test_all_garbage_goes_with_one_request(lake):
    lake, bucket, clock = lake
    c, garbage = garbage_of(lake, clock)
    bucket.requests.clear()
    assert c.collect().blobs >= APPENDS
    assert [set(request) >= garbage for request in bucket.requests if garbage & {*request}] == [True]
    assert not garbage & parts_of(bucket, c)
    assert ids(c) == dict.fromkeys(range(APPENDS), 1) and lake.fsck().clean
    assert not c.state().doomed and not c.collect().blobs


def test_a_dropped_collection_goes_with_few_requests(lake):
    lake, bucket, clock = lake
    c, _ = garbage_of(lake, clock)
    lake.drop("c")
    bucket.requests.clear()
    clock.sleep(2 * CONFIG.upload_age_s)
    lake.collect()
    assert not [info for page in bucket.list(f"{c.id}/") for info in page]
    assert len(bucket.requests) < APPENDS / 2 and lake.fsck().clean


def test_an_object_that_cannot_be_deleted_does_not_keep_the_others(lake):
    lake, bucket, clock = lake
    c, garbage = garbage_of(lake, clock)
    bucket.stuck = frozenset([min(garbage)])
    with pytest.raises(StoreUnavailable, match="no permission"):
        c.collect()
    assert garbage & parts_of(bucket, c) == bucket.stuck == {*c.state().doomed}
    bucket.stuck = frozenset()
    assert c.collect().blobs == 1 and not c.state().doomed


def test_after_a_lost_reply_all_are_deleted_again(lake):
    lake, bucket, clock = lake
    c, garbage = garbage_of(lake, clock)
    bucket.stuck, bucket.error = frozenset([min(garbage)]), OutcomeUnknown("no answer")
    with pytest.raises(OutcomeUnknown):
        c.collect()
    assert garbage <= {*c.state().doomed} and len(bucket.requests[-1]) >= APPENDS
    bucket.stuck = frozenset()
    assert c.collect().blobs >= APPENDS and not garbage & parts_of(bucket, c)
