"""The merge of a collection as a Spark job.

Owns only the way to the workers: what is merged, and whether the result still fits, is decided below.
A worker reads, merges and writes a key range by itself and sends back a descriptor, so no row passes
through the JVM. A job that fails leaves the collection as it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from tidelake.lake.collection import Collection
from tidelake.shard.runs.plan import run_merge_task
from tidelake.shard.upkeep.compactor import MergeReport, Workers
from tidelake.spark.tasks import described, run_tasks, slots

_OUTPUT = StructType([StructField("task", LongType(), False), StructField("run", BinaryType(), False)])


@dataclass(frozen=True)
class _Merge:
    """SUBTLE: a task tells its number, since Spark promises no order of rows and runs must be in order."""

    def __call__(self, numbered: bytes) -> Iterator[pa.RecordBatch]:
        number, task = int.from_bytes(numbered[:8], "big"), numbered[8:]
        columns = [pa.array([number], pa.int64()), pa.array([run_merge_task(task)], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, names=["task", "run"])


def merge(spark: SparkSession, collection: Collection, *, parallelism: int | None = None) -> MergeReport:
    """Merge all batches of a collection into one sorted run, times advanced to `since`.

    Args:
        spark: the session.
        collection: to merge.
        parallelism: tasks at once; default: as many as the session runs at once.

    Returns:
        What went in and what came out; `applied` is False if there was nothing to gain, or if another
        merge was faster.
    """
    return collection.merge(workers(spark, f"tidelake: merge {collection.name}", parallelism))


def workers(spark: SparkSession, description: str, parallelism: int | None = None) -> Workers:
    """The workers of a session, for `Collection.merge` and `Collection.maintain`.

    What they are given at once is one job; its finished key ranges are recorded before the next begins.
    """

    def run(tasks: Sequence[bytes]) -> list[bytes]:
        numbered = [i.to_bytes(8, "big") + task for i, task in enumerate(tasks)]
        with described(spark, f"{description}, {len(tasks)} key ranges"):
            rows = run_tasks(spark, numbered, _Merge(), _OUTPUT).collect()
        outputs = {int(row.task): bytes(row.run) for row in rows}
        return [outputs[i] for i in range(len(tasks))]

    return Workers(run, parallelism or slots(spark))
