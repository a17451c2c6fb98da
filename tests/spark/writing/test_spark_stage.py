"""DataFrames that are staged, reads of what is staged, and streams that stage and seal at their watermark."""

import datetime
import pickle
from pathlib import Path
from typing import Any

import pytest

import inside

pytest.importorskip("pyspark")

import stream_source
from pyspark.errors import StreamingQueryException

import tidelake
import tidelake.spark as ts
from tidelake.errors import InvalidUpdates, UpdateBeforeLower, UsageError
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark import WrittenBatch, sink, stage
from tidelake.spark.writing.exactly_once import IntoCollection, IntoStage

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("both_ways")]

TIMED = "id bigint, v string, _time bigint"


@pytest.fixture
def c(tmp_path: Path) -> Any:
    return tidelake.open(tmp_path / "lake").create("c", stream_source.SCHEMA, key=["id"])


def frame(spark: Any, *rows: tuple[Any, ...]) -> Any:
    return spark.createDataFrame(list(rows), TIMED)


def contents(c: Any, as_of: int | None = None, **more: Any) -> list[Any]:
    return c.snapshot(as_of, **more).read_all()["id"].to_pylist()


# --- Batches ---


def test_a_frame_is_staged_in_one_commit(spark: Any, c: Any) -> None:
    before = c.state().seqno
    assert stage(c, frame(spark, (1, "a", 3), (2, "b", 9), (3, "c", 1))) is True
    assert c.state().seqno == before + 1 and c.upper == Frontier.of(0)
    assert contents(c, 5, staged=True) == [1, 3]
    c.seal(5)
    assert contents(c) == [1, 3]


def test_a_token_stages_once(spark: Any, c: Any) -> None:
    for first in (True, False):
        assert stage(c, frame(spark, (1, "a", 3)), token="day 1") is first
    assert ts.snapshot(spark, c, 5, staged=True).collect()[0]["_diff"] == 1
    assert c.stage(c.snapshot(5, staged=True).read_all(), token="day 1") is False


def test_a_closed_time_refuses_the_whole_frame(spark: Any, c: Any) -> None:
    c.seal(5)
    with pytest.raises(UpdateBeforeLower) as refused:
        stage(c, frame(spark, (1, "a", 9), (2, "b", 4)))
    assert refused.value.time == 4 and not len(c.state().staged)


def test_rows_without_times_of_their_own_are_refused(spark: Any, c: Any) -> None:
    for options in ({}, {"late": "advance", "time": "_time"}):
        rows = frame(spark, (1, "a", 9))
        with pytest.raises(UsageError, match="times of their own"):
            stage(c, rows if "time" in options else rows.drop("_time"), **options)
    with pytest.raises(UsageError, match="times of their own"):
        stage(c, frame(spark, (1, "a", 9)), envelope="upsert")
    with pytest.raises(InvalidUpdates):
        stage(c, frame(spark, (1, "a", 9)).withColumnRenamed("v", "w"))


def test_frames_with_tuples_are_staged(spark: Any, tmp_path: Path) -> None:
    c = tidelake.open(tmp_path / "lake").create("t", stream_source.SCHEMA, key=["id"], time="tuple(2)")
    c.seal([(1, 0), (0, 5)])
    rows = [(1, "a", 1, 4), (2, "b", 0, 5)]
    assert stage(c, spark.createDataFrame(rows, "id bigint, v string, _time_0 bigint, _time_1 bigint"))
    assert c.snapshot((9, 9), staged=True).read_all()["id"].to_pylist() == [1, 2]


