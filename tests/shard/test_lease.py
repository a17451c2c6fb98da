"""Readers and reads keep what they read, and nothing else, for as long as they show signs of life."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from keeping import AGE_S, LEASE_S, STORED, Idle, Kept, named

import inside
import tidelake
from tables import SCHEMA, ids, rows
from tests.doubles.faults import Fault, FaultPlan
from tidelake.config import Config
from tidelake.errors import (
    CollectionDropped,
    CorruptionError,
    HistoryCompacted,
    LeaseExpired,
    OutcomeUnknown,
    StoreUnavailable,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.shard.reading import lookup
from tidelake.shard.reading.planholds import extend_plan_hold
from tidelake.shard.runs.plan import run_task
from tidelake.state.life.dropping import drop_shard

THIRD_S = AGE_S / 3


def begun(c, as_of=None):
    """A read of which one batch was taken, and the ids of that."""
    stream = c.snapshot(as_of)
    return stream, stream.read_next_batch()["id"].to_pylist()


def take(stream, found):
    """Add the ids of all batches that come."""
    for batch in stream:
        found += batch["id"].to_pylist()
    return found


def rest_of(stream):
    return take(stream, [])


def holds_of(c):
    return list(c.state().holds.values())


def commits(lake):
    return lake.counts["log.compare_and_set"]


# Reads without a reader


@pytest.mark.promise(
    "A short read writes nothing, and leaves nothing to keep", rule="`shard/engine/lease.py`"
)
def test_a_short_read_writes_nothing_and_leaves_nothing_to_keep():
    place = Kept()
    place.made()
    lake = place.process()
    c = lake.collection("c")
    before = commits(lake)
    for _ in range(5):
        assert len(ids(c)) == 480
    abandoned, _ = begun(c)
    del abandoned
    gc.collect()
    assert not lake._renewer._kept and lake.env.spawner.spawned == ["tidelake-renewer"]
    place.pass_s(THIRD_S + 60, lake)
    assert commits(lake) == before and not holds_of(c)


def test_a_read_of_what_the_state_itself_holds_needs_no_keeper():
    place = Kept()
    lake = place.process(Config())
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1, 2))
    assert ids(c) == {1: 1, 2: 1} and not lake.env.spawner.spawned


@pytest.mark.promise(
    "A long read pins its version, and keeps no history",
    rule="`shard/engine/lease.py`",
    also=["::test_a_read_that_was_forgotten_gives_its_hold_up"],
)
def test_a_read_that_takes_long_pins_its_state_and_keeps_no_history_back():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    c = lake.collection("c")
    seqno = c.state().seqno
    stream, first = begun(c)
    place.pass_s(THIRD_S - 60, lake)
    assert not holds_of(c)
    place.pass_s(120, lake)
    (hold,) = holds_of(c)
    assert (hold.pins, hold.since) == ((seqno,), Frontier())
    assert str(writer.advance_since(3)) == "[3]"
    read = named(c)
    assert writer.merge().applied
    place.pass_s(3 * LEASE_S, lake)
    assert not place.collect(writer) and not read & named(c)
    assert first + rest_of(stream) == list(range(480))
    assert not holds_of(c) and not lake._renewer._kept
    assert set(place.collect(writer)) >= read


def test_the_streams_of_a_split_are_held_as_one_until_the_last_one_ends():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    c = lake.collection("c")
    streams = c.distributed.split_snapshot(3)
    place.pass_s(THIRD_S + 60, lake)
    (hold,) = holds_of(c)
    assert hold.pins == (c.state().seqno - 1,)
    assert writer.merge().applied
    found = []
    for stream in streams:
        assert len(holds_of(c)) == 1
        place.pass_s(2 * AGE_S, lake)
        assert not place.collect(writer)
        found += rest_of(stream)
    assert found == list(range(480))
    assert not holds_of(c) and not lake._renewer._kept
    # Streams that are no longer read are given up as well.
    streams = c.distributed.split_snapshot(3)
    place.pass_s(THIRD_S + 60, lake)
    assert len(holds_of(c)) == 1
    del streams, stream
    gc.collect()
    lake._renewer.look()
    assert not holds_of(c) and not lake._renewer._kept


def test_a_look_up_by_the_first_columns_is_held_as_one_until_the_last_of_them(monkeypatch):
    place = Kept()
    writer = place.process().create("c", {"k": "int64", "id": "int64"}, key=["k", "id"])
    for n in range(4):
        writer.append({"k": [n % 2] * 60, "id": list(range(n * 60, n * 60 + 60))})
    lake = place.process()
    c, begin, made = lake.collection("c"), lookup.beginning, []

    def late(*given):
        if made:
            assert writer.merge().applied
            place.pass_s(3 * AGE_S, lake)
            made.append(len(holds_of(writer)))
            assert not place.collect(writer)
        made.append(0)
        return begin(*given)

    monkeypatch.setattr(lookup, "beginning", late)
    assert c.lookup({"k": [0, 1]})["id"].to_pylist() == sorted(range(240), key=lambda n: (n // 60 % 2, n))
    assert made == [0, 1, 0] and not holds_of(c) and not lake._renewer._kept


def test_a_read_that_was_forgotten_gives_its_hold_up():
    place = Kept()
    place.made()
    lake = place.process()
    c = lake.collection("c")
    stream, _ = begun(c)
    place.pass_s(THIRD_S + 60, lake)
    assert len(holds_of(c)) == 1
    del stream
    gc.collect()
    lake._renewer.look()
    assert not holds_of(c) and not lake._renewer._kept


@pytest.mark.promise(
    "A read that meets a collected part gives no wrong rows: it ends with an error that says why",
    rule="`explained` in `shard/engine/lease.py`",
    also=["::test_a_reader_gets_exact_rows_or_an_error_while_others_merge_collect_and_sleep"],
)
def test_a_read_that_is_not_kept_ends_with_an_error_and_no_wrong_row():
    place = Kept()
    _, writer = place.made()
    c = place.process().collection("c")
    stream, found = begun(c)
    assert writer.merge().applied
    place.pass_s(AGE_S + 1)
    assert place.collect(writer)
    with pytest.raises(LeaseExpired, match="raise the setting garbage_age_s") as caught:
        take(stream, found)
    assert f"{c.id}/parts/" in str(caught.value)
    assert found == list(range(len(found))) and len(found) < 480
    assert len(ids(c)) == 480


def last_part(c):
    """Of the newest batch, which a read comes to at its very end."""
    return [part.name for member in c.state().spine for part in member.batch.parts()][-1]


@pytest.mark.promise(
    "A missing part is damage if it should be there, and not if its collection was dropped",
    rule="`explained`",
    also=[
        "::test_a_part_that_only_a_living_hold_keeps_is_damage_if_it_is_missing",
        "::test_a_read_of_a_collection_that_is_dropped_meanwhile_says_so",
    ],
)
def test_a_part_that_is_missing_from_the_newest_state_is_damage():
    place = Kept()
    place.made()
    c = place.process().collection("c")
    stream, _ = begun(c)
    place.stores.blobs.delete(last_part(c))
    with pytest.raises(CorruptionError, match="named by the state but missing") as caught:
        rest_of(stream)
    assert caught.value.name == last_part(c)


def test_a_part_that_only_a_living_hold_keeps_is_damage_if_it_is_missing():
    place = Kept()
    _, writer = place.made()
    with place.process().collection("c").reader("r") as reader:
        lost = last_part(writer)
        assert writer.merge().applied and lost not in named(writer)
        stream = reader.snapshot()
        place.stores.blobs.delete(lost)
        with pytest.raises(CorruptionError) as caught:
            rest_of(stream)
        assert caught.value.name == lost


@pytest.mark.parametrize("collected", ["parts", "log as well"])
def test_a_read_of_a_collection_that_is_dropped_meanwhile_says_so(collected):
    place = Kept()
    _, writer = place.made()
    c = place.process().collection("c")
    reader = place.process().collection("c").reader("r")
    stream, _ = begun(c)
    assert inside.run(writer, lambda state, now_ms: drop_shard(state, now_ms, force=True))
    for name in [info.name for info in place.stores.blobs.list(f"{c.id}/parts/")]:
        place.stores.blobs.delete(name)
    if collected == "log as well":
        place.stores.log.delete(c.id)
    else:
        with pytest.raises(CollectionDropped):
            reader.snapshot(3)
        with pytest.raises(CollectionDropped):
            reader.downgrade(3)
        reader.close()
    with pytest.raises(CollectionDropped):
        rest_of(stream)


# Readers


@pytest.mark.promise(
    "A reader keeps the parts of the version that it reads and of running reads, and no others",
    rule="`pins-keep-parts`, `Lease`",
    also=["::test_a_reader_reads_one_state_until_it_is_asked_for_more_and_then_writes_once"],
)
def test_a_slow_reader_keeps_the_parts_of_its_state_and_no_others():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    c = lake.collection("c")
    reader = c.reader("slow")
    assert holds_of(c)[0].pins == (c.state().seqno - 1,)
    mine = named(c)
    between = set()
    for n in range(3):
        writer.append(rows(*range(1000 * (n + 1), 1000 * (n + 1) + 40)))
        between |= named(writer)
        assert writer.merge().applied
    stream = reader.snapshot(3)
    place.pass_s(4 * LEASE_S, lake)
    freed = set(place.collect(writer))
    assert freed >= between - mine - named(writer) and not freed & (mine | named(writer))
    assert rest_of(stream) == list(range(480))
    # It moves on: what it read before is free.
    assert len(ids(reader)) == 600
    place.pass_s(60, lake)
    assert set(place.collect(writer)) >= mine - named(writer)
    reader.close()


def test_a_reader_reads_one_state_until_it_is_asked_for_more_and_then_writes_once():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    reader = lake.collection("c").reader("r")
    before = commits(lake)
    assert all(len(ids(reader)) == 480 for _ in range(3))
    assert reader.changes(1, 3).read_all().num_rows == 240 and reader.updates(0, 4).read_all().num_rows == 480
    assert commits(lake) == before
    writer.append(rows(1000))
    assert len(ids(reader, 3)) == 480 and commits(lake) == before
    running = reader.snapshot(3)
    assert len(ids(reader)) == 481 and len(ids(reader, 4)) == 481 and commits(lake) == before + 1
    # The state of a read that still runs stays pinned, until it ends.
    assert len(holds_of(writer)[0].pins) == 2
    assert len(rest_of(running)) == 480
    writer.append(rows(1001))
    assert len(ids(reader)) == 482 and len(holds_of(writer)[0].pins) == 1
    reader.close()
    reader.close()
    assert commits(lake) == before + 3 and not holds_of(writer)
    with pytest.raises(LeaseExpired):
        reader.snapshot(3)


def test_a_reader_that_shows_signs_of_life_does_not_expire_and_one_that_does_not_is_ended_by_others():
    place = Kept()
    _, writer = place.made()
    alive, stalled = place.process(), place.process()
    living, dead = (
        alive.collection("c").reader("alive", since=2),
        stalled.collection("c").reader("dead", since=1),
    )
    writer.advance_since(3)
    assert str(writer.since) == "[1]"
    place.pass_s(LEASE_S - 30, alive)
    writer.append(rows(1000))
    assert str(writer.since) == "[1]"
    place.pass_s(30, alive)
    writer.append(rows(1001))
    assert [hold.purpose for hold in holds_of(writer)] == ["alive"] and str(writer.since) == "[2]"
    assert living.snapshot(2).read_all().num_rows == 360
    for call in (
        lambda: dead.snapshot(2),
        lambda: dead.downgrade(3),
        lambda: next(dead.listen(4, timeout_s=0)),
    ):
        with pytest.raises(LeaseExpired, match="open a new reader"):
            call()
    stalled._renewer.look()
    assert not stalled._renewer._kept
    dead.close()
    living.close()
    with stalled.collection("c").reader("again") as again:
        assert len(ids(again)) == 482


def test_a_lease_that_is_over_lives_on_without_a_commit():
    place = Kept()
    place.made()
    lake = place.process()
    with lake.collection("c").reader("asleep") as reader:
        place.clock.ms += int(10 * LEASE_S * 1000)
        lake._renewer.look()
        assert len(ids(reader)) == 480


def test_a_reader_that_slept_through_its_lease_gives_no_wrong_row():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    reader = lake.collection("c").reader("asleep")
    stream = reader.snapshot()
    found = stream.read_next_batch()["id"].to_pylist()
    assert writer.merge().applied
    place.clock.ms += int(10 * LEASE_S * 1000)
    assert place.collect(writer)
    lake._renewer.look()
    with pytest.raises(LeaseExpired, match=reader.id):
        take(stream, found)
    assert found == list(range(len(found)))
    reader.close()


def test_a_reader_whose_hold_ends_while_it_looks_is_told_so():
    place = Kept()
    _, writer = place.made()
    c = place.process().collection("c")
    reader = c.reader("slow", since=1)
    alive = reader._reader._alive

    def slow():
        reader._reader._alive = alive
        found = alive()
        place.clock.ms += int(2 * LEASE_S * 1000)
        writer.append(rows(1000))
        writer.advance_since(4)
        return found

    reader._reader._version, reader._reader._alive = None, slow
    with pytest.raises(LeaseExpired, match=reader.id):
        reader.snapshot(1)
    reader.close()


@pytest.mark.promise(
    "A forgotten reader warns and expires; a reader cannot be used in a forked process",
    rule="`shard/reading/reader.py`",
    also=["::test_a_reader_is_of_no_use_in_a_fork_and_its_hold_stays_with_the_parent"],
)
def test_a_reader_that_was_forgotten_warns_and_its_hold_expires():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    lake.collection("c")
    reader = lake.collection("c").reader("forgotten")
    stream = reader.snapshot()
    with pytest.warns(ResourceWarning, match=f"{reader.id} was not closed"):  # noqa: PT031
        del reader
        gc.collect()
    # A read that still runs keeps what it reads.
    assert writer.merge().applied
    place.pass_s(2 * LEASE_S, lake)
    writer.append(rows(1000))
    place.collect(writer)
    assert rest_of(stream) == list(range(480))
    place.pass_s(LEASE_S, lake)
    assert not lake._renewer._kept
    writer.append(rows(1001))
    assert not holds_of(writer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lake.collection("c").reader("closed").close()
        gc.collect()


@pytest.mark.promise(
    "A follower writes nothing for a step that is read quickly, and keeps no part of earlier steps",
    rule="`Reader.follow`",
    also=[
        "::test_what_a_follower_left_behind_is_free",
        "shard/test_costs.py::test_following_costs_one_store_call_a_step_and_no_other_call_of_the_log",
    ],
)
def test_a_follower_pins_a_step_only_if_it_is_read_for_long():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    c = lake.collection("c")
    steps = c.listen(3, timeout_s=0)
    held = []
    for n in range(20):
        writer.append(rows(1000 + n))
        if not n:
            step = next(steps)
            before = commits(lake)
            continue
        held += next(steps).updates.read_all()["id"].to_pylist()
    assert commits(lake) == before and held == list(range(1001, 1020))
    writer.append(rows(*range(2000, 2100)))
    del step
    step = next(steps)
    first = step.updates.read_next_batch()["id"].to_pylist()
    seqno = c.state().seqno
    place.pass_s(2 * THIRD_S, lake)
    (hold,) = holds_of(c)
    # Neither the state from which it started, nor those of the steps before.
    assert hold.pins == (seqno,)
    assert commits(lake) - before <= 2
    read = named(c)
    assert writer.merge().applied
    place.pass_s(2 * AGE_S, lake)
    assert not set(place.collect(writer)) & read
    assert first + rest_of(step.updates) == list(range(2000, 2100))
    steps.close()
    assert not holds_of(c) and place.collect(writer)


def test_a_follower_whose_hold_is_gone_is_told_at_its_next_step():
    place = Kept()
    _, writer = place.made()
    steps = place.process().collection("c").listen(3, timeout_s=0)
    writer.append(rows(1000))
    assert next(steps).updates.read_all().num_rows == 1
    place.pass_s(LEASE_S + 1)
    writer.append(rows(1001))
    with pytest.raises(LeaseExpired):
        next(steps)


@pytest.mark.promise(
    "A read whose state can no longer be pinned ends with an error if it needs a part that is gone; "
    "the hold that was to pin it lives on, and is ended as ever",
    rule="`state/life/holds.py` (`intact`), `shard/engine/lease.py`",
)
def test_a_follower_whose_worker_came_too_late_to_pin_a_step_goes_on_and_leaves_no_hold():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    c = lake.collection("c")
    steps = c.listen(3, timeout_s=0)
    writer.append(rows(1000))
    next(steps).updates.read_all()
    place.pass_s(LEASE_S / 3 + 60, lake)
    writer.append(rows(*range(2000, 2120)))
    step = next(steps)
    assert step.updates.read_next_batch().num_rows < 120
    assert writer.merge().applied
    place.pass_s(AGE_S + 1)
    assert place.collect(writer)
    lake._renewer.look()
    before = commits(lake)
    place.pass_s(LEASE_S / 3 - 60, lake)
    assert commits(lake) == before
    with pytest.raises(LeaseExpired):
        rest_of(step.updates)
    place.pass_s(2 * LEASE_S, lake)
    writer.append(rows(3000))
    assert next(steps).updates.read_all()["id"].to_pylist() == [3000]
    steps.close()
    assert not holds_of(c) and not lake._renewer._kept


def test_what_a_follower_left_behind_is_free():
    place = Kept()
    _, writer = place.made()
    lake = place.process()
    steps = lake.collection("c").listen(3, timeout_s=0)
    writer.append(rows(1000))
    next(steps).updates.read_all()
    old = named(writer)
    assert writer.merge().applied
    place.pass_s(2 * AGE_S, lake)
    assert set(place.collect(writer)) == old
    steps.close()


def test_a_reader_is_of_no_use_in_a_fork_and_its_hold_stays_with_the_parent(tmp_path):
    lake = tidelake.open(tmp_path / "lake", config=STORED)
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(*range(40)))
    reader = c.reader("parent")
    child = os.fork()
    if not child:
        code = 1
        try:
            threads = {t.name for t in threading.enumerate()}
            with pytest.raises(UsageError, match="does not survive a fork"):
                reader.snapshot(0)
            reader.close()
            again = tidelake.open(tmp_path / "lake").collection("c")
            with again.reader("child") as own:
                assert len(ids(own)) == 40
            code = 0 if "tidelake-renewer" not in threads else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [hold.purpose for hold in holds_of(c)] == ["parent"]
    assert len(ids(reader)) == 40
    reader.close()
    lake.close()


def until(reached, seconds=30):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.full
def test_the_worker_beside_a_read_renews_its_hold_and_ends_after_it(tmp_path):
    before = set(threading.enumerate())
    config = Config(**{**vars(STORED), "garbage_age_s": 0.3, "lease_s": 0.6})
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(4):
            c.append(rows(*range(n * 400, (n + 1) * 400)))
        stream, first = begun(c)
        until(lambda: holds_of(c))
        (hold,) = holds_of(c)
        until(lambda: holds_of(c)[0].expires_ms > hold.expires_ms + 600)
        assert first + rest_of(stream) == list(range(1600))
        assert not holds_of(c)
        until(lambda: lake._renewer._worker.get().spawned is None)
        reader = c.reader("r")
        until(lambda: holds_of(c)[0].expires_ms > holds_of(c)[0].opened_ms + 1200)
        reader.close()
        until(lambda: lake._renewer._worker.get().spawned is None)
        reader = c.reader("until the lake is closed")
    # Readers that other tests have left open have workers of their own.
    assert not [t for t in set(threading.enumerate()) - before if t.name == "tidelake-renewer"]
    assert reader.id


CHILD = """
import sys, time, tidelake
lake = tidelake.open(sys.argv[1])
reader = lake.collection("c").reader("child", since=0)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.full
def test_the_hold_of_a_reader_that_was_killed_expires(tmp_path):
    with tidelake.open(tmp_path / "lake", config=Config(lease_s=1.5)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(3):
            c.append(rows(n))
        command = [sys.executable, "-c", CHILD, str(tmp_path / "lake")]
        source = Path(tidelake.__file__).parent.parent
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(source)}
        )
        try:
            assert child.stdout.readline() == "held\n"
            c.advance_since(2)
            opened = holds_of(c)[0]
            # It lives on for longer than a lease.
            until(lambda: time.time() * 1000 > opened.expires_ms + 500)
            c.append(rows(10))
            assert holds_of(c) and str(c.since) == "[0]"
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
        last = holds_of(c)[0].expires_ms
        until(lambda: time.time() * 1000 > last)
        c.append(rows(11))
        assert not holds_of(c) and str(c.since) == "[2]"


