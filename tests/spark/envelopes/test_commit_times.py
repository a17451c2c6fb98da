"""Change events get the commits of their transactions as times, whatever the micro-batches are."""

import gzip
import itertools
import json
import os
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiers import examples

pytest.importorskip("pyspark")

import tidelake
from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.debezium.decoded import Decoded
from tidelake.cdc.parse.parser import ChangeParser, OldRows
from tidelake.cdc.times import heldevents as held_back
from tidelake.cdc.times.heldevents import (
    Held,
    HeldSpan,
    grouped,
    merged,
    packed,
    span_of,
    split,
    unpacked,
    with_held,
)
from tidelake.cdc.times.positions import COPY, COPY_END, MARK, NONE, NOTHING, ROWS, positions
from tidelake.cdc.times.surveys import SURVEY, fingerprints, merged_surveys, survey, twice
from tidelake.cdc.times.timeline import Progress, copies_again, timeline
from tidelake.errors import CorruptionError, FormatTooNew, InvalidUpdates, UsageError
from tidelake.feeds.answers import Answer
from tidelake.feeds.reading import AS_TEXT, EventReader
from tidelake.spark import ingest, write
from tidelake.spark.writing.running import BYTES_MAX as driver_bytes

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("owner", pa.int32()),
        ("bal", pa.int64()),
        ("note", pa.string()),
    ]
)
Row = tuple[Any, ...]
Update = tuple[int, Row, int]


class Lines(list[bytes]):
    """Many lines, shown shortly if a test fails."""

    def __repr__(self) -> str:
        return f"{len(self)} lines"


class Stream:
    """A stream of micro-batches without Spark: what its driver and its tasks do, one after the other."""

    def __init__(
        self, clock: str | None = None, schema: pa.Schema = SCHEMA, old_rows: OldRows = "events"
    ) -> None:
        self.clock, self.schema, self.old_rows = clock, schema, old_rows
        self.updates: list[Update] = []
        self.closed = 0
        self.record: str | None = None
        self.batches = 0
        self.held = self.repeated = 0

    def take(self, files: Iterable[Sequence[bytes]]) -> None:
        """One micro-batch of files, each of them a task."""
        before = split(self.record)[1]
        batches = [_batch(lines, f"{self.batches}-{i}") for i, lines in enumerate(files)]
        if before is not None and before.rows:
            batches.append(unpacked(before.rows))
        clock = self.clock or "ts_ms"
        found = pa.Table.from_batches([survey(positions(b.column(0), clock)) for b in batches], schema=SURVEY)
        progress = None if before is None else before.progress
        seen = None
        if before is not None and before.rows:
            seen = fingerprints(as_bytes(batches[-1].column("value")))
        line = timeline(merged_surveys(found), self.clock, progress, whole=False, seen=seen)
        self.batches += 1
        if line is None:
            return
        total = Answer()
        for batch in batches:
            answer = Answer()
            parser = ChangeParser(
                self.schema, ("id",), lower=self.closed, timeline=line, old_rows=self.old_rows
            )
            reader = EventReader(parser, AS_TEXT, answer)
            self.updates += [_update(row) for row in reader.read(batch)[0].to_pylist()]
            reader.finish()
            total.add(answer)
        self.held, self.repeated = total.counts.held, self.repeated + total.counts.repeated
        self.closed = max(self.closed, line.upper or 0)
        self.record = with_held("x", Held(line.progress, merged(list(total.held))))

    def at(self, time: int) -> set[Row]:
        """The contents at a time; each row is there once."""
        rows: Counter[Row] = Counter()
        for at, row, diff in self.updates:
            if at <= time:
                rows[row] += diff
        assert set(rows.values()) <= {0, 1}
        return {row for row, count in rows.items() if count}


