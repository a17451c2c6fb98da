"""Staging, sealing and draining, case by case: what others do meanwhile, what fails, and what it costs."""

import threading
from itertools import pairwise

import pyarrow as pa
import pytest
from collecting import before
from keeping import AGE_S, STORED, Kept
from shards import Place, stored

import inside
import tidelake
from tables import SCHEMA, ids, rows
from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from tidelake.config import Config
from tidelake.errors import (
    CorruptionError,
    HistoryCompacted,
    InvalidUpdates,
    NotYetClosed,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.state.core.backlog import Limits
from tiers import some

# Nothing is drained or merged but by maintenance, and every part is an object.
QUIET = Config(inline_part_bytes=0, merge_budget_s=0)
CALLS = ("log.head", "log.newer", "log.compare_and_set", "blob.get", "blob.put", "blob.list", "blob.open")
INT64_MAX = 2**63 - 1


def at(times, v="x", diff=1):
    """A row at each time, whose id is the time."""
    return pa.table(
        {
            "id": pa.array(times, pa.int64()),
            "v": pa.array([v] * len(times), pa.string()),
            "_time": pa.array(times, pa.int64()),
            "_diff": pa.array([diff] * len(times), pa.int64()),
        }
    )


def pairs_at(times):
    return pa.table(
        {
            "id": pa.array([a * 100 + b for a, b in times], pa.int64()),
            "v": pa.array(["x"] * len(times), pa.string()),
            "_time_0": pa.array([a for a, _ in times], pa.int64()),
            "_time_1": pa.array([b for _, b in times], pa.int64()),
        }
    )


def made(place, config=QUIET, **more):
    return place.lake(config=config).create("c", SCHEMA, key=["id"], **more)


def another(place, config=QUIET, **more):
    return place.lake(config=config, **more).collection("c")


def named(c):
    return {part.name for part in c.state().parts() if part.inline is None}


def waiting(place, config=QUIET, **more):
    """A collection with times up to 5 closed, of which what is staged is not drained yet."""
    c = made(place, config, **more)
    c.append(rows(100, 101))
    c.stage(at([1, 3, 7]))
    c.stage(at([2, 4]))
    c.stage(at([3, 9], v="y"))
    c.seal(5)
    state = c.state()
    assert state.drained != state.upper
    return c


WAITING = {100: 1, 101: 1, 1: 1, 2: 1, 4: 1}


def row(ids_, values):
    return pa.table({"id": pa.array(ids_, pa.int64()), "v": pa.array(values, pa.string())})


def contents(c, as_of=None, **more):
    answer = c.snapshot(as_of, **more).read_all()
    columns = [answer[name].to_pylist() for name in ("id", "v", "_diff")]
    return sorted(zip(*columns, strict=True))


FOUR = sorted([(100, "x", 1), (101, "x", 1), *((n, "x", 1) for n in (1, 2, 3, 4)), (3, "y", 1)])


# --- What is seen ---


def test_what_is_staged_is_seen_when_its_time_is_closed_and_before_that_on_request():
    c = made(Place())
    assert c.stage(at([3, 1, 8])) is True
    assert c.upper == Frontier.of(0)
    with pytest.raises(NotYetClosed):
        c.snapshot(timeout_s=0)
    assert [row[0] for row in contents(c, 5, staged=True)] == [1, 3]
    assert [row[0] for row in contents(c, staged=True)] == [1, 3, 8]
    assert c.changes(1, 9, staged=True).read_all()["id"].to_pylist() == [3, 8]
    assert c.updates(2, 9, staged=True).read_all()["_time"].to_pylist() == [3, 8]
    assert c.lookup(pa.table({"id": [3, 4]}), 3, staged=True)["id"].to_pylist() == [3]
    c.seal(4)
    assert [row[0] for row in contents(c)] == [1, 3]
    assert contents(c, 3) == contents(c, 3, staged=True)
    with pytest.raises(NotYetClosed):
        c.snapshot(8, timeout_s=0)


def test_without_anything_staged_the_last_closed_time_is_read():
    c = made(Place())
    with pytest.raises(NotYetClosed):
        c.snapshot(staged=True)
    c.append(rows(1))
    assert contents(c, staged=True) == [(1, "x", 1)]


def test_a_staged_row_is_taken_back_by_its_opposite():
    c = made(Place())
    c.stage(at([3]))
    c.stage(at([3], diff=-1))
    assert contents(c, 3, staged=True) == []
    c.seal(4)
    assert contents(c) == []


@pytest.mark.promise(
    "A call with a closed time is refused as a whole, and the error names the first closed time; "
    "nothing is stored",
    rule="`staging.place`, `check_times`",
    also=[
        "::test_a_time_that_is_closed_between_the_look_and_the_commit_refuses_the_call_and_deletes_its_parts"
    ],
)
def test_a_closed_time_refuses_the_whole_call_and_names_the_first():
    place = Place()
    c = made(place)
    c.seal(5)
    blobs = stored(place, c)
    with pytest.raises(UpdateBeforeLower) as refused:
        c.stage(at([9, 4, 2]))
    assert refused.value.time == 2 and refused.value.lower == Frontier.of(5)
    assert not len(c.state().staged) and stored(place, c) == blobs


def test_a_time_that_is_closed_between_the_look_and_the_commit_refuses_the_call_and_deletes_its_parts():
    for times, domain in (([6, 4], None), ([(6, 0), (0, 4)], "tuple(2)")):
        place = Place()
        c = made(place, **({"time": domain} if domain else {}))
        other = another(place)
        table = pairs_at(times) if domain else at(times)
        upper = [(5, 0), (0, 9)] if domain else 5
        sealing = before(place.stores.blobs, "put", lambda other=other, upper=upper: other.seal(upper))
        with sealing, pytest.raises(UpdateBeforeLower) as refused:
            c.stage(table)
        assert refused.value.time == times[1]
        assert not len(c.state().staged) and not stored(place, c)


def test_tuples_that_stay_open_are_kept_though_others_closed_times_between_look_and_commit():
    place = Place()
    c = made(place, time="tuple(2)")
    other = another(place)
    with before(place.stores.blobs, "put", lambda: other.seal([(3, 0), (0, 3)])):
        assert c.stage(pairs_at([(4, 0), (0, 5)])) is True
    assert c.snapshot((9, 9), staged=True).read_all()["id"].to_pylist() == [5, 400]


def test_a_collection_that_is_closed_for_good_takes_nothing():
    c = made(Place())
    c.seal([])
    with pytest.raises(UpperMismatch, match="closed for good"):
        c.stage(at([3]))


def test_a_table_without_times_is_refused():
    with pytest.raises(InvalidUpdates, match="_time"):
        made(Place()).stage(rows(1))


def test_nothing_is_kept_of_no_rows():
    c = made(Place())
    before = c.state()
    assert c.stage(at([])) is False and c.state() == before


@pytest.mark.promise(
    "A seal never goes back; times without updates cost no part; batches wholly below it are not read",
    rule="`staging.closing`",
    also=["state/test_staging_properties.py::test_batches_wholly_below_a_seal_come_into_the_spine_with_it"],
)
def test_a_seal_never_goes_back_and_empty_times_cost_no_part():
    place = Place()
    c = made(place)
    c.stage(at([7]))
    blobs = stored(place, c)
    assert not c.seal(5).already and stored(place, c) == blobs
    seqno = c.state().seqno
    assert c.seal(3).already and c.seal(5).already
    assert c.state().seqno == seqno and c.upper == Frontier.of(5)
    assert not c.state().spine.totals.runs


# --- Between a seal and its drain ---


@pytest.mark.promise(
    "Reads are exact between a seal and its drain, while others drain, merge and collect",
    rule="`ShardState.batches`",
    also=["::test_a_read_goes_on_while_others_drain_merge_and_collect", "shard/test_against_oracle.py"],
)
@pytest.mark.parametrize("as_of", [0, 1, 2, 3, 4])
def test_reads_between_a_seal_and_its_drain_are_exact(as_of):
    c = waiting(Place())
    wanted = [row for row in FOUR if row[0] <= as_of or row[0] >= 100]
    assert contents(c, as_of) == wanted
    c.maintain()
    assert c.state().drained == c.state().upper and contents(c, as_of) == wanted
    assert [row[0] for row in contents(c, 9, staged=True)][-4:] == [7, 9, 100, 101]


def test_an_append_while_closed_times_are_not_drained_goes_beside_them():
    c = waiting(Place())
    c.append(at([6]), upper=8)
    assert c.state().drained == Frontier.of(1)
    assert [row[0] for row in contents(c, 7)] == [1, 2, 3, 3, 4, 6, 7, 100, 101]
    c.maintain()
    assert c.state().drained == Frontier.of(8)
    assert [row[0] for row in contents(c, 7)] == [1, 2, 3, 3, 4, 6, 7, 100, 101]


def test_an_append_of_what_others_wrote_too_is_narrowed_beside_what_is_staged():
    c = waiting(Place())
    # Times 3 and 4 are closed: they are in, as far as this writer knows.
    c.append(at([3, 4, 6], v="z"), lower=0, upper=7)
    assert [row for row in contents(c, 6) if row[1] == "z"] == [(6, "z", 1)]
    c.maintain()
    assert [row for row in contents(c, 6) if row[1] == "z"] == [(6, "z", 1)]
    assert c.state().drained == Frontier.of(7)


def test_a_read_goes_on_while_others_drain_merge_and_collect():
    place = Kept()
    lake, c = place.made()
    c.stage(at(list(range(1_000, 1_200))))
    c.seal(1_100)
    reader = c.reader("slow")
    answer = reader.snapshot()
    first = answer.read_next_batch()
    other = place.process().collection("c")
    other.maintain()
    other.merge()
    place.pass_s(2 * AGE_S, lake)
    place.collect(other)
    found = first["id"].to_pylist() + [n for batch in answer for n in batch["id"].to_pylist()]
    assert found == sorted([*range(480), *range(1_000, 1_100)])
    reader.close()


@pytest.mark.promise(
    "Parts stay while they are staged, and afterwards while a pin needs them",
    rule="`Staged.added`",
    also=[
        "state/test_staging_properties.py::test_a_part_that_moves_into_the_spine_keeps_the_seqno_since_which_it_is_read"
    ],
)
def test_parts_are_kept_while_they_are_staged_and_while_a_pin_reads_them_after_a_drain():
    place = Kept()
    lake, c = place.made(appends=1)
    c.stage(at([1_000, 2_000]))
    (staged,) = [part.name for one in c.state().staged for part in one.batch.parts()]
    place.pass_s(2 * AGE_S, lake)
    assert staged not in place.collect(c) and staged in {*stored(place, c)}
    reader = c.reader("looks ahead")
    answer = reader.snapshot(5_000, staged=True)
    c.seal(3_000)
    c.merge()
    assert staged in c.state().garbage
    place.pass_s(2 * AGE_S, lake)
    assert staged not in place.collect(c)
    assert answer.read_all()["id"].to_pylist()[-2:] == [1_000, 2_000]
    reader.close()
    place.pass_s(2 * AGE_S, lake)
    assert staged in place.collect(c)


@pytest.mark.promise(
    "One of two drainers wins, and the other leaves nothing behind",
    rule="`staging.drain`",
    also=["state/test_staging_properties.py::test_a_drain_of_batches_that_are_gone_changes_nothing"],
)
def test_two_drainers_at_once_leave_one_result():
    place = Place()
    c = waiting(place)
    other = another(place)
    with before(place.stores.log, "compare_and_set", lambda: Drainer(inside.shard(other)).run()):
        Drainer(inside.shard(c)).run()
    assert contents(c, 4) == FOUR
    assert c.state().drained == c.state().upper
    garbage = {*c.state().garbage}
    assert stored(place, c) == named(c) | garbage


def test_a_seal_while_a_drainer_reads_is_drained_with_it():
    place = Place()
    c = waiting(place)
    other = another(place)
    with before(place.stores.log, "compare_and_set", lambda: other.seal(6)):
        Drainer(inside.shard(c)).run()
    state = c.state()
    assert state.drained == state.upper == Frontier.of(6)


def test_two_threads_stage_while_a_third_seals_and_a_fourth_drains():
    place = Place()
    made(place)
    done, taken = threading.Event(), []

    def stages(base):
        c = another(place)
        for n in range(40):
            time = base + 2 * n
            try:
                c.stage(at([time, time + 300]))
                taken.extend([time, time + 300])
            except UpdateBeforeLower:
                continue

    def seals():
        c = another(place)
        for time in range(0, 80, 4):
            c.seal(time)

    def drains():
        c = another(place)
        while not done.is_set():
            c.maintain()

    workers = [threading.Thread(target=work) for work in (lambda: stages(0), lambda: stages(1), seals)]
    drainer = threading.Thread(target=drains)
    for one in (*workers, drainer):
        one.start()
    for one in workers:
        one.join()
    done.set()
    drainer.join()
    c = another(place)
    assert [row[0] for row in contents(c, 999, staged=True)] == sorted(taken)
    c.seal(1_000)
    c.maintain()
    assert [row[0] for row in contents(c, 999)] == sorted(taken)
    assert c.state().drained == Frontier.of(1_000) and not len(c.state().staged)


def test_sums_that_do_not_fit_do_not_stop_a_stage_that_puts_them_right():
    c = made(Place(), Config(runs_max=4, inline_part_bytes=0, merge_budget_s=0))
    for diff in (INT64_MAX, -INT64_MAX):
        for _ in range(20):
            assert c.stage(at([3, 8], diff=diff))
    c.seal(5)
    c.maintain()
    assert contents(c) == [] and c.state().drained == c.upper == Frontier.of(5)
    c.seal(9)
    c.maintain()
    assert contents(c) == []


def test_uploads_whose_sums_do_not_fit_are_drained_apart(tmp_path):
    lake = tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0, merge_budget_s=0))
    c = lake.create("c", SCHEMA, key=["id"])
    uploader = c.distributed.uploader()
    # One staged batch of three runs.
    assert c.distributed.stage_uploaded(
        [uploader.upload(at([3, 8], diff=INT64_MAX).to_batches()) for _ in range(3)]
    )
    c.stage(at([3], diff=INT64_MAX))
    c.seal(5)
    with pytest.raises(InvalidUpdates, match="sum to"):
        c.maintain()
    assert c.state().drained == Frontier.of(5)
    c.append(at([5], diff=-1), upper=6)
    with pytest.raises(InvalidUpdates, match="sum to"):
        c.snapshot(3).read_all()
    assert c.updates(5, 6).read_all()["_diff"].to_pylist() == [-1]
    lake.close()


