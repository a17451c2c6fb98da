"""Settings of a lake: one change, and every process goes by it; calls that began before it are not harmed."""

import uuid
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta

import pyarrow as pa
import pytest

import inside
import tidelake
from clocks import SetClock
from tables import SCHEMA, contents, rows
from tests.doubles.faults import Fault, FaultPlan, FaultyVersionLog, SimulatedCrash
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import LeaseExpired, OutcomeUnknown, ReadOnlyLake, UploadExpired, UsageError
from tidelake.lake.api.lake import Lake
from tidelake.lake.catalog.settings import LakeSettings
from tidelake.model.frontier import Frontier
from tidelake.shard.upkeep import collector
from tidelake.state.core.agreed import AS_MADE
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores

DAY_S = 86_400
STORED = Config(inline_part_bytes=0, merge_budget_s=0.0)


class Site:
    """Memory stores that several processes open, and the clock that these share."""

    def __init__(self):
        self.clock = SetClock()
        self.stores = Stores(MemoryBlobStore(self.clock), MemoryVersionLog())

    def lake(self, config=STORED, plan=None):
        """Another process."""
        log = self.stores.log if plan is None else FaultyVersionLog(self.stores.log, plan)
        where = f"memory://{uuid.uuid4().hex}"
        return Lake(where, Stores(self.stores.blobs, log), config, Env(clock=self.clock))

    def later(self, seconds):
        self.clock.ms += int(seconds * 1000)
        self.clock.slept_s += seconds


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def c(site):
    made = site.lake().create("c", SCHEMA, key=["id"])
    made.append(rows(1))
    return made


def upload(collection, id_, time=1):
    """What a process has uploaded and not appended."""
    builder = collection.builder()
    builder.add(rows(id_, _time=[time]))
    return builder.finish(Frontier.of(time + 1)).to_bytes()


def maintain(site, times=3):
    """Another process, of the usual settings, that collects now and then."""
    for _ in range(times):
        site.lake().collection("c").collect(thorough=True)
        site.later(60)


@pytest.mark.promise(
    "All processes use the same ages: those of the state that a command changes, or that is read",
    rule="`tidelake.state.core.agreed`, `doom`, `raise_floor`, `young` in `shard/engine/lease.py`",
    also=[
        "::test_a_process_that_was_open_before_a_change_collects_by_the_new_settings",
        "state/test_agreed.py::test_collectors_go_by_the_state_that_they_change",
    ],
)
def test_an_upload_may_take_as_long_as_the_lake_says_in_every_process(site, c):
    """The usual day is over; the process that maintains has never heard of the other one's settings."""
    assert site.lake().settings(upload_age_s=timedelta(days=30)).upload_age_s == 30 * DAY_S
    data = upload(c, 5)
    for _ in range(4):
        maintain(site)
        site.later(DAY_S)
    c.distributed.append_uploaded([data], lower=1, upper=2)
    assert contents(c) == {(1, "x"): 1, (5, "x"): 1}


def test_an_upload_that_began_before_the_age_became_shorter_is_safe_for_as_long_as_it_was(site, c):
    data, lost = upload(c, 5), upload(c, 6, time=2)
    site.lake().settings(upload_age_s=10)
    for _ in range(20):
        maintain(site)
        site.later(DAY_S / 24)
    c.distributed.append_uploaded([data], lower=1, upper=2)
    site.later(DAY_S)
    maintain(site)
    with pytest.raises(UploadExpired):
        c.distributed.append_uploaded([lost], lower=2, upper=3)
    assert contents(c) == {(1, "x"): 1, (5, "x"): 1}


@pytest.mark.parametrize(("before_s", "after_s"), [(600, 5), (600, 6_000)])
def test_a_read_that_began_before_a_change_ends_as_it_should(site, c, before_s, after_s):
    """The part that it reads is replaced; what it counts on is what was set when it began."""
    c.append(rows(2))
    process = site.lake().collection("c")
    read = process.snapshot(1)
    site.lake().settings(garbage_age_s=after_s)
    site.lake().collection("c").merge()
    for _ in range(5):
        site.later(before_s / 6)
        site.lake().collection("c").collect()
    assert sorted(read.read_all()["id"].to_pylist()) == [1, 2]


def test_a_process_that_was_open_before_a_change_collects_by_the_new_settings(site, c):
    collector = site.lake().collection("c")
    c.append(rows(2))
    site.lake().settings(garbage_age_s=6_000)
    c.merge()
    parts = len(list(site.stores.blobs.list(f"{c.id}/parts/")))
    site.later(5_000)
    collector.collect()
    assert len(list(site.stores.blobs.list(f"{c.id}/parts/"))) == parts
    site.later(2_000)
    collector.collect()
    assert len(list(site.stores.blobs.list(f"{c.id}/parts/"))) == 1


