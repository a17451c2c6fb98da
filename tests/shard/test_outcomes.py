"""Lost replies, crashes, two writers: each append is in once or not at all, and its caller learns which."""

import collections
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from shards import Place

import inside
import tidelake
from tables import SCHEMA, ids, rows
from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from threads import at_once
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    Closed,
    CorruptionError,
    InternalError,
    InvalidUpdates,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model.query import Fold
from tidelake.shard.engine.history import History
from tidelake.shard.runs.plan import between, decode_run, run_merge_task
from tidelake.shard.runs.read import Source
from tidelake.shard.upkeep.compactor import Workers
from tidelake.state.core.codec import encode_record
from tidelake.state.core.commands import NoOp
from tidelake.state.spine.merging import Fit, MergeResult, Policy, digest, everything
from tidelake.state.upkeep import maintenance


def place_with_collection():
    place = Place()
    place.lake().create("c", SCHEMA, key=["id"])
    return place


@pytest.mark.promise(
    "A lost reply of a commit is decided by reading the log back",
    rule="`History.commit`",
    also=["::test_a_lost_reply_while_another_writer_is_first_is_decided"],
)
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_a_lost_reply_of_a_commit_is_decided(fault):
    place = place_with_collection()
    plan = FaultPlan(rates_by_operation={"log.compare_and_set": {fault: 0.5}}, seed=3)
    c = place.lake(plan).collection("c")
    for n in range(40):
        assert not c.append(rows(n)).already
    assert plan.injected["log.compare_and_set", fault] > 5
    assert ids(place.lake().collection("c")) == dict.fromkeys(range(40), 1)


def test_a_lost_reply_while_another_writer_is_first_is_decided():
    place = place_with_collection()
    other = place.lake().collection("c")
    for seed in range(30):
        plan = FaultPlan(
            seed, {}, {"log.compare_and_set": {Fault.UNKNOWN_BEFORE: 0.4, Fault.UNKNOWN_AFTER: 0.3}}
        )
        c = place.lake(plan).collection("c")
        other.append(rows(1000 + seed))
        c.append(rows(seed))
    found = ids(place.lake().collection("c"))
    assert found == dict.fromkeys([*range(30), *range(1000, 1030)], 1)


def test_a_store_that_stays_silent_is_reported_and_a_named_writer_learns_what_is_in():
    place = place_with_collection()
    for fault, expected in ((Fault.UNKNOWN_BEFORE, None), (Fault.UNKNOWN_AFTER, 0)):
        name = f"w-{fault.name}"
        plan = FaultPlan()
        writer = place.lake(plan).collection("c").writer(name)
        plan.rates_by_operation = {"log.compare_and_set": {fault: 1.0}}
        if fault is Fault.UNKNOWN_AFTER:
            # The retry finds the seqno taken and its own nonce there.
            assert not writer.append(rows(1)).already
        else:
            with pytest.raises(OutcomeUnknown):
                writer.append(rows(1))
        assert place.lake().collection("c").writer(name).last_sequence == expected


@pytest.mark.promise("A store that is unavailable did nothing, and the append says so", rule="`Retry.layer`")
def test_an_unavailable_store_writes_nothing_and_says_so():
    place = place_with_collection()
    broken = FaultPlan(rates_by_operation={"blob.put": {Fault.UNAVAILABLE: 1.0}})
    c = place.lake(broken, Config(inline_part_bytes=0)).collection("c")
    with pytest.raises(StoreUnavailable):
        c.append(rows(1))
    assert place.lake().collection("c").upper.elements == (0,)