def test_sums_that_do_not_fit_are_drained_apart():
    place = Place()
    c = made(place)
    for _ in range(2):
        c.stage(at([1, 9], diff=INT64_MAX))
    c.seal(5)
    with pytest.raises(InvalidUpdates, match="sum to"):
        c.maintain()
    state = c.state()
    assert state.drained == state.upper and state.spine.totals.runs == 2
    with pytest.raises(InvalidUpdates):
        c.snapshot(1).read_all()


def test_a_batch_that_is_damaged_keeps_no_merge_of_others_waiting():
    place = Place()
    c = made(place)
    for n in range(4):
        c.append(rows(n))
    c.stage(at([5, 9]))
    c.seal(7)
    (mixed,) = c.state().staged
    blobs = place.stores.blobs._blobs
    whole = blobs[mixed.name]
    blobs[mixed.name] = (b"x" * len(whole[0]), whole[1])
    with pytest.raises(CorruptionError):
        c.maintain()
    assert c.state().drained != c.state().upper and c.state().spine.totals.runs == 1
    blobs[mixed.name] = whole
    c.maintain()
    assert [row[0] for row in contents(c, 6)] == [0, 1, 2, 3, 5]


# --- Faults ---


@pytest.mark.promise(
    "The next maintenance finishes what a crash at any call left", rule="`shard/upkeep/drainer.py`"
)
@pytest.mark.parametrize("act", some(["seal", "stage", "drain"], 3))
def test_a_crash_at_any_call_loses_and_doubles_nothing_and_the_next_maintenance_finishes(act):
    for call in range(100):
        place = Place()
        waiting(place)
        plan = FaultPlan(script=[Fault.NONE] * call + [Fault.CRASH_AFTER])
        try:
            c = another(place, faults=plan)
            match act:
                case "stage":
                    c.writer("w").stage(at([8, 11], v="new"), sequence=0)
                case "seal":
                    c.seal(8)
                case _:
                    c.maintain()
            break
        except SimulatedCrash:
            after = another(place)
            if act == "stage":
                # Told again, it is in once.
                after.writer("w").stage(at([8, 11], v="new"), sequence=0)
            after.seal(8)
            after.maintain()
            state = after.state()
            assert state.drained == state.upper == Frontier.of(8)
            new = [(8, "new", 1), (11, "new", 1)] if act == "stage" else []
            wanted = sorted([*FOUR, (7, "x", 1), (9, "y", 1), *new])
            assert contents(after, 20, staged=True) == wanted
            assert after_fsck(place) == ()
    else:
        raise AssertionError("it never came to its end")
    assert call > 3


