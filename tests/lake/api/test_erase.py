"""Erasure: the rows of some keys leave every time, slice, base, staged batch and fork, and their bytes go."""

import base64
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inside
import tidelake
from clocks import MovedClock
from tables import SCHEMA, at, contents, rows
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    ErasureWaits,
    ForkExpired,
    InvalidUpdates,
    LeaseExpired,
    TidelakeError,
    UploadExpired,
    UsageError,
)
from tidelake.lake.api.lake import Lake
from tidelake.model import names
from tidelake.shard.upkeep.eraser import ask
from tidelake.shard.writing.shufflespill import ShuffleSpill
from tidelake.shard.writing.upserter import Upserter
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.forks import borrowed_parts, fork_pins, lender
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores
from tiers import calls

# Slices and bases of a few rows; and parts of a few rows, of which some are stored and some are inline.
SLICED = Config(
    slice_rows=4, merge_budget_s=0.0, part_target_bytes=2048, row_group_rows=2, inline_part_bytes=600
)
AGE_MS = 700_000


class Site:
    """Memory stores with a lake that has the collection `c`, and its processes."""

    def __init__(self, config=SLICED):
        self.clock, self.config = MovedClock(), config
        self.stores = Stores(MemoryBlobStore(self.clock), MemoryVersionLog())

    def lake(self, faults=None):
        """Another process."""
        stores = self.stores
        if faults is not None:
            stores = Stores(FaultyBlobStore(stores.blobs, faults), FaultyVersionLog(stores.log, faults))
        return Lake(f"memory://{uuid.uuid4().hex}", stores, self.config, Env(clock=self.clock))

    def filled(self, times=24):
        """History of the keys 0 to 4, each of which is changed at every fifth time."""
        c = self.lake().create("c", SCHEMA, key=["id"])
        for time in range(times):
            old = [at(time, time % 5, diff=-1, v=f"v{time - 5}")] if time >= 5 else []
            c.append(pa.concat_tables([at(time, time % 5, v=f"v{time}"), *old]), upper=time + 1)
            if time % 8 == 7:
                c.maintain()
        return c

    def gone_after(self, *names):
        """Time passes, and everything is maintained, again and again."""
        for _ in range(4):
            self.clock.ms += AGE_MS
            for name in names:
                self.lake().collection(name).maintain()
                self.lake().collection(name).collect(thorough=True)


def everything(c):
    """What each kind of read answers, at each time."""
    last = c.last_time()
    return {time: contents(c, time) for time in range(last + 1)} | {
        (time, time + 2): sorted(map(str, c.changes(time, time + 2).read_all().to_pylist()))
        for time in range(last - 1)
    }


def without(found, key):
    """The same answers without the rows of a key."""
    kept = {}
    for name, answer in found.items():
        if isinstance(answer, dict):
            kept[name] = {row: diff for row, diff in answer.items() if row[0] != key}
        else:
            kept[name] = [row for row in answer if f"'id': {key}," not in row]
    return kept


def test_the_rows_of_a_key_leave_every_time_and_all_others_stay():
    site = Site()
    c = site.filled()
    state = c.state()
    assert len(state.bases) and len(state.spine.slices) > 2
    before = everything(c)
    report = c.erase([3, 77], reason="ticket 17")
    assert everything(c) == without(before, 3) != before
    assert (report.keys, report.forks) == (2, ()) and report.updates > 0 and report.parts > 0
    assert report.collect_ms == site.clock.ms + 600_000 and len(report.remains) == 7
    told = c.erasures()[report.id]
    assert (told.reason, told.count, told.keys, told.seqno) == ("ticket 17", 2, (), report.seqno)
    c.maintain()
    assert len(c.state().bases) and everything(c) == without(before, 3)
    assert site.lake().fsck().left == ()


def test_a_key_without_rows_and_no_key_at_all():
    c = Site().filled(6)
    before, parts = everything(c), set(c.state().part_names)
    assert c.erase([], reason="x").id == "" and not c.erasures()
    report = c.erase([77], reason="x")
    assert (report.updates, report.parts) == (0, 0)
    assert everything(c) == before and parts == set(c.state().part_names)


def test_rows_that_come_later_are_new_ones_and_may_be_erased_again():
    c = Site().filled(6)
    for n in range(3):
        c.erase([1], reason="x")
        assert 1 not in {key for key, _ in contents(c)}
        c.append(at(10 + n, 1, v="new"))
        assert contents(c)[1, "new"] == 1
    assert len(c.erasures()) == 3


def test_what_is_staged_is_erased_as_well():
    c = Site().filled(6)
    c.stage(at(20, 1, 2, v="staged"))
    c.stage(at(21, 1, v="staged"))
    c.erase([1], reason="x")
    c.seal(30)
    assert {key for key, v in contents(c) if v == "staged"} == {2}


