"""Few rows come to the driver, whole; rows that are more than they seem stay with the tasks."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from feed import Feed
from pyspark.sql.classic.dataframe import DataFrame

import tidelake
from tidelake.errors import UsageError
from tidelake.feeds.tablelines import FewLines
from tidelake.spark import append, sink, tables_sink, upsert
from tidelake.spark.envelopes.updates import Updates
from tidelake.spark.envelopes.upsert import Upsert
from tidelake.spark.tasks import estimated_bytes, one_thread
from tidelake.spark.versions import from_arrow
from tidelake.spark.writing import running
from tidelake.spark.writing.running import BYTES_MAX, rows_of, taken
from tidelake.spark.writing.tablelines import SparkLines, lines_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def c(tmp_path: Path) -> tidelake.Collection:
    return tidelake.open(tmp_path / "lake").create("c", SCHEMA, key=["id"])


@pytest.fixture
def most(spark: Any) -> Iterator[Any]:
    """Sets how large a frame the driver takes."""
    yield lambda text: spark.conf.set(BYTES_MAX, text)
    spark.conf.unset(BYTES_MAX)


def stored(spark: Any, path: Path, table: pa.Table, **options: Any) -> Any:
    pq.write_table(table, path, **options)
    return spark.read.parquet(str(path))


def contents(c: tidelake.Collection) -> Counter[Any]:
    table = c.snapshot().read_all()
    return Counter(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


def few(count: int) -> pa.Table:
    return pa.table([pa.array(range(count)), pa.array([str(i) for i in range(count)])], schema=SCHEMA)


def test_rows_that_spark_takes_for_few_come_to_the_driver(
    spark: Any, tmp_path: Path, c: tidelake.Collection, most: Any
) -> None:
    frame = stored(spark, tmp_path / "few.parquet", few(100))
    assert rows_of(frame, Updates(), c).few is not None
    for envelope, text in ((Updates(), "100b"), (Updates(), "0"), (Upsert(), "0")):
        most(text)
        assert rows_of(frame, envelope, c).few is None
    for text in ("nonsense", "-1", "1.5m"):
        most(text)
        with pytest.raises(UsageError, match=f"driverBytesMax='{text}' is no size"):
            append(c, frame)
    # Of what was made of Python's values Spark knows no size.
    most("1g")
    assert rows_of(spark.createDataFrame([(1, "a")], "id bigint, v string"), Updates(), c).few is None


def test_a_micro_batch_of_files_is_as_large_as_they_are(
    spark: Any, tmp_path: Path, c: tidelake.Collection
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(few(100), tmp_path / "in" / "0.parquet")
    size = (tmp_path / "in" / "0.parquet").stat().st_size
    seen: list[Any] = []

    def look(frame: Any, _: int) -> None:
        seen.append((estimated_bytes(frame), rows_of(frame, Updates(), c).few))

    stream = spark.readStream.schema("id bigint, v string").parquet(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    ((estimate, rows),) = seen
    assert size // 4 <= estimate <= 4 * size
    assert [batch.num_rows for batch in rows] == [100]


def test_a_micro_batch_of_unknown_size_is_taken_to_be_as_large_as_the_one_before(
    spark: Any, c: tidelake.Collection, most: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []
    original = running.taken

    def look(frame: Any, bytes_max: int) -> Any:
        found = original(frame, bytes_max)
        tried.append(found is not None)
        return found

    monkeypatch.setattr(running, "taken", look)
    most("1k")
    write, expected = sink(c, query="q"), Counter[Any]()
    # By tasks, by the driver, in vain by the driver, by tasks, by tasks, by the driver.
    for number, lengths in enumerate([[10], [10, 20], [9000], [9000], [10], [10]]):
        rows = [(10 * number + i, "x" * n) for i, n in enumerate(lengths)]
        frame = spark.createDataFrame(rows, "id bigint, v string")
        assert estimated_bytes(frame) is None
        write(frame, number)
        expected.update(rows)
        assert contents(c) == expected
    assert tried == [True, False, True]


def test_the_first_micro_batch_of_many_tables_tells_how_large_the_next_one_is(
    spark: Any, tmp_path: Path
) -> None:
    told = tables_sink(tidelake.open(tmp_path / "lake"), "shop", keys=["id"])
    events = [line for _, lines in Feed(3, postgres=True).transactions(9).lines for line in lines]
    for number, size in enumerate((None, sum(map(len, events)))):
        frame = spark.createDataFrame([(line,) for line in events], "value string")
        assert estimated_bytes(frame) is None
        taken: list[Any] = []

        def made(by_tasks: bool, frame: Any = frame, taken: list[Any] = taken) -> Any:
            taken.append(lines_of(frame, told._taken_bytes, by_tasks=by_tasks))
            return taken[-1]

        assert (told._taken_bytes is None) == (size is None) or size <= told._taken_bytes <= 2 * size
        told.write(made, "query", number)
        assert isinstance(taken[0], SparkLines if size is None else FewLines)


def test_no_python_worker_gets_rows_that_the_driver_has(spark: Any) -> None:
    """It would be one that has not imported Tidelake, and prints a traceback when it is idle."""
    rows = [{"value": "aü", "offset": 1}, {"value": None, "offset": None}]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([("value", pa.string()), ("offset", pa.int64())]))
    frame = from_arrow(spark, batch, spark.createDataFrame([], "value binary, offset bigint").schema)
    assert Counter(map(tuple, frame.collect())) == Counter([("aü".encode(), 1), (None, None)])
    assert "PythonRDD" not in frame._jdf.queryExecution().toRdd().toDebugString()


def test_tasks_share_what_has_much_to_look_up(
    spark: Any, tmp_path: Path, c: tidelake.Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = stored(spark, tmp_path / "few.parquet", few(10))
    c.append(few(100))
    monkeypatch.setattr(running, "LOOKED_UP_BYTES", 1)
    assert rows_of(frame, Upsert(), c).few is None
    assert rows_of(frame, Updates(), c).few is not None
    upsert(c, frame.selectExpr("id", "'new' AS v"))
    assert contents(c) == Counter([(i, "new" if i < 10 else str(i)) for i in range(100)])


def test_rows_that_only_seemed_few_are_written_by_the_tasks(
    spark: Any, tmp_path: Path, c: tidelake.Collection, most: Any
) -> None:
    count, text = 4000, "x" * 1000
    table = pa.table([pa.array(range(count)), pa.array([text] * count)], schema=SCHEMA)
    # Four megabytes, of which the file has a few thousand bytes.
    frame = stored(spark, tmp_path / "same.parquet", table, compression="zstd")
    most("100k")
    assert rows_of(frame, Updates(), c).few is None
    append(c, frame)
    assert contents(c) == Counter([(i, text) for i in range(count)])
    upsert(c, frame.selectExpr("id", "'y' AS v"))
    assert contents(c) == Counter([(i, "y") for i in range(count)])


def sizes_of(spark: Any, lengths: list[int], partitions: int = 1) -> Any:
    rows = spark.createDataFrame([(i, "x" * n) for i, n in enumerate(lengths)], "id bigint, v string")
    return rows.repartitionByRange(partitions, "id")


@pytest.mark.promise(
    "The driver processes a small frame completely or not at all, with the same outcome as the tasks",
    rule="`taken` in `spark/writing/running.py`",
    also=["::test_rows_that_only_seemed_few_are_written_by_the_tasks", "spark/conftest.py"],
)
@pytest.mark.parametrize(
    ("lengths", "bytes_max", "fit"),
    [
        ([100] * 50, 10_000, True),
        ([100] * 50, 5_000, False),
        ([10] * 9 + [9_000], 10_000, False),
        ([0] * 100, 100 * 48, True),
        ([0] * 101, 100 * 48, False),
        ([], 1, True),
    ],
)
def test_what_comes_is_bounded_by_its_own_size(
    spark: Any, lengths: list[int], bytes_max: int, fit: bool
) -> None:
    found = taken(sizes_of(spark, lengths), bytes_max)
    assert (found is not None) == fit
    if found is not None:
        rows = [list(batch.column(1).to_pylist()) for batch in found]
        assert rows == ([["x" * n for n in lengths]] if lengths else rows)
        assert sum(map(len, rows)) == len(lengths)


def test_the_bound_is_of_each_partition(spark: Any) -> None:
    assert taken(sizes_of(spark, [100] * 50), 7_000) is None
    found = taken(sizes_of(spark, [100] * 50, 10), 7_000)
    assert found is not None
    assert [batch.num_rows for batch in found] == [50]


def test_odd_names_and_nested_values_come_as_they_are(spark: Any) -> None:
    frame = spark.sql(
        "SELECT * FROM VALUES (1, named_struct('x', 1, 'y', array('a')), map('k', 1.5D), X'00ff', NULL), "
        "(2, NULL, NULL, NULL, NULL) AS t(`a.b`, s, m, b, n)"
    )
    # A struct whose field is never null, where it is null itself.
    strict = frame.selectExpr("`a.b`", "if(s IS NULL, NULL, named_struct('z', 1)) AS s", "m", "b", "n")
    for given in (frame, strict):
        (batch,) = taken(given, 1 << 20) or []
        rows = [tuple(row.values()) for row in batch.to_pylist()]
        assert [row[0] for row in rows] == [1, 2]
        assert rows[1] == (2, None, None, None, None)
        assert rows[0][2:] == ([("k", 1.5)], b"\x00\xff", None)
    assert taken(frame, 100) is None


def test_a_task_has_one_thread_and_the_driver_its_own(spark: Any, by_value: None) -> None:
    before = pa.cpu_count()
    pa.set_cpu_count(3)
    try:
        one_thread()
        assert pa.cpu_count() == 3
    finally:
        pa.set_cpu_count(before)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        for _ in batches:
            yield pa.record_batch({"n": [pa.cpu_count()]})

    assert [row.n for row in spark.range(1).coalesce(1).mapInArrow(count, "n bigint").collect()] == [1]


def test_of_what_is_too_large_little_leaves_the_jvm(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[int] = []
    original = DataFrame._collect_as_arrow

    def collect(self: Any) -> Any:
        batches = original(self)
        came.append(sum(batch.nbytes for batch in batches))
        return batches

    monkeypatch.setattr(DataFrame, "_collect_as_arrow", collect)
    assert taken(spark.range(0, 5_000, 1, 1).selectExpr("id", "repeat('x', 100) AS v"), 20_000) is None
    assert came[0] < 60_000


def test_tests_of_both_ways_go_both_ways(spark: Any, c: tidelake.Collection, both_ways: str) -> None:
    rows = rows_of(spark.createDataFrame([(1, "a")], "id bigint, v string"), Updates(), c)
    assert (rows.few is not None) == (both_ways == "driver")