# Plans


@pytest.mark.promise(
    "The parts of a plan are held for the requested time",
    rule="`open_plan_hold`",
    also=[
        "::test_a_task_whose_parts_are_gone_says_why",
        "spark/reading/test_frames.py::test_a_frame_holds_what_it_reads_until_it_is_released",
    ],
)
def test_a_plan_is_held_for_as_long_as_was_asked_or_until_it_is_released(tmp_path):
    place = Kept()
    lake, c = place.made()
    plan = c.distributed.plan(AsOf(3), 4)
    held = c.distributed.hold([plan, plan], timedelta(hours=2), "a job")
    (hold,) = holds_of(c)
    assert (hold.pins, hold.purpose, hold.lease_ms) == ((plan.seqno,), "a job", 7_200_000)
    old = named(c)
    assert c.merge().applied
    place.pass_s(7_200 - 60, lake)
    assert not place.collect(c)
    c.distributed.release(held)
    c.distributed.release(held)
    assert set(place.collect(c)) == old
    with pytest.raises(LeaseExpired):
        c.distributed.hold([plan], 60, "too late")
    again = c.distributed.plan(None, 1)
    c.distributed.hold([again], 60, "a job")
    place.pass_s(60)
    c.append(rows(1000))
    assert not holds_of(c)
    for wrong in (-1, "1 fortnight", True, float("nan")):
        with pytest.raises(UsageError, match="hold_for"):
            c.distributed.hold([again], wrong, "a job")
    inline = place.process(Config()).create("inline", SCHEMA, key=["id"])
    inline.append(rows(1))
    assert inline.distributed.hold([inline.distributed.plan(None, 1)], 60, "nothing that could go") is None


