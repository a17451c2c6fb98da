"""`Lake.ingest`: change feeds into collections, in this process."""

import contextlib
import gzip
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from feed import Feed, connect, contents, told

import tidelake
from killed import killed
from tidelake.cdc.debezium.decoded import decode
from tidelake.cdc.times.heldevents import BYTES_MAX, Held, with_held
from tidelake.errors import (
    CorruptionError,
    FormatTooNew,
    InvalidUpdates,
    StoreUnavailable,
    UsageError,
    WriterFenced,
)
from tidelake.feeds.directory import Directory, Journal, Taken
from tidelake.feeds.lines import Piece, piece_of
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.state.write.heldback import StreamContent
from tiers import rounds

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
TIMED = {"time": "source.lsn"}


def event(op: str, key: int, at: int, new: int | None = None, old: int | None = None) -> str:
    rows = [None if n is None else {"id": key, "n": n} for n in (old, new)]
    return json.dumps({"op": op, "before": rows[0], "after": rows[1], "source": {"lsn": at}})


def landed(folder: Path, name: str, lines: Sequence[str], number: int = 0, end: str = "\n") -> None:
    folder.mkdir(exist_ok=True, parents=True)
    data = "".join(line + end for line in lines).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    os.utime(folder / name, (1_000_000_000 + number,) * 2)


def made(place: Path) -> tuple[Lake, Collection]:
    lake = tidelake.open(place / "lake")
    return lake, lake.create("c", SCHEMA, key=["id"])


def history(c: Collection) -> list[tuple[Any, ...]]:
    rows = c.updates(0, c.upper).read_all().to_pylist() if c.upper.elements[0] else []
    return sorted((r["_time"], r["id"], r["n"], r["_diff"]) for r in rows)


