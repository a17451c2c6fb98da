"""How times come out: as numbers, as timestamps on request, and as texts in errors."""

import datetime
import pickle
import uuid

import pyarrow as pa
import pytest

import tidelake
from tables import SCHEMA, at, rows
from tidelake.errors import (
    HistoryCompacted,
    NotYetClosed,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UpperMismatch,
    UsageError,
)
from tidelake.model.selection import ReadOptions

NOON = 1_793_534_400_000
# After the year 9999, where Python has no dates.
FAR = 253_402_300_800_000

READS = {
    "snapshot": lambda c, **how: c.snapshot(**how).read_all(),
    "lookup": lambda c, **how: c.lookup(pa.table({"id": [1]}), **how),
    "changes": lambda c, **how: c.changes(NOON - 1, NOON, **how).read_all(),
    "updates": lambda c, **how: c.updates(NOON, NOON + 1, **how).read_all(),
    "history": lambda c, **how: c.history(1, **how),
    "split_snapshot": lambda c, **how: c.distributed.split_snapshot(1, **how)[0].read_all(),
    "split_changes": lambda c, **how: c.distributed.split_changes(1, NOON - 1, NOON, **how)[0].read_all(),
    "split_updates": lambda c, **how: c.distributed.split_updates(1, NOON, NOON + 1, **how)[0].read_all(),
    "listen": lambda c, **how: next(c.listen(NOON - 1, timeout_s=0, **how)).updates.read_all(),
    "subscribe": lambda c, **how: next(c.subscribe(NOON, timeout_s=0, **how)).updates.read_all(),
}


@pytest.fixture
def lake():
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as opened:
        yield opened


def made(lake, unit="ms"):
    collection = lake.create(f"of {unit}", SCHEMA, key=["id"], time=unit)
    # The tests may run before that day.
    lake.settings(max_ahead_s=3_000_000_000)
    collection.append(at(NOON, 1), upper=NOON + 1)
    return collection


@pytest.mark.promise(
    "Times of streams are int64, those of look-ups, histories and frames of pandas timestamps, unless asked",
    rule="`data/kernel/timestamps.py`",
    also=[
        "data/test_timestamps.py::test_every_time_has_a_timestamp_of_the_same_number_and_nothing_is_copied"
    ],
)
@pytest.mark.parametrize("read", READS)
def test_every_read_gives_times_as_numbers_or_on_request_as_timestamps(lake, read):
    collection = made(lake)
    plain, asked = READS[read](collection, times="int64"), READS[read](collection, times="timestamp")
    assert plain.schema.field("_time") == pa.field("_time", pa.int64(), nullable=False)
    assert asked.schema.field("_time") == pa.field("_time", pa.timestamp("ms", "UTC"), nullable=False)
    assert READS[read](collection).equals(asked if read in ("lookup", "history") else plain)
    again = asked.set_column(
        asked.schema.get_field_index("_time"), plain.schema.field("_time"), asked["_time"].cast(pa.int64())
    )
    assert again.equals(plain) and plain["_time"].to_pylist() == [NOON]


@pytest.mark.parametrize(("unit", "kind"), [("ms", "datetime64[ms, UTC]"), ("us", "datetime64[us, UTC]")])
def test_frames_of_pandas_have_timestamps_and_can_be_written_back(lake, unit, kind):
    collection = made(lake, unit)
    frame = collection.snapshot().to_pandas()
    assert str(frame.dtypes["_time"]) == kind
    frame["_diff"] = -1
    other = lake.create("other", SCHEMA, key=["id"], time=unit)
    other.append(frame)
    assert other.updates(0, other.upper).read_all()["_time"].to_pylist() == [NOON]


def test_frames_of_pandas_have_days_as_dates(lake):
    days = lake.create("days", SCHEMA, key=["id"], time="date")
    days.append(at(20_028, 1))
    assert days.snapshot().to_pandas()["_time"].tolist() == [datetime.date(2024, 11, 1)]
    assert days.history(1)["_time"].to_pylist() == [datetime.date(2024, 11, 1)]


@pytest.mark.parametrize("read", READS)
def test_a_counter_has_no_timestamps(lake, read):
    collection = made(lake, "counter")
    with pytest.raises(UsageError, match=r"times='timestamp': times of unit counter do not count from 1970"):
        READS[read](collection, times="timestamp")


def test_tuples_have_no_timestamps(lake):
    pairs = lake.create("pairs", SCHEMA, key=["id"], time="tuple(2)")
    pairs.compare_and_append(rows(1, _time_0=[0], _time_1=[0]), (0, 0), [(1, 0), (0, 1)])
    for read in (pairs.snapshot, pairs.listen):
        with pytest.raises(UsageError, match=r"times of unit tuple\(2\) do not count from 1970"):
            read((0, 0), times="timestamp")


