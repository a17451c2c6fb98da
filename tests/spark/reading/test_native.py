"""Snapshots that Spark's own Parquet scan reads where nothing is to be merged: the same rows, or an error."""

import datetime as dt
import math
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inside

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.errors import LeaseExpired
from tidelake.shard.runs.plan import AsStored
from tidelake.spark import changes, snapshot, updates
from tidelake.spark.reading import frames
from tidelake.spark.reading.native import readable, scan
from tidelake.spark.tasks import task_bytes_max
from tidelake.store.layers import BlobLayer

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("by_workers")]

CONFIG = Config(part_target_bytes=4096, row_group_rows=64, inline_part_bytes=0, merge_budget_s=0.0)
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
PLAIN = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", tz="UTC")),
        ("small", pa.decimal128(5, 2)),
        ("large", pa.decimal128(38, 10)),
    ]
)
VALUES: list[tuple[Any, ...]] = [
    (False, -128, -(2**15), -(2**31), -math.inf, -0.0, "", b"", dt.date(1, 1, 1)),
    (
        True,
        127,
        2**15 - 1,
        2**31 - 1,
        math.inf,
        math.inf,
        "\x00\U0001f30a",
        b"\x00\xff",
        dt.date(9999, 12, 31),
    ),
    (None,) * 9,
    (True, 1, 2, 3, math.nan, math.nan, "z" * 300, b"z" * 300, dt.date(1582, 10, 4)),
    (False, 0, 0, 0, 1.5, 0.1, "a", b"a", dt.date(1969, 12, 31)),
]
TIMES: list[dt.datetime | None] = [
    dt.datetime(year, month, 4, 1, 2, 3, 999_999)  # noqa: DTZ001
    for year, month in ((1, 1), (9999, 12), (1582, 10))
]
TIMES.append(None)


