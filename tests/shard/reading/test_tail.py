"""Tails in steps: the steps together have every update once, and a repeated step is the same."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keeping import STORED, Kept
from shards import Place

import inside
from tables import SCHEMA, at, rows
from tidelake.config import Config
from tidelake.errors import HistoryCompacted, IncompatibleSchema, LeaseExpired, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Updates
from tidelake.shard.runs.plan import run_task
from tidelake.state.core.backlog import Limits, Span, fitting, spans
from tiers import some

HOLD = "5" * 32
DAY_S = 86_400.0
GARBAGE_S = STORED.garbage_age_s + 60
ALL = Limits()
CALLS = ("log.head", "log.newer", "log.compare_and_set", "blob.get", "blob.put", "blob.list", "blob.open")


def updates_of(rng, lower, upper, count):
    times = [rng.randrange(lower, upper) for _ in range(count)]
    return pa.table(
        {
            "id": pa.array([rng.randrange(12) for _ in times], pa.int64()),
            "v": pa.array([rng.choice(["x", "ü", None]) for _ in times], pa.string()),
            "_time": pa.array(times, pa.int64()),
            "_diff": pa.array([rng.choice([-1, 1, 1, 2]) for _ in times], pa.int64()),
        }
    )


def by_time(table):
    """(id, v, time) -> diff, without zeros."""
    summed = Counter()
    for row in table.to_pylist():
        summed[row["id"], row["v"], row["_time"]] += row["_diff"]
    return Counter({row: diff for row, diff in summed.items() if diff})


def answer(tail, asked, start):
    """What the tasks of a step give."""
    plan = tail.plan(asked, start, 3)
    batches = [batch for task in plan.tasks for batch in run_task(task)] if plan else []
    return Counter() if not batches else by_time(pa.Table.from_batches(batches))


@pytest.fixture
def running(monkeypatch):
    """Tasks of lakes in memory, carried out in this process; reads are cut also when they are small."""
    from tidelake.shard.engine import lease
    from tidelake.shard.runs import plan

    monkeypatch.setattr(plan, "_TASK_BYTES_MIN", 1)

    def on(lake):
        for module in (plan, lease):
            monkeypatch.setattr(module, "stores_of", lambda spec: inside.stores(lake))
        return lake

    return on


def netted(added, as_of):
    """(id, v, as_of) -> multiplicity of updates."""
    summed = Counter()
    for (id_, v, time), diff in by_time(added).items():
        if time <= as_of:
            summed[id_, v, as_of] += diff
    return Counter({row: diff for row, diff in summed.items() if diff})


def ends(tail, start, limits):
    """All ends of steps from a position on."""
    found = []
    while (end := tail.step(start, limits)) != start:
        assert start < end
        found.append(end)
        start = end
    return found


@pytest.mark.promise(
    "A step has no more updates and times than its limits allow, or one time",
    rule="`state/core/backlog.py`; times are counted where parts do not tell",
    also=["::test_counted_times_fill_steps_as_far_as_they_may"],
)
@given(st.integers(0, 10**6), st.none() | st.integers(1, 30), st.none() | st.integers(1, 9))
def test_no_step_takes_more_than_its_limits_or_one_time(seed, rows_max, times_max):
    rng, limits = Random(seed), Limits(rows_max, times_max)
    lake = Place().lake(config=Config(merge_budget_s=0, part_target_bytes=1024, row_group_rows=4))
    c = lake.create("c", SCHEMA, key=["id"])
    upper = 0
    for _ in range(rng.randrange(1, 6)):
        lower, upper = upper, upper + rng.randrange(1, 40)
        c.append(updates_of(rng, lower, upper, rng.randrange(40)), upper=upper)
        if rng.random() < 0.4:
            c.merge()
    stored = Counter(c.updates(0, upper).read_all()["_time"].to_pylist())
    tail = c.tail(poll_s=0.0)
    start = tail.begin(Frontier.of(0))
    steps = [start, *ends(tail, start, limits)]
    for lower, end in pairwise(steps):
        inside = [n for time, n in stored.items() if lower.less_equal(time) and not end.less_equal(time)]
        assert len(inside) <= 1 or limits.allow(sum(inside), len(inside))
    assert not any(steps[-1].less_equal(time) for time in stored)
    assert len(steps) <= 2 or not limits.none


def test_counted_times_fill_steps_as_far_as_they_may():
    c = Place().lake(config=Config(merge_budget_s=0)).create("c", SCHEMA, key=["id"])
    # Times of 1, 2 and 3 rows in turn.
    c.append(pa.concat_tables([at(time, *range(time % 3 + 1)) for time in range(100)]))
    tail = c.tail(poll_s=0.0)
    known = spans(c.state(), 10, 100)
    assert fitting((Span(3, 3, 99), Span(5, 9, 1)), 12, Limits(rows=6)) == 5, "one time is taken alone"
    assert fitting(known, 100, Limits(rows=6)) is None, "what parts say of their times is too coarse"
    assert tail.step(Frontier.of(10), Limits(rows=6)) == Frontier.of(13)
    assert tail.step(Frontier.of(13), Limits(rows=5)) == Frontier.of(15)
    assert tail.step(Frontier.of(11), Limits(rows=2)) == Frontier.of(12), "one time is never cut"
    assert tail.step(Frontier.of(11), Limits(times=7)) == Frontier.of(18)
    assert tail.step(Frontier.of(11), Limits(rows=7, times=2)) == Frontier.of(13)
    assert tail.step(Frontier.of(95), Limits(rows=1000)) == Frontier.of(100)


def test_a_backlog_is_counted_once():
    lake = Place().lake(config=Config(merge_budget_s=0, inline_part_bytes=0))
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(pa.concat_tables([at(time, *range(time % 3 + 1)) for time in range(100)]))
    tail = c.tail(poll_s=0.0)
    start = tail.begin(Frontier.of(0))
    before = lake.counts["blob.open"]
    found = ends(tail, start, Limits(rows=2))
    assert len(found) > 60 and lake.counts["blob.open"] == before + 1


def test_stretches_without_updates_are_no_steps_of_their_own():
    c = Place().lake().create("c", SCHEMA, key=["id"])
    for time in (5, 1000, 10**15):
        c.append(at(time, 1), upper=time + 1)
    c.append(at(7, 1).slice(0, 0), upper=10**16)
    tail = c.tail(poll_s=0.0)
    start = tail.begin(Frontier.of(0))
    found = ends(tail, start, Limits(times=1))
    assert len(found) == 3
    c.append(at(7, 1).slice(0, 0), upper=10**16 + 5)
    assert tail.step(found[-1], ALL) == found[-1], "there is nothing to read"


@pytest.mark.promise(
    "The steps of a tail tile the times, and a step that is read again has the same rows, in "
    "whichever process",
    rule="`shard/reading/tail.py`, a durable lease",
)
@pytest.mark.parametrize("seed", some(range(4), 4))
def test_steps_give_every_update_once_and_the_same_again_whatever_is_merged(running, seed):
    rng, place = Random(seed), Kept()
    lake = running(place.process(replace(STORED, inline_part_bytes=rng.choice([0, 4096]))))
    c, others = lake.create("c", SCHEMA, key=["id"]), place.process()
    beside = others.collection("c")
    history, upper = [], 0

    def append():
        nonlocal upper
        lower, upper = upper, upper + rng.randrange(1, 6)
        history.append(updates_of(rng, lower, upper, rng.randrange(30)))
        beside.append(history[-1], upper=upper)

    def churn(tail):
        """What others do between two calls: all history that is not held goes, and all garbage."""
        for _ in range(rng.randrange(3)):
            append()
        beside.advance_since(upper - 1)
        beside.merge()
        for _ in range(2):
            place.pass_s(GARBAGE_S / 2, lake, others)
            tail._hold._renewer.look()
        place.collect(beside)

    def again(tail):
        """The same tail, perhaps in another process."""
        if rng.random() < 0.5:
            return tail
        tail.stop()
        return c.tail(HOLD, poll_s=0.0)

    for _ in range(3):
        append()
    tail = c.tail(HOLD, poll_s=0.0)
    start = begun = tail.begin_with_snapshot()
    asked, found = tail.snapshot_of(start), None
    for _ in range(2):
        churn(tail)
        tail = again(tail)
        once = answer(tail, asked, start)
        assert once == netted(pa.concat_tables(history), asked.time) and found in (None, once)
        found = once
    limits = Limits(rng.choice([None, 1, 10]), rng.choice([None, 1, 3]))
    tailed = Counter()
    for _ in range(8):
        churn(tail)
        tail = again(tail)
        end = tail.step(start, limits)
        once = answer(tail, Updates(start, end), start)
        tail = again(tail)
        churn(tail)
        assert answer(tail, Updates(start, end), start) == once
        tailed.update(once)
        tail.move(end)
        start = end
    assert begun < start
    expected = by_time(pa.concat_tables(history)).items()
    assert tailed == Counter(
        {row: diff for row, diff in expected if begun.less_equal(row[2]) and not start.less_equal(row[2])}
    )
    assert Frontier.of(0) < c.since < start, "the hold follows"


def behind(place, **options):
    """A tail at time 1 of a collection that is at 4, and lets go what it may; its lake."""
    lake, c = place.made(appends=2)
    tail = c.tail(HOLD, poll_s=0.0, **options)
    start = tail.begin()
    for _ in range(2):
        c.append(rows(7))
    return lake, c, tail, start


@pytest.mark.promise(
    "A durable lease keeps history for its length after the last renewal; an owner that comes back "
    "later is refused",
    rule="`shard/reading/durable.py`",
    also=[
        "::test_who_comes_back_after_history_is_gone_is_refused",
        "::test_a_tail_that_runs_shows_signs_of_life_and_lets_go_what_is_done",
    ],
)
def test_a_tail_that_is_left_keeps_history_until_its_hold_expires():
    place = Kept()
    _, c, tail, start = behind(place)
    tail.stop()
    place.pass_s(DAY_S - 1)
    c.advance_since(3)
    assert c.since == Frontier.of(1)
    tail = c.tail(HOLD, poll_s=0.0)
    end = tail.step(start, ALL)
    assert tail.plan(Updates(start, end), start, 1).rows == 2
    tail.stop()
    # Taking it up was a sign of life.
    place.pass_s(DAY_S - 1)
    c.maintain()
    assert c.since == Frontier.of(1)
    place.pass_s(2)
    c.maintain()
    assert c.since == Frontier.of(3) and not c.state().holds


def test_who_takes_a_tail_up_says_anew_how_long_it_may_be_left():
    place = Kept()
    _, c, tail, start = behind(place, hold_for=60)
    tail.stop()
    tail = c.tail(HOLD, poll_s=0.0, hold_for=600)
    tail.step(start, ALL)
    tail.stop()
    place.pass_s(599)
    c.advance_since(3)
    assert c.since == Frontier.of(1)


@pytest.mark.parametrize("call", ["step", "plan"])
def test_who_comes_back_after_history_is_gone_is_refused(call):
    place = Kept()
    _, c, tail, start = behind(place, hold_for=60)
    tail.stop()
    place.pass_s(61)
    c.advance_since(2)
    tail = c.tail(HOLD, poll_s=0.0)
    with pytest.raises(HistoryCompacted):
        tail.step(start, ALL) if call == "step" else tail.plan(Updates(start, Frontier.of(4)), start, 1)
    assert not c.state().holds


def test_who_comes_back_late_to_history_that_is_still_there_holds_it_again():
    place = Kept()
    _, c, tail, start = behind(place, hold_for=60)
    tail.stop()
    place.pass_s(61)
    c.maintain()
    assert not c.state().holds
    tail = c.tail(HOLD, poll_s=0.0)
    assert tail.step(start, ALL) == Frontier.of(4)
    c.advance_since(3)
    assert c.since == Frontier.of(1)


@pytest.mark.parametrize("hold_for", [20, DAY_S])
def test_a_tail_that_runs_shows_signs_of_life_and_lets_go_what_is_done(hold_for):
    place = Kept()
    lake, c, tail, _ = behind(place, hold_for=hold_for)
    c.advance_since(3)
    renewer = tail._hold._renewer

    def pass_s(seconds):
        for _ in range(seconds // 5):
            place.clock.ms += 5_000
            renewer.look()

    assert renewer._tick_s <= hold_for / 3
    pass_s(3 * 86_400 if hold_for == DAY_S else 600)
    c.maintain()
    assert c.since == Frontier.of(1)
    before = lake.counts["log.compare_and_set"]
    for _ in range(100):
        tail.move(Frontier.of(3))
    assert lake.counts["log.compare_and_set"] == before, "a move is no log write by itself"
    pass_s(65)
    assert c.since == Frontier.of(2)
    tail.stop()


def test_a_released_hold_is_taken_again_while_history_is_there():
    place = Kept()
    _, c, tail, start = behind(place)
    c.distributed.release(HOLD)
    assert tail.step(start, ALL) == Frontier.of(4) and HOLD in c.state().holds
    c.distributed.release(HOLD)
    c.advance_since(3)
    with pytest.raises(HistoryCompacted):
        tail.step(start, ALL)


def test_a_step_that_takes_long_pins_what_it_reads(running):
    place = Kept()
    lake = running(place.process())
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(4):
        c.append(rows(*range(n * 100, n * 100 + 100)))
    tail = c.tail(HOLD, poll_s=0.0)
    start = tail.begin(Frontier.of(0))
    plan = tail.plan(Updates(start, Frontier.of(4)), start, 2)
    c.merge()
    for _ in range(60):
        place.pass_s(60, lake)
        tail._hold._renewer.look()
        place.collect(c)
    assert sum(batch.num_rows for task in plan.tasks for batch in run_task(task)) == 400
    # The next step is of another state.
    assert tail.plan(Updates(Frontier.of(3), Frontier.of(4)), start, 2).rows
    for _ in range(600):
        place.pass_s(60, lake)
        tail._hold._renewer.look()
    assert place.collect(c)
    with pytest.raises(LeaseExpired):
        list(run_task(plan.tasks[0]))


@pytest.mark.promise(
    "A waiting tail reads the log once a poll interval; a step costs at most one scan, and no write",
    rule="`Tail.step`, `Tail.plan`",
    also=["::test_a_step_of_a_backlog_costs_one_scan_at_most_and_no_write"],
)
def test_an_idle_tail_looks_at_the_log_once_a_poll_interval_and_writes_nothing():
    place = Kept()
    lake, c = place.made(appends=2)
    tail = c.tail(HOLD, poll_s=0.5)
    start = tail.begin()
    before = dict(lake.counts)
    for _ in range(1_000):
        assert tail.step(start, ALL) == start
        place.clock.ms += 10
    calls = {name: count - before.get(name, 0) for name, count in lake.counts.items() if name in CALLS}
    assert calls.pop("log.newer") <= 21
    assert not any(calls.values()), calls


def test_a_step_of_a_backlog_costs_one_scan_at_most_and_no_write():
    place = Kept()
    lake, c = place.made(appends=30, each=2)
    tail = c.tail(HOLD, poll_s=0.0)
    start = tail.begin(Frontier.of(0))
    for _ in range(10):
        before = dict(lake.counts)
        end = tail.step(start, Limits(times=3))
        tail.plan(Updates(start, end), start, 4)
        tail.move(end)
        assert lake.counts["log.newer"] <= before["log.newer"] + 1
        assert lake.counts["log.compare_and_set"] == before["log.compare_and_set"]
        start = end


def test_a_snapshot_waits_until_a_time_is_closed():
    c = Place().lake().create("c", SCHEMA, key=["id"])
    tail = c.tail(HOLD, poll_s=0.0)
    assert tail.begin_with_snapshot() is None and not c.state().holds
    c.append(at(3, 1), upper=9)
    past = tail.begin_with_snapshot()
    assert past == Frontier.of(9) and tail.snapshot_of(past) == AsOf(8)


def test_a_tail_of_a_collection_that_is_closed_for_good_ends():
    c = Place().lake().create("c", SCHEMA, key=["id"])
    c.append(at(3, 1), upper=9)
    tail = c.tail(HOLD, poll_s=0.0)
    start = tail.begin()
    c.append(at(9, 2), upper=[])
    end = tail.step(start, ALL)
    assert end.closed and tail.plan(Updates(start, end), start, 1).rows == 1
    assert tail.step(end, ALL) == end
    again = c.tail(poll_s=0.0)
    past = again.begin_with_snapshot()
    assert past.closed and again.plan(again.snapshot_of(past), past, 1).rows == 2


def test_a_tail_may_begin_at_times_to_come():
    c = Place().lake().create("c", SCHEMA, key=["id"])
    c.append(at(3, 1))
    tail = c.tail(HOLD, poll_s=0.0)
    start = tail.begin(Frontier.of(20))
    c.append(pa.concat_tables([at(10, 1), at(19, 1)]))
    assert tail.step(start, ALL) == start
    c.append(pa.concat_tables([at(20, 1), at(25, 1)]))
    assert tail.step(start, ALL) == Frontier.of(26)


def test_a_tail_begins_no_earlier_than_history():
    c = Place().lake().create("c", SCHEMA, key=["id"])
    for _ in range(5):
        c.append(rows(1))
    c.advance_since(3)
    with pytest.raises(HistoryCompacted):
        c.tail(poll_s=0.0).begin(Frontier.of(3))
    assert c.tail(poll_s=0.0).begin(Frontier.of(4)) == Frontier.of(4)


def test_what_cannot_be_followed_is_refused():
    lake = Place().lake()
    c = lake.create("c", SCHEMA, key=["id"])
    for hold_for in (0, 0.5, -1, "1 fortnight"):
        with pytest.raises(UsageError, match="hold_for"):
            c.tail(hold_for=hold_for)
    with pytest.raises(UsageError, match="total order: follow the collection with listen"):
        lake.create("t", SCHEMA, key=["id"], time="tuple(2)").tail()


def test_times_are_counted_under_the_schema_that_is_read_under():
    lake = Place().lake(config=Config(merge_budget_s=0))
    c = lake.create("c", SCHEMA.append(pa.field("n", pa.int64())), key=["id"])
    times = pa.array(range(300), pa.int64())
    c.append(pa.table({"id": times, "v": ["x"] * 300, "n": times, "_time": times}), upper=300)
    tail = c.tail(poll_s=0.0, columns=["id"], where="n >= 0 OR v = 'x'", schema_id=c.state().schema_id)
    start = tail.begin(Frontier.of(100))
    c.evolve(SCHEMA, drop=["n"])
    assert tail.step(start, Limits(rows=2)) == Frontier.of(102)


@pytest.mark.promise(
    "A tail under a given schema ends when one of its columns is dropped, so that a retraction "
    "always equals the row that it retracts",
    rule="`shard/reading/tail.py`, `outgrown`",
    also=["spark/source/test_offsets.py::test_columns_that_do_not_fit_a_running_query_are_refused"],
)
@pytest.mark.parametrize("shown", [{}, {"columns": ["id", "n"]}, {"columns": ["id"], "where": "n > 0"}])
def test_a_column_that_is_dropped_ends_a_tail_that_shows_it(shown):
    """The rows that go would have null there, and take nothing away."""
    c = Place().lake().create("c", SCHEMA.append(pa.field("n", pa.int64())), key=["id"])
    c.append(pa.table({"id": [1], "v": ["x"], "n": [7]}))
    tail = c.tail(poll_s=0.0, schema_id=c.state().schema_id, **shown)
    without = c.tail(poll_s=0.0, schema_id=c.state().schema_id, columns=["id", "v"], where="id > 0")
    start = tail.begin_with_snapshot()
    assert without.begin_with_snapshot() == start
    c.evolve(SCHEMA, drop=["n"])
    c.append(pa.table({"id": [1], "v": ["x"], "_diff": [-1]}))
    end = tail.step(start, Limits())
    for read in (tail.read, lambda asked, lower: tail.plan(asked, lower, 1)):
        with pytest.raises(IncompatibleSchema, match=r"'c' .* column 'n' was dropped since; start again"):
            read(Updates(start, end), start)
    assert without.read(Updates(start, end), start).read_all().to_pylist() == [
        {"id": 1, "v": "x", "_time": 1, "_diff": -1}
    ]
