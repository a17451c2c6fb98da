"""Lakes whose log lies in an object store: costs, drops, and what proves lost commits."""

import uuid
from collections import Counter

import pytest

from clocks import SetClock
from tables import SCHEMA, rows
from tests.doubles.buckets import MemoryBucket
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import CorruptionError, OutcomeUnknown
from tidelake.lake.api.lake import Lake
from tidelake.model import names
from tidelake.store.memory import MemoryBlobStore
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.url import Stores

GRACE_S = 600
CONFIG = Config(merge_budget_s=0.0, rollup_bytes_min=1024, garbage_age_s=3600, upload_age_s=7200)


class Clock(SetClock):
    """A clock whose two times are the same."""

    def monotonic_s(self):
        return self.ms / 1000


class Bucket(MemoryBucket):
    """A bucket that counts requests."""

    def __init__(self, clock):
        super().__init__(clock)
        self.counts = Counter()

    def get_all(self, keys):
        self.counts["get"] += len(keys)
        return super().get_all(keys)

    def put_new(self, key, data):
        self.counts["put"] += 1
        return super().put_new(key, data)

    def list(self, prefix):
        self.counts["list"] += 1
        return super().list(prefix)


class Site:
    """The stores that several machines open, and the clock of the store."""

    def __init__(self):
        self.clock = Clock()
        self.bucket, self.blobs = Bucket(self.clock), MemoryBlobStore(self.clock)

    def lake(self, config=CONFIG):
        """The lake as another machine opens it."""
        log = ObjectVersionLog(self.bucket, self.clock, GRACE_S)
        env = Env(clock=self.clock, recorder=Counters())
        return Lake(f"memory://{uuid.uuid4().hex}", Stores(self.blobs, log, clock=self.clock), config, env)

    def later(self, seconds):
        self.clock.ms += int(seconds * 1000)

    def entries(self, key):
        """The objects of entries of a log."""
        return sorted(name for name in self.bucket._objects if name.startswith(f"log/{key}/1-entries/"))

    def lose(self, key, count):
        """Lose the newest entries of a log, as a store does that is restored from a backup."""
        for name in self.entries(key)[:count]:
            self.bucket.delete([name])


@pytest.fixture
def site():
    return Site()


def test_a_tiny_append_is_one_put_and_an_idle_look_one_get(site):
    c = site.lake(Config(merge_budget_s=0.0)).create("c", SCHEMA, key=["id"])
    c.append(rows(0))
    for n in range(1, 9):
        before = Counter(site.bucket.counts)
        c.append(rows(n))
        spent = site.bucket.counts - before
        assert spent["put"] == 1 and spent["list"] == 0 and spent["get"] <= 1
    for _ in range(9):
        site.later(GRACE_S / 4)
        before = Counter(site.bucket.counts)
        c.state()
        assert site.bucket.counts - before == {"get": 1}


def test_a_dropped_collection_leaves_its_log_for_the_grace(site):
    lake = site.lake()
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1))
    lake.drop("c")
    assert lake.list() == [] and site.entries(c.id)
    assert not [*site.blobs.list(f"{c.id}/")]
    assert site.lake().collect().shards == 0
    site.later(GRACE_S)
    assert site.lake().collect().shards == 1
    assert not site.entries(c.id)
    assert site.lake().collect().shards == 0
    assert site.lake().fsck().findings == ()


def test_a_deletion_of_a_log_that_was_interrupted_is_finished_by_the_next_collection(site):
    lake = site.lake()
    c = lake.create("c", SCHEMA, key=["id"])
    lake.drop("c")
    site.later(GRACE_S)
    whole = site.bucket.delete

    def fail(keys):
        raise OutcomeUnknown("no answer")

    site.bucket.delete = fail
    with pytest.raises(OutcomeUnknown):
        site.lake().collect()
    site.bucket.delete = whole
    assert site.entries(c.id)
    site.lake().collect()
    assert not site.entries(c.id)


def long_lived(site):
    """A collection with rollups and garbage, whose log was truncated."""
    c = site.lake().create("c", SCHEMA, key=["id"])
    for n in range(60):
        c.append(rows(n))
        if n % 20 == 19:
            c.maintain()
            site.later(CONFIG.garbage_age_s + 1)
            c.collect()
    return c


def test_collections_remove_old_entries_one_truncation_later(site):
    c = long_lived(site)
    assert len(site.entries(c.id)) < c.state().seqno
    assert site.lake().collection("c").snapshot().read_all()["id"].to_pylist() == [*range(60)]
    assert site.lake().fsck().findings == ()


@pytest.mark.promise(
    "Where machines share a log, an object that is named after a later state than the log has "
    "proves lost commits, and nothing without a name is removed",
    rule="`check_reaches`",
    also=[
        "::test_no_object_without_a_log_is_removed_from_a_lake_whose_logs_have_lost_commits",
        "::test_a_shard_that_seems_never_written_to_is_kept_if_it_has_objects_of_later_states",
    ],
)
def test_nothing_is_swept_from_a_shard_whose_log_has_lost_commits(site):
    c = long_lived(site)
    key = c.id
    for n in range(60, 70):
        c.append(rows(n))
    site.blobs.put(names.part(key, c.state().seqno, "0" * 32), b"of an interrupted append")
    site.lose(key, 6)
    site.later(10 * CONFIG.upload_age_s)
    uploads = [info.name for info in site.blobs.list(names.parts(key))]
    assert "log-behind" in {one.kind for one in site.lake().fsck(repair=True).left}
    with pytest.raises(CorruptionError, match="the rest is lost"):
        site.lake().collection("c").collect(thorough=True)
    assert [info.name for info in site.blobs.list(names.parts(key))] == uploads


def test_no_object_without_a_log_is_removed_from_a_lake_whose_logs_have_lost_commits(site):
    c = long_lived(site)
    site.blobs.put(names.part("f" * 32, 3, "0" * 32), b"of a shard that a lost entry named")
    site.blobs.put(names.part(c.id, c.state().seqno, "0" * 32), b"of an append")
    site.later(10 * CONFIG.upload_age_s)
    site.lose(c.id, 1)
    with pytest.raises(CorruptionError, match="the rest is lost"):
        site.lake().collect()
    assert [*site.blobs.list("f" * 32)]


def test_a_shard_that_seems_never_written_to_is_kept_if_it_has_objects_of_later_states(site):
    lake = site.lake()
    c = lake.create("c", SCHEMA, key=["id"])
    lost = lake.create("lost", SCHEMA, key=["id"])
    site.blobs.put(names.part(lost.id, 3, "0" * 32), b"of an append")
    # The catalog is restored from before the second name, and the log from before the append.
    site.lose("catalog", 1)
    assert site.lake().list() == ["c"]
    site.later(10 * CONFIG.upload_age_s)
    removed = site.lake().collect()
    assert removed.shards == 0 and "the rest is lost" in removed.damaged[0]
    assert [*site.blobs.list(lost.id)] and site.entries(lost.id) and site.entries(c.id)
