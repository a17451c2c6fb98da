"""Streaming reads: a snapshot and all updates after it, each exactly once, whatever happens meanwhile."""

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from tail_source import NAME, SCHEMA, expected, offsets, random_updates, run, sink, stream, to_parquet

import tidelake
from tidelake.config import Config
from tidelake.model.frontier import Frontier
from tidelake.spark import register


class Place:
    """A lake, its only collection, its history, and the folder of a sink."""

    def __init__(self, root: Path, rng: Random, config: Config | None = None) -> None:
        self.root, self.rng = root, rng
        self.url = root / "лак"
        self.lake = tidelake.open(self.url, config=config or Config())
        self.c = self.lake.create(NAME, SCHEMA, key=["ключ"])
        self.history: list[pa.Table] = []
        self.upper = 0

    def append(self, count: int | None = None) -> None:
        lower, self.upper = self.upper, self.upper + self.rng.randrange(1, 5)
        count = self.rng.randrange(20) if count is None else count
        self.history.append(random_updates(self.rng, lower, self.upper, count))
        self.c.append(self.history[-1], upper=self.upper)

    def churn(self) -> None:
        """Let go of all history that is not held, merge, and delete what is not needed."""
        self.c.advance_since(self.upper - 1)
        self.c.merge()
        self.c.collect(thorough=True)

    def snapshot_time(self) -> int:
        first = offsets(self.root)[0]
        assert first["first"] == "snapshot"
        return int(first["frontier"][0]) - 1


HASTY = Config(inline_part_bytes=0, garbage_age_s=0.0, part_target_bytes=2048, row_group_rows=8)


@pytest.mark.promise(
    "A streaming read gives a snapshot and then every update once, or every update from a start on, "
    "whatever is appended, merged, folded and collected meanwhile",
    rule="offsets are exact frontiers; a hold named in them",
    also=[
        "::test_a_snapshot_first_loses_and_doubles_nothing_under_appends",
        "::test_a_late_start_gives_what_came_from_a_time_or_from_now_on",
    ],
)
@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_triggers_give_a_snapshot_and_every_update_once(spark: Any, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    place = Place(tmp_path, rng, HASTY)
    limits = [
        {"maxRowsPerTrigger": 15},
        {"maxTimesPerTrigger": 2},
        {"maxRowsPerTrigger": 9, "maxTimesPerTrigger": 3},
        {},
    ]
    for _ in range(4):
        for _ in range(rng.randrange(1, 5)):
            place.append()
        place.churn()
        batches = run(stream(spark, place.url, **rng.choice(limits)), tmp_path)
        at = place.snapshot_time()
        assert sink(tmp_path) == expected(place.history, at, at + 1, place.upper)
        assert batches
    assert place.c.since < Frontier.of(place.upper), "what may be asked for again is held"


@pytest.mark.full
def test_limits_cut_batches_between_times_only(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(0))
    frame = stream(spark, place.url, startingAt="latest", maxRowsPerTrigger=5)
    assert run(frame, tmp_path) == []
    for time, count in enumerate([2, 2, 2, 7, 1, 4]):
        table = pa.table({"ключ": range(count), "v ü": ["x"] * count, "_time": [time] * count})
        place.c.append(table)
    assert run(frame, tmp_path) == [4, 2, 7, 5], "one time of seven rows is not cut"
    more = stream(spark, place.url, maxTimesPerTrigger=1)
    for time in range(6, 9):
        place.c.append(pa.table({"ключ": [1, 2], "v ü": ["x"] * 2, "_time": [time] * 2}))
    assert run(more, tmp_path) == [2, 2, 2]


@pytest.mark.full
def test_trigger_once_takes_all_at_once_whatever_the_limits(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(0))
    frame = stream(spark, place.url, maxRowsPerTrigger=1, maxTimesPerTrigger=1)
    place.append(10)
    run(frame, tmp_path, once=True)
    for _ in range(5):
        place.append(10)
    run(frame, tmp_path, once=True)
    at = place.snapshot_time()
    assert sink(tmp_path) == expected(place.history, at, at + 1, place.upper)
    assert len(offsets(tmp_path)) == 2


@pytest.mark.full
def test_a_snapshot_first_loses_and_doubles_nothing_under_appends(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(3), Config(inline_part_bytes=0))
    place.append(30)
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.02) and place.upper < 2_000:
            place.append()
            if place.rng.random() < 0.1:
                place.churn()

    writer = threading.Thread(target=write)
    writer.start()
    query = to_parquet(
        stream(spark, place.url, maxRowsPerTrigger=100), tmp_path, {"processingTime": "0 seconds"}
    )
    try:
        while len(query.recentProgress) < 8:
            assert query.exception() is None
            query.awaitTermination(0.1)
    finally:
        over.set()
        writer.join()
        query.stop()
    run(stream(spark, place.url), tmp_path)
    at = place.snapshot_time()
    assert at < place.upper - 1
    assert sink(tmp_path) == expected(place.history, at, at + 1, place.upper)


