"""Default times that would leap from times that writers gave to the wall clock, by every way in."""

import pickle
import uuid
from functools import partial

import pyarrow as pa
import pytest

import tidelake
from clocks import SetClock
from tables import SCHEMA, rows
from tidelake.env import Env
from tidelake.errors import UsageError

DAY = 86_400_000
NOW = 20_000 * DAY + DAY // 2
LONG_AGO = {"date": "2024-03-01", "ms": "2024-03-01 00:00Z", "us": "2024-03-01 00:00Z"}


@pytest.fixture
def lake():
    clock = SetClock(NOW)
    with tidelake.open(f"memory://given-{uuid.uuid4().hex}", env=Env(clock=clock)) as opened:
        opened.clock = clock
        yield opened


def made(lake, unit, name="c"):
    c = lake.create(name, SCHEMA, key=["id"], time=unit)
    c.upsert(rows(1), time=LONG_AGO[unit])
    return c


def committed(transaction, do):
    with transaction as t:
        do(t)


# Each takes the lake, the collection and the arguments that give a time.
WRITES = {
    "append": lambda _, c, **at: c.append(rows(2), **at),
    "upsert": lambda _, c, **at: c.upsert(rows(2), **at),
    "replace": lambda _, c, **at: c.replace(rows(2), **at),
    "delete": lambda _, c, **at: c.delete(where="TRUE", **at),
    "delete of keys": lambda _, c, **at: c.delete(pa.table({"id": [1]}), **at),
    "a writer's append": lambda _, c, **at: c.writer("w").append(rows(2), **at),
    "a writer's upsert": lambda _, c, **at: c.writer("w").upsert(rows(2), **at),
    "a writer's replace": lambda _, c, **at: c.writer("w").replace(rows(2), **at),
    "lake.write": lambda lake, _, **at: lake.write({"c": rows(2)}, **at),
    "an upsert of a transaction": lambda lake, _, **at: committed(
        lake.transaction(**at), lambda t: t.upsert("c", rows(2))
    ),
    "a write beside it": lambda lake, _, **at: lake.write({"d": rows(2)}, **at),
}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("unit", ["date", "us"])
def test_a_write_without_a_time_closes_nothing_that_a_writer_may_still_give(lake, unit, name, grouped):
    if name == "a write beside it" and not grouped:
        return
    c, write = made(lake, unit), WRITES[name]
    made(lake, unit, "d")
    if grouped:
        lake.stage({"c": rows(9, _time=[1 << 61]), "d": rows(9, _time=[1 << 61])})
        if name == "a write beside it":
            lake.collection("d").upsert(rows(1), time="now")
    upper = c.upper
    with pytest.raises(UsageError, match="gives no time, and would close all times up to"):
        write(lake, c)
    assert c.upper == upper and c.state().staged.totals.rows == (1 if grouped else 0)
    lake.clock.ms += DAY
    write(lake, c, time="now")
    assert c.upper != upper
    lake.clock.ms += 30 * DAY
    write(lake, c)


def test_who_always_writes_now_is_never_asked_for_a_time(lake):
    c = lake.create("c", SCHEMA, key=["id"], time="us")
    for days in (0, 1, 400):
        lake.clock.ms += days * DAY
        c.append(rows(days))
    lake.clock.ms += DAY
    c.upsert(rows(7), time="now")
    lake.clock.ms += 400 * DAY
    c.upsert(rows(8))


def test_what_a_group_closed_at_its_time_is_no_older_because_it_is_applied_later(lake):
    c = lake.create("c", SCHEMA, key=["id"], time="us")
    lake.create("d", SCHEMA, key=["id"], time="us")
    lake.write({"c": rows(1), "d": rows(1)})
    lake.clock.ms += 40 * DAY
    lake.leave("c")
    assert c.state().group == ""
    c.append(rows(2))


@pytest.mark.parametrize("unit", ["date", "us"])
def test_forks_and_copies_know_that_times_were_given(lake, unit):
    made(lake, unit)
    other = f"memory://copy-{uuid.uuid4().hex}"
    with tidelake.open(other, env=lake.env) as there:
        lake.copy(other)
        for c in (lake.fork("c", "e"), there.collection("c")):
            with pytest.raises(UsageError, match="gives no time"):
                c.append(rows(2))


def test_the_time_of_an_append_is_that_of_all_rows_and_closes_as_one_in_a_column(lake):
    c = lake.create("c", SCHEMA, key=["id"], time="date")
    done = c.append(rows(1, 2), time="2024-03-01")
    assert done.upper == tidelake.Frontier.of(19784) and c.append(rows(), time="2024-03-02").upper
    assert c.snapshot("2024-03-02").read_all()["id"].to_pylist() == [1, 2]
    writer = c.writer("w")
    assert not writer.append(rows(3), time="2024-03-05", sequence=0).already
    assert writer.append(rows(3), time="now", sequence=0).already
    timed = rows(4, _time=pa.array([30_000], pa.int64()))
    for wrong in (partial(c.append, timed, time=30_001), partial(c.append, timed, lower=0, time=30_001)):
        with pytest.raises(tidelake.errors.TidelakeError, match=r"_time|lower"):
            wrong()


@pytest.mark.promise(
    "A frontier of a clock prints a date, and is otherwise the frontier that is stored",
    rule="`Frontier.of_unit`",
)
def test_what_a_clock_answers_prints_dates_and_equals_what_it_was(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        for unit, text, number in (
            ("date", "2026-11-02", 20759),
            ("ms", "2026-11-01 00:00:00.001Z", 1793491200001),
            ("counter", "[2]", 2),
        ):
            c = lake.create(unit, {"id": "int64 not null"}, key=["id"], time=unit)
            time = 1 if unit == "counter" else "2026-11-01" if unit == "date" else "2026-11-01 00:00Z"
            done = c.append({"id": 1}, time=time, token="t")
            for frontier in (done.upper, c.upper, c.commits()[0].upper, c.append({"id": 1}, token="t").upper):
                assert str(frontier) == text and text in repr(done) + "[2]"
                assert frontier == tidelake.Frontier.of(number) == frontier
                assert hash(frontier) == hash(tidelake.Frontier.of(number))
                assert pickle.loads(pickle.dumps(frontier)) == frontier
                assert f"{frontier.join(frontier)}" == text
            # It is taken wherever a frontier is.
            assert (
                c.compare_and_append(c.update_schema.empty_table(), c.upper, [number + 5]).lower == done.upper
            )
            c.advance_since(c.since)
            assert c.seal(c.upper).already and c.writer("w").seal(c.upper, sequence=0).upper == c.upper