def test_readers_of_any_process_are_held_for_as_long_as_the_lake_says(site, c):
    site.lake().settings(lease_s=10)
    reader = site.lake().collection("c").reader("sleeps")
    site.later(11)
    c.append(rows(2))
    with pytest.raises(LeaseExpired):
        reader.snapshot(0)


@pytest.mark.promise(
    "A process whose `Config` contradicts the settings of the lake is refused", rule="`check_agreed`"
)
def test_settings_of_one_process_that_are_the_lakes_are_refused_with_the_remedy(site, c):
    for name in ("lease_s", "garbage_age_s", "upload_age_s"):
        with pytest.raises(UsageError, match=rf"{name}=7 is not this lake's.*lake.settings\({name}=7\)"):
            site.lake(Config(**{name: 7})).collection("c")
    site.lake().settings(upload_age_s=7)
    # What it has, or what is usual, is no matter.
    assert site.lake(Config(upload_age_s=7)).list() == site.lake(Config()).list() == ["c"]


def test_a_lake_that_is_made_has_the_settings_of_who_makes_it():
    site = Site()
    made = site.lake(Config(garbage_age_s=7.0, upload_age_s=8.0))
    made.create("c", SCHEMA, key=["id"])
    assert site.lake().settings() == LakeSettings(900.0, 7.0, 8.0, DAY_S, 30 * DAY_S)
    assert site.lake().collection("c").state().agreed.garbage_age_ms == 7_000


def test_what_is_no_setting_is_refused_and_nothing_changes(site, c):
    for wrong in ({"upload_age": 5}, {"upload_age_s": -1}, {"upload_age_s": "5"}, {"part_target_bytes": 7}):
        with pytest.raises(UsageError, match="upload_age"):
            site.lake().settings(**wrong)
    assert asdict(site.lake().settings()) == asdict(LakeSettings.of(AS_MADE))


def test_collections_that_come_later_and_groups_go_by_them_too(site, c):
    lake = site.lake()
    lake.create("d", SCHEMA, key=["id"])
    lake.seal({"c": 5, "d": 5})
    lake.settings(upload_age_s=5)
    site.lake().create("e", SCHEMA, key=["id"])
    site.lake().fork("e", "f")
    shards = {key for key in site.stores.log.keys() if key != "catalog"}  # noqa: SIM118
    assert len(shards) == 5
    opened = [site.lake()._shards.open(key).known().agreed.upload_age_ms for key in shards]
    assert opened == [5_000] * 5
    made = site.lake().create("g", SCHEMA, key=["id"])
    made.append(pa.table({"id": [1], "v": ["x"]}))
    lake.copy(lake, ["g"], as_name="h")
    assert site.lake().collection("h").state().agreed.values == made.state().agreed.values


def test_a_backup_goes_by_the_settings_of_the_lake_that_it_is_in(site, c):
    site.lake().settings(upload_age_s=5)
    other = Site()
    other.lake().create("there", SCHEMA, key=["id"])
    site.lake().copy(other.lake(), ["c"], as_name="copy")
    assert other.lake().collection("copy").state().agreed == AS_MADE
    other.lake().settings(upload_age_s=6)
    site.lake().copy(other.lake(), ["c"], as_name="again")
    assert other.lake().collection("again").state().agreed.upload_age_ms == 6_000


@pytest.mark.promise(
    "A change reaches every shard, after a crash anywhere, also the shards that are made meanwhile",
    rule="`Agreeing.finish`, `Shards.agree`",
    also=[
        "::test_a_collection_that_was_made_while_settings_were_changed_has_them",
        "::test_what_cannot_be_told_is_said_and_told_later",
        "::test_collections_that_come_later_and_groups_go_by_them_too",
    ],
)
def test_a_change_that_a_crash_left_half_told_is_finished_by_the_next_process():
    """A crash at every call: the change is made or not. If made, maintenance or opening tells each one."""
    made = set()
    for n in range(60):
        site = Site()
        for name in ("c", "d"):
            site.lake().create(name, SCHEMA, key=["id"])
        plan = FaultPlan(script=[*[Fault.NONE] * n, Fault.CRASH_AFTER])
        with suppress(SimulatedCrash):
            site.lake(plan=plan).settings(upload_age_s=5)
        if not plan.is_crashed:
            break
        (site.lake().collect if n % 2 else site.lake().collections)()
        wanted_ms = inside.catalog(site.lake()).agreed().upload_age_ms
        made.add(wanted_ms)
        for name in ("c", "d"):
            known = site.lake()._shards.open(site.lake().id_of(name)).known()
            assert known.agreed.upload_age_ms == wanted_ms
    assert not plan.is_crashed and made == {5_000, AS_MADE.upload_age_ms}


def test_what_cannot_be_told_is_said_and_told_later(site, c):
    site.lake().create("d", SCHEMA, key=["id"])
    lake = site.lake()
    opened = lake._shards.open
    lake._agreeing._opened = lambda id_: _away() if id_ == c.id else opened(id_)
    with pytest.raises(OutcomeUnknown, match="1 collections could not be updated"):
        lake.settings(upload_age_s=5)
    # An open handle goes by the old ones, which are longer; opening the collection tells it.
    assert c.state().agreed.upload_age_ms == AS_MADE.upload_age_ms
    site.lake().collect()
    assert c.state().agreed.upload_age_ms == 5_000
    assert inside.catalog(site.lake()).agreed().told