def after_fsck(place):
    return place.lake(config=QUIET).fsck(["c"]).left


def test_a_stage_whose_reply_was_lost_is_in_once():
    for fault in (Fault.UNKNOWN_AFTER, Fault.UNKNOWN_BEFORE, Fault.UNAVAILABLE):
        for call in range(12):
            place = Place()
            made(place)
            c = another(place, faults=FaultPlan(script=[Fault.NONE] * call + [fault]))
            c.stage(at([3, 4]))
            assert contents(another(place), 9, staged=True) == [(3, "x", 1), (4, "x", 1)]


def test_an_upload_that_was_given_up_is_made_once_more():
    place = Kept()
    _, c = place.made(appends=1)
    other_lake_ = place.process()
    other = other_lake_.collection("c")

    def age():
        # Another process gives up all uploads that began before now.
        for _ in range(3):
            other.append(rows(5_000))
            place.pass_s(2 * STORED.upload_age_s)
            other.collect(thorough=True)

    with before(place.stores.log, "compare_and_set", age):
        assert c.stage(at([9_000])) is True
    assert c.state().sweep.floor > 0
    assert contents(c, 9_000, staged=True)[-1] == (9_000, "x", 1)
    assert named(c) <= stored(place, c)


def test_inline_parts_that_fill_the_state_are_stored():
    config = Config(inline_total_bytes=6_000, merge_budget_s=0)
    place = Place()
    c = made(place, config)
    for n in range(20):
        c.stage(at([n * 10 + 5, 1_000]))
        totals = c.state().staged.totals
        assert totals.inline_bytes < 6_000
    for n in range(20):
        c.append(at([n]))
    assert c.state().staged.totals.inline_bytes + c.state().spine.totals.inline_bytes < 6_000
    assert [row[0] for row in contents(c, staged=True)].count(1_000) == 1


