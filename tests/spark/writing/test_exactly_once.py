"""Streams through `foreachBatch` and through the format: each micro-batch is in once."""

import contextlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import stream_source
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

import tidelake
from tidelake.cdc.times.heldevents import Held
from tidelake.cdc.times.timeline import Progress
from tidelake.errors import InvalidUpdates, OutcomeUnknown, UsageError, WriterFenced
from tidelake.feeds.batches import is_in
from tidelake.feeds.note import BatchNote
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark import WrittenBatch, sink
from tidelake.spark.writing.microbatch import planned_in
from tidelake.testing import tables

pytestmark = pytest.mark.usefixtures("both_ways")

JSON = "id bigint, v string"


class Stream:
    """A lake, a folder of JSON lines, a checkpoint; and one of the two ways to write it."""

    def __init__(self, root: Path, spark: Any, way: str) -> None:
        self.root, self.spark, self.way = root, spark, way
        self.folder, self.checkpoint = root / "in", root / "checkpoint"
        self.folder.mkdir()
        self.c = tidelake.open(root / "lake").create("c", stream_source.SCHEMA, key=["id"])
        self.files = 0
        self.error: Exception | None = None
        self.batches: list[WrittenBatch] = []

    def put(self, *rows: tuple[Any, ...], names: tuple[str, ...] = ("id", "v")) -> None:
        stream_source.put(self.folder, self.files, [dict(zip(names, row, strict=True)) for row in rows])
        self.files += 1

    def run(self, schema: str = JSON, take_over: bool = False, **options: Any) -> None:
        """Write all files that are new, one a micro-batch."""
        frame = stream_source.lines(self.spark, self.folder, schema)
        to = None
        if self.way == "helper":
            to = sink(self.c, take_over=take_over, progress=self.batches.append, **options)
        elif take_over:
            options["takeOver"] = "true"
        query = stream_source.start(frame, self.c, self.checkpoint, to, **options)
        try:
            query.awaitTermination()
        finally:
            self.error = to.error if to is not None else None

    def forget(self, batch: int) -> None:
        """As after a kill between the append and Spark's own commit."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)

    def rows(self) -> Counter[Any]:
        """(row, time) -> diff."""
        return tables.by_time(self.c.updates(0, self.c.upper).read_all(), self.c.domain)


@pytest.fixture(params=["helper", "format"])
def stream(request: pytest.FixtureRequest, tmp_path: Path, spark: Any) -> Stream:
    return Stream(tmp_path, spark, request.param)


@pytest.fixture
def helper(tmp_path: Path, spark: Any) -> Stream:
    return Stream(tmp_path, spark, "helper")


def test_a_micro_batch_is_one_commit(stream: Stream) -> None:
    stream.put((1, "a"), (2, None))
    stream.put((1, "a"))
    stream.run()
    assert stream.rows() == {((1, "a"), 0): 1, ((2, None), 0): 1, ((1, "a"), 1): 1}
    record = stream.c.state().writers["spark"]
    assert (record.sequence, len(record.owner)) == (1, 36)
    if stream.way == "helper":
        assert [(b.batch, b.already, b.updates, b.upper) for b in stream.batches] == [
            (0, False, 2, Frontier.of(1)),
            (1, False, 1, Frontier.of(2)),
        ]


@pytest.mark.full
def test_a_second_run_takes_only_what_is_new(stream: Stream) -> None:
    stream.put((1, "a"))
    stream.run()
    stream.run()
    stream.put((2, "b"))
    stream.run()
    assert stream.rows() == {((1, "a"), 0): 1, ((2, "b"), 1): 1}


@pytest.mark.promise(
    "A micro-batch is in exactly once, through `foreachBatch` and through the format, whatever the "
    "envelope, also if the driver dies before, in or after the commit",
    rule="`feeds/batches.py`: (query id, epoch, batch id) in the compare-and-set of its rows",
    also=[
        "::test_a_commit_whose_answer_got_lost_is_found_by_the_next_run",
        "::test_a_stream_of_upserts_takes_old_rows_away",
        "spark/test_exactly_once_kills.py::test_killed_at_random_moments",
    ],
)
def test_a_batch_that_is_in_and_not_in_the_checkpoint_is_not_written_twice(stream: Stream) -> None:
    stream.put((1, "a"))
    stream.put((2, "b"))
    stream.run()
    stream.forget(1)
    stream.put((3, "c"))
    stream.run()
    assert stream.rows() == {((1, "a"), 0): 1, ((2, "b"), 1): 1, ((3, "c"), 2): 1}
    if stream.way == "helper":
        assert [(b.batch, b.already) for b in stream.batches] == [
            (0, False),
            (1, False),
            (1, True),
            (2, False),
        ]


@pytest.mark.full
def test_a_batch_that_comes_again_with_other_rows_is_known_by_when_it_was_planned(stream: Stream) -> None:
    """Such as those of a query that was mended, or whose source forgets."""
    stream.put((1, "a"))
    stream.put((2, "b"))
    stream.run()
    stream.forget(1)
    (stream.folder / "00001.json").write_text("")
    stream.put((3, "c"))
    stream.run()
    assert stream.rows() == {((1, "a"), 0): 1, ((2, "b"), 1): 1, ((3, "c"), 2): 1}


def test_a_checkpoint_says_when_a_batch_was_planned_if_it_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":12,"conf":{}}\n{}')
    for place in (f"{tmp_path}", f"file:{tmp_path}", f"file://{tmp_path}"):
        assert planned_in(place, 7) == BatchNote("planned at 12")
        assert planned_in(place, 8) == BatchNote()
    for other in (None, f"hdfs://{tmp_path}", f"{tmp_path}/offsets/7"):
        assert planned_in(other, 7) == BatchNote()


@pytest.mark.promise(
    "Another query id under a writer's name is refused with what to do, or takes over on request; "
    "an older run of the same query is fenced, or (the format) goes on beside the newer one under "
    "the same numbers",
    rule="`open_writer`",
    also=[
        "::test_a_fenced_stream_stops",
        "state/test_commands.py::test_an_owner_who_resumes_goes_on_beside_its_other_handles",
    ],
)
@pytest.mark.full
def test_a_lost_checkpoint_is_refused_and_can_be_taken_over(stream: Stream) -> None:
    stream.put((1, "a"))
    stream.run()
    shutil.rmtree(stream.checkpoint)
    reason = (
        r"(?s)writer 'spark' belongs to .* might write the same data again: go on with the checkpoint that "
        r"wrote it, use another writer name, or take it over .*take_over=True, as an option takeOver=true"
    )
    with pytest.raises(StreamingQueryException, match=reason):
        stream.run()
    assert stream.rows() == {((1, "a"), 0): 1}
    stream.run(writer="other")
    assert stream.rows() == {((1, "a"), 0): 1, ((1, "a"), 1): 1}
    shutil.rmtree(stream.checkpoint)
    stream.run(take_over=True)
    stream.put((2, "b"))
    stream.run()
    assert sum(stream.rows().values()) == 4


@pytest.mark.promise(
    "A checkpoint that was put back from a copy is refused rather than losing rows: by the number, "
    "and for the last batch by the moment it was planned (`foreachBatch`) or by how many rows it "
    "has (format)",
    rule="`is_in`, `planned_by`",
)
@pytest.mark.full
@pytest.mark.parametrize("missed", [1, 2])
def test_an_older_checkpoint_is_refused_rather_than_losing_rows(
    stream: Stream, tmp_path: Path, missed: int
) -> None:
    stream.put((1, "a"))
    stream.run()
    shutil.copytree(stream.checkpoint, tmp_path / "saved")
    for i in range(missed):
        stream.put((i, "b"))
        stream.run()
    shutil.rmtree(stream.checkpoint)
    shutil.move(tmp_path / "saved", stream.checkpoint)
    for file in sorted(stream.folder.glob("*.json"))[1:]:
        file.unlink()
    # As many other rows come under the number of rows that are in.
    stream.put((9, "new"))
    with pytest.raises(StreamingQueryException, match="append 1 of writer 'spark' is in, but was made of"):
        stream.run()
    assert sum(stream.rows().values()) == 1 + missed


@pytest.mark.promise(
    "An empty micro-batch moves no time, and its number is recorded", rule="`feeds/commit.py`"
)
@pytest.mark.full
def test_an_empty_micro_batch_moves_no_time_and_is_recorded(stream: Stream) -> None:
    stream.put()
    stream.run()
    assert (stream.c.upper, stream.c.state().writers["spark"].sequence) == (Frontier.of(0), 0)
    stream.put((1, "a"))
    stream.run()
    assert stream.rows() == {((1, "a"), 0): 1}


@pytest.mark.full
def test_rows_that_do_not_fit_stop_the_stream_with_a_reason(stream: Stream) -> None:
    stream.put((1, "a"))
    stream.put((None, "b"))
    with pytest.raises(StreamingQueryException, match="column 'id' must not be null"):
        stream.run()
    assert stream.rows() == {((1, "a"), 0): 1}
    if stream.way == "helper":
        assert isinstance(stream.error, InvalidUpdates)


def test_columns_are_checked_before_a_task_runs(stream: Stream) -> None:
    stream.put((1,), names=("id",))
    with pytest.raises(StreamingQueryException, match=r"column 'v' \(string\) is missing.*'w' is not in"):
        stream.run("id bigint, w string")
    assert stream.c.state().spine.totals.rows == 0


@pytest.mark.full
def test_late_rows_stop_the_stream_or_are_advanced(stream: Stream) -> None:
    stream.put((1, "a", 5), (2, "b", 9), names=("id", "v", "_time"))
    none = pa.schema([*stream_source.SCHEMA, ("_time", pa.int64())]).empty_table()
    stream.c.append(none, upper=7)
    schema = JSON + ", _time bigint"
    with pytest.raises(StreamingQueryException, match="time 5 is not at or after the lower frontier"):
        stream.run(schema)
    stream.run(schema, late="advance")
    assert stream.rows() == {((1, "a"), 7): 1, ((2, "b"), 9): 1}


@pytest.mark.full
def test_a_stream_of_updates_may_take_rows_away(stream: Stream) -> None:
    names = ("id", "v", "_time", "_diff")
    stream.put((1, "a", 0, 2), (2, "b", 3, 1), names=names)
    stream.put((1, "a", 4, -1), names=names)
    stream.run("id bigint, v string, _time bigint, _diff bigint", envelope="updates")
    assert stream.rows() == {((1, "a"), 0): 2, ((2, "b"), 3): 1, ((1, "a"), 4): -1}


def test_a_stream_of_upserts_takes_old_rows_away(stream: Stream) -> None:
    names = ("id", "v", "n")
    stream.put((1, "a", 1), (1, "b", 2), (2, "c", 3), names=names)
    stream.put((1, None, 4), (2, "c", 5), (3, "d", 6), names=names)
    order = {"order_by": "n"} if stream.way == "helper" else {"orderBy": "n"}
    stream.run(JSON + ", n bigint", envelope="upsert", **order)
    stream.forget(1)
    stream.run(JSON + ", n bigint", envelope="upsert", **order)
    assert stream.rows() == {
        ((1, "b"), 0): 1,
        ((2, "c"), 0): 1,
        ((1, "b"), 1): -1,
        ((1, None), 1): 1,
        ((3, "d"), 1): 1,
    }


@pytest.mark.full
def test_a_query_with_all_its_rows_replaces_the_contents(stream: Stream) -> None:
    """Output mode `complete`: through the format by itself, through the helper as a full dump."""
    for rows in ([(1, "a"), (2, "b")], [(1, "c")]):
        stream.put(*rows)
    lines = stream_source.lines(stream.spark, stream.folder)
    counts = lines.groupBy("id").agg(functions.count("*").cast("string").alias("v"))
    to = sink(stream.c, "snapshot") if stream.way == "helper" else None
    stream_source.start(counts, stream.c, stream.checkpoint, to, mode="complete").awaitTermination()
    assert stream.rows() == {
        ((1, "1"), 0): 1,
        ((2, "1"), 0): 1,
        ((1, "1"), 1): -1,
        ((1, "2"), 1): 1,
    }


@pytest.mark.promise(
    "A second write of one micro-batch under one name is refused, not taken for a repeated one",
    rule="the run in `BatchNote`",
    also=["::test_sinks_with_names_of_their_own_share_a_micro_batch"],
)
@pytest.mark.parametrize("shared", [True, False])
def test_a_second_write_in_one_micro_batch_is_not_taken_for_a_repeated_one(
    helper: Stream, shared: bool
) -> None:
    first = sink(helper.c)
    second = first if shared else sink(helper.c)

    def both(frame: Any, batch: int) -> None:
        first(frame.where("id = 1"), batch)
        second(frame.where("id = 2"), batch)

    helper.put((1, "a"), (2, "b"))
    frame = stream_source.lines(helper.spark, helper.folder)
    query = stream_source.start(frame, helper.c, helper.checkpoint, both)
    with pytest.raises(StreamingQueryException, match="give each sink a writer name of its own"):
        query.awaitTermination()


def test_sinks_with_names_of_their_own_share_a_micro_batch(helper: Stream) -> None:
    sinks = [sink(helper.c, writer=name) for name in ("ones", "twos")]

    def both(frame: Any, batch: int) -> None:
        for i, to in enumerate(sinks, 1):
            to(frame.where(f"id = {i}"), batch)

    helper.put((1, "a"), (2, "b"))
    frame = stream_source.lines(helper.spark, helper.folder)
    for _ in range(2):
        stream_source.start(frame, helper.c, helper.checkpoint, both).awaitTermination()
        assert helper.rows() == {((1, "a"), 0): 1, ((2, "b"), 1): 1}
        helper.forget(0)


def test_a_fenced_stream_stops(helper: Stream) -> None:
    helper.put((1, "a"))
    helper.put((2, "b"))
    to = sink(helper.c)

    def intrude(batch: WrittenBatch) -> None:
        owner = helper.c.state().writers["spark"].owner
        helper.c.writer("spark", owner=owner)

    to.progress = intrude
    frame = stream_source.lines(helper.spark, helper.folder)
    query = stream_source.start(frame, helper.c, helper.checkpoint, to)
    with pytest.raises(StreamingQueryException, match="is fenced by epoch"):
        query.awaitTermination()
    assert isinstance(to.error, WriterFenced)
    assert helper.rows() == {((1, "a"), 0): 1}
    # The same function may be used again: it opens the writer anew.
    to.progress = None
    stream_source.start(frame, helper.c, helper.checkpoint, to).awaitTermination()
    assert helper.rows() == {((1, "a"), 0): 1, ((2, "b"), 1): 1}


@pytest.fixture
def lost_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of the first commit is lost."""
    original = Writer.append_uploaded

    def append_uploaded(self: Writer, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(Writer, "append_uploaded", original)
        original(self, *args, **kwargs)
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(Writer, "append_uploaded", append_uploaded)


@pytest.mark.usefixtures("lost_answer")
def test_a_commit_whose_answer_got_lost_is_found_by_the_next_run(helper: Stream) -> None:
    helper.put((1, "a"))
    to = sink(helper.c)
    frame = stream_source.lines(helper.spark, helper.folder)
    with pytest.raises(StreamingQueryException, match="no answer"):
        stream_source.start(frame, helper.c, helper.checkpoint, to).awaitTermination()
    to.progress = helper.batches.append
    stream_source.start(frame, helper.c, helper.checkpoint, to).awaitTermination()
    assert [(b.batch, b.already) for b in helper.batches] == [(0, True)]
    assert helper.rows() == {((1, "a"), 0): 1}


@pytest.mark.usefixtures("lost_answer")
def test_a_function_may_try_again_after_an_answer_got_lost(helper: Stream) -> None:
    helper.put((1, "a"))
    to = sink(helper.c, progress=helper.batches.append)

    def stubborn(frame: Any, batch: int) -> None:
        with contextlib.suppress(OutcomeUnknown):
            to(frame, batch)
        to(frame, batch)

    frame = stream_source.lines(helper.spark, helper.folder)
    stream_source.start(frame, helper.c, helper.checkpoint, stubborn).awaitTermination()
    assert [(b.batch, b.already) for b in helper.batches] == [(0, True)]
    assert helper.rows() == {((1, "a"), 0): 1}


def test_outside_of_a_stream_the_sink_says_what_to_use(helper: Stream) -> None:
    with pytest.raises(UsageError, match=r"no micro-batch of a streaming query: use tidelake\.spark\.write"):
        sink(helper.c)(helper.spark.createDataFrame([(1, "a")], JSON), 0)


def test_a_sink_can_be_sent_to_another_process(helper: Stream) -> None:
    import pickle

    sent = pickle.loads(pickle.dumps(sink(helper.c, query="q", late="advance")))
    frame = helper.spark.createDataFrame([(1, "a")], JSON)
    sent(frame, 0)
    sent(frame, 0)
    assert helper.rows() == {((1, "a"), 0): 1}
    assert helper.c.state().writers["spark"].owner == "q"


def test_a_sink_that_is_sent_to_another_process_goes_on_with_its_collection(tmp_path: Path) -> None:
    import pickle

    lake = tidelake.open(tmp_path / "lake")
    c, _ = (lake.create(name, stream_source.SCHEMA, key=["id"]) for name in ("c", "d"))
    sent = pickle.dumps(sink(c, query="q"))
    lake.swap("c", "d")
    assert pickle.loads(sent).into.collection.id == c.id


def test_a_note_is_read_as_it_was_written() -> None:
    held = Held(Progress("postgresql"), b"rows")
    for what in ("", "planned at 12", "7 rows"):
        for parted, late in ((None, 0), (0, 0), (5, 3)):
            for run in ("", "1b-2c"):
                for kept in (None, held):
                    note = BatchNote(what, run, parted, late, kept)
                    assert BatchNote.of(note.text) == note
    # As notes have been written so far.
    assert BatchNote.of("planned at 1 by run r parted at 5, 2 late") == BatchNote("planned at 1", "r", 5, 2)
    assert BatchNote.of(None) == BatchNote() == BatchNote.of("")


def test_only_the_last_batch_may_come_again_and_only_as_it_was(tmp_path: Path) -> None:
    c = tidelake.open(tmp_path / "lake").create("c", stream_source.SCHEMA, key=["id"])
    writer = c.writer("w", owner="q")
    assert not is_in(writer, 0, BatchNote.of("planned at 1"))
    writer.append_uploaded([], lower=0, upper=0, sequence=5, content="planned at 1")
    writer = c.writer("w", owner="q")
    assert (
        is_in(writer, 5, BatchNote.of("planned at 1"))
        and is_in(writer, 5, BatchNote.of(""))
        and not is_in(writer, 6, BatchNote.of("planned at 2"))
    )
    for batch, content in ((5, "planned at 2"), (4, ""), (4, "planned at 1")):
        with pytest.raises(UsageError, match=f"append {batch} of writer 'w' is in, but was made of"):
            is_in(writer, batch, BatchNote.of(content))