def test_files_are_taken_once_in_the_order_of_their_times(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    landed(tmp_path / "in", "b.json", [event("c", 1, 3, 7), "null", ""], 1)
    landed(tmp_path / "in", "a.json.gz", [event("u", 1, 5, 8, 7), event("c", 2, 5, 1)], 2)
    landed(tmp_path / "in", "_c.json", ["no event"])
    landed(tmp_path / "in" / "d", "e.json", ["no event"])
    done = list[Any]()
    report = lake.ingest(tmp_path / "in", "c", max_files_per_trigger=1, progress=done.append, **TIMED)
    assert (report.batches, report.files, report.events, report.tombstones, report.updates) == (2, 2, 3, 2, 4)
    assert [one.batch for one in done] == [0, 1] and report.upper == c.upper
    assert history(c) == [(3, 1, 7, 1), (5, 1, 7, -1), (5, 1, 8, 1), (5, 2, 1, 1)]
    again = lake.ingest(tmp_path / "in", c, **TIMED)
    assert (again.batches, again.already, again.upper) == (0, 0, c.upper)
    landed(tmp_path / "in", "f.json", [event("d", 2, 9, None, 1)], 0)
    assert lake.ingest(tmp_path / "in", "c", **TIMED).files == 1
    assert history(c)[-1] == (9, 2, 1, -1)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_those_of_the_file_however_it_is_cut(tmp_path: Path, end: str) -> None:
    folder = tmp_path / "in"
    lines = ["ä" * n for n in (0, 3, 1, 0, 40, 2)]
    landed(folder, "plain", lines, end=end)
    landed(folder, "packed.gz", lines, end=end)
    (folder / "open").write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    for name in ("plain", "packed.gz", "open"):
        for size in (1, 5, 1000):
            directory = Directory(folder, partial(piece_of, folder, "jsonl"), bytes_max=size)
            found, numbers, names = list[str](), list[int](), [name]
            while (taken := directory.next(names, cuts=True)) is not None:
                directory.go_on(taken.pieces)
                names = []
                for batch in taken.batches:
                    found += [value.decode() for value in batch.column("value").to_pylist()]
                    numbers += batch.column("offset").to_pylist()
            assert found == lines and numbers == [1, 2, 3, 4, 5, 6], (name, size)


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_a_file_that_became_shorter_while_it_was_taken_is_refused(tmp_path: Path, name: str) -> None:
    landed(tmp_path, name, ["abc"] * 9)
    directory = Directory(tmp_path, partial(piece_of, tmp_path, "jsonl"), bytes_max=9)
    taken = directory.next([name], cuts=True)
    assert taken is not None
    directory.go_on(taken.pieces)
    landed(tmp_path, name, ["abc"])
    with pytest.raises(InvalidUpdates, match="has fewer than the 16 bytes"):
        directory.next([], cuts=True)


def test_a_file_that_vanishes_while_it_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed(tmp_path, "a", [])
    landed(tmp_path, "b", [])
    real = os.scandir

    class Gone:
        def __init__(self, entry: Any) -> None:
            self.name, self.is_file, self.stat = entry.name, entry.is_file, entry.stat
            if entry.name == "a":
                os.remove(entry.path)

    @contextlib.contextmanager
    def scandir(folder: Path) -> Iterator[Iterator[Gone]]:
        with real(folder) as found:
            yield map(Gone, found)

    monkeypatch.setattr(os, "scandir", scandir)
    assert Directory(tmp_path, partial(piece_of, tmp_path, "jsonl")).new() == ["b"]


def test_files_that_are_left_are_compared_once_a_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, _ = made(tmp_path)
    for number in range(9):
        landed(tmp_path / "in", f"{number}", [event("c", number, 3 + number, 7)], number)
    read = list[int]()

    class Names(list[str]):
        def __iter__(self) -> Iterator[str]:
            read.append(1)
            return super().__iter__()

    real = Directory.new
    monkeypatch.setattr(Directory, "new", lambda self: Names(real(self)))
    report = lake.ingest(tmp_path / "in", "c", max_files_per_trigger=4, **TIMED)
    assert report.batches == 3 and len(read) <= 12


def test_keys_stand_before_a_tab(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    deleted = json.dumps({"op": "d", "before": None, "after": None, "source": {"lsn": 4}})
    landed(
        tmp_path / "in",
        "a",
        [f'{{"id":1}}\t{event("c", 1, 3, 7)}', f'{{"id":1}}\t{deleted}', '{"id":1}\tnull'],
    )
    report = lake.ingest(tmp_path / "in", "c", format="keyed", old_rows="stored", **TIMED)
    assert (report.events, report.tombstones) == (2, 1)
    assert history(c) == [(3, 1, 7, 1), (4, 1, 7, -1)]


def feed_of(seed: int, count: int = 30) -> tuple[Feed, list[str]]:
    feed = Feed(seed, 2, postgres=True).transactions(count)
    return feed, [line for _, one in feed.lines for line in one]


def is_replayed(lake: Lake, feed: Feed) -> None:
    end = lake["shop"].upper.elements[0]
    closed = [state for (time, _), state in zip(feed.lines, feed.states, strict=True) if time < end]
    times = [time for time, _ in feed.lines if time < end]
    assert len(closed) >= len(feed.lines) - 4, "more than the last transaction with events is held back"
    for time, state in zip(times, closed, strict=True):
        for table, rows in state.items():
            found = contents(lake[f"shop.public.{table}"], time)
            assert found == {key: told(row) for key, row in rows.items()}, (time, table)


@pytest.mark.promise(
    "What `Lake.ingest` takes is what a replay leaves, at every closed time, however small its memory and "
    "its files are",
    rule="`feeds/ingest.py`",
    also=["::test_killed_anywhere_it_takes_each_line_once", "spark/jobs/test_ingest_agrees.py"],
)
@pytest.mark.parametrize("spills", [False, True])
def test_tables_are_what_a_replay_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spills: bool
) -> None:
    if spills:
        # All that is held back is in objects, and all events are sorted outside of the memory.
        monkeypatch.setattr("tidelake.cdc.times.heldevents.BYTES_MAX", 0)
        monkeypatch.setattr("tidelake.shard.writing.shufflespill.ShuffleSpill.run_bytes", 1)
    for seed in rounds(fast=1, full=10, soak=150):
        chance = random.Random(seed)
        feed, lines = feed_of(seed, chance.choice([10, 30]) if seed else 8)
        folder, lake, at = tmp_path / f"in{seed}", tidelake.open(tmp_path / f"lake{seed}"), 0
        while at < len(lines):
            count = chance.randint(1, 60)
            landed(folder, f"{at:04}", lines[at : at + count], at)
            at += count
            if chance.random() < 0.5:
                size = chance.choice([2_000, 10_000, 1 << 20])
                lake.ingest(folder, "shop", tables=True, keys=["id"], batch_bytes=size)
        report = lake.ingest(folder, "shop", tables=True, keys=["id"])
        assert report.upper == lake["shop"].upper
        is_replayed(lake, feed)


def test_killed_anywhere_it_takes_each_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The journal is shortened at each start, and once amid the files.
    monkeypatch.setattr("tidelake.feeds.directory.KEPT", 1)
    place = tmp_path / "place"
    for number in range(3):
        events = [event("c", n, n + 3, n) for n in range(10 * number, 10 * number + 10)]
        landed(place / "in", f"{number}", [*events, "no event"], number)
    made(place)[0].close()

    def work(place: Path) -> None:
        with tidelake.open(place / "lake") as lake:
            aside = str(place / "aside")
            lake.ingest(place / "in", "c", max_files_per_trigger=1, rejects=aside, **TIMED)

    for left in killed(place, work, fast=29, full=2):
        work(left)
        with tidelake.open(left / "lake") as lake:
            assert history(lake["c"]) == [(n + 3, n, n, 1) for n in range(30)]
        aside = sorted((left / "aside").glob("*.jsonl"))
        assert [json.loads(one.read_text())["file"][-1] for one in aside] == ["0", "1", "2"]


@pytest.mark.full
def test_killed_anywhere_tables_are_whole(tmp_path: Path) -> None:
    feed, lines = feed_of(5)
    place = tmp_path / "place"
    for number, at in enumerate(range(0, len(lines), 40)):
        landed(place / "in", f"{number}", lines[at : at + 40], number)
    tidelake.open(place / "lake").close()

    def work(place: Path) -> None:
        with tidelake.open(place / "lake") as lake:
            lake.ingest(place / "in", "shop", tables=True, keys=["id"], batch_bytes=8_000)

    for left in killed(place, work, fast=97, full=23):
        work(left)
        with tidelake.open(left / "lake") as lake:
            is_replayed(lake, feed)
            assert not lake.fsck().findings


def test_a_file_is_not_cut_if_its_events_have_times_of_their_own(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    chance = random.Random(1)
    times = [chance.randint(1, 50) for _ in range(300)]
    landed(tmp_path / "in", "a", [event("c", key, at, 1) for key, at in enumerate(times)])
    report = lake.ingest(tmp_path / "in", "c", batch_bytes=1000)
    assert (report.batches, report.events, report.late) == (1, 300, 0)
    assert [row[0] for row in history(c)] == sorted(times)


class Record:
    """As a client of Kafka gives messages."""

    def __init__(self, value: str, offset: int, partition: int = 0) -> None:
        self.value, self.key, self.topic = value.encode(), None, "t"
        self.partition, self.offset, self.timestamp = partition, offset, 1_700_000_000_000 + offset


def as_mapping(record: Record) -> dict[str, Any]:
    return dict(vars(record))


class Called:
    """As the client of Confluent does."""

    def __init__(self, record: Record) -> None:
        for name, value in vars(record).items():
            given = (1, value) if name == "timestamp" else value
            setattr(self, name, lambda given=given: given)


@pytest.mark.promise(
    "Messages of Kafka that come again are ignored by their offsets, of every feed",
    rule="`IntoOne.write` in `feeds/onecollection.py`",
)
@pytest.mark.parametrize("kind", [lambda record: record, as_mapping, Called])
def test_messages_are_taken_once_by_their_offsets(tmp_path: Path, kind: Any) -> None:
    lake, c = made(tmp_path)
    # Times are equal: without offsets nothing would tell the messages apart.
    records = [Record(event("c", n % 3, 5, n), n // 2, n % 2) for n in range(40)]

    def given(some: list[Record]) -> Iterator[Any]:
        return map(kind, some)

    first = lake.ingest(given(records[:20]), "c", late="advance", **TIMED)
    assert (first.events, first.repeated) == (20, 0)
    again = lake.ingest(given(records[10:]), "c", late="advance", batch_bytes=3_000, **TIMED)
    assert (again.events, again.repeated) == (20, 10) and again.batches == 2
    assert sorted(row[2] for row in history(c)) == list(range(40))
    assert lake.ingest(iter([]), "c", **TIMED).upper == c.upper


def test_messages_of_tables_with_times_of_their_own_come_again(tmp_path: Path) -> None:
    lake, _ = made(tmp_path)
    lines = [of_postgres(op, 5 + n, None, row(1, n)) for n, op in enumerate("cuu")]
    how: dict[str, Any] = {"tables": True, "keys": ["id"], "late": "advance"} | TIMED
    lake.ingest([Record(line, n) for n, line in enumerate(lines)], "shop", **how)
    lake.ingest([of_postgres("c", 20, None, row(2, 2))], "shop", **how)
    assert lake.ingest([Record(line, n) for n, line in enumerate(lines[:2])], "shop", **how).repeated == 2
    rows = lake["shop.public.t"].snapshot().read_all().to_pylist()
    assert [(one["id"], one["n"]) for one in rows] == [(1, 2), (2, 2)]


def test_lines_between_messages_do_not_forget_their_offsets(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    records = [Record(event("c", n, 5, n), n) for n in range(3)]
    lake.ingest(records, "c", late="advance", **TIMED)
    lake.ingest([event("c", 9, 5, 9)], "c", late="advance", **TIMED)
    assert lake.ingest(records, "c", late="advance", **TIMED).repeated == 3
    assert sorted((one[1], one[3]) for one in history(c)) == [(n, 1) for n in (0, 1, 2, 9)]


@pytest.mark.parametrize("placed", [False, True])
def test_events_of_several_connectors_have_times_that_are_named(tmp_path: Path, placed: bool) -> None:
    lake, c = made(tmp_path)
    lines = [of_postgres("c", 5, None, row(1, 1)), of_mysql(2, 30, 1)]
    given = [Record(line, n) for n, line in enumerate(lines)] if placed else lines
    with pytest.raises(InvalidUpdates, match="are mixed"):
        lake.ingest(given, "c")
    assert lake.ingest(given, "c", time="source.pos", rejects=str(tmp_path / "aside")).rejects == 1
    assert history(c) == [(30, 2, 30, 1)]


def test_messages_come_again_in_their_batch(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    records = [Record(event("c", n, 5 + n, n), n, n % 2) for n in range(10)]
    report = lake.ingest([*records[:6], *records[2:]], "c", **TIMED)
    assert (report.events, report.repeated) == (10, 4)
    assert [(row[1], row[3]) for row in history(c)] == [(n, 1) for n in range(10)]
    other = Record(event("c", 77, 50, 7), 20)
    with pytest.raises(InvalidUpdates, match="topic 't', partition 0 have the offset 20"):
        lake.ingest([Record(event("c", 11, 40, 7), 20), other], "c", **TIMED)


def test_messages_come_again_from_the_middle_of_a_transaction(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    records = [Record(of_mysql(n, 10 * n, n // 4), n) for n in range(1, 12)]
    lake.ingest(records[:7], "c", old_rows="stored")
    assert lake.ingest(records[5:], "c", old_rows="stored").repeated == 2
    assert [(row[1], row[3]) for row in history(c)] == [(n, 1) for n in range(1, 8)]
    anew = [Record(of_mysql(20, 500, 50), 3)]
    with pytest.raises(InvalidUpdates, match="the topic was deleted and made anew"):
        lake.ingest(anew, "c", old_rows="stored")


def test_lines_of_transactions_may_come_again(tmp_path: Path) -> None:
    feed, lines = feed_of(7, 8)
    lake = tidelake.open(tmp_path / "lake")
    for start in (0, 10):
        lake.ingest(lines[start:], "shop", tables=True, keys=["id"], batch_bytes=12_000)
    is_replayed(lake, feed)


def of_postgres(
    op: str, at: int, before: Any, after: Any, snapshot: str = "false", place: int | None = None
) -> str:
    """An event of a table without a primary key: each is a transaction of its own."""
    source = {"connector": "postgresql", "db": "d", "schema": "public", "table": "t", "lsn": place or at + 5}
    source |= {"sequence": json.dumps([str(at), "0"]), "snapshot": snapshot}
    payload = {"op": op, "before": before, "after": after, "source": source}
    schema = connect("t", {"id": ("int64", True), "n": ("int64", True)})
    return json.dumps({"schema": schema, "payload": payload})


def row(id_: int, n: int) -> dict[str, int]:
    return {"id": id_, "n": n}


def test_ends_of_transactions_that_are_held_back_alone_are_taken_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelake.cdc.times.heldevents.BYTES_MAX", 0)
    lake = tidelake.open(tmp_path / "lake")
    events = [of_postgres("c", 10 * n, None, row(n, n)) for n in range(1, 7)]
    ends = [json.dumps({"status": "END", "id": f"{n}:{10 * n + 10}", "event_count": 1}) for n in range(1, 7)]
    first, *rest = [Record(event, n) for n, event in enumerate(events)]
    marks = [Record(end, n, 1) for n, end in enumerate(ends)]
    for records in ([first, marks[0]], [marks[1], marks[2], rest[0]], marks[3:], rest[1:]):
        lake.ingest(records, "shop", tables=True, keys=["id"])
    assert [key for _, key, _, _ in history(lake["shop.public.t"])] == [1, 2, 3, 4, 5]


def of_mysql(key: int, pos: int, transaction: int) -> str:
    source = {"connector": "mysql", "file": "bin.000001", "pos": pos, "gtid": f"g:{transaction}"}
    return json.dumps({"op": "c", "before": None, "after": row(key, pos), "source": source})


@pytest.mark.parametrize("most", [0, BYTES_MAX])
@pytest.mark.parametrize("connector", ["sqlserver", "oracle"])
def test_events_of_a_transaction_that_two_calls_give_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connector: str, most: int
) -> None:
    monkeypatch.setattr("tidelake.cdc.times.heldevents.BYTES_MAX", most)
    lake, c = made(tmp_path)

    def line(commit: int, n: int) -> str:
        at = {"commit_lsn": f"0:0:{commit:x}", "change_lsn": f"0:0:{n:x}", "commit_scn": str(commit)}
        event = {"op": "u", "before": row(1, 0), "after": row(1, n), "source": {"connector": connector} | at}
        return json.dumps(event)

    for lines in ([line(5, 1), line(9, 2), line(9, 3)], [line(9, 4), line(9, 5)], [line(9, 6), line(12, 7)]):
        lake.ingest(lines, "c", old_rows="stored")
    assert history(c) == [(5, 1, 1, 1), (9, 1, 1, -1), (9, 1, 6, 1)]


@pytest.mark.parametrize("time", [None, "source.pos"])
def test_ends_of_transactions_of_mysql_tell_no_position(tmp_path: Path, time: str | None) -> None:
    lake, c = made(tmp_path)
    events = [Record(of_mysql(n, 10 * n, n), n) for n in range(1, 6)]
    ends = [json.dumps({"status": "END", "id": f"g:{n}", "event_count": 1}) for n in range(1, 6)]
    marks = [Record(end, n, 1) for n, end in enumerate(ends)]
    for records in (marks[:1], [events[0], marks[1]], marks[2:4], [*events[1:], marks[4]], marks[1:]):
        lake.ingest(records, "c", time=time)
    assert [key for _, key, _, _ in history(c)] == [1, 2, 3, 4, *([5] if time else [])]


@pytest.mark.parametrize("old_rows", ["events", "stored"])
def test_what_is_held_back_may_come_again_from_the_middle_of_its_transaction(
    tmp_path: Path, old_rows: str
) -> None:
    lake, c = made(tmp_path)
    lines = [of_mysql(n, 10 * n, n // 3) for n in range(1, 12)]
    first = lake.ingest(lines[:8], "c", old_rows=old_rows)
    assert first.held == 3
    assert lake.ingest(lines[6:], "c", old_rows=old_rows).repeated == 2
    assert [(row[1], row[3]) for row in history(c)] == [(n, 1) for n in range(1, 9)]


@pytest.mark.promise(
    "Columns of `keys=` that do not tell the rows of a table apart are refused when the source creates a "
    "second row of a key; rows that are read or sent again are not",
    rule="`_checked` in `data/ingest/upsert.py`",
    also=["::test_a_row_that_is_created_again_is_taken"],
)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("tables", [False, True])
def test_a_second_row_of_a_key_is_refused(tmp_path: Path, tables: bool, apart: bool) -> None:
    lake, c = made(tmp_path)
    lines = [of_postgres("c", 10, None, row(1, 1)), of_postgres("c", 20, None, row(1, 2))]
    ends = of_postgres("c", 90, None, row(9, 9))
    how: dict[str, Any] = {"tables": True, "keys": ["id"]} if tables else {"old_rows": "stored"}
    into = "shop" if tables else "c"
    if apart:
        lake.ingest([lines[0], of_postgres("c", 15, None, row(8, 8))], into, **how)
    with pytest.raises(InvalidUpdates, match="a second row with the key id=1, which would replace the first"):
        lake.ingest([*lines[apart:], ends], into, **how)
    assert not any(row[2] == 2 for row in history(lake["shop.public.t"] if tables and apart else c))


def test_a_row_that_is_created_again_is_taken(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    read = [of_postgres("r", 5, None, row(n, 0), "true" if n < 3 else "last") for n in (1, 2, 3)]
    lines = [
        of_postgres("c", 10, None, row(4, 1)),
        of_postgres("d", 20, row(4, 1), None),
        of_postgres("c", 30, None, row(4, 2)),
        of_postgres("r", 40, None, row(4, 2), "incremental"),
        of_postgres("u", 50, row(4, 2), row(5, 2)),
        of_postgres("c", 60, None, row(4, 3)),
        of_postgres("t", 70, None, None),
        of_postgres("c", 80, None, row(1, 7)),
        of_postgres("c", 90, None, row(9, 9)),
    ]
    for start, end in ((0, 4), (1, 6), (3, 9), (0, 9)):
        lake.ingest([*(read if not start and end == 4 else []), *lines[start:end]], "c", old_rows="stored")
    rows = c.snapshot(c.upper.elements[0] - 1).read_all().to_pylist()
    assert [(row["id"], row["n"]) for row in rows] == [(1, 7)]


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize(("moves", "keyed"), [("u", False), ("dc", False), ("dc", True)])
@pytest.mark.parametrize("batches", [1, 2])
def test_rows_may_swap_their_keys_in_a_transaction(
    tmp_path: Path, moves: str, keyed: bool, batches: int, tables: bool
) -> None:
    lake, c = made(tmp_path)
    how: dict[str, Any] = {"tables": True, "keys": None if keyed else ["id"]}

    def ingested(lines: Sequence[str]) -> None:
        given: list[Any] = [*lines]
        if keyed:
            given = [Record(line, 1000 * json.loads(line)["payload"]["source"]["lsn"]) for line in lines]
            for record, line in zip(given, lines, strict=True):
                event = json.loads(line)["payload"]
                fields = {"type": "struct", "fields": [{"field": "id", "type": "int64", "optional": False}]}
                key = {"id": (event["after"] or event["before"])["id"]}
                record.key = json.dumps({"schema": fields, "payload": key}).encode()
        lake.ingest(given, "shop" if tables else "c", **(how if tables else {"old_rows": "stored"}))

    def moved(old: dict[str, int], new: dict[str, int], at: int, place: int) -> list[str]:
        one = [("u", old, new)] if moves == "u" else [("d", old, None), ("c", None, new)]
        return [of_postgres(op, at, *rows, place=place + n) for n, (op, *rows) in enumerate(one)]

    lines = [of_postgres("c", 10 + n, None, row(n, n)) for n in range(4)]
    for n in range(4):
        lines += moved(row(n, n), row((n + 1) % 4, n), 30, 40 + 2 * n)
    lines += [of_postgres("c", 60, None, row(9, 9))]
    for part in range(batches):
        size = len(lines) // batches + 1
        ingested(lines[part * size : part * size + size])
    c = lake["shop.public.t"] if tables else c
    rows = c.snapshot(c.upper.elements[0] - 1).read_all().to_pylist()
    assert [(row["id"], row["n"]) for row in rows] == [(0, 3), (1, 0), (2, 1), (3, 2)]
    onto = [*moved(row(0, 3), row(1, 3), 70, 71), of_postgres("c", 90, None, row(8, 9))]
    if not keyed:
        with pytest.raises(InvalidUpdates, match="a second row with the key id=1"):
            ingested(onto)
        return
    # The source was truncated without an event.
    ingested([*onto[:-1], of_postgres("d", 80, row(1, 3), None), *onto[-1:]])
    rows = c.snapshot(c.upper.elements[0] - 1).read_all().to_pylist()
    assert [(row["id"], row["n"]) for row in rows] == [(2, 1), (3, 2), (9, 9)]
    assert row(1, 3) in c.snapshot(79).read_all().select(["id", "n"]).to_pylist()


def of_others(connector: str, op: str, at: int, key: int, n: int, snapshot: str = "false") -> str:
    source: dict[str, Any] = {"connector": connector, "snapshot": snapshot, "ts_ms": at * 1000, "ord": 1}
    source |= {"commit_lsn": f"0:0:{at:x}", "commit_scn": str(at)}
    after = row(key, n)
    return json.dumps(
        {"op": op, "after": json.dumps(after) if connector == "mongodb" else after, "source": source}
    )


@pytest.mark.parametrize("connector", ["sqlserver", "mongodb", "oracle"])
def test_a_row_that_was_copied_may_be_created_afterwards(tmp_path: Path, connector: str) -> None:
    lake, c = made(tmp_path)
    lines = [
        of_others(connector, "r", 1, 1, 2, "last"),
        of_others(connector, "c", 2, 1, 1),
        of_others(connector, "u", 3, 1, 2),
        # The connector was started anew.
        *[of_others(connector, "c", 4, 2, 5)] * 2,
        of_others(connector, "c", 5, 3, 5),
    ]
    lake.ingest(lines, "c", old_rows="stored")
    rows = c.snapshot(c.upper.elements[0] - 1).read_all().to_pylist()
    assert [(row["id"], row["n"]) for row in rows] == [(1, 2), (2, 5)]


def moved_in_oracle(old: int, new: int, n: int, at: int) -> list[str]:
    gone = {"connector": "oracle", "snapshot": "false", "ts_ms": at * 1000, "commit_scn": str(at)}
    deleted = {"op": "d", "before": row(old, n), "after": None, "source": gone}
    return [json.dumps(deleted), of_others("oracle", "c", at, new, n)]


def test_rows_of_oracle_may_swap_their_keys(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    lines = [of_others("oracle", "c", 3, n, n) for n in (1, 2, 3)]
    lines += [*moved_in_oracle(1, 2, 1, 5), *moved_in_oracle(2, 3, 2, 5), *moved_in_oracle(3, 1, 3, 5)]
    # One that comes twice, and goes.
    lines += [of_others("oracle", "c", 7, 9, 9)] * 2 + moved_in_oracle(9, 8, 9, 7)
    lake.ingest([*lines, of_others("oracle", "c", 9, 7, 7)], "c", old_rows="stored")
    rows = c.snapshot(8).read_all().to_pylist()
    assert [(row["id"], row["n"]) for row in rows] == [(1, 3), (2, 1), (3, 2), (8, 9)]


@pytest.mark.promise(
    "Rows of Oracle that swap their keys in a transaction keep their rows; GoldenGate tells each at its own "
    "time, and such a row is refused",
    rule="`EventReader._created` in `feeds/reading.py`",
    also=["::test_rows_of_oracle_may_swap_their_keys"],
)
def test_a_row_of_goldengate_that_takes_the_key_of_another_one_is_refused(tmp_path: Path) -> None:
    lake, c = made(tmp_path)

    def told(kind: str, at: int, old: Any, new: Any) -> str:
        found = {"table": "S.T", "op_type": kind, "pos": f"{at:020}", "before": old, "after": new}
        return json.dumps({name: value for name, value in found.items() if value})

    lines = [told("I", n, None, row(n, n)) for n in (1, 2)]
    lake.ingest([*lines, *[told("U", 5, row(2, 2), row(3, 2))] * 2], "c", "goldengate")
    swapped = [told("U", 6, row(1, 1), row(3, 1)), told("U", 7, row(3, 2), row(1, 2))]
    for count in (1, 2):
        with pytest.raises(InvalidUpdates, match="a second row with the key id=3"):
            lake.ingest(swapped[:count], "c", "goldengate")
    freed = [told("U", 6, row(3, 2), row(4, 2)), told("U", 7, row(1, 1), row(3, 1))]
    lake.ingest(freed, "c", "goldengate")
    assert [(one["id"], one["n"]) for one in c.snapshot().read_all().to_pylist()] == [(3, 1), (4, 2)]
    lake.ingest(freed, "c", "goldengate", late="advance")
    assert [(one["id"], one["n"]) for one in c.snapshot().read_all().to_pylist()] == [(3, 1), (4, 2)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("batches", [1, 2])
def test_rows_of_wal2json_may_swap_their_keys_in_a_transaction(
    tmp_path: Path, version: int, batches: int
) -> None:
    lake = tidelake.open(tmp_path / "lake")
    c = lake.create("c", SCHEMA, key=["id"], time="counter" if version == 1 else "us")

    def told(at: int, *changes: tuple[str, int | None, tuple[int, int]]) -> list[str]:
        stamp = f"2026-01-01 00:00:{at:02}+00"
        if version == 2:
            found = []
            for kind, old, (key, n) in changes:
                columns = [{"name": "id", "value": key}, {"name": "n", "value": n}]
                one = {"action": kind[0].upper(), "table": "t", "timestamp": stamp, "columns": columns}
                more = {} if old is None else {"identity": [{"name": "id", "value": old}]}
                found.append(json.dumps(one | more))
            return found
        several: list[dict[str, Any]] = []
        for kind, old, new in changes:
            several.append({"kind": kind, "table": "t", "columnnames": ["id", "n"], "columnvalues": new})
            if old is not None:
                several[-1]["oldkeys"] = {"keynames": ["id"], "keyvalues": [old]}
        return [json.dumps({"nextlsn": f"0/{at:X}", "timestamp": stamp, "change": several})]

    created = told(9, *[("insert", None, (n, n)) for n in range(6)])
    swapped = told(
        17,
        *[("update", n, ((n + 1) % 4, n)) for n in range(4)],
        # Two by way of a free key.
        *[("update", old, (new, n)) for old, new, n in ((4, 9, 4), (5, 4, 5), (9, 5, 4))],
    )
    # A transaction may come twice.
    lines = [*created, *swapped, *swapped]
    for given in [lines] if batches == 1 else [created, swapped]:
        lake.ingest(given, "c", "wal2json")
    rows = [(row["id"], row["n"]) for row in c.snapshot().read_all().to_pylist()]
    assert rows == [(0, 3), (1, 0), (2, 1), (3, 2), (4, 5), (5, 4)]
    # A row that comes to a key may equal the one that was created there: no event came again.
    alike = told(25, *[("insert", None, (n, 7)) for n in (20, 21)])
    changed = told(33, *[("update", n, (41 - n, 7)) for n in (20, 21)])
    for given in [[*alike, *changed]] if batches == 1 else [alike, changed]:
        lake.ingest(given, "c", "wal2json")
    assert c.snapshot().read_all()["id"].to_pylist() == [0, 1, 2, 3, 4, 5, 20, 21]


def test_what_is_no_line_is_refused(tmp_path: Path) -> None:
    lake, _ = made(tmp_path)
    with pytest.raises(InvalidUpdates, match="a int is neither a line nor a message of Kafka"):
        lake.ingest([7], "c")
    with pytest.raises(InvalidUpdates, match="a line is a int"):
        lake.ingest(["", 7], "c")
    record = as_mapping(Record("", 0))
    with pytest.raises(InvalidUpdates, match="a str is neither a line nor a message of Kafka"):
        lake.ingest([record, ""], "c")
    wrong = {"offset": ["5", 1 << 70, True], "partition": [1 << 40], "topic": [5, ["t"]], "timestamp": ["x"]}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InvalidUpdates, match=f"the {name} of a message is "):
                lake.ingest([record | {name: value}], "c")
    with pytest.raises(UsageError, match="there is no envelope 'debesium': did you mean 'debezium'"):
        lake.ingest([], "c", "debesium")
    with pytest.raises(UsageError, match="takes no delete_column"):
        lake.ingest([], "c", delete_column="gone")
    for option in ("time", "encodings", "rejects", "order_by"):
        with pytest.raises(UsageError, match=f"{option}=5 must be a text"):
            lake.ingest([], "c", old_rows="stored", **{option: 5})
    for option, value in {"names": {}, "keys": ["id"], "time_unit": "ms"}.items():
        with pytest.raises(UsageError, match=f"{option}=.* is for tables=True: leave it out"):
            lake.ingest([], "c", **{option: value})
    for option, value in {
        "follow": True,
        "checkpoint": "x",
        "max_files_per_trigger": 1,
        "format": "keyed",
    }.items():
        with pytest.raises(UsageError, match=f"{option}=.* is for a directory of files: leave it out"):
            lake.ingest([], "c", **{option: value})
    with pytest.raises(UsageError, match="checkpoint='' is no directory"):
        lake.ingest(tmp_path, "c", checkpoint="")
    with pytest.raises(UsageError, match="rejects='' is no folder"):
        lake.ingest([], "c", rejects="")
    assert lake.ingest(["no event"], "c", writer="w", rejects=tmp_path / "aside").rejects == 1
    with pytest.raises(UsageError, match="there is no directory"):
        lake.ingest(tmp_path / "none", "c")
    (tmp_path / "in").mkdir()
    with pytest.raises(UsageError, match="is the directory that is read"):
        lake.ingest(tmp_path / "in", "c", rejects=str(tmp_path / "in"))
    with pytest.raises(UsageError, match=r"format='json': .* jsonl or keyed; .* csv or parquet as well"):
        lake.ingest(tmp_path / "in", "c", format="json")
    with pytest.raises(UsageError, match="format='csv'"):
        lake.ingest(tmp_path / "in", "shop", tables=True, format="csv")
    with pytest.raises(UsageError, match="takes the name of a register"):
        lake.ingest([], "c", "maxwell", tables=True)
    (tmp_path / "in" / "a.gz").write_bytes(b"no archive")
    with pytest.raises(InvalidUpdates, match=r"cannot read file=.*a\.gz"):
        lake.ingest(tmp_path / "in", "c")
    with pytest.raises(StoreUnavailable, match="no journal can be kept in"):
        lake.ingest(tmp_path / "in", "c", checkpoint=tmp_path / "in" / "a.gz")
    (tmp_path / "journal" / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(StoreUnavailable, match="no journal can be kept in"):
        lake.ingest(tmp_path / "in", "c", checkpoint=tmp_path / "journal")
    for name in ("a.jsonl.xz", "a.SNAPPY"):
        (tmp_path / "in" / name).write_bytes(b"x")
        os.utime(tmp_path / "in" / name, (1, 1))
        with pytest.raises(InvalidUpdates, match=rf"cannot read file=.*/{name}: .* unpack the file"):
            lake.ingest(tmp_path / "in", "c")
        (tmp_path / "in" / name).unlink()
    (tmp_path / "in" / "a.gz").rename(tmp_path / "in" / os.fsdecode(b"\xff"))
    with pytest.raises(InvalidUpdates, match=r"cannot read file=.*: its name is not UTF-8"):
        lake.ingest(tmp_path / "in", "c")


def test_a_line_that_cannot_be_read_stops_or_is_set_aside(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    landed(tmp_path / "in", "a", [event("c", 1, 3, 7), '{"op": "c"'])
    with pytest.raises(InvalidUpdates, match=r"cannot read a change event.*file=.*in/a number=2"):
        lake.ingest(tmp_path / "in", "c", **TIMED)
    assert not history(c)
    report = lake.ingest(tmp_path / "in", "c", rejects=str(tmp_path / "aside"), **TIMED)
    assert (report.events, report.rejects) == (1, 1)
    (kept,) = (tmp_path / "aside").glob("*.jsonl")
    assert json.loads(kept.read_text())["number"] == 2


def test_a_journal_that_is_older_than_the_collection_is_refused(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    landed(tmp_path / "in", "a", [event("c", 1, 3, 7)])
    lake.ingest(tmp_path / "in", "c", **TIMED)
    journal = tmp_path / "in" / ".checkpoint-c" / "journal.jsonl"
    old = journal.read_bytes()
    landed(tmp_path / "in", "b", [event("c", 2, 4, 7)])
    lake.ingest(tmp_path / "in", "c", **TIMED)
    newest = journal.read_bytes()
    # A piece of a line was being written: nothing of it is committed.
    journal.write_bytes(newest + b'{"batch": 2, "pie')
    assert lake.ingest(tmp_path / "in", "c", **TIMED).batches == 0
    journal.write_bytes(old)
    with pytest.raises(UsageError, match="checkpoint"):
        lake.ingest(tmp_path / "in", "c", **TIMED)
    journal.write_bytes(b"")
    with pytest.raises(UsageError, match="another"):
        lake.ingest(tmp_path / "in", "c", **TIMED)
    assert len(history(c)) == 2
    journal.write_bytes(newest.replace(b'"tidelake":2', b'"tidelake":3'))
    with pytest.raises(FormatTooNew):
        lake.ingest(tmp_path / "in", "c", **TIMED)
    journal.write_bytes(b"{}\n")
    with pytest.raises(CorruptionError, match="no journal"):
        lake.ingest(tmp_path / "in", "c", **TIMED)
    first, *rest = newest.splitlines(keepends=True)
    wrong = [
        b"zz\n",
        b"\xff\n",
        b"[]\n",
        b'{"batch":0}\n',
        b'{"batches":"2","files":[]}\n',
        b'{"batches":2,"files":[3]}\n',
        b'{"batch":"0","pieces":[]}\n',
        b'{"batch":0,"pieces":[[1]]}\n',
        b'{"batch":0,"pieces":[],"crc":7}\n',
    ]
    for line in wrong:
        for kept in ([line, *rest], [first, line, *rest]):
            journal.write_bytes(b"".join(kept))
            with pytest.raises(CorruptionError, match=r"it has a line|no journal"):
                lake.ingest(tmp_path / "in", "c", **TIMED)
    journal.write_bytes(first + rest[1])
    with pytest.raises(CorruptionError, match="not have all"):
        lake.ingest(tmp_path / "in", "c", **TIMED)


def lines_of(journal: Path) -> int:
    return len(journal.read_bytes().splitlines())


@pytest.mark.promise(
    "The journal of an ingest has a line for each of the last micro-batches only, wherever a process that "
    "shortens it is killed",
    rule="`Journal.shorten` in `feeds/directory.py`",
    also=["::test_a_journal_that_is_shortened_is_whole_wherever_it_is_killed"],
)
def test_a_journal_of_many_micro_batches_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelake.feeds.directory.KEPT", 2)
    lake, c = made(tmp_path)
    journal, copy = tmp_path / "in" / ".checkpoint-c" / "journal.jsonl", tmp_path / "copy"
    for name in ("a", "b"):
        lines = [of_postgres("c", 10 * n + (n > 6), None, row(n, n)) for n in range(1, 13)]
        landed(tmp_path / "in", name, lines[:6] if name == "a" else lines[6:])
        lake.ingest(tmp_path / "in", "c", batch_bytes=1)
        if name == "a":
            assert lines_of(journal) == 5
            lake.copy(copy)
    assert lines_of(journal) <= 7 and len(history(c)) == 11
    for again in (Piece("a"), Piece("b")):
        assert again.name in journal.read_text()
    assert lake.ingest(tmp_path / "in", "c").batches == 0 and lines_of(journal) <= 7
    landed(tmp_path / "in", "z", [of_postgres("c", 900, None, row(99, 9))])
    assert lake.ingest(tmp_path / "in", "c").events == 1
    with tidelake.open(copy) as older, pytest.raises(UsageError, match="the collection is an old copy"):
        older.ingest(tmp_path / "in", "c")
    # Nothing is in a new collection, so all files are taken.
    lake.drop("c")
    lake.create("c", SCHEMA, key=["id"], allow_recreate=True)
    assert lake.ingest(tmp_path / "in", "c").events == 12


def test_a_journal_that_is_shortened_is_whole_wherever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelake.feeds.directory.KEPT", 1)
    place = tmp_path / "place"
    place.mkdir()
    files = [(Piece(str(n)),) for n in range(6)]

    def begun(place: Path) -> Journal:
        journal = Journal.at(place, "q")
        there = [number for number in range(6) if f'[["{number}",' in (place / "journal.jsonl").read_text()]
        last = max(there, default=None)
        journal.begin(last, "" if last is None else Taken((), files[last]).content, "w")
        return journal

    def work(place: Path) -> None:
        journal = begun(place)
        for number in range(journal.next, 6):
            journal.add(number, files[number])
            if journal.is_long:
                journal.shorten()
        journal.close()

    for left in killed(place, work, fast=4, full=1):
        journal = begun(left)
        taken = [piece.name for piece in journal.pieces()]
        assert [*dict.fromkeys(taken)] == [str(n) for n in range(journal.next)]
        work(left)
        assert begun(left).next == 6 and lines_of(left / "journal.jsonl") <= 4


@pytest.mark.promise(
    "A flipped bit in the journal of an ingest is an error or changes nothing; older ones are read",
    rule="`Journal` in `feeds/directory.py`",
)
def test_a_flipped_bit_in_a_journal_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelake.feeds.directory.KEPT", 1)
    files = [(Piece(f"M-{n}", 3, 1, n, 4),) for n in range(4)]
    journal = Journal.at(tmp_path, "q")
    path = tmp_path / "journal.jsonl"

    def begun() -> tuple[str, list[Piece], int]:
        found = Journal.at(tmp_path, "another")
        found.begin(3, Taken((), files[3]).content, "w")
        found.close()
        return found.query, [*found.pieces()], found.next

    journal.begin(None, "", "w")
    for number, pieces in enumerate(files):
        journal.add(number, pieces)
    journal.shorten()
    journal.close()
    whole, expected = path.read_bytes(), begun()
    assert whole.count(b"crc") == 3 and expected[1] == [Piece("M-0"), Piece("M-1"), Piece("M-2"), *files[3]]
    noticed, bits = 0, range(random.randrange(11), 8 * len(whole), 11)
    for bit in bits:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert begun() == expected
        except (CorruptionError, UsageError, FormatTooNew):
            noticed += 1
    assert noticed > 0.8 * len(bits)
    path.write_bytes(re.sub(rb',"crc":\d+', b"", whole))
    assert begun() == expected and path.read_bytes() == whole


def test_what_a_fenced_process_has_planned_is_not_taken_for_done(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    place = tmp_path / "check"
    place.mkdir()
    old = Journal.at(place, "q")
    writer = c.writer("ingest", owner="q")
    old.begin(None, "", "ingest")
    old.add(0, (Piece("lost"),))
    landed(tmp_path / "in", "a", [event("c", 1, 3, 7)])
    assert lake.ingest(tmp_path / "in", "c", checkpoint=place, **TIMED).batches == 1
    # It goes on with a file that is not there any more, and does not put its own there.
    old.add(1, (Piece("b"),))
    old.shorten()
    with pytest.raises(WriterFenced):
        writer.append(pa.table({"id": [9], "n": [9]}), sequence=1)
    landed(tmp_path / "in", "b", [event("c", 2, 4, 7)])
    assert lake.ingest(tmp_path / "in", "c", checkpoint=place, **TIMED).events == 1
    (place / "offsets").mkdir()
    with pytest.raises(UsageError, match="checkpoint of a query of Spark"):
        lake.ingest(tmp_path / "in", "c", checkpoint=place, **TIMED)


@pytest.mark.parametrize("late", ["begins", "has begun"])
def test_a_process_that_is_fenced_as_it_begins_leaves_the_journal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    lake, c = made(tmp_path)
    folder = tmp_path / "in"
    landed(folder, "a", [event("c", 1, 3, 7)])
    begin, add, others = Journal.begin, Journal.add, list[Thread]()

    def overtaken(step: Callable[..., None]) -> Callable[..., None]:
        def wrapped(journal: Journal, *given: Any) -> None:
            if not others:
                landed(folder, "b", [event("c", 2, 4, 7)])
                others.append(Thread(target=lake.ingest, args=(folder, "c"), kwargs=TIMED))
                others[0].start()
                # Unless it waits for its turn.
                others[0].join(0.5 if late == "begins" else None)
            step(journal, *given)

        return wrapped

    if late == "begins":
        monkeypatch.setattr(Journal, "begin", overtaken(begin))
    else:
        monkeypatch.setattr(Journal, "add", overtaken(add))
    fenced = pytest.raises(WriterFenced) if late == "has begun" else contextlib.suppress(WriterFenced)
    with fenced:
        lake.ingest(folder, "c", **TIMED)
    others[0].join()
    landed(folder, "c", [event("c", 3, 5, 7)])
    lake.ingest(folder, "c", **TIMED)
    assert lake.ingest(folder, "c", **TIMED).files == 0
    assert history(c) == [(3, 1, 7, 1), (4, 2, 7, 1), (5, 3, 7, 1)]


def test_it_follows_a_directory_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, c = made(tmp_path)
    landed(tmp_path / "in", "a", [event("c", 1, 3, 7)])
    slept = list[float]()

    class Clock:
        def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                raise KeyboardInterrupt
            landed(tmp_path / "in", f"b{len(slept)}", [event("c", 5 + len(slept), 6 + len(slept), 7)])

    lake.env = replace(lake.env, clock=Clock())
    report = lake.ingest(tmp_path / "in", "c", follow=True, **TIMED)
    assert report.batches == 3 and len(history(c)) == 3 and slept == [1.0] * 3


def test_an_interrupt_ends_what_does_not_follow(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    for number in range(2):
        landed(tmp_path / "in", f"{number}", [event("c", number, 3 + number, 7)], number)

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.ingest(tmp_path / "in", "c", max_files_per_trigger=1, progress=interrupted, **TIMED)
    assert len(history(c)) == 1
    assert lake.ingest(tmp_path / "in", "c", **TIMED).files == 1


@pytest.mark.parametrize("most", [0, 1 << 20])
@pytest.mark.parametrize("how", ["stored", "events", "tables"])
def test_what_a_record_of_the_first_form_holds_back_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, most: int
) -> None:
    monkeypatch.setattr("tidelake.cdc.times.heldevents.BYTES_MAX", most)

    def of_first_form(content: str, held: Held) -> str:
        record = StreamContent.of(with_held(content, held))
        told = json.loads(record.kept or "") | {"tidelake": 1}
        kept = {name: one for name, one in told.items() if name not in ("spans", "survey")}
        return StreamContent.keeping(content, kept, record.rows).text

    lake, _ = made(tmp_path)
    first = of_postgres("c", 10, None, row(1000, 1), place=20)
    lines = [of_postgres("c", 30, None, row(n, n), place=40 + n) for n in range(10)]
    ends = of_postgres("c", 900, None, row(2000, 1), place=910)
    given: dict[str, Any] = {"tables": True, "keys": ["id"]} if how == "tables" else {"old_rows": how}
    into = "shop" if how == "tables" else "c"
    with monkeypatch.context() as older:
        older.setattr("tidelake.cdc.times.heldevents._SPAN", b"none")
        older.setattr("tidelake.feeds.note.with_held", of_first_form)
        assert lake.ingest([first, *lines[:5]], into, **given).held == 5
    done = lake.ingest([lines[4], *lines[5:]], into, **given)
    assert (done.held, done.repeated, done.events) == (10, 1, 0)
    assert lake.ingest([ends], into, **given).events == 10
    found = lake["shop.public.t"] if how == "tables" else lake["c"]
    assert [(r[0], r[1]) for r in history(found)] == [(29, 1000), *((899, n) for n in range(10))]


@pytest.mark.promise(
    "An event that is held back is decoded when it comes and when its transaction ends, however many "
    "micro-batches lie between, and its object stays as it is",
    rule="`Held.since` in `cdc/times/heldevents.py`, `HeldStore.keep`",
)
@pytest.mark.parametrize(("how", "most"), [("events", 0), ("stored", BYTES_MAX), ("tables", 0)])
def test_a_transaction_of_many_micro_batches_is_decoded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, most: int
) -> None:
    monkeypatch.setattr("tidelake.cdc.times.heldevents.BYTES_MAX", most)
    # The survey of what is held back gets an object too.
    monkeypatch.setattr("tidelake.cdc.times.heldevents.SURVEY_MAX", 0 if how == "tables" else 1 << 17)
    lake, _ = made(tmp_path)
    count, each, decodes = 30, 5, Counter[str]()

    def counted(lines: pa.Array, *more: Any) -> Any:
        decodes.update(line.decode() for line in lines.to_pylist())
        return decode(lines, *more)

    for module in ("feeds.reading", "feeds.survey", "feeds.tablelines", "cdc.parse.parser"):
        monkeypatch.setattr(f"tidelake.{module}.decode", counted)
    first = of_postgres("c", 10, None, row(1000, 1), place=20)
    lines = [of_postgres("c", 30, None, row(n, n), place=40 + n) for n in range(count)]
    ends = of_postgres("c", 900, None, row(2000, 1), place=910)
    given: dict[str, Any] = {"tables": True, "keys": ["id"]} if how == "tables" else {"old_rows": how}
    into = "shop" if how == "tables" else "c"
    lake.ingest([first, *lines[:each]], into, **given)
    stored = list[set[Path]]()
    for at in range(each, count, each):
        # What was sent last comes again.
        done = lake.ingest([lines[at - 1], *lines[at : at + each]], into, **given)
        assert (done.held, done.repeated, done.events) == (at + each, 1, 0)
        stored.append({path for path in tmp_path.rglob("held/*/*") if path.is_file()})
        assert len(stored[0] - stored[-1]) == (how == "tables" and at > each)
        assert len(stored[-1]) == (len(stored) + 1 + (how == "tables") if most == 0 else 0)
    assert lake.ingest([ends], into, **given).events == count
    again = dict.fromkeys(lines[each - 1 : -1 : each], 3)
    assert decodes == dict.fromkeys(lines, 2) | again | {first: 1, ends: 1}
    found = lake["shop.public.t"] if how == "tables" else lake["c"]
    assert [(r[0], r[1], r[3]) for r in history(found)] == [
        (29, 1000, 1), *((899, n, 1) for n in range(count))
    ]  # fmt: skip