def test_what_an_owner_holds_of_one_version_is_one_hold(tmp_path):
    place = Kept()
    lake, c = place.made()
    plans = [c.distributed.plan(AsOf(3), 4), c.distributed.plan(AsOf(2), 1)]
    before = commits(lake)
    held = c.distributed.hold(plans, 7_200, "a job", owner="me")
    assert held.startswith("me~")
    assert c.distributed.hold(plans[:1], timedelta(hours=2), "a job", owner="me") == held
    # The hold is itself a commit, which makes no other version of what is stored.
    assert c.distributed.hold([c.distributed.plan(None, 1)], 7_200, "a job", owner="me") == held
    assert len(holds_of(c)) == 1 and commits(lake) == before + 1
    assert c.distributed.hold(plans, 7_200, "a job", owner="you") != held
    assert c.distributed.hold(plans, 7_201, "a job", owner="me") != held
    assert len(holds_of(c)) == 3
    place.pass_s(61)
    c.distributed.hold(plans, 7_200, "a job", owner="me")
    hold = c.state().holds[held]
    assert hold.expires_ms - hold.opened_ms == 7_261_000
    place.pass_s(7_199)
    c.append(rows(1000))
    assert list(c.state().holds) == [held]
    assert c.distributed.hold([c.distributed.plan(None, 1)], 7_200, "a job", owner="me") != held
    c.distributed.hold([c.distributed.plan(None, 1)], 7_200, "a job", owner="mean")
    assert c.distributed.release_owned("me") == 2 and c.distributed.release_owned("me") == 0
    assert len(holds_of(c)) == 1