@pytest.mark.full
def test_a_late_start_gives_what_came_from_a_time_or_from_now_on(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(5))
    for _ in range(5):
        place.append()
    now, after = place.upper, place.upper // 2
    latest, since = tmp_path / "latest", tmp_path / "since"
    for root, start in ((latest, "latest"), (since, after)):
        run(stream(spark, place.url, startingAt=start), root)
    assert sink(latest) == expected(place.history, None, 0, 0)
    for _ in range(3):
        place.append()
    for root in (latest, since):
        # The checkpoint says where to go on, not the option.
        run(stream(spark, place.url), root)
    assert sink(latest) == expected(place.history, None, now, place.upper)
    assert sink(since) == expected(place.history, None, after, place.upper)


@pytest.mark.full
def test_an_empty_collection_and_times_without_rows_are_waited_for(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(0))
    query = to_parquet(stream(spark, place.url), tmp_path, {"processingTime": "0 seconds"})
    try:
        query.awaitTermination(0.5)
        place.append(0)
        query.awaitTermination(0.5)
        for count in (0, 3, 0, 0, 4, 0):
            place.append(count)
        # Spark cannot go on from a first batch that was stopped while it was planned.
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
    run(stream(spark, place.url), tmp_path)
    at = place.snapshot_time()
    assert sink(tmp_path) == expected(place.history, at, at + 1, place.upper)


def failure(frame: Any, root: Path) -> str:
    with pytest.raises(StreamingQueryException) as raised:
        run(frame, root)
    return str(raised.value)


@pytest.mark.promise(
    "A checkpoint whose history is gone, or that is of another collection or a newer Tidelake, is "
    "refused, and nothing is written",
    rule="`StreamReader`, `from_json`",
    also=[
        "::test_a_checkpoint_of_another_collection_of_that_name_is_refused",
        "::test_a_checkpoint_of_a_newer_tidelake_is_refused",
    ],
)
@pytest.mark.full
def test_a_checkpoint_that_was_left_for_too_long_is_refused_with_a_remedy(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(0))
    place.append(9)
    frame = stream(spark, place.url, holdFor="1s")
    run(frame, tmp_path)
    place.append(9)
    # What the end of the lease does, without waiting for it.
    for hold in place.c.state().holds:
        place.c.distributed.release(hold)
    place.append(9)
    place.c.advance_since(place.upper - 1)
    before = sink(tmp_path)
    message = failure(frame, tmp_path)
    assert "HistoryCompacted" in message and "holdFor" in message and "new checkpoint" in message
    assert sink(tmp_path) == before


@pytest.mark.full
def test_a_start_before_history_is_refused_with_a_remedy(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(0))
    place.append(9)
    place.append(9)
    place.c.advance_since(place.upper - 1)
    message = failure(stream(spark, place.url, startingAt=1), tmp_path)
    assert "HistoryCompacted" in message and "startingAt=snapshot" in message
    run(stream(spark, place.url, startingAt=place.upper), tmp_path / "later")


@pytest.mark.full
def test_a_checkpoint_of_another_collection_of_that_name_is_refused(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(0))
    place.append(9)
    run(stream(spark, place.url), tmp_path)
    place.lake.close()
    shutil.rmtree(place.url)
    Place(tmp_path, Random(0)).append(9)
    message = failure(stream(spark, place.url), tmp_path)
    assert "another collection" in message and "new checkpoint" in message