# --- History ---


def test_since_may_pass_the_seal():
    c = made(Place())
    c.stage(at([1, 5]))
    hold = c.critical_hold("ahead", "t", since=0)
    c.seal(2)
    assert c.advance_since(1) == Frontier.of(0)
    hold.drop()
    c.advance_since(1)
    c.stage(at([7]))
    c.seal(8)
    c.maintain()
    assert [row[0] for row in contents(c, 7)] == [1, 5, 7]
    with pytest.raises(HistoryCompacted):
        c.snapshot(0)


def test_retention_follows_the_seal():
    c = made(Place())
    c.retain(3) if hasattr(c, "retain") else c.set_retention(3)
    c.stage(at([1, 5, 9]))
    c.seal(8)
    assert c.since == Frontier.of(5)
    c.maintain()
    assert [row[0] for row in contents(c, 7)] == [1, 5]
    with pytest.raises(HistoryCompacted):
        c.snapshot(4)


def test_a_listener_gets_every_staged_update_once_when_its_time_is_closed():
    c = made(Place())
    c.append(rows(0))
    seen = []
    c.stage(at([2, 6]))
    listener = c.listen(0, timeout_s=0)
    c.seal(4)
    step = next(listener)
    seen += step.updates.read_all()["_time"].to_pylist()
    assert (step.lower, step.upper) == (Frontier.of(1), Frontier.of(4))
    c.stage(at([5, 4]))
    c.maintain()
    c.seal(9)
    seen += [time for step in listener for time in step.updates.read_all()["_time"].to_pylist()]
    assert sorted(seen) == [2, 4, 5, 6]


