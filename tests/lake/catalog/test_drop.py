"""The end of a collection: refused while it is held, complete at last, and final for every process."""

import threading
import uuid
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

import inside
import tidelake
from clocks import SetClock
from tables import SCHEMA, at, contents, rows
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from threads import at_once
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import (
    CollectionDropped,
    CollectionExists,
    CollectionInUse,
    CollectionNotFound,
    CorruptionError,
    InternalError,
    OutcomeUnknown,
    UploadExpired,
)
from tidelake.lake.api.lake import Lake, open_lake
from tidelake.model import names
from tidelake.shard.engine.fairshare import FairShare
from tidelake.shard.engine.history import History
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.ending import Ending, Removed
from tidelake.shard.upkeep.maintain import Maintainer
from tidelake.state.core import commands
from tidelake.state.life import holds
from tidelake.state.spine.merging import request as request_of
from tidelake.state.upkeep import maintenance
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores
from tiers import some

CONFIG = Config(inline_part_bytes=0, merge_budget_s=0.0, rollup_bytes_min=1024, upload_age_s=1_000.0)


class Site:
    """Stores that several processes open, and the clock that these share."""

    def __init__(self, appends=5):
        self.clock = SetClock()
        self.stores = Stores(MemoryBlobStore(self.clock), MemoryVersionLog())
        self.c = self.lake().create("c", SCHEMA, key=["id"])
        self.id = self.c.id
        for n in range(appends):
            self.c.append(rows(n))
        other = self.lake().create("other", SCHEMA, key=["id"])
        other.append(rows(1))

    def lake(self, plan=None):
        stores = inside.replaceable(self.stores)
        blobs, log = stores.blobs, stores.log
        if plan is not None:
            blobs, log = FaultyBlobStore(blobs, plan), FaultyVersionLog(log, plan)
        env = Env(clock=self.clock, recorder=Counters())
        return Lake(f"memory://{uuid.uuid4().hex}", Stores(blobs, log), CONFIG, env)

    def later(self, seconds):
        self.clock.ms += int(seconds * 1000)

    def left(self):
        """What is stored of the collection."""
        blobs = [info.name for info in self.stores.blobs.list(f"{self.id}/")]
        return blobs + [self.id] * (self.stores.log.head(self.id) is not None)

    def objects(self):
        """The parts of all collections."""
        names_ = (info.name for info in self.stores.blobs.list())
        return {name for name in names_ if "/parts/" in name and not name.startswith("catalog/")}

    def check_gone(self):
        assert self.left() == []
        lake = self.lake()
        assert lake.list() == ["other"] and contents(lake.collection("other")) == {(1, "x"): 1}
        with pytest.raises(CollectionExists, match="was dropped"):
            lake.create("c", SCHEMA, key=["id"])


@pytest.fixture
def site():
    return Site()


def test_a_drop_deletes_everything_and_the_name_stays_taken(site):
    lake = site.lake()
    assert len(site.left()) > 5
    assert lake.drop("c") is True
    site.check_gone()
    assert lake.drop("c") is False
    with pytest.raises(CollectionNotFound, match="no collection 'never'"):
        lake.drop("never")


def test_a_drop_leaves_no_folder_behind(tmp_path):
    hasty = replace(CONFIG, upload_age_s=0.0)
    with open_lake(tmp_path / "lake", config=hasty) as lake:
        for name in ("c", "kept"):
            lake.create(name, SCHEMA, key=["id"]).append(rows(1))
        kept = lake.collection("kept").id
        late = lake.collection("c").builder()
        late.add(at(9, 9))
        gone = lake.collection("c").id
        inside.write_rollup(lake.collection("c"))
        assert lake.drop("c")
        assert {path.name for path in (tmp_path / "lake/blobs").iterdir()} <= {kept, "catalog", "~tmp"}
        # A late upload makes the folder again, which goes with it when it is old.
        late.finish(tidelake.Frontier.of(10)).to_bytes()
        assert (tmp_path / "lake/blobs" / gone).is_dir()
    with open_lake(tmp_path / "lake", config=hasty) as lake:
        assert lake.collect().blobs == 1
        assert not (tmp_path / "lake/blobs" / gone).exists()
        assert contents(lake.collection("kept")) == {(1, "x"): 1}


