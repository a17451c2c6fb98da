"""An ingest keeps what it cannot read, looks old rows up, and takes files of other envelopes strictly."""

import json
import os
import re
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.errors import InvalidUpdates, StoreUnavailable, UsageError
from tidelake.feeds import reading
from tidelake.feeds.answers import Answer, answered, answers_to_bytes
from tidelake.feeds.commit import Numbered
from tidelake.feeds.rejects import NumberedBatch, keep
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark import IngestReport, ingest, ingest_change_files, write
from tidelake.spark.envelopes.updates import Updates
from tidelake.spark.writing.uploaded import commit_uploads

pytestmark = pytest.mark.usefixtures("both_ways")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


class Landing:
    """A lake, a directory of files, a checkpoint and a folder of rejects."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.root, self.spark, self.count = root, spark, 0
        self.directory, self.rejects = root / "in", root / "rejects"
        self.directory.mkdir()
        self.c = tidelake.open(root / "lake").create("c", SCHEMA, key=["id"])

    def put(self, *lines: Any, name: str | None = None) -> Path:
        self.count += 1
        path = self.directory / (name or f"{self.count:04}.json")
        texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        path.write_bytes(b"".join(text + b"\n" for text in texts))
        os.utime(path, (1_000_000_000 + self.count,) * 2)
        return path

    def run(self, **options: Any) -> IngestReport:
        return ingest_change_files(self.spark, self.c, self.directory, self.root / "checkpoint", **options)

    def state(self) -> Counter[Any]:
        rows = self.c.snapshot(self.c.upper.elements[0] - 1).read_all().to_pylist()
        return Counter({(r["id"], r["v"]): r["_diff"] for r in rows})

    def kept(self) -> list[dict[str, Any]]:
        files = sorted(self.rejects.iterdir()) if self.rejects.exists() else []
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def landing(tmp_path: Path, spark: Any) -> Landing:
    return Landing(tmp_path, spark)


def change(op: str, time: int, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"lsn": time, **more}}


def create(i: int, v: Any, time: int) -> dict[str, Any]:
    return change("c", time, after={"id": i, "v": v})


BAD = [
    (b"{", "not JSON"),
    (b"\xff", "not UTF-8"),
    (create(1, 5, 3), "5 is a whole number, not string"),
    (change("u", 3, after={"id": 1, "v": "x"}), "op 'u' without 'before'"),
    (change("t", 3), "truncate"),
    ({"x": 1}, "no 'op'"),
]


@pytest.mark.promise(
    "An unreadable line fails the batch, or is kept once with file, line and reason before the rest comes in",
    rule="`feeds/rejects.py`",
    also=[
        "::test_a_batch_that_is_done_again_keeps_its_rejects_once",
        "::test_rejects_stay_when_a_query_takes_over_or_another_collection_has_the_name",
        "::test_nothing_is_appended_when_rejects_cannot_be_kept",
    ],
)
def test_lines_that_cannot_be_read_are_kept_with_file_line_and_reason(landing: Landing) -> None:
    path = landing.put(create(1, "a", 3), *(line for line, _ in BAD), b"", create(2, "b", 4))
    other = landing.put(b"[]", create(3, "c", 5))
    report = landing.run(rejects=landing.rejects)
    assert landing.state() == {(1, "a"): 1, (2, "b"): 1, (3, "c"): 1}
    assert (report.events, report.tombstones, report.rejects, report.files) == (3, 1, 7, 2)
    kept = sorted(landing.kept(), key=lambda r: (r["file"], r["number"]))
    assert [(r["file"], r["number"]) for r in kept] == [(str(path), n) for n in range(2, 8)] + [
        (str(other), 1)
    ]
    for told, (line, reason) in zip(kept, BAD, strict=False):
        assert reason in told["reason"]
        assert told["line"] == json.dumps(line) if not isinstance(line, bytes) else line == b"\xff" or "{"
    assert kept[1]["base64"] == "/w==" and "line" not in kept[1]
    (kept,) = landing.rejects.iterdir()
    assert re.fullmatch("c-spark-ingest-[0-9a-f]{12}-00000000.jsonl", kept.name)


def test_a_batch_that_is_done_again_keeps_its_rejects_once(landing: Landing) -> None:
    landing.put(create(1, "a", 3), b"{")
    original = Writer.append_uploaded
    seen = []

    def dies(self: Writer, *args: Any, **kwargs: Any) -> Any:
        # What cannot be read is kept before the rest is in.
        seen.append((len(landing.kept()), landing.c.upper))
        raise OSError("the driver is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "append_uploaded", dies)
        with pytest.raises(OSError, match="the driver is gone"):
            landing.run(rejects=landing.rejects)
    assert seen == [(1, Frontier.of(0))]
    assert Writer.append_uploaded is original
    report = landing.run(rejects=landing.rejects)
    assert (report.batches, report.rejects, len(landing.kept())) == (1, 1, 1)
    # As after a kill between the append and Spark's own commit.
    for name in ("0", ".0.crc"):
        (landing.root / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    assert landing.run(rejects=landing.rejects).already == 1
    assert len(landing.kept()) == 1
    assert landing.state() == {(1, "a"): 1}


def test_rejects_of_an_attempt_that_failed_go_when_the_lines_were_mended(landing: Landing) -> None:
    path = landing.put(create(1, "a", 3), b"{")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "append_uploaded", lambda *_a, **_k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            landing.run(rejects=landing.rejects)
    assert len(landing.kept()) == 1
    stamp = path.stat().st_mtime
    path.write_text(json.dumps(create(1, "a", 3)) + "\n" + json.dumps(create(2, "b", 3)) + "\n")
    os.utime(path, (stamp, stamp))
    assert landing.run(rejects=landing.rejects).rejects == 0
    assert landing.kept() == []
    assert landing.state() == {(1, "a"): 1, (2, "b"): 1}


def test_rejects_are_not_kept_where_they_would_be_taken_next(landing: Landing) -> None:
    landing.put(create(1, "a", 3), b"{")
    with pytest.raises(UsageError, match="is the directory that is read"):
        landing.run(rejects=landing.root / "." / "rejects" / ".." / "in")
    assert len(list(landing.directory.iterdir())) == 1


def test_nothing_is_appended_when_rejects_cannot_be_kept(landing: Landing) -> None:
    landing.rejects.write_text("a file, and no folder")
    landing.put(create(1, "a", 3), b"{")
    with pytest.raises(StoreUnavailable, match="rejected lines cannot be kept"):
        landing.run(rejects=landing.rejects)
    assert landing.c.upper == Frontier.of(0)


def test_more_rejects_than_a_few_stop_the_ingest(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer()
    reader = reading.EventReader(reading.ChangeParser(SCHEMA, rejects=True), ("value",), answer)
    lines = pa.array([b"{"] * 10_001, pa.binary())
    with pytest.raises(InvalidUpdates, match="more than 10000 lines of one task"):
        reader.read(pa.record_batch([lines], names=["value"]))


def test_rejects_without_a_number_are_named_by_what_they_are(tmp_path: Path) -> None:
    answer = Answer(rejects=("b", "a"), rejects_to=str(tmp_path))
    keep(answer, "c/ä", None)
    keep(Answer(rejects=("a", "b"), rejects_to=str(tmp_path)), "c/ä", None)
    keep(Answer(rejects_to=str(tmp_path)), "c/ä", None)
    (file,) = tmp_path.iterdir()
    assert file.read_text() == "a\nb\n"
    keep(answer, "c", NumberedBatch("id", "w/1", "q", 3))
    keep(answer, "c", NumberedBatch("id", "w_1", "q", 3))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("after", [("l", "q2"), ("other", "q1")])
@pytest.mark.parametrize("lines", [(), ("b",)])
def test_rejects_stay_when_a_query_takes_over_or_another_collection_has_the_name(
    tmp_path: Path, after: tuple[str, str], lines: tuple[str, ...]
) -> None:
    folder = tmp_path / "rejects"
    for (lake, query), rejects in ((("l", "q1"), ("a",)), (after, lines)):
        c = tidelake.open(tmp_path / lake).create("c", SCHEMA, key=["id"])
        writer = c.writer("spark-ingest", owner=query, take_over=True)

        def work(answer: Answer, rejects: tuple[str, ...] = rejects) -> bytes:
            answer.rejects, answer.rejects_to = rejects, str(folder)
            return b""

        told = [answers_to_bytes(answered(work))]
        commit_uploads(c, Updates(), c.schema.names, told, handed=(), numbered=Numbered(writer, 0))
    assert sorted(file.read_text() for file in folder.iterdir()) == [f"{line}\n" for line in ("a", *lines)]


def test_lines_are_numbered_over_batches_and_files() -> None:
    reader = reading.EventReader(reading.ChangeParser(SCHEMA, rejects=True), ("value", "file"), Answer())
    for files in (["a", "a"], ["a", "b"], ["b", "b", "c"]):
        reader.read(
            pa.record_batch([pa.array([b"{"] * len(files)), pa.array(files)], names=["value", "file"])
        )
    told = [json.loads(text) for text in reader.answer.rejects]
    assert [(r["file"], r["number"]) for r in told] == [
        ("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3), ("c", 1),
    ]  # fmt: skip


@pytest.mark.promise(
    "Among events of one key and time the last one by line, file or offset counts, or they are refused",
    rule="`Places.orders` in `feeds/reading.py`",
    also=["::test_what_orders_events_is_read_from_them", "::test_keys_and_offsets_of_messages_are_used"],
)
def test_old_rows_are_looked_up(landing: Landing) -> None:
    landing.c.append(pa.table({"id": [1, 1, 2, 3], "v": ["a", "a2", "b", "c"]}))
    # Two files, and several events of a key at one time: the later line counts, and the later file.
    landing.put(change("u", 5, None, {"id": 1, "v": "x"}), change("u", 5, None, {"id": 1, "v": "y"}))
    landing.put(change("u", 5, None, {"id": 1, "v": "z"}), change("d", 6, {"id": 2}), create(4, "d", 7))
    landing.put(change("u", 8, {"id": 4}, {"id": 5, "v": "d"}), b"null", {"op": "h", "source": {"lsn": 9}})
    report = landing.run(old_rows="stored")
    assert landing.state() == {(1, "z"): 1, (3, "c"): 1, (5, "d"): 1}
    assert (report.events, report.heartbeats, report.tombstones, report.files) == (6, 1, 1, 3)
    assert landing.c.upper == Frontier.of(10)
    found = landing.c.updates(1, 10).read_all().to_pylist()
    assert Counter((r["_time"], r["id"], r["v"], r["_diff"]) for r in found) == Counter(
        [
            (5, 1, "a", -1),
            (5, 1, "a2", -1),
            (5, 1, "z", 1),
            (6, 2, "b", -1),
            (7, 4, "d", 1),
            (8, 4, "d", -1),
            (8, 5, "d", 1),
        ]
    )
    landing.put(change("u", 3, None, {"id": 3, "v": "late"}))
    with pytest.raises(InvalidUpdates, match=r"its time 3 is late, all times before 10.*number=1"):
        landing.run(old_rows="stored")
    report = landing.run(old_rows="stored", late="advance")
    assert (report.late, landing.c.upper) == (1, Frontier.of(11))
    assert landing.state()[3, "late"] == 1


def test_what_orders_events_is_read_from_them(landing: Landing) -> None:
    events = [
        change("u", 5, None, {"id": 1, "v": v}, n=n)
        for v, n in (("first", 1), ("last", 256), ("second", 255))
    ]
    landing.put(*events)
    landing.run(old_rows="stored", order_by="source.n")
    assert landing.state() == {(1, "last"): 1}


def test_bad_lines_are_kept_or_refused_where_rows_are_looked_up(landing: Landing) -> None:
    path = landing.put(create(1, "a", 3), b"{", change("d", 4))
    with pytest.raises(InvalidUpdates, match=r"not JSON.*number=2"):
        landing.run(old_rows="stored")
    report = landing.run(old_rows="stored", rejects=landing.rejects)
    assert (report.rejects, landing.state()) == (2, {(1, "a"): 1})
    assert sorted((r["file"], r["number"]) for r in landing.kept()) == [(str(path), 2), (str(path), 3)]
    assert any("the message has no key" in r["reason"] for r in landing.kept())


def test_keys_and_offsets_of_messages_are_used(landing: Landing) -> None:
    wrapped = json.dumps({"schema": None, "payload": {"id": 2}})
    rows = [
        (json.dumps(create(2, "b", 5)), wrapped, 0),
        (json.dumps(change("u", 5, None, {"id": 1, "v": "new"})), '{"id":1}', 3),
        (json.dumps(change("u", 5, None, {"id": 1, "v": "old"})), '{"id":1}', 2),
        (json.dumps(change("d", 6)), wrapped, 4),
        (None, wrapped, 5),
    ]
    frame = landing.spark.createDataFrame(rows, "value string, key string, offset bigint")
    done = write(landing.c, frame, "debezium", old_rows="stored")
    assert landing.state() == {(1, "new"): 1}
    assert (done.events, done.tombstones) == (4, 1)
    with pytest.raises(InvalidUpdates, match=r"several events of the key .* differ"):
        write(landing.c, frame.drop("offset"), "debezium", old_rows="stored", late="advance")


def test_decimals_in_bytes_without_a_schema_need_an_encoding(landing: Landing) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("p", pa.decimal128(6, 2))])
    c = tidelake.open(landing.root / "lake").create("d", schema, key=["id"])
    landing.put(change("c", 1, after={"id": 1, "p": "AIg="}))
    with pytest.raises(InvalidUpdates, match="is not a decimal number"):
        ingest_change_files(landing.spark, c, landing.directory, landing.root / "check")
    ingest_change_files(landing.spark, c, landing.directory, landing.root / "check", encodings="p=bytes")
    assert c.snapshot(1).read_all().column("p").to_pylist() == [Decimal("1.36")]


@pytest.mark.parametrize("old_rows", ["events", "stored"])
def test_columns_that_came_later_may_be_missing(landing: Landing, old_rows: Any) -> None:
    wider = pa.schema([*SCHEMA, ("w", pa.int64())])
    landing.c.evolve(wider)
    landing.put(create(1, "a", 1), change("c", 2, after={"id": 2, "v": "b", "w": 7}))
    landing.run(old_rows=old_rows)
    kind = "op string, before struct<id:bigint,v:string>, after struct<id:bigint,v:string>, t bigint"
    frame = landing.spark.createDataFrame([("c", None, (3, "c"), 3)], kind)
    write(landing.c, frame, "debezium", time="t", old_rows=old_rows)
    rows = landing.c.snapshot(3).read_all().to_pylist()
    assert [(r["id"], r["v"], r["w"]) for r in rows] == [(1, "a", None), (2, "b", 7), (3, "c", None)]
    landing.put(change("c", 4, after={"id": 4, "w": 7}))
    with pytest.raises(InvalidUpdates, match="column 'v' of 'after': is missing"):
        landing.run(old_rows=old_rows)


def rows_file(landing: Landing, format_: str, rows: list[dict[str, Any]]) -> None:
    if format_ == "jsonl":
        landing.put(*rows, name="1.jsonl")
    elif format_ == "parquet":
        names = list(rows[0])
        columns = [pa.array([r[n] for r in rows], pa.string() if n == "v" else None) for n in names]
        pq.write_table(pa.table(dict(zip(names, columns, strict=True))), landing.directory / "1.parquet")
    else:
        text = [",".join(rows[0])]
        text += [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
        (landing.directory / "1.csv").write_text("\n".join(text) + "\n")


@pytest.mark.parametrize("format_", ["jsonl", "csv", "parquet"])
def test_rows_of_files_are_taken_once(landing: Landing, format_: Any) -> None:
    rows = [{"v": "a", "id": 1, "_time": 4}, {"v": None, "id": 2, "_time": 5}]
    rows_file(landing, format_, rows)
    for _ in range(2):
        report = ingest(
            landing.spark,
            landing.c,
            landing.directory,
            landing.root / "check",
            format=format_,
        )
    assert landing.state() == {(1, "a"): 1, (2, None): 1}
    assert report.batches == 0
    assert landing.c.upper == Frontier.of(6)


@pytest.mark.parametrize("format_", ["jsonl", "csv", "parquet"])
def test_a_column_may_be_called_as_what_spark_tells_of_files(landing: Landing, format_: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("file", pa.string())])
    c = tidelake.open(landing.root / "lake").create("files", schema, key=["id"])
    rows_file(landing, format_, [{"id": 1, "file": "a", "_time": 4}, {"id": 2, "file": "b", "_time": 5}])
    for _ in range(2):
        check = landing.root / "check"
        report = ingest(landing.spark, c, landing.directory, check, format=format_)
    assert c.snapshot().read_all()["file"].to_pylist() == ["a", "b"]
    assert report.batches == 0


def test_rows_with_counts_and_new_rows_of_keys_are_taken(landing: Landing) -> None:
    rows_file(landing, "jsonl", [{"id": 1, "v": "a", "_time": 1, "_diff": 2}])
    run = (landing.spark, landing.c, landing.directory, landing.root / "check")
    ingest(*run)
    assert landing.state() == {(1, "a"): 2}
    shutil.rmtree(landing.directory)
    landing.directory.mkdir()
    rows_file(
        landing,
        "jsonl",
        [{"id": 1, "v": "b", "_time": 2, "gone": False}, {"id": 2, "v": "c", "_time": 2, "gone": True}],
    )
    ingest(*run[:3], landing.root / "other", envelope="upsert", writer="w", delete_column="gone")
    assert landing.state() == {(1, "b"): 1}


@pytest.mark.parametrize(
    ("format_", "text", "reason"),
    [
        ("jsonl", '{"id": 1, "v": "a"}\n{"id": "2", "v": "b"}\n', "column 'id': \"2\" is a string"),
        ("csv", "id,v\n1.5,a\n", "column 'id' is no int64"),
        ("csv", "id,w\n1,a\n", "column 'v' (string) is missing"),
        ("csv", b"id,v\n1,\xffa\n", "column 'v' holds U+FFFD, or bytes that are not UTF-8"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(
    landing: Landing, format_: Any, text: str | bytes, reason: str
) -> None:
    (landing.directory / "1").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidUpdates) as caught:
        ingest(
            landing.spark,
            landing.c,
            landing.directory,
            landing.root / "check",
            format=format_,
        )
    assert reason in str(caught.value)
    assert landing.c.upper == Frontier.of(0)


@pytest.mark.parametrize("format_", ["jsonl", "csv", "parquet"])
def test_an_empty_directory_gives_no_columns(landing: Landing, format_: Any) -> None:
    with pytest.raises(UsageError, match=r"there are no (files|rows) at"):
        ingest(
            landing.spark,
            landing.c,
            landing.directory,
            landing.root / "check",
            format=format_,
        )


def test_csv_means_what_it_means_on_the_command_line(landing: Landing) -> None:
    lines = [
        "id,v",
        "1,",
        '2,""',
        '3,"say ""hi"""',
        '4,"a',
        '5,b"',
        "6,\\",
        '7,"\\"',
        "8, é ",
        "9,NA",
        '10,"a,b"',
    ]
    (landing.directory / "1.csv").write_text("\n".join(lines) + "\n")
    at = (landing.spark, landing.c, landing.directory, landing.root / "check")
    ingest(*at, format="csv")
    texts = [None, "", 'say "hi"', "a\n5,b", None, "\\", "\\", " é ", "NA", "a,b"]
    expected = {id_: text for id_, text in enumerate(texts, 1) if id_ != 5}
    assert landing.state() == Counter((id_, text) for id_, text in expected.items())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v,id\n1,2\n", "its header is not that of the other files"),
        ("id,v\n1,2,3\n", "a row has more or fewer values than the header has names"),
        ("id,v\n1\n", "a row has more or fewer values than the header has names"),
    ],
)
def test_csv_of_another_shape_is_refused_by_name(landing: Landing, text: str, reason: str) -> None:
    at = (landing.spark, landing.c, landing.directory, landing.root / "check")
    (landing.directory / "1 é.csv").write_text("id,v\n1,a\n")
    (landing.directory / "2 é.csv").write_text(text)
    with pytest.raises(InvalidUpdates) as caught:
        ingest(*at, format="csv")
    assert reason in str(caught.value) and " é.csv" in str(caught.value) and "\n" not in str(caught.value)
    assert landing.c.upper == Frontier.of(0)