@pytest.mark.parametrize("drained", [False, True])
def test_the_steps_of_a_tail_tile_what_was_staged(drained):
    c = made(Place())
    for n in range(6):
        c.stage(at([n, n + 10, 30]))
    c.seal(20)
    if drained:
        c.maintain()
    tail = c.tail()
    ends = [tail.begin(Frontier.of(0))]
    while ends[-1] != Frontier.of(20):
        ends.append(tail.step(ends[-1], Limits(rows=3)))
        assert ends[-1] != ends[-2]
    found = [c.updates(a, b).read_all()["_time"].to_pylist() for a, b in pairwise(ends)]
    assert sorted(t for step in found for t in step) == [*range(6), *range(10, 16)]
    assert all(len(step) <= 3 for step in found)
    tail.stop()


# --- Costs ---


def cost_of(lake, act):
    before_ = dict(lake.counts)
    act()
    cost = {name: lake.counts[name] - before_.get(name, 0) for name in CALLS}
    return {name: count for name, count in cost.items() if count}


@pytest.mark.promise(
    "A stage conflicts with no other write; it costs one commit and one upload",
    rule="`OpenTimes` in `state/write/write.py`",
    also=[
        "::test_two_threads_stage_while_a_third_seals_and_a_fourth_drains",
        "benchmarks/test_bench_staging.py::test_a_stage_uploads_once_and_alone_it_commits_once",
    ],
)
def test_a_stage_costs_one_scan_one_put_and_one_log_write():
    place = Place()
    lake = place.lake(config=QUIET)
    c = lake.create("c", SCHEMA, key=["id"])
    assert cost_of(lake, lambda: c.stage(at([3]))) == {
        "log.newer": 1,
        "blob.put": 1,
        "log.compare_and_set": 1,
    }
    assert cost_of(lake, lambda: c.seal(2)) == {"log.compare_and_set": 1}
    assert cost_of(lake, lambda: c.seal(9)) == {"log.compare_and_set": 1}
    writer = c.writer("w")
    known = cost_of(lake, lambda: writer.stage(at([9]), sequence=0))
    assert known == {"log.newer": 1, "blob.put": 1, "log.compare_and_set": 1}


