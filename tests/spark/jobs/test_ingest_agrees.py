"""An ingest in this process and one by Spark have the same answers and reports."""

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import tidelake
from tests.cdc.dialects.told_history import SCHEMA as ITEMS
from tests.cdc.dialects.told_history import some_history
from tidelake.spark import ingest, ingest_tables

pytestmark = [pytest.mark.spark, pytest.mark.full]

SAMPLES = Path(__file__).parents[2] / "cdc" / "samples"
ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string())])
ACCOUNTS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("owner", pa.int32()),
        ("bal", pa.int64()),
        ("note", pa.string()),
    ]
)


def landed(folder: Path, lines: list[bytes], files: int) -> None:
    folder.mkdir()
    size = -(-len(lines) // files)
    for number in range(files):
        path = folder / f"{number}.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines[number * size :][:size]))
        os.utime(path, (1_000_000_000 + number,) * 2)


def agree(spark: Any, place: Path, lines: list[bytes], schema: pa.Schema, files: int, **how: Any) -> int:
    """The number of updates of both."""
    landed(place / "in", lines, files)
    lake = tidelake.open(place / "lake")
    time = how.pop("unit", "counter")
    theirs, ours = (lake.create(name, schema, key=["id"], time=time) for name in ("theirs", "ours"))
    told = ingest(
        spark, theirs, place / "in", place / "check", format="jsonl", max_files_per_trigger=1, **how
    )
    mine = lake.ingest(place / "in", ours, max_files_per_trigger=1, **how)
    assert mine == told
    small = lake.create("small", schema, key=["id"], time=time)
    cut = lake.ingest(place / "in", small, checkpoint=place / "small", batch_bytes=20_000, **how)
    assert cut.upper == told.upper and cut.events == told.events
    rows = [c.updates(0, c.upper).read_all().to_pylist() for c in (theirs, ours, small)]
    assert rows[0] == rows[1] == rows[2]
    return len(rows[0])


@pytest.mark.parametrize(
    ("name", "old_rows"),
    [
        ("key_moved", "stored"),
        ("key_only", "stored"),
        ("schema_off", "events"),
        ("schema_off", "stored"),
        ("schema_on", "events"),
    ],
)
def test_of_samples(spark: Any, tmp_path: Path, name: str, old_rows: str) -> None:
    lines = (SAMPLES / f"{name}.jsonl").read_bytes().splitlines()
    how = {"envelope": "debezium", "old_rows": old_rows}
    assert agree(spark, tmp_path, lines, ORDERS, 1, **how) > 3


@pytest.mark.parametrize("old_rows", ["events", "stored"])
def test_of_a_capture(spark: Any, tmp_path: Path, shared_data: Path, old_rows: str) -> None:
    with gzip.open(shared_data / "postgres_acc" / "events.jsonl.gz") as file:
        lines = file.read().splitlines()
    how = {"envelope": "debezium", "old_rows": old_rows}
    assert agree(spark, tmp_path, lines, ACCOUNTS, 3, **how) > 5_000


def test_of_a_tool_with_lines_that_cannot_be_read(spark: Any, tmp_path: Path) -> None:
    lines = list[bytes]()
    for step in some_history(5):
        kind = "insert" if step.before is None else "delete" if step.after is None else "update"
        told = {"data": step.after or step.before, "before-image": step.before}
        about = {"record-type": "data", "operation": kind, "schema-name": "shop", "table-name": "items"}
        lines.append(json.dumps(told | {"metadata": about | {"transaction-id": step.number}}).encode())
    lines[7:7] = [b"{", b"", b'{"metadata": 7}']
    how = {"envelope": "dms", "time": "metadata.transaction-id", "rejects": str(tmp_path / "aside")}
    assert agree(spark, tmp_path, lines, ITEMS, 2, **how) > 50


@pytest.mark.parametrize(
    ("format_", "envelope"), [("jsonl", "upsert"), ("csv", "updates"), ("parquet", "updates")]
)
def test_of_rows(spark: Any, tmp_path: Path, format_: Any, envelope: str) -> None:
    chance = random.Random(format_ + envelope)
    lake, folder = tidelake.open(tmp_path / "lake"), tmp_path / "in"
    folder.mkdir()
    for file in range(2):
        count = chance.randint(20, 50)
        rows = [
            {"_time": 7 * file + chance.randrange(7), "customer": chance.choice(["ä", "", None]), "id": one}
            for one in chance.sample(range(60), count)
        ]
        path = folder / f"{file}.{format_}"
        if format_ == "parquet":
            pq.write_table(pa.Table.from_pylist(rows, pa.schema([*ORDERS, ("_time", pa.int32())])), path)
        elif format_ == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            csv = pa.Table.from_pylist(rows, pa.schema([*ORDERS, ("_time", pa.int64())]))
            pyarrow.csv.write_csv(csv, path)
        os.utime(path, (1_000_000_000 + file,) * 2)
    theirs, ours = (lake.create(name, ORDERS, key=["id"]) for name in ("theirs", "ours"))
    how: dict[str, Any] = {"format": format_, "max_files_per_trigger": 1}
    told = ingest(spark, theirs, folder, tmp_path / "check", envelope=envelope, **how)
    assert lake.ingest(folder, ours, envelope, **how) == told
    rows, others = (c.updates(0, c.upper).read_all().to_pylist() for c in (theirs, ours))
    assert rows == others and len(rows) > 30


def tables_of(kind: str, chance: random.Random) -> list[pa.Table]:
    """Files of events on a few keys: as texts, as columns, or of AWS DMS."""
    there, told = dict[int, Any](), list[dict[str, Any]]()
    for number in range(60):
        key = chance.randrange(9)
        old, new = there.get(key), {"id": key, "customer": chance.choice(["ä", "", 'a,"b"', None])}
        op = "c" if old is None else chance.choice("ud")
        if op != "d":
            there[key] = new
        else:
            there.pop(key)
        places = {"txId": number, "sequence": json.dumps([str(5 * number), str(5 * number + 1)])}
        source = {"connector": "postgresql", "lsn": 5 * number + 1} | places
        told.append({"op": op, "before": old, "after": None if op == "d" else new, "source": source})
    if kind == "texts":
        rows = pa.table({"value": list(map(json.dumps, told)), "more": [1.5] * len(told)})
    elif kind == "columns":
        row = pa.struct([("customer", pa.string()), ("id", pa.int32()), ("more", pa.int8())])
        fields = [("op", pa.string()), ("before", row), ("after", row)]
        fields += [("source", pa.struct([("lsn", pa.int64()), ("txId", pa.int32())]))]
        rows = pa.Table.from_pylist(told, pa.schema(fields))
    else:
        several = [(one["op"], one["after"] or one["before"]) for one in told]
        rows = pa.table(
            {
                "at": pa.array([1_700_000_000 + n for n in range(60)], pa.timestamp("s")),
                "Op": [{"c": "I", "u": "U", "d": "D"}[op] for op, _ in several],
                "customer": [row["customer"] for _, row in several],
                "id": pa.array([row["id"] for _, row in several], pa.int64()),
            }
        )
    return [rows.slice(0, 25), rows.slice(25, 15), rows.slice(40)]


@pytest.mark.parametrize(
    ("format_", "kind", "old_rows"),
    [
        ("csv", "texts", "events"),
        ("parquet", "columns", "stored"),
        ("parquet", "dms", "stored"),
    ],
)
def test_of_events_in_files_of_rows(
    spark: Any, tmp_path: Path, format_: Any, kind: str, old_rows: str
) -> None:
    lake, folder = tidelake.open(tmp_path / "lake"), tmp_path / "in"
    folder.mkdir()
    for number, rows in enumerate(tables_of(kind, random.Random(kind + old_rows))):
        path = folder / f"{number}.{format_}"
        if format_ == "parquet":
            pq.write_table(rows, path, version="2.6", store_schema=number == 1)
        else:
            pyarrow.csv.write_csv(rows, path)
        os.utime(path, (1_000_000_000 + number,) * 2)
    time = "ms" if kind == "dms" else "counter"
    theirs, ours = (lake.create(name, ORDERS, key=["id"], time=time) for name in ("theirs", "ours"))
    how: dict[str, Any] = {"format": format_, "max_files_per_trigger": 1, "old_rows": old_rows}
    how |= {"envelope": "dms", "time": "at"} if kind == "dms" else {"envelope": "debezium"}
    told = ingest(spark, theirs, folder, tmp_path / "check", **how)
    assert lake.ingest(folder, ours, **how) == told
    rows, others = (c.updates(0, c.upper).read_all().to_pylist() for c in (theirs, ours))
    assert rows == others and len(rows) > 50


def test_of_many_tables(spark: Any, tmp_path: Path) -> None:
    from feed import Feed

    lines = [line.encode() for _, one in Feed(3, postgres=True).transactions(30).lines for line in one]
    landed(tmp_path / "in", lines, 4)
    theirs, ours = tidelake.open(tmp_path / "theirs"), tidelake.open(tmp_path / "ours")
    told = ingest_tables(
        spark, theirs, tmp_path / "in", tmp_path / "check", into="shop", keys=["id"], max_files_per_trigger=1
    )
    mine = ours.ingest(tmp_path / "in", "shop", tables=True, keys=["id"], max_files_per_trigger=1)
    assert mine == told and ours.list() == theirs.list()
    for name in ours.list():
        rows = [lake[name].updates(0, lake[name].upper).read_all().to_pylist() for lake in (ours, theirs)]
        assert rows[0] == rows[1]
