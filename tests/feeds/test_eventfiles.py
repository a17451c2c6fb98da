"""`Lake.ingest` of change events in CSV and Parquet files: as texts, as columns, with a column `Op`."""

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import tidelake
from killed import killed
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
ROW = pa.struct([("id", pa.int64()), ("v", pa.string()), ("more", pa.float64())])
EVENTS = pa.schema(
    [("after", ROW), ("op", pa.string()), ("before", ROW), ("source", pa.struct([("lsn", pa.uint32())]))]
)
FORMATS = ("csv", "parquet")


def put(path: Path, table: pa.Table, number: int = 0, **how: Any) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pq.write_table(table, path, **how)
    os.utime(path, (1_000_000_000 + number,) * 2)


def made(place: Path, time: str = "counter", schema: pa.Schema = SCHEMA) -> tuple[Lake, Collection]:
    lake = tidelake.open(place / "lake")
    return lake, lake.create("c", schema, key=["id"], time=time)


def history(c: Collection) -> list[tuple[Any, ...]]:
    rows = c.updates(0, c.upper).read_all().to_pylist() if c.upper.elements[0] else []
    return sorted((r["_time"], r["id"], r.get("v") or "", r["_diff"]) for r in rows)


def events(*told: tuple[str, Any, Any, int], schema: pa.Schema = EVENTS) -> pa.Table:
    def row(one: Any) -> Any:
        return None if one is None else {"id": one[0], "v": one[1], "more": 0.5}

    rows = [{"op": op, "before": row(a), "after": row(b), "source": {"lsn": at}} for op, a, b, at in told]
    return pa.Table.from_pylist(rows, schema)


def of_postgres(n: int, commit: int | None = None, op: str = "c", old: Any = None) -> str:
    """An event on the row `n` of a transaction, which begins where the one before was committed."""
    commit = n if commit is None else commit
    places = {"txId": commit, "sequence": json.dumps([str(10 * commit), str(10 * commit + 1)])}
    source = {"connector": "postgresql", "lsn": 10 * commit + n % 10 + 1} | places
    after = None if op == "d" else {"id": n, "v": f"{commit}"}
    return json.dumps({"op": op, "before": old, "after": after, "source": source})


