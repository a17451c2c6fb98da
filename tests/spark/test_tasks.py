"""Tasks reach the workers one by one, and only when they are asked for."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StructField, StructType

from tidelake.spark.tasks import described, run_tasks, slots

SHAPE = StructType([StructField("task", LongType()), StructField("partition", LongType())])


class _Where:
    def __call__(self, task: bytes) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        place = TaskContext.get()
        assert place is not None
        row = {"task": int.from_bytes(task[:4], "big"), "partition": place.partitionId()}
        yield pa.RecordBatch.from_pylist(
            [row], schema=pa.schema([("task", pa.int64()), ("partition", pa.int64())])
        )


@pytest.mark.parametrize(("count", "size"), [(1, 4), (5, 4), (7, 400_000)])
def test_every_task_is_a_partition_of_its_own(spark: Any, count: int, size: int, by_value: None) -> None:
    tasks = [i.to_bytes(4, "big") + b"x" * (size - 4) for i in range(count)]
    rows = run_tasks(spark, tasks, _Where(), SHAPE).collect()
    assert [(r.task, r.partition) for r in rows] == [(i, i) for i in range(count)]


def test_few_partitions_take_stretches_of_tasks(spark: Any, by_value: None) -> None:
    tasks = [i.to_bytes(4, "big") for i in range(7)]
    rows = run_tasks(spark, tasks, _Where(), SHAPE, partitions=3).collect()
    assert [r.task for r in rows] == list(range(7))
    assert [r.partition for r in rows] == sorted(r.partition for r in rows)
    assert {r.partition for r in rows} == {0, 1, 2}


def test_no_tasks_is_no_rows(spark: Any) -> None:
    frame = run_tasks(spark, [], _Where(), SHAPE)
    assert (frame.schema, frame.collect()) == (SHAPE, [])


def test_described_names_the_jobs_inside_and_puts_the_name_back(spark: Any) -> None:
    name = "spark.job.description"
    context = spark.sparkContext
    context.setJobDescription("mine")
    with described(spark, "theirs"):
        assert context.getLocalProperty(name) == "theirs"
    assert context.getLocalProperty(name) == "mine"
    context.setLocalProperty(name, None)
    with described(spark, "theirs"):
        pass
    assert context.getLocalProperty(name) is None


def test_slots_are_the_cores_of_the_session(spark: Any) -> None:
    assert slots(spark) == 2
