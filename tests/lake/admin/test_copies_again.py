"""A copy that is made again has what its source has by then; only what is new is copied."""

import threading
import uuid
from random import Random

import pyarrow as pa
import pytest
from copied_lakes import TINY, as_table, assert_same, whats
from damage import DAY_MS, SMALL, World, table

import tidelake
from tables import SCHEMA, contents
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from threads import at_once
from tidelake.env import Counters, Env
from tidelake.errors import CollectionExists, CorruptionError, LeaseExpired, ReadOnlyLake, UsageError
from tidelake.lake.api.lake import Lake
from tidelake.model.frontier import Frontier
from tidelake.shard.care.copy import BytesInFlight
from tidelake.shard.engine.overlap import sequential
from tidelake.store.metered import metered
from tidelake.store.url import Stores
from tidelake.testing.oracle import Oracle
from tiers import some


@pytest.fixture
def c(world):
    return world.filled()


def opened(kind, tmp_path):
    if kind == "memory":
        return World().lake(), World().lake()
    return (tidelake.open(tmp_path / name, config=TINY) for name in ("source", "target"))


class History:
    """Random steps on a lake, with an oracle for each collection."""

    def __init__(self, lake, rng):
        self.lake, self.rng, self.number = lake, rng, 0
        self.truth = {}
        for name in "abc":
            self._make(name)

    def _make(self, name):
        self.lake.create(name, SCHEMA, key=["id"], allow_recreate=True)
        self.truth[name] = Oracle(Frontier.of(0), Frontier.of(0))

    def _rows(self):
        ids = sorted(self.rng.sample(range(300), self.rng.randrange(1, 80)))
        return [(id_, f"v{self.rng.randrange(5)}") for id_ in ids]

    def step(self):
        act = self.rng.choice((self.append,) * 4 + (self.together, self.stage, self.upkeep, self.names))
        act(self.rng.choice(sorted(self.truth)))

    def _is_in(self, name, found, time):
        truth = self.truth[name]
        truth.append([(row, time, 1) for row in found], Frontier.of(max(time + 1, truth.upper.elements[0])))

    def append(self, name):
        found = self._rows()
        self.lake.collection(name).append(as_table(found))
        self._is_in(name, found, self.lake.collection(name).upper.elements[0] - 1)

    def together(self, name):
        other = self.rng.choice(sorted(self.truth.keys() - {name}))
        found = {one: self._rows() for one in (name, other)}
        self.lake.write({one: as_table(there) for one, there in found.items()})
        time = self.lake.collection(name).upper.elements[0] - 1
        for one, there in found.items():
            self._is_in(one, there, time)

    def stage(self, name):
        c = self.lake.collection(name)
        time = c.upper.elements[0] + self.rng.randrange(3)
        found = self._rows()
        c.stage(as_table(found, time))
        self.truth[name].updates += [(row, time, 1) for row in found]
        if self.rng.random() < 0.5:
            c.seal(time + 1)

    def upkeep(self, name):
        c = self.lake.collection(name)
        act = self.rng.randrange(4)
        if act == 0:
            c.maintain(thorough=self.rng.random() < 0.5)
        elif act == 1 and c.upper.elements[0] > c.since.elements[0] + 2:
            c.advance_since(self.rng.randrange(c.since.elements[0], c.upper.elements[0] - 1))
        elif act == 2:
            c.merge()
        else:
            c.collect()

    def names(self, name):
        if self.rng.random() < 0.5:
            self.number += 1
            new = f"{name[0]}{self.number}"
            self.lake.rename(name, new)
            self.truth[new] = self.truth.pop(name)
        elif self.rng.random() < 0.4:
            self.lake.drop(name)
            del self.truth[name]
            self._make(name)

    def check(self, target):
        assert target.list() == sorted(self.truth) == self.lake.list()
        for name, truth in self.truth.items():
            source, copy = self.lake.collection(name), target.collection(name)
            assert_same(copy, source)
            for time in range(copy.since.elements[0], copy.upper.elements[0]):
                assert contents(copy, time) == truth.snapshot(time)