@pytest.mark.promise(
    "A held collection is dropped only by force; the refusal names the holders",
    rule="`drop_shard`",
    also=["::test_force_drops_what_is_held_and_its_readers_learn_it"],
)
def test_a_collection_that_is_held_is_not_dropped_and_the_holders_are_named(site):
    reader = site.c.reader("nightly report")
    inside.run(site.c, partial(holds.open_critical, name="billing"))
    before = site.c.state(), site.left()
    with pytest.raises(CollectionInUse, match=r"collection 'c' is held by 'nightly report' .*'billing'"):
        site.lake().drop("c")
    assert (site.c.state(), site.left()) == before
    reader.close()
    inside.run(site.c, partial(holds.drop_critical, name="billing"))
    assert site.lake().drop("c") is True
    site.check_gone()


def test_force_drops_what_is_held_and_its_readers_learn_it(site):
    reader = site.c.reader("nightly report")
    assert site.lake().drop("c", force=True) is True
    site.check_gone()
    with pytest.raises(CollectionDropped, match="collection 'c' was dropped"):
        reader.downgrade(site.c.state().upper)
    reader.close()


def test_a_hold_that_has_expired_holds_nothing(site):
    site.c.reader("gone")
    site.later(CONFIG.lease_s)
    assert site.lake().drop("c") is True


def commands_of(c):
    """Calls that a process may still try with a handle: those that raise, and those that do nothing."""
    told = {
        "append": lambda: c.append(rows(9)),
        "append at times": lambda: c.append(at(9, 9)),
        "compare_and_append": lambda: c.compare_and_append(at(9, 9), 5, 10),
        "writer": lambda: c.writer("w"),
        "reader": lambda: c.reader("r"),
        "snapshot": c.snapshot,
        "snapshot at a time": lambda: c.snapshot(1),
        "changes": lambda: c.changes(1, 2),
        "updates": lambda: c.updates(1, 2),
        "plan": lambda: c.distributed.plan(None, 2),
        "critical hold": lambda: c.critical_hold("x"),
        "listen": lambda: next(c.listen(1, timeout_s=0)),
    }
    neutral = {
        "maintain": c.maintain,
        "maintain now": lambda: c.maintain(thorough=False),
        "collect": lambda: c.collect(thorough=True),
        "merge": c.merge,
        "rollup": inside.shard(c).write_rollup,
        "state": c.state,
    }
    return told, neutral


@pytest.mark.promise(
    "Nothing is committed on a tombstone. An old handle brings nothing back: reads and writes raise "
    "`CollectionDropped`; closing, maintaining and collecting do nothing",
    rule="`Machine.run`, `vanished`",
    also=[
        "::test_nothing_is_committed_on_a_tombstone",
        "::test_a_lost_reply_of_an_append_to_what_was_dropped_since_comes_to_an_end",
    ],
)
@pytest.mark.parametrize("is_gone", [False, True], ids=["tombstone", "deleted"])
@pytest.mark.parametrize("refreshed", [False, True])
def test_each_old_handle_is_told_and_nothing_comes_back(site, is_gone, refreshed):
    told, neutral = commands_of(site.lake().collection("c"))
    writer = site.c.writer("old")
    builder = site.c.builder()
    builder.add(at(9, 9).cast(site.c.update_schema))
    batch = builder.finish(type(site.c.upper).of(10))
    if is_gone:
        site.lake().drop("c")
    else:
        site.lake()._leftovers.ending(site.id).drop()
    if refreshed:
        neutral["state"]()
    for act in neutral.values():
        act()
    for act in told.values():
        with pytest.raises(CollectionDropped, match="collection 'c' was dropped"):
            act()
    for act in (lambda: writer.append(rows(8)), lambda: writer.append_batches([batch], lower=5, upper=10)):
        with pytest.raises(CollectionDropped, match="collection 'c' was dropped"):
            act()
    # Not in for certain, so the number stays usable and the batch can be deleted.
    assert writer._numbers._unsure is None
    batch.delete()
    site.lake().drop("c")
    assert site.id not in set(site.stores.log.keys())
    site.later(CONFIG.upload_age_s)
    site.lake().collect()
    site.check_gone()