def test_dataframes_show_what_is_staged_on_request(spark: Any, c: Any) -> None:
    stage(c, frame(spark, (1, "a", 0), (2, "b", 9)))
    c.seal(1)
    place = {"path": c.distributed.lake_url + "/c"}

    def loaded(**options: str) -> list[int]:
        found = spark.read.format("tidelake").options(**place, **options).load()
        return sorted(row["id"] for row in found.collect())

    ts.register(spark)
    assert loaded() == [1] and loaded(staged="false") == [1]
    assert loaded(staged="true") == [1, 2] and loaded(staged="true", asOf="8") == [1]
    assert loaded(staged="true", lower="1") == [2]
    assert loaded(staged="true", after="0") == [2]
    assert [row["id"] for row in ts.changes(spark, c, 0, 9, staged=True).collect()] == [2]
    assert [row["id"] for row in ts.updates(spark, c, 1, 99, staged=True).collect()] == [2]


# --- Streams ---


class Stream:
    """A lake, a folder of JSON lines, a checkpoint, and a sink that stages and seals."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.spark, self.folder, self.checkpoint = spark, root / "in", root / "checkpoint"
        self.folder.mkdir()
        self.lake = tidelake.open(root / "lake")
        self.c = self.lake.create("c", stream_source.SCHEMA, key=["id"])
        self.files = 0
        self.error: Exception | None = None
        self.batches: list[WrittenBatch] = []

    def put(self, *rows: tuple[int, int]) -> None:
        """Rows `(id, time)`."""
        found = [{"id": id_, "v": "x", "_time": time} for id_, time in rows]
        stream_source.put(self.folder, self.files, found)
        self.files += 1

    def run(self, delay: Any = 5, **options: Any) -> None:
        """Stage all files that are new, one a micro-batch."""
        lines = stream_source.lines(self.spark, self.folder, TIMED)
        to = sink(self.c, progress=self.batches.append, delay=delay, **options)
        query = stream_source.start(lines, self.c, self.checkpoint, to)
        try:
            query.awaitTermination()
        finally:
            self.error = to.error

    def forget(self, batch: int) -> None:
        """As after a kill between the stage and Spark's own commit."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream(tmp_path: Path, spark: Any) -> Stream:
    return Stream(tmp_path, spark)


@pytest.mark.promise(
    "One commit stages, numbers and seals a micro-batch; late rows are refused, or staged once in "
    "the side collection",
    rule="`spark/writing/stage.py`",
    also=[
        "::test_late_rows_are_refused_and_their_micro_batch_is_not_in",
        "::test_a_driver_that_dies_between_the_two_stages_of_a_batch_does_the_second_when_it_is_back",
    ],
)
def test_a_micro_batch_is_staged_and_seals_at_the_watermark_in_one_commit(stream: Stream) -> None:
    stream.put((1, 3), (2, 12))
    stream.put((3, 8), (4, 30))
    stream.run()
    assert stream.c.upper == Frontier.of(25)
    assert contents(stream.c) == [1, 2, 3]
    assert contents(stream.c, 30, staged=True) == [1, 2, 3, 4]
    assert [(b.updates, b.upper) for b in stream.batches] == [(2, Frontier.of(7)), (2, Frontier.of(25))]
    # One to open the writer, one a micro-batch, and what drains.
    record = stream.c.state().writers["spark"]
    assert record.sequence == 1 and record.upper == Frontier.of(25)


def test_a_micro_batch_that_is_repeated_is_staged_once_and_its_watermark_is_sealed(stream: Stream) -> None:
    stream.put((1, 3), (2, 12))
    stream.run()
    state = stream.c.state()
    stream.forget(0)
    stream.run()
    assert [b.already for b in stream.batches] == [False, True]
    assert contents(stream.c, 12, staged=True) == [1, 2] and stream.c.upper == state.upper


def test_late_rows_are_refused_and_their_micro_batch_is_not_in(stream: Stream) -> None:
    stream.put((1, 20))
    stream.put((2, 25), (3, 14))
    with pytest.raises(StreamingQueryException, match="14"):
        stream.run()
    assert isinstance(stream.error, UpdateBeforeLower)
    assert contents(stream.c, 30, staged=True) == [1]


