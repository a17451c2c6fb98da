"""Change files as Debezium writes them: with schema and without, with whole old rows or with keys only.

The samples in `debezium/` tell one story of a table: a first copy, updates, nulls, a changed key (as a delete
and a create; in `key_moved` as one event), deletes with tombstones, a log message and a heartbeat.
"""

import shutil
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.rows import TIME
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.answers import total
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.reading import BEST, GONE, NOTE
from tidelake.feeds.storing import event_schema
from tidelake.model.frontier import Frontier
from tidelake.spark import ingest_change_files, write

pytestmark = pytest.mark.usefixtures("both_ways")

SAMPLES = Path(__file__).parent.parent.parent / "cdc" / "samples"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("customer", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
MAY = datetime(2024, 5, 1, 0, 0, 0, 123456)  # noqa: DTZ001
BERN = {"city": "Bern", "zip": 3011}
ONE = (1, 'Zoë ☕ "q"', Decimal("12.50"), date(2024, 5, 1), MAY, BERN, ["a", "b"])
ONE_B = (1, 'Zoë ☕ "q"', Decimal("-0.01"), date(2024, 5, 1), MAY, BERN, ["a", None])
ONE_C = (1, None, None, None, None, None, None)
NOWHERE = {"city": None, "zip": None}
TWO = (2, "line\nbreak\\", Decimal("99999999.99"), date(1970, 1, 1), EPOCH, NOWHERE, [])
THREE = (3, *TWO[1:])
BEFORE_EPOCH = datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
FOUR = (4, "", Decimal("0.00"), date(1969, 12, 31), BEFORE_EPOCH, {"city": "Thun", "zip": 3600}, ["\0"])
STORY = [
    (10, ONE, 1),
    (10, TWO, 1),
    (20, ONE, -1),
    (20, ONE_B, 1),
    (30, TWO, -1),
    (31, THREE, 1),
    (40, ONE_B, -1),
    (40, ONE_C, 1),
    (40, FOUR, 1),
    (50, ONE_C, -1),
]
# The changed key is one event, at one time.
MOVED = [(31 if time == 30 else time, row, diff) for time, row, diff in STORY]


def told(rows: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    found = [(r.pop("_time"), tuple(r[name] for name in SCHEMA.names), r["_diff"]) for r in rows.to_pylist()]
    return sorted(found, key=repr)


def lines(name: str) -> list[bytes]:
    return (SAMPLES / f"{name}.jsonl").read_bytes().splitlines()


@pytest.mark.promise(
    "Change events of every form (schema on and off, texts and columns, whole old rows and keys "
    "only, changed keys, tombstones, nulls, nested, decimals) tell the same history",
    rule="`cdc/parse/parser.py`, `feeds/storing.py`, `cdc/parse/structcolumns.py`",
    also=["spark/envelopes/test_debezium_samples.py", "spark/envelopes/test_debezium_real_data.py"],
)
@pytest.mark.parametrize("name", ["schema_off", "schema_on"])
@pytest.mark.parametrize("together", [True, False])
def test_samples_are_read(name: str, together: bool) -> None:
    parser = ChangeParser(SCHEMA, ("id",))
    texts = lines(name)
    parts = [texts] if together else [[text] for text in texts]
    parsed = [parser.parse(pa.array(part, pa.binary()), str) for part in parts]
    assert told(pa.Table.from_batches([part.rows for part in parsed])) == sorted(STORY, key=repr)
    assert sum(part.events for part in parsed) == 8
    assert sum(part.heartbeats for part in parsed) == 2
    assert sum(part.tombstones for part in parsed) == 2


@pytest.fixture
def orders(tmp_path: Path) -> Any:
    return tidelake.open(tmp_path / "lake").create("orders", SCHEMA, key=["id"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "old_rows", "story"),
    [
        ("schema_on", "events", STORY),
        ("schema_off", "events", STORY),
        ("schema_off", "stored", STORY),
        ("schema_on", "stored", STORY),
        ("key_only", "stored", STORY),
        ("key_moved", "stored", MOVED),
    ],
)
def test_samples_become_the_history_that_they_tell(
    spark: Any, orders: Any, tmp_path: Path, name: str, old_rows: Any, story: Any
) -> None:
    landing = tmp_path / "in"
    landing.mkdir()
    shutil.copy(SAMPLES / f"{name}.jsonl", landing)
    report = ingest_change_files(
        spark, orders, landing, tmp_path / "checkpoint", time="source.lsn", old_rows=old_rows
    )
    assert told(orders.updates(0, 51).read_all()) == sorted(story, key=repr)
    assert orders.upper == Frontier.of(51)
    events = 7 if name == "key_moved" else 8
    tombstones = 1 if name == "key_moved" else 2
    counts = (report.events, report.heartbeats, report.tombstones, report.updates, report.files)
    assert counts == (events, 2, tombstones, 10, 1)


def test_key_only_samples_need_a_look_up(spark: Any, orders: Any, tmp_path: Path) -> None:
    landing = tmp_path / "in"
    landing.mkdir()
    shutil.copy(SAMPLES / "key_only.jsonl", landing)
    with pytest.raises(InvalidUpdates, match=r"op 'u' without 'before'.*REPLICA IDENTITY.*number=3 line="):
        ingest_change_files(spark, orders, landing, tmp_path / "checkpoint")
    assert orders.upper == Frontier.of(0)


def frame_of(spark: Any, name: str, parsed: bool) -> Any:
    """A batch of the lines, as text or parsed by Spark."""
    frame = spark.read.text(str(SAMPLES / f"{name}.jsonl"))
    if not parsed:
        return frame
    row = "struct<id:bigint,customer:string,price:decimal(10,2),day:int,at:bigint,"
    row += "place:struct<city:string,zip:int>,tags:array<string>,secret:string>"
    event = f"op string, before {row}, after {row}, source struct<lsn:bigint>"
    rows = (
        frame.selectExpr(f"from_json(value, '{event}') e")
        .select("e.*")
        .where("op is null or op in ('r','c','u','d')")
    )
    for side in ("before", "after"):
        at = f"cast(timestamp_micros({side}.at) as timestamp_ntz)"
        fields = f"'day', date_from_unix_date({side}.day), 'at', {at}, 'id', {side}.id"
        fields += f", 'customer', {side}.customer, 'price', {side}.price"
        fields += f", 'place', {side}.place, 'tags', {side}.tags, 'more', 1"
        rows = rows.withColumn(side, _expr(f"if({side} is null, null, named_struct({fields}))"))
    return rows


def _expr(text: str) -> Any:
    from pyspark.sql import functions as f

    return f.expr(text)


@pytest.mark.parametrize("parsed", [False, True], ids=["text", "columns"])
@pytest.mark.parametrize("name", ["schema_off", "key_only"])
def test_a_frame_of_change_events_is_written(spark: Any, orders: Any, name: str, parsed: bool) -> None:
    old_rows: Any = "events" if name == "schema_off" else "stored"
    done = write(orders, frame_of(spark, name, parsed), "debezium", time="source.lsn", old_rows=old_rows)
    assert told(orders.updates(0, 51).read_all()) == sorted(STORY, key=repr)
    assert (done.events, done.updates) == (8, 10)


@pytest.mark.full
@pytest.mark.parametrize("parsed", [False, True], ids=["text", "columns"])
def test_the_format_writes_change_events(spark: Any, orders: Any, tmp_path: Path, parsed: bool) -> None:
    from tidelake.spark import register

    register(spark)
    frame = frame_of(spark, "schema_off", parsed)
    if not parsed:
        frame = frame.union(spark.createDataFrame([("{",)], "value string"))
    writer = frame.write.format("tidelake").mode("append").option("envelope", "debezium")
    writer = writer.option("time", "source.lsn")
    writer.option("rejects", str(tmp_path / "rejects")).save(f"{tmp_path}/lake/orders")
    assert told(orders.updates(0, 51).read_all()) == sorted(STORY, key=repr)
    assert (tmp_path / "rejects").is_dir() == (not parsed)


@pytest.mark.full
def test_the_format_does_not_know_the_times_of_transactions(spark: Any, orders: Any, tmp_path: Path) -> None:
    from tidelake.spark import register

    register(spark)
    writer = frame_of(spark, "schema_off", parsed=False).write.format("tidelake").mode("append")
    with pytest.raises(Exception, match=r"'postgresql' are those of their transactions.*time='source.lsn'"):
        writer.option("envelope", "debezium").save(f"{tmp_path}/lake/orders")
    assert orders.upper == Frontier.of(0)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("select 1 as x", "'op', 'before' and 'after'"),
        ("select 'c' as op, 1 as before, 2 as after", "'before' is int and no struct"),
        (
            "select 'c' as op, struct(1L as id) as before, struct(1L as id) as after",
            "column 'before': the DataFrame does not fit",
        ),
    ],
)
def test_a_frame_that_holds_no_change_events_is_refused(
    spark: Any, orders: Any, frame: str, reason: str
) -> None:
    with pytest.raises(InvalidUpdates, match=reason):
        write(orders, spark.sql(frame), "debezium")


