"""A lake that an earlier version made: it is written as before until it is upgraded."""

import uuid
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

import tidelake
from clocks import SetClock
from tables import SCHEMA, contents, rows
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import OutcomeUnknown, ReadOnlyLake, UsageError
from tidelake.lake.admin.agreeing import UpgradeReport
from tidelake.lake.api.lake import Lake
from tidelake.state.agreed import AS_MADE, BEFORE_SLICES, DATES, NEWEST, Agreed
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores
from tidelake.testing.faults import Fault, FaultPlan, FaultyVersionLog, SimulatedCrash

SLICED = Config(slice_rows=4, merge_budget_s=0.0)


class Site:
    """Memory stores with a lake that an earlier version made, with the collections `c` and `d`."""

    def __init__(self, monkeypatch):
        self.clock = SetClock()
        self.stores = Stores(MemoryBlobStore(self.clock), MemoryVersionLog())
        with monkeypatch.context() as patch:
            patch.setattr(Agreed, "of", classmethod(lambda *_: AS_MADE))
            for name in ("c", "d"):
                self.lake().create(name, SCHEMA, key=["id"])

    def lake(self, plan=None, *, log=None):
        """Another process."""
        log = log or (self.stores.log if plan is None else FaultyVersionLog(self.stores.log, plan))
        where = f"memory://{uuid.uuid4().hex}"
        return Lake(where, Stores(self.stores.blobs, log), SLICED, Env(clock=self.clock))

    def records(self):
        """The formats of all entries of all logs."""
        log = self.stores.log
        entries = [entry for key in log.keys() for entry in log.scan(key, 0)]  # noqa: SIM118
        return {int(entry.data.split(b" ", 2)[1]) for entry in entries}


@pytest.fixture
def site(monkeypatch):
    return Site(monkeypatch)


def fill(c, first):
    for n in range(first, first + 12):
        c.upsert(pa.table({"id": [1, 2], "v": [f"{n}", f"{n}"]}))
    c.maintain()


def hashes(c):
    return {part.row_hash for part in c.state().parts()}


def test_slices_and_bases_come_with_the_upgrade(site):
    c = site.lake().collection("c")
    fill(c, 0)
    assert max(site.records()) <= BEFORE_SLICES and not c.state().has_slices
    assert hashes(c) == {None}
    before = contents(c)
    assert site.lake().upgrade() == UpgradeReport(BEFORE_SLICES, NEWEST)
    assert contents(c) == before
    fill(c, 12)
    assert c.state().spine.slices and c.state().bases
    # A handle from before hashes what it writes from then on.
    assert len(hashes(c)) > 3
    assert site.lake().upgrade() == UpgradeReport(NEWEST, NEWEST)
    assert site.lake().fsck().left == ()


def test_every_shard_gets_the_format_and_new_ones_have_it(site):
    lake = site.lake()
    lake.write({"c": rows(1), "d": rows(1)})
    lake.upgrade()
    site.lake().create("e", SCHEMA, key=["id"])
    site.lake().fork("c", "f")
    shards = sorted(site.stores.log.keys())
    assert len(shards) == 6
    for key in shards:
        if key != "catalog":
            assert site.lake()._shards.open(key).known().agreed.format == NEWEST


def test_a_new_lake_has_the_newest_format():
    with tidelake.open("memory://" + uuid.uuid4().hex) as lake:
        assert lake.create("c", SCHEMA, key=["id"]).state().agreed.format == NEWEST
        assert lake.upgrade() == UpgradeReport(NEWEST, NEWEST)


