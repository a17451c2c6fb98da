"""The offsets of a stream in a checkpoint, and the reader's answers to Spark; starts no session."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tidelake
from tidelake.errors import FormatTooNew, HistoryCompacted, IncompatibleSchema, InvalidUpdates, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX
from tidelake.spark.columns import frame_schema
from tidelake.spark.source.format import TidelakeSource
from tidelake.spark.source.offsets import FORMAT, Begin, Position, from_json, to_json
from tidelake.spark.source.stream import StreamReader, UnlimitedStreamReader
from tidelake.spark.source.stream_read import StreamRead, stream_read

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
ALL = ReadAllAvailable()

names = st.text(min_size=1)
frontiers = st.integers(0, TIME_MAX).map(Frontier.of) | st.just(Frontier())
begins = st.builds(Begin, names, frontiers | st.sampled_from(["snapshot", "latest"]))
positions = st.builds(Position, names, names, frontiers, frontiers | st.sampled_from(["snapshot", None]))


@given(begins | positions)
def test_offsets_read_back_and_are_the_same_text_again(offset: Any) -> None:
    text = json.dumps(to_json(offset))
    assert from_json(json.loads(text)) == offset
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


def test_the_text_of_offsets_of_format_1() -> None:
    text = '{"tidelake": 1, "collection": "c", "hold": "h", "frontier": [7], "first": [5]}'
    assert json.dumps(to_json(Position("c", "h", Frontier.of(7), Frontier.of(5)))) == text
    text = '{"tidelake": 1, "collection": "c", "startingAt": "snapshot"}'
    assert json.dumps(to_json(Begin("c", "snapshot"))) == text


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(FormatTooNew, match=r"format 2 .* up to 1: upgrade"):
        from_json({"tidelake": FORMAT + 1, "whatever": 1})


GOOD = to_json(Position("c", "h", Frontier.of(7), Frontier.of(5)))


@pytest.mark.parametrize(
    "data",
    [
        *(None, [], 3, {}, {"tidelake": "1"}, {"tidelake": True}, {"tidelake": 0}),
        *(
            {k: v for k, v in GOOD.items() if k != name}
            for name in ("tidelake", "collection", "hold", "frontier")
        ),
        *(GOOD | {"frontier": bad} for bad in (7, [7, 8], ["7"], [-1], [2**63], [True], [1.5], None)),
        *(GOOD | {"first": bad} for bad in ("latest", 3, None, "later")),
        {"tidelake": 1, "collection": "c", "startingAt": "earliest"},
    ],
)
def test_what_is_no_offset_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match="no offset of a Tidelake stream"):
        from_json(data)


def made(tmp_path: Path, time: str = "counter", rows: int = 3) -> tidelake.Collection:
    c = tidelake.open(tmp_path / "lake").create("c", SCHEMA, key=["id"], time=time)
    for n in range(rows if time == "counter" else 0):
        c.append(pa.table({"id": [n], "v": ["x"]}))
    return c


def reader(c: tidelake.Collection, tmp_path: Path, **fields: Any) -> StreamReader:
    read = StreamRead(str(tmp_path / "lake"), "c", **{"poll_s": 0.0, **fields})
    return StreamReader(read, frame_schema(c.update_schema))


def rows_of(reader: StreamReader, start: Any, end: Any) -> list[Any]:
    """Rows of a batch, read as workers do: by a copy of the reader."""
    copy = pickle.loads(pickle.dumps(StreamReader(reader._read, reader._schema)))
    found = []
    for partition in pickle.loads(pickle.dumps(list(reader.partitions(start, end)))):
        for batch in copy.read(partition):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def test_the_initial_offset_names_no_place_and_is_the_same_again(tmp_path: Path) -> None:
    c = made(tmp_path)
    first = reader(c, tmp_path, start="latest").initialOffset()
    c.append(pa.table({"id": [9], "v": ["x"]}))
    again = reader(c, tmp_path, start="latest")
    assert again.initialOffset() == again.initialOffset() == first
    assert not c.state().holds


def test_progress_tells_how_far_a_query_is_behind(tmp_path: Path) -> None:
    c = made(tmp_path)
    one = reader(c, tmp_path, start=Frontier.of(0), max_rows=1)
    assert one.reportLatestOffset() is None
    end = one.latestOffset(one.initialOffset(), one.getDefaultReadLimit())
    latest = one.reportLatestOffset()
    assert latest is not None and latest["hold"] == end["hold"]
    assert (end["frontier"], latest["frontier"]) == ([1], [3])


@pytest.mark.parametrize("start", ["snapshot", "latest", Frontier.of(2)])
def test_a_first_batch_that_was_not_done_is_the_same_in_the_next_process(tmp_path: Path, start: Any) -> None:
    c = made(tmp_path)
    one = reader(c, tmp_path, start=start)
    begin = one.initialOffset()
    c.append(pa.table({"id": [7], "v": ["x"]}))
    end = one.latestOffset(begin, ALL)
    found = rows_of(one, begin, end)
    one.stop()
    c.append(pa.table({"id": [8], "v": ["x"]}))
    c.advance_since(4)
    c.merge()
    # The option may have changed meanwhile; what was begun goes on.
    other = reader(c, tmp_path, start="snapshot")
    assert rows_of(other, other.initialOffset(), end) == found
    assert [row[0] for row in found] == {"snapshot": [0, 1, 2, 7], "latest": []}.get(str(start), [2, 7])
    after = other.latestOffset(end, ALL)
    assert [row[0] for row in rows_of(other, end, after)] == [8]
    assert list(c.state().holds) == [end["hold"]]


def test_nothing_new_is_the_offset_that_was_given(tmp_path: Path) -> None:
    c = made(tmp_path, rows=0)
    one = reader(c, tmp_path)
    begin = one.initialOffset()
    assert one.latestOffset(begin, ALL) == begin and one.partitions(begin, begin) == []
    one.commit(begin)
    c.append(pa.table({"id": [7], "v": ["x"]}))
    end = one.latestOffset(begin, ALL)
    assert one.latestOffset(end, ALL) is end and one.partitions(end, end) == []


@pytest.mark.promise(
    "AvailableNow reads what was there when it started; `Trigger.Once` reads all of it at once, "
    "whatever the limits",
    rule="`prepareForTriggerAvailableNow`, `ReadAllAvailable`",
    also=["spark/source/test_stream_read.py::test_trigger_once_takes_all_at_once_whatever_the_limits"],
)
def test_available_now_reads_what_was_there(tmp_path: Path) -> None:
    c = made(tmp_path)
    for start, left in (("snapshot", 0), (Frontier.of(1), 2)):
        one = reader(c, tmp_path, start=start, max_times=1)
        before = c.upper
        one.prepareForTriggerAvailableNow()
        c.append(pa.table({"id": [7], "v": ["x"]}))
        at = one.latestOffset(one.initialOffset(), one.getDefaultReadLimit())
        steps = 0
        while (end := one.latestOffset(at, one.getDefaultReadLimit())) != at:
            at, steps = end, steps + 1
        assert at["frontier"] == list(before) and steps >= left


def test_limits_are_those_of_the_options_unless_spark_wants_all(tmp_path: Path) -> None:
    c = made(tmp_path, rows=9)
    assert reader(c, tmp_path).getDefaultReadLimit() == ALL
    assert reader(c, tmp_path, max_rows=4).getDefaultReadLimit() == ReadMaxRows(4)
    one = reader(c, tmp_path, start=Frontier.of(0), max_times=2)
    limit, begin = one.getDefaultReadLimit(), one.initialOffset()
    assert one.latestOffset(begin, limit)["frontier"] == [2]
    assert one.latestOffset(begin, ALL)["frontier"] == [9]


def read_of(tmp_path: Path, **options: Any) -> StreamRead:
    return stream_read({"path": str(tmp_path / "lake"), "collection": "c", **options})


def test_options_are_those_of_the_format(tmp_path: Path) -> None:
    made(tmp_path)
    plain = read_of(tmp_path)
    assert (plain.start, plain.max_rows, plain.max_times, plain.shape.rows) == (
        "snapshot",
        None,
        None,
        "table",
    )
    given = {"startingAt": " Latest ", "maxRowsPerTrigger": "7", "maxTimesPerTrigger": "2", "holdFor": "7d"}
    read = read_of(tmp_path, **given, parallelism="3", changeFeed="true", where="id > 1", columns="v")
    assert (read.start, read.max_rows, read.max_times, read.hold_for_s) == ("latest", 7, 2, 604_800.0)
    assert (read.parallelism, read.shape.rows, read.shape.columns) == (3, "feed", ("v",))
    assert read_of(tmp_path, startingAt="5").start == Frontier.of(5)
    assert read_of(tmp_path, startingAt="[5]").start == Frontier.of(5)
    for name in ("maxRowsPerTrigger", "maxTimesPerTrigger", "parallelism"):
        with pytest.raises(UsageError, match=f"option {name}='0' is not a whole number from 1 on"):
            read_of(tmp_path, **{name: "0"})
    with pytest.raises(UsageError, match="holdFor=none: a stream holds the history"):
        read_of(tmp_path, holdFor="none")
    with pytest.raises(UsageError, match=r"give a whole number.*; or write snapshot or latest"):
        read_of(tmp_path, startingAt="earliest")
    with pytest.raises(UsageError, match="one of batch reads, not of streaming reads"):
        read_of(tmp_path, asOf="3")


def test_a_clock_may_start_at_a_timestamp(tmp_path: Path) -> None:
    made(tmp_path, "ms")
    assert read_of(tmp_path, startingAt="1970-01-01T00:00:01Z").start == Frontier.of(1000)
    assert read_of(tmp_path, startingAt="1970-01-01T00:00:01.0005Z").start == Frontier.of(1001)
    assert read_of(tmp_path, startingAt="[1970-01-01T00:00:01.0005Z]").start == Frontier.of(1001)


def test_times_without_a_total_order_are_refused(tmp_path: Path) -> None:
    made(tmp_path, "tuple(2)")
    with pytest.raises(UsageError, match="total order: read it in batches"):
        read_of(tmp_path)


@pytest.mark.parametrize("dropped", [False, True], ids=["widened", "dropped"])
def test_columns_that_do_not_fit_a_running_query_are_refused(tmp_path: Path, dropped: bool) -> None:
    made(tmp_path)
    narrow = pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", pa.string()), ("n", pa.int32())])
    c = tidelake.open(tmp_path / "lake").create("d", narrow, key=["id"])
    added = pa.table({"id": [1], "v": ["x"], "n": [1]}).cast(narrow)
    c.append(added)
    one = StreamReader(StreamRead(str(tmp_path / "lake"), "d", poll_s=0.0), frame_schema(c.update_schema))
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    wider = narrow.set(2, pa.field("n", pa.int64()))
    c.evolve(narrow.remove(2) if dropped else wider, drop=["n"] if dropped else [])
    c.append(added.drop_columns(["n"]) if dropped else added)
    # Planned as of a state before that.
    assert len(rows_of(one, begin, end)) == 1
    with pytest.raises(IncompatibleSchema, match="start the query again, from the same checkpoint"):
        one.partitions(end, one.latestOffset(end, ALL))


def test_rows_look_as_the_options_say(tmp_path: Path) -> None:
    c = made(tmp_path, rows=0)
    c.append(pa.table({"id": [1, 2, 2], "v": ["x", "y", "y"], "_diff": [1, 1, 1]}))

    def batches(**options: Any) -> list[list[Any]]:
        """Rows of the snapshot, and of what comes after it."""
        source = TidelakeSource({"path": str(tmp_path / "lake"), "collection": "c", **options})
        one = source.streamReader(source.schema())
        begin = one.initialOffset()
        first = Position(c.id, "h" * 32, Frontier.of(1), "snapshot")
        found = [rows_of(one, begin, to_json(first))]
        end = one.latestOffset(to_json(first), ALL)
        return [*found, rows_of(one, to_json(first), end)]

    plain = batches()
    assert plain == [[(1, "x"), (2, "y"), (2, "y")], []]
    c.append(pa.table({"id": [3, 2], "v": ["z", "y"], "_diff": [2, 1]}))
    assert batches(where="id > 2", columns="v")[1] == [("z",), ("z",)]
    assert batches(withDiff="true")[1] == [(2, "y", 1, 1), (3, "z", 1, 2)]
    c.append(pa.table({"id": [1, 1], "v": ["x", "new"], "_diff": [-1, 1]}))
    feed = batches(changeFeed="true")
    assert [row[2] for row in feed[0]] == ["insert"] * 3
    assert sorted(row[:4] for row in feed[1] if row[0] == 1) == [
        (1, "new", "update_postimage", 2),
        (1, "x", "update_preimage", 2),
    ]
    with pytest.raises(InvalidUpdates, match="withDiff=true or changeFeed=true"):
        batches()


def test_reports_cost_nothing_and_tell_the_last_head(tmp_path: Path) -> None:
    c = made(tmp_path)
    one = reader(c, tmp_path)
    assert one.reportLatestOffset() is None
    one.latestOffset(one.initialOffset(), ALL)
    c.append(pa.table({"id": [7], "v": ["x"]}))
    report = one.reportLatestOffset()
    assert report is not None and report["frontier"] == [3]


class OldSpark:
    """A query of a Spark before 4.2: it tells the reader of a place only when it asks for partitions."""

    def __init__(self, c: tidelake.Collection, start: Any) -> None:
        self.c, self.start = c, start
        self.done: Any = None
        self.seen: list[tuple[int, int]] = []

    def run(self, *appended: int) -> list[str]:
        """Start the query, and run a batch, and one after each append; the holds that there are then."""
        read = StreamRead(self.c.distributed.lake_url, "c", start=self.start, poll_s=0.0)
        one = UnlimitedStreamReader(read, frame_schema(self.c.update_schema))
        self._batch(one)
        for n in appended:
            self.c.append(pa.table({"id": [n], "v": ["x"]}))
            self._batch(one)
        one.stop()
        return list(self.c.state().holds)

    def _batch(self, one: UnlimitedStreamReader) -> None:
        end = one.latestOffset()
        begin = one.initialOffset() if self.done is None else self.done
        if end != begin:
            for task in one.partitions(begin, end):
                for batch in one.read(task):
                    self.seen += zip(batch["id"].to_pylist(), batch["_diff"].to_pylist(), strict=True)
            one.commit(end)
        self.done = end


@pytest.mark.parametrize("start", ["snapshot", "latest", Frontier.of(1)])
def test_a_reader_that_is_told_little_reads_every_update_once(tmp_path: Path, start: Any) -> None:
    c = made(tmp_path)
    query = OldSpark(c, start)
    holds = query.run(3, 4)
    assert len(holds) == 1
    first = {"snapshot": 0, "latest": 3}.get(start if isinstance(start, str) else "", 1)
    assert sorted(query.seen) == [(n, 1) for n in range(first, 5)]
    c.append(pa.table({"id": [5], "v": ["x"]}))
    # Started again; a hold of the run before is not left behind.
    again = query.run(6)
    assert len(again) == 1
    assert again != holds
    assert query.run() != again
    assert sorted(query.seen) == [(n, 1) for n in range(first, 7)]


def test_a_query_that_goes_on_needs_no_history_of_its_start(tmp_path: Path) -> None:
    c = made(tmp_path)
    query = OldSpark(c, Frontier.of(1))
    query.run(3)
    c.append(pa.table({"id": [4], "v": ["x"]}))
    c.advance_since(3)
    query.run(5)
    assert sorted(query.seen) == [(n, 1) for n in range(1, 6)]
    with pytest.raises(HistoryCompacted):
        OldSpark(c, Frontier.of(1)).run()


def test_limits_that_spark_does_not_know_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = made(tmp_path)
    for module in ("source.format", "versions"):
        monkeypatch.setattr(f"tidelake.spark.{module}.VERSION", (4, 1))
    schema, place = frame_schema(c.update_schema), {"path": f"{tmp_path}/lake/c", "withDiff": "true"}
    assert isinstance(TidelakeSource(place).streamReader(schema), UnlimitedStreamReader)
    for name in ("maxRowsPerTrigger", "maxTimesPerTrigger"):
        with pytest.raises(
            UsageError, match=rf"option {name} needs PySpark 4\.2 or newer.*all times that are"
        ):
            TidelakeSource(place | {name: "3"}).streamReader(schema).initialOffset()
