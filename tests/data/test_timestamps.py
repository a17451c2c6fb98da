"""Times as Arrow timestamps: the same numbers, without a copy."""

from datetime import date

import pyarrow as pa
import pytest

from tidelake.data.kernel.timestamps import check_clock, days_of, stream, timestamp_schema, with_timestamps
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.time import TIME_MAX, TimeDomain

TIMES = [0, 1, 1_793_534_400_000, 253_402_300_800_000, TIME_MAX]
ROWS = pa.record_batch(
    [pa.array(range(len(TIMES))), pa.array(TIMES), pa.array([1] * len(TIMES))],
    schema=pa.schema(
        [("id", pa.int64()), pa.field("_time", pa.int64(), nullable=False), ("_diff", pa.int64())]
    ),
)


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_every_time_has_a_timestamp_of_the_same_number_and_nothing_is_copied(unit):
    domain = TimeDomain(unit)
    found = with_timestamps(ROWS, domain)
    assert found.schema.field("_time") == pa.field("_time", pa.timestamp(unit, "UTC"), nullable=False)
    assert found.schema == timestamp_schema(ROWS.schema, domain)
    assert found.column("_time").cast(pa.int64()).to_pylist() == TIMES
    assert found.column("_time").buffers()[1].address == ROWS.column("_time").buffers()[1].address
    assert found.select(["id", "_diff"]).equals(ROWS.select(["id", "_diff"]))
    assert with_timestamps(pa.Table.from_batches([ROWS]), domain).to_batches() == [found]


def test_days_are_dates_up_to_the_last_one():
    domain = TimeDomain("date")
    rows = ROWS.set_column(1, ROWS.schema.field(1), pa.array([0, 20_758, 2_932_896, 2**31 - 1, 7]))
    found = with_timestamps(rows, domain)
    assert found.schema.field("_time") == pa.field("_time", pa.date32(), nullable=False)
    assert found.schema == timestamp_schema(rows.schema, domain)
    assert found.column("_time")[:3].to_pylist() == [date(1970, 1, 1), date(2026, 11, 1), date(9999, 12, 31)]
    assert days_of(found.column("_time"), "_time").equals(rows.column("_time"))
    with pytest.raises(UsageError, match=f"time {TIME_MAX} is past the last date"):
        with_timestamps(ROWS, domain)


DAY_MS = 86_400_000
KINDS = [
    pa.date64(),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "Asia/Tokyo")),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_at_midnight_utc_is_a_day_and_nothing_else_is(kind):
    per_day = {"s": 86_400, "ms": DAY_MS, "us": DAY_MS * 10**3, "ns": DAY_MS * 10**6}[
        getattr(kind, "unit", "ms")
    ]
    days = [-2, -1, 0, 1, None, 20_758]
    numbers = pa.array([None if n is None else n * per_day for n in days], pa.int64())
    assert days_of(numbers.view(kind)[1:], "_time").to_pylist() == days[1:]
    for off in (1, -1, per_day - 1):
        with pytest.raises(InvalidUpdates, match=r"^column '_time' holds .*, which is not at midnight UTC"):
            days_of(pa.array([0, None, per_day + off], pa.int64()).view(kind), "_time")


def test_rows_without_times_stay_as_they_are():
    bare = ROWS.select(["id"])
    assert with_timestamps(bare, TimeDomain("ms")) is bare


def test_a_stream_that_is_left_closes_what_it_reads():
    closed = []

    def batches():
        try:
            yield ROWS
            yield ROWS
        finally:
            closed.append(True)

    found = stream(batches(), TimeDomain("ms"))
    assert next(found).schema.field("_time").type == pa.timestamp("ms", "UTC")
    found.close()
    assert closed == [True]


@pytest.mark.parametrize("domain", [TimeDomain(), TimeDomain("tuple", 2)])
def test_counters_and_tuples_have_no_timestamps(domain):
    with pytest.raises(UsageError, match=r"times of unit .* do not count from 1970"):
        check_clock(domain)