def test_an_owner_whose_name_begins_as_anothers_gives_up_its_own_holds_only():
    place = Kept()
    _, c = place.made()
    plans = [c.distributed.plan(None, 1)]
    owners = ["etl", "etl-nightly", "etl~nightly", "etl-", "etl~"]
    held = {owner: c.distributed.hold(plans, 7_200, "a job", owner=owner) for owner in owners}
    reader = c.reader("beside")
    for owner in owners:
        assert c.distributed.release_owned(owner) == 1
        del held[owner]
        assert {reader.id, *held.values()} == {*c.state().holds}
    assert c.distributed.release_owned("") == 0 and c.distributed.release_owned("et") == 0
    reader.close()


def test_a_hold_is_extended_when_it_is_old_and_only_while_it_is_there(tmp_path):
    place = Kept()
    lake, c = place.made()
    held = c.distributed.hold([c.distributed.plan(None, 1)], 3_600, "a job")
    opened, before = c.state().holds[held].opened_ms, commits(lake)
    place.pass_s(300)
    assert extend_plan_hold(inside.shard(c), held, 600) and commits(lake) == before
    place.pass_s(301)
    assert extend_plan_hold(inside.shard(c), held, 600) and commits(lake) == before + 1
    assert c.state().holds[held].expires_ms - opened == 4_201_000
    c.distributed.release(held)
    assert not extend_plan_hold(inside.shard(c), held, 0) and not holds_of(c)