def _batch(lines: Sequence[bytes], file: str) -> pa.RecordBatch:
    count = len(lines)
    columns = [
        pa.array(lines, pa.binary()),
        pa.nulls(count, pa.string()),
        pa.array([file] * count, pa.string()),
        pa.array([0] * count, pa.int64()),
        pa.array([1] * count, pa.int64()),
        pa.nulls(count, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(AS_TEXT))


def _update(row: dict[str, Any]) -> Update:
    time, diff = row.pop("_time"), row.pop("_diff", 1)
    return time, tuple(row.values()), diff


@pytest.fixture(scope="session")
def capture(shared_folder: Path) -> Path:
    folder = shared_folder / "postgres_acc"
    if not folder.is_dir():
        pytest.skip(f"no capture at {folder}; TIDELAKE_SHARED_DATA names another place")
    return folder


@pytest.fixture(scope="session")
def events(capture: Path) -> Lines:
    return Lines(gzip.decompress((capture / "events.jsonl.gz").read_bytes()).splitlines())


@pytest.fixture(scope="session")
def truth(capture: Path) -> dict[int, set[Row]]:
    told = [json.loads(gzip.decompress(path.read_bytes())) for path in (capture / "truth").iterdir()]
    return {state["lsn"]: {tuple(row.values()) for row in state["rows"]} for state in told}


def replayed(lines: Sequence[bytes]) -> tuple[list[int], list[frozenset[Row]]]:
    """Times of transactions, and the contents after each, by a replay transaction by transaction."""
    whole = [event for event in map(json.loads, lines) if event is not None]
    groups = [
        list(g) for _, g in itertools.groupby(whole, key=lambda e: (e["op"] == "m", e["source"]["txId"]))
    ]
    begins = [int(json.loads(group[0]["source"]["sequence"])[0] or 0) for group in groups]
    rows: set[Row] = set()
    times, states = [], []
    for group, commit in zip(groups, begins[1:], strict=False):
        if group[0]["op"] != "m":
            for event in group:
                rows -= {tuple(event["before"].values())} if event["before"] else set()
                rows |= {tuple(event["after"].values())} if event["after"] else set()
            times.append(commit - 1)
            states.append(frozenset(rows))
    return times, states


def check(stream: Stream, truth: dict[int, set[Row]], replay: tuple[list[int], list[frozenset[Row]]]) -> None:
    """The contents are the truth at its times, and whole transactions at all others that are closed."""
    assert all(stream.at(lsn) == rows for lsn, rows in truth.items() if lsn < stream.closed)
    times, states = replay
    rows: Counter[Row] = Counter()
    updates = sorted(stream.updates, key=lambda u: u[0])
    for time, group in itertools.groupby(updates, key=lambda u: u[0]):
        for _, row, diff in group:
            rows[row] += diff
        assert {row for row, count in rows.items() if count} == states[bisect_right(times, time) - 1]
        assert time in times and time < stream.closed


@pytest.mark.promise(
    "All events of a transaction have one time, and the times of transactions never go back, "
    "however a feed is divided into lines, files and micro-batches",
    rule="`timeline` in `cdc/times/timeline.py`",
    also=[
        "::test_micro_batches_of_any_size_give_the_same_times",
        "::test_clocks_are_those_of_the_commits_and_never_go_back",
        "::test_a_clock_that_goes_back_gives_the_time_of_the_transaction_before",
    ],
)
def test_a_capture_of_concurrent_transactions_is_the_truth(events: Lines, truth: dict[int, set[Row]]) -> None:
    stream = Stream()
    stream.take([events])
    assert len(truth) == 8 and max(truth) < stream.closed and stream.held == 0
    check(stream, truth, replayed(events))


@settings(max_examples=examples(20))
@given(data=st.data())
def test_micro_batches_of_any_size_give_the_same_times(
    events: Lines, truth: dict[int, set[Row]], data: st.DataObject
) -> None:
    quiet = data.draw(st.booleans())
    events = Lines(events[:1500])
    lines = Lines(line for line in events if not (quiet and b'"op":"m"' in line.replace(b" ", b"")))
    cuts = data.draw(st.lists(st.integers(0, len(lines)), max_size=12).map(sorted))
    stream = Stream()
    for start, end in itertools.pairwise([0, *cuts, len(lines)]):
        batch = lines[start:end]
        at = data.draw(st.integers(0, len(batch)))
        files = [batch[:at], batch[at:]]
        stream.take(files[::-1] if data.draw(st.booleans()) else files)
    whole = Stream()
    whole.take([events])
    last = stream.closed
    assert sorted(map(repr, stream.updates)) == sorted(repr(u) for u in whole.updates if u[0] < last)
    assert last == whole.closed


@settings(max_examples=examples(20))
@given(sizes=st.lists(st.integers(1, 3), min_size=20, max_size=20), start=st.integers(0, 5000))
def test_events_one_by_one(events: Lines, sizes: list[int], start: int) -> None:
    lines = events[start : start + sum(sizes)]
    stream, whole = Stream(), Stream()
    whole.take([lines])
    at = 0
    for size in sizes:
        stream.take([lines[at : at + size]])
        at += size
    assert sorted(map(repr, stream.updates)) == sorted(map(repr, whole.updates))
    assert (stream.closed, stream.held) == (whole.closed, whole.held)


@pytest.mark.promise(
    "An event that a connector delivers again is ignored, and another log of the source is not "
    "taken for it: it is refused",
    rule="`Timeline.again`, `Timeline.split`",
    also=["::test_another_log_of_the_source_is_refused_and_not_taken_for_a_repetition"],
)
@pytest.mark.parametrize("clock", [None, "ts_ms", "ts_us"])
def test_what_a_connector_delivers_again_is_ignored(events: Lines, clock: str | None) -> None:
    once, again = Stream(clock), Stream(clock)
    once.take([events[:2000]])
    once.take([events[2000:3000]])
    again.take([events[:2000]])
    assert again.held
    # From the first event of a transaction on, as a connector that restarts does.
    again.take([events[1000:2000]])
    again.take([events[2000:3000]])
    assert sorted(map(repr, once.updates)) == sorted(map(repr, again.updates))
    assert again.repeated > 500 and once.repeated == 0


def test_a_transaction_that_is_delivered_again_from_its_begin_is_there_once(events: Lines) -> None:
    rows = Lines(line for line in events if line != b"null" and json.loads(line)["op"] != "m")
    groups = itertools.groupby(rows, key=lambda line: json.loads(json.loads(line)["source"]["sequence"])[0])
    whole = max((Lines(group) for _, group in groups), key=len)
    assert len(whole) > 1
    following = rows[rows.index(whole[-1]) + 1 :][:3]
    once = Stream()
    once.take([[*whole, *following]])
    assert once.updates
    for delivered in range(1, len(whole) + 1):
        again = Stream()
        again.take([[*whole[:delivered], *whole, *following]])
        assert again.updates == once.updates and again.repeated == delivered
        for overlap, is_named in ((1, True), (0, False)):
            pieces = [whole[:delivered], [*whole[delivered - overlap :], *following]]
            found = [survey(positions(pa.array(piece, pa.binary()))) for piece in pieces]
            assert bool(twice(pa.Table.from_batches(found, schema=SURVEY), 0)) == is_named


def test_a_transaction_is_named_whose_event_comes_twice_in_a_row(events: Lines) -> None:
    lines = [line for line in events[1000:1200] if line != b"null"]
    # An event lies in the log before the commit of its transaction, and often before earlier commits.
    for at in range(len(lines)):
        found = positions(pa.array([*lines[: at + 1], *lines[at:]], pa.binary()))
        named = twice(pa.Table.from_batches([survey(found)], schema=SURVEY), 0)
        told = named.has(found)[at : at + 2].all()
        assert told or json.loads(lines[at])["op"] == "m"


@settings(max_examples=examples(30))
@given(data=st.data())
def test_transactions_with_events_that_come_twice_are_named(events: Lines, data: st.DataObject) -> None:
    lines = [line for line in events[1000:1200] if line != b"null"]
    once = len(lines)
    # The connector restarts, and delivers events again from an earlier one on.
    stops = data.draw(st.lists(st.integers(1, once), max_size=2).map(sorted))
    for stop in stops:
        lines = [*lines[:stop], *lines[max(0, stop - data.draw(st.integers(1, 40))) :]]
    cuts = data.draw(st.lists(st.integers(0, len(lines)), max_size=6))
    cuts = sorted([*cuts, *data.draw(st.sampled_from([[], stops]))])
    pieces = [lines[a:b] for a, b in itertools.pairwise([0, *cuts, len(lines)])]
    order = data.draw(st.permutations(pieces))
    found = [positions(pa.array(piece, pa.binary())) for piece in order]
    named = twice(pa.Table.from_batches([survey(one) for one in found], schema=SURVEY), 0)
    several = Counter(lines)
    shared = {line for line, count in several.items() if count > 1 and json.loads(line)["op"] != "m"}
    told = {
        line
        for piece, at in zip(order, found, strict=True)
        for line in np.array(piece, object)[named.has(at)]
    }
    assert shared <= told
    if len(lines) == once:
        assert not named


@pytest.mark.parametrize("clock", ["ts_ms", "ts_us"])
def test_clocks_are_those_of_the_commits_and_never_go_back(events: Lines, clock: str) -> None:
    events = Lines(events[:1000])
    whole = Stream(clock)
    whole.take([events])
    _, states = replayed(events)
    assert {frozenset(whole.at(time)) for time, _, _ in whole.updates[::20]} <= set(states)
    for cut in (1, 700, 701, 702):
        stream = Stream(clock)
        stream.take([events[:cut]])
        assert all(time < stream.closed for time, _, _ in stream.updates)
        stream.take([events[cut:]])
        assert sorted(map(repr, stream.updates)) == sorted(map(repr, whole.updates))


def line(connector: str, op: str = "c", id_: int = 1, **source: Any) -> bytes:
    row = {"id": id_, "owner": 0, "bal": 0, "note": "n"}
    before, after = (row, None) if op == "d" else (None, row)
    told = {"connector": connector, "snapshot": "false", "ts_ms": 1_700_000_000_000, **source}
    return json.dumps({"before": before, "after": after, "source": told, "op": op}).encode()


def placed(*lines: bytes) -> list[tuple[int, int]]:
    found = positions(pa.array(lines, pa.binary()))
    return list(zip(found.starts.tolist(), found.roles.tolist(), strict=True))


def test_each_connector_has_its_position() -> None:
    assert placed(
        line("postgresql", sequence='["9", "10"]', lsn=10),
        line("postgresql", sequence='[null,"10"]', lsn=10),
        line("postgresql", "r", sequence='["9","10"]', lsn=10, snapshot="true"),
        line("postgresql", "r", sequence='["9","10"]', lsn=10, snapshot="last"),
        line("postgresql", lsn=10),
        line("postgresql", "m", sequence='["12","12"]', lsn=12),
        b'{"status":"END","id":"4721:205639576","event_count":2,"ts_ms":1}',
        b'{"status":"BEGIN","id":"4721:205639576","ts_ms":1}',
        b'{"ts_ms":1}',
        b"null",
        b"not JSON",
    ) == [
        (9, ROWS),
        (0, ROWS),
        (10, COPY),
        (10, COPY | COPY_END),
        (NONE, ROWS),
        (12, MARK),
        (205639576, MARK),
        *[(NONE, NOTHING)] * 4,
    ]
    assert placed(line("mysql", file="bin.000003", pos=154, gtid="a:5")) == [((3 << 32) + 154, ROWS)]
    assert placed(line("mariadb", file="bin.000003", pos=154, gtid="0-1-2")) == [((3 << 32) + 154, ROWS)]
    assert placed(line("mysql", file="bin.000003", pos=154, gtid=None)) == [(NONE, ROWS)]
    assert placed(line("sqlserver", commit_lsn="00000027:00000ac0:0002")) == [
        ((0x27 << 39) + (0xAC0 << 15) + 2, ROWS)
    ]
    assert placed(line("oracle", commit_scn="2868546", scn="1")) == [(2868546, ROWS)]
    assert placed(line("mongodb", ord=3)) == [((1_700_000_000 << 32) + 3, ROWS)]
    assert positions(pa.array([line("git", lsn=1)], pa.binary())).connector == ""


def test_lines_one_by_one_are_read_as_blocks_are(events: Lines) -> None:
    wrapped = [b'{"payload":' + text + b"}" for text in events[:60]]
    with_schema = [b'{"schema":{"a":"payload"},"payload":' + text + b"}" for text in events[:60]]
    odd = [*events[:40], b"{", *wrapped[40:50], *events[50:60]]
    want = placed(*events[:60])
    assert placed(*wrapped) == placed(*with_schema) == want
    found = placed(*odd)
    assert found[:40] + found[41:] == want[:40] + want[40:]


@pytest.mark.parametrize("wrap", [b"%s", b'{"payload":%s}', b' {"schema":null,"payload":%s}'])
def test_rows_and_positions_are_those_that_are_read_apart(events: Lines, wrap: bytes) -> None:
    lines = pa.array([wrap % one for one in events[:300]] + [None, b"", b"null"], pa.binary())
    apart = positions(lines)
    found = pa.Table.from_batches([survey(apart)], schema=SURVEY)
    times = timeline(found, None, None, whole=True)
    assert times is not None
    parser = ChangeParser(SCHEMA, ("id",), timeline=times, order_by="source.ts_us")
    alone = parser.parse(lines, str, times=times.split(apart)[0])
    # An event that the fast parser leaves to the exact one, and one of another source.
    odd = [b'{"op":"c","op":"c"}', line("mysql", file="f.1", pos=1, gtid="a")]
    both = parser.decoded(pa.concat_arrays([lines, pa.array(odd, pa.binary())]))
    with pytest.raises(InvalidUpdates, match="mixed"):
        positions(both)
    kept = np.arange(len(both)) < len(lines)
    for decoded in (
        parser.decoded(lines),
        both.chosen(kept),
        Decoded.of_column(lines, both.chosen(kept).column),
    ):
        together = positions(decoded)
        for name in ("connector", "starts", "roles", "clocks", "ends"):
            assert np.array_equal(getattr(together, name), getattr(apart, name)), name
        assert parser.parse(decoded, str, times=times.split(together)[0]) == alone


def test_a_transaction_of_mysql_is_one_time_and_is_held_until_the_next() -> None:
    def event(id_: int, pos: int, gtid: str) -> bytes:
        return line("mysql", "c", id_, file="bin.000001", pos=pos, gtid=gtid)

    stream = Stream()
    stream.take([[event(1, 100, "a:1"), event(2, 150, "a:1"), event(3, 200, "a:2")]])
    assert [u[0] for u in stream.updates] == [(1 << 32) + 100] * 2 and stream.held == 1
    stream.take([[event(4, 250, "a:2")]])
    assert len(stream.updates) == 2 and stream.held == 2
    stream.take([[event(5, 300, "a:3")]])
    assert [u[0] for u in stream.updates[2:]] == [(1 << 32) + 200] * 2
    assert stream.closed == (1 << 32) + 300


@pytest.mark.promise(
    "A transaction is held back until it is known to be whole; a time that is closed has whole "
    "transactions only",
    rule="`Timeline.held`, `Timeline.upper`",
    also=[
        "::test_a_transaction_of_mysql_is_one_time_and_is_held_until_the_next",
        "::test_several_streams_are_whole_up_to_where_the_slowest_is",
    ],
)
@pytest.mark.parametrize(
    ("connector", "field", "values"),
    [
        ("sqlserver", "commit_lsn", ["00000027:00000ac0:0002", "00000027:00000ac0:0003"]),
        ("oracle", "commit_scn", ["100", "101"]),
        ("mongodb", "ord", [1, 2]),
    ],
)
def test_the_last_commit_is_held_until_it_is_known_to_be_whole(
    connector: str, field: str, values: list[Any]
) -> None:
    stream = Stream()
    first, second = values
    stream.take([[line(connector, "c", 1, **{field: first})]])
    assert stream.held == 1 and not stream.updates
    stream.take([[line(connector, "c", 2, **{field: first}), line(connector, "c", 3, **{field: second})]])
    assert len(stream.updates) == 2 and len({u[0] for u in stream.updates}) == 1 and stream.held == 1


def test_a_clock_that_goes_back_gives_the_time_of_the_transaction_before() -> None:
    def event(id_: int, clock: int) -> bytes:
        return line("postgresql", id_=id_, sequence=f'["{id_}","{id_}"]', lsn=id_, ts_ms=clock)

    clocks = [50, 40, 40, 60, 55, 70]
    stream = Stream("ts_ms")
    lines = [event(id_, clock) for id_, clock in enumerate(clocks, 1)]
    # The clock goes back within a micro-batch, and from one to the next.
    for some in (lines[:2], lines[2:4], lines[4:]):
        stream.take([some])
    times = {row[0]: time for time, row, _ in stream.updates}
    assert times == {1: 50, 2: 50, 3: 50, 4: 60, 5: 60} and (stream.held, stream.closed) == (1, 70)


def test_the_end_of_a_transaction_releases_it() -> None:
    stream = Stream()
    stream.take([[line("postgresql", sequence='["9","10"]', lsn=10)]])
    assert stream.held == 1
    stream.take([[b'{"status":"END","id":"7:20","event_count":1,"data_collections":[],"ts_ms":1}']])
    assert [u[0] for u in stream.updates] == [19] and (stream.held, stream.closed) == (0, 20)


@pytest.mark.parametrize("clock", [None, "ts_ms"])
def test_several_streams_are_whole_up_to_where_the_slowest_is(events: Lines, clock: str | None) -> None:
    found = pa.Table.from_batches([survey(positions(pa.array(events[:900], pa.binary())))])
    starts = sorted(set(found.column("start").to_pylist()))
    for reach in (starts[0] - 1, starts[5], starts[5] + 1, starts[-2]):
        line = timeline(found, clock, None, whole=False, reach=reach)
        assert line is not None
        assert line.held <= max(reach, 0) and line.last == starts[-1]
        assert (line.upper is None) == (reach < starts[0])
        if clock is None and line.upper is not None:
            assert line.upper == line.held == max(s for s in starts if s <= reach)


def test_a_first_copy_is_before_what_follows_it() -> None:
    for clock in (None, "ts_ms"):
        stream = Stream(clock)
        copied = line("postgresql", "r", 1, snapshot="last", sequence='[null,"50"]', lsn=50)
        stream.take([[copied, line("postgresql", "c", 2, sequence='[null,"60"]', lsn=60)]])
        assert len(stream.updates) == 1 and stream.updates[0][0] == stream.closed - 1 and stream.held == 1
        stream.take([[line("postgresql", "c", 3, sequence='["70","80"]', lsn=80, ts_ms=1_800_000_000_000)]])
        assert stream.updates[0][0] < stream.updates[1][0] < stream.closed


def test_rows_that_are_copied_among_others_have_the_times_of_these() -> None:
    def copied(id_: int) -> bytes:
        return line("postgresql", "r", id_, sequence='["60","70"]', lsn=70, snapshot="incremental")

    streamed = [
        line("postgresql", "c", n, sequence=f'["{at}","{at + 5}"]', lsn=at + 5)
        for n, at in ((1, 50), (2, 60), (3, 80))
    ]
    assert placed(copied(9)) == [(60, ROWS)]
    of_mysql = line("mysql", "r", file="b.1", pos=7, gtid="a:5", snapshot="incremental")
    assert placed(of_mysql) == [((1 << 32) + 7, ROWS)]
    for cut in range(6):
        lines = [*streamed[:2], copied(9), copied(8), streamed[2]]
        stream = Stream(old_rows="stored")
        stream.take([lines[:cut], lines[cut:]])
        stream.take([[line("postgresql", "c", 4, sequence='["95","99"]', lsn=99)]])
        times = {row[0]: time for time, row, _ in stream.updates}
        assert times == {1: 59, 2: 79, 9: 79, 8: 79, 3: 94}
    roles = {"first": COPY, "streamed": ROWS, "incremental": ROWS}
    for progress, again in (
        (Progress("mysql", last=7, floor=7, copying=True), False),
        (Progress("mysql"), False),
        (Progress("mysql", last=7), True),
        (Progress("mysql", floor=7), True),
    ):
        for kind, role in roles.items():
            found = pa.table({"roles": pa.array([ROWS, role], pa.int8())})
            assert copies_again(found, progress) == (again and kind == "first")


def test_statements_have_positions_but_for_those_of_a_first_copy() -> None:
    def statement(connector: str, **source: Any) -> bytes:
        event = json.loads(line(connector, **source))
        return json.dumps({"source": event["source"], "ddl": None, "tableChanges": []}).encode()

    assert placed(
        statement("mysql", file="b.1", pos=7), statement("mysql", file="b.1", pos=8, snapshot="true")
    ) == [
        ((1 << 32) + 7, ROWS),
        (NONE, NOTHING),
    ]
    lines = [statement("mysql", file="b.1", pos=at) for at in (7, 9)]
    groups = positions(pa.array([*lines, line("mysql", file="b.1", pos=9, gtid="a:1")])).groups
    assert groups is not None and len(groups.unique()) == 3
    # Without GTIDs a truncation has no name either, and is in no transaction.
    assert placed(line("mysql", "t", file="b.1", pos=7, gtid=None)) == [((1 << 32) + 7, ROWS)]
    assert placed(statement("sqlserver", commit_lsn="00000027:00000ac0:0002"))[0][1] == ROWS


@pytest.mark.promise(
    "A first copy that a connector begins again is refused, since rows that were deleted in between "
    "would stay",
    rule="`_check_one_copy` in `cdc/times/timeline.py`",
)
@pytest.mark.parametrize("clock", [None, "ts_ms", "ts_us"])
def test_a_first_copy_that_begins_again_is_refused(clock: str | None) -> None:
    def clocks(at: int) -> dict[str, int]:
        return {"ts_ms": 1_700_000_000_000 + at, "ts_us": 1_700_000_000_000_000 + 1000 * at}

    def copied(id_: int, at: int, snapshot: str, commit: str = "null") -> bytes:
        told = {"snapshot": snapshot, "sequence": f'[{commit},"{at}"]', "lsn": at, **clocks(at)}
        return line("postgresql", "r", id_, **told)

    first, rest, last = copied(1, 50, "first"), copied(2, 50, "true"), copied(3, 50, "last")
    streamed = line("postgresql", "c", 4, sequence='["60","70"]', lsn=70, **clocks(70))
    for before in ([first], [first, last], [first, last, streamed]):
        for again in ([copied(1, 90, "first")], [copied(1, 90, "last"), streamed]):
            stream = Stream(clock)
            stream.take([[*before]])
            with pytest.raises(InvalidUpdates, match="first copy of the tables again, at position 90"):
                stream.take([again])
            with pytest.raises(InvalidUpdates, match="first copy of the tables again, at position 90"):
                Stream(clock).take([[*before, *again]])
    # Pieces of one copy, copies that are delivered twice, and those that were asked for later, are none.
    stream = Stream(clock)
    stream.take([[first], [rest], [first, rest, last], [streamed], [copied(1, 90, "first", commit='"80"')]])


def test_another_log_of_the_source_is_refused_and_not_taken_for_a_repetition() -> None:
    stream = Stream()
    for seq in (100, 200):
        stream.take([[line("postgresql", sequence=f'["{seq}","{seq}"]', lsn=seq)]])
    newer = line("postgresql", sequence='["50","50"]', lsn=50, ts_ms=1_800_000_000_000)
    with pytest.raises(InvalidUpdates, match="has another log"):
        stream.take([[newer]])


def test_connectors_are_not_mixed() -> None:
    lines = [line("postgresql", sequence='["9","9"]', lsn=9), line("oracle", commit_scn="9")]
    with pytest.raises(InvalidUpdates, match="oracle and postgresql are mixed"):
        positions(pa.array(lines, pa.binary()))
    stream = Stream()
    with pytest.raises(InvalidUpdates, match="are mixed"):
        stream.take([lines[:1], lines[1:]])


def test_an_event_without_its_position_is_refused_by_line() -> None:
    stream = Stream()
    with pytest.raises(InvalidUpdates, match=r"no commit position in 'source.sequence'.*file=0-0 number=2"):
        stream.take([[line("postgresql", sequence='["9","9"]', lsn=9), line("postgresql", lsn=10)]])


def test_a_commit_position_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidUpdates, match="too large for a position of 63 bits"):
        placed(line("sqlserver", commit_lsn="ff000027:00000ac0:0002"))