@pytest.mark.parametrize("merged", [False, True])
def test_the_rows_leave_the_forks_and_their_forks(merged):
    site = Site()
    c = site.filled()
    if merged:
        c.merge()
    before = everything(c)
    f = site.lake().fork("c", "f")
    site.lake().fork("f", "g")
    f.append(at(50, 3, 4, v="own"))
    report = c.erase([3], reason="x")
    assert set(report.forks) == {site.lake().id_of("f"), site.lake().id_of("g")}
    g = site.lake().collection("g")
    assert everything(c) == without(before, 3) == everything(g)
    assert {key for key, v in contents(f) if v == "own"} == {4}
    site.gone_after("g", "f", "c", "g", "f", "c")
    for one in (c, f, g):
        (told,) = one.erasures().values()
        assert told.gone_ms and lender(one.state()) is None and not fork_pins(one.state())
    assert everything(c) == without(before, 3) == everything(g)
    assert site.lake().fsck().findings == ()


@pytest.mark.parametrize("drop_at", [0, 1, 2])
def test_the_rows_leave_the_forks_of_a_fork_that_was_dropped(drop_at):
    site = Site(Config(inline_part_bytes=0))
    before = everything(site.filled(6))
    lake = site.lake()
    f, g = lake.fork("c", "f"), lake.fork("f", "g")
    c = lake.collection("c")
    if drop_at < 2:
        lake.drop("f")
    if drop_at == 0:
        site.gone_after("g", "c")
    report = c.erase([3], reason="x")
    assert report.forks == ((g.id,) if drop_at < 2 else (f.id, g.id))
    assert everything(g) == without(before, 3) == everything(c)
    if drop_at == 2:
        lake.drop("f")
    # The dropped fork stays as the way to its fork, and keeps nothing of its origin.
    for _ in range(2):
        site.gone_after("g", "c")
        lake.collect()
    assert not fork_pins(c.state()) and lake.fsck().findings == ()
    assert all(one.gone_ms for of in (c, g) for one in of.erasures().values())


@pytest.mark.promise(
    "An erasure reaches all forks that the lake has known, and theirs, whether they share parts and "
    "whether forks between them are dropped",
    rule="`free_fork`, `Ending.is_needed`",
    also=["::test_a_dropped_fork_is_removed_once_no_erasure_can_go_through_it"],
)
@pytest.mark.parametrize("dropped", [False, True])
def test_the_rows_leave_forks_that_share_nothing_any_more(dropped):
    site = Site(Config(inline_part_bytes=0))
    lake = site.lake()
    c = site.filled(6)
    forks = [lake.fork("c", "f"), lake.fork("f", "g"), lake.fork("g", "h")]
    c.erase([1], reason="x")
    site.gone_after("h", "g", "f", "c", "h", "g", "f", "c")
    assert not any(fork_pins(one.state()) or lender(one.state()) for one in (c, *forks))
    if dropped:
        for name in ("g", "f"):
            lake.drop(name)
            lake.collect()
        forks = forks[2:]
    report = c.erase([3], reason="x")
    assert {one.id for one in forks} == set(report.forks)
    assert all(contents(one) == contents(c) for one in forks) and 3 not in dict(contents(c))
    assert lake.fsck().left == ()


def test_a_dropped_fork_is_removed_once_no_erasure_can_go_through_it():
    site = Site(Config(inline_part_bytes=0))
    lake = site.lake()
    site.filled(6)
    lake.fork("c", "f")
    h = lake.fork("f", "h")
    for name in ("h", "f"):
        lake.collection(name).merge()
    site.gone_after("h", "f", "c", "h", "f", "c")
    for name, left in (("f", True), ("c", False)):
        lake.drop(name)
        for _ in range(3):
            site.clock.ms += AGE_MS
            lake.collect()
        assert lake.fsck().left == ()
        assert (len(list(site.stores.log.keys())) > 2) == left
    assert h.erase([3], reason="x").forks == () and lake.drop("h")


def test_an_origin_forgets_a_freed_fork_that_is_dropped():
    site = Site(Config(inline_part_bytes=0))
    lake = site.lake()
    c = site.filled(6)
    lake.fork("c", "f").merge()
    site.gone_after("f", "c")
    assert [fork.freed for fork in c.state().forks.values()] == [True]
    lake.drop("f")
    assert not c.state().forks and c.erase([3], reason="x").forks == ()


def test_a_fork_that_is_erased_leaves_its_origin_alone():
    site = Site()
    before = everything(site.filled())
    f = site.lake().fork("c", "f")
    report = f.erase([3], reason="x")
    assert "forked from" in report.remains[0] and report.forks == ()
    assert everything(site.lake().collection("c")) == before
    assert everything(f) == without(before, 3)