def test_a_tiny_stage_puts_nothing_and_a_token_costs_one_scan_and_one_log_write_more():
    place = Place()
    lake = place.lake(config=Config(merge_budget_s=0))
    c = lake.create("c", SCHEMA, key=["id"])
    assert cost_of(lake, lambda: c.stage(at([3]))) == {"log.newer": 1, "log.compare_and_set": 1}
    assert cost_of(lake, lambda: c.stage(at([3]), token="t")) == {"log.newer": 2, "log.compare_and_set": 2}
    assert cost_of(lake, lambda: c.stage(at([3]), token="t")) == {"log.newer": 1}
    assert contents(c, 3, staged=True) == [(3, "x", 2)]


@pytest.mark.promise(
    "A token or a number stages once, across crashes, seals and drains",
    rule="`answer_of_record`",
    also=["::test_a_stage_whose_reply_was_lost_is_in_once"],
)
def test_a_token_lasts_over_processes_seals_and_drains():
    place = Place()
    c = made(place)
    assert c.stage(at([3, 9]), token="t") is True
    c.seal(5)
    c.maintain()
    assert another(place).stage(at([3, 9]), token="t") is False
    assert contents(c, 9, staged=True) == [(3, "x", 1), (9, "x", 1)]
    for token in ("", "x" * 300, "a\nb"):
        with pytest.raises(UsageError):
            c.stage(at([9]), token=token)


@pytest.mark.promise(
    "Backpressure bounds the staged runs, and each row is rewritten only a few times",
    rule="`Drainer.make_room`, `admit`",
    also=[
        "::test_appends_that_pile_up_beside_what_is_not_drained_drain_it",
        "::test_inline_parts_that_fill_the_state_are_stored",
    ],
)
def test_a_stager_that_outruns_all_others_brings_staged_batches_together():
    config = Config(runs_max=8, inline_part_bytes=0, merge_budget_s=0)
    place = Place()
    lake = place.lake(config=config)
    c = lake.create("c", SCHEMA, key=["id"])
    puts = lake.counts["blob.put"]
    for n in range(200):
        c.stage(at([n]))
        assert c.state().staged.totals.runs <= 2 * config.runs_max
    assert [row[0] for row in contents(c, staged=True)] == list(range(200))
    assert lake.counts["staged.gathered"] > 0
    # Each row is written again a few times only: as many puts as it takes, not one for each pair.
    assert lake.counts["blob.put"] - puts < 3 * 200
    written = c.state().written
    assert written.merged_rows <= 8 * written.appended_rows
    c.seal(200)
    c.maintain()
    assert ids(c) == dict.fromkeys(range(200), 1)


