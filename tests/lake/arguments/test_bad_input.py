"""Bad input: one clear error each, and all is as it was. Odd input that is good comes back exactly."""

import datetime
import decimal
import json
import math
import os
import subprocess
import sys
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from lakes import refused

import inside
import tidelake
from clocks import SetClock
from tables import SCHEMA, at, contents, rows
from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    HistoryCompacted,
    InvalidUpdates,
    NotYetClosed,
    StoreUnavailable,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UpperMismatch,
    UsageError,
)
from tidelake.model.frontier import Frontier

INT64_MAX = 2**63 - 1


def table(**columns):
    return pa.table(columns)


def ints(*values):
    return pa.array(values, pa.int64())


GOOD = {"id": ints(1, 2), "v": pa.array(["a", "b"])}
BAD = {
    "an unknown column": (
        {**GOOD, "w": ints(1, 2)},
        "unknown column 'w': the collection has 'id', 'v', '_time'",
    ),
    "a column of another case": (
        {"ID": ints(1, 2), "v": GOOD["v"]},
        "missing column 'id': the table has 'ID', 'v'",
    ),
    "a missing value column": ({"id": ints(1, 2)}, "missing column 'v': the table has 'id'"),
    "a missing key column": ({"v": GOOD["v"]}, "missing column 'id'"),
    "no columns": ({}, "missing column 'id', 'v': the table has no columns"),
    "a null key": ({"id": ints(1, None), "v": GOOD["v"]}, "'id' must not be null, but is in row 1"),
    "text for a number": ({"id": ["1", "2"], "v": GOOD["v"]}, "'id' has type string, expected int64"),
    "a number for text": ({"id": ints(1, 2), "v": ints(1, 2)}, "'v' has type int64, expected string"),
    "fractions for whole numbers": (
        {"id": [1.0, 2.5], "v": GOOD["v"]},
        "'id' has type double, expected int64",
    ),
    "a number that does not fit": (
        {"id": pa.array([1, 2**63], pa.uint64()), "v": GOOD["v"]},
        "'id' has type uint64.*9223372036854775808 not in range",
    ),
    "a list for text": ({"id": ints(1, 2), "v": [["a"], ["b"]]}, "'v' has type list"),
    "invalid UTF-8": (
        {"id": ints(1), "v": pa.array([b"\xff"], pa.binary()).view(pa.string())},
        "'v' holds invalid values",
    ),
    "a negative time": (
        {**GOOD, "_time": ints(0, -1)},
        "'_time' is -1 in row 1: a time must not be negative",
    ),
    "a null time": ({**GOOD, "_time": ints(0, None)}, "'_time' must not be null, but is in row 1"),
    "a time beyond int64": ({**GOOD, "_time": pa.array([0, 2**63], pa.uint64())}, "'_time' has type uint64"),
    "a fractional time": ({**GOOD, "_time": [0.0, 1.5]}, "'_time' has type double, expected int64"),
    "a text as time": ({**GOOD, "_time": ["0", "1"]}, "'_time' has type string"),
    "a zero diff": ({**GOOD, "_diff": ints(1, 0)}, "'_diff' is 0 in row 1: a diff must not be 0"),
    "a null diff": ({**GOOD, "_diff": ints(1, None)}, "'_diff' must not be null, but is in row 1"),
    "a diff beyond int64": ({**GOOD, "_diff": pa.array([1, 2**63], pa.uint64())}, "'_diff' has type uint64"),
    "a fractional diff": ({**GOOD, "_diff": [1.0, 0.5]}, "'_diff' has type double"),
    "times of another unit": ({**GOOD, "_time_0": ints(0, 0)}, "unknown column '_time_0'"),
    "diffs that sum beyond int64": (
        {"id": ints(1, 1), "v": ["a", "a"], "_diff": ints(INT64_MAX, 1)},
        'sum to 9223372036854775808, which does not fit into an int64: id=1, v="a"',
    ),
    "diffs that sum below int64": (
        {"id": ints(1, 1), "v": ["a", "a"], "_diff": ints(-(2**63), -1)},
        "sum to -9223372036854775809",
    ),
}