def test_a_task_whose_parts_are_gone_says_why(tmp_path):
    config = Config(inline_part_bytes=0, merge_budget_s=0)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows(*range(40)))
        c.append(rows(*range(40, 80)))
        (task,) = c.distributed.plan(AsOf(1), 1).tasks
        assert sum(batch.num_rows for batch in run_task(task)) == 80
        old = named(c)
        assert c.merge().applied
        (newer,) = c.distributed.plan(AsOf(1), 1).tasks
        for name in old | named(c):
            inside.stores(lake).blobs.delete(name)
        with pytest.raises(LeaseExpired, match="was collected"):
            list(run_task(task))
        with pytest.raises(CorruptionError, match="named by the state but missing"):
            list(run_task(newer))
        inside.run(c, drop_shard)
        with pytest.raises(CollectionDropped):
            list(run_task(newer))
        inside.stores(lake).log.delete(c.id)
        with pytest.raises(CollectionDropped):
            list(run_task(newer))


# Critical holds and retention


def test_a_second_owner_fences_the_first_one_of_a_critical_hold():
    place = Kept()
    _, c = place.made()
    first = c.critical_hold("pipeline", "one", since=1)
    c.advance_since(3)
    assert str(c.since) == "[1]" and first.token == "one"
    assert first.compare_and_downgrade_since("one", ("one", 2)).done and str(c.since) == "[2]"
    second = place.process().collection("c").critical_hold("pipeline", "two")
    assert (second.token, str(second.since)) == ("one", "[2]")
    assert second.compare_and_downgrade_since(second.token, ("two", 2)).done
    answer = first.compare_and_downgrade_since("one", ("one", 3))
    assert (answer.done, answer.token, str(answer.since)) == (False, "two", "[2]")
    assert (first.token, str(c.since)) == ("two", "[2]")
    # However long they sleep.
    place.pass_s(10 * LEASE_S)
    c.append(rows(1000))
    assert str(c.since) == "[2]"
    assert second.drop() and not second.drop() and str(c.since) == "[3]"
    with pytest.raises(UsageError, match="no critical hold 'pipeline'"):
        second.compare_and_downgrade_since("two", ("two", 3))