class Between:
    """Lets something happen before the n-th call of a store, once."""

    def __init__(self, n, happens):
        self.left, self.happens = n, happens

    def run(self, _operation, call):
        self.left -= 1
        if self.left == 0:
            self.happens()
        return call()


def upsert(lake):
    lake.collection("c").upsert(rows(3, 4, v="new"))


def replaced(lake):
    lake.collection("c").replace(rows(0, 3, v="new"))


def maintained(lake):
    lake.collection("c").maintain()


def merged(lake):
    lake.collection("c").merge()


def forked(lake):
    with suppress(ForkExpired, UsageError):
        lake.fork("c", "f")


def drained(lake):
    c = lake.collection("c")
    c.seal(60)
    c.maintain()


def erased(lake):
    lake.collection("c").erase([3, 4], reason="at the same time")


WORK = [upsert, replaced, maintained, merged, forked, drained, erased]


def erase_now(site):
    # The fork that is just being made is waited for; then maintenance does it.
    with suppress(ErasureWaits):
        site.lake().collection("c").erase([3], reason="x")


@pytest.mark.grows
@pytest.mark.parametrize("work", WORK)
def test_whatever_is_under_way_brings_nothing_back(work):
    """It may have read the rows before they are erased; it commits afterwards."""
    # Of a fork every call counts: only between two of them it is not yet there.
    for n in calls(most=500, fast=1 if work is forked else 17, full=1 if work is forked else 5):
        site = Site()
        site.filled(10)
        site.lake().collection("c").stage(pa.concat_tables([at(40, 2, 3, v="s"), at(70, 3, v="s")]))
        before = everything(site.lake().collection("c"))
        between = Between(n + 1, partial(erase_now, site))
        work(site.lake(between))
        if between.left > 0:
            break
        lake = site.lake()
        for name in lake.list():
            c = lake.collection(name)
            c.maintain()
            found = everything(c)
            kept = {time: found[time] for time in before if time in found}
            if work is not erased:
                assert kept == without(before, 3), (n, name)
            of_key = [
                row for row in c.updates(0, 1_000, staged=True).read_all().to_pylist() if row["id"] == 3
            ]
            assert {(row["v"], row["_diff"]) for row in of_key} <= {("new", 1)}, (n, name)
        assert lake.fsck().left == (), n
    assert between.left > 0 and n


@pytest.mark.promise(
    "An erasure that is killed at any call of a store is finished by maintenance, and is in "
    "completely or not at all",
    rule=(
        "the collection leaves for that commit: `erase` refuses one in a group; `_stale` refuses what "
        "was read before it came back"
    ),
)
@pytest.mark.grows
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_an_erasure_that_is_killed_at_any_call_is_finished_by_maintenance(fault):
    for n in calls(most=500, fast=7, full=2):
        site = Site()
        before = everything(site.filled(10))
        site.lake().fork("c", "f")
        plan = FaultPlan(script=[*[Fault.NONE] * n, fault])
        with suppress(SimulatedCrash):
            site.lake(plan).collection("c").erase([3], reason="x")
        lake = site.lake()
        c, f = lake.collection("c"), lake.collection("f")
        asked = bool(c.erasures())
        kinds = {one.kind for one in lake.fsck().findings}
        assert ("erasure-pending" in kinds) == any(
            one.pending for of in (c, f) for one in of.erasures().values()
        )
        c.maintain()
        f.maintain()
        wanted = without(before, 3) if asked else before
        assert everything(c) == wanted == everything(f), n
        site.gone_after("f", "c")
        assert lake.fsck().findings == (), n
        assert all(one.gone_ms for of in (c, f) for one in of.erasures().values())
        if not plan.is_crashed:
            break
    assert not plan.is_crashed and n