@pytest.mark.promise("An upload that fails leaves no part", rule="`write_run`")
def test_an_upload_that_fails_half_way_leaves_no_part():
    place = place_with_collection()
    small = Config(part_target_bytes=1024, row_group_rows=16, retry_deadline_s=0)
    plan = FaultPlan(script=[])
    c = place.lake(plan, small).collection("c")
    plan.rates_by_operation = {"blob.put": {Fault.UNAVAILABLE: 0.4}}
    failed = 0
    for _ in range(20):
        try:
            c.append(rows(*range(3000)))
        except StoreUnavailable:
            failed += 1
            live = {p.name for item in c.state().spine for p in item.batch.parts()}
            assert {b.name for b in place.stores.blobs.list(f"{c.id}/parts/")} == live
    assert failed > 3


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_and_crashes_lose_and_double_nothing(seed):
    """Clients with named writers crash at any store call and come back; every append is in exactly once."""
    place = place_with_collection()
    rates = {
        Fault.UNAVAILABLE: 0.05,
        Fault.UNKNOWN_BEFORE: 0.05,
        Fault.UNKNOWN_AFTER: 0.05,
        Fault.CRASH_BEFORE: 0.02,
        Fault.CRASH_AFTER: 0.02,
    }
    injected = 0
    pending = {name: list(range(12)) for name in ("a", "b", "c")}
    writers = {}
    order = random.Random(seed)
    steps = 0
    while any(pending.values()):
        steps += 1
        assert steps < 2000
        name = order.choice([n for n, left in pending.items() if left])
        try:
            if name not in writers:
                plan = FaultPlan(order.randrange(10**6), rates)
                lake = place.lake(plan, Config(rollup_bytes_min=2048))
                writers[name] = (lake.collection("c").writer(name), plan, lake)
                done = writers[name][0].last_sequence
                pending[name] = [n for n in range(12) if done is None or n > done]
                continue
            n = pending[name][0]
            writers[name][0].append(rows(n, v=name), sequence=n)
            pending[name].pop(0)
            if order.random() < 0.1:
                writers[name][2].collection("c").merge()
        except (SimulatedCrash, OutcomeUnknown, StoreUnavailable):
            if name in writers:
                injected += writers[name][1].total()
            writers.pop(name, None)
    c = place.lake().collection("c")
    answer = c.snapshot().read_all()
    found = collections.Counter()
    for row in answer.to_pylist():
        found[row["id"], row["v"]] += row["_diff"]
    assert found == {(n, name): 1 for n in range(12) for name in ("a", "b", "c")}
    assert injected > 0


@pytest.mark.promise(
    "A shard is created once, whichever processes create it at once and whichever reply is lost",
    rule="`History.create`",
)
def test_creating_a_shard_is_safe_under_lost_replies():
    for seed in range(20):
        place = Place()
        plan = FaultPlan(
            seed, {}, {"log.compare_and_set": {Fault.UNKNOWN_BEFORE: 0.3, Fault.UNKNOWN_AFTER: 0.3}}
        )
        for _ in range(5):
            try:
                place.lake(plan).create("c", SCHEMA, key=["id"])
                break
            except OutcomeUnknown:
                continue
        assert place.lake().list() == ["c"]


def test_a_first_state_that_breaks_a_rule_is_not_written():
    place = place_with_collection()
    c = place.lake().collection("c")
    c.append(rows(1))
    state = c.state()
    broken = replace(state, shard_id=f"{1:032x}", seqno=0, upper=state.minimum)
    with pytest.raises(InternalError, match="drained-up-to-upper"):
        History(broken.shard_id, place.stores, Env()).create(broken)
    assert place.stores.log.head(broken.shard_id) is None


def test_a_fenced_writer_that_wakes_up_late_is_refused():
    place = place_with_collection()
    old = place.lake().collection("c").writer("w")
    old.append(rows(1))
    new = place.lake().collection("c").writer("w")
    assert new.last_sequence == 0 and new.epoch == old.epoch + 1
    with pytest.raises(WriterFenced, match="epoch 0 is fenced by epoch 1"):
        old.append(rows(2))
    new.append(rows(2))
    assert ids(place.lake().collection("c")) == {1: 1, 2: 1}