def test_a_move_of_a_critical_hold_is_done_once_however_often_it_is_repeated():
    place = Kept()
    place.made()
    for fault in (Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER):
        plan = FaultPlan()
        lake = place.process(faults=plan)
        hold = lake.collection("c").critical_hold(f"p-{fault.name}", "t0")
        plan.rates_by_operation = {"log.compare_and_set": {fault: 1.0}}
        try:
            assert hold.compare_and_downgrade_since("t0", ("t1", 2)).done
        except OutcomeUnknown:
            plan.rates_by_operation = {}
        again = hold.compare_and_downgrade_since("t0", ("t1", 2))
        assert (again.done, again.token, str(again.since)) == (True, "t1", "[2]")
        assert not hold.compare_and_downgrade_since("t0", ("t1", 3)).done


@pytest.mark.promise(
    "Lost replies and an unreachable store leave at most one hold during a read, and none after it",
    rule="`shard/engine/renewer.py`, `shard/engine/lease.py`",
    also=["::test_a_keeper_that_cannot_reach_the_store_tries_again"],
)
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_lost_replies_leave_one_hold_for_a_long_read_and_none_after_it(fault):
    place = Kept()
    place.made()
    plan = FaultPlan(seed=5)
    lake = place.process(faults=plan)
    c = lake.collection("c")
    stream, first = begun(c)
    plan.rates_by_operation = {"log.compare_and_set": {fault: 0.6}}
    place.pass_s(4 * LEASE_S, lake)
    assert len(holds_of(c)) == 1 and plan.injected["log.compare_and_set", fault] > 3
    plan.rates_by_operation = {}
    assert first + rest_of(stream) == list(range(480)) and not holds_of(c)