def test_appends_that_pile_up_beside_what_is_not_drained_drain_it():
    config = Config(runs_max=8, inline_part_bytes=0, merge_budget_s=0)
    c = waiting(Place(), config)
    for n in range(5, 60):
        c.append(at([n], v="z"))
        assert c.state().staged.totals.runs <= config.runs_max + 1
    assert [row[0] for row in contents(c) if row[1] == "z"] == list(range(5, 60))


# --- Writes that depend on contents ---


@pytest.mark.promise(
    "An upsert or replacement sees everything that is staged for its times, at each of them, also "
    "while it runs; uploads that cannot are refused",
    rule="`resolve_among` in `data/ingest/upsert.py`, `staging.unseen`",
    also=[
        "::test_an_upsert_looks_again_if_more_is_staged_for_its_times_meanwhile",
        "::test_events_of_several_times_meet_what_is_staged_at_each_of_them",
        "::test_events_of_several_times_look_again_if_more_is_staged_between_them_meanwhile",
        "data/test_upsert_events.py::test_events_meet_the_rows_that_come_and_go_between_them",
        "lake/api/test_upserts.py::test_events_of_one_time_meet_what_is_staged_for_it_wherever_the_time_stands",
        "lake/api/test_upserts.py::test_uploads_of_several_times_around_what_is_staged_are_refused_with_the_remedy",
    ],
)
def test_an_upsert_sees_what_is_staged_up_to_its_time():
    c = made(Place())
    c.append(rows(1, v="old"))
    c.stage(at([2], v="staged"))
    c.upsert(row([2], ["new"]), time=2)
    assert [row for row in contents(c, 2) if row[0] == 2] == [(2, "new", 1)]
    c.stage(at([7], v="staged"))
    c.replace(row([9], ["all"]), time=8)
    assert contents(c, 8) == [(9, "all", 1)]


def test_an_upsert_looks_again_if_more_is_staged_for_its_times_meanwhile():
    for write in ("upsert", "replace"):
        place = Place()
        c = made(place)
        c.append(rows(1, v="old"))
        other = another(place)
        with before(
            place.stores.log, "compare_and_set", lambda other=other: other.stage(at([3], v="staged"))
        ):
            getattr(c, write)(row([3], ["new"]), time=5)
        assert [row for row in contents(c, 5) if row[0] == 3] == [(3, "new", 1)]


def test_an_upsert_is_not_disturbed_by_what_is_staged_for_later_times():
    place = Place()
    lake = place.lake(config=QUIET)
    c = lake.create("c", SCHEMA, key=["id"])
    other = another(place)
    with before(place.stores.log, "compare_and_set", lambda: other.stage(at([9]))):
        c.upsert(row([9], ["new"]), time=5)
    assert not lake.counts["append.again"]
    assert contents(c, 9, staged=True) == [(9, "new", 1), (9, "x", 1)]


def test_events_of_several_times_meet_what_is_staged_at_each_of_them():
    c = made(Place())
    c.append(rows(1, v="old"))
    c.stage(at([3, 4, 9], v="staged"))
    events = row([3, 3, 4, 1], ["a", "b", "c", "d"])
    c.upsert(events.append_column("_time", pa.array([2, 5, 5, 4])))
    assert contents(c, 2) == [(1, "old", 1), (3, "a", 1)]
    assert contents(c, 3) == [(1, "old", 1), (3, "a", 1), (3, "staged", 1)]
    assert contents(c, 4) == [(1, "d", 1), (3, "a", 1), (3, "staged", 1), (4, "staged", 1)]
    assert contents(c, 5) == [(1, "d", 1), (3, "b", 1), (4, "c", 1)]
    # Events at one time, and staged updates behind them.
    c.upsert(row([9], ["e"]).append_column("_time", pa.array([7])))
    assert [one for one in contents(c, 9, staged=True) if one[0] == 9] == [(9, "e", 1), (9, "staged", 1)]