def test_a_reader_gives_timestamps_too(lake):
    collection = made(lake)
    with collection.reader("test") as reader:
        for found in (
            reader.snapshot(times="timestamp"),
            reader.changes(NOON - 1, NOON, times="timestamp"),
            reader.updates(NOON, NOON + 1, times="timestamp"),
            next(reader.listen(NOON - 1, 0, times="timestamp")).updates,
        ):
            assert found.schema.field("_time").type == pa.timestamp("ms", "UTC")
            assert found.read_all()["_time"].cast(pa.int64()).to_pylist() == [NOON]


def test_times_after_the_last_date_of_python_are_timestamps_of_arrow(lake):
    collection = made(lake)
    collection.stage(at(FAR, 1))
    found = collection.history(1, staged=True, times="timestamp")["_time"]
    assert found.cast(pa.int64()).to_pylist() == [NOON, FAR]


def test_what_was_read_with_timestamps_can_be_appended(lake):
    collection, other = made(lake, "us"), lake.create("other", SCHEMA, key=["id"], time="us")
    other.append(collection.snapshot(times="timestamp").read_all())
    assert other.snapshot().read_all().equals(collection.snapshot().read_all())


def test_other_types_and_plans_are_refused(lake):
    collection = made(lake)
    with pytest.raises(UsageError, match="times='date' must be 'int64' or 'timestamp'"):
        collection.snapshot(times="date")
    with pytest.raises(UsageError, match="the tasks of a plan give int64"):
        collection.distributed.plan(None, 1, ReadOptions(times="timestamp"))


def test_errors_tell_times_of_a_clock_as_people_write_them_and_survive_pickling(lake):
    collection = made(lake)
    with pytest.raises(NotYetClosed) as open_yet:
        collection.snapshot(NOON + 240_000, timeout_s=0)
    assert "time 2026-11-01 12:04Z is not closed" in str(open_yet.value)
    assert "2026-11-01 12:00Z" in str(open_yet.value) and "4 minutes short of it" in str(open_yet.value)
    assert (open_yet.value.asked, open_yet.value.upper) == (NOON + 240_000, NOON + 1)
    with pytest.raises(
        UpperMismatch, match=r"the upper is 2026-11-01 12:00:00\.001Z, not the expected"
    ) as moved:
        collection.compare_and_append(at(NOON + 5, 1), NOON, NOON + 6)
    with pytest.raises(UpdateBeforeLower, match="an update at time 2026-11-01 11:59Z is not at") as early:
        collection.compare_and_append(at(NOON - 60_000, 1), NOON + 1, NOON + 6)
    with pytest.raises(UpdateNotBeforeUpper, match="at time 2026-11-01 12:01Z is at or after the") as late:
        collection.compare_and_append(at(NOON + 60_000, 1), NOON + 1, NOON + 6)
    collection.advance_since(NOON)
    with pytest.raises(
        HistoryCompacted, match="at 2026-11-01 11:00Z is compacted: since=2026-11-01 12:00Z"
    ) as gone:
        collection.snapshot(NOON - 3_600_000)
    for raised in (open_yet, moved, early, late, gone):
        again = pickle.loads(pickle.dumps(raised.value))
        assert str(again) == str(raised.value) and type(again) is type(raised.value)


def test_errors_tell_times_that_are_no_dates_as_numbers(lake):
    collection = made(lake)
    with pytest.raises(
        NotYetClosed, match=rf"time {FAR} is not closed: .* 2026-11-01 12:00Z, 2,912,\d\d\d days 12 hours"
    ):
        collection.snapshot(FAR, timeout_s=0)
    counted = lake.create("counted", SCHEMA, key=["id"])
    counted.append(at(5, 1), upper=6)
    with pytest.raises(NotYetClosed, match=r"time 9 is not closed: .* 4 short of it"):
        counted.snapshot(9, timeout_s=0)
    pairs = lake.create("pairs", SCHEMA, key=["id"], time="tuple(2)")
    with pytest.raises(NotYetClosed, match=r"time \(3, 4\) is not closed"):
        pairs.snapshot((3, 4), timeout_s=0)


def test_a_refusal_by_the_state_tells_times_as_well(lake):
    collection = made(lake)
    collection.advance_since(9)
    with pytest.raises(HistoryCompacted, match=r"since=1970-01-01 00:00:00\.009Z"):
        collection.reader("test", since=3)
    with pytest.raises(
        UsageError, match=r"since=2026-11-01 12:01Z is past the upper 2026-11-01 12:00:00\.001Z"
    ):
        collection.advance_since(NOON + 60_000)
    with pytest.raises(UsageError, match="changes after 2026-11-01 12:00Z cannot end at 2026-11-01 11:59Z"):
        collection.changes(NOON, NOON - 60_000)
