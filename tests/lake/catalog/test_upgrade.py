"""A lake that an earlier version made: it is written as before until it is upgraded."""

import uuid
from contextlib import suppress
from dataclasses import replace

import pytest

import inside
import tidelake
from clocks import SetClock
from tables import SCHEMA, rows
from tests.doubles.faults import Fault, FaultPlan, FaultyVersionLog, SimulatedCrash
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import OutcomeUnknown, ReadOnlyLake
from tidelake.lake.admin.agreeing import UpgradeReport
from tidelake.lake.api.lake import Lake
from tidelake.state.core.agreed import Agreed
from tidelake.state.core.formats import NEWEST
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores

BEFORE = NEWEST - 1


class Site:
    """Memory stores with a lake that an earlier version made, with the collections `c` and `d`."""

    def __init__(self, monkeypatch):
        self.clock = SetClock()
        self.stores = Stores(MemoryBlobStore(self.clock), MemoryVersionLog())
        with monkeypatch.context() as patch:
            patch.setattr(Agreed, "of", classmethod(lambda *_: Agreed(format=BEFORE)))
            for name in ("c", "d"):
                self.lake().create(name, SCHEMA, key=["id"])

    def lake(self, plan=None, *, log=None):
        """Another process."""
        log = log or (self.stores.log if plan is None else FaultyVersionLog(self.stores.log, plan))
        where = f"memory://{uuid.uuid4().hex}"
        return Lake(where, Stores(self.stores.blobs, log), Config(), Env(clock=self.clock))


@pytest.fixture
def site(monkeypatch):
    return Site(monkeypatch)


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


def test_settings_that_change_do_not_upgrade(site):
    site.lake().settings(lease_s=7)
    assert site.lake().upgrade().before == BEFORE
    site.lake().settings(lease_s=8)
    assert site.lake().upgrade().before == NEWEST


def test_a_read_only_lake_is_not_upgraded(tmp_path):
    tidelake.open(tmp_path / "lake").close()
    with tidelake.open(tmp_path / "lake", read_only=True) as lake, pytest.raises(ReadOnlyLake):
        lake.upgrade()


def test_an_upgrade_that_a_crash_left_half_done_is_finished_by_the_next_process(monkeypatch):
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
        wanted = inside.catalog(site.lake()).agreed().format
        made.add(wanted)
        for name in ("c", "d"):
            assert site.lake()._shards.open(site.lake().id_of(name)).known().agreed.format == wanted
    assert not plan.is_crashed and made == {BEFORE, NEWEST}


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
    assert site.lake()._shards.open(d).known().agreed.format == NEWEST
