"""Running tasks, which are bytes, as a Spark job.

Owns how work gets from the driver to the workers: no RDD (Spark Connect has none), no shuffle, and no row of
user data passes through the JVM on its way in. It must not know what the bytes mean.

INVARIANT: partition i carries out task i. If the caller asks for fewer partitions, each carries out about
equally many consecutive tasks, in their order. No task is carried out by two partitions.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import StructType

from tidelake.lake.arguments.tokens import author_given, noted

if TYPE_CHECKING:
    # It loads what reads do not need.
    from tidelake.feeds.reading import ArrowMap

Work = Callable[[bytes], Iterator[pa.RecordBatch]]
_BYTES_MAX = "spark.sql.files.maxPartitionBytes"
# Spark's estimate for an unknown size is the largest number, or a share of it.
_UNKNOWN_BYTES = 1 << 50
_slots: "WeakKeyDictionary[SparkSession, int]" = WeakKeyDictionary()


@dataclass(frozen=True)
class _TaskRunner:
    """What a worker gets: all tasks. Its rows are the numbers of the tasks that it carries out.

    SUBTLE: the tasks travel inside the function. Spark sends a function of more than 1 MiB as a
    broadcast, once to each machine, and a task costs 12 ms. A DataFrame of task bytes would need
    `repartitionById` or a broadcast join, which is exact as well but takes another job (37 tasks: 1.1 s
    instead of 0.5 s); without these, Spark puts many of its rows into one partition.
    """

    work: Work
    tasks: tuple[bytes, ...]
    # Spark's plans show it.
    __name__: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.work(self.tasks[number])


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[bytes],
    work: Work,
    schema: StructType,
    partitions: int | None = None,
    *,
    name: str = "tidelake",
) -> DataFrame:
    """A DataFrame of what `work` yields for each task; nothing runs before it is used.

    Args:
        spark: the session.
        tasks: opaque bytes; each must contain all that a worker needs.
        work: a picklable callable, run in a worker.
        schema: schema of the batches that `work` yields.
        partitions: number of Spark tasks, at most as many as `tasks`; default: one for each. Starting one
            costs 25 ms, so thousands of small tasks are better combined.
        name: how `explain()` calls the work, in one line.
    """
    if not tasks:
        return spark.createDataFrame([], schema)
    numbers = spark.range(0, len(tasks), 1, min(partitions or len(tasks), len(tasks)))
    return numbers.mapInArrow(_TaskRunner(work, tuple(tasks), name), schema)


def one_thread() -> None:
    """Keep Arrow to one thread inside of a task: Spark already runs one for each core."""
    # The driver may do the same work: its threads stay as they are.
    if TaskContext.get() is not None:
        pa.set_cpu_count(1)


@dataclass(frozen=True)
class OneThread:
    """In a worker: do work with one thread of Arrow."""

    work: "ArrowMap"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        return self.work(batches)


def remote(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect: it has no context, and its driver is another process."""
    try:
        spark.sparkContext  # noqa: B018  # raises under Spark Connect
    except PySparkException:
        return True
    return False


def slots(spark: SparkSession) -> int:
    """How many tasks the cluster runs at once, as far as the session knows. Spark Connect runs a job once."""
    if not remote(spark):
        return max(1, int(spark.sparkContext.defaultParallelism))
    if spark not in _slots:
        # By default a frame has as many partitions as the server runs tasks at once.
        numbered = spark.range(1 << 16).select(spark_partition_id().alias("number"))
        last = numbered.agg(greatest("number")).first()
        _slots[spark] = 1 if last is None else int(last[0]) + 1
    return _slots[spark]


def task_bytes_max(spark: SparkSession) -> int | None:
    """The most stored bytes for one scan task, by Spark's own setting; None if that is not a size."""
    return bytes_in(spark.conf.get(_BYTES_MAX) or "") or None


def bytes_in(text: str) -> int | None:
    """Parse a size as in Spark's settings, such as `16m` or `1048576b`; None if it is not a size."""
    found = re.fullmatch(r"(\d+)([kmgtp]?)b?", text.strip().lower())
    return int(found[1]) * 1024 ** " kmgtp".index(found[2] or " ") if found else None


def estimated_bytes(frame: DataFrame) -> int | None:
    """Spark's own estimate of the size of a frame, before anything runs; None if it is unknown.

    For files it is their size. Spark Connect gives no estimate.
    """
    if remote(frame.sparkSession):
        return None
    # PySpark has no public way to get it.
    plan = frame._jdf.queryExecution().optimizedPlan()
    size = int(str(plan.stats().sizeInBytes()))
    return size if size < _UNKNOWN_BYTES else None


def signed(spark: SparkSession) -> contextlib.AbstractContextManager[None]:
    """Commits that are made inside have an author: the id of the Spark application, if no other is given."""
    id_ = spark.conf.get("spark.app.id", None)
    return noted("" if id_ is None or author_given() else f"spark {id_}"[:200], "")


@contextlib.contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Set the description of jobs started inside, for Spark's UI. Does nothing under Spark Connect."""
    if remote(spark):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]  # None: unset
