"""The merge of a collection as a Spark job.

Owns only the way to the workers: `tidelake.shard` decides what is merged, and whether the result still fits.
A worker reads, merges and writes a key range by itself and returns a descriptor, so no row passes through the
JVM. A job that fails leaves the collection unchanged.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from tidelake.errors import TidelakeError
from tidelake.lake.api.collection import Collection
from tidelake.shard.runs.plan import run_merge_task
from tidelake.shard.upkeep.compactor import SET_ASIDE, Workers
from tidelake.shard.upkeep.reports import MergeReport
from tidelake.spark.tasks import described, run_tasks, slots
from tidelake.spark.versions import spark_schema

_ARROW = pa.schema(
    [
        pa.field("task", pa.int64(), nullable=False),
        pa.field("run", pa.binary(), nullable=False),
        pa.field("fault", pa.string()),
    ]
)
# More tasks per slot than this are combined: starting one costs 25 ms.
_TASKS_A_SLOT = 16
# Errors that every attempt at this merge would meet: they are answers, so that Spark does not retry the task.
_FAULTS = {kind.__name__: kind for kind in SET_ASIDE}


@dataclass(frozen=True)
class _Merge:
    """SUBTLE: a task returns its number, since runs must be in order and Spark guarantees no order."""

    def __call__(self, numbered: bytes) -> Iterator[pa.RecordBatch]:
        number, task = int.from_bytes(numbered[:8], "big"), numbered[8:]
        run, fault = b"", None
        try:
            run = run_merge_task(task)
        except SET_ASIDE as error:
            kind = next(kind for kind in SET_ASIDE if isinstance(error, kind))
            fault = json.dumps([kind.__name__, *map(str, error.args)])
        yield pa.RecordBatch.from_pylist([{"task": number, "run": run, "fault": fault}], schema=_ARROW)


def merge(spark: SparkSession, collection: Collection, *, parallelism: int | None = None) -> MergeReport:
    """Merge what a collection stores, times advanced to `since`; see `Collection.merge`.

    Args:
        spark: the session.
        collection: the collection to merge.
        parallelism: number of tasks at once; default: as many as the session runs at once.

    Returns:
        The shape before and after; `applied` is False if a merge would gain nothing, or another one was
        faster.
    """
    return collection.merge(workers(spark, f"tidelake: merge {collection.name}", parallelism))


def workers(spark: SparkSession, description: str, parallelism: int | None = None) -> Workers:
    """The workers of a session, for `Collection.merge` and `Collection.maintain`.

    The tasks of one call are one job; its finished key ranges are recorded before the next call.
    """

    def run(tasks: Sequence[bytes]) -> list[bytes]:
        with described(spark, f"{description}, {len(tasks)} key ranges"):
            outputs = carried_out(spark, tasks)
        for output in outputs:
            if isinstance(output, TidelakeError):
                raise output
        return [output for output in outputs if isinstance(output, bytes)]

    return Workers(run, parallelism or slots(spark))


def carried_out(spark: SparkSession, tasks: Sequence[bytes]) -> list[bytes | TidelakeError]:
    """Carry out merge tasks as one job. Returns for each the run that it stored, or its error."""
    numbered = [i.to_bytes(8, "big") + task for i, task in enumerate(tasks)]
    partitions = min(len(tasks), _TASKS_A_SLOT * slots(spark))
    rows = run_tasks(spark, numbered, _Merge(), spark_schema(_ARROW), partitions=partitions).collect()
    outputs = {int(row.task): bytes(row.run) if row.fault is None else _error(row.fault) for row in rows}
    return [outputs[i] for i in range(len(tasks))]


def _error(fault: str) -> TidelakeError:
    kind, *args = json.loads(fault)
    return _FAULTS[kind](*args)