def test_times_are_days_only_in_a_lake_that_is_upgraded(site, monkeypatch):
    old, lake = Site(monkeypatch).lake(), site.lake()
    stale = site.lake()
    with pytest.raises(
        UsageError, match=r"'days' can have times of unit date once the lake .*lake.upgrade\(\)"
    ):
        lake.create("days", SCHEMA, key=["id"], time="date")
    assert lake.list() == ["c", "d"] and max(site.records()) <= BEFORE_SLICES
    lake.upgrade()
    # A process that has not seen the upgrade yet sees it then.
    days = stale.create("days", SCHEMA, key=["id"], time="date")
    days.append(rows(1))
    assert days.state().agreed.format == NEWEST and max(site.records()) == DATES
    with pytest.raises(
        UsageError, match=r"times of unit date, which need format 7, and the lake of the copy"
    ):
        site.lake().copy(old, ["days"])
    assert old.list() == ["c", "d"]
    old.upgrade()
    site.lake().copy(old, ["days"])
    assert old.collection("days").domain == days.domain and contents(old.collection("days")) == contents(days)


def test_settings_that_change_do_not_upgrade(site):
    site.lake().settings(lease_s=7)
    assert site.lake().upgrade().before == BEFORE_SLICES
    site.lake().settings(lease_s=8)
    assert site.lake().upgrade().before == NEWEST


def test_a_read_only_lake_is_not_upgraded(tmp_path):
    tidelake.open(tmp_path / "lake").close()
    with tidelake.open(tmp_path / "lake", read_only=True) as lake, pytest.raises(ReadOnlyLake):
        lake.upgrade()


def test_a_copy_with_slices_needs_a_lake_that_is_upgraded(site, monkeypatch):
    old = Site(monkeypatch).lake()
    site.lake().upgrade()
    fill(site.lake().collection("c"), 0)
    with pytest.raises(UsageError, match=r"need format 4, and the lake of the copy has format 3.*upgrade"):
        site.lake().copy(old, ["c"], as_name="copy")
    assert old.list() == ["c", "d"]
    old.upgrade()
    site.lake().copy(old, ["c"], as_name="copy")
    assert contents(old.collection("copy")) == contents(site.lake().collection("c"))


def test_a_copy_in_a_lake_that_is_not_upgraded_has_no_hashes_of_rows(site, monkeypatch):
    older = Site(monkeypatch)
    site.lake().upgrade()
    c = site.lake().collection("c")
    for n in range(3):
        c.append(rows(n))
        site.lake().copy(older.lake(), ["c"], as_name="copy")
        copy = older.lake().collection("copy")
        assert contents(copy) == contents(c) and hashes(copy) == {None} and None not in hashes(c)
    assert max(older.records()) <= BEFORE_SLICES


def test_an_upgrade_that_a_crash_left_half_done_is_finished_by_whoever_comes_next(monkeypatch):
    """A crash at every call: the catalog tells the old format or the new one, and then so do the others."""
    made = set()
    for n in range(60):
        site = Site(monkeypatch)
        plan = FaultPlan(script=[*[Fault.NONE] * n, Fault.CRASH_AFTER])
        with suppress(SimulatedCrash):
            site.lake(plan=plan).upgrade()
        if not plan.is_crashed:
            break
        (site.lake().collect if n % 2 else site.lake().collections)()
        wanted = site.lake()._catalog.agreed().format
        made.add(wanted)
        for name in ("c", "d"):
            assert site.lake()._shards.open(site.lake().id_of(name)).known().agreed.format == wanted
    assert not plan.is_crashed and made == {BEFORE_SLICES, NEWEST}


def test_what_cannot_be_told_is_said_and_the_next_upgrade_tells_it(site, monkeypatch):
    lake = site.lake()
    d = lake.collection("d").id
    with monkeypatch.context() as patch:
        opened = lake._agreeing._opened

        def opens(shard_id):
            if shard_id == d:
                raise OutcomeUnknown("lost")
            return opened(shard_id)

        patch.setattr(lake._agreeing, "_opened", opens)
        with pytest.raises(OutcomeUnknown, match=f"format {NEWEST}, but 1 collections could not be updated"):
            lake.upgrade()
    assert replace(lake.collection("c").state().agreed, told=False).format == NEWEST
    assert lake.upgrade() == UpgradeReport(NEWEST, NEWEST)
    assert site.stores.log.head(d).data.startswith(b"tidelake-delta 5 ")