def spoken(text):
    """The bytes that a text is found by, also where it is written in base64."""
    found = [text.encode()]
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + text.encode())
        found.append(coded[4 : 4 * ((shift + len(text)) // 3)])
    return found


def files_with(folder, text):
    """The files below a folder that have a text: in their bytes, or in their rows."""
    found = []
    for path in (path for path in Path(folder).rglob("*") if path.is_file()):
        data = path.read_bytes()
        told = any(form in data for form in spoken(text))
        if path.suffix == ".parquet":
            told = told or text in str(pq.read_table(pa.BufferReader(data)).to_pydict())
        if told:
            found.append(path.name)
    return found


@pytest.mark.promise(
    "No byte of erased rows is in the directory of a lake, or of its copy that was made again, once "
    "`gone_ms` is set, though processes have it open",
    rule="`Collector._erased`, `FramedVersionLog.truncate`",
    also=["::test_the_bytes_leave_a_copy_as_well", "::test_abandoned_uploads_from_before_are_waited_for"],
)
def test_no_byte_of_the_rows_is_left_once_garbage_is_old_enough(tmp_path):
    person, clock = "PERSON-SENTINEL-KEY", MovedClock()
    made = tidelake.open(tmp_path / "lake", config=SLICED)
    lake = Lake(made.url, inside.stores(made), SLICED, Env(clock=clock))
    schema = pa.schema([("id", pa.string()), ("v", pa.string())])
    c = lake.create("c", schema, key=["id"])
    for time in range(24):
        more = {"_time": pa.array([time] * 3, pa.int64())}
        c.append(
            pa.table({"id": [person, "b", f"k{time}"], "v": [f"{person}{time}", "v" * time, "x"], **more})
        )
        if time % 8 == 7:
            c.maintain()
    c.stage(pa.table({"id": [person], "v": ["s"], "_time": pa.array([99], pa.int64())}))
    f = lake.fork("c", "f")
    assert len(files_with(tmp_path, person)) > 5
    c.erase([person], reason="asked for")
    assert files_with(tmp_path, person)
    for _ in range(4):
        clock.ms += AGE_MS
        for one in (f, c):
            one.maintain()
            one.collect(thorough=True)
    # The processes still have the lake open.
    assert files_with(tmp_path, person) == []
    assert all(one.gone_ms for of in (c, f) for one in of.erasures().values())
    assert lake.fsck().findings == () and files_with(tmp_path, "k23")


def test_abandoned_uploads_from_before_are_waited_for():
    site = Site(Config(inline_part_bytes=0))
    c = site.filled(6)
    plan = FaultPlan(rates_by_operation={"log.compare_and_set": {Fault.CRASH_BEFORE: 1.0}})
    with suppress(SimulatedCrash):
        site.lake(plan).collection("c").append(rows(3, v="lost"))
    parts = {info.name for info in site.stores.blobs.list() if "/parts/" in info.name}
    assert parts - set(c.state().part_names)
    c.erase([3], reason="x")
    site.gone_after("c")
    assert [one.gone_ms for one in c.erasures().values()] == [0]
    site.clock.ms += 86_400_000
    site.gone_after("c")
    site.clock.ms += 86_400_000
    site.gone_after("c")
    assert all(one.gone_ms for one in c.erasures().values())


def test_what_a_repair_has_set_aside_is_waited_for():
    site = Site()
    c = site.filled(6)
    before = names.aside(c.id, c.state().seqno, "ab", "state")
    site.stores.blobs.put(before, b"rows")
    report = c.erase([3], reason="x")
    site.stores.blobs.put(names.aside(c.id, report.seqno, "cd", "state"), b"no such rows")
    site.gone_after("c")
    assert [one.gone_ms for one in c.erasures().values()] == [0]
    assert {one.kind for one in site.lake().fsck().findings} == {"kept-aside", "erased-bytes"}
    site.stores.blobs.delete(before)
    site.gone_after("c")
    assert all(one.gone_ms for one in c.erasures().values())


@pytest.mark.promise(
    "No reader keeps erased rows for longer than garbage is kept",
    rule="`released` in `state/life/erasing.py`",
)
def test_readers_of_the_moment_end_as_they_began_or_are_told():
    site = Site(Config(inline_part_bytes=0))
    c = site.filled(6)
    short, long = c.snapshot(5), c.reader("long")
    kept = long.snapshot(5)
    c.erase([1], reason="x")
    assert {row["id"] for row in short.read_all().to_pylist()} == {0, 1, 2, 3, 4}
    site.clock.ms += 650_000
    c.maintain()
    with pytest.raises(LeaseExpired, match="open a new reader"):
        kept.read_all()
    with pytest.raises(LeaseExpired, match="open a new reader"):
        long.snapshot(5).read_all()
    # Its hold on history stays.
    assert [(hold.purpose, hold.pins) for hold in c.state().holds.values()] == [("long", ())]
    again = c.reader("again").snapshot(5)
    assert {row["id"] for row in again.read_all().to_pylist()} == {0, 2, 3, 4}
    assert all(one.gone_ms for one in c.erasures().values())


@pytest.mark.promise(
    "An erasure in a group sees all that the group has decided, and no write of the group brings "
    "erased rows back",
    rule=(
        "the collection leaves for that commit: `erase` refuses one in a group; `_stale` refuses what "
        "was read before it came back"
    ),
    also=[
        "::test_no_write_of_a_group_brings_anything_back",
        "::test_uploads_that_depend_on_contents_from_before_are_refused_in_a_group",
    ],
)
def test_a_collection_in_a_group_and_its_forks_are_erased_and_are_in_the_group_again():
    site = Site()
    site.filled(6)
    lake = site.lake()
    lake.create("d", SCHEMA, key=["id"])
    c, f = lake.collection("c"), lake.fork("c", "f")
    lake.write({"c": rows(3, v="g"), "d": rows(3), "f": rows(3, 2, v="f")})
    group = c.state().group
    report = c.erase([3], reason="x")
    assert report.forks == (f.id,) and group
    for one in (c, f):
        assert one.state().group == group and 3 not in {key for key, _ in contents(one)}
    assert contents(f)[2, "f"] == 1 and 3 in {key for key, _ in contents(lake.collection("d"))}
    # Their times are closed together as before.
    lake.write({"d": rows(7)})
    assert c.upper == f.upper == lake.collection("d").upper
    assert lake.fsck().left == ()


def test_the_only_collection_of_a_group_leaves_it():
    site = Site()
    c = site.filled(6)
    site.lake().write({"c": rows(3, v="g")})
    c.erase([3], reason="x")
    assert not c.state().group and 3 not in {key for key, _ in contents(c)}
    site.gone_after("c")
    assert site.lake().fsck().findings == ()


def together(lake):
    lake.write({"c": rows(3, 4, v="new"), "d": rows(3)})


def changed_together(lake):
    with lake.transaction() as transaction:
        transaction.upsert("c", rows(4, v="new"))
        transaction.upsert("d", rows(3))


def changed_alone(lake):
    lake.collection("c").upsert(rows(4, v="new"))


def replaced_together(lake):
    with lake.transaction() as transaction:
        transaction.replace("c", rows(0, 4, v="new"))


def left(lake):
    lake.leave("c")


@pytest.mark.grows
@pytest.mark.parametrize("work", [together, changed_together, changed_alone, replaced_together, left])
def test_no_write_of_a_group_brings_anything_back(work):
    for n in calls(most=500, fast=13, full=3):
        site = Site()
        c = site.filled(10)
        lake = site.lake()
        lake.create("d", SCHEMA, key=["id"])
        lake.write({"c": rows(2, v="g"), "d": rows(3)})
        before = everything(c)
        between = Between(n + 1, partial(erase_now, site))
        work(site.lake(between))
        if between.left > 0:
            break
        found = everything(c)
        assert {time: found[time] for time in before if time in found} == without(before, 3), n
        of_key = [row for row in c.updates(0, 1_000, staged=True).read_all().to_pylist() if row["id"] == 3]
        assert {(row["v"], row["_diff"]) for row in of_key} <= {("new", 1)}, n
        assert bool(of_key) == (work is together), n
        assert site.lake().fsck().left == (), n
    assert between.left > 0 and n


def test_uploads_that_depend_on_contents_from_before_are_refused_in_a_group():
    lake = tidelake.open(f"memory://{uuid.uuid4().hex}")
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(3, v="v3"))
    lake.create("d", SCHEMA, key=["id"])
    lake.write({"c": rows(4, v="g"), "d": rows(3)})
    writer = lake.group_writer("d", "w")
    read_at = writer.join(["c", "d"])
    assert c.distributed.newest_state()
    upload = c.distributed.uploader().upload(at(int(c.upper.elements[0]), 3, v="v3", diff=-1).to_batches())
    c.erase([3], reason="x")
    with pytest.raises(UploadExpired, match="erased rows"):
        writer.write({"c": [upload]}, sequence=0, read_at=read_at)
    assert 3 not in {key for key, _ in contents(c)}


def upserted_elsewhere(c):
    sent = c.distributed.upserter(time=100).to_bytes()
    return [Upserter.from_bytes(sent).upload(rows(3, v="new").to_batches())]


def uploaded_elsewhere(c):
    return [c.distributed.uploader().upload(at(100, 3, v="v3", diff=-1).to_batches())]


def replaced_elsewhere(c):
    new = c.distributed.uploader().upload(at(0, 1, v="new").to_batches())
    return [task.upload()[0] for task in c.distributed.replacements([new], time=100, parallelism=2)]


def staged_together(lake, given):
    with lake.transaction() as together:
        together.stage("c", given[0])


@pytest.mark.promise(
    "No upload, batch or spill that was begun before an erasure comes in, by whichever call, "
    "whatever it holds: `UploadExpired` says so. Tables, upserts and Spark's `write` are uploaded "
    "again by themselves",
    rule="`given_up` in `state/write/write.py`, `uploads-young`",
    also=[
        "::test_a_batch_and_a_spill_from_before_an_erasure_are_refused",
        "spark/writing/test_write.py::test_rows_that_are_erased_while_a_write_runs_stay_away",
    ],
)
@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("made", [upserted_elsewhere, uploaded_elsewhere, replaced_elsewhere])
def test_no_upload_from_before_an_erasure_comes_in(made, inline):
    """Whatever worked it out, and by whichever call it is offered."""
    lake = tidelake.open(
        f"memory://{uuid.uuid4().hex}", config=Config() if inline else Config(inline_part_bytes=0)
    )
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1, 2, 3, v="v3"))
    lower, seqno = c.upper, c.state().seqno
    ways = [
        lambda given: c.distributed.append_uploaded(given, lower=lower, upper=101),
        lambda given: c.distributed.append_uploaded(given, lower=lower, upper=101, read_at=seqno),
        c.distributed.stage_uploaded,
        lambda given: c.writer("w").append_uploaded(given, lower=lower, upper=101, sequence=0),
        lambda given: c.writer("w").stage_uploaded(given, sequence=0),
        lambda given: c.append(c.distributed.batch_from_bytes(given[0])),
        lambda given: lake.write({"c": given[0]}),
        partial(staged_together, lake),
        lambda given: lake.group_writer("c", "g").write({"c": given}, sequence=0),
        lambda given: c.distributed.replacements(given, time=100, parallelism=1),
    ]
    offered = [made(c) for _ in ways]
    c.erase([3], reason="x")
    for way, uploads in zip(ways, offered, strict=True):
        with pytest.raises(UploadExpired, match="erased rows, which it might bring back"):
            way(uploads)
    c.seal(200)
    assert {(key, n) for (key, _), n in contents(c).items()} == {(1, 1), (2, 1)}