@pytest.mark.promise(
    "A refusal or a no-op is believed only on a fresh state",
    rule="`Machine.run`",
    also=["::test_a_merge_result_is_not_refused_on_a_stale_state"],
)
def test_a_refusal_on_a_stale_state_is_not_believed():
    place = place_with_collection()
    stale = place.lake().collection("c")
    assert stale.upper.elements == (0,)
    place.lake().collection("c").append(rows(1))
    assert not stale.compare_and_append(
        rows(2).append_column("_time", pa.array([1], pa.int64())), 1, 2
    ).already


@pytest.mark.promise(
    "Threads and processes that append at once all get in, once",
    rule="`compare_and_set`",
    also=["::test_two_processes_that_append_at_once_are_both_in_exactly_once"],
)
def test_threads_that_append_at_once_all_get_in_and_in_the_order_of_upper():
    place = place_with_collection()
    answers = []

    def work(name):
        c = place.lake().collection("c")
        for n in range(25):
            answers.append((c.append(rows(n, v=name)), n, name))

    at_once(work, [f"t{i}" for i in range(4)])
    check_answers(place.lake().collection("c"), answers)


def check_answers(c, answers):
    """Every acknowledged append is in once, at the time that its answer names."""
    times = sorted(a.lower.elements[0] for a, _, _ in answers)
    assert times == list(range(len(answers)))
    stored = c.updates(0, c.upper).read_all().to_pylist()
    assert {(r["id"], r["v"]): r["_time"] for r in stored} == {
        (n, v): a.lower.elements[0] for a, n, v in answers
    }
    assert len(stored) == len(answers) and all(r["_diff"] == 1 for r in stored)


CHILD = """
import sys, pyarrow as pa, tidelake
c = tidelake.open(sys.argv[1]).collection("c")
for n in range(int(sys.argv[3])):
    a = c.append(pa.table({"id": pa.array([n], pa.int64()), "v": [sys.argv[2]]}))
    print(n, a.lower.elements[0], flush=True)
"""


def test_a_fork_in_the_middle_of_a_commit_of_another_thread_leaves_the_handle_usable(tmp_path):
    """As the worker that keeps holds commits at any time: its turn is not the child's."""
    with tidelake.open(tmp_path) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        machine = inside.shard(c)._machine
        entered, leave = threading.Event(), threading.Event()

        def slow(state, now_ms):
            entered.set()
            leave.wait(60)
            return NoOp(None)

        thread = threading.Thread(target=lambda: machine.run(slow))
        thread.start()
        assert entered.wait(60)
        child = os.fork()
        if child == 0:
            # Ends the child if it waits for a thread that it does not have.
            signal.alarm(20)
            try:
                c.append(rows(1))
                os._exit(0)
            except BaseException:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        leave.set()
        thread.join()
        assert status == 0
        c.append(rows(2))
        assert ids(c) == {1: 1, 2: 1}


@pytest.mark.full
def test_two_processes_that_append_at_once_are_both_in_exactly_once(tmp_path):
    lake = tidelake.open(tmp_path / "lake")
    c = lake.create("c", SCHEMA, key=["id"])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "lake"), name, "60"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("p", "q")
    ]
    acknowledged = {}
    for name, child in zip("pq", children, strict=True):
        out, _ = child.communicate(timeout=120)
        assert child.returncode == 0
        for line in out.splitlines():
            n, at = line.split()
            acknowledged[int(n), name] = int(at)
    assert sorted(acknowledged.values()) == list(range(120))
    stored = c.updates(0, c.upper).read_all().to_pylist()
    assert {(r["id"], r["v"]): r["_time"] for r in stored} == acknowledged
    # Each process sees its own appends in the order that it made them.
    for name in "pq":
        at = [acknowledged[n, name] for n in range(60)]
        assert at == sorted(at)