@pytest.mark.promise(
    "After any history each run brings the copy to where the source is, also if it is killed at any "
    "call and run again",
    rule="`state/life/copying.py`; part ids; marks",
    also=["::test_a_run_that_dies_at_any_call_is_gone_on_from"],
)
@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("seed", some(range(12), 12, full=3))
def test_after_any_history_each_run_makes_the_copy_equal(kind, seed, tmp_path):
    rng = Random(seed)
    source, target = opened(kind, tmp_path)
    with source, target:
        history = History(source, rng)
        for _ in range(4):
            for _ in range(rng.randrange(6)):
                history.step()
            source.copy(target, delete=True)
            history.check(target)
            if rng.random() < 0.5:  # a copy that is looked after is a copy all the same
                for collection in map(target.collection, target.list()):
                    collection.maintain(thorough=True)
                target.collect()
        assert {found.kind for found in target.fsck().findings} <= {"old-garbage"}
        assert set(whats(source.copy(target)).values()) == {"same"}


@pytest.mark.parametrize("kind", [Fault.CRASH_AFTER, Fault.CRASH_BEFORE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("number", some(range(1, 60), 30, full=4))
def test_a_run_that_dies_at_any_call_is_gone_on_from(number, kind, world, other):
    """Of the first run, and of the one that brings the copy up to date."""
    lake = world.lake()
    one, two = (world.filled(name, lake=lake) for name in ("one", "two"))
    lake.write({"one": table(7), "two": table(8)})
    before = [c.snapshot().read_all() for c in (one, two)]
    dying = FaultPlan(script=[Fault.NONE] * number + [kind])
    faulty = FaultyBlobStore(other.blobs, dying), FaultyVersionLog(other.log, dying)
    died = 0
    with sequential():
        for grown in (False, True):
            if grown:
                world.lake().copy(other.lake())
                lake.write({"one": table(1007), "two": table(1008)})
                one.merge()
            target = Lake("memory://dying", Stores(*faulty), SMALL, Env(clock=other.clock))
            try:
                lake.copy(target)
            except SimulatedCrash:
                died += 1
            for name, was in zip(("one", "two"), before, strict=True):
                if name in other.lake().list():
                    found = other.lake().collection(name)
                    assert found.snapshot(found.upper.elements[0] - 1).read_all() in (
                        was,
                        lake.collection(name).snapshot().read_all(),
                    )
            dying = FaultPlan(script=[Fault.NONE] * number + [kind])
            faulty = FaultyBlobStore(other.blobs, dying), FaultyVersionLog(other.log, dying)
        lake.copy(other.lake())
    for name in ("one", "two"):
        assert_same(other.lake().collection(name), lake.collection(name))
    assert other.fsck().left == ()
    other.clock.ms += 2 * DAY_MS
    other.lake().collect()
    # Of changes of the catalog that crashed.
    assert all(one.object.startswith("catalog/") for one in other.fsck().left)
    assert not list(other.blobs.list("copies/"))


def counted(world, work):
    """What some work costs the stores of a lake."""
    env = Env(clock=world.clock, recorder=Counters())
    stores = Stores(world.blobs, world.log).layered(metered(env.recorder))
    work(Lake("memory://counted", stores, SMALL, env))
    return {key: count for key, count in env.recorder.counts.items() if count and key.count(".") == 1}


@pytest.mark.promise(
    "A run without news reads and writes no part, and costs a few calls for each collection",
    rule="`contents_of`",
    also=["::test_a_run_with_news_copies_the_new_parts_only"],
)
def test_a_run_without_news_costs_few_calls_and_writes_nothing(world, other):
    lake = world.lake()
    for n in range(10):
        world.filled(f"c{n}", lake=lake)
    lake.write({"c0": table(1), "c1": table(2)})
    lake.copy(other.lake())
    names, log = set(other.blobs._blobs), {key: len(entries) for key, entries in other.log._entries.items()}
    spent = counted(other, lake.copy)
    assert not {"blob.put", "blob.delete", "log.compare_and_set", "log.truncate", "blob.list"} & spent.keys()
    assert sum(count for key, count in spent.items() if key.startswith("log.")) <= 3 * 10 + 8, spent
    assert names == set(other.blobs._blobs)
    assert log == {key: len(entries) for key, entries in other.log._entries.items()}
    target = other.lake()
    spent = counted(world, lambda source: source.copy(target))
    assert not {"blob.put", "blob.delete", "log.compare_and_set", "blob.list"} & spent.keys()
    assert sum(count for key, count in spent.items() if key.startswith("log.")) <= 4 * 10 + 12, spent


def test_a_run_with_news_copies_the_new_parts_only(world, other, c):
    lake = world.lake()
    lake.copy(other.lake())
    before = set(other.blobs._blobs)
    c = lake.collection("c")
    c.append(table(*range(5000, 5100)))
    new = {p.name.rpartition("-")[2] for p in c.state().parts()} - {n.rpartition("-")[2] for n in before}
    report = lake.copy(other.lake())
    (one,) = report.collections
    assert one.what == "newer" and one.parts == len(new) == report.parts and one.found > len(new)
    come = {n.rpartition("-")[2] for n in set(other.blobs._blobs) - before if "/parts/" in n}
    assert come == new
    assert_same(other.lake().collection("c"), c)


def test_what_a_run_replaces_is_deleted_by_a_later_one(world, other, c):
    world.lake().copy(other.lake())
    for _ in range(3):
        c.append(table(1, 2))
        c.merge()
        world.lake().copy(other.lake())
        other.clock.ms += 700_000
    world.lake().copy(other.lake())
    there = {name for name in other.blobs._blobs if "/parts/" in name and not name.startswith("catalog/")}
    assert there == {part.name for part in other.lake().collection("c").state().parts()}
    assert other.fsck().findings == ()


@pytest.mark.promise(
    "A copy that was written to, or is of another collection, is not replaced; readers of a copy "
    "keep what they read",
    rule="`own_marks`; garbage and pins in `succeeding`",
    also=["::test_a_reader_of_a_copy_reads_on_while_it_is_brought_up_to_date"],
)
@pytest.mark.parametrize(
    "write",
    [
        lambda lake: lake.collection("c").append(table(1)),
        lambda lake: lake.collection("c").stage(table(1, _time=pa.array([99], pa.int64()))),
        lambda lake: lake.collection("c").seal(50),
        lambda lake: lake.collection("c").evolve(table(1).schema.append(pa.field("w", pa.int32()))),
        lambda lake: lake.collection("c").critical_hold("mine"),
        lambda lake: lake.collection("c").retain(10),
        lambda lake: lake.write({"c": table(1), "d": table(2)}),
    ],
    ids=["append", "stage", "seal", "evolve", "critical hold", "retain", "transaction"],
)
def test_a_copy_that_was_written_to_is_refused_and_stays(world, other, c, write):
    d = world.filled("d")
    world.lake().copy(other.lake())
    write(other.lake())
    c.append(table(9))
    d.append(table(9))
    state = other.lake().collection("c").state()
    with pytest.raises(CollectionExists, match="the copy 'c' was written to since it was made"):
        world.lake().copy(other.lake())
    assert other.lake().collection("c").state() == state
    other.lake().rename_all({"c": "kept", "d": "kept too"})
    assert whats(world.lake().copy(other.lake(), ["c", "d"])) == {"c": "new", "d": "new"}
    assert_same(other.lake().collection("c"), c)
    assert other.lake().collection("kept").state().upper == state.upper


def test_what_is_no_write_makes_no_other_collection_of_a_copy(world, other, c):
    world.lake().copy(other.lake())
    target = other.lake()
    copy = target.collection("c")
    copy.merge()
    copy.maintain(thorough=True)
    copy.advance_since(2)
    target.fork("c", "fork")
    other.clock.ms += 700_000
    copy.collect()
    target.collect()
    c.append(table(9))
    assert whats(world.lake().copy(target)) == {"c": "newer"}
    assert copy.since == Frontier.of(2) and copy.snapshot().read_all() == c.snapshot().read_all()
    assert target.collection("fork").upper == Frontier.of(3)
    assert target.collection("fork").snapshot().read_all() == c.snapshot(2).read_all()
    assert target.fsck().findings == ()


def test_a_reader_of_a_copy_reads_on_while_it_is_brought_up_to_date(world, other, c):
    world.lake().copy(other.lake())
    target = other.lake()
    copy, expected = target.collection("c"), c.snapshot(2).read_all()
    with copy.reader("reads", since=2) as reader:
        for _ in range(3):
            c.append(table(7))
            c.merge()
            world.lake().copy(target)
            other.clock.ms += 700_000
            copy.collect()
            reader.downgrade(2)
        assert reader.snapshot(2).read_all() == expected
    c.advance_since(5)
    with copy.reader("holds", since=3) as reader:
        world.lake().copy(target)
        with pytest.raises(LeaseExpired):
            reader.downgrade(2)
    assert target.fsck().findings == ()


def test_tokens_of_transactions_are_known_in_the_copy(world, other):
    lake = world.lake()
    for name in ("c", "d"):
        world.filled(name, lake=lake)
    lake.write({"c": table(1), "d": table(2)}, token="once")
    lake.collection("c").writer("w", owner="me").append(table(5), sequence=7)
    lake.copy(other.lake())
    target = other.lake()
    before = [target.collection(name).snapshot().read_all() for name in ("c", "d")]
    assert all(target.collection(name).group() is None for name in ("c", "d"))
    target.write({"c": table(1), "d": table(2)}, token="once")
    target.collection("c").writer("w", owner="me").append(table(5), sequence=7)
    assert [target.collection(name).snapshot().read_all() for name in ("c", "d")] == before
    assert other.fsck().findings == ()


def test_a_restored_lake_goes_on_with_its_numbered_transactions(world, other):
    lake = world.lake()
    for name in ("c", "d"):
        world.filled(name, lake=lake)
    stream = lake.group_writer("c", "stream", owner="query")
    stream.join(["d"])
    assert not stream.write({}, sequence=4, content="offsets 4").already
    lake.write({"c": table(1), "d": table(2)})
    lake.copy(other.lake())
    target = other.lake()
    before = [target.collection(name).snapshot().read_all() for name in ("c", "d")]
    again = target.group_writer("c", "stream", owner="query")
    assert (again.last_sequence, again.last_content) == (4, "offsets 4") and again.epoch > stream.epoch
    again.join(["d"])
    members = {target.collection(name).id for name in ("c", "d")}
    assert {*target.collection("c").group().memberships} == members
    assert again.write({}, sequence=4, content="offsets 4").already
    assert [target.collection(name).snapshot().read_all() for name in ("c", "d")] == before
    # One instant closes the times of both again.
    target.write({"c": table(3)}, upper=10**6)
    assert {str(target.collection(name).upper) for name in ("c", "d")} == {"[1000000]"}
    assert not again.write({}, sequence=5).already
    assert other.fsck().findings == ()


@pytest.mark.promise(
    "All collections of a run are as of one moment: no transaction is in some of them only",
    rule="`states_at_one_moment`",
)
def test_no_transaction_is_half_in_a_copy(tmp_path):
    """Each transaction moves an amount from one account to the other, at open times as well."""
    ended, seen = threading.Event(), []
    with tidelake.open(tmp_path / "lake") as lake:
        for name in "ab":
            lake.create(name, SCHEMA, key=["id"])
        lake.stage({name: as_table([(0, "x")], 10_000) for name in "ab"})

        def move():
            number = 0
            while not ended.is_set():
                number += 1
                found = as_table([(number, "x")], 10_000 if number % 2 else None)
                (lake.stage if number % 2 else lake.write)(dict.fromkeys("ab", found))

        mover = threading.Thread(target=move)
        mover.start()
        try:
            for _ in range(12):
                with tidelake.open(tmp_path / "copy") as target:
                    lake.copy(target)
                    a, b = (target.collection(name) for name in "ab")
                    assert a.upper == b.upper
                    times = a.upper.elements[0] - 1, 10_000
                    for time, staged in ((times[0], False), (times[1], True)) if a.upper.elements[0] else ():
                        found = [c.snapshot(time, staged=staged).read_all() for c in (a, b)]
                        assert found[0] == found[1]
                    seen.append(a.upper)
        finally:
            ended.set()
            mover.join()
    assert len({*seen}) > 3


def test_a_flipped_bit_stops_one_collection_and_no_other(world, other, c):
    world.filled("d")
    world.lake().copy(other.lake())
    before = other.lake().collection("c").snapshot().read_all()
    c.append(table(*range(7000, 7100)))
    world.lake().collection("d").append(table(9))
    new = [p.name for p in c.state().parts()][-1]

    def flipped(data):
        data[50] ^= 1
        return data

    world.overwrite(new, flipped)
    with pytest.raises(CorruptionError, match=new) as caught:
        world.lake().copy(other.lake())
    assert "1 of 2 collections were copied; 'c' was not" in caught.value.__notes__
    assert other.lake().collection("c").snapshot().read_all() == before
    assert_same(other.lake().collection("d"), world.lake().collection("d"))
    # It is mended, and the next run brings the rest.
    world.overwrite(new, flipped)
    world.lake().copy(other.lake())
    assert_same(other.lake().collection("c"), c)
    assert other.fsck().findings == ()


def test_what_the_target_spoils_while_it_is_written_is_found(world, other, c, monkeypatch):
    put = other.blobs.put

    def spoilt(name, data):
        put(name, data[:-9] + b"?" + data[-8:] if "/parts/" in name else data)

    with monkeypatch.context() as patch:
        patch.setattr(other.blobs, "put", spoilt)
        with pytest.raises(CorruptionError, match="other bytes are read back"):
            world.lake().copy(other.lake(), ["c"])
    assert other.lake().list() == []
    # What is there is compared too, and stored anew.
    world.lake().copy(other.lake())
    assert_same(other.lake().collection("c"), c)
    assert other.fsck().findings == ()


def test_renames_and_drops_are_followed(world, other):
    lake, target = world.lake(), other.lake()
    for name in "abc":
        world.filled(name, lake=lake)
    other.filled("theirs")
    lake.copy(target)
    ids = {name: target.id_of(name) for name in "abc"}
    lake.swap("a", "b")
    lake.rename("c", "d")
    report = lake.copy(target)
    assert report.renamed == {"a": "b", "b": "a", "c": "d"} and whats(report) == dict.fromkeys("abd", "same")
    assert {name: target.id_of(name) for name in "abd"} == {"a": ids["b"], "b": ids["a"], "d": ids["c"]}
    lake.drop("a")
    lake.drop("b")
    lake.create("b", SCHEMA, key=["id"], allow_recreate=True)
    with pytest.raises(CollectionExists, match="'b' exists there and is a copy of another collection"):
        lake.copy(target)
    lake.rename("b", "e")
    report = lake.copy(target)
    assert report.left == ("a", "b") and target.list() == ["a", "b", "d", "e", "theirs"]
    lake.rename("e", "b", allow_recreate=True)
    report = lake.copy(target, delete=True)
    assert report.dropped == ("a", "b") and report.renamed == {"e": "b"}
    assert target.list() == ["b", "d", "theirs"]
    assert lake.copy(target, delete=True).dropped == ()


def test_a_copy_of_one_lake_leaves_copies_of_others_alone(world, other):
    third = World()
    world.filled("a")
    third.filled("b")
    world.lake().copy(other.lake())
    third.lake().copy(other.lake(), delete=True)
    world.lake().drop("a")
    world.lake().copy(other.lake(), delete=True)
    assert other.lake().list() == ["b"]


@pytest.mark.promise(
    "`since` of a copy is what the owner allows and readers of the copy keep, in the first run and "
    "in later ones",
    rule="`recorded` in `state/life/copying.py`",
)
@pytest.mark.parametrize("again", [False, True])
def test_the_readers_of_a_source_hold_back_no_history_of_its_copy(again):
    """`since` of a copy is what the owner allows and readers of the copy keep, in the first run and later."""
    lake, other = (tidelake.open(f"memory://{uuid.uuid4().hex}") for _ in range(2))
    c = lake.create("c", pa.schema([("id", pa.int64())]), key=["id"])
    for n in range(8):
        c.append(pa.table({"id": [n]}))
    if again:
        lake.copy(other)
        kept = other.collection("c").reader("of the copy", since=4)
    with c.reader("of the source", since=2):
        c.advance_since(6)
        c.append(pa.table({"id": [8]}))
        lake.copy(other)
        assert c.since == Frontier.of(2)
        assert other.collection("c").since == Frontier.of(4 if again else 6)
    if again:
        kept.close()
        assert other.collection("c").since == Frontier.of(6)


def test_a_source_that_went_back_is_not_copied(world, other, c):
    whole = list(world.log._entries[c.id])
    c.append(table(4))
    world.lake().copy(other.lake())
    world.log._entries[c.id] = whole
    with pytest.raises(CollectionExists, match=r"was written to|the source has lost what was written since"):
        world.lake().copy(other.lake())


def test_settings_of_the_lake_are_copied_with_all_of_it(world, other, c):
    world.lake().settings(garbage_age_s=1234)
    world.lake().copy(other.lake(), ["c"])
    assert other.lake().settings().garbage_age_s != 1234
    world.lake().copy(other.lake())
    assert other.lake().settings() == world.lake().settings()


def test_a_lake_that_is_only_read_can_be_copied_and_not_written(tmp_path):
    with tidelake.open(tmp_path / "a", config=TINY) as lake:
        lake.create("c", SCHEMA, key=["id"]).append(as_table([(n, "x") for n in range(300)]))
    with tidelake.open(tmp_path / "a", read_only=True) as lake, tidelake.open(tmp_path / "b") as target:
        lake.copy(target)
        assert_same(target.collection("c"), lake.collection("c"))
        with pytest.raises(ReadOnlyLake):
            target.copy(lake)


def test_what_cannot_be_meant_is_refused(world, other, c):
    lake = world.lake()
    for wanted in ({"as_name": "x"}, {"names": ["c", "c"]}, {"names": "c"}, {"names": ["c"], "delete": True}):
        with pytest.raises(UsageError):
            lake.copy(other.lake(), **wanted)
    with pytest.raises(UsageError, match="into itself"):
        lake.copy(lake)
    assert not other.log._entries


@pytest.mark.parametrize("number", range(4))
def test_two_runs_at_once_end_as_one(world, other, number):
    lake = world.lake()
    for name in "abcd":
        world.filled(name, lake=lake)
    if number % 2:
        lake.copy(other.lake())
        for name in "abcd":
            lake.collection(name).append(table(*range(number, 200)))

    def run(_):
        world.lake().copy(other.lake())

    at_once(run, range(3))
    for name in "abcd":
        assert_same(other.lake().collection(name), lake.collection(name))
    assert set(whats(lake.copy(other.lake())).values()) == {"same"}
    assert other.fsck().left == ()


def test_memory_is_bounded_by_bytes_in_flight():
    room, most, now, lock = BytesInFlight(100), [0], [0], threading.Lock()

    def one(size):
        with room.holding(size):
            with lock:
                now[0] += size
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.002)
            with lock:
                now[0] -= size

    sizes = [30, 60, 10, 90, 250, 40] * 6
    at_once(one, sizes)
    # One that is larger than the bound goes alone.
    assert most[0] == 250
