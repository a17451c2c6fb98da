"""Parts of stores that are far give the same rows as near ones, whatever is fetched ahead or kept."""

import os
import random
import threading
import time
from itertools import pairwise

import pyarrow as pa
import pytest

from tables import SCHEMA
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore
from tests.doubles.roundtrips import FarBlobStore, RoundTrips
from tidelake.config import MIB, Config
from tidelake.data.part.rowgroups import wanted_ranges
from tidelake.env import Counters, Env, SystemClock
from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable
from tidelake.lake.api.lake import Lake
from tidelake.process import PerProcess
from tidelake.shard.runs import far, partcaches, rangecache
from tidelake.shard.runs.far import PartsAhead
from tidelake.shard.runs.partcaches import PartCaches, part_caches
from tidelake.shard.runs.rangecache import RangeCache
from tidelake.store.layers import BlobLayer
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores

ROWS = 1_500


@pytest.fixture(autouse=True)
def empty():
    """Nothing is kept in this process, and the disk is not nearly full, whatever others do on it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(partcaches, "_CACHES", PerProcess(PartCaches))
        patched.setattr(rangecache, "spare_bytes", lambda: 1 << 40)
        yield


@pytest.fixture
def small(monkeypatch):
    """Parts of a few kilobytes have several chunks."""
    monkeypatch.setattr(far, "_WHOLE_BYTES", 2_000)
    monkeypatch.setattr(far, "_CHUNK_BYTES_MAX", 3_000)
    monkeypatch.setattr(far, "_CHUNK_BYTES_MIN", 1_000)
    monkeypatch.setattr(far, "_AHEAD_SHARE", 16 * MIB // 12_000)
    monkeypatch.setattr(far, "_PARTS_AHEAD", 3)


class Place:
    """A lake in memory, near and far."""

    def __init__(self, **settings):
        self.trips = RoundTrips(SystemClock(), 0)
        self.blobs, self.log = MemoryBlobStore(SystemClock()), MemoryVersionLog()
        self.config = Config(
            inline_part_bytes=0,
            merge_budget_s=0.0,
            merge_memory_bytes=16 * MIB,
            fold_rows=700,
            **{"part_target_bytes": 8_000, "row_group_rows": 50} | settings,
        )

    def lake(self, *, is_far=True, faults=None):
        blobs = FarBlobStore(self.blobs, self.trips) if is_far else self.blobs
        if faults is not None:
            blobs = FaultyBlobStore(blobs, faults)
        return Lake("memory://place", Stores(blobs, self.log), self.config, Env(recorder=Counters()))

    def filled(self, seed):
        """A collection of a few large and some small runs, of several parts each."""
        chance = random.Random(seed)
        c = self.lake(is_far=False).create("c", SCHEMA, key=["id"])
        for n in range(7):
            ids = chance.sample(range(10 * ROWS), ROWS if n < 3 else 200)
            c.append(table(ids, chance))
        return c


def table(ids, chance):
    values = [chance.randbytes(6).hex() for _ in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "v": values}, schema=SCHEMA)


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


READS = {
    "snapshot": lambda c: c.snapshot().read_all(),
    "columns": lambda c: c.snapshot(columns=["id"]).read_all(),
    "condition": lambda c: c.snapshot(where="id BETWEEN 900 AND 2000 OR v LIKE 'a%'").read_all(),
    "changes": lambda c: c.changes(1, 5).read_all(),
    "updates": lambda c: c.updates(0, 7).read_all(),
    "a few keys": lambda c: c.lookup(keys(*range(70, 100))),
    "some keys": lambda c: c.lookup(keys(*range(0, 10 * ROWS, 501))),
    "most keys": lambda c: c.lookup(keys(*range(0, 10 * ROWS, 2))),
    "split": lambda c: pa.concat_tables(each.read_all() for each in c.distributed.split_snapshot(3)),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("read", READS)
def test_a_far_read_is_the_near_one_and_so_is_the_next(read):
    place = Place()
    c = place.filled(read)
    there = place.lake().collection("c")
    expected = READS[read](c)
    assert expected.num_rows
    for _ in range(3):
        assert READS[read](there) == expected
    assert place.trips.calls["blob.open"] == 0 < place.trips.calls["blob.get_ranges"]


@pytest.mark.usefixtures("small")
def test_a_far_merge_and_a_far_upsert_leave_what_near_ones_leave():
    answers = []
    for is_far in (False, True):
        place = Place()
        place.filled(5)
        c = place.lake(is_far=is_far).collection("c")
        assert c.merge().applied
        c.upsert(table(list(range(0, 10 * ROWS, 7)), random.Random(1)))
        assert c.merge().applied
        answers.append(place.lake(is_far=False).collection("c").snapshot().read_all())
    assert answers[0] == answers[1] and answers[0].num_rows > ROWS


def test_a_small_part_is_one_request_and_then_none():
    place = Place(part_target_bytes=MIB)
    place.filled(1).merge()
    c = place.lake().collection("c")
    for expected in (1, 0, 0):
        place.trips.reset()
        c.snapshot().read_all()
        c.lookup(keys(3, 5_000))
        assert place.trips.calls["blob.get_ranges"] == expected


def test_the_row_groups_of_a_look_up_are_one_request(monkeypatch):
    monkeypatch.setattr(far, "_WHOLE_BYTES", 0)
    place = Place(part_target_bytes=MIB, row_group_rows=500)
    near = place.filled(1)
    near.merge()
    (part,) = near.state().parts()
    assert part.rows > 400
    there = place.lake().collection("c")
    for _ in range(2):
        place.trips.reset()
        assert there.lookup(keys(*range(0, 400))).num_rows
        # The footer first: it says where they are.
        assert place.trips.calls["blob.get_ranges"] <= 2
    assert place.trips.calls["blob.get_ranges"] == 0


class Watched(BlobLayer):
    """Counts the bytes that were asked for, but for the footers."""

    is_far = True

    def __init__(self, inner):
        super().__init__(inner)
        self.asked = 0
        self.lock = threading.Lock()

    def get_ranges(self, name, ranges):
        size = len(self.get(name))
        with self.lock:
            self.asked += sum(length for start, length in ranges if start + length < size)
        return self._inner.get_ranges(name, ranges)


def until(holds):
    """Whether it holds, at last."""
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.001)
    return holds()


@pytest.mark.usefixtures("small")
def test_what_is_fetched_ahead_is_bounded_however_slow_the_reader_is():
    place = Place()
    c = place.filled(2)
    c.merge()
    parts = [part for part in c.state().parts() if part.inline is None]
    assert sum(part.size_bytes for part in parts) > 70_000
    watched = Watched(place.blobs)
    spec = c.distributed.uploader().spec

    def find(file, part):
        return wanted_ranges(file, part, spec.schema)

    ahead = PartsAhead(spec, watched, parts, find, few=False, runs=1)
    most = read = 0
    for part in parts:
        with ahead.part(part) as file:
            file.seek(4)
            if not read:  # the reader is slow: it waits for as much as is always fetched ahead
                assert until(lambda: watched.asked >= 4_000)
            while file.seek(0, 1) < file.footer.ends[-1]:
                read += len(file.read(500))
                most = max(most, watched.asked - read)
    ahead.close()
    assert read > 60_000
    # The chunks that are under way, the one that is being read, and the last one of a part.
    assert most <= 12_000 + 3 * 3_000


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("read", ["snapshot", "some keys"])
def test_an_error_of_the_store_is_the_error_of_the_read_and_then_it_works(read):
    place = Place()
    expected = READS[read](place.filled(3))
    plan = FaultPlan(1, {})
    c = place.lake(faults=plan).collection("c")
    failed = 0
    for n in range(12):
        plan.rates_by_operation = {"blob.get_ranges": {Fault.UNAVAILABLE: 0.5 / (n + 1)}}
        try:
            assert READS[read](c) == expected
        except StoreUnavailable:
            failed += 1
    plan.rates_by_operation = {}
    assert READS[read](c) == expected
    assert failed
    left = {one.name for one in threading.enumerate()}
    assert not left & {"tidelake-prefetch", "tidelake-background"}


def damaged(place, part, at):
    """Flip a bit of a stored part; returns what it was."""
    data, ms = place.blobs._blobs[part.name]
    place.blobs._blobs[part.name] = (data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], ms)
    return data, ms


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_AFTER])
def test_a_put_that_fails_beside_others_leaves_nothing(n, fault):
    place = Place()
    place.lake(is_far=False).create("c", SCHEMA, key=["id"])
    given = table(range(4 * ROWS), random.Random(1))
    plan = FaultPlan()
    c = place.lake(faults=plan).collection("c")
    plan.rates_by_operation = {"blob.put": {fault: 0.0}}
    plan.follow([*[Fault.NONE] * (n - 1), fault])
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        c.append(given)
    assert plan.total() == 1
    assert not list(place.blobs.list(f"{c.id}/"))
    c.append(given)
    assert len(list(place.blobs.list(f"{c.id}/"))) > 8
    assert c.snapshot().read_all().num_rows == 4 * ROWS


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_damage_is_told_and_is_not_kept(share):
    place = Place()
    near = place.filled(4)
    near.merge()
    expected = READS["most keys"](near)
    c = place.lake().collection("c")
    part = max(c.state().parts(), key=lambda part: part.size_bytes)
    was = damaged(place, part, int(share * part.size_bytes))
    for read in ("most keys", "snapshot"):
        with pytest.raises(CorruptionError, match=part.name):
            READS[read](c)
    place.blobs._blobs[part.name] = was
    assert READS["most keys"](c) == expected


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_flipped_bit_in_the_cache_gives_no_wrong_row_and_no_error(where):
    # A hundred kilobytes of memory and a megabyte of disk, or all in memory.
    place = Place(lookup_cache_bytes=3 * MIB if where == "disk" else 2048 * MIB)
    expected = READS["most keys"](place.filled(6))
    c = place.lake().collection("c")
    assert READS["most keys"](c) == expected
    cache = part_caches().ranges
    cache._held = type(cache._held)(
        (k, (bytes([d[0] ^ 1]) + d[1:], crc)) for k, (d, crc) in cache._held.items()
    )
    if where == "disk":
        assert cache.disk_bytes > 20_000
        ring = cache._ring
        descriptor = ring._file.fileno()
        for at, size, _ in ring._items.values():
            os.pwrite(descriptor, bytes(byte ^ 8 for byte in os.pread(descriptor, size, at)), at)
    else:
        assert cache.disk_bytes == 0 < cache.memory_bytes
    for _ in range(2):
        assert READS["most keys"](c) == expected


@pytest.mark.parametrize("seed", range(3))
def test_the_cache_gives_what_was_put_or_nothing_and_stays_small(seed):
    chance = random.Random(seed)
    cache, put = RangeCache(), {}
    found = 0
    for _ in range(4_000):
        id_, start = ("url", f"p{chance.randrange(20)}", "sum"), chance.randrange(30)
        known = put.get((id_, start))
        if chance.random() < 0.01:
            cache.forget(id_)
        if known is None or chance.random() < 0.1:
            data = known or chance.randbytes(chance.choice([0, 1, 90, 400, 5_000]))
            put[id_, start] = data
            cache.put(id_, start, data, 64_000 // 32, 64_000 // 4)
        else:
            got = cache.get(id_, start, start + len(known))
            assert got in (None, known)
            found += got is not None
        assert cache.memory_bytes <= 64_000 // 32
        assert cache.disk_bytes <= 64_000 // 4
    assert found > 300 and cache.disk_bytes > 64_000 // 8
    # No two items lie in one place of the file.
    places = sorted((at, at + size) for at, size, _ in cache._ring._items.values() if size)
    assert all(before[1] <= after[0] for before, after in pairwise(places))


def test_a_fork_has_a_cache_of_its_own():
    mine = part_caches().ranges
    part_caches().keep_range(("url", "p", "sum"), 0, b"here", Config())
    child = os.fork()
    if not child:
        theirs = part_caches().ranges
        os._exit(0 if theirs is not mine and theirs.get(("url", "p", "sum"), 0, 4) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mine.get(("url", "p", "sum"), 0, 4) == b"here"


def test_without_space_nothing_is_kept():
    place = Place(lookup_cache_bytes=0)
    expected = READS["some keys"](place.filled(8))
    c = place.lake().collection("c")
    for _ in range(2):
        place.trips.reset()
        assert READS["some keys"](c) == expected
        assert place.trips.calls["blob.get_ranges"]
    assert part_caches().ranges.memory_bytes == 0