@pytest.mark.parametrize("given", [rows(9), at(2, 9), at(9, 9)], ids=["no time", "closed time", "open time"])
@pytest.mark.parametrize("has_rivals", [False, True])
def test_a_handle_that_has_learned_of_the_drop_says_so(site, given, has_rivals, monkeypatch):
    monkeypatch.setattr(FairShare, "has_rivals", has_rivals)
    lake = site.lake()
    c = lake.collection("c")
    with c.reader("held"):
        lake.drop("c", force=True)
    assert c.state().dropped
    with pytest.raises(CollectionDropped, match="collection 'c' was dropped"):
        c.append(given)


def test_opening_a_tombstone_names_the_collection(site):
    site.lake()._leftovers.ending(site.id).drop()
    lake = site.lake()
    with pytest.raises(CollectionDropped, match="collection 'c' was dropped"):
        lake.collection("c")
    with pytest.raises(CollectionExists, match="a collection 'c' existed here and was dropped"):
        lake.create("c", SCHEMA, key=["id"])


def test_opening_a_tombstone_whose_objects_are_going_is_no_damage(site):
    inside.write_rollup(site.c)
    site.lake()._leftovers.ending(site.id).drop()
    for info in list(site.stores.blobs.list(names.rollups(site.id))):
        site.stores.blobs.delete(info.name)
    with pytest.raises(CollectionDropped, match="collection 'c' was dropped"):
        site.lake().collection("c")
    assert site.lake().drop("c") is True
    site.check_gone()


def test_nothing_is_committed_on_a_tombstone(site):
    shard = inside.shard(site.c)
    shard.known()
    site.lake()._leftovers.ending(site.id).drop()
    head = site.stores.log.head(site.id).seqno
    with pytest.raises(CollectionDropped, match="'c'"):
        shard.run(partial(commands.add_rollup, rollup=shard._history.write_rollup(shard.known())))
    told, neutral = commands_of(site.c)
    for act in neutral.values():
        act()
    assert site.stores.log.head(site.id).seqno == head and told


def test_a_shard_that_was_not_dropped_is_not_removed(site):
    ending = Ending(site.stores, Env(clock=site.clock), CONFIG, site.id)
    before = site.left()
    with pytest.raises(InternalError, match="was not dropped"):
        ending.remove()
    assert site.left() == before
    assert Ending(site.stores, Env(clock=site.clock), CONFIG, "none").remove() == Removed()


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_a_lost_reply_of_an_append_to_what_was_dropped_since_comes_to_an_end(site, fault):
    plan = FaultPlan()
    c = site.lake(plan).collection("c")
    c.state()
    whole = site.stores.log.compare_and_set

    def dropped_since(*args):
        answer = whole(*args) if fault is Fault.UNKNOWN_AFTER else None
        site.stores.log.compare_and_set = whole
        site.lake().drop("c")
        assert answer in (True, None)
        raise OutcomeUnknown("no answer")

    site.stores.log.compare_and_set = dropped_since
    with pytest.raises(OutcomeUnknown, match="dropped since"):
        c.append(rows(9))
    with pytest.raises(CollectionDropped):
        c.append(rows(9))
    assert site.id not in set(site.stores.log.keys())


# Crashes, and several at once


def store_calls_of_a_drop():
    site, plan = Site(), FaultPlan()
    lake = site.lake(plan)
    before = len(plan.calls)
    lake.drop("c")
    return plan.calls[before:]


CALLS = store_calls_of_a_drop()
RESUMERS = {"drop": lambda site: site.lake().drop("c"), "collect": lambda site: site.lake().collect()}