def of_transactions(format_: str, place: Path, count: int = 30) -> None:
    """Random transactions, in files of a format and of lines."""
    chance, there, lines = random.Random(7), dict[int, Any](), list[str]()
    for commit in range(count):
        for n in sorted(chance.sample(range(10), chance.randint(1, 4))):
            old = there.pop(n, None)
            op = "c" if old is None else chance.choice("ud")
            lines.append(of_postgres(n, commit, op, old))
            if op != "d":
                there[n] = json.loads(lines[-1])["after"]
    size = -(-len(lines) // 3)
    (place / "text").mkdir()
    for number in range(3):
        some = lines[number * size :][:size]
        rows = pa.table({"value": some, "other": range(len(some))})
        put(
            place / "in" / f"{number}.{format_}",
            rows,
            number,
            **({} if format_ == "csv" else {"row_group_size": 7}),
        )
        (place / "text" / f"{number}").write_text("".join(line + "\n" for line in some))
        os.utime(place / "text" / f"{number}", (1_000_000_000 + number,) * 2)


@pytest.mark.promise(
    "Change events in CSV and Parquet files are taken once, in this process, with the answers and reports of "
    "Spark",
    rule="`IntoEvents` in `feeds/onecollection.py`",
    also=[
        "::test_killed_anywhere_each_event_is_taken_once",
        "::test_rows_of_dms_are_new_rows_of_their_keys",
        "spark/jobs/test_ingest_agrees.py::test_of_events_in_files_of_rows",
    ],
)
@pytest.mark.parametrize("old_rows", ["events", "stored"])
@pytest.mark.parametrize("format_", FORMATS)
def test_events_as_texts_are_those_of_lines(tmp_path: Path, format_: Any, old_rows: str) -> None:
    of_transactions(format_, tmp_path)
    lake, theirs = made(tmp_path)
    ours, cut = (lake.create(name, SCHEMA, key=["id"]) for name in ("ours", "cut"))
    told = lake.ingest(tmp_path / "text", theirs, old_rows=old_rows)
    assert lake.ingest(tmp_path / "in", ours, format=format_, old_rows=old_rows) == told and told.events > 20
    parts = lake.ingest(tmp_path / "in", cut, format=format_, old_rows=old_rows, batch_bytes=2_000)
    assert parts.batches > 4 and (parts.events, parts.files, parts.upper) == (told.events, 3, told.upper)
    rows = [c.updates(0, c.upper).read_all() for c in (theirs, ours, cut)]
    assert rows[0] == rows[1] == rows[2]
    assert lake.ingest(tmp_path / "in", ours, format=format_, old_rows=old_rows).batches == 0


@pytest.mark.parametrize("old_rows", ["events", "stored"])
def test_events_as_columns_are_taken(tmp_path: Path, old_rows: str) -> None:
    lake, c = made(tmp_path)
    first = events(
        ("r", None, (1, "a"), 3),
        ("c", None, (2, None), 4),
        ("u", (1, "a"), (1, "b"), 5),
        ("h", None, None, 6),
    )
    put(tmp_path / "in" / "1.parquet", first)
    kinds = [pa.large_string() if kind.name == "op" else kind for kind in EVENTS]
    kinds = [kind if kind.name != "op" else kind.with_type(pa.large_string()) for kind in EVENTS]
    put(tmp_path / "in" / "2.parquet", events(("d", (2, None), None, 8), schema=pa.schema(kinds)), 1)
    how: dict[str, Any] = {"format": "parquet", "max_files_per_trigger": 1, "old_rows": old_rows}
    report = lake.ingest(tmp_path / "in", c, "debezium", **how)
    assert (report.batches, report.files, report.events, report.heartbeats) == (2, 2, 4, 1)
    assert history(c) == [(3, 1, "a", 1), (4, 2, "", 1), (5, 1, "a", -1), (5, 1, "b", 1), (8, 2, "", -1)]
    put(tmp_path / "in" / "3.parquet", events(("c", None, (9, "z"), 2)), 2)
    with pytest.raises(InvalidUpdates, match=r"its time 2 is late.*file=.*/3\.parquet"):
        lake.ingest(tmp_path / "in", c, "debezium", **how)
    put(tmp_path / "in" / "3.parquet", events(("u", None, None, 9), ("c", None, (9, "z"), 9)), 2)
    report = lake.ingest(tmp_path / "in", c, "debezium", **how, rejects=str(tmp_path / "aside"))
    assert (report.rejects, report.events, history(c)[-1]) == (1, 1, (9, 9, "z", 1))


def test_an_incremental_snapshot_in_columns_needs_a_look_up(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    source = pa.struct([("lsn", pa.int64()), ("snapshot", pa.large_string())])
    rows = [{"op": "r", "after": {"id": 1, "v": "a"}, "source": {"lsn": 4, "snapshot": "incremental"}}]
    put(tmp_path / "in" / "1.parquet", pa.Table.from_pylist(rows, EVENTS.set(3, pa.field("source", source))))
    with pytest.raises(InvalidUpdates, match="old_rows='stored'"):
        lake.ingest(tmp_path / "in", c, format="parquet")
    assert lake.ingest(tmp_path / "in", c, format="parquet", old_rows="stored").updates == 1


AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("format_", FORMATS)
def test_rows_of_dms_are_new_rows_of_their_keys(tmp_path: Path, format_: Any) -> None:
    # Names that lines have as well.
    schema = pa.schema([*SCHEMA, ("value", pa.string()), ("payload", pa.binary())])
    lake, c = made(tmp_path, "us", schema)

    def rows(*told: tuple[str, int, str | None, float]) -> pa.Table:
        table = pa.table(
            {
                "Op": [one[0] for one in told],
                "value": pa.array([one[2] for one in told], pa.string()),
                "id": pa.array([one[1] for one in told], pa.int32()),
                "v": [f"{one[3]}" for one in told],
                "at": [f"{AT + timedelta(seconds=one[3]):%Y-%m-%d %H:%M:%S.%f}" for one in told],
                "seq": [f"{one[3]:05.1f}" for one in told],
            }
        )
        return table.append_column("payload", pa.nulls(len(told), pa.binary()))

    put(tmp_path / "in" / f"1.{format_}", rows(("I", 1, "a", 0), ("I", 2, "", 0.5), ("U", 1, None, 1)))
    put(tmp_path / "in" / f"2.{format_}", rows(("D", 2, "x", 3), ("I", 3, 'a,"b"\n', 3)), 1)
    how: dict[str, Any] = {"format": format_, "time": "at", "order_by": "seq", "max_files_per_trigger": 1}
    report = lake.ingest(tmp_path / "in", c, "dms", **how)
    assert (report.batches, report.files, report.events, report.removed) == (2, 2, 5, 1)
    start = int(AT.timestamp()) * 1_000_000
    second = 1_000_000
    assert [(one[0] - start, one[1], one[3]) for one in history(c)] == [
        *((0, 1, 1), (second // 2, 2, 1), (second, 1, -1), (second, 1, 1)),
        *((3 * second, 2, -1), (3 * second, 3, 1)),
    ]
    assert c.snapshot().read_all()["value"].to_pylist() == [None, 'a,"b"\n']
    put(tmp_path / "in" / f"3.{format_}", rows(("X", 1, "a", 9)), 2)
    with pytest.raises(InvalidUpdates, match=r"'Op' holds 'X': known are I, U, D; file=.*/3\."):
        lake.ingest(tmp_path / "in", c, "dms", **how)
    put(tmp_path / "in" / f"3.{format_}", rows(("I", 1, "a", 9)).drop_columns(["Op", "value"]), 2)
    with pytest.raises(InvalidUpdates, match=r"a full load without 'Op' set .*; file=.*/3\."):
        lake.ingest(tmp_path / "in", c, "dms", **how)
    put(tmp_path / "in" / f"3.{format_}", rows(("U", 1, "a", 9)), 2)
    with pytest.raises(UsageError, match="files of AWS DMS have no old rows"):
        lake.ingest(tmp_path / "in", c, "dms", **how | {"order_by": None}, old_rows="events")
    assert lake.ingest(tmp_path / "in", c, "dms", **how).events == 1


def test_rows_of_dms_without_times_have_that_of_the_commit(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    put(tmp_path / "in" / "1.parquet", pa.table({"Op": ["I", "I"], "id": [1, 2], "v": ["now", "b"]}))
    assert lake.ingest(tmp_path / "in", c, "dms", format="parquet").upper.elements == (1,)
    put(tmp_path / "in" / "2.parquet", pa.table({"Op": ["D"], "id": [1], "v": [None]}))
    assert lake.ingest(tmp_path / "in", c, "dms", format="parquet").removed == 1
    assert history(c) == [(0, 1, "now", 1), (0, 2, "b", 1), (1, 1, "now", -1)]


def test_messages_of_dms_in_files_have_times(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    metadata = {"operation": "insert", "record-type": "data", "schema-name": "s", "table-name": "c"}
    text = json.dumps({"metadata": metadata | {"transaction-id": 5}, "data": {"id": 1, "v": "a"}})
    put(tmp_path / "in" / "1.parquet", pa.table({"value": pa.array([text.encode()], pa.large_binary())}))
    with pytest.raises(UsageError, match="messages of AWS DMS have no time"):
        lake.ingest(tmp_path / "in", c, "dms", format="parquet")
    lake.ingest(tmp_path / "in", c, "dms", format="parquet", time="metadata.transaction-id")
    assert history(c) == [(5, 1, "a", 1)]


def test_messages_of_kafka_in_files_are_known_by_their_offsets(tmp_path: Path) -> None:
    lake, c = made(tmp_path)

    def messages(*numbers: int) -> pa.Table:
        texts = [{"op": "c", "after": {"id": n % 3, "v": f"{n}"}, "source": {"lsn": 5}} for n in numbers]
        return pa.table(
            {
                "value": [json.dumps(one) for one in texts],
                "topic": pa.array(["t"] * len(numbers)).dictionary_encode(),
                "partition": [0] * len(numbers),
                "offset": pa.array(numbers, pa.int32()),
                "timestamp": [AT] * len(numbers),
            }
        )

    how: dict[str, Any] = {"format": "parquet", "time": "source.lsn", "late": "advance"}
    put(tmp_path / "in" / "1.parquet", messages(0, 1, 2))
    assert lake.ingest(tmp_path / "in", c, **how).events == 3
    put(tmp_path / "in" / "2.parquet", messages(1, 2, 3, 4), 1)
    report = lake.ingest(tmp_path / "in", c, **how)
    assert (report.events, report.repeated) == (2, 2)
    assert sorted(row[2] for row in history(c)) == ["0", "1", "2", "3", "4"]
    rows = messages(5)
    put(tmp_path / "in" / "3.parquet", rows.set_column(3, "offset", pa.array([None], pa.int64())), 2)
    with pytest.raises(InvalidUpdates, match=r"3\.parquet: column 'offset' has a null"):
        lake.ingest(tmp_path / "in", c, **how)


def text(n: int) -> str:
    return json.dumps({"op": "c", "after": {"id": n, "v": "a"}, "source": {"lsn": n + 1}})


def test_a_micro_batch_ends_where_the_form_of_files_changes(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    (tmp_path / "in").mkdir()
    put(tmp_path / "in" / "1", pa.table({"value": [text(0), text(1)]}), 1)
    put(tmp_path / "in" / "2", events(("c", None, (2, "a"), 3)), 2)
    put(tmp_path / "in" / "3", events().slice(0, 0), 3)
    report = lake.ingest(tmp_path / "in", c, format="parquet", time="source.lsn")
    assert (report.batches, report.files, [row[1] for row in history(c)]) == (2, 3, [0, 1, 2])


def test_files_without_rows_or_columns_are_taken(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").touch()
    put(tmp_path / "in" / "2.csv", pa.table({"value": pa.array([], pa.string())}), 2)
    put(tmp_path / "in" / "3.csv", pa.table({"value": [text(0)]}), 3)
    (tmp_path / "in" / "4.csv").touch()
    report = lake.ingest(tmp_path / "in", c, format="csv")
    assert (report.files, report.events) == (4, 1)
    (tmp_path / "in" / "5.csv").touch()
    report = lake.ingest(tmp_path / "in", c, format="csv")
    assert (report.files, report.events, report.upper) == (1, 0, c.upper)


@pytest.mark.parametrize(
    ("envelope", "table", "reason"),
    [
        ("debezium", {"id": [1]}, "or columns 'op', 'before' and 'after': there is no 'op' but 'id'"),
        ("debezium", {"value": [1]}, "there is no 'op' but 'value'"),
        ("maxwell", {"id": [1]}, "messages of Maxwell are a column 'value' of JSON texts: there is 'id'"),
        ("dms", {"id": [1]}, "for a full load without 'Op' set IncludeOpForFullLoad"),
        ("dms", {"Op": ["I"], "id": [1]}, "missing column 'v'"),
        ("dms", {"Op": ["I"], "id": ["1"], "v": ["a"]}, "'id' has type string, expected int64"),
        ("debezium", events().set_column(1, "op", pa.array([], pa.int8())), "'op' is int8 and not string"),
        (
            "debezium",
            events().set_column(2, "before", pa.array([], pa.int8())),
            "'before' is int8 and no struct",
        ),
        ("debezium", events().drop_columns(["source"]), "there is no column 'source.lsn': set time"),
        ("debezium", events().set_column(3, "source", pa.array([{"lsn": "1"}])[:0]), "no whole number: cast"),
        (
            "debezium",
            events().set_column(0, "after", pa.array([], pa.struct([("id", pa.int64())]))),
            "column 'after': missing column 'v'",
        ),
        (
            "debezium",
            events().set_column(
                0, "after", pa.array([], pa.struct([("id", pa.string()), ("v", pa.string())]))
            ),
            "column 'after': column 'id' has type string, expected int64",
        ),
    ],
)
def test_columns_that_are_no_events_are_named(tmp_path: Path, envelope: str, table: Any, reason: str) -> None:
    lake, c = made(tmp_path)
    table = table if isinstance(table, pa.Table) else pa.table(table)
    put(tmp_path / "in" / "1", table)
    with pytest.raises(InvalidUpdates, match=rf"{reason}.*; file=.*/1"):
        lake.ingest(tmp_path / "in", c, envelope, format="parquet")
    assert c.upper.elements[0] == 0


def test_a_file_that_became_shorter_while_it_was_taken_is_refused(tmp_path: Path) -> None:
    lake, c = made(tmp_path)
    table = pa.table({"value": [of_postgres(n) for n in range(9)]})
    put(tmp_path / "in" / "1", table)

    def shorter(_: Any) -> None:
        put(tmp_path / "in" / "1", table.slice(0, 1))

    with pytest.raises(InvalidUpdates, match=r"/1 has \d+ fewer rows than were taken of it"):
        lake.ingest(tmp_path / "in", c, format="parquet", batch_bytes=600, progress=shorter)


@pytest.mark.promise(
    "A flipped bit in a page of a Parquet file that has checksums is an error that names the file",
    rule="`_of_parquet` in `feeds/rowfiles.py`",
)
@pytest.mark.parametrize("envelope", ["updates", "debezium"])
def test_a_flipped_byte_in_a_page_with_a_checksum_is_noticed(tmp_path: Path, envelope: str) -> None:
    lake, c = made(tmp_path)
    n = range(1000)
    table = pa.table({"id": n, "v": ["a"] * len(n)}) if envelope == "updates" else None
    table = table or pa.table({"value": [text(one) for one in n]})
    path = tmp_path / "in" / "1"
    put(path, table, write_page_checksum=True, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    # A digit of a number that stands there as it is.
    at = whole.index(b'"id": 777') + 6 if envelope == "debezium" else whole.index((777).to_bytes(8, "little"))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(InvalidUpdates, match=r"cannot read file=.*/1: .*CRC checksum"):
        lake.ingest(tmp_path / "in", c, envelope, format="parquet")
    assert c.upper.elements[0] == 0
    path.write_bytes(whole)
    assert lake.ingest(tmp_path / "in", c, envelope, format="parquet").updates == 1000


@pytest.mark.parametrize("kind", ["texts", "columns", "op"])
def test_killed_anywhere_each_event_is_taken_once(tmp_path: Path, kind: str) -> None:
    place, chance = tmp_path / "place", random.Random(kind)
    for n in range(3):
        several = [(3 * n + one, chance.choice("abc")) for one in range(3)]
        table = {
            "texts": pa.table({"value": [of_postgres(one) for one, _ in several]}),
            "columns": events(*(("c", None, row, row[0] + 1) for row in several)),
            "op": pa.table({"Op": ["I"] * 3, "id": [one for one, _ in several], "v": ["a"] * 3}),
        }[kind]
        put(place / "in" / f"{n}", table, n)
    made(place)[0].close()

    def work(place: Path) -> None:
        with tidelake.open(place / "lake") as lake:
            how: dict[str, Any] = {"format": "parquet", "max_files_per_trigger": 1, "batch_bytes": 600}
            lake.ingest(place / "in", "c", "dms" if kind == "op" else "debezium", **how)

    for left in killed(place, work, fast=37, full=7):
        work(left)
        with tidelake.open(left / "lake") as lake:
            # The last transaction is held back, as its commit is not known.
            count = 8 if kind == "texts" else 9
            assert [(one[1], one[3]) for one in history(lake["c"])] == [(one, 1) for one in range(count)]
