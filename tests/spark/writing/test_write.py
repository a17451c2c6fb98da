"""Writes of DataFrames by envelope and by token."""

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from small_frames import close, rows

import tidelake
from tables import SCHEMA, contents
from tidelake.errors import InvalidUpdates, UpdateBeforeLower, UpperMismatch, UsageError, WriterFenced
from tidelake.lake.api.distributed import Distributed
from tidelake.model.frontier import Frontier
from tidelake.spark import append, sink, write
from tidelake.spark.envelopes.updates import Updates
from tidelake.testing import tables

pytestmark = pytest.mark.usefixtures("both_ways")

UTC = dt.UTC


def make(tmp_path: Path, time: str = "counter", schema: pa.Schema = SCHEMA) -> tidelake.Collection:
    return tidelake.open(tmp_path / "lake").create("c", schema, key=["id"], time=time)


def history(c: tidelake.Collection) -> Counter[Any]:
    """(row, time) -> diff."""
    return tables.by_time(c.updates(0, c.upper).read_all(), c.domain)


@pytest.fixture
def meddler(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Uppers that another writer moves the collection to, each right before an append of uploads."""
    uppers: list[int] = []
    original = Distributed.append_uploaded

    def append_uploaded(self: Distributed, *args: Any, **kwargs: Any) -> Any:
        if uppers:
            close(tidelake.open(self.lake_url)["c"], uppers.pop(0))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Distributed, "append_uploaded", append_uploaded)
    return uppers


@pytest.mark.parametrize("envelope", ["updates", "upsert", "snapshot"])
def test_rows_that_are_erased_while_a_write_runs_stay_away(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envelope: str
) -> None:
    """What was stored before the erasure is made again."""
    c = make(tmp_path)
    c.append(pa.table({"id": [1, 2], "v": ["old", "b"]}, schema=SCHEMA))
    original, erased = Distributed.append_uploaded, list[str]()

    def append_uploaded(self: Distributed, *args: Any, **kwargs: Any) -> Any:
        if not erased:
            erased.append(tidelake.open(self.lake_url)["c"].erase([1], reason="r").id)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Distributed, "append_uploaded", append_uploaded)
    write(c, rows(spark, (1, "new"), (2, "b")), envelope=envelope)
    twice = 2 if envelope == "updates" else 1
    assert contents(c) == {(1, "new"): 1, (2, "b"): twice}


def counted(spark: Any, frame: Any) -> tuple[Any, Any]:
    """The frame, and an accumulator of how many rows of it were evaluated."""
    seen = spark.sparkContext.accumulator(0)

    def look(batches: Any) -> Any:
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    return frame.mapInArrow(look, frame.schema), seen


def test_rows_are_added_at_the_time_of_the_commit(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    done = write(c, rows(spark, (1, "a"), (2, None), (1, "a")))
    assert (done.appended.upper, done.updates) == (Frontier.of(1), 3)
    assert history(c) == {((1, "a"), 0): 2, ((2, None), 0): 1}


def test_times_are_taken_from_a_column(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    frame = rows(spark, (1, "a", 3), (2, "b", 5), schema="id bigint, v string, at int")
    assert write(c, frame, time="at").appended.upper == Frontier.of(6)
    write(c, rows(spark, (3, "c", 9), schema="id bigint, v string, _time bigint"))
    gone = rows(spark, (2, "b", 11, -1), schema="id bigint, v string, at bigint, _diff bigint")
    assert write(c, gone, time="at").appended.upper == Frontier.of(12)
    assert history(c) == {((1, "a"), 3): 1, ((2, "b"), 5): 1, ((3, "c"), 9): 1, ((2, "b"), 11): -1}


@pytest.mark.parametrize(("unit", "of_second"), [("ms", 1000), ("us", 1_000_000)])
def test_timestamps_are_times_of_a_clock(spark: Any, tmp_path: Path, unit: str, of_second: int) -> None:
    schema = SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC")))
    c = make(tmp_path, unit, schema)
    at = dt.datetime(2026, 1, 31, 12, 0, 0, 123_999, UTC)
    frame = rows(spark, (1, "a", at), schema="id bigint, v string, at timestamp")
    write(c, frame, time="at")
    second = int(at.replace(microsecond=0).timestamp())
    time = second * of_second + 123_999 * of_second // 1_000_000
    # The collection has a column of that name, so it is stored as well.
    assert history(c) == {((1, "a", at), time): 1}
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    with pytest.raises(InvalidUpdates, match="a time must not be negative"):
        write(c, rows(spark, (1, "a", before), schema=frame.schema), time="at")


def test_columns_for_times_are_checked_before_anything_runs(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    frame = rows(spark, (1, "a"))
    with pytest.raises(InvalidUpdates, match=r"has 0 columns 'at' to take times from: it has 'id', 'v'"):
        write(c, frame, time="at")
    with pytest.raises(InvalidUpdates, match=r"column 'at' is timestamp, and times .* are bigint: cast it"):
        write(c, frame.selectExpr("*", "current_timestamp() AS at"), time="at")
    with pytest.raises(InvalidUpdates, match="'_time' is not in the collection"):
        write(c, frame.selectExpr("*", "1L AS at", "1L AS _time"), time="at")
    with pytest.raises(InvalidUpdates, match="'at' is not in the collection"):
        write(c, frame.selectExpr("*", "1L AS at"))


def test_envelopes_are_known_by_name_and_take_only_their_options(spark: Any, tmp_path: Path) -> None:
    c, frame = make(tmp_path), rows(spark, (1, "a"))
    with pytest.raises(UsageError, match="no envelope 'update': did you mean 'updates'"):
        write(c, frame, "update")
    with pytest.raises(UsageError, match="no envelope 'x': known are canal, debezium,"):
        write(c, frame, "x")
    with pytest.raises(UsageError, match="'updates' takes no order_by: it takes time, late"):
        write(c, frame, "updates", order_by="at")
    with pytest.raises(UsageError, match=r"late: Updates\(.* is made already"):
        write(c, frame, Updates(), late="advance")
    with pytest.raises(UsageError, match="late='drop' is unknown"):
        write(c, frame, late="drop")
    assert write(c, frame, Updates(), upper=7).appended.upper == Frontier.of(7)


def test_bad_arguments_are_refused_before_anything_runs(spark: Any, tmp_path: Path) -> None:
    c, frame = make(tmp_path), rows(spark, (1, "a"))
    for nothing in (None, 5, Updates):
        with pytest.raises(UsageError, match=r"an envelope is one of canal, debezium, .*, and not"):
            write(c, frame, nothing)  # type: ignore[arg-type]
    # Spark would take a text for a column to sort by.
    for ranges in (0, -1, "v", 1.5):
        with pytest.raises(UsageError, match="must be a number of key ranges, 1 or more"):
            write(c, frame, ranges=ranges)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="writer name '' must be a non-empty text"):
        sink(c, writer="")
    assert not c.state().writers


@pytest.mark.promise(
    "Rows get the time of the commit without a second upload, also if another writer was faster; "
    "late rows are refused, or get the least open time",
    rule="`append_uploaded(advance=True)`",
    also=[
        "::test_late_rows_are_refused_or_advanced",
        "shard/writing/test_batches.py::test_times_of_uploads_may_be_advanced_to_the_upper_that_they_are_appended_at",
    ],
)
def test_the_time_of_the_commit_is_later_if_another_writer_is_faster(
    spark: Any, tmp_path: Path, meddler: list[int]
) -> None:
    c = make(tmp_path)
    meddler += [4, 9]
    frame, evaluated = counted(spark, rows(spark, (1, "a"), (2, "b")))
    assert write(c, frame).appended.upper == Frontier.of(10)
    assert history(c) == {((1, "a"), 9): 1, ((2, "b"), 9): 1}
    assert evaluated.value == 2 and not meddler


def test_late_rows_are_refused_or_advanced(spark: Any, tmp_path: Path, meddler: list[int]) -> None:
    c = make(tmp_path)
    close(c, 5)
    frame = rows(spark, (1, "a", 3), (1, "a", 4), (2, "b", 7), schema="id bigint, v string, _time bigint")
    with pytest.raises(UpdateBeforeLower, match="time 3 is not at or after the lower frontier"):
        write(c, frame)
    assert c.upper == Frontier.of(5)
    meddler.append(6)
    seen_frame, evaluated = counted(spark, frame)
    assert write(c, seen_frame, Updates(late="advance")).appended.upper == Frontier.of(8)
    assert history(c) == {((1, "a"), 6): 2, ((2, "b"), 7): 1}
    assert evaluated.value == 3
    # All of them late: the upper moves just past where they went.
    assert write(c, frame, late="advance").appended.upper == Frontier.of(9)
    assert history(c) == {((1, "a"), 6): 2, ((2, "b"), 7): 1, ((1, "a"), 8): 2, ((2, "b"), 8): 1}


def test_times_that_another_writer_closes_are_refused(spark: Any, tmp_path: Path, meddler: list[int]) -> None:
    c = make(tmp_path)
    meddler.append(4)
    frame = rows(spark, (1, "a", 3), schema="id bigint, v string, _time bigint")
    with pytest.raises(UpdateBeforeLower):
        write(c, frame)
    assert (c.upper, history(c)) == (Frontier.of(4), {})


@pytest.mark.parametrize("envelope", ["upsert", "snapshot"])
def test_what_depends_on_the_contents_is_not_made_before_its_lower(
    spark: Any, tmp_path: Path, meddler: list[int], envelope: str
) -> None:
    """Otherwise it would miss what another writer adds until that is reached."""
    c = make(tmp_path)
    append(c, rows(spark, (1, "a")))
    meddler.append(10)
    with pytest.raises(UpperMismatch):
        write(c, rows(spark, (1, "b")), envelope, time=20, lower=10)
    close(c, 10)
    meddler.clear()
    assert write(c, rows(spark, (1, "b")), envelope, time=20, lower=10).appended.upper == Frontier.of(21)


def test_a_closed_collection_is_refused(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    c.append(pa.table({"id": [1], "v": ["a"], "_time": [0]}), upper=[])
    with pytest.raises(UpperMismatch, match="all times are closed for good"):
        write(c, rows(spark, (1, "a")))


def test_the_last_time_is_not_closed_by_accident(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    frame = rows(spark, (1, "a", 2**63 - 1), schema="id bigint, v string, _time bigint")
    with pytest.raises(UsageError, match=r"closes the collection for good: give upper=\[\] if that is meant"):
        write(c, frame)
    assert write(c, frame, upper=[]).appended.upper.closed


def test_tuple_times_are_written_between_lower_and_upper(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, "tuple(2)")
    frame = rows(spark, (1, "a", 0, 0), schema="id bigint, v string, _time_0 bigint, _time_1 bigint")
    upper = Frontier.of((1, 0), (0, 1))
    assert write(c, frame, lower=[(0, 0)], upper=upper).appended.upper == upper
    assert write(c, frame.where("id > 1"), "updates", lower=upper, upper=[]).appended.upper == Frontier()
    with pytest.raises(UsageError, match="time='at' needs times that are single numbers"):
        write(c, frame, time="at")
    with pytest.raises(UsageError, match="need the columns _time_0, _time_1, lower and upper"):
        write(c, frame, lower=[])


@pytest.mark.promise(
    "A write under a token comes in once, also if it is repeated with other rows; of two writes at "
    "once, one comes in",
    rule="a named writer for each token",
    also=[
        "::test_a_token_counts_only_once_its_rows_are_in",
        "::test_of_two_writes_under_one_token_the_later_one_is_in",
        "spark/source/test_sink.py::test_a_token_is_in_once",
    ],
)
def test_a_token_is_in_once_whatever_comes_with_it(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    frame, evaluated = counted(spark, rows(spark, (1, "a")))
    first = write(c, frame, token="orders 2026-01-31")
    again = write(c, frame, token="orders 2026-01-31")
    assert not first.appended.already and again.appended.already
    assert (again.appended.upper, evaluated.value) == (Frontier.of(1), 1)
    # Also with a lower that no longer holds, and through a handle of another process.
    other = tidelake.open(tmp_path / "lake").collection("c")
    frame = rows(spark, (9, "z", 0), schema="id bigint, v string, _time bigint")
    assert append(other, frame, lower=0, upper=1, token="orders 2026-01-31").already
    assert history(c) == {((1, "a"), 0): 1}
    write(c, rows(spark, (1, "a")), token="orders 2026-02-01")
    assert history(c) == {((1, "a"), 0): 1, ((1, "a"), 1): 1}


def test_a_token_counts_only_once_its_rows_are_in(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    bad = rows(spark, (None, "a"))
    with pytest.raises(InvalidUpdates, match="'id' must not be null"):
        write(c, bad, token="t")
    assert not write(c, rows(spark, (1, "a")), token="t").appended.already
    empty = rows(spark, (1, "a")).where("id > 1")
    assert not write(c, empty, token="none").appended.already
    assert write(c, empty, token="none").appended.already
    # An append closes a time, also without rows; under a token once.
    assert (history(c), c.upper) == ({((1, "a"), 0): 1}, Frontier.of(2))


def test_of_two_writes_under_one_token_the_later_one_is_in(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidelake.lake.api.writer import Writer

    c = make(tmp_path)
    original = Writer.append_uploaded

    def append_uploaded(self: Writer, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(Writer, "append_uploaded", original)
        other = tidelake.open(tmp_path / "lake").collection("c")
        write(other, rows(spark, (2, "b")), token="t")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Writer, "append_uploaded", append_uploaded)
    with pytest.raises(WriterFenced):
        write(c, rows(spark, (1, "a")), token="t")
    assert history(c) == {((2, "b"), 0): 1}


@pytest.mark.parametrize(
    ("token", "reason"), [("", "non-empty"), ("x" * 250, "250 bytes"), ("a\n", "control")]
)
def test_a_token_is_a_short_text(spark: Any, tmp_path: Path, token: str, reason: str) -> None:
    c = make(tmp_path)
    with pytest.raises(UsageError, match=f"token.*{reason}"):
        write(c, rows(spark, (1, "a")), token=token)
    assert not c.state().writers
