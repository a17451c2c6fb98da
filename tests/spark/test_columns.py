"""Types there and back through Spark, and those that are refused."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types as t

import tidelake
from tidelake import spark as ts
from tidelake.data.ingest.convert import convert
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.spark.columns import check_frame, frame_arrow, frame_schema
from tidelake.spark.tasks import run_tasks

UTC = dt.UTC
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, None]),
    "int8": (pa.int8(), [-128, None]),
    "uint8": (pa.uint8(), [255, None]),
    "uint16": (pa.uint16(), [2**16 - 1, None]),
    "uint32": (pa.uint32(), [2**32 - 1, 0]),
    "uint64": (pa.uint64(), [2**64 - 1, None]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float16": (pa.float16(), [1.5, None]),
    "float32": (pa.float32(), [float("inf"), None]),
    "float64": (pa.float64(), [float("nan"), 5e-324]),
    "string": (pa.string(), ["", "Zürich \U0001f30a\x00"]),
    "large": (pa.large_string(), ["é", None]),
    "binary": (pa.binary(), [b"\x00\xff", None]),
    "fixed": (pa.binary(3), [b"abc", None]),
    "date32": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "date64": (pa.date64(), [dt.date(1969, 12, 31), None]),
    "seconds": (pa.timestamp("s", "Europe/Berlin"), [dt.datetime(1850, 7, 1, tzinfo=UTC), None]),
    "micros": (pa.timestamp("us"), [dt.datetime(1500, 2, 3, 4, 5, 6, 789), None]),  # noqa: DTZ001
    "duration": (pa.duration("ms"), [dt.timedelta(days=-3, milliseconds=1), None]),
    "decimal": (pa.decimal256(38, 10), [Decimal("-1.0000000001"), None]),
    "list": (pa.list_(pa.uint32()), [[1, None, 2**32 - 1], []]),
    "struct": (
        pa.struct([pa.field("a", pa.uint8(), nullable=False), ("b", pa.list_(pa.string()))]),
        [{"a": 1, "b": ["x", None]}, None],
    ),
    "dot.and`tick": (pa.int32(), [1, 2]),
}
SCHEMA = pa.schema([pa.field(n, kind, nullable=n != "dot.and`tick") for n, (kind, _) in VALUES.items()])


KINDS = {
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "string": t.StringType(),
    "void": t.NullType(),
}


def frame(**columns: str) -> t.StructType:
    return t.StructType([t.StructField(name, KINDS[kind]) for name, kind in columns.items()])


class _Batch:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __call__(self, _task: bytes) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(self.data) as stream:
            for batch in stream:
                yield convert(batch, frame_arrow(batch.schema))


class _Back:
    def __init__(self, schema: bytes) -> None:
        self.schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        for batch in batches:
            texts = [repr(row) for row in convert(batch.rename_columns(schema.names), schema).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["text"])


@pytest.mark.promise(
    "Every value survives a round trip through Spark, or its type is refused by name",
    rule="`spark/columns.py`",
    also=["::test_types_that_spark_lacks_are_refused_by_name"],
)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_every_value_survives_both_ways(spark: Any, zone: str, by_value: None) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(v, k) for k, v in VALUES.values()], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(batch)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        held = run_tasks(spark, [b""], _Batch(sink.getvalue().to_pybytes()), frame_schema(SCHEMA))
        check_frame(held.schema, SCHEMA)
        # mapInArrow takes a dot in a name for a path.
        plain = held.toDF(*(f"c{i}" for i in range(len(SCHEMA))))
        rows = plain.mapInArrow(_Back(SCHEMA.serialize().to_pybytes()), "text string").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [r.text for r in rows] == [repr(row) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("ns"),
        pa.duration("ns"),
        pa.time32("s"),
        pa.time64("us"),
        pa.decimal256(39, 0),
        pa.list_(pa.struct([("x", pa.timestamp("ns"))])),
    ],
)
def test_types_that_spark_lacks_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match=r"column 'c.*Spark cannot hold without loss"):
        frame_schema(pa.schema([("c", kind)]))


@pytest.mark.parametrize(
    ("given", "reasons"),
    [
        (frame(k="int", v="string"), []),
        (frame(v="string", k="smallint"), []),
        (frame(k="int"), ["column 'v' (string) is missing"]),
        (frame(k="bigint", v="string"), ["'k' is bigint and not int: cast it"]),
        (frame(k="string", v="int"), ["'k' is string and not int", "'v' is int"]),
        (frame(k="int", v="string", w="int"), ["'w' is not in the collection"]),
        (frame(k="int", v="void"), []),
        (t.StructType([*frame(k="int"), *frame(k="int", v="string")]), ["'k' appears twice"]),
    ],
)
def test_columns_of_a_frame_are_checked_by_name(given: t.StructType, reasons: list[str]) -> None:
    schema = pa.schema([("k", pa.int32()), ("v", pa.string())])
    if not reasons:
        return check_frame(given, schema)
    with pytest.raises(InvalidUpdates) as caught:
        check_frame(given, schema)
    for reason in reasons:
        assert reason in str(caught.value)
    return None


def test_a_value_that_does_not_fit_names_its_column() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([300], pa.int16())], names=["k"])
    with pytest.raises(InvalidUpdates, match="column 'k' does not fit uint8"):
        convert(batch, pa.schema([("k", pa.uint8())]))


def test_a_float_is_not_rounded() -> None:
    half = pa.list_(pa.struct([("x", pa.float16())]))
    single = pa.list_(pa.struct([("x", pa.float32())]))
    schema = pa.schema([("f", pa.float16()), ("n", half)])

    def given(f: list[float | None], n: float) -> pa.RecordBatch:
        nested = pa.array([[{"x": n}]] * len(f), single)
        return pa.RecordBatch.from_arrays([pa.array(f, pa.float32()), nested], names=["f", "n"])

    good = given([1.5, None, float("nan"), float("inf"), -0.0], 0.25)
    assert repr(convert(good, schema).to_pylist()) == repr(good.to_pylist())
    for bad in (0.1, 1e6, 1e-9):
        with pytest.raises(InvalidUpdates, match="column 'f' does not fit halffloat"):
            convert(given([1.0, bad], 0.25), schema)
        with pytest.raises(InvalidUpdates, match="column 'n' does not fit"):
            convert(given([1.0], bad), schema)


@pytest.mark.promise(
    "Columns whose names differ by case only are told apart in Spark, or an error names both and the setting",
    rule="`check_case` in `spark/columns.py`",
)
@pytest.mark.full
def test_columns_that_differ_by_case_are_told_apart_or_named(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", {"id": "int64", "A": "int64", "a": "int64"}, key=["id"])
        c.append(pa.table({"id": [1], "A": [10], "a": [20]}))
        new = spark.createDataFrame([(2, 30, 40)], "id bigint, A bigint, a bigint")
        calls = {
            "query": lambda: ts.sql(spark, "SELECT id FROM c WHERE a = 20", lake=lake),
            "insert": lambda: ts.sql(spark, "INSERT INTO c SELECT 3, 1, 1", lake=lake),
            "update": lambda: ts.sql(spark, "UPDATE c SET a = 21 WHERE id = 1", lake=lake),
            "append": lambda: ts.append(c, new),
            "upsert": lambda: ts.upsert(c, new),
            "stage": lambda: ts.stage(c, new.selectExpr("*", "50L AS _time")),
            "export": lambda: ts.export(spark, c, f"{tmp_path}/out"),
        }
        for call in calls.values():
            with pytest.raises(UsageError, match=r"columns 'A' and 'a' differ by case only.*caseSensitive"):
                call()
        assert ts.sql(spark, "SELECT id FROM c", lake=lake).collect()[0].id == 1
        spark.conf.set("spark.sql.caseSensitive", "true")
        try:
            for name, call in calls.items():
                if name != "stage":
                    call()
        finally:
            spark.conf.unset("spark.sql.caseSensitive")
        found = c.snapshot().to_arrow().select(["id", "A", "a"]).to_pylist()
        assert [tuple(row.values()) for row in found] == [(1, 10, 21), (2, 30, 40), (3, 1, 1)]
