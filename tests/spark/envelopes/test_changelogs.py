"""Change feeds of other tools and tables as DataFrames and files become the history that they tell."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from small_frames import rows

import tidelake
from tidelake.cdc.core.outcome import Parsed
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.spark import ingest, write
from tidelake.spark.envelopes.hudi import _COLUMNS, Hudi, _texts
from tidelake.spark.envelopes.named import named
from tidelake.testing import tables

pytestmark = pytest.mark.usefixtures("both_ways")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def make(tmp_path: Path, time: str = "counter") -> tidelake.Collection:
    return tidelake.open(tmp_path / "lake").create("c", SCHEMA, key=["id"], time=time)


def history(c: tidelake.Collection) -> Counter[Any]:
    """(row, time) -> diff."""
    return tables.by_time(c.updates(0, c.upper).read_all(), c.domain)


def state(c: tidelake.Collection) -> list[tuple[Any, ...]]:
    found = c.snapshot(c.upper.elements[0] - 1).read_all().to_pylist()
    return sorted((row["id"], row["v"]) for row in found for _ in range(row["_diff"]))


AT = datetime(2026, 1, 31, 12, 0, 0, 500, tzinfo=UTC)
FEED = [
    *((1, "a", "insert", 3, AT), (2, "Zürich", "insert", 3, AT)),
    *((1, "a", "update_preimage", 4, AT), (1, None, "update_postimage", 4, AT)),
    (2, "Zürich", "delete", 6, AT + timedelta(seconds=1)),
]
FEED_SCHEMA = "id bigint, v string, _change_type string, _commit_version bigint, _commit_timestamp timestamp"
TOLD = {((1, "a"), 3): 1, ((2, "Zürich"), 3): 1, ((1, "a"), 4): -1, ((1, None), 4): 1, ((2, "Zürich"), 6): -1}


@pytest.mark.promise(
    "Changelogs of Delta, Paimon and Hudi, and rows of files of DMS, become the updates that they "
    "tell; an unknown word is refused",
    rule="`spark/envelopes/opcolumn.py`, `spark/envelopes/hudi.py`",
    also=["spark/envelopes/test_changelogs.py"],
)
def test_a_feed_of_delta_is_told_by_its_versions(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    write(c, rows(spark, *FEED[:4], schema=FEED_SCHEMA), "delta")
    done = write(c, rows(spark, FEED[4], schema=FEED_SCHEMA), "delta")
    assert history(c) == TOLD
    assert c.upper.elements == (7,) and done.updates == 1
    with pytest.raises(InvalidUpdates, match=r"needs a column '_change_type' of type string.*there is none"):
        write(c, rows(spark, (1, "a")), "delta")
    word = rows(spark, (1, "a", "upsert", 9, AT), schema=FEED_SCHEMA)
    with pytest.raises(InvalidUpdates, match=r"column '_change_type' holds 'upsert': known are insert,"):
        write(c, word, "delta")
    assert c.upper.elements == (7,)


@pytest.mark.full
def test_a_feed_of_delta_may_be_told_by_the_clock_and_through_the_format(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, "us")
    frame = rows(spark, *FEED, schema=FEED_SCHEMA)
    frame.write.format("tidelake").mode("append").option("envelope", "delta").save(f"{tmp_path}/lake/c")
    at = int(AT.timestamp()) * 1_000_000 + 500
    late = at + 1_000_000
    assert history(c) == {((1, None), at): 1, ((2, "Zürich"), at): 1, ((2, "Zürich"), late): -1}


CHANGES = "id bigint, v string, rowkind string, _SEQUENCE_NUMBER bigint"


@pytest.mark.full
def test_a_changelog_of_paimon_is_told(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    told = [(1, "a", "+I", 1), (2, "b", "+I", 2), (1, "a", "-U", 3), (1, "x", "+U", 4), (2, "b", "-D", 5)]
    write(c, rows(spark, *told[:2], schema=CHANGES), "paimon")
    write(c, rows(spark, *told[2:], schema=CHANGES), "paimon")
    assert history(c) == {
        **{((1, "a"), 0): 1, ((2, "b"), 0): 1, ((1, "a"), 1): -1},
        **{((1, "x"), 1): 1, ((2, "b"), 1): -1},
    }
    with pytest.raises(InvalidUpdates, match="column 'rowkind' holds 'I'"):
        write(c, rows(spark, (1, "a", "I", 1), schema=CHANGES), "paimon")
    with pytest.raises(InvalidUpdates, match="column 'rowkind' holds None"):
        write(c, rows(spark, (1, "a", None, 1), schema=CHANGES), "paimon")


@pytest.mark.full
def test_a_changelog_of_paimon_without_old_rows_is_looked_up(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    write(c, rows(spark, (1, "a", "+I", 1), (2, "b", "+I", 2), schema=CHANGES), "paimon")
    more = [(1, "x", "+U", 3), (1, "a", "-U", 3), (1, "y", "+U", 4), (2, None, "-D", 5), (3, "c", "+I", 6)]
    frame = rows(spark, *more, schema=CHANGES)
    with pytest.raises(InvalidUpdates):
        write(c, frame, "paimon", old_rows="stored")
    write(c, frame, "paimon", old_rows="stored", order_by="_SEQUENCE_NUMBER")
    assert state(c) == [(1, "y"), (3, "c")]
    again = rows(spark, (3, None, "-D", 7), (4, "d", "+I", 8), schema=CHANGES)
    options = {"envelope": "paimon", "oldRows": "stored", "orderBy": "_SEQUENCE_NUMBER"}
    again.write.format("tidelake").mode("append").options(**options).save(f"{tmp_path}/lake/c")
    assert state(c) == [(1, "y"), (4, "d")]
    with pytest.raises(UsageError, match="order_by='_SEQUENCE_NUMBER' is for old_rows='stored'"):
        write(c, frame, "paimon", order_by="_SEQUENCE_NUMBER")


CDC = "op string, ts_ms string, before string, after string"


def hudi(op: str, time: str, before: Any = None, after: Any = None) -> tuple[Any, ...]:
    return op, time, *(None if row is None else json.dumps(row) for row in (before, after))


A, B = {"id": 1, "v": "Zürich", "_hoodie_commit_time": "x"}, {"id": 1, "v": None}
FIRST, SECOND = 20260131120000123, 20260131120001999


@pytest.mark.full
@pytest.mark.parametrize("old_rows", ["events", "stored"])
def test_the_cdc_of_hudi_is_told(spark: Any, tmp_path: Path, old_rows: str) -> None:
    c = make(tmp_path)
    told = [hudi("i", str(FIRST), None, A), hudi("u", "20260131120001", A, B)]
    write(c, rows(spark, *told, schema=CDC), "hudi", old_rows=old_rows)
    write(c, rows(spark, hudi("d", str(SECOND + 1), B), schema=CDC), "hudi", old_rows=old_rows)
    assert history(c) == {
        **{((1, "Zürich"), FIRST): 1, ((1, "Zürich"), SECOND): -1},
        **{((1, None), SECOND): 1, ((1, None), SECOND + 1): -1},
    }


@pytest.mark.full
def test_the_cdc_of_hudi_is_checked(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    for row, reason in (
        (hudi("x", str(FIRST), None, A), "op 'x' is unknown: known are i, u and d; "),
        (hudi('"\\', str(FIRST), None, A), "is unknown"),
        (hudi("i", "2026-01-31", None, A), "'ts_ms' is no instant of Hudi, such as"),
        (hudi("u", str(FIRST), None, A), "op 'u' without 'before'"),
        (("i", str(FIRST), None, "{"), "not JSON"),
    ):
        with pytest.raises(InvalidUpdates, match=reason):
            write(c, rows(spark, row, schema=CDC), "hudi")
    with pytest.raises(InvalidUpdates, match="'ts_ms' is bigint"):
        write(c, rows(spark, ("i", 1, "", ""), schema=CDC.replace("ts_ms string", "ts_ms bigint")), "hudi")
    with pytest.raises(UsageError, match="instants of Hudi are texts without a zone"):
        write(make(tmp_path / "clock", "ms"), rows(spark, hudi("i", str(FIRST), None, A), schema=CDC), "hudi")


def of_hudi(c: tidelake.Collection, *told: tuple[Any, ...], **options: Any) -> Parsed:
    """What the parser of the envelope makes of rows."""
    batch = pa.record_batch(
        [pa.array(column, pa.string()) for column in zip(*told, strict=True)], list(_COLUMNS)
    )
    return Hudi(**options).parser(c).parse(_texts(batch), lambda row: f"row={row}")


@pytest.mark.parametrize("old_rows", ["events", "stored"])
@pytest.mark.parametrize("op", ["c", "r", "h", "m", "t", "I", "x", "", None])
def test_an_op_that_hudi_does_not_have_is_refused_though_debezium_has_it(
    tmp_path: Path, op: Any, old_rows: str
) -> None:
    c = make(tmp_path)
    shown = op or ""
    for sides in ((None, A), (A, None), (None, None)):
        with pytest.raises(InvalidUpdates) as caught:
            of_hudi(c, hudi(op, str(FIRST), *sides), old_rows=old_rows)
        told = str(caught.value)
        assert f"op {shown!r} is unknown: known are i, u and d; row=0" in told
        assert f'line={{"op":"{shown}",' in told
    good, bad = hudi("i", str(FIRST), None, A), hudi(op, str(FIRST), None, A)
    parsed = of_hudi(c, good, bad, old_rows=old_rows, rejects="aside")
    assert (parsed.events, parsed.heartbeats) == (1, 0)
    assert [reject.line for reject in parsed.rejects] == [1]


def test_an_error_about_a_row_of_hudi_has_hudis_words(tmp_path: Path) -> None:
    c = make(tmp_path)
    whole = "set hoodie.table.cdc.supplemental.logging.mode=DATA_BEFORE_AFTER at the table"
    for row, options, reason in (
        (hudi("i", str(FIRST)), {}, "op 'i' without 'after'"),
        (hudi("i", str(FIRST), A, B), {}, "op 'i' must not have a row in 'before'"),
        (hudi("u", str(FIRST), None, A), {}, f"op 'u' without 'before': {whole}"),
        (hudi("d", str(FIRST), {"id": 1}), {}, f"column 'v' of 'before': is missing; {whole}"),
        (hudi("d", str(FIRST)), {"old_rows": "stored"}, "op 'd' without 'before'; row=0"),
        (hudi("i", "2026", None, A), {}, "'ts_ms' is no instant of Hudi, such as 20260131120000123; row=0"),
        (("i", str(FIRST), None, '{},"op":"d"'), {}, "not a row of Hudi's CDC"),
    ):
        with pytest.raises(InvalidUpdates) as caught:
            of_hudi(c, row, **options)
        told = str(caught.value)
        assert reason in told and f'line={{"op":"{row[0]}",' in told
        assert "REPLICA" not in told and "set time" not in told


@pytest.mark.full
def test_the_cdc_of_hudi_goes_through_the_format(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    frame = rows(spark, hudi("i", str(FIRST), None, A), schema=CDC)
    frame.write.format("tidelake").mode("append").option("envelope", "hudi").save(f"{tmp_path}/lake/c")
    assert history(c) == {((1, "Zürich"), FIRST): 1}


def message(operation: str, number: int, data: Any, **more: Any) -> str:
    told = {"operation": operation, "record-type": "data", "schema-name": "shop", "table-name": "c"}
    return json.dumps({"metadata": told | {"transaction-id": number}, "data": data, **more})


@pytest.mark.full
def test_messages_of_dms_look_old_rows_up(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    told = [
        message("load", 0, {"id": 1, "v": "a"}),
        message("insert", 5, {"id": 2, "v": "b"}),
        message("update", 6, {"id": 2, "v": "c"}),
        message("update", 7, {"id": 3, "v": "c"}, **{"before-image": {"id": 2}}),
        message("delete", 8, {"id": 1}),
    ]
    write(
        c,
        rows(spark, *((text,) for text in told), schema="value string"),
        "dms",
        time="metadata.transaction-id",
    )
    assert history(c) == {
        **{((1, "a"), 0): 1, ((2, "b"), 5): 1, ((2, "b"), 6): -1, ((2, "c"), 6): 1},
        **{((2, "c"), 7): -1, ((3, "c"), 7): 1, ((1, "a"), 8): -1},
    }


OPS = "Op string, id bigint, v string, at timestamp, change_seq string"


@pytest.mark.full
def test_rows_of_dms_files_are_new_rows_of_their_keys(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, "us")
    told = [("I", 1, "a", AT, "1"), ("I", 2, "b", AT, "2"), ("U", 1, None, AT + timedelta(seconds=1), "3")]
    write(c, rows(spark, *told, schema=OPS), "dms", time="at", order_by="change_seq")
    gone = [("U", 2, "c", AT + timedelta(seconds=2), "4"), ("D", 2, "c", AT + timedelta(seconds=2), "5")]
    with pytest.raises(InvalidUpdates):
        write(c, rows(spark, *gone, schema=OPS).drop("change_seq"), "dms", time="at")
    write(c, rows(spark, *gone, schema=OPS), "dms", time="at", order_by="change_seq")
    assert state(c) == [(1, None)]
    with pytest.raises(InvalidUpdates, match="column 'Op' holds 'X': known are I, U, D"):
        write(c, rows(spark, ("X", 1, "a", AT, "9"), schema=OPS).drop("at", "change_seq"), "dms", time="now")
    with pytest.raises(UsageError, match="files of AWS DMS have no old rows"):
        write(c, rows(spark, *gone, schema=OPS), "dms", old_rows="events")
    with pytest.raises(InvalidUpdates, match="for a full load without 'Op' set IncludeOpForFullLoad"):
        write(c, rows(spark, (1, "a")), "dms", time="now")


def run(spark: Any, c: tidelake.Collection, tmp_path: Path, **how: Any) -> Any:
    return ingest(spark, c, tmp_path / "in", tmp_path / "checkpoint", **how)


@pytest.mark.full
def test_files_of_dms_are_taken(spark: Any, tmp_path: Path) -> None:
    # Names that the ingest itself uses for the columns of lines.
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), ("file", pa.string())]
    )
    c = tidelake.open(tmp_path / "lake").create("c", schema, key=["id"], time="us")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.csv").write_text(
        "Op,id,value,file,at\nI,1,a,x,2026-01-31 12:00:00.5\nI,2,b,,2026-01-31 12:00:01\n"
    )
    run(spark, c, tmp_path, envelope="dms", format="csv", time="at")
    at = c.update_schema.names
    assert at[0] == "id" and c.upper.elements == (int(AT.timestamp()) * 1_000_000 + 1_000_001,)
    (tmp_path / "in/1.csv").unlink()
    table = pa.table({"Op": ["D", "U"], "id": [1, 2], "value": [None, "c"], "file": [None, "y"]})
    pq.write_table(table, tmp_path / "in/2.parquet")
    more = {"envelope": "dms", "format": "parquet", "writer": "other", "time": "now"}
    ingest(spark, c, tmp_path / "in", tmp_path / "other", **more)
    found = c.snapshot(c.upper.elements[0] - 1).read_all().to_pylist()
    assert [(row["id"], row["value"], row["file"]) for row in found] == [(2, "c", "y")]
    (tmp_path / "in/3.parquet").write_bytes((tmp_path / "in/2.parquet").read_bytes())
    report = ingest(spark, c, tmp_path / "in", tmp_path / "other", **more)
    assert (report.batches, report.files) == (1, 1)


@pytest.mark.full
@pytest.mark.parametrize("old_rows", ["events", "stored"])
def test_files_of_maxwell_are_taken_and_bad_lines_kept(spark: Any, tmp_path: Path, old_rows: str) -> None:
    c = make(tmp_path)
    (tmp_path / "in").mkdir()

    def line(kind: str, number: int, data: Any, **more: Any) -> str:
        told = {"database": "shop", "table": "c", "type": kind, "ts": 1, "position": f"b.000001:{number}"}
        return json.dumps(told | {"data": data} | more) + "\n"

    (tmp_path / "in/1.json").write_text(
        line("insert", 5, {"id": 1, "v": "a"})
        + line("merge", 6, {})
        + line("update", 7, {"id": 1, "v": None}, old={"v": "a"})
        + line("update", 8, {"id": 2, "v": None}, old={"id": 1})
        + line("insert", 9, {"id": 9, "v": "other"}, table="orders")
    )
    options = {
        "envelope": "maxwell",
        "table": "shop.c",
        "old_rows": old_rows,
        "rejects": str(tmp_path / "aside"),
    }
    report = run(spark, c, tmp_path, **options)
    base = 1 << 32
    assert history(c) == {
        **{((1, "a"), base + 5): 1, ((1, "a"), base + 7): -1, ((1, None), base + 7): 1},
        **{((1, None), base + 8): -1, ((2, None), base + 8): 1},
    }
    assert (report.events, report.heartbeats, report.rejects) == (3, 1, 1)
    (kept,) = [
        json.loads(text) for file in (tmp_path / "aside").iterdir() for text in file.read_text().splitlines()
    ]
    assert (kept["number"], json.loads(kept["line"])["type"]) == (2, "merge")
    (tmp_path / "in/2.json").write_text(line("insert", 8, {"id": 3, "v": "late"}))
    with pytest.raises(InvalidUpdates, match="is late"):
        run(spark, c, tmp_path, **options)


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "envelope"),
    [
        ({"type": "insert", "ts": 1, "data": {"id": 1, "v": "a"}}, "maxwell"),
        ({"type": "INSERT", "isDdl": False, "data": []}, "canal"),
        ({"metadata": {}, "data": {}}, "dms"),
    ],
)
def test_messages_are_not_taken_for_rows(spark: Any, tmp_path: Path, line: Any, envelope: str) -> None:
    c = make(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text(json.dumps(line))
    with pytest.raises(InvalidUpdates, match=f"is a change event: give the envelope '{envelope}'"):
        run(spark, c, tmp_path)


@pytest.mark.full
def test_messages_of_maxwell_go_through_the_format(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    told = {"database": "shop", "type": "insert", "position": "bin.000001:7"}
    texts = [json.dumps({**told, "table": name, "data": {"id": 1, "v": name}}) for name in ("c", "d")]
    frame = rows(spark, *((text,) for text in texts), schema="value string")
    options = {"envelope": "maxwell", "table": "c"}
    frame.write.format("tidelake").mode("append").options(**options).save(f"{tmp_path}/lake/c")
    assert history(c) == {((1, "c"), (1 << 32) + 7): 1}


def test_messages_of_tools_are_texts(tmp_path: Path) -> None:
    from pyspark.sql.types import StructType

    c = tidelake.open(tmp_path / "lake").create("c", pa.schema([("id", pa.int64())]), key=["id"], time="ms")
    with pytest.raises(InvalidUpdates, match="messages of Canal are a column 'value' of JSON texts"):
        named("canal").check(StructType([]), c)
    for option in ("time", "idle"):
        with pytest.raises(UsageError, match=f"'hudi' takes no {option}: it takes late, old_rows, order_by"):
            named("hudi", {option: "1m"})