def test_a_keeper_that_cannot_reach_the_store_tries_again():
    place = Kept()
    _, writer = place.made()
    plan = FaultPlan()
    lake = place.process(Config(**{**vars(STORED), "retry_deadline_s": 0.0}), plan)
    with lake.collection("c").reader("r") as reader:
        place.pass_s(LEASE_S / 2)
        plan.rates_by_operation = {"log.compare_and_set": {Fault.UNAVAILABLE: 1.0}}
        assert lake._renewer.look() == 1.0
        assert lake.counts["renewer.failed"] == 1
        plan.rates_by_operation = {}
        assert lake._renewer.look() == AGE_S / 3
        place.pass_s(LEASE_S * 0.75)
        writer.append(rows(1000))
        assert len(ids(reader)) == 481


def test_since_follows_upper_at_the_distance_that_is_retained():
    place = Kept()
    _, c = place.made()
    c.retain(2)
    assert str(c.since) == "[2]"
    reader = c.reader("r")
    for n in range(3):
        c.append(rows(1000 + n))
    assert (str(c.since), str(c.upper)) == ("[2]", "[7]")
    reader.close()
    assert str(c.since) == "[5]"
    with pytest.raises(HistoryCompacted):
        c.snapshot(4)
    assert len(ids(c, 5)) == 482
    c.retain(1)
    assert len(ids(c)) == 483
    c.retain(None)
    c.append(rows(2000))
    assert str(c.since) == "[6]"


def test_since_follows_by_maintenance_without_writes():
    place = Kept()
    _, c = place.made()
    c.retain(1)
    reader = place.process().collection("c").reader("dies", since=3)
    c.append(rows(1000))
    assert str(c.since) == "[3]"
    place.pass_s(LEASE_S)
    assert str(c.since) == "[3]"
    c.maintain()
    assert str(c.since) == "[4]" and not holds_of(c)
    assert reader.id