@pytest.mark.promise(
    "A drop ends with all objects and the log gone, after a crash anywhere, whichever process finishes it",
    rule="`shard/upkeep/ending.py`, `lake/catalog/leftovers.py`",
    also=["::test_two_droppers_at_once_both_come_to_an_end", "::test_upkeep_finishes_a_drop"],
)
@pytest.mark.parametrize("resumer", RESUMERS)
@pytest.mark.parametrize("n", some(range(len(CALLS)), 9, full=3), ids=lambda n: f"{n}-{CALLS[n]}")
def test_a_drop_that_crashed_at_any_call_is_finished_by_others(n, resumer):
    site, plan = Site(), FaultPlan()
    lake = site.lake(plan)
    plan.follow([Fault.NONE] * n + [Fault.CRASH_AFTER])
    with pytest.raises(SimulatedCrash):
        lake.drop("c")
    is_dropped = Ending(site.stores, Env(), CONFIG, site.id).is_tombstone() or not site.left()
    if not is_dropped:
        # Nothing was said yet, and nothing has happened.
        assert len(contents(site.lake().collection("c"))) == 5
        RESUMERS["collect"](site)
        assert len(contents(site.lake().collection("c"))) == 5
        resumer = "drop"
    RESUMERS[resumer](site)
    site.check_gone()


def test_upkeep_finishes_a_drop(site):
    site.lake()._leftovers.ending(site.id).drop()
    lake = site.lake()
    done = threading.Event()
    whole = lake._leftovers.objects
    lake._leftovers.objects = lambda: (whole(), done.set())[0]
    with lake.upkeep(interval_s=0.001) as upkeep:
        site.clock.slept_s += CONFIG.upload_age_s
        assert done.wait(30)
    assert upkeep.failures == 0
    site.check_gone()


def test_two_droppers_at_once_both_come_to_an_end(site):
    answers, failures = [], []

    def work(_):
        answers.append(site.lake().drop("c"))

    at_once(work, range(4))
    assert not failures and answers.count(True) == 1
    site.check_gone()


# What has no name


def shard_without_name(site):
    """The leftovers of a process that dies after it has made a shard, before the shard has a name."""
    spec = ShardSpec(
        "memory://x", uuid.uuid4().hex, site.c.domain, 0, {0: inside.shard(site.c).known().schema}, CONFIG
    )
    return Shard.create(site.stores, Env(clock=site.clock), spec)


def test_a_shard_that_never_got_a_name_goes_when_it_is_old_enough(site):
    orphan = shard_without_name(site).spec.shard_id
    lake = site.lake()
    site.later(CONFIG.upload_age_s - 0.001)
    assert lake.collect() == Removed() and orphan in set(site.stores.log.keys())
    site.later(0.001)
    assert lake.collect() == Removed(1)
    assert orphan not in set(site.stores.log.keys())
    assert lake.list() == ["c", "other"]


def test_a_shard_without_a_name_that_was_written_to_stays(site):
    orphan = shard_without_name(site)
    orphan.run(partial(commands.open_writer, name="w"))
    site.later(CONFIG.upload_age_s)
    assert site.lake().collect() == Removed()
    assert orphan.spec.shard_id in set(site.stores.log.keys())


def test_a_collection_without_writes_stays_however_old_it_is(site):
    site.lake().create("empty", SCHEMA, key=["id"])
    site.later(2 * CONFIG.upload_age_s)
    assert site.lake().collect() == Removed()
    site.lake().collection("empty").append(rows(1))


@pytest.mark.promise(
    "A shard that others may know becomes a tombstone before it is deleted; a new shard with writes "
    "is no leftover",
    rule="`abandon`, `Ending.remove`",
    also=[
        "::test_a_shard_without_a_name_that_was_written_to_stays",
        "::test_a_shard_that_was_not_dropped_is_not_removed",
    ],
)
def test_a_creator_that_wakes_up_late_loses_no_row(site):
    """Its shard was taken for a lost one while it slept: it may not acknowledge anything."""
    lake = site.lake()
    whole = inside.catalog(lake).set

    def slept(*args):
        inside.catalog(lake).set = whole
        site.later(CONFIG.upload_age_s)
        assert site.lake().collect() == Removed(1)
        return whole(*args)

    inside.catalog(lake).set = slept
    with pytest.raises(CollectionDropped, match="'late'"):
        lake.create("late", SCHEMA, key=["id"])
    assert site.lake().list() == ["c", "other"]
    lake.create("late", SCHEMA, key=["id"]).append(rows(1))
    assert contents(site.lake().collection("late")) == {(1, "x"): 1}