def test_a_batch_and_a_spill_from_before_an_erasure_are_refused():
    url = f"memory://{uuid.uuid4().hex}"
    c, stale = tidelake.open(url).create("c", SCHEMA, key=["id"]), tidelake.open(url)
    c.append(rows(1, 3, v="v3"))
    stale = stale.collection("c")
    builder = c.builder()
    builder.add(at(100, 3, v="v3", diff=-1))
    batch = builder.finish(tidelake.Frontier.of(101))
    spill = ShuffleSpill(c.distributed.uploader().spec)
    names = spill.put(rows(3, v="v3").to_batches(), lambda one: one.select([0]))
    c.erase([3], reason="x")
    with pytest.raises(UploadExpired, match="erased rows"):
        c.append(batch)
    batch.delete()
    with pytest.raises(UploadExpired, match="erased rows"):
        next(spill.rows(names, c.state()))
    # A table is the caller's: its rows are new ones, also by a handle that has not seen the erasure.
    stale.append(rows(3, v="new"))
    stale.stage(at(500, 3, v="newer"))
    assert {key for key, _ in contents(c)} == {1, 3}


def test_an_erasure_that_waits_is_carried_out_in_a_group():
    site = Site()
    c = site.filled(6)
    lake = site.lake()
    lake.create("d", SCHEMA, key=["id"])
    ask(inside.shard(c), "e", Erasure("x", 1, 5, (b"\x01\x80" + b"\0" * 6 + b"\x03",)))
    lake.write({"c": rows(4, v="g"), "d": rows(3)})
    with pytest.raises(UsageError, match="are being erased"):
        lake.fork("c", "f")
    lake.collection("c").maintain()
    assert {key for key, _ in contents(c)} == {0, 1, 2, 4} and c.state().group