@pytest.mark.full
def test_a_writer_killed_at_random_loses_nothing_acknowledged(tmp_path, rng):
    lake = tidelake.open(tmp_path / "lake")
    c = lake.create("c", SCHEMA, key=["id"])
    acknowledged = {}
    for kill in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "lake"), f"k{kill}", "1000"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(rng.randrange(5, 40)):
            n, at = child.stdout.readline().split()
            acknowledged[int(n), f"k{kill}"] = int(at)
        child.kill()
        rest, _ = child.communicate()
        for line in rest.splitlines():
            if len(line.split()) == 2:
                n, at = line.split()
                acknowledged[int(n), f"k{kill}"] = int(at)
    stored = {(r["id"], r["v"]): r["_time"] for r in c.updates(0, c.upper).read_all().to_pylist()}
    assert acknowledged.items() <= stored.items()
    # At most the one append in flight of each child was in without an acknowledgement.
    assert len(stored) <= len(acknowledged) + 4
    assert Path(tmp_path).exists()


@pytest.mark.promise(
    "Merges and appends at once keep everything", rule="`placed` in `state/spine/merging.py`"
)
def test_a_merge_and_appends_at_once_keep_everything():
    place = place_with_collection()
    stop = threading.Event()
    failures = []

    def merges():
        c = place.lake().collection("c")
        while not stop.is_set():
            try:
                c.merge()
            except TidelakeError as error:
                failures.append(error)

    thread = threading.Thread(target=merges)
    thread.start()
    c = place.lake().collection("c")
    for n in range(60):
        c.append(rows(n))
    stop.set()
    thread.join()
    assert not failures
    assert ids(c) == dict.fromkeys(range(60), 1)


def test_a_merge_that_lost_its_inputs_changes_nothing_and_leaves_no_part():
    place = place_with_collection()
    c = place.lake().collection("c")
    for n in range(4):
        c.append(rows(n))
    slow = place.lake().collection("c")

    def overtaken(tasks):
        outputs = Workers.here(inside.shard(slow)).run(tasks)
        if len(c.state().spine) > 1:
            assert c.merge().applied
        return outputs

    before = {blob.name for blob in place.stores.blobs.list()}
    assert not slow.merge(Workers(overtaken)).applied or len(c.state().spine) == 1
    named = {part.name for member in c.state().spine for part in member.batch.parts()}
    assert {b.name for b in place.stores.blobs.list() if "/parts/" in b.name} - before <= named
    assert ids(c) == dict.fromkeys(range(4), 1)


@pytest.mark.promise("A rollup that fails does not fail the command that made it due", rule="`Shard.run`")
def test_a_rollup_that_fails_does_not_fail_the_append_that_made_it_due():
    place = place_with_collection()
    c = place.lake(config=Config(rollup_bytes_min=1024)).collection("c")
    whole = place.stores.blobs.put

    def refuse_rollups(name, data):
        if "/rollups/" in name:
            raise StoreUnavailable("no rollups today")
        whole(name, data)

    place.stores.blobs.put = refuse_rollups
    for n in range(20):
        assert not c.append(rows(n)).already
    place.stores.blobs.put = whole
    assert ids(place.lake().collection("c")) == dict.fromkeys(range(20), 1)
    c.append(rows(20))
    assert c.state().rollup.seqno > 0


@pytest.mark.promise(
    "If the store fails or stays silent while that is decided, or the entry was collected before it "
    "was read, the outcome is unknown; opening the writer's name tells it",
    rule="`History.commit`, `open_writer`",
    also=[
        "::test_a_store_that_stays_silent_is_reported_and_a_named_writer_learns_what_is_in",
        "shard/upkeep/test_collector.py::test_a_lost_reply_whose_entry_was_collected_is_unknown_to_the_nameless_and_known_to_a_writer",
    ],
)
@pytest.mark.parametrize("then", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE])
def test_a_store_that_fails_right_after_a_lost_reply_leaves_the_outcome_unknown_and_the_parts(then):
    place = place_with_collection()
    plan = FaultPlan()
    c = place.lake(plan, Config(retry_deadline_s=0)).collection("c")
    c.append(rows(1))
    plan.rates_by_operation = {"log.compare_and_set": {Fault.UNKNOWN_AFTER: 1.0}, "log.newer": {then: 1.0}}
    known = inside.shard(c)._machine.known().state
    inside.shard(c).state = lambda: known  # no look at the log before the commit
    with pytest.raises(OutcomeUnknown):
        c.append(rows(2))
    assert ids(place.lake().collection("c")) == {1: 1, 2: 1}