@pytest.mark.promise(
    "A new collection is acknowledged when its shard says that it has its name; from then on no "
    "process takes it for a leftover",
    rule="`publishing.confirm`",
    also=["lake/catalog/test_fork.py::test_a_forker_that_wakes_up_late_harms_nothing_and_is_told"],
)
def test_a_name_that_is_given_after_a_tidier_has_looked_is_not_acknowledged(site):
    """The tidier takes the shard of a creator that slept for a lost one, by names that are old by then."""
    lake, tidier = site.lake(), site.lake()
    name, read, named = inside.catalog(lake).set, inside.catalog(tidier).read, []

    def slept(*args):
        inside.catalog(lake).set = name
        site.later(CONFIG.upload_age_s)

        def looked():
            inside.catalog(tidier).read = read
            listing = read()
            named.append(name(*args))
            return listing

        inside.catalog(tidier).read = looked
        assert tidier._leftovers.tombstones() == Removed(1)
        return named[0]

    inside.catalog(lake).set = slept
    with pytest.raises(CollectionDropped, match="'late'"):
        lake.create("late", SCHEMA, key=["id"])
    assert named == [True] and site.lake().list() == ["c", "other"]
    with pytest.raises(CollectionExists, match="allow_recreate"):
        lake.create("late", SCHEMA, key=["id"])
    lake.create("late", SCHEMA, key=["id"], allow_recreate=True).append(rows(1))
    assert contents(site.lake().collection("late")) == {(1, "x"): 1}


def test_objects_whose_shard_has_no_log_go_when_they_are_old_enough(site):
    site.lake().drop("c")
    late, foreign = names.part(site.id, 3, "ab"), f"{site.id}/readme.txt"
    for name in (late, names.rollup(site.id, 3, "ab"), foreign, "backup/c/notes"):
        site.stores.blobs.put(name, b"12345")
    site.later(CONFIG.upload_age_s - 0.001)
    assert site.lake().collect() == Removed()
    site.later(0.001)
    assert site.lake().collect() == Removed(0, 2, 10)
    assert site.left() == [foreign] and site.stores.blobs.get("backup/c/notes") == b"12345"
    assert contents(site.lake().collection("other")) == {(1, "x"): 1}


def test_the_catalog_is_collected_as_well(site):
    lake = site.lake()
    for n in range(60):
        lake.create(f"x{n}", pa.schema([pa.field("id", pa.int64())]), key=["id"])
    state = inside.shard(inside.catalog(lake)).state()
    assert state.garbage
    site.later(CONFIG.garbage_age_s)
    lake.collect()
    left = inside.shard(inside.catalog(lake)).state().garbage
    assert not left.keys() & state.garbage.keys()
    assert len(site.lake().list()) == 62


def test_a_copy_without_writes_loses_no_row_when_the_catalog_is_lost(site):
    site.lake().copy(site.lake(), ["c"], as_name="copy")
    copy = site.lake().collection("copy")
    stored = site.objects()
    site.stores.log.delete("catalog")
    site.later(2 * CONFIG.upload_age_s)
    lost = pytest.raises(CorruptionError, match="shards have lost their names")
    with lost:
        site.lake().collect()
    assert len(contents(copy)) == 5
    # Nor if there is another catalog by now, which knows none of them.
    (first,) = Site().stores.log.scan("catalog", 0, 1)
    site.stores.log.compare_and_set("catalog", None, first.data)
    assert site.lake().collect() == Removed()
    site.lake().create("new", SCHEMA, key=["id"])
    site.later(2 * CONFIG.upload_age_s)
    assert site.lake().collect() == Removed()
    assert len(contents(copy)) == 5
    assert stored <= site.objects()