def test_what_is_held_back_is_packed_in_small_pieces(monkeypatch: pytest.MonkeyPatch, events: Lines) -> None:
    rows = _batch(events[:30], "f")
    assert packed([rows.slice(0, 0)]) == b"" and list(grouped([])) == [b""]
    each = [packed([rows.slice(at, 1)], HeldSpan(at, at, 2 * at, 1)) for at in range(30)]
    monkeypatch.setattr(held_back, "OBJECT_BYTES", 4 * max(map(len, each)))
    pieces = list(grouped(each))
    assert 1 < len(pieces) < 10
    assert pa.Table.from_batches(map(unpacked, pieces)) == pa.Table.from_batches([rows])
    spans = [span_of(piece) for piece in pieces]
    assert (spans[0].first, spans[-1].last, spans[-1].end) == (0, 29, 58)
    assert sum(span.events for span in spans) == 30


def test_a_record_of_a_writer_keeps_what_it_was_given(events: Lines) -> None:
    stream = Stream()
    stream.take([events[:100]])
    text, kept = split(stream.record)
    assert text == "x" and kept is not None and kept.any
    assert split(with_held("a b", kept)) == ("a b", kept)
    assert split(None) == ("", None) and split("a b") == ("a b", None)
    stored = Held(kept.progress, b"", ("b/1-2", "b/2-3"), (HeldSpan(1, 2, 3, 4),), b"survey")
    assert stored.any and split(with_held("a b", stored)) == ("a b", stored)
    rows = unpacked(kept.rows)
    assert rows.schema.names == list(AS_TEXT)
    assert (np.array(rows.column("block")) < 0).all() and rows.column("offset").null_count == 0