def test_an_append_with_times_that_is_tried_again_is_already_in():
    place = place_with_collection()
    timed = rows(1).append_column("_time", pa.array([4], pa.int64()))
    writer = place.lake().collection("c").writer("w")
    assert not writer.append(timed, sequence=3).already
    assert writer.append(timed, sequence=3).already
    again = place.lake().collection("c").writer("w")
    assert again.last_sequence == 3 and again.append(timed, sequence=3).already
    assert ids(place.lake().collection("c")) == {1: 1}


def test_an_append_without_rows_is_remembered_as_well():
    place = place_with_collection()
    writer = place.lake().collection("c").writer("w")
    nothing = rows().append_column("_time", pa.array([], pa.int64()))
    writer.append(nothing)
    writer.append(nothing, upper=tidelake.Frontier.of(3))
    assert place.lake().collection("c").writer("w").last_sequence == 1
    assert place.lake().collection("c").upper.elements == (3,)


def test_a_merge_result_is_not_refused_on_a_stale_state():
    place = place_with_collection()
    stale, fresh = place.lake().collection("c"), place.lake().collection("c")
    assert len(stale.state().spine) == 0
    for n in range(3):
        fresh.append(rows(n))
    inside.run(fresh, maintenance.collapse_levels)
    state = fresh.state()
    found = everything(state.spine, Policy.idle(inside.shard(fresh).spec.config))
    runs = [run for member in state.spine for run in member.batch.runs]
    needed = [Source.of(run, member.batch) for member in state.spine for run in member.batch.runs]
    (task,) = between(inside.shard(fresh).version().spec, needed, Fold(state.since), ())
    output = decode_run(run_merge_task(encode_record("task", task), place.stores.blobs))
    assert digest(runs) == found.inputs
    result = MergeResult(found.id, (), found.inputs, state.since, output)
    assert inside.run(stale, partial(maintenance.apply_merge, result=result)) is Fit.EXACT


def test_what_workers_upload_is_made_canonical():
    place = place_with_collection()
    lake = tidelake.open(f"memory://{id(place)}")
    c = lake.create("x", pa.schema([("k", pa.float64())]), key=["k"])
    batch = pa.record_batch(
        {"k": [0.0, -0.0], "_time": pa.array([0, 0], pa.int64()), "_diff": pa.array([1, -1], pa.int64())}
    ).cast(c.update_schema)
    assert c.distributed.uploader().upload([batch]) == b""


def test_following_a_collection_costs_no_earlier_read():
    place = place_with_collection()
    lake = place.lake()
    c = lake.collection("c")
    for n in range(3):
        c.append(rows(n))
    steps = c.listen(0, timeout_s=0)
    next(steps)
    lake.env.clock.ms += 10**5
    c.append(rows(3))
    next(steps)
    assert next(iter(c.state().holds.values())).since.elements[0] > 0
    steps.close()
    assert c.since.elements == (0,) and ids(c, 0) == {0: 1}