@pytest.mark.promise(
    "Bad names, frontiers, times and tables are refused with their names, and change nothing",
    rule="`lake/arguments/names.py`, `lake/arguments/times.py`, `data/ingest/updates.py`",
    also=["lake/arguments/test_bad_input.py"],
)
@pytest.mark.parametrize("case", BAD)
def test_a_table_that_does_not_fit_is_refused_and_leaves_nothing(lake, collection, case):
    collection.append(rows(7))
    columns, said = BAD[case]
    with refused(lake, collection, InvalidUpdates, said):
        collection.append(table(**columns))


def test_a_column_twice_is_refused(lake, collection):
    double = pa.Table.from_arrays([ints(1), pa.array(["a"]), ints(2)], ["id", "v", "id"])
    with refused(lake, collection, InvalidUpdates, "column 'id' appears twice"):
        collection.append(double)


OBJECTS = [
    None,
    [],
    [1, 2],
    [{"id": 1}, 2],
    ({"id": 1},),
    "rows.parquet",
    b"x",
    5,
    object(),
    SCHEMA,
    pa.array([1]),
]


@pytest.mark.parametrize("updates", OBJECTS, ids=lambda o: type(o).__name__)
def test_what_is_no_table_is_refused_with_what_would_be(lake, collection, updates):
    for call in (
        lambda: collection.append(updates),
        lambda: collection.compare_and_append(updates, 0, 1),
        lambda: collection.append(updates, lower=0, upper=1),
        lambda: collection.writer("w").append(updates),
    ):
        collection.writer("w")
        with pytest.raises(InvalidUpdates, match="cannot read updates from a") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert collection.upper.elements == (0,)
    assert not list(inside.stores(lake).blobs.list(f"{collection.id}/parts/"))


def test_a_stream_that_fails_half_way_writes_nothing(lake, collection):
    def batches():
        yield rows(1).to_batches()[0]
        raise OSError("the source went away")

    with pytest.raises(OSError, match="the source went away"):  # the caller's own error, as it was
        collection.append(pa.RecordBatchReader.from_batches(rows(1).schema, batches()))
    assert collection.upper.elements == (0,)
    assert not list(inside.stores(lake).blobs.list(f"{collection.id}/parts/"))


# Times and frontiers


def test_times_below_upper_are_refused_naming_both(lake, collection):
    collection.append(at(4, 1))
    for time in (0, 4):
        with refused(
            lake, collection, UpdateBeforeLower, rf"time {time} is not at or after the lower frontier \[5\]"
        ):
            collection.append(at(time, 2))
    with refused(lake, collection, UpdateBeforeLower):
        collection.append(pa.concat_tables([at(9, 2), at(3, 3)]))


def test_times_outside_the_interval_are_refused(lake, collection):
    with refused(lake, collection, UpdateNotBeforeUpper, r"time 7 is at or after the upper frontier \[7\]"):
        collection.compare_and_append(at(7, 1), 0, 7)
    with refused(lake, collection, UpdateNotBeforeUpper):
        collection.append(at(7, 1), upper=7)
    with refused(lake, collection, UpdateBeforeLower):
        collection.compare_and_append(at(3, 1), 4, 9)
    with refused(lake, collection, UpperMismatch, r"upper is \[0\], not the expected \[4\]"):
        collection.compare_and_append(at(5, 1), 4, 9)
    with refused(lake, collection, UpperMismatch):
        collection.append(at(5, 1), lower=4, upper=9)


FRONTIERS = ["1", None, -1, 1.0, True, {1}, [-1], ["a"], (1, 2), [None], Frontier((-1,)), Frontier(("a",))]


@pytest.mark.parametrize("frontier", FRONTIERS, ids=repr)
def test_what_is_no_frontier_is_refused_naming_the_argument(lake, collection, frontier):
    for call in (
        lambda: collection.compare_and_append(at(0, 1), frontier, 1),
        lambda: collection.compare_and_append(at(0, 1), 0, frontier),
        lambda: collection.updates(frontier, 1),
        lambda: collection.advance_since(frontier),
    ):
        with refused(lake, collection, UsageError, "is not a time of unit counter: give one whole number"):
            call()


@pytest.mark.parametrize("time", ["0", -1, 1.0, True, (0,), [0], 2**63])
def test_what_is_no_time_is_refused(lake, collection, time):
    collection.append(rows(1))
    for call in (
        lambda: collection.snapshot(time),
        lambda: collection.changes(time, 0),
        lambda: collection.changes(0, time),
        lambda: next(collection.listen(time)),
    ):
        with refused(lake, collection, UsageError, "is not a time of unit counter"):
            call()


