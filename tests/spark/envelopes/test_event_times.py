"""Columns that times are taken from: numbers, timestamps and dates."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types as t

import tidelake
from tables import SCHEMA
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.tools import Dms, Maxwell
from tidelake.spark.envelopes.delta import DeltaFeed
from tidelake.spark.envelopes.times import TakeTime, check_time
from tidelake.spark.writing.tables import tables_sink

DAY = 86_400_000


@pytest.mark.parametrize(
    ("values", "times"),
    [
        (pa.array([0, 7, 2**62]), [0, 7, 2**62]),
        (pa.array([date(1970, 1, 1), date(2026, 11, 1), date(1969, 12, 31)]), [0, 20_758 * DAY, -DAY]),
        (pa.array([datetime(1970, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)], pa.timestamp("us", "UTC")), [1]),
        (
            pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            [-1],
        ),
    ],
)
def test_a_time_is_the_last_one_at_or_before_the_value(values, times):
    batch = pa.record_batch({"at": values})
    assert TakeTime("at", "_time", "ms")(batch).column("_time").to_pylist() == times


def test_days_take_dates_and_timestamps_at_midnight():
    midnight = datetime(2026, 11, 1, tzinfo=UTC)
    for values in (pa.array([date(2026, 11, 1)]), pa.array([midnight]), pa.array([20_758])):
        assert TakeTime("at", "_time", "date")(pa.record_batch({"at": values})).column(
            "_time"
        ).to_pylist() == [20_758]
    late = pa.record_batch({"at": pa.array([midnight + timedelta(seconds=1)])})
    with pytest.raises(InvalidUpdates, match=r"^column 'at' holds .*, which is not at midnight UTC"):
        TakeTime("at", "_time", "date")(late)


@pytest.mark.parametrize(
    "envelope", [Debezium(), Debezium(time="source.ts_ms"), Maxwell(time="ts"), Maxwell(), Dms()]
)
def test_feeds_of_moments_are_refused_for_days(envelope):
    days = tidelake.open("memory://days-of-feeds").create("days", SCHEMA, key=["id"], time="date")
    with pytest.raises(UsageError, match=r"'days'.* a .*collection of time 'ms'"):
        envelope.time_of(days)
    assert Debezium(time="source.day").time_of(days) == "source.day"
    with pytest.raises(UsageError, match="time_unit='date': change events have positions and moments"):
        tables_sink(tidelake.open("memory://days-of-feeds"), "orders", time_unit="date")
    with pytest.raises(UsageError, match="are days: give time=COLUMN with dates"):
        DeltaFeed().check(t.StructType(), days)


def test_clocks_take_timestamps_and_dates_and_counters_take_numbers():
    lake = tidelake.open("memory://time-columns")
    clock, counter = (lake.create(unit, SCHEMA, key=["id"], time=unit) for unit in ("us", "counter"))
    for kind in (t.LongType(), t.IntegerType(), t.TimestampType(), t.DateType()):
        check_time(t.StructType([t.StructField("at", kind)]), "at", clock)
    check_time(t.StructType([t.StructField("at", t.LongType())]), "at", counter)
    for kind in (t.TimestampType(), t.DateType(), t.StringType()):
        with pytest.raises(InvalidUpdates, match=r"times of this collection are bigint: cast it"):
            check_time(t.StructType([t.StructField("at", kind)]), "at", counter)
    # Without a zone it is no instant.
    with pytest.raises(InvalidUpdates, match="are bigint, timestamp or date: cast it"):
        check_time(t.StructType([t.StructField("at", t.TimestampNTZType())]), "at", clock)