def test_rows_of_earlier_columns_are_erased():
    site = Site()
    lake = site.lake()
    first = pa.schema([("id", pa.int32()), ("a", pa.int64()), ("b", pa.string())])
    c = lake.create("c", first, key=["id"])
    for n in range(4):
        ids = pa.array([1, 2, 3], pa.int32())
        c.append(pa.table({"id": ids, "a": [3 - n, n, 1], "b": [f"{n}", None, "z"]}))
    c.merge()
    second = pa.schema([("id", pa.int64()), ("c", pa.float64()), ("b", pa.string())])
    c.evolve(second, key=["id"], drop=["a"])
    c.append(pa.table({"id": [1, 2], "c": [1.5, 2.5], "b": ["n", "n"]}))
    before = [c.snapshot(time).read_all().to_pylist() for time in range(5)]
    c.erase([2], reason="x")
    assert [c.snapshot(time).read_all().to_pylist() for time in range(5)] == [
        [row for row in answer if row["id"] != 2] for answer in before
    ]
    c.merge()
    assert lake.fsck().left == ()


def test_a_run_of_earlier_columns_is_written_as_a_whole():
    """Without a column its rows are in another order: parts of it would no longer follow one another."""
    site = Site(Config(part_target_bytes=2048, row_group_rows=2, inline_part_bytes=0))
    lake = site.lake()
    first = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    c = lake.create("c", first, key=["id"])
    # Two parts, each with one of the keys that are erased: both are written again.
    ids = pa.array([1] + [5] * 16 + [9], pa.int64())
    c.append(pa.table({"id": ids, "a": list(range(18)), "b": list(range(18, 0, -1))}))
    c.merge()
    assert len([*c.state().parts()]) == 2
    c.evolve(pa.schema([("id", pa.int64()), ("b", pa.int64())]), key=["id"], drop=["a"])
    c.erase([1, 9], reason="x")
    assert [row["b"] for row in c.snapshot().read_all().to_pylist()] == list(range(2, 18))
    assert lake.fsck().left == ()


