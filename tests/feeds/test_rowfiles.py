"""`Lake.ingest` of files of rows: JSON lines, CSV and Parquet, in this process."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidelake
from killed import killed
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
FORMATS = ("jsonl", "csv", "parquet")


def put(path: Path, format_: str, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    if format_ == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif format_ == "jsonl":
        path.write_text("\ufeff" + "\n\n".join(map(json.dumps, rows)))
    else:
        lines = [",".join("" if one is None else str(one) for one in row.values()) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]))


def made(place: Path, time: str = "counter") -> tuple[Lake, Collection]:
    lake = tidelake.open(place / "lake")
    return lake, lake.create("c", SCHEMA, key=["id"], time=time)


def history(c: Collection) -> list[tuple[Any, ...]]:
    rows = c.updates(0, c.upper).read_all().to_pylist() if c.upper.elements[0] else []
    return sorted((r["_time"], r["id"], r["v"] or "", r["_diff"]) for r in rows)


@pytest.mark.promise(
    "Files of rows are taken once, in this process, with the answers and reports of Spark; a file that does "
    "not fit is named",
    rule="`IntoRows` in `feeds/onecollection.py`",
    also=[
        "::test_killed_anywhere_each_file_is_taken_once",
        "::test_files_that_do_not_fit_are_named",
        "spark/jobs/test_ingest_agrees.py::test_of_rows",
    ],
)
@pytest.mark.parametrize("format_", FORMATS)
def test_files_of_rows_are_taken_once(tmp_path: Path, format_: Any) -> None:
    lake, c = made(tmp_path)
    put(tmp_path / "in" / "1", format_, [{"v": "a", "id": 1, "_time": 4}, {"v": None, "id": 2, "_time": 5}])
    put(tmp_path / "in" / "2", format_, [{"v": "c", "id": 3, "_time": 6}])
    report = lake.ingest(tmp_path / "in", "c", "updates", format=format_, batch_bytes=1)
    assert (report.batches, report.files, report.updates) == (2, 2, 3)
    assert history(c) == [(4, 1, "a", 1), (5, 2, "", 1), (6, 3, "c", 1)]
    assert lake.ingest(tmp_path / "in", "c", "updates", format=format_).batches == 0
    counted = [{"id": 1, "v": "a", "_diff": -1}, {"id": 4, "v": "d", "_diff": 2}]
    put(tmp_path / "in" / "3", format_, counted)
    assert lake.ingest(tmp_path / "in", "c", "updates", format=format_).updates == 2
    assert history(c)[3:] == [(7, 1, "a", -1), (7, 4, "d", 2)]


@pytest.mark.parametrize("spills", [False, True])
@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_new_rows_of_keys_replace_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: Any, spills: bool
) -> None:
    if spills:
        monkeypatch.setattr("tidelake.shard.writing.shufflespill.ShuffleSpill.run_bytes", 1)
    lake, c = made(tmp_path)
    rows = [{"id": n % 4, "v": f"{n}", "gone": n == 7, "at": n, "order": n} for n in range(8)]
    put(tmp_path / "in" / "1", format_, rows[:3])
    put(tmp_path / "in" / "2", format_, rows[3:])
    how: dict[str, Any] = {"time": "at", "delete_column": "gone", "order_by": "order", "format": format_}
    report = lake.ingest(tmp_path / "in", c, "upsert", **how)
    assert (report.batches, report.events, report.removed) == (1, 8, 1)
    assert [(r["id"], r["v"]) for r in c.snapshot().read_all().to_pylist()] == [(0, "4"), (1, "5"), (2, "6")]
    put(tmp_path / "in" / "3", format_, [rows[0]])
    with pytest.raises(InvalidUpdates, match="time 0 is not at or after"):
        lake.ingest(tmp_path / "in", c, "upsert", **how)
    lake.ingest(tmp_path / "in", c, "upsert", **how, late="advance")
    assert c.snapshot().read_all().to_pylist()[0]["v"] == "0"


def test_new_rows_of_keys_come_in_any_order_however_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelake.shard.writing.shufflespill.ShuffleSpill.run_bytes", 1)
    small = tidelake.Config(merge_chunk_rows=16, fold_rows=16)
    lake = tidelake.open(tmp_path / "lake", config=small)
    lake.create("c", SCHEMA, key=["id"])
    for file in range(5):
        put(
            tmp_path / "in" / f"{file}", "jsonl", [{"id": 7 * n % 100, "v": "a"} for n in range(file, 100, 5)]
        )
    assert lake.ingest(tmp_path / "in", "c", "upsert").updates == 100
    assert lake["c"].snapshot().read_all()["id"].to_pylist() == [*range(100)]


@pytest.mark.parametrize(
    ("format_", "text", "reason"),
    [
        ("jsonl", '{"id": 1, "v": "a"}\n\n{"id": "2", "v": "b"}\n', r"column 'id': \"2\" is .*number=3"),
        ("jsonl", '{"id": 1, "v": "a"}\n{"id": 2}', r"column 'v': is missing; file=.*/1 number=2"),
        ("jsonl", '{"op": "c", "after": {}}', "is a change event: give the envelope 'debezium'"),
        ("jsonl", b"\xff", "is not JSON"),
        ("csv", "id,v\n007,a\n", "1 line 2: column 'id' is '007', with leading zeros"),
        ("csv", "id,w\n1,a\n", r"missing column 'v'.*file=.*/1"),
        ("csv", b"id,v\n1,\xffa\n", "invalid UTF8"),
        ("csv", "id,v\n1,2,3\n", "line 2 has 3 values, and the header 2"),
        ("csv", 'id,v\n1,"5"" a"\n2,"b\n3,c\n', "1 line 3 has a quote that nothing closes"),
        ("csv", "id,v\n,a\n", "'id' must not be null, but is in row 0: give it a value; file=.*/1"),
        ("parquet", "no file", r"file=.*/1 cannot be read as parquet"),
        ("keyed", "", "is for lines of change events"),
        ("json", "", "format='json' is unknown"),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: Path, format_: Any, text: str | bytes, reason: str
) -> None:
    lake, c = made(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=reason):
        lake.ingest(tmp_path / "in", c, "updates", format=format_)
    assert c.upper.elements[0] == 0


@pytest.mark.parametrize("envelope", ["updates", "upsert"])
def test_late_rows_name_their_files(tmp_path: Path, envelope: str) -> None:
    lake, c = made(tmp_path)
    for name, at in (("1", 7), ("2", 3), ("3", 8)):
        put(tmp_path / "in" / name, "csv", [{"id": 1, "v": "a", "_time": at}])
        os.utime(tmp_path / "in" / name, (int(name), int(name)))
    with pytest.raises(InvalidUpdates, match=r"time 3 is not .*; file=.*/2$"):
        lake.ingest(tmp_path / "in", c, envelope, format="csv", max_files_per_trigger=1)
    with pytest.raises(InvalidUpdates, match=r"time 3 is not .*; 2 files, .*: file=.*/2 to file=.*/3$"):
        lake.ingest(tmp_path / "in", c, envelope, format="csv")


@pytest.mark.parametrize("numbers", [("9", "10"), ("-1", "-2"), ("9.5", "10")])
def test_numbers_that_csv_has_as_texts_do_not_order_rows(tmp_path: Path, numbers: tuple[str, str]) -> None:
    lake, c = made(tmp_path)
    for number in numbers:
        put(tmp_path / "in" / number, "csv", [{"id": 1, "v": number, "order": number}])
    with pytest.raises(InvalidUpdates, match="order_by='order' has numbers, and is no column of the coll"):
        lake.ingest(tmp_path / "in", c, "upsert", format="csv", order_by="order")
    for number, text in zip(numbers, ("2026-01-02", "2026-01-02 03:00"), strict=True):
        put(tmp_path / "in" / number, "csv", [{"id": 1, "v": number, "order": text}])
    lake.ingest(tmp_path / "in", c, "upsert", format="csv", order_by="order")
    assert c.snapshot().read_all()["v"].to_pylist() == [numbers[1]]


@pytest.mark.parametrize("envelope", ["updates", "upsert"])
def test_times_may_be_of_any_whole_type_that_fits(tmp_path: Path, envelope: str) -> None:
    lake, c = made(tmp_path)
    (tmp_path / "in").mkdir()
    far = pa.table({"id": [1], "v": ["a"], "at": pa.array([2**31 - 1], pa.date32())})
    pq.write_table(far, tmp_path / "in" / "1")
    clock = lake.create("clock", SCHEMA, key=["id"], time="us")
    with pytest.raises(InvalidUpdates, match=r"'at' has times that do not fit 'us': .*file=.*/1"):
        lake.ingest(tmp_path / "in", clock, envelope, format="parquet", time="at")
    rows = pa.table({"id": [1], "v": ["a"], "_time": pa.array([1 << 63], pa.uint64())})
    pq.write_table(rows, tmp_path / "in" / "1")
    with pytest.raises(InvalidUpdates, match=r"'_time' does not fit int64.*file=.*/1"):
        lake.ingest(tmp_path / "in", c, envelope, format="parquet")
    pq.write_table(rows.set_column(2, "_time", pa.array([4], pa.uint64())), tmp_path / "in" / "1")
    lake.ingest(tmp_path / "in", c, envelope, format="parquet")
    assert history(c) == [(4, 1, "a", 1)]


@pytest.mark.parametrize("envelope", ["updates", "upsert"])
@pytest.mark.parametrize("time", [1 << 63, True, 1.5])
def test_one_time_of_all_rows_is_a_whole_number(tmp_path: Path, envelope: str, time: Any) -> None:
    lake, c = made(tmp_path)
    put(tmp_path / "in" / "1", "csv", [{"id": 1, "v": "a"}])
    with pytest.raises(UsageError, match=f"time={time} is not a time of unit counter"):
        lake.ingest(tmp_path / "in", c, envelope, format="csv", time=time)
    assert c.upper.elements[0] == 0


def test_an_error_of_who_is_told_of_progress_stays_as_it_is(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    put(tmp_path / "in" / "1", "csv", [{"id": 1, "v": "a"}])

    def told(_: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        lake.ingest(tmp_path / "in", c, "updates", format="csv", progress=told)


def test_types_are_those_of_the_collection(tmp_path: Path) -> None:
    lake, c = made(tmp_path, "ms")
    at = pa.array([1_700_000_000_000_500, None], pa.timestamp("us", "UTC"))
    narrow = pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"], "at": at})
    (tmp_path / "in").mkdir()
    pq.write_table(narrow.slice(0, 1), tmp_path / "in" / "1")
    lake.ingest(tmp_path / "in", c, "updates", format="parquet", time="at")
    assert history(c) == [(1_700_000_000_000, 1, "a", 1)]
    for column, reason in ((["1"], "'id' has type string"), ([1.0], "'id' has type double")):
        pq.write_table(pa.table({"id": column, "v": ["a"]}), tmp_path / "in" / "2")
        with pytest.raises(InvalidUpdates, match=f"{reason}, expected int64.*file=.*/2"):
            lake.ingest(tmp_path / "in", c, "updates", format="parquet")
    for name, reason in (("at", "there is no column 'at'"), ("v", "'v' is string, and times of")):
        with pytest.raises(InvalidUpdates, match=reason):
            lake.ingest(tmp_path / "in", c, "updates", format="parquet", time=name)


def test_files_of_other_columns_are_taken_apart(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    put(tmp_path / "in" / "1", "jsonl", [{"id": 1, "v": "a"}])
    put(tmp_path / "in" / "2", "jsonl", [{"v": "b", "id": 2}])
    put(tmp_path / "in" / "3", "jsonl", [{"id": 3, "v": "c", "_diff": 1}])
    (tmp_path / "in" / "4").touch()
    with pytest.raises(InvalidUpdates, match=r"those of files before .*max_files_per_trigger=1; file=.*/3"):
        lake.ingest(tmp_path / "in", c, "updates")
    assert lake.ingest(tmp_path / "in", c, "updates", max_files_per_trigger=1).files == 4
    assert [row[1:] for row in history(c)] == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]


def test_what_rows_do_not_take_is_refused(tmp_path: Path) -> None:
    lake, _ = made(tmp_path)
    (tmp_path / "in").mkdir()
    with pytest.raises(UsageError, match="takes files of a directory"):
        lake.ingest(['{"id": 1}'], "c", "updates")
    with pytest.raises(UsageError, match="the envelope 'upsert' takes no rejects"):
        lake.ingest(tmp_path / "in", "c", "upsert", rejects="x")
    lake.create("pairs", SCHEMA, key=["id"], time="tuple(2)")
    put(tmp_path / "in" / "1", "jsonl", [{"id": 1, "v": "a"}])
    with pytest.raises(UsageError, match="times that are single numbers"):
        lake.ingest(tmp_path / "in", "pairs", "updates")


@pytest.mark.parametrize("envelope", ["updates", "upsert"])
def test_killed_anywhere_each_file_is_taken_once(tmp_path: Path, envelope: str) -> None:
    place = tmp_path / "place"
    for n in range(3):
        put(place / "in" / f"{n}", "jsonl", [{"id": n, "v": "a"}, {"id": n + 10, "v": "b"}])
    made(place)[0].close()

    def work(place: Path) -> None:
        with tidelake.open(place / "lake") as lake:
            lake.ingest(place / "in", "c", envelope, max_files_per_trigger=1)

    for left in killed(place, work, fast=29, full=3):
        work(left)
        with tidelake.open(left / "lake") as lake:
            assert [(one[1], one[3]) for one in history(lake["c"])] == [
                (n, 1) for one in range(3) for n in (one, one + 10)
            ]