class Rounds(Idle):
    """Work beside its caller that goes on when the test says so, in the test's thread."""

    def spawn(self, name, work):
        if name == "tidelake-upkeep":
            self.work = work
        return super().spawn(name, work)

    def go(self, rounds):
        self.left = rounds
        self.work(self)

    def wait(self, timeout):
        self.left -= bool(timeout)
        return self.left == 0


def test_upkeep_that_found_a_collection_at_rest_looks_again_when_a_lease_is_over():
    place = Kept()
    # Nothing to collect, which would be looked at again as well.
    _, c = place.made(appends=1)
    reader = place.process().collection("c").reader("dies")
    rounds = Rounds()
    lake = place.process(spawner=rounds)
    lake.upkeep()
    rounds.go(6)
    at_rest = c.state().seqno
    rounds.go(3)
    assert c.state().seqno == at_rest and holds_of(c)
    place.clock.ms += int(LEASE_S * 1000) + 1
    rounds.go(3)
    assert not holds_of(c) and reader.id


def test_retention_of_clocks_is_a_span_and_of_tuples_there_is_none():
    lake = Kept().process()
    nothing = pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.string())})
    for unit, each_ms in (("ms", 1), ("us", 1000)):
        c = lake.create(unit, SCHEMA, key=["id"], time=unit)
        c.retain(timedelta(seconds=5))
        empty = nothing.append_column("_time", pa.array([], pa.int64()))
        c.compare_and_append(empty, 0, 60_000 * each_ms)
        assert c.since.elements == (55_000 * each_ms,)
    pair = lake.create("pair", SCHEMA, key=["id"], time="tuple(2)")
    counter = lake.create("counter", SCHEMA, key=["id"])
    with pytest.raises(UsageError, match="have no length"):
        pair.retain(3)
    with pytest.raises(UsageError, match="span of a clock"):
        counter.retain(timedelta(days=1))
    for wrong in (0, -1, 2.5, "7 days", True):
        with pytest.raises(UsageError, match="retention"):
            counter.retain(wrong)


# All of it together


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_a_reader_gets_exact_rows_or_an_error_while_others_merge_collect_and_sleep(seed):
    """Three processes; time jumps; only LeaseExpired may stop a read, and no reader that lives meets it."""
    choose, place = Random(seed), Kept()
    _, writer = place.made(appends=2)
    lakes = [place.process() for _ in range(2)]
    mine = [lake.collection("c") for lake in lakes]
    truth = {1: 240}
    running, told, whole = [], 0, 0
    for step in range(100):
        match choose.randrange(10):
            case 0 | 1:
                first = 10_000 + 40 * step
                answer = writer.append(rows(*range(first, first + 40)))
                truth[answer.lower.elements[0]] = max(truth.values()) + 40
            case 2:
                writer.merge()
            case 3:
                place.collect(writer)
            case 4:
                place.clock.ms += int(choose.choice([1, 60, AGE_S, LEASE_S]) * 1000)
                # One of the two may be asleep.
                for lake in choose.sample(lakes, choose.choice([1, 2, 2])):
                    lake._renewer.look()
            case 5:
                of = choose.choice(mine)
                at = choose.choice(list(truth))
                source = choose.choice([of, of.reader("r")])
                try:
                    running.append((source, source.snapshot(at), at, []))
                except LeaseExpired:
                    told += 1
            case _ if running:
                entry = running.pop(choose.randrange(len(running)))
                source, stream, at, found = entry
                try:
                    for _ in range(choose.choice([1, 3, 1000])):
                        found += stream.read_next_batch()["id"].to_pylist()
                    running.append(entry)
                except StopIteration:
                    assert len(found) == truth[at] and found == sorted(set(found))
                    whole += 1
                except LeaseExpired:
                    told += 1
    assert whole and len(ids(writer)) == max(truth.values())
    assert told < whole


def test_a_store_that_does_not_take_the_end_of_a_hold_does_not_fail_the_read():
    place = Kept()
    place.made()
    plan = FaultPlan()
    lake = place.process(Config(**{**vars(STORED), "retry_deadline_s": 0.0}), plan)
    stream, first = begun(lake.collection("c"))
    place.pass_s(THIRD_S + 60, lake)
    plan.rates_by_operation = {"log.compare_and_set": {Fault.UNAVAILABLE: 1.0}}
    assert first + rest_of(stream) == list(range(480))
    assert lake.counts["lease.close.failed"] == 1
    with pytest.raises(StoreUnavailable):
        lake.collection("c").append(rows(1))
