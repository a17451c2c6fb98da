"""Logs without maintenance: appends remove the entries that no rollup needs."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from shards import Place

import inside
import tidelake
from tables import SCHEMA, ids, rows
from tests.doubles.faults import Fault, FaultPlan, FaultyVersionLog, SimulatedCrash
from tidelake.config import Config
from tidelake.env import Env, SystemClock
from tidelake.errors import TidelakeWarning
from tidelake.lake.api.lake import Lake
from tidelake.model import names
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores

OFTEN = Config(rollup_bytes_min=1024, merge_budget_s=0)


def entries(lake, c):
    return [entry.seqno for entry in inside.stores(lake).log.scan(c.id, 0)]


def append_many(c, numbers):
    for n in numbers:
        c.append(rows(n))


@pytest.mark.promise(
    "Without maintenance a log does not grow with the commits: the process that adds a rollup "
    "removes entries from before the previous rollup. No append fails because of that",
    rule="`History.trim`",
    also=["shard/test_trimmed_logs.py"],
)
def test_a_log_without_maintenance_does_not_grow_with_the_commits(tmp_path):
    with tidelake.open(tmp_path / "lake", config=OFTEN) as lake, tidelake.open(tmp_path / "lake") as late:
        c = lake.create("c", SCHEMA, key=["id"])
        longest, seen = 0, late.collection("c")
        for n in range(200):
            c.append(rows(n))
            if n % 50 == 49:
                there = entries(lake, c)
                longest = max(longest, len(there))
                # By a handle that looked last when entries were there that are gone, and by a new one.
                assert ids(seen) == dict.fromkeys(range(n + 1), 1)
                with tidelake.open(tmp_path / "lake", read_only=True) as other:
                    assert ids(other.collection("c")) == dict.fromkeys(range(n + 1), 1)
        assert there[0] > 50 and longest < 120
        # The rollup before the newest one leads to the newest state as well.
        state = c.state()
        older = max(filter(None, map(names.rolled_up_at, state.garbage)))
        assert there[0] <= older < state.rollup.seqno
        assert lake.fsck().clean and late.fsck(["c"]).clean


def test_trimming_costs_a_call_for_many_appends():
    place = Place()
    # Its first rollups are a few entries apart.
    lake = place.lake(config=OFTEN)
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(100):
        c.append(rows(n))
    assert 0 < lake.counts["log.truncate"] <= 100 // 32


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_an_append_does_not_fail_because_its_log_is_not_trimmed(fault):
    blobs, log = MemoryBlobStore(SystemClock()), MemoryVersionLog()
    plan = FaultPlan(rates_by_operation={"log.truncate": {fault: 1.0}})
    lake = Lake("memory://trimmed", Stores(blobs, FaultyVersionLog(log, plan)), OFTEN, Env())
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(200):
        c.append(rows(n))
    assert plan.total()
    assert ids(c) == dict.fromkeys(range(200), 1)
    plan.rates_by_operation.clear()
    for n in range(200, 260):
        c.append(rows(n))
    assert len(log.scan(c.id, 0)) < 150


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_process_that_dies_while_it_trims_a_log_loses_nothing(fault):
    blobs, log = MemoryBlobStore(SystemClock()), MemoryVersionLog()
    appended = 0
    for _ in range(3):
        plan = FaultPlan(rates_by_operation={"log.truncate": {fault: 1.0}})
        lake = Lake("memory://trimmed", Stores(blobs, FaultyVersionLog(log, plan)), OFTEN, Env())
        c = lake.collection("c") if appended else lake.create("c", SCHEMA, key=["id"])
        with suppress(SimulatedCrash):
            while appended < 1_000:
                appended += 1
                c.append(rows(appended))
        assert plan.is_crashed
        whole = Lake("memory://trimmed", Stores(blobs, log), OFTEN, Env())
        assert ids(whole.collection("c")) == dict.fromkeys(range(1, appended + 1), 1)
        assert whole.fsck().clean


def test_an_append_tells_that_its_log_is_damaged_and_is_committed(tmp_path):
    with tidelake.open(tmp_path / "lake", config=OFTEN) as lake:
        c, log = lake.create("c", SCHEMA, key=["id"]), inside.stores(lake).log
        for n in range(40):
            c.append(rows(n))
        path = tmp_path / "lake" / "log" / c.id / "log"
        entry = log.scan(c.id, c.state().seqno - 2, 1)[0].data
        path.write_bytes(path.read_bytes().replace(entry, bytes(len(entry))))
        with pytest.warns(TidelakeWarning, match=r"its log is not trimmed: .* damaged"):
            append_many(c, range(40, 120))
        assert ids(c) == dict.fromkeys(range(120), 1)


def test_readers_that_open_a_shard_amid_trimming_see_every_commit(tmp_path):
    done = [1]
    with tidelake.open(tmp_path / "lake", config=OFTEN) as lake, ThreadPoolExecutor(2) as pool:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows(0))

        def read():
            while (least := done[0]) < 100:
                with tidelake.open(tmp_path / "lake", config=OFTEN) as other:
                    found = ids(other.collection("c"))
                assert len(found) >= least and found == dict.fromkeys(range(len(found)), 1)

        readers = [pool.submit(read) for _ in range(2)]
        for n in range(1, 100):
            c.append(rows(n))
            done[0] = n + 1
        for reader in readers:
            reader.result()
        assert entries(lake, c)[0] > 32
