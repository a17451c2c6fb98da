"""Wherever a time is asked for, an instant does what the number does that it means."""

import uuid
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidelake
from clocks import SetClock
from tables import SCHEMA, contents
from tidelake.arrangement.arrangement import Arrangement
from tidelake.env import Env
from tidelake.errors import NotYetClosed, UsageError
from tidelake.model.frontier import Frontier

DAY = 86_400_000
NOON = 1_793_534_400_000  # 2026-11-01 12:00 UTC
NOW = NOON + DAY
LAST = NOON + 9_000


def row(n):
    return pa.table({"id": pa.array([n], pa.int64()), "v": ["x"]})


def moment(time, unit="ms"):
    """The instant of a time."""
    ms, us = (time, 0) if unit == "ms" else divmod(time, 1000)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms, microseconds=us)


FORMS = {
    "number": lambda time: time,
    "datetime": moment,
    "text": lambda time: moment(time).isoformat(),
    "pandas": lambda time: pd.Timestamp(moment(time)).tz_convert("Asia/Tokyo"),
    "numpy": lambda time: np.datetime64(time, "ms"),
    "arrow": lambda time: pa.scalar(moment(time)),
}


@pytest.fixture(params=FORMS)
def t(request):
    return FORMS[request.param]


@pytest.fixture
def lake():
    with tidelake.open(f"memory://times-{uuid.uuid4().hex}", env=Env(clock=SetClock(NOW))) as opened:
        yield opened


@pytest.fixture
def visits(lake):
    """Rows 0 to 9, a second apart from noon on; closed just past the last one."""
    made = lake.create("visits", SCHEMA, key=["id"], time="ms")
    for n in range(10):
        made.upsert(row(n), time=NOON + 1000 * n)
    return made


def ids(rows):
    return sorted(rows.read_all()["id"].to_pylist())


def test_reads_take_instants(visits, t):
    assert ids(visits.snapshot(t(NOON + 2000))) == [0, 1, 2]
    assert visits.lookup(row(2).select(["id"]), t(NOON + 1000)).num_rows == 0
    assert ids(visits.changes(t(NOON), t(NOON + 2000))) == [1, 2]
    assert ids(visits.updates(t(NOON), t(NOON + 2000))) == [0, 1]
    assert ids(visits.updates([t(NOON)], [t(NOON + 1000)])) == [0]
    split = visits.distributed
    assert sum(len(ids(one)) for one in split.split_snapshot(2, t(NOON + 2000))) == 3
    assert sum(len(ids(one)) for one in split.split_changes(2, t(NOON), t(NOON + 2000))) == 2
    assert sum(len(ids(one)) for one in split.split_updates(2, t(NOON), t(NOON + 2000))) == 2


def test_readers_and_live_tails_take_instants(lake, visits, t):
    with visits.reader("test", since=t(NOON + 1000)) as reader:
        assert reader.since == Frontier.of(NOON + 1000)
        assert ids(reader.snapshot(t(NOON + 1000))) == [0, 1]
        assert ids(reader.changes(t(NOON + 1000), t(NOON + 3000))) == [2, 3]
        assert ids(next(reader.listen(t(NOON + 7000), 0)).updates) == [8, 9]
        reader.downgrade(t(NOON + 4000))
        assert reader.since == Frontier.of(NOON + 4000)
    steps = visits.listen(t(NOON + 1000), until=t(NOON + 3000))
    assert [n for step in steps for n in ids(step.updates)] == [2]
    steps = visits.listen(lower=t(NOON + 1000), until=t(NOON + 3000))
    assert [n for step in steps for n in ids(step.updates)] == [1, 2]
    steps = visits.subscribe(t(NOON), until=t(NOON + 2000))
    assert [n for step in steps for n in ids(step.updates)] == [0, 1]
    assert lake.fork("visits", "fork", as_of=t(NOON + 2000)).last_time() == NOON + 2000