def test_any_error_after_the_commit_keeps_the_parts(monkeypatch):
    """Whatever is raised once the entry is in: the parts that the state names stay."""
    for error in (CorruptionError("log", "injected"), Closed("injected"), InternalError("injected")):
        place = place_with_collection()
        plan = FaultPlan()
        lake = place.lake(plan)
        c = lake.collection("c")
        c.append(rows(1))
        plan.rates_by_operation = {"log.compare_and_set": {Fault.UNKNOWN_AFTER: 1.0}}

        def failing(*_, error=error):
            raise error

        monkeypatch.setattr(inside.shard(c)._history, "_is_ours", failing)
        with pytest.raises(OutcomeUnknown):
            c.append(rows(2))
        assert ids(place.lake().collection("c")) == {1: 1, 2: 1}


@pytest.mark.promise(
    "A number of unknown outcome is not given to other rows",
    rule="`lake/arguments/numbers.py`",
    also=["::test_a_writer_that_was_interrupted_does_not_know_its_last_outcome_either"],
)
def test_a_writer_that_does_not_know_its_last_outcome_gives_the_number_to_no_other_rows():
    place = place_with_collection()
    plan = FaultPlan()
    c = place.lake(plan, Config(retry_deadline_s=0)).collection("c")
    writer = c.writer("w")
    writer.append(rows(1))
    known = inside.shard(c)._machine.known().state
    look, inside.shard(c).state = inside.shard(c).state, lambda: known
    plan.rates_by_operation = {
        "log.compare_and_set": {Fault.UNKNOWN_AFTER: 1.0},
        "log.newer": {Fault.UNAVAILABLE: 1.0},
    }
    with pytest.raises(OutcomeUnknown):
        writer.append(rows(2))
    plan.rates_by_operation, inside.shard(c).state = {}, look
    assert writer.append(rows(1), sequence=0).already  # says nothing about number 1
    with pytest.raises(UsageError, match=r"append 1 of writer 'w' is unknown: .* sequence=1"):
        writer.append(rows(3))
    assert writer.append(rows(2), sequence=1).already
    assert not writer.append(rows(3)).already
    assert ids(place.lake().collection("c")) == {1: 1, 2: 1, 3: 1}


def test_a_number_that_comes_again_with_other_rows_is_told_and_with_the_same_ones_is_in():
    c = place_with_collection().lake().collection("c")
    writer = c.writer("w")
    writer.append(rows(1, 2), sequence=0)
    assert writer.append(rows(2, 1), sequence=0).already
    with pytest.raises(UsageError, match=r"append 0 of writer 'w' is in, .* the upper after it was \[1\]"):
        writer.append(rows(1, 3), sequence=0)
    timed = rows(5).append_column("_time", pa.array([7]))
    writer.append(timed, sequence=1)
    assert writer.append(timed, sequence=1).already
    with pytest.raises(UsageError, match=r"the upper after it was \[8\]"):
        writer.append(rows(5).append_column("_time", pa.array([9])), sequence=1)
    c.evolve(pa.schema([*rows(1).schema, ("later", pa.int64())]))
    assert writer.append(timed, sequence=1).already
    with pytest.raises(UsageError, match="something else"):
        writer.compare_and_append(rows(6).append_column("_time", pa.array([8])), 8, 9, sequence=1)
    assert ids(c) == {1: 1, 2: 1, 5: 1}