@pytest.fixture
def by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves few rows to the workers too."""
    monkeypatch.setattr(frames, "_SMALL_ROWS", -1)


def made(folder: Path, schema: pa.Schema = SCHEMA, config: Config = CONFIG) -> tidelake.Collection:
    return tidelake.open(folder / "lake", config=config).create("c", schema, key=["k"])


def rows(keys: range, **more: Any) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": [f"value {k}" for k in keys], **more})


def plain_rows() -> pa.Table:
    """Rows of all plain types."""
    count = 60
    held = [[VALUES[k % 5][i] for k in range(count)] for i in range(9)]
    at = [TIMES[k % 4] for k in range(count)]
    small = [(Decimal("-999.99"), None, Decimal("0.00"))[k % 3] for k in range(count)]
    large = [(Decimal(10) ** 27, None, Decimal("-0.0000000001"))[k % 3] for k in range(count)]
    columns = [list(range(count)), *held, at, at, small, large]
    return pa.table([pa.array(v, f.type) for v, f in zip(columns, PLAIN, strict=True)], schema=PLAIN)


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def shape(frame: Any) -> tuple[bool, bool]:
    """Whether Spark scans files for it, and whether workers merge."""
    plan = plan_of(frame)
    return "FileScan parquet" in plan, "MapInArrow" in plan


def lines(frame: Any) -> list[str]:
    return sorted(map(str, frame.toArrow().to_pylist()))


def stored_files(c: tidelake.Collection) -> list[Path]:
    root = Path(inside.shard(c).spec.url.removeprefix("file://")) / "blobs"
    return [root / part.name for member in c.state().spine for part in member.batch.parts()]


@pytest.mark.promise(
    "Spark's own scan is used only where it gives the same values as the workers",
    rule="`spark/reading/native.py`",
    also=["::test_only_what_spark_reads_to_the_same_values_is_scanned"],
)
def test_all_plain_values_are_the_same_by_both_ways(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path, PLAIN)
    c.append(plain_rows())
    # What the session says of files is not asked.
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY")
    try:
        native, merged = snapshot(spark, c), snapshot(spark, c, native=False)
        assert (shape(native), shape(merged)) == ((True, False), (False, True))
        assert native.toArrow().schema.names == merged.toArrow().schema.names
        assert [f.dataType for f in native.schema] == [f.dataType for f in merged.schema]
        assert lines(native) == lines(merged)
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


@pytest.mark.promise(
    "Few rows that the driver reads for a DataFrame are those that workers read",
    rule="`spark/reading/frames.py` (`_here`)",
    also=[
        "::test_the_driver_reads_no_more_than_few_rows_of_plain_types_that_may_be_in_one_piece",
        "::test_few_rows_beside_those_that_spark_scans_are_not_taken_for_all",
    ],
)
def test_few_rows_are_read_by_the_driver_and_are_the_same(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = made(tmp_path, PLAIN, replace(CONFIG, inline_part_bytes=1 << 16))
    table = plain_rows()
    for diff, part in ((1, table), (2, table.slice(30)), (-1, table.slice(10, 30))):
        c.append(part.append_column("_diff", pa.array([diff] * len(part), pa.int64())))
    reads = {
        "snapshot": lambda: snapshot(spark, c),
        "old": lambda: snapshot(spark, c, 1, columns=["f64", "k"]),
        "condition": lambda: snapshot(spark, c, where="k > 20 AND s = 'a'"),
        "changes": lambda: changes(spark, c, 0, 2),
        "updates": lambda: updates(spark, c, 0, 3),
        "nothing": lambda: updates(spark, c, 3, 3),
    }
    by_workers = {name: (lines(frame := read()), frame.schema) for name, read in reads.items()}
    log = c.state().seqno
    monkeypatch.setattr(frames, "_SMALL_ROWS", 4096)
    for name, read in reads.items():
        frame = read()
        assert (lines(frame), frame.schema) == by_workers[name], name
        assert shape(frame) == (False, False), name
    assert c.state().seqno == log  # no hold is needed
    monkeypatch.setattr(frames, "_SMALL_ROWS", c.state().spine.totals.rows - 1)
    assert shape(snapshot(spark, c)) == (False, True)
    assert shape(snapshot(spark, c, native=False)) == (False, True)


def test_the_driver_reads_no_more_than_few_rows_of_plain_types_that_may_be_in_one_piece(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_SMALL_ROWS", 4096)
    by_driver, by_workers = (False, False), (False, True)
    c = made(tmp_path, SCHEMA, replace(CONFIG, inline_part_bytes=1 << 16))
    c.append(rows(range(5)))
    assert shape(snapshot(spark, c)) == by_driver
    # Its caller asks for the order, or the number of pieces, that tasks give.
    assert shape(snapshot(spark, c, native=False)) == by_workers
    assert shape(snapshot(spark, c, parallelism=2)) == by_workers
    with monkeypatch.context() as patched:
        patched.setattr(frames, "_SMALL_BYTES", c.state().spine.totals.size_bytes - 1)
        assert shape(snapshot(spark, c)) == by_workers
    nested = pa.schema([*SCHEMA, ("l", pa.list_(pa.int64()))])
    listed = made(tmp_path / "nested", nested, replace(CONFIG, inline_part_bytes=1 << 16))
    listed.append(rows(range(5), l=pa.array([[1], [], None, [None], [2, 3]], pa.list_(pa.int64()))))
    assert shape(snapshot(spark, listed)) == by_workers


def test_few_rows_beside_those_that_spark_scans_are_not_taken_for_all(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = made(tmp_path)
    c.append(rows(range(2000)))
    c.append(rows(range(1990, 2010)))
    monkeypatch.setattr(frames, "_SMALL_ROWS", 4096)
    frame = snapshot(spark, c)
    assert shape(frame)[0] and frame.count() == 2010
    assert lines(frame) == lines(snapshot(spark, c, native=False))


def test_what_overlaps_is_merged_and_the_rest_is_scanned(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows(range(2000)))
    c.append(rows(range(1900, 2100)))
    c.append(rows(range(5000, 5010), _diff=pa.array([2] * 10, pa.int64())))
    frame = snapshot(spark, c)
    assert shape(frame) == (True, True)
    assert lines(frame) == lines(snapshot(spark, c, native=False))
    assert frame.schema == snapshot(spark, c, where="k >= 0").schema
    assert {
        r._diff: r.n for r in frame.groupBy("_diff").count().withColumnRenamed("count", "n").collect()
    } == {
        1: 2000,
        2: 110,
    }


def test_columns_and_filters_reach_the_scan(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows(range(2000), _diff=pa.array([1 + k % 2 for k in range(2000)], pa.int64())))
    frame = snapshot(spark, c, columns=["v"])
    assert frame.columns == ["v", "_time", "_diff"] and shape(frame) == (True, False)
    assert frame.where("_diff = 2").count() == 1000
    found = snapshot(spark, c).where("k = 7")
    assert (
        "PushedFilters: [IsNotNull(k), EqualTo(k,7)]" in found._jdf.queryExecution().executedPlan().toString()
    )
    assert [tuple(r) for r in found.collect()] == [(7, "value 7", 0, 2)]
    assert shape(snapshot(spark, c, where="k = 7")) == (False, True)
    assert [tuple(r) for r in snapshot(spark, c, columns=[]).distinct().orderBy("_diff").collect()] == [
        (0, 1),
        (0, 2),
    ]


@pytest.mark.promise(
    "Filters on floats find NaN and both zeros in Spark's own scan: they do not reach the files",
    rule="`spark/reading/native.py`",
)
def test_filters_find_nan_and_both_zeros_in_what_is_scanned(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field("k"), ("d", pa.float64()), ("f", pa.float32())])
    c = made(tmp_path, schema)
    floats = [math.nan if k == 500 else float(k % 2) for k in range(1000)]
    c.append(pa.table({"k": range(1000), "d": floats, "f": pa.array(floats, pa.float32())}))
    frame = snapshot(spark, c)
    assert shape(frame) == (True, False)
    for name in ("d", "f"):
        found = [
            frame.where(f"{name} {condition}").count()
            for condition in (
                "> 5",
                "= double('NaN')",
                "in (double('NaN'), 7)",
                "= -0.0D",
                "<=> -0.0D",
                "<= 1",
            )
        ]
        assert found == [1, 1, 1, 499, 499, 999]


def test_only_what_spark_reads_to_the_same_values_is_scanned() -> None:
    assert readable(PLAIN)
    odd = [pa.uint8(), pa.uint64(), pa.float16(), pa.date64(), pa.binary(4), pa.duration("us")]
    odd += [pa.timestamp("ms"), pa.timestamp("s"), pa.list_(pa.int64()), pa.struct([("a", pa.int8())])]
    for kind in [*odd, pa.decimal256(40, 2), pa.decimal32(5, 2)]:
        assert not readable(pa.schema([("k", pa.int64()), ("v", kind)])), kind
    assert not readable(pa.schema([("k", pa.int64()), ("K", pa.int64())]))
    assert not readable(pa.schema([("a.b", pa.int64())]))


def test_names_that_spark_confuses_and_odd_types_are_read_by_workers(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("K", pa.uint64())])
    c = made(tmp_path, schema)
    c.append(pa.table([pa.array([1, 2]), pa.array([2**64 - 1, None], pa.uint64())], schema=schema))
    frame = snapshot(spark, c)
    assert shape(frame) == (False, True)
    assert sorted(map(tuple, frame.collect())) == [(1, Decimal(2**64 - 1), 0, 1), (2, None, 0, 1)]


def test_a_lake_that_the_jvm_cannot_read_is_read_by_workers_and_the_plan_says_so(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = made(tmp_path)
    c.append(rows(range(2000)))
    assert shape(snapshot(spark, c)) == (True, False)
    # As that of a lake in Azure without a storage account.
    monkeypatch.setattr(BlobLayer, "url", "az://container/lake/blobs")
    frame = snapshot(spark, c)
    assert shape(frame) == (False, True)
    assert "no file system of Hadoop reads az://" in plan_of(frame)
    assert frame.count() == 2000


@pytest.mark.parametrize("folder", ["a b%20c", "x=1", "ö,#?x", "b[a]c"])
def test_odd_names_of_folders_are_found(spark: Any, tmp_path: Path, folder: str) -> None:
    c = made(tmp_path / folder)
    c.append(rows(range(100)))
    frame = snapshot(spark, c)
    assert frame.count() == 100
    assert frame.columns == ["k", "v", "_time", "_diff"]


def test_more_files_than_spark_lists_without_a_job(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path, config=replace(CONFIG, part_target_bytes=1024, row_group_rows=8))
    c.append(rows(range(1200)))
    assert len(stored_files(c)) > 32
    before = spark.sparkContext.statusTracker().getJobIdsForGroup()
    frame = snapshot(spark, c)
    assert spark.sparkContext.statusTracker().getJobIdsForGroup() == before
    assert frame.count() == 1200


@pytest.mark.promise(
    "A part that is gone or damaged fails Spark's own scan too, whatever the session's settings",
    rule="sizes and seals when it is planned, page checksums when it is read",
    also=[
        "::test_a_damaged_page_is_an_error_and_not_other_rows",
        "shard/runs/test_stored.py::test_a_damaged_footer_is_found_when_it_is_planned",
    ],
)
def test_a_part_that_is_gone_is_an_error_and_not_fewer_rows(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows(range(2000)))
    files = stored_files(c)
    assert len(files) > 1
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        frame = snapshot(spark, c)
        files[-1].unlink()
        with pytest.raises(Exception, match=re.escape(files[-1].name)):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    parts = tuple(part for member in c.state().spine for part in member.batch.parts())
    stored = AsStored(parts, tuple(file.as_uri() for file in files), c.update_schema, 0)
    with pytest.raises(LeaseExpired, match=files[-1].stem):
        scan(spark, stored, c.update_schema, ("_time",))


def test_a_damaged_page_is_an_error_and_not_other_rows(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path, config=replace(CONFIG, part_target_bytes=1 << 20, row_group_rows=4096))
    c.append(rows(range(4000)))
    (file,) = stored_files(c)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        frame, whole = snapshot(spark, c), file.read_bytes()
        column = pq.ParquetFile(file).metadata.row_group(0).column(1)
        start, size_bytes = column.data_page_offset, column.total_compressed_size
        # Behind the head of the page, which has no checksum.
        for at in (start + 200, start + size_bytes // 2, start + size_bytes - 1):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with pytest.raises(Exception, match=r"(?i)crc|corrupt"):
                frame.collect()
        file.write_bytes(whole)
        assert frame.count() == 4000
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


@pytest.mark.promise(
    "A task reads about as many bytes as Spark's own would", rule="`spark.sql.files.maxPartitionBytes`"
)
def test_tasks_are_no_larger_than_spark_wants_them(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path, config=replace(CONFIG, row_group_rows=256, part_target_bytes=1 << 16))
    for _ in range(3):
        c.append(rows(range(40_000), _diff=pa.array([1] * 40_000, pa.int64())))
    size = sum(f.stat().st_size for f in stored_files(c))
    assert task_bytes_max(spark) == 128 * 1024 * 1024
    assert changes(spark, c, 0, 2).rdd.getNumPartitions() <= 2
    for given, bytes_ in (("64k", 1 << 16), (str(1 << 17), 1 << 17), ("65536b", 1 << 16), ("1MB", 1 << 20)):
        spark.conf.set("spark.sql.files.maxPartitionBytes", given)
        try:
            assert task_bytes_max(spark) == bytes_
            wanted = max(2, size // bytes_)
            found = snapshot(spark, c, native=False).rdd.getNumPartitions()
            assert wanted <= found <= wanted + 2
            assert snapshot(spark, c, parallelism=1, native=False).rdd.getNumPartitions() == 1
        finally:
            spark.conf.unset("spark.sql.files.maxPartitionBytes")