def test_writes_take_instants(lake, visits, t):
    assert visits.replace(row(0), time=t(LAST + 1)).upper == Frontier.of(LAST + 2)
    writer = visits.writer("w")
    assert writer.upsert(row(1), time=t(LAST + 5)).upper == Frontier.of(LAST + 6)
    assert writer.seal(t(LAST + 7)).upper == Frontier.of(LAST + 7)
    assert visits.seal(t(LAST + 8)).upper == Frontier.of(LAST + 8)
    at = row(5).append_column("_time", pa.array([LAST + 9], pa.int64()))
    assert visits.compare_and_append(at, t(LAST + 8), t(LAST + 10)).upper == Frontier.of(LAST + 10)
    timed = row(6).append_column("_time", pa.array([LAST + 11], pa.int64()))
    assert visits.append(timed, upper=t(LAST + 12)).upper == Frontier.of(LAST + 12)
    assert lake.write({"visits": row(7)}, time=t(LAST + 14)).upper == Frontier.of(LAST + 15)
    assert lake.seal({"visits": t(LAST + 20)}).upper == Frontier.of(LAST + 20)
    transaction = lake.transaction(time=t(LAST + 19), upper=t(LAST + 30))
    transaction.write("visits", row(8))
    with pytest.raises(tidelake.errors.UpdateBeforeLower):
        transaction.commit()
    assert transaction.commit(time=t(LAST + 25)).upper == Frontier.of(LAST + 30)


def test_what_keeps_history_takes_instants(lake, visits, t):
    hold = visits.critical_hold("h", since=t(NOON + 1000))
    assert hold.since == Frontier.of(NOON + 1000)
    assert hold.compare_and_downgrade_since("", ("", t(NOON + 2000))).done
    assert visits.advance_since(t(NOON + 3000)) == Frontier.of(NOON + 2000)
    hold.drop()
    assert lake.advance_since({"visits": t(NOON + 4000)}) == {"visits": Frontier.of(NOON + 4000)}


def test_arrangements_take_instants(visits, t):
    with visits.arrange(t(NOON + 1000), follow=False) as kept:
        assert kept.lookup(row(0).select(["id"]), as_of=t(NOON + 1000)).num_rows == 1
        assert kept.key_count(t(NOON + 4000)) == 5
        kept.advance_since(t(NOON + 4000))
        assert kept.since == Frontier.of(NOON + 4000)
        assert kept.catch_up(t(LAST)) == LAST
    own = Arrangement.create(SCHEMA, key=["id"], time="ms")
    own.append(row(1).append_column("_time", pa.array([NOON], pa.int64())))
    assert own.key_count(t(NOON)) == 1 and own.key_count(t(NOON - 1)) == 0
    own.close()


def test_what_is_finer_than_the_unit_never_hides_or_adds_an_update(visits):
    half = timedelta(microseconds=500)
    second = moment(NOON + 1000)
    assert ids(visits.snapshot(second - half)) == [0] and ids(visits.snapshot(second + half)) == [0, 1]
    assert ids(visits.updates(second - half, second + half)) == [1]
    assert ids(visits.updates(second + half, moment(NOON + 2000) - half)) == []
    # What is allowed to go leaves the instant itself readable.
    visits.advance_since(second + half)
    assert ids(visits.snapshot(second + half)) == [0, 1]


@pytest.mark.promise(
    "A read as of `now` is a read as of the last closed time; a later time is refused at once, or "
    "waited for on request",
    rule="`is_now`, `lake/arguments/times.py`",
    also=["::test_a_time_in_the_future_is_refused_at_once_and_waited_for_on_request"],
)
def test_as_of_now_is_the_last_closed_time(visits):
    assert contents(visits) == {(n, "x"): 1 for n in range(10)}
    for rows in (visits.snapshot("now"), visits.snapshot()):
        assert set(rows.read_all()["_time"].to_pylist()) == {LAST}
    assert ids(visits.changes("-1d", "now")) == list(range(1, 10))
    assert ids(visits.updates("-2d", "now")) == list(range(10))
    assert visits.snapshot("yesterday").read_all().num_rows == 0
    visits.stage(row(11).append_column("_time", pa.array([LAST + 5], pa.int64())))
    assert ids(visits.snapshot("now", staged=True)) == [*range(10), 11]
    # To a writer it is the wall clock.
    assert visits.seal("now").upper == Frontier.of(NOW)
    visits.seal(NOW + 5000)
    assert set(visits.snapshot("now").read_all()["_time"].to_pylist()) == {NOW}