def test_a_copy_whose_name_is_given_too_late_is_not_acknowledged_and_leaves_nothing(site):
    before, lake = site.objects(), site.lake()
    whole = inside.catalog(lake).set

    def slept(*args):
        inside.catalog(lake).set = whole
        site.later(2 * CONFIG.upload_age_s)
        assert site.lake().collect().shards == 1
        return whole(*args)

    inside.catalog(lake).set = slept
    with pytest.raises(CollectionDropped, match="'copy' was dropped"):
        site.lake().copy(lake, ["c"], as_name="copy")
    assert "copy" not in site.lake().list()
    assert site.objects() == before


def test_nothing_is_removed_while_there_is_no_catalog(site):
    """Shards and objects without a name may be all that is left of a lake whose logs were lost."""
    empty, stored = shard_without_name(site).spec.shard_id, site.left()[:-1]
    assert stored
    for key in [*site.stores.log.keys()]:
        if key != empty:
            site.stores.log.delete(key)
    site.later(2 * CONFIG.upload_age_s)
    with pytest.raises(CorruptionError, match="shards have lost their names"):
        site.lake().collect()
    assert site.left() == stored
    assert site.stores.log.head(empty) is not None


def test_objects_of_a_copy_that_is_being_made_stay_however_long_it_takes(site):
    shard = "ab" * 16
    for n in range(3):
        site.stores.blobs.put(names.part(shard, 0, f"{n:032x}"), b"12345")
        site.later(0.7 * CONFIG.upload_age_s)
        assert site.lake().collect() == Removed()
    site.later(0.3 * CONFIG.upload_age_s)
    assert site.lake().collect() == Removed(0, 3, 15)


def test_a_list_that_slept_while_others_tidied_the_catalog_is_read_again(site):
    """Its parts were merged away, and deleted, between its look at the state and its look at the parts."""
    lake, late = site.lake(), site.lake()
    for n in range(3):
        lake.create(f"x{n}", SCHEMA, key=["id"])

    def slept():
        shard = inside.shard(inside.catalog(lake))
        Maintainer(shard).merge_all()
        site.later(CONFIG.garbage_age_s)
        assert Collector(shard).run().blobs

    inside.shard(inside.catalog(late)).state()
    whole = site.stores.blobs.open

    def opened(name):
        site.stores.blobs.open = whole
        slept()
        return whole(name)

    site.stores.blobs.open = opened
    assert late.list() == ["c", "other", "x0", "x1", "x2"]


def test_a_part_of_the_catalog_that_is_lost_is_no_endless_loop(site):
    [site.stores.blobs.delete(info.name) for info in [*site.stores.blobs.list("catalog/parts/")]]
    with pytest.raises(CorruptionError, match="named by the state but missing"):
        site.lake().list()


def test_a_copy_that_slept_before_its_log_was_made_is_given_up(site, monkeypatch):
    """A collector that looked before may be about to delete the copied objects, and wake up at any time."""
    whole = History.create

    def create(history, state):
        if state.shard_id not in {"catalog", site.id}:
            site.later(CONFIG.upload_age_s)
        return whole(history, state)

    monkeypatch.setattr(History, "create", create)
    with pytest.raises(UploadExpired):
        site.lake().copy(site.lake(), ["c"], as_name="copy")
    assert site.lake().list() == ["c", "other"]
    assert {info.name.partition("/")[0] for info in site.stores.blobs.list()} <= {
        "catalog",
        *site.stores.log.keys(),
    }


def test_a_claim_on_the_catalog_ends_with_the_process_that_had_it(site):
    """Only this maintains the catalog of an idle lake, and what a claim has recorded stays with it."""
    shard = inside.shard(inside.catalog(site.lake()))
    request = request_of(list(shard.state().spine)[:1])
    claim = partial(maintenance.claim_merge, request=request, runner="gone", lease_ms=1_000, cuts=())
    assert shard.run(claim).claim is not None
    assert site.lake().collect() == Removed() and shard.state().claims
    site.later(1.001)
    site.lake().collect()
    assert not shard.state().claims