def test_calls_that_contradict_themselves_are_refused(lake, collection):
    collection.append(at(3, 1))
    for call, said in (
        (lambda: collection.append(rows(2), upper=9), "needs times: give time=, add the column _time"),
        (lambda: collection.append(at(5, 2), lower=4), "lower=4 needs an upper"),
        (lambda: collection.compare_and_append(at(5, 2), 9, 4), "swap them|not at or after|not at or before"),
        (lambda: collection.compare_and_append(rows(), 9, 4), "missing column|swap them|not at or before"),
        (lambda: collection.changes(3, 1), "changes after 3 cannot end at 1"),
        (lambda: collection.updates(3, 1), "the lower frontier"),
        (lambda: collection.snapshot(3, timeout_s=-1), "timeout_s=-1 must be"),
        (lambda: collection.snapshot(3, timeout_s="soon"), "timeout_s='soon' must be"),
        (lambda: collection.snapshot(3, timeout_s=math.nan), "timeout_s=nan must be"),
        (lambda: collection.writer(""), "writer name '' must be"),
        (lambda: collection.writer(None), "writer name None must be"),
    ):
        with refused(lake, collection, UsageError, said):
            call()


def test_what_holds_and_upkeep_are_told_is_checked(lake, collection):
    collection.append(at(3, 1))
    hold = collection.critical_hold("billing", "me")
    plan = collection.distributed.plan(None, 1)
    a_day = datetime.timedelta(days=1)
    for call, said in (
        (
            lambda: collection.critical_hold("other", "\ud800"),
            "of critical hold 'other' .* is not valid text",
        ),
        (lambda: collection.critical_hold("other", 3), "token 3 of critical hold 'other' must be a text"),
        (
            lambda: collection.critical_hold("other", "x" * 256),
            "token of critical hold 'other' 'x+'... has 256 bytes",
        ),
        (lambda: hold.compare_and_downgrade_since("me", ("you", 3, 4)), "must be a token and a since"),
        (lambda: hold.compare_and_downgrade_since("me", None), "new=None must be a token and a since"),
        (
            lambda: hold.compare_and_downgrade_since("\ud800", ("you", 3)),
            "of critical hold 'billing' .* is not valid text",
        ),
        (lambda: collection.distributed.hold([plan], 10**400, "p"), "hold_for=1000.* must be a timedelta"),
        (
            lambda: collection.distributed.hold([plan], datetime.timedelta.max, "p"),
            "hold_for=.*at most a hundred years",
        ),
        (lambda: collection.distributed.hold(plan, 5, "p"), "plans is a .*: give a list of what"),
        (lambda: collection.distributed.hold(["x"], 5, "p"), "plans is a .*: give a list of what"),
        (lambda: collection.distributed.hold(None, 5, "p"), "plans is a .*: give a list of what"),
        (lambda: collection.retain(2**63), "longer than all time: give None"),
        (lambda: collection.retain("7d"), "retention 7d is a span of a clock"),
        (lambda: collection.retain("7"), "retention '7' must be a whole number"),
        (lambda: collection.retain(0), "retention 0 must be a whole number"),
        (lambda: collection.retain(a_day), "retention 1 day, 0:00:00 is a span of a clock"),
        (lambda: collection.schema_at(None), "seqno=None must be a whole number"),
        (lambda: collection.schema_at(0.0), "seqno=0.0 must be a whole number"),
        (lambda: collection.maintain(seconds=-1), "seconds=-1 must be"),
        (lambda: collection.maintain(seconds="soon"), "seconds='soon' must be"),
        (lambda: collection.writer("w", owner="\ud800"), "owner of writer 'w'"),
        (lambda: lake.upkeep(interval_s="soon"), "interval_s='soon' must be"),
        (lambda: lake.upkeep(interval_s=math.inf), "interval_s=inf must be"),
        (lambda: lake.upkeep("c"), r"names='c' is not a list of names: write names=\['name', ...\]"),
        (lambda: lake.upkeep(3), "names=3 is not a list"),
        (lambda: lake.fsck(collection.name), "is not a list of names"),
        (lambda: lake.fsck([None]), "collection name None must be a text"),
        (lambda: lake.fsck(["missing"]), "no collection 'missing'; there is "),
    ):
        with refused(lake, collection, UsageError, said):
            call()