def test_late_rows_are_staged_in_another_collection(stream: Stream) -> None:
    side = stream.lake.create("late", stream_source.SCHEMA, key=["id"])
    stream.put((1, 20))
    stream.put((2, 25), (3, 14), (4, 15))
    stream.put((5, 1))
    stream.run(side=side)
    assert contents(stream.c, 30, staged=True) == [1, 2, 4]
    assert contents(side, 30, staged=True) == [3, 5] and side.upper == Frontier.of(0)
    assert [b.late for b in stream.batches] == [0, 1, 1]
    assert stream.c.upper == Frontier.of(20)


@pytest.mark.parametrize("sealed_meanwhile", [False, True])
def test_a_driver_that_dies_between_the_two_stages_of_a_batch_does_the_second_when_it_is_back(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, sealed_meanwhile: bool
) -> None:
    side = stream.lake.create("late", stream_source.SCHEMA, key=["id"])
    stream.put((1, 20))
    stream.run(side=side)
    stream.put((2, 25), (3, 14), (4, 15))
    whole = Writer.stage_uploaded

    def dies(writer: Writer, *given: Any, **more: Any) -> bool:
        if inside.shard(writer).spec.shard_id == side.id:
            raise RuntimeError("killed")
        return whole(writer, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "stage_uploaded", dies)
        with pytest.raises(StreamingQueryException):
            stream.run(side=side)
    assert contents(stream.c, 30, staged=True) == [1, 2, 4] and not len(side.state().staged)
    if sealed_meanwhile:
        stream.c.seal(28)
    stream.run(side=side)
    stream.forget(1)
    stream.run(side=side)
    assert contents(stream.c, 30, staged=True) == [1, 2, 4]
    assert contents(side, 30, staged=True) == [3]
    assert [b.late for b in stream.batches if b.already] == [1, 0]


def test_rows_whose_times_others_close_between_look_and_commit_go_beside(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = stream.lake.create("late", stream_source.SCHEMA, key=["id"])
    stream.put((1, 20), (2, 3))
    whole, sealed = Writer.stage_uploaded, []

    def overtaken(writer: Writer, *given: Any, **more: Any) -> bool:
        if not sealed:
            sealed.append(stream.c.seal(10))
        return whole(writer, *given, **more)

    monkeypatch.setattr(Writer, "stage_uploaded", overtaken)
    stream.run(side=side)
    assert contents(stream.c, 30, staged=True) == [1] and contents(side, 30, staged=True) == [2]


def test_an_empty_micro_batch_closes_nothing(stream: Stream) -> None:
    stream.put()
    stream.put((1, 3))
    stream.run()
    assert stream.c.upper == Frontier.of(0) and contents(stream.c, 3, staged=True) == [1]


def test_delays_of_clocks_are_spans(tmp_path: Path) -> None:
    lake = tidelake.open(tmp_path / "lake")
    clock = lake.create("clock", stream_source.SCHEMA, key=["id"], time="ms")
    made = sink(clock, delay=datetime.timedelta(seconds=2))
    assert isinstance(made.into, IntoStage) and made.into.mark.delay == 2_000
    assert isinstance(sink(clock, delay=0).into, IntoStage)
    for delay in (-1, "soon", datetime.timedelta(seconds=-1)):
        with pytest.raises(UsageError):
            sink(clock, delay=delay)  # type: ignore[arg-type]
    other = lake.create("other", stream_source.SCHEMA, key=["id"], time="us")
    for side in (clock, other):
        with pytest.raises(UsageError, match="side"):
            sink(clock, delay=0, side=side)
    with pytest.raises(UsageError, match="side"):
        sink(clock, side=other)


def test_a_sink_that_seals_goes_to_another_process(tmp_path: Path) -> None:
    lake = tidelake.open(tmp_path / "lake")
    c, side = (lake.create(name, stream_source.SCHEMA, key=["id"]) for name in ("c", "late"))
    sent = pickle.loads(pickle.dumps(sink(c, delay=3, side=side)))
    assert (sent.into.mark.delay, sent.into.mark.late.id, sent.into.collection.id) == (3, side.id, c.id)
    assert type(pickle.loads(pickle.dumps(sink(c))).into) is IntoCollection