def test_a_time_in_the_future_is_refused_at_once_and_waited_for_on_request(lake, visits):
    clock = lake.env.clock
    for read in (
        lambda **more: visits.snapshot(moment(LAST + 240_000), **more),
        lambda **more: visits.changes(NOON, LAST + 240_000, **more),
        lambda **more: visits.updates(NOON, LAST + 240_001, **more),
        lambda **more: next(visits.subscribe(LAST + 240_000, **more)),
        lambda **more: visits.arrange(LAST + 240_000, **more),
        lambda **more: visits.lookup(row(0).select(["id"]), LAST + 240_000, **more),
    ):
        before_s = clock.slept_s
        with pytest.raises(NotYetClosed, match="last closed time") as caught:
            read()
        assert clock.slept_s == before_s and "timeout_s" in str(caught.value)
        with pytest.raises(NotYetClosed, match="after waiting 2 s"):
            read(timeout_s=2.0)
        assert clock.slept_s == pytest.approx(before_s + 2.0)


@pytest.mark.parametrize("value", [datetime(2026, 11, 1), "2026-11-01 12:00", pd.Timestamp("2026-11-01")])  # noqa: DTZ001
def test_no_call_guesses_a_zone(lake, visits, value):
    for call in (
        lambda: visits.snapshot(value),
        lambda: visits.updates(0, [value]),
        lambda: visits.upsert(row(1), time=value),
        lambda: visits.seal(value),
        lambda: visits.advance_since(value),
        lambda: lake.write({"visits": row(1)}, time=value),
        lambda: lake.transaction(upper=value),
        lambda: lake.seal({"visits": value}),
        lambda: lake.fork("visits", "f", as_of=value),
    ):
        before = visits.state()
        with pytest.raises(UsageError, match="does not say its zone"):
            call()
        assert visits.state() == before


@pytest.mark.parametrize(
    "value", [moment(NOON), date(2026, 11, 1), "2026-11-01 12:00Z", "now", np.datetime64("2026-11-01")]
)
def test_a_counter_refuses_instants_and_words(lake, value):
    counted = lake.create("counted", SCHEMA, key=["id"])
    counted.append(row(1))
    for call in (
        lambda: counted.snapshot(value),
        lambda: counted.seal(value),
        lambda: lake.write({"counted": row(2)}, time=value),
    ):
        with pytest.raises(UsageError, match="unit counter, which knows no clock: give a whole number"):
            call()


@pytest.mark.parametrize("window", ["7d", "168h", " 1 week ", timedelta(days=7), 7 * DAY])
def test_a_window_of_history_may_be_a_text(visits, window):
    visits.retain(window)
    assert visits.state().retention.window == 7 * DAY


@pytest.mark.parametrize("bad", ["7", "7 fortnights", "", "0d", "-7d", "0.5ms"])
def test_a_text_that_is_no_window_is_refused(visits, bad):
    with pytest.raises(
        UsageError, match=r"retention .* must be a whole number of at least 1, a timedelta or"
    ):
        visits.retain(bad)


def test_durations_may_be_texts(lake, visits):
    assert lake.settings(upload_age_s="7d").upload_age_s == 7 * 86_400
    held = visits.distributed.hold([visits.distributed.plan(None, 1)], "2h", "a test")
    assert held is None or visits.state().holds[held].lease_ms == 2 * 3_600_000
    with pytest.raises(UsageError, match="upload_age_s='7 fortnights' must be a timedelta, a number of"):
        lake.settings(upload_age_s="7 fortnights")
    with pytest.raises(UsageError, match="is a span of a clock"):
        lake.create("counted", SCHEMA, key=["id"]).retain("7d")