@pytest.mark.full
def test_a_checkpoint_of_a_newer_tidelake_is_refused(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(0))
    place.append(9)
    run(stream(spark, place.url), tmp_path)
    path = tmp_path / "checkpoint" / "offsets" / "0"
    head, _, last = path.read_text().rstrip().rpartition("\n")
    path.write_text(f"{head}\n{json.dumps(json.loads(last) | {'tidelake': 2})}")
    for crc in path.parent.glob(".*.crc"):
        crc.unlink()
    message = failure(stream(spark, place.url), tmp_path)
    assert "FormatTooNew" in message and "upgrade" in message


def forget_last(root: Path) -> None:
    """As if the driver had died before the last batch was in the sink."""
    last = len(offsets(root)) - 1
    (root / "checkpoint" / "commits" / str(last)).unlink()
    (root / "checkpoint" / "commits" / f".{last}.crc").unlink(missing_ok=True)
    log = root / "out" / "_spark_metadata"
    (log / str(last)).unlink()
    (log / f".{last}.crc").unlink(missing_ok=True)


@pytest.mark.promise(
    "A micro-batch that runs again has the same rows, also the first one, in another process",
    rule="`spark/source/offsets.py`: the end of the first batch says where it began",
    also=[
        "spark/source/test_offsets.py::test_a_first_batch_that_was_not_done_is_the_same_in_the_next_process",
        "spark/test_stream_read_kill.py::test_killed_at_random_moments",
    ],
)
@pytest.mark.full
def test_a_batch_that_was_not_done_is_run_again_with_the_same_rows(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(7), HASTY)
    frame = stream(spark, place.url, maxTimesPerTrigger=2)
    for _ in range(3):
        for _ in range(3):
            place.append(12)
        run(frame, tmp_path)
        done = sink(tmp_path)
        forget_last(tmp_path)
        assert sink(tmp_path) != done
        place.churn()
        run(frame, tmp_path)
        assert sink(tmp_path) == done


def await_batches(query: Any, count: int) -> None:
    """Wait until so many batches of a query had rows."""
    while sum(progress.numInputRows > 0 for progress in query.recentProgress) < count:
        assert query.exception() is None
        query.awaitTermination(0.05)


@pytest.mark.full
def test_columns_that_come_and_go_do_not_stop_a_query(spark: Any, tmp_path: Path) -> None:
    place = Place(tmp_path, Random(0))
    place.append(9)
    query = to_parquet(stream(spark, place.url), tmp_path, {"processingTime": "0 seconds"})
    try:
        await_batches(query, 1)
        place.c.evolve(SCHEMA.append(pa.field("more", pa.int32())))
        place.append(9)
        await_batches(query, 2)
    finally:
        query.stop()
    at = place.snapshot_time()
    assert sink(tmp_path) == expected(place.history, at, at + 1, place.upper)


@pytest.mark.promise(
    "A stream of added rows refuses a retraction",
    rule="`spark/source/stream.py`",
    also=["spark/source/test_offsets.py::test_rows_look_as_the_options_say"],
)
@pytest.mark.full
def test_a_feed_and_a_table_are_read_by_path_alone(spark: Any, tmp_path: Path) -> None:
    c = tidelake.open(tmp_path / "lake").create("prices", SCHEMA, key=["ключ"])
    c.append(pa.table({"ключ": [1, 2], "v ü": ["x", "y"]}))
    register(spark)
    table = spark.readStream.format("tidelake").load(str(tmp_path / "lake" / "prices"))
    assert table.columns == ["ключ", "v ü"]
    run(table, tmp_path / "table")
    c.append(pa.table({"ключ": [2, 2, 3], "v ü": ["y", "new", "z"], "_diff": [-1, 1, 2]}))
    feed = spark.readStream.format("tidelake").option("changeFeed", "true").option("startingAt", "1")
    run(feed.load(str(tmp_path / "lake" / "prices")), tmp_path / "feed")
    assert sink(tmp_path / "table") == Counter([(1, "x"), (2, "y")])
    assert sink(tmp_path / "feed") == Counter(
        [(2, "y", "update_preimage", 1, None), (2, "new", "update_postimage", 1, None)]
        + 2 * [(3, "z", "insert", 1, None)]
    )
    message = failure(table, tmp_path / "table")
    assert "InvalidUpdates" in message and "changeFeed=true" in message
    assert sink(tmp_path / "table") == Counter([(1, "x"), (2, "y")])