def test_a_fork_shares_no_part_after_an_erasure():
    """Otherwise the collection that it was forked from would keep erased rows for it."""
    site = Site(Config(inline_part_bytes=0))
    c = site.lake().create("c", SCHEMA, key=["id"])
    for id_ in (1, 2, 3):
        c.append(rows(id_))
    f = site.lake().fork("c", "f")
    assert len([*borrowed_parts(f.state())]) == 3
    c.erase([2], reason="x")
    assert not [*borrowed_parts(f.state())] and contents(f) == contents(c) == {(1, "x"): 1, (3, "x"): 1}


def test_keys_of_several_columns_null_and_nan_among_them():
    c = (
        Site()
        .lake()
        .create("c", pa.schema([("a", pa.string()), ("x", pa.float64()), ("v", pa.int64())]), key=["a", "x"])
    )
    keys = [("k", 1.5), ("k", None), (None, float("nan")), (None, None), ("k", float("nan")), ("k", 0.0)]
    c.append(pa.table({"a": [a for a, _ in keys], "x": [x for _, x in keys], "v": list(range(6))}))

    def left():
        return {row["v"] for row in c.snapshot().read_all().to_pylist()}

    c.erase([("k", None), {"x": float("nan"), "a": None}], reason="x")
    assert left() == {0, 3, 4, 5}
    c.erase(pa.table({"x": pa.array([-0.0, None], pa.float64()), "a": ["k", None]}), reason="x")
    assert left() == {0, 4}


def test_keys_of_a_list_are_the_very_values():
    """Arrow alone takes instants of pandas for microseconds: the row at 1000 would go instead."""
    nanoseconds, spans = pa.timestamp("ns", "UTC"), pa.duration("ns")
    cases = [
        (nanoseconds, pd.Timestamp(1001, tz="UTC")),
        (nanoseconds, pa.scalar(1001, nanoseconds)),
        (spans, pd.Timedelta(1001)),
        (spans, np.timedelta64(1001, "ns")),
        (pa.time64("ns"), pa.scalar(1001, pa.time64("ns"))),
    ]
    for kind, key in cases:
        c = Site().lake().create("c", pa.schema([("id", kind), ("v", pa.int64())]), key=["id"])
        c.append(pa.table({"id": pa.array([1000, 1001, 2000], kind), "v": [0, 1, 2]}))
        assert c.history(key)["v"].to_pylist() == [1], key
        c.erase([key], reason="x")
        assert c.snapshot().read_all()["v"].to_pylist() == [0, 2], key


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_a_number_of_python_is_the_nearest_key_of_a_narrower_column(kind):
    c = Site().lake().create("c", pa.schema([("id", kind), ("n", kind)]), key=["id", "n"])
    tenth, half = pa.array([0.1, 0.1, 0.5], kind), pa.array([0.1, float("nan"), 0.5], kind)
    c.append(pa.table({"id": tenth, "n": half}))
    assert c.history((0.1, 0.1)).num_rows == c.history({"id": 0.1, "n": float("nan")}).num_rows == 1
    assert c.history((0.5, 0.25)).num_rows == 0
    c.erase([(0.1, 0.1), (0.1, float("nan"))], reason="x")
    assert c.snapshot().read_all()["n"].to_pylist() == [0.5]


def test_keys_of_a_list_may_be_of_several_types():
    c = Site().lake().create("c", pa.schema([("id", pa.uint64()), ("v", pa.int64())]), key=["id"])
    most = 2**64 - 1
    c.append(pa.table({"id": pa.array([1, 2, most - 1, most, None], pa.uint64()), "v": range(5)}))
    assert c.history(most)["v"].to_pylist() == [3]
    report = c.erase([most, 1, np.int8(1), None], reason="x")
    assert (report.keys, report.updates) == (3, 3)
    assert c.snapshot().read_all()["id"].to_pylist() == [2, most - 1]