def test_columns_are_checked_as_lines_are(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    kind = "op string, before struct<id:bigint>, after struct<id:bigint>, t bigint"
    cases: list[tuple[Any, str]] = [
        (("x", None, (1,), 1), "its op is none of"),
        (("t", None, None, 1), "truncate"),
        (("u", None, (1,), 1), "op 'u' without 'before'"),
        (("d", (1,), (1,), 1), "must not have a row in 'after'"),
        (("c", None, (None,), 1), "column 'id' of 'after': is null"),
        (("c", None, (1,), None), "its time is null"),
        (("c", None, (1,), -1), "its time is null or negative"),
    ]
    for i, (row, reason) in enumerate(cases):
        c = tidelake.open(tmp_path / "lake").create(f"c{i}", schema, key=["id"])
        good = ("c", None, (7,), 3)
        frame = spark.createDataFrame([good, row], kind).coalesce(1)
        with pytest.raises(InvalidUpdates, match=reason):
            write(c, frame, "debezium", time="t")
        write(c, frame, "debezium", time="t", rejects=str(tmp_path / f"rejects{i}"))
        assert c.snapshot(3).read_all().column("id").to_pylist() == [7]
        (kept,) = (tmp_path / f"rejects{i}").iterdir()
        assert reason in kept.read_text()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"old_rows": "looked up"}, "old_rows='looked up'"),
        ({"late": "drop"}, "late='drop'"),
        ({"time": "a..b"}, "time='a..b'"),
        ({"order_by": "source.lsn"}, "order_by='source.lsn' is for old_rows='stored'"),
        ({"encodings": "price"}, "encodings='price' must be COLUMN=ENCODING"),
        ({"encodings": "price=bits"}, "encoding 'bits' is unknown"),
    ],
)
def test_options_are_checked_when_the_envelope_is_made(options: Any, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        Debezium(**options)
    assert reason in str(caught.value)


def test_late_events_advance_to_the_upper_that_their_old_rows_were_looked_up_at(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    c = tidelake.open(tmp_path / "lake").create("c", schema, key=["id"])
    read = c.upper
    # Another writer is faster than the envelope.
    c.append(pa.table({"id": [1], "v": ["old"], "_time": [4]}))
    columns = event_schema(c.schema)
    event = {"id": 1, "v": "new", TIME: 3, GONE: False, BEST: bytes(48), NOTE: None}
    work = Debezium(old_rows="stored", late="advance").work(c, columns.names, read)
    answer = total(pa.Table.from_batches(work(iter([pa.RecordBatch.from_pylist([event], schema=columns)]))))
    assert (answer.counts.updates, answer.counts.late, answer.time_lower) == (2, 1, 5)
