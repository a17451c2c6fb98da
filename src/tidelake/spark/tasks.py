"""Tasks that are bytes, run as a Spark job.

Owns how work gets from the driver to the workers: no RDD (Spark Connect has none), no shuffle, and
no row of user data through the JVM on its way in. It must not know what the bytes mean.

INVARIANT: partition i carries out task i alone, or, if the caller asks for fewer partitions, a
consecutive stretch of about equally many tasks in their order. No task is carried out by two partitions.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import StructType

Work = Callable[[bytes], Iterator[pa.RecordBatch]]
ArrowMap = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_BYTES_MAX = "spark.sql.files.maxPartitionBytes"
# Spark takes what it knows nothing of for as large as its numbers go, or for a share of that.
_UNKNOWN_BYTES = 1 << 50
_slots: "WeakKeyDictionary[SparkSession, int]" = WeakKeyDictionary()


@dataclass(frozen=True)
class _TaskRunner:
    """What a worker gets: all tasks, of which it takes those that its rows name.

    SUBTLE: the tasks travel inside the function. Spark sends a function of more than 1 MiB as a
    broadcast, once to a machine, and a task costs 12 ms. A DataFrame of task bytes instead has to be
    placed by `repartitionById` or a broadcast join, which is exact as well but takes a job more
    (37 tasks: 1.1 s against 0.5 s); without that, Spark puts many of its rows into one partition.
    """

    work: Work
    tasks: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.work(self.tasks[number])


def run_tasks(
    spark: SparkSession, tasks: Sequence[bytes], work: Work, schema: StructType, partitions: int | None = None
) -> DataFrame:
    """A DataFrame of what `work` yields for each task; nothing runs before it is used.

    Args:
        spark: the session.
        tasks: opaque; each must carry all that a worker needs.
        work: a picklable callable, run in a worker.
        schema: of the batches that `work` yields.
        partitions: tasks of Spark, at most as many as `tasks`; default: one for each. Starting one costs
            25 ms, so thousands of small tasks are better put together.
    """
    if not tasks:
        return spark.createDataFrame([], schema)
    numbers = spark.range(0, len(tasks), 1, min(partitions or len(tasks), len(tasks)))
    return numbers.mapInArrow(_TaskRunner(work, tuple(tasks)), schema)


def one_thread() -> None:
    """Keep Arrow to one thread inside of a task: Spark already runs one for each core."""
    # The same work is done in the driver, whose threads are its own.
    if TaskContext.get() is not None:
        pa.set_cpu_count(1)


def remote(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect: it has no context, and its driver is another process."""
    try:
        spark.sparkContext  # noqa: B018  # asked for its error
    except PySparkException:
        return True
    return False


def slots(spark: SparkSession) -> int:
    """Tasks that the cluster runs at once, as far as the session knows. Under Spark Connect a job, once."""
    if not remote(spark):
        return max(1, int(spark.sparkContext.defaultParallelism))
    if spark not in _slots:
        # A frame that names no number of partitions has as many as the server runs tasks at once.
        numbered = spark.range(1 << 16).select(spark_partition_id().alias("number"))
        last = numbered.agg(greatest("number")).first()
        _slots[spark] = 1 if last is None else int(last[0]) + 1
    return _slots[spark]


def task_bytes_max(spark: SparkSession) -> int | None:
    """Stored bytes that a task of a scan reads at most, by Spark's own setting; None if it names no size."""
    return bytes_in(spark.conf.get(_BYTES_MAX) or "") or None


def bytes_in(text: str) -> int | None:
    """A size as Spark's settings name it, such as `16m` or `1048576b`; None if it is none."""
    found = re.fullmatch(r"(\d+)([kmgtp]?)b?", text.strip().lower())
    return int(found[1]) * 1024 ** " kmgtp".index(found[2] or " ") if found else None


def estimated_bytes(frame: DataFrame) -> int | None:
    """How large a frame is by Spark's own estimate, before anything runs; None where it does not know.

    Of files it is their size. Spark Connect does not tell.
    """
    if remote(frame.sparkSession):
        return None
    # PySpark has no other way to it.
    plan = frame._jdf.queryExecution().optimizedPlan()
    size = int(str(plan.stats().sizeInBytes()))
    return size if size < _UNKNOWN_BYTES else None


@contextlib.contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Name the jobs that are started inside, for Spark's own pages. Does nothing under Spark Connect."""
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