def test_times_of_several_parts():
    c = Site().lake().create("c", SCHEMA, key=["id"], time="tuple(2)")

    def at_pair(pair, *ids):
        return rows(
            *ids,
            _time_0=pa.array([pair[0]] * len(ids), pa.int64()),
            _time_1=pa.array([pair[1]] * len(ids), pa.int64()),
        )

    c.append(at_pair((0, 1), 1, 2), upper=[(1, 0), (0, 2)])
    c.stage(at_pair((3, 3), 1, 2))
    c.erase([1], reason="x")
    c.seal([(4, 0), (0, 4)])
    assert {row["id"] for row in c.snapshot((3, 3)).read_all().to_pylist()} == {2}


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ("abc", InvalidUpdates, "id"),
        ((1, 2), InvalidUpdates, "does not fit the key columns"),
        ({"other": 3}, InvalidUpdates, "id"),
        (["abc"], InvalidUpdates, "id"),
        ([1.5], InvalidUpdates, "id"),
        ([None], InvalidUpdates, "id"),
        ([1, "abc"], InvalidUpdates, "id"),
        ([10**30], UsageError, "cannot have the value"),
        ([(1, 2)], UsageError, "does not fit the key columns"),
        (pa.table({"other": [1]}), InvalidUpdates, "id"),
        (list(range(120_000)), UsageError, "at most 1048576 fit into one"),
    ],
)
def test_wrong_keys_are_refused(keys, error, message):
    c = Site().filled(6)
    before = c.state()
    with pytest.raises(error, match=message):
        c.erase(keys, reason="x")
    assert c.state() == before


@pytest.mark.parametrize("reason", ["", " ", None, 7, "x" * 501])
def test_a_reason_is_needed(reason):
    c = Site().filled(6)
    with pytest.raises(UsageError, match="must be a text of 1 to 500 characters"):
        c.erase([1], reason=reason)
    assert not c.erasures()


def test_a_copy_has_the_rows_until_it_is_made_again():
    site, other = Site(), Site()
    c = site.filled(6)
    target = other.lake()
    site.lake().copy(target, ["c"])
    c.erase([3], reason="x")
    copy = target.collection("c")
    assert 3 in {key for key, _ in contents(copy)}
    site.lake().copy(target, ["c"])
    assert contents(copy) == contents(c) and 3 not in {key for key, _ in contents(copy)}


def opened(path, clock, config):
    made = tidelake.open(path, config=config)
    return Lake(made.url, inside.stores(made), config, Env(clock=clock))


@pytest.mark.parametrize("config", [SLICED, Config(merge_budget_s=0.0)])
def test_the_bytes_leave_a_copy_as_well(tmp_path, config):
    """A copy at rest has no reason of its own to write a rollup, and to remove old entries of its log."""
    person, clock = "PERSON-SENTINEL-KEY", MovedClock()
    lake, other = (opened(tmp_path / name, clock, config) for name in ("lake", "other"))
    c = lake.create("c", pa.schema([("id", pa.string()), ("v", pa.string())]), key=["id"])
    for time in range(12):
        c.append(pa.table({"id": [person, f"k{time}"], "v": [f"{person}{time}", "x"]}))
    c.erase(["k11"], reason="before the first copy")
    lake.copy(other)
    report = c.erase([person], reason="x")
    assert files_with(tmp_path / "other", person)
    told = other.collection("c").erase(["k10"], reason="in the copy")
    assert "is a copy of" in told.remains[0]
    lake.copy(other)
    copy = other.collection("c")
    assert snapshots(copy) == snapshots(c)
    assert copy.erasures().keys() == {told.id, report.id}
    told = copy.erasures()[report.id]
    assert (told.reason, told.count, told.keys, told.gone_ms) == ("x", 1, (), 0)
    assert told.seqno == copy.state().seqno and told.erased_ms == clock.ms
    assert {one.kind for one in other.fsck().findings} == {"erased-bytes"}
    for _ in range(3):
        clock.ms += AGE_MS
        copy.maintain()
        copy.collect(thorough=True)
    assert files_with(tmp_path / "other", person) == [] and files_with(tmp_path / "other", "k3")
    assert copy.erasures()[report.id].gone_ms and other.fsck().findings == ()
    assert [one.what for one in lake.copy(other).collections] == ["same"]


def snapshots(c):
    return [c.snapshot(time).read_all().to_pylist() for time in range(c.last_time() + 1)]


def test_the_check_tells_what_is_pending_and_what_is_still_stored():
    site = Site()
    c = site.filled(6)
    ask(inside.shard(c), "e", Erasure("ticket", 1, 5, (b"\x01\x80" + b"\0" * 6 + b"\x03",)))
    (found,) = site.lake().fsck().findings
    assert (found.kind, found.note) == ("erasure-pending", False) and "1 keys (ticket)" in found.message
    c.maintain()
    (found,) = site.lake().fsck().findings
    assert (found.kind, found.note) == ("erased-bytes", True)
    site.gone_after("c")
    assert site.lake().fsck().findings == ()
    assert isinstance(ErasureWaits("c", "why"), TidelakeError)