def test_a_span_shorter_than_a_unit_of_time_is_no_retention(lake):
    clocked = lake.create("clocked", SCHEMA, key=["id"], time="ms")
    with refused(lake, clocked, UsageError, "retention 0:00:00.000005 must be .* at least one unit"):
        clocked.retain(datetime.timedelta(microseconds=5))


# Reads of times that are not there


def test_an_as_of_below_since_names_both(lake, collection):
    for n in range(4):
        collection.append(rows(n))
    collection.advance_since(2)
    collection.merge()
    for call in (
        lambda: collection.snapshot(1),
        lambda: collection.changes(1, 3),
        lambda: collection.updates(1, 3),
        lambda: next(collection.listen(0)),
        lambda: collection.reader("late", 1),
    ):
        with refused(
            lake, collection, HistoryCompacted, r"history at \S+ is compacted: since=\[2\]"
        ) as caught:
            call()
        assert str(caught.value.since) == "[2]"
        assert str(caught.value.asked) in ("0", "1", "[1]")
    assert contents(collection, 2) == {(n, "x"): 1 for n in range(3)}


@pytest.mark.promise(
    "A `since` that would leave no closed time to read is refused, for one collection or several",
    rule="`checked_since`",
    also=[
        "::test_two_sinces_of_tuples_that_leave_nothing_to_read_together_are_refused",
        "shard/test_outcomes.py::test_since_leaves_a_time_to_read",
    ],
)
def test_a_since_past_the_upper_is_refused_for_nothing_could_be_read(lake, collection):
    for n in range(3):
        collection.append(rows(n))
    for since in (3, 4, [], [9]):
        with refused(lake, collection, UsageError, r"past the upper \[3\].*give at most \[2\]"):
            collection.advance_since(since)
    assert str(collection.advance_since(2)) == "[2]"
    assert contents(collection) == {(n, "x"): 1 for n in range(3)}


def test_a_since_that_moves_nothing_is_taken_though_no_time_is_closed(lake, collection):
    assert str(collection.advance_since(0)) == "[0]"
    assert str(lake.advance_since({collection.name: 0})[collection.name]) == "[0]"


def test_two_sinces_of_tuples_that_leave_nothing_to_read_together_are_refused():
    lake = tidelake.open("memory://two-sinces")
    collection = lake.create("c", SCHEMA, key=["id"], time="tuple(2)")
    collection.seal([(4, 0), (1, 1), (0, 4)])
    assert str(collection.advance_since((0, 3))) == "[(0, 3)]"
    with refused(lake, collection, UsageError, r"earlier advance_since .* is \[\(3, 3\)\], past the upper"):
        collection.advance_since((3, 0))
    assert collection.snapshot((0, 3)).read_all().num_rows == 0


def test_an_open_time_is_waited_for_and_then_told_by_how_much():
    clock = SetClock()
    lake = tidelake.open("memory://an-open-time", env=Env(clock=clock), config=Config(wait_timeout_s=12.0))
    collection = lake.create("c", SCHEMA, key=["id"])
    collection.append(at(3, 1))
    with refused(
        lake,
        collection,
        NotYetClosed,
        "time 9 is not closed after waiting 12 s: the last closed time is 3, 6",
    ) as caught:
        collection.snapshot(9)
    assert (caught.value.asked, caught.value.upper) == (9, 4)
    assert clock.slept_s == pytest.approx(12.0)
    with refused(lake, collection, NotYetClosed, "after waiting 2.5 s"):
        collection.changes(3, 4, timeout_s=2.5)
    with refused(lake, collection, NotYetClosed):
        collection.updates(0, 5, timeout_s=0)
    assert clock.slept_s == pytest.approx(14.5)


def test_without_any_closed_time_a_plain_snapshot_says_so_at_once():
    clock = SetClock()
    collection = tidelake.open("memory://nothing-closed", env=Env(clock=clock)).create(
        "c", SCHEMA, key=["id"]
    )
    with pytest.raises(NotYetClosed, match=r"collection 'c' has no closed time yet.*append rows to it first"):
        collection.snapshot()
    assert clock.slept_s == 0


