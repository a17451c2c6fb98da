"""The merge of a collection as a Spark job.

Owns only the way to the workers: what is merged, and whether the result still fits, is decided below.
A worker reads, merges and writes a key range by itself and sends back a descriptor, so no row passes
through the JVM. A job that fails leaves the collection as it was.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidelake.errors import TidelakeError
from tidelake.lake.collection import Collection
from tidelake.shard.runs.plan import run_merge_task
from tidelake.shard.upkeep.compactor import MergeReport, Workers
from tidelake.shard.upkeep.maintain import SET_ASIDE
from tidelake.spark.tasks import described, run_tasks, slots

_ARROW = pa.schema(
    [
        pa.field("task", pa.int64(), nullable=False),
        pa.field("run", pa.binary(), nullable=False),
        pa.field("fault", pa.string()),
    ]
)
# More tasks than this for each that runs at once are put together: starting one costs 25 ms.
_TASKS_A_SLOT = 16
# What says that this merge cannot be done, whoever tries it: an answer, and no failure of the task.
_FAULTS = {kind.__name__: kind for kind in SET_ASIDE}


@dataclass(frozen=True)
class _Merge:
    """SUBTLE: a task tells its number, since Spark promises no order of rows and runs must be in order."""

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
        with described(spark, f"{description}, {len(tasks)} key ranges"):
            outputs = carried_out(spark, tasks)
        for output in outputs:
            if isinstance(output, TidelakeError):
                raise output
        return [output for output in outputs if isinstance(output, bytes)]

    return Workers(run, parallelism or slots(spark))


def carried_out(spark: SparkSession, tasks: Sequence[bytes]) -> list[bytes | TidelakeError]:
    """Carry out tasks of merges as one job; for each the run that it stored, or why it cannot be done."""
    numbered = [i.to_bytes(8, "big") + task for i, task in enumerate(tasks)]
    partitions = min(len(tasks), _TASKS_A_SLOT * slots(spark))
    rows = run_tasks(spark, numbered, _Merge(), from_arrow_schema(_ARROW), partitions=partitions).collect()
    outputs = {int(row.task): bytes(row.run) if row.fault is None else _error(row.fault) for row in rows}
    return [outputs[i] for i in range(len(tasks))]


def _error(fault: str) -> TidelakeError:
    kind, *args = json.loads(fault)
    return _FAULTS[kind](*args)