def _away():
    raise OutcomeUnknown("unknown")


def test_a_collection_that_was_made_while_settings_were_changed_has_them(site, c):
    maker, changer = site.lake(), site.lake()
    whole = inside.catalog(maker).set

    def late(*args):
        changer.settings(upload_age_s=5)
        return whole(*args)

    inside.catalog(maker).set = late
    made = maker.create("late", SCHEMA, key=["id"])
    assert made.state().agreed.upload_age_ms == 5_000
    assert made.state().upper == Frontier.of(0)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_time_a_year_ahead_is_refused_by_every_write_and_allowed_for_the_whole_lake(site, grouped):
    lake = site.lake()
    c, d = (lake.create(name, SCHEMA, key=["id"], time="ms") for name in "cd")
    if grouped:
        lake.seal({"c": 1, "d": 1})
    year = site.clock.ms + 365 * DAY_S * 1000
    early = rows(1, _time=[year])
    remedy = r"365 days ahead of the clock.*24 hours is allowed.*max_ahead_s="
    for write in (
        lambda: c.append(early),
        lambda: c.compare_and_append(early, int(grouped), year + 1),
        lambda: c.upsert(early),
        lambda: c.seal(year + 1),
        lambda: c.writer("w").append(early, sequence=0),
        lambda: lake.seal({"c": year + 1, "d": year + 1}),
        lambda: lake.write({"c": early, "d": early}),
    ):
        with pytest.raises(UsageError, match=remedy):
            write()
    assert d.upper == Frontier.of(int(grouped))
    e = lake.create("e", SCHEMA, key=["id"], time="ms")
    e.stage(early)
    e.append(rows(2))
    assert contents(e) == {(2, "x"): 1}
    site.lake().settings(max_ahead_s=timedelta(days=400))
    e.seal(year + 1)
    assert contents(e) == {(1, "x"): 1, (2, "x"): 1}


def test_a_reader_without_rights_to_write_reads_what_was_not_told_and_tells_nothing(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows(1))
        lake._agreeing._opened = lambda _: _away()
        with pytest.raises(OutcomeUnknown):
            lake.settings(upload_age_s=5)
        with tidelake.open(tmp_path / "lake", read_only=True) as reading:
            assert contents(reading.collection("c")) == {(1, "x"): 1}
            assert reading.settings().upload_age_s == 5
            with pytest.raises(ReadOnlyLake):
                reading.settings(upload_age_s=6)
        assert c.state().agreed.upload_age_ms == AS_MADE.upload_age_ms


# --- how long tokens are remembered


def tokens_of(collection):
    return {name for name in collection.writers() if name.startswith("token:")}


def test_a_job_that_is_run_again_within_a_month_writes_once_and_its_token_is_then_forgotten(site, c):
    assert c.stage(rows(5, _time=[7]), token="january")
    site.later(29 * DAY_S)
    assert not site.lake().collection("c").stage(rows(5, _time=[7]), token="january")
    maintain(site)
    assert tokens_of(c) == {"token:january"}
    site.later(2 * DAY_S)
    maintain(site)
    assert not tokens_of(c)
    # As it is documented: after that it is a new write.
    assert site.lake().collection("c").stage(rows(5, _time=[7]), token="january")


def test_tokens_are_forgotten_beside_writes_without_maintenance(site, c, monkeypatch):
    monkeypatch.setattr(collector, "_TOKENS_BESIDE", 5)
    busy = site.lake(Config(inline_part_bytes=0)).collection("c")
    for n in range(18):
        busy.stage(rows(n + 5, _time=[90]), token=f"job {n}")
    site.later(31 * DAY_S)
    left = []
    for _ in range(30):
        busy.append(rows(1))
        left.append(len(tokens_of(busy)))
    # A few at a time, so that no append waits for all.
    assert left == sorted(left, reverse=True) and left[-1] == 0 and {13, 8, 3} <= {*left}


def test_tokens_of_a_group_and_of_its_members_are_forgotten(site, c):
    lake = site.lake()
    lake.create("d", SCHEMA, key=["id"])
    lake.write({"c": rows(2), "d": rows(2)}, token="both")
    lake.collection("c").stage(rows(3, _time=[lake.collection("c").upper.elements[0]]), token="one")
    group = lake._shards.open(lake.collection("c").state().group)
    assert len(group.state().writers) == 2
    site.later(29 * DAY_S)
    assert lake.write({"c": rows(2), "d": rows(2)}, token="both").already
    site.later(2 * DAY_S)
    for _ in range(2):
        site.lake().collection("c").collect()
        site.lake().collect()
    assert not group.state().writers and not group.state().tokens
