"""Times of DataFrames as timestamps, by the helpers and by the format, and the history of a key."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

import tidelake
import tidelake.spark as ts
from tidelake.errors import InvalidUpdates, NotYetClosed, UsageError
from tidelake.model.frontier import Frontier

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
NOON = 1_793_534_400_000
FIRST, SECOND = datetime(2026, 11, 1, 12, tzinfo=UTC), datetime(2026, 11, 1, 12, 0, 0, 500_000, UTC)


def make(tmp_path: Path, unit: str = "ms") -> tidelake.Collection:
    """A collection with two times, half a second apart; the first part is stored, and needs no merge."""
    config = tidelake.Config(inline_part_bytes=0, merge_budget_s=0)
    lake = tidelake.open(tmp_path / "lake", config=config)
    # The tests may run before that day.
    lake.settings(max_ahead_s=3_000_000_000)
    collection = lake.create("c", SCHEMA, key=["k"], time=unit)
    per = 1_000 if unit == "us" else 1
    first = pa.table({"k": [1, 2], "v": ["a", "x"], "_time": [NOON * per] * 2})
    collection.append(first, upper=NOON * per + 1)
    later = (NOON + 500) * per
    second = pa.table({"k": [1, 1], "v": ["a", "b"], "_time": [later] * 2, "_diff": [-1, 1]})
    collection.append(second, upper=later + 1)
    return collection


def load(spark: Any, tmp_path: Path, name: str, **options: Any) -> Any:
    """A read by the format."""
    return spark.read.format("tidelake").options(**options).load(f"{tmp_path}/lake/{name}")


def found(frame: Any) -> set[tuple[int, str, datetime, int]]:
    """The rows; times are read through Arrow, which keeps their zone."""
    assert frame.schema["_time"].dataType.typeName() == "timestamp"
    assert frame.columns == ["k", "v", "_time", "_diff"]
    return {(r["k"], r["v"], r["_time"].astimezone(UTC), r["_diff"]) for r in frame.toArrow().to_pylist()}


@pytest.mark.parametrize("unit", ["ms", pytest.param("us", marks=pytest.mark.full)])
def test_helpers_and_the_format_give_times_as_timestamps(spark: Any, tmp_path: Path, unit: str) -> None:
    c = make(tmp_path, unit)
    per = 1_000 if unit == "us" else 1
    now = {(1, "b", SECOND, 1), (2, "x", SECOND, 1)}
    changed = {(1, "a", SECOND, -1), (1, "b", SECOND, 1)}
    every = changed | {(1, "a", FIRST, 1), (2, "x", FIRST, 1)}
    assert found(ts.snapshot(spark, c, times="timestamp")) == now
    noon, end = NOON * per, (NOON + 500) * per
    first = ts.snapshot(spark, c, noon, times="timestamp")
    assert found(first) == {(1, "a", FIRST, 1), (2, "x", FIRST, 1)}
    assert found(ts.changes(spark, c, noon, end, times="timestamp")) == changed
    assert found(ts.updates(spark, c, 0, end + 1, times="timestamp")) == every
    assert found(load(spark, tmp_path, "c", lower=0, times="timestamp")) == every
    assert found(load(spark, tmp_path, "c", withDiff=True, times="timestamp")) == now
    assert ts.snapshot(spark, c).schema["_time"].dataType.typeName() == "long"


@pytest.mark.full
def test_days_are_dates(spark: Any, tmp_path: Path) -> None:
    lake = tidelake.open(tmp_path / "lake", config=tidelake.Config(inline_part_bytes=0))
    days = lake.create("days", SCHEMA, key=["k"], time="date")
    first, second = date(2024, 1, 31), date(2024, 2, 1)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.createDataFrame([(1, "a", first), (2, "b", second)], "k bigint, v string, on date")
        ts.upsert(days, frame, time="on")
        assert days.upper == Frontier.of(19_755)
        for found in (
            ts.updates(spark, days, 0, days.upper, times="timestamp"),
            load(spark, tmp_path, "days", lower="2024-01-31", times="timestamp"),
        ):
            assert found.schema["_time"].dataType.typeName() == "date"
            assert {(r["k"], r["_time"]) for r in found.collect()} == {(1, first), (2, second)}
        assert [r["k"] for r in load(spark, tmp_path, "days", asOf="2024-01-31").collect()] == [1]
        noon = spark.sql("SELECT 3L AS k, 'c' AS v, timestamp'2024-02-02 12:00:00Z' AS on")
        with pytest.raises(InvalidUpdates, match="not at midnight UTC"):
            ts.upsert(days, noon, time="on")
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.full
def test_a_stream_gives_times_as_timestamps(spark: Any, tmp_path: Path) -> None:
    make(tmp_path)
    read = spark.readStream.format("tidelake").options(times="timestamp", startingAt=0, withDiff=True)
    frame = read.load(f"{tmp_path}/lake/c")
    assert frame.schema["_time"].dataType.typeName() == "timestamp"
    write = frame.writeStream.format("memory").queryName("times_out").outputMode("append")
    query = write.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    assert {r["_time"].astimezone(UTC) for r in spark.table("times_out").toArrow().to_pylist()} == {
        FIRST,
        SECOND,
    }


def test_the_history_of_a_key_is_one_ordered_partition(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    frame = ts.history(spark, c, 1)
    wanted = [(1, "a", NOON, 1), (1, "a", NOON + 500, -1), (1, "b", NOON + 500, 1)]
    assert list(map(tuple, frame.collect())) == wanted
    assert frame.columns == ["k", "v", "_time", "_diff"]
    stamped = ts.history(spark, c, {"k": 1}, NOON + 1, times="timestamp", columns=["v"])
    rows = stamped.toArrow().to_pylist()
    assert [(r["v"], r["_time"].astimezone(UTC), r["_diff"]) for r in rows] == [
        ("a", SECOND, -1),
        ("b", SECOND, 1),
    ]
    assert ts.history(spark, c, 9).count() == 0


def test_what_has_no_timestamps_is_refused(spark: Any, tmp_path: Path) -> None:
    counted = tidelake.open(tmp_path / "lake").create("counted", SCHEMA, key=["k"])
    counted.append(pa.table({"k": [1], "v": ["a"], "_time": [3]}))
    with pytest.raises(UsageError, match="times of unit counter do not count from 1970"):
        ts.snapshot(spark, counted, times="timestamp")
    for options, told in (
        ({"withDiff": True}, "times of unit counter do not count from 1970"),
        ({"asOf": 3}, "these rows have no column _time"),
        ({"lower": 0, "changeFeed": True}, "_commit_timestamp is one already"),
        ({"lower": 0, "times": "date"}, "neither int64 nor timestamp"),
    ):
        with pytest.raises(PySparkException, match=told):
            load(spark, tmp_path, "counted", **{"times": "timestamp", **options})


@pytest.mark.full
def test_helpers_and_options_take_instants(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    old = {(1, "a"), (2, "x")}
    half = datetime(2026, 11, 1, 12, 0, 0, 499_999, UTC)

    def rows(frame: Any) -> set[tuple[int, str]]:
        return {(row["k"], row["v"]) for row in frame.collect()}

    assert rows(ts.snapshot(spark, c, half)) == rows(ts.snapshot(spark, c, "2026-11-01 12:00Z")) == old
    assert rows(load(spark, tmp_path, "c", asOf="2026-11-01 13:00:00.499+01:00")) == old
    assert rows(ts.changes(spark, c, FIRST, SECOND)) == {(1, "a"), (1, "b")}
    assert rows(ts.updates(spark, c, FIRST, "2026-11-01 12:00:00.5Z")) == old
    assert rows(load(spark, tmp_path, "c", lower="2026-11-01 12:00:00.001Z", upper="[]", staged="true")) == {
        (1, "a"),
        (1, "b"),
    }
    with pytest.raises(UsageError, match=r"does not say its zone: give value\.replace"):
        ts.snapshot(spark, c, half.replace(tzinfo=None))
    with pytest.raises(NotYetClosed, match=r"the last closed time is 2026-11-01 12:00:00\.5"):
        ts.snapshot(spark, c, "2026-11-01 12:01Z")
    one = spark.createDataFrame([(1, "z")], "k bigint, v string")
    minute = datetime(2026, 11, 1, 12, 1, tzinfo=UTC)
    assert ts.replace(c, one, time=minute).upper.elements == (NOON + 60_001,)
    two = spark.createDataFrame([(2, "y")], "k bigint, v string")
    assert ts.upsert(c, two, time=minute.replace(minute=2)).upper.elements == (NOON + 120_001,)
    done = ts.write(c, two, "snapshot", time=minute.replace(minute=3))
    assert done.appended.upper.elements == (NOON + 180_001,)
    two.write.format("tidelake").option("envelope", "upsert").option("time", "2026-11-01 12:04Z").mode(
        "append"
    ).save(f"{tmp_path}/lake/c")
    assert rows(ts.snapshot(spark, c)) == {(2, "y")}