def test_events_of_several_times_look_again_if_more_is_staged_between_them_meanwhile():
    place = Place()
    c = made(place)
    c.append(rows(1, v="old"))
    c.stage(at([8]))
    other = another(place)
    with before(place.stores.log, "compare_and_set", lambda: other.stage(at([3], v="staged"))):
        c.upsert(row([3, 3], ["a", "b"]).append_column("_time", pa.array([2, 5])))
    assert [one for one in contents(c, 3) if one[0] == 3] == [(3, "a", 1), (3, "staged", 1)]
    assert [one for one in contents(c, 5) if one[0] == 3] == [(3, "b", 1)]


def test_uploads_of_other_processes_are_staged():
    place = Place()
    lake = place.lake(config=QUIET)
    c = lake.create("c", SCHEMA, key=["id"])
    batch = c.builder(0)
    batch.add(at([3, 9]))
    sent = batch.finish(Frontier()).to_bytes()
    assert cost_of(lake, lambda: c.distributed.stage_uploaded([sent, b""]))["log.compare_and_set"] == 1
    assert [row[0] for row in contents(c, staged=True)] == [3, 9]
    c.seal(5)
    late = c.builder(0)
    late.add(at([4, 12]))
    with pytest.raises(UpdateBeforeLower):
        c.distributed.stage_uploaded([late.finish(Frontier()).to_bytes()])


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_read_of_the_last_time_finds_a_later_one_if_others_move_on_beside_it(staged, number):
    place = Place()
    c = made(place)
    c.append(at([0]), upper=3)
    other = another(place)

    def move_on():
        other.append(at([8]), upper=10)
        other.advance_since(9)

    with before(place.stores.log, "scan", move_on, number):
        found = c.snapshot(staged=staged).read_all()["id"].to_pylist()
    assert found in ([0], [0, 8])


def test_a_reader_pins_what_was_staged_when_it_looked():
    c = made(Place(), config=Config())
    c.append(rows(0))
    with c.reader("ahead") as reader:
        c.stage(at([3]))
        assert reader.snapshot(staged=True).read_all()["id"].to_pylist() == [0, 3]
        assert reader.snapshot(5, staged=True).read_all()["id"].to_pylist() == [0, 3]
        assert reader.changes(0, 5, staged=True).read_all()["id"].to_pylist() == [3]
        assert reader.updates(0, 9, staged=True).read_all()["id"].to_pylist() == [0, 3]
        assert reader.snapshot(0).read_all()["id"].to_pylist() == [0]
        assert reader.snapshot().read_all()["id"].to_pylist() == [0]


@pytest.mark.promise(
    "A reader sees the staged updates of one state, until it goes on to another state",
    rule="`Reader._knowing`",
)
def test_a_reader_that_reads_what_is_staged_twice_gets_the_same():
    place = Place()
    c = made(place, config=Config())
    c.append(rows(0))
    with c.reader("ahead") as reader:
        c.stage(at([3]))

        def seen():
            return (
                reader.snapshot(5, staged=True).read_all().to_pydict(),
                reader.snapshot(staged=True).read_all().to_pydict(),
                reader.changes(0, 5, staged=True).read_all().to_pydict(),
                reader.updates(0, 9, staged=True).read_all().to_pydict(),
            )

        before = seen()
        assert before[0]["id"] == [0, 3]
        c.stage(at([4]))
        another(place).stage(at([3, 8]))
        assert seen() == before
        # It goes on to a time that was closed since, and to what is staged when it asks anew.
        c.seal(4)
        assert reader.snapshot(3).read_all()["id"].to_pylist() == [0, 3]
        after = seen()
        assert after[0]["id"] == [0, 3, 4] and after[1]["id"] == [0, 3, 4, 8]
        c.stage(at([5]))
        assert seen() == after
        reader.downgrade(0)
        assert reader.snapshot(5, staged=True).read_all()["id"].to_pylist() == [0, 3, 4, 5]
    c.stage(at([6]))
    with c.reader("another") as reader:
        c.stage(at([7]))
        first = reader.snapshot(staged=True).read_all()
        c.stage(at([9]))
        assert first["id"].to_pylist()[-1] == 8
        assert reader.snapshot(staged=True).read_all() == first