def test_a_record_of_a_newer_version_is_refused_and_so_is_one_with_other_fields() -> None:
    told = with_held("x", Held(Progress("postgresql")))
    assert split(told) == ("x", Held(Progress("postgresql")))
    with pytest.raises(FormatTooNew, match="format 3"):
        split(told.replace('{"tidelake":2,', '{"tidelake":3,"shards":1,'))
    wrong = ('"stored":[]', '"stored":[1]')
    for other in (
        ('{"tidelake":2,', "{"),
        ('"copying":', '"shards":1,"copying":'),
        ('"copied_at":-1,', ""),
        wrong,
    ):
        assert other[0] in told
        with pytest.raises(CorruptionError, match="does not say how far the stream is"):
            split(told.replace(*other))


def landed(folder: Path, lines: Sequence[bytes], number: int) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:04}.json"
    path.write_bytes(b"\n".join(lines) + b"\n")
    os.utime(path, (1_000_000_000 + number,) * 2)


@pytest.mark.usefixtures("both_ways")
def test_an_ingest_of_a_capture_is_the_truth(
    spark: Any, tmp_path: Path, events: Lines, truth: dict[int, set[Row]]
) -> None:
    for number, start in enumerate((0, 1, 1000, 1001, 4000)):
        landed(tmp_path / "in", events[start : [1, 1000, 1001, 4000, len(events)][number]], number)
    c = tidelake.open(tmp_path / "lake").create("acc", SCHEMA, key=["id"])
    done: list[Any] = []
    report = ingest(
        spark,
        c,
        tmp_path / "in",
        tmp_path / "check",
        envelope="debezium",
        max_files_per_trigger=2,
        progress=done.append,
    )
    assert report.batches == 3 and report.events == sum(line != b"null" for line in events) - 8
    assert (report.held, report.late, report.files) == (0, 0, 5)
    assert done[0].held > 0
    assert report.upper is not None and report.upper.elements == (205326656,)
    for lsn, rows in truth.items():
        found = c.snapshot(lsn).read_all().select(SCHEMA.names).to_pylist()
        assert {tuple(row.values()) for row in found} == rows and len(found) == len(rows)