def test_a_wait_ends_when_another_handle_closes_the_time():
    class Helpful(SetClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if self.slept_s > 1 and other.upper.elements == (4,):
                other.append(at(9, 2))

    lake = tidelake.open("memory://a-wait-ends", env=Env(clock=Helpful()))
    collection = lake.create("c", SCHEMA, key=["id"])
    collection.append(at(3, 1))
    other = tidelake.open("memory://a-wait-ends").collection("c")
    assert collection.snapshot(9, timeout_s=60).read_all()["id"].to_pylist() == [1, 2]


def test_a_collection_that_is_closed_for_good_says_so(lake, collection):
    collection.append(at(INT64_MAX, 1), upper=[])
    assert collection.upper.closed
    for call in (lambda: collection.append(rows(2)), lambda: collection.compare_and_append(at(5, 2), 5, 6)):
        with refused(lake, collection, UpperMismatch, r"closed for good \(upper=\[\]\)"):
            call()
    with refused(lake, collection, UsageError, "no single last time"):
        collection.snapshot()
    assert contents(collection, INT64_MAX) == {(1, "x"): 1}


# Sums that overflow


def test_a_sum_that_overflows_over_two_appends_is_an_error_at_that_time_only(lake, collection):
    collection.append(at(0, 1, diff=INT64_MAX))
    collection.append(at(1, 1, diff=1))
    collection.append(at(2, 2))
    exact = "sum to 9223372036854775808, which does not fit into an int64: id=1"
    for call in (lambda: collection.snapshot(1).read_all(), lambda: collection.snapshot(2).read_all()):
        with refused(lake, collection, InvalidUpdates, exact):
            call()
    # Other times, and the updates themselves, can be read.
    assert contents(collection, 0) == {(1, "x"): INT64_MAX}
    assert collection.changes(0, 2).read_all()["_diff"].to_pylist() == [1, 1]
    assert collection.updates(0, 3).read_all()["_diff"].to_pylist() == [INT64_MAX, 1, 1]
    # Unfolded, a merge keeps the two apart; folded, it refuses and keeps what is there.
    assert collection.merge().applied
    collection.advance_since(1)
    with refused(lake, collection, InvalidUpdates, exact):
        collection.merge()
    # Correcting the row is the remedy that the message names.
    collection.append(at(3, 1, diff=-1))
    assert contents(collection, 3) == {(1, "x"): INT64_MAX, (2, "x"): 1}
    collection.advance_since(3)
    assert collection.merge().applied
    assert contents(collection, 3) == {(1, "x"): INT64_MAX, (2, "x"): 1}


def test_a_sum_that_overflows_only_on_the_way_is_exact(collection):
    diffs = ints(INT64_MAX, INT64_MAX, -INT64_MAX, -INT64_MAX, 5)
    collection.append(table(id=ints(*[1] * 5), v=["x"] * 5, _diff=diffs))
    assert contents(collection) == {(1, "x"): 5}


# Input that is odd, and good


def roundtrip(lake, schema, key, updates):
    c = lake.create("odd", schema, key=key)
    c.append(updates)
    c.append(updates.slice(0, 0))
    c.merge()
    again = tidelake.open(lake.url).collection("odd")
    answer = again.snapshot().read_all()
    return answer.drop_columns(["_time"])


def test_floats_become_canonical(lake):
    values = pa.array([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, None], pa.float64())
    answer = roundtrip(lake, pa.schema([("x", pa.float64())]), ["x"], pa.table({"x": values}))
    found = answer["x"].to_pylist()
    assert str(found) == "[-inf, 0.0, 5e-324, inf, nan, None]"
    assert answer["_diff"].to_pylist() == [1, 2, 1, 1, 2, 1]


def test_extremes_of_every_kind_come_back(lake):
    columns = {
        "i": pa.array([-(2**63), INT64_MAX], pa.int64()),
        "u": pa.array([0, 2**64 - 1], pa.uint64()),
        "d": pa.array([decimal.Decimal("-99999999.99"), decimal.Decimal("0.01")], pa.decimal128(10, 2)),
        "dd": pa.array([decimal.Decimal("1" * 70), decimal.Decimal(0)], pa.decimal256(76, 4)),
        "s": ["", "\x00 \U0001f30a e\u0301"],
        "b": [b"", b"\xff\x00"],
        "day": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
        "n": pa.array([None, None], pa.int64()),
        "l": pa.array([[], [1, None]], pa.list_(pa.int64())),
        "st": pa.array([{"a": 1, "b": [{"c": "x"}, None]}, None]),
        "bool": [True, None],
    }
    given = pa.table(columns)
    answer = roundtrip(lake, given.schema, ["i"], given)
    assert answer.drop_columns(["_diff"]).cast(given.schema).equals(given)


def test_timestamps_keep_their_moment_and_their_zone(lake):
    moment = datetime.datetime(2024, 3, 31, 1, 30, tzinfo=datetime.UTC)
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("utc", pa.timestamp("us", "UTC")),
            ("there", pa.timestamp("ms", "Europe/Prague")),
            ("wall", pa.timestamp("s")),
        ]
    )
    given = pa.table(
        {"id": ints(1), "utc": [moment], "there": [moment], "wall": [moment.replace(tzinfo=None)]},
        schema=schema,
    )
    answer = roundtrip(lake, schema, ["id"], given)
    (row,) = answer.to_pylist()
    assert row["utc"] == row["there"] == moment
    assert row["there"].astimezone(ZoneInfo("Europe/Prague")).utcoffset() == datetime.timedelta(hours=2)
    assert row["wall"] == moment.replace(tzinfo=None)
    assert answer.schema.field("there").type == pa.timestamp("ms", "Europe/Prague")
    c = lake.collection("odd")
    with refused(lake, c, InvalidUpdates, "'utc' has type timestamp"):
        c.append(given.set_column(1, "utc", pa.array([moment.replace(tzinfo=None)], pa.timestamp("us"))))