def test_a_writer_that_was_interrupted_does_not_know_its_last_outcome_either(monkeypatch):
    place = place_with_collection()
    c = place.lake().collection("c")
    writer = c.writer("w")
    whole = inside.shard(c).carry_out

    def interrupted(command):
        whole(command)
        raise KeyboardInterrupt

    monkeypatch.setattr(inside.shard(c), "carry_out", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(rows(1))
    monkeypatch.undo()
    with pytest.raises(UsageError, match="append 0 of writer 'w' is unknown"):
        writer.append(rows(2))
    assert writer.append(rows(1), sequence=0).already
    assert ids(place.lake().collection("c")) == {1: 1}


def test_since_leaves_a_time_to_read():
    lake = place_with_collection().lake()
    pair = lake.create("pair", SCHEMA, key=["id"], time="tuple(2)")
    nothing = rows().append_column("_time_0", pa.array([], pa.int64()))
    nothing = nothing.append_column("_time_1", pa.array([], pa.int64()))
    pair.compare_and_append(nothing, [(0, 0)], [(2, 2)])
    for since in ([(2, 2)], [(3, 2)], []):
        with pytest.raises(UsageError, match="nothing could be read"):
            pair.advance_since(since)
    assert pair.advance_since([(1, 5)]).elements == ((1, 5),)
    assert pair.snapshot((1, 5)).read_all().num_rows == 0
    c = lake.collection("c")
    c.append(rows(1), upper=None)
    c.compare_and_append(rows().append_column("_time", pa.array([], pa.int64())), 1, [])
    with pytest.raises(UsageError, match="nothing could be read"):
        c.advance_since([])
    assert c.advance_since(7).elements == (7,) and ids(c, 7) == {1: 1}


def test_a_tidying_that_fails_does_not_take_the_place_of_the_answer():
    place = place_with_collection()
    plan = FaultPlan()
    c = place.lake(plan, Config(retry_deadline_s=0)).collection("c")
    place.lake().collection("c").append(rows(1))
    timed = rows(2).append_column("_time", pa.array([0], pa.int64()))
    plan.rates_by_operation = {"blob.delete": {Fault.UNAVAILABLE: 1.0}}
    inside.shard(c).preview = lambda command: None  # so that the conflict is met after the upload
    with pytest.raises(UpperMismatch):
        c.compare_and_append(timed, 0, 1)


@pytest.mark.promise(
    "Empty batches at the end neither make a merge fail nor make one due", rule="`state/spine/merging.py`"
)
def test_heartbeats_do_not_make_a_merge_fail_nor_worth_while():
    place = place_with_collection()
    c = place.lake().collection("c")
    nothing = rows().append_column("_time", pa.array([], pa.int64()))
    c.append(rows(1))
    c.append(rows(2))
    c.append(nothing, upper=10)

    def beside_a_heartbeat(tasks):
        outputs = Workers.here(inside.shard(c)).run(tasks)
        c.append(nothing, upper=20)
        return outputs

    assert c.merge(Workers(beside_a_heartbeat)).applied
    assert not c.merge().applied
    assert ids(c, 19) == {1: 1, 2: 1}


def test_uploads_given_twice_are_refused():
    lake = tidelake.open("memory://twice")
    c = lake.create("c", SCHEMA, key=["id"])
    full = rows(1).append_column("_time", pa.array([0], pa.int64()))
    full = full.append_column("_diff", pa.array([1], pa.int64())).cast(c.update_schema)
    upload = c.distributed.uploader().upload(full.to_batches())
    with pytest.raises(UsageError, match="twice"):
        c.distributed.append_uploaded([upload, upload], lower=0, upper=1)
    assert not c.distributed.append_uploaded([upload], lower=0, upper=1).already
    with pytest.raises(UpdateBeforeLower):
        c.distributed.uploader(lower=5).upload(full.to_batches())


@pytest.mark.promise(
    "A collection is closed for good only by an explicit empty frontier", rule="`shard/writing/append.py`"
)
def test_the_last_time_closes_the_collection_only_if_it_is_said():
    c = place_with_collection().lake().collection("c")
    last = rows(1).append_column("_time", pa.array([2**63 - 1], pa.int64()))
    with pytest.raises(UsageError, match=r"closes the collection for good: give upper=\[\]"):
        c.append(last)
    c.append(last, upper=[])
    assert c.upper.closed and ids(c, 2**63 - 1) == {1: 1}
    with pytest.raises(UpperMismatch, match="for good"):
        c.append(rows(2))


@pytest.mark.promise("A read does not wait for a commit", rule="`Machine.refresh`")
def test_a_read_is_not_kept_waiting_by_a_slow_commit():
    place = place_with_collection()
    c = place.lake().collection("c")
    c.append(rows(1))
    inside, go_on = threading.Event(), threading.Event()
    whole = place.stores.log.compare_and_set

    def slow(*args):
        inside.set()
        assert go_on.wait(30)
        return whole(*args)

    place.stores.log.compare_and_set = slow
    thread = threading.Thread(target=c.append, args=(rows(2),))
    thread.start()
    assert inside.wait(30)
    assert ids(c, 0) == {1: 1}
    go_on.set()
    thread.join()
    assert ids(c) == {1: 1, 2: 1}


@pytest.mark.promise("Many runs are read in bounded memory", rule="`_divided` in `shard/runs/read.py`")
@pytest.mark.full
def test_many_small_runs_are_read_in_bounded_memory():
    """Only so many rows are folded in memory; the other runs are streams of one row group each."""
    config = Config(fold_rows=1000, row_group_rows=64, merge_chunk_rows=1024)
    place = Place()
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    for n in range(40):
        c.append(rows(*range(n, 160_000, 40)))
    reader = c.snapshot()
    before = pa.total_allocated_bytes()
    first = reader.read_next_batch()
    held = pa.total_allocated_bytes() - before
    rest = reader.read_all()
    assert first.num_rows + rest.num_rows == 160_000
    assert held < rest.nbytes / 4


def test_an_append_at_commit_that_meets_a_conflict_gets_its_time_without_another_upload():
    place = place_with_collection()
    c, other = place.lake().collection("c"), place.lake().collection("c")
    stale = c.state()
    for n in range(3):
        other.append(rows(n))
    look, inside.shard(c).state = inside.shard(c).state, lambda: stale
    answer = c.append(rows(7, 8))
    inside.shard(c).state = look
    assert (answer.lower.elements, answer.upper.elements) == ((3,), (4,))
    assert [r["_time"] for r in c.updates(3, 4).read_all().to_pylist()] == [3, 3]
    assert ids(c, 2) == {0: 1, 1: 1, 2: 1} and ids(c, 3) == {0: 1, 1: 1, 2: 1, 7: 1, 8: 1}
    assert c.merge().applied
    assert [r["_time"] for r in c.updates(0, 4).read_all().to_pylist()] == [0, 1, 2, 3, 3]


def test_wide_rows_are_streamed_rather_than_folded(monkeypatch):
    from tidelake.shard.runs import read

    monkeypatch.setattr(read, "_FOLD_BYTES_MAX", 4096)
    c = place_with_collection().lake().collection("c")
    for n in range(6):
        c.append(rows(n, 10, v="x" * 1500))
    assert ids(c) == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 10: 6}
    assert c.merge().applied and ids(c)[10] == 6


@pytest.mark.promise(
    "Sums are exact in any order; only a result outside int64 is an error",
    rule="`data/kernel/sums.py`, `shard/runs/read.py`",
)
@pytest.mark.parametrize("fold_rows", [1, 2, 3, 4, 5, 262_144])
def test_a_sum_that_fits_is_read_whatever_is_summed_first(fold_rows):
    most = 2**63 - 1
    c = Place().lake(config=Config(fold_rows=fold_rows)).create("c", SCHEMA, key=["id"])
    for diff in (most, most, -most, -most, 5):
        c.append(rows(1).append_column("_diff", pa.array([diff], pa.int64())))
    assert ids(c) == {1: 5}
    with pytest.raises(InvalidUpdates, match=str(2 * most)):
        c.snapshot(1).read_all()
    assert c.merge().applied and ids(c) == {1: 5}


def test_compare_and_append_conflicts_carry_the_current_upper():
    place = place_with_collection()
    c = place.lake().collection("c")
    c.append(rows(1))
    with pytest.raises(UpperMismatch) as caught:
        c.compare_and_append(rows(2).append_column("_time", pa.array([0], pa.int64())), 0, 1)
    assert caught.value.current.elements == (1,)