@pytest.mark.full
def test_tasks_take_what_is_delivered_again_once(spark: Any, tmp_path: Path, events: Lines) -> None:
    rows = Lines(line for line in events[:1500] if line != b"null")
    # Again within a file, from file to file, and over several batches of a task.
    landed(tmp_path / "in", [*rows[:700], *rows[600:901]], 1)
    landed(tmp_path / "in", [*rows[500:900], *rows[850:]], 2)
    landed(tmp_path / "once", rows, 1)
    lake = tidelake.open(tmp_path / "lake")
    once, c = (lake.create(name, SCHEMA, key=["id"]) for name in ("once", "again"))
    ingest(spark, once, tmp_path / "once", tmp_path / "check1", envelope="debezium")
    settings = {driver_bytes: "0", "spark.sql.execution.arrow.maxRecordsPerBatch": "64"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        report = ingest(spark, c, tmp_path / "in", tmp_path / "check2", envelope="debezium")
    finally:
        for name in settings:
            spark.conf.unset(name)
    marks = sum(json.loads(line)["op"] == "m" for line in [*rows[600:901], *rows[500:900], *rows[850:]])
    of_rows = len(rows[600:901]) + len(rows[500:900]) + len(rows[850:]) - marks
    assert report.repeated == of_rows - sum(json.loads(line)["op"] != "m" for line in rows[700:])
    assert c.upper == once.upper
    ours, theirs = (one.updates(0, one.upper).read_all().to_pylist() for one in (c, once))
    assert len(ours) > 1000 and sorted(map(repr, ours)) == sorted(map(repr, theirs))


@pytest.mark.full
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("most", [held_back.BYTES_MAX, 0])
def test_an_ingest_goes_on_where_a_transaction_was_held_back(
    spark: Any, tmp_path: Path, events: Lines, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(held_back, "BYTES_MAX", most)
    c = tidelake.open(tmp_path / "lake").create("acc", SCHEMA, key=["id"])
    whole = Stream()
    whole.take([events[:600]])

    def run(**options: Any) -> Any:
        return ingest(spark, c, tmp_path / "in", tmp_path / "check", envelope="debezium", **options)

    landed(tmp_path / "in", events[:301], 0)
    assert run().held > 0
    assert bool(list((tmp_path / "lake").rglob("held/*/*"))) == (most == 0)
    landed(tmp_path / "in", events[301:302], 1)
    with pytest.raises(UsageError, match="held back by this writer"):
        run(time="source.lsn")
    assert run().events <= 1
    landed(tmp_path / "in", events[302:600], 2)
    run()
    rows = c.updates(0, c.upper.elements[0]).read_all().to_pylist()
    assert sorted(map(repr, map(_update, rows))) == sorted(map(repr, whole.updates))


@pytest.mark.full
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("unit", ["counter", "ms"])
def test_old_rows_are_looked_up_at_the_times_of_transactions(
    spark: Any, tmp_path: Path, events: Lines, unit: Any
) -> None:
    whole = Stream("ts_ms" if unit == "ms" else None)
    whole.take([events[:400]])
    for number, start in enumerate((0, 133, 134, 300)):
        landed(tmp_path / "in", events[start : (133, 134, 300, 400)[number]], number)
    c = tidelake.open(tmp_path / "lake").create("acc", SCHEMA, key=["id"], time=unit)
    report = ingest(
        spark,
        c,
        tmp_path / "in",
        tmp_path / "check",
        envelope="debezium",
        old_rows="stored",
        order_by="source.lsn",
        max_files_per_trigger=1,
    )
    assert report.batches == 4 and report.held == whole.held
    assert c.upper.elements == (whole.closed,)
    for time in sorted({u[0] for u in whole.updates})[::20]:
        found = c.snapshot(time).read_all().select(SCHEMA.names).to_pylist()
        assert {tuple(row.values()) for row in found} == whole.at(time)


@pytest.mark.full
@pytest.mark.usefixtures("both_ways")
def test_a_frame_that_is_written_ends_with_a_whole_transaction(
    spark: Any, tmp_path: Path, events: Lines
) -> None:
    c = tidelake.open(tmp_path / "lake").create("acc", SCHEMA, key=["id"])
    frame = spark.createDataFrame([(text.decode(),) for text in events[:200]], "value string")
    done = write(c, frame, "debezium")
    assert done.held == 0
    stream = Stream()
    stream.take([events[:200]])
    assert stream.held
    rows = c.snapshot(stream.closed - 1).read_all().select(SCHEMA.names).to_pylist()
    assert {tuple(row.values()) for row in rows} == stream.at(stream.closed - 1)
    assert c.updates(0, c.upper.elements[0]).read_all().num_rows > len(stream.updates)


@pytest.mark.full
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(("unit", "old_rows"), [("counter", "events"), ("ms", "stored")])
def test_a_first_copy_of_several_micro_batches_is_seen_as_a_whole(
    spark: Any, tmp_path: Path, unit: Any, old_rows: Any
) -> None:
    def copied(id_: int, snapshot: str = "true") -> bytes:
        return line("postgresql", "r", id_, snapshot=snapshot, sequence='[null,"50"]', lsn=50)

    c = tidelake.open(tmp_path / "lake").create("acc", SCHEMA, key=["id"], time=unit)
    files = [
        [copied(1, "first"), copied(2)],
        [copied(3)],
        [copied(4, "last")],
        [line("postgresql", "c", 5, sequence='[null,"60"]', lsn=60, ts_ms=1_700_000_000_001)],
        [line("postgresql", "c", 6, sequence='["70","80"]', lsn=80, ts_ms=1_700_000_000_002)],
    ]
    seen = []
    for number, lines in enumerate(files):
        landed(tmp_path / "in", lines, number)
        ingest(
            spark, c, tmp_path / "in", tmp_path / "check", envelope="debezium", old_rows=old_rows,
        )  # fmt: skip
        upper = c.upper.elements[0]
        ids = c.snapshot(upper - 1).read_all().column("id").to_pylist() if upper else []
        seen.append(sorted(ids))
    assert seen == [[], [], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    again = tidelake.open(tmp_path / "lake").create("again", SCHEMA, key=["id"], time=unit)
    # The last piece comes with what follows.
    shutil.rmtree(tmp_path / "in")
    for number, lines in enumerate([files[0], [*files[1], *files[2], *files[3]], files[4]]):
        landed(tmp_path / "in", lines, number)
        ingest(
            spark, again, tmp_path / "in", tmp_path / "again", envelope="debezium", old_rows=old_rows,
        )  # fmt: skip
    assert again.upper == c.upper
    assert (
        again.snapshot(again.upper.elements[0] - 1).read_all().sort_by("id").column("id").to_pylist()
        == seen[-1]
    )
    if unit == "counter":
        assert c.snapshot(49).read_all().num_rows == c.snapshot(68).read_all().num_rows == 4
        assert c.snapshot(69).read_all().num_rows == 5 and c.upper.elements == (70,)