def test_an_empty_table_and_one_row_and_no_value_columns(lake):
    c = lake.create("k", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
    none = pa.table({"id": ints(), "_time": ints()})
    c.append(none)  # no time, so no frontier to move to
    assert c.upper.elements == (0,)
    c.append(none, upper=5)
    assert (c.upper.elements, c.snapshot().read_all().num_rows) == ((5,), 0)
    c.append(pa.table({"id": ints(1)}))
    assert c.snapshot().read_all().to_pylist() == [{"id": 1, "_time": 5, "_diff": 1}]
    assert not list(inside.stores(lake).blobs.list(f"{c.id}/parts/"))[1:]


def test_equal_rows_of_one_append_are_summed_and_may_cancel(lake, collection):
    collection.append(rows(1, 1, 1, 2))
    collection.append(pa.concat_tables([at(5, 3, 3), at(5, 3, diff=-2)]))
    assert contents(collection) == {(1, "x"): 3, (2, "x"): 1}
    assert sum(1 for item in collection.state().spine for _ in item.batch.parts()) == 1
    # A row may be taken away before it is there; a read in between sees the debt.
    collection.append(at(6, 9, diff=-2))
    assert contents(collection)[9, "x"] == -2
    collection.append(at(7, 9, diff=2))
    assert (9, "x") not in contents(collection)


def test_two_hundred_columns_and_odd_names_of_columns(lake):
    names = [f"c{n}" for n in range(195)] + ["é", "日本", "a b", 'quo"te', "_diff2"]
    given = pa.table({"id": ints(1, 2), **{name: ints(n, None) for n, name in enumerate(names)}})
    answer = roundtrip(lake, given.schema, ["id"], given.select([*reversed(names), "id"]))
    assert answer.drop_columns(["_diff"]).equals(given)


class Stream:
    """What polars, DuckDB and others hand out: nothing but an Arrow stream."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


class Array:
    def __init__(self, batch):
        self.batch = batch

    def __arrow_c_array__(self, requested_schema=None):
        return self.batch.__arrow_c_array__(requested_schema)


def test_every_arrow_form_will_do(collection):
    pandas = pytest.importorskip("pandas")
    forms = (
        lambda t: t,
        lambda t: t.to_batches()[0],
        lambda t: t.to_reader(),
        Stream,
        lambda t: Array(t.to_batches()[0]),
        lambda t: pandas.DataFrame({"v": t["v"].to_pylist(), "id": t["id"].to_pylist()}, index=[77]),
        lambda t: t.select(["v", "id"]),
        lambda t: pa.table({"id": t["id"].cast(pa.int8()), "v": t["v"].dictionary_encode()}),
        lambda t: pa.table({"id": t["id"], "v": t["v"].cast(pa.large_string())}),
        lambda t: pa.concat_tables([t.slice(0, 0), t, t.slice(0, 0)]),
    )
    for n, form in enumerate(forms):
        collection.append(form(rows(n)))
    assert contents(collection) == {(n, "x"): 1 for n in range(len(forms))}


@pytest.mark.parametrize("with_times", [True, False])
def test_a_one_shot_reader_is_read_once_and_whole(collection, with_times):
    parts = [at(3, n) if with_times else rows(n) for n in range(5)]
    reader = pa.RecordBatchReader.from_batches(parts[0].schema, (b for t in parts for b in t.to_batches()))
    collection.append(reader)
    assert contents(collection) == {(n, "x"): 1 for n in range(5)}


# A full disk


APPENDS = """
import json, resource, sys, pyarrow as pa, tidelake
from tidelake.errors import TidelakeError
place, limit_bytes, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lake = tidelake.open(place, config=tidelake.Config(retry_deadline_s=0.2, merge_budget_s=0, runs_max=10**6))
c = lake.collection("c")
if limit_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
try:
    for n in range(100_000):
        value = f"{n:09d}" + "".join(f"{(n * 7919 + i * 104729) % 999983:06d}" for i in range(each))
        c.append(pa.table({"id": pa.array([n], pa.int64()), "v": [value]}))
        print(json.dumps(n), flush=True)
except TidelakeError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def filled(place, limit_bytes, each):
    """The ids that a child appended until it met the limit, and its error."""
    done = subprocess.run(
        [sys.executable, "-c", APPENDS, str(place), str(limit_bytes), str(each)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *acknowledged, error = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert isinstance(error, list), "the child met no limit"
    return acknowledged, error


def check_full(place, acknowledged, error):
    kind, message = error
    assert kind in ("StoreUnavailable", "OutcomeUnknown")
    assert "\n" not in message and len(message) < 400
    lake = tidelake.open(place)
    c = lake.collection("c")
    found = [id_ for id_, _ in contents(c)] if acknowledged else []
    assert sorted(found)[: len(acknowledged)] == acknowledged
    # An outcome that was told to be unknown may be in; one that did not happen is not.
    assert len(found) <= len(acknowledged) + (kind == "OutcomeUnknown")
    named = {p.name for item in c.state().spine for p in item.batch.parts() if p.inline is None}
    if kind == "StoreUnavailable":
        assert {info.name for info in inside.stores(lake).blobs.list(f"{c.id}/parts/")} == named
    return lake, c


@pytest.mark.full
@pytest.mark.parametrize(("limit_bytes", "each"), [(40_000, 1), (40_000, 20_000)], ids=["log", "parts"])
def test_a_limit_on_file_sizes_loses_nothing_acknowledged(tmp_path, limit_bytes, each):
    tidelake.open(tmp_path / "lake").create("c", SCHEMA, key=["id"])
    acknowledged, error = filled(tmp_path / "lake", limit_bytes, each)
    assert len(acknowledged) > (2 if each == 1 else -1)
    _, c = check_full(tmp_path / "lake", acknowledged, error)
    c.append(rows(-1))
    assert contents(c)[-1, "x"] == 1


def test_a_full_disk_loses_nothing_acknowledged_and_says_what_to_do(tmp_path):
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system here")
    try:
        tidelake.open(disk / "lake").create("c", SCHEMA, key=["id"])
        acknowledged, (kind, message) = filled(disk / "lake", 0, 200)
        assert len(acknowledged) > 5
        assert kind == "StoreUnavailable"
        assert "no space left on device" in message and "free space and try again" in message
        lake, c = check_full(disk / "lake", acknowledged, (kind, message))
        with pytest.raises(StoreUnavailable, match="free space"):
            c.append(rows(*range(-20_000, 0)))
        assert len(contents(c)) == len(acknowledged)
        lake.close()
        # What the remedy asks for.
        grow = ["mount", "-o", "remount,size=8m", str(disk)]
        subprocess.run(grow, check=True, capture_output=True)
        c = tidelake.open(disk / "lake").collection("c")
        c.append(rows(-1))
        assert len(contents(c)) == len(acknowledged) + 1
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
