"""Drops in an object store that are interrupted: another process finishes them, and nothing is left."""

from contextlib import suppress

import pytest

import inside
from clocks import MovedClock
from tables import SCHEMA, ids, rows
from tests.doubles.buckets import MemoryBucket
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionDropped, OutcomeUnknown, StoreUnavailable
from tidelake.lake.api.lake import Lake
from tidelake.shard.engine.history import History
from tidelake.store.objects import entrynames
from tidelake.store.objects.blobs import ObjectBlobStore
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.url import Stores

GRACE_S = 600.0


class EndingBucket(MemoryBucket):
    """A bucket whose process ends at a write: it, and those after it, have no effect."""

    def __init__(self, clock):
        super().__init__(clock)
        self.writes_left = None

    def _write(self):
        if self.writes_left is None:
            return
        if not self.writes_left:
            raise StoreUnavailable("the process has ended", False)
        self.writes_left -= 1

    def put_new(self, key, data):
        self._write()
        return super().put_new(key, data)

    def put(self, key, data):
        self._write()
        super().put(key, data)

    def delete(self, keys):
        self._write()
        super().delete(keys)


def lake_on(bucket, clock):
    stores = Stores(ObjectBlobStore(bucket), ObjectVersionLog(bucket, clock, GRACE_S), clock=clock)
    return Lake("memory://drops", stores, Config(), Env(clock=clock))


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_drop_that_was_interrupted_at_any_write_is_finished_by_another_process(writes):
    clock = MovedClock()
    bucket = EndingBucket(clock)
    with lake_on(bucket, clock) as lake:
        lake.create("c", SCHEMA, key=["id"]).append(rows(0))
        lake.create("other", SCHEMA, key=["id"])
        lake.drop("c")
        clock.sleep(2 * GRACE_S)
        bucket.writes_left = writes
        with suppress(StoreUnavailable, OutcomeUnknown):
            lake.collect()
        interrupted = bucket.writes_left == 0
        bucket.writes_left = None
    with lake_on(bucket, clock) as lake:
        for _ in range(3):
            lake.collect()
            clock.sleep(2 * GRACE_S)
        assert interrupted
        left = {*inside.stores(lake).log.keys()} - {"catalog", lake.collection("other").id}
        assert not left
        assert lake.fsck().clean


def test_a_shard_that_is_dropped_while_it_is_opened_is_one_that_was_dropped(monkeypatch):
    clock = MovedClock()
    bucket = EndingBucket(clock)
    with lake_on(bucket, clock) as lake, lake_on(bucket, clock) as other:
        c = lake.create("c", SCHEMA, key=["id"])
        assert inside.write_rollup(c)
        c.append(rows(0))
        history, get = History(c.id, inside.stores(other), other.env), MemoryBucket.get

        def dropped_first(*args):
            monkeypatch.undo()
            lake.drop("c")  # deletes the rollup; the log stays for the grace, and still names it
            return get(*args)

        monkeypatch.setattr(MemoryBucket, "get", dropped_first)
        with pytest.raises(CollectionDropped):
            history.open()


def test_fsck_names_what_landed_late_and_a_repair_removes_it_where_the_log_was_deleted():
    clock = MovedClock()
    bucket = EndingBucket(clock)
    with lake_on(bucket, clock) as lake:
        kept, dropped = (lake.create(name, SCHEMA, key=["id"]) for name in ("kept", "dropped"))
        for c in (kept, dropped):
            for n in range(4):
                c.append(rows(n))
            assert inside.write_rollup(c)
        log, first = inside.stores(lake).log, kept.state().rollup.seqno
        clock.sleep(2 * GRACE_S)
        lake.drop("dropped")
        log.truncate(kept.id, first)
        clock.sleep(2 * GRACE_S)
        lake.collect()
        kept.append(rows(4))
        log.truncate(kept.id, first + 1)
        assert lake.fsck().clean and "ghost-entry" not in {one.kind for one in lake.fsck().findings}
        for late in (kept, dropped):
            assert bucket.put_new(entrynames.entry(late.id, 1), b"late")
        told = {
            (one.collection, one.object): one for one in lake.fsck().findings if one.kind == "ghost-entry"
        }
        assert sorted(told) == sorted([("kept", f"{kept.id}@1"), ("", f"{dropped.id}@1")])
        assert "truncation" in told["kept", f"{kept.id}@1"].message and lake.fsck().clean
        repaired = {one.object for one in lake.fsck(repair=True).findings if one.repaired}
        assert repaired == {f"{dropped.id}@1"}
        assert [one.object for one in lake.fsck().findings if one.kind == "ghost-entry"] == [f"{kept.id}@1"]
        assert ids(kept) == dict.fromkeys(range(5), 1)
        # The next truncation takes the other one.
        clock.sleep(2 * GRACE_S)
        log.truncate(kept.id, first + 2)
        assert "ghost-entry" not in {one.kind for one in lake.fsck().findings}
