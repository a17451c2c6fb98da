"""The batch read of the format.

Owns how a read becomes Spark tasks, and what a worker does with one. Spark calls `partitions` once for a
DataFrame or view, in a planner's process: this decides which version is read, plans the read, and holds its
parts (`tidelake.spark.reading.holds`). `read` is called in the workers.

Filter pushdown is not supported: Spark reuses the first pushed read for other queries on the same DataFrame,
which would lose rows. Conditions come as the option `where`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelake.data.answer import changefeed
from tidelake.data.answer.tablerows import expanded
from tidelake.data.ingest.convert import convert
from tidelake.errors import LeaseExpired, UsageError
from tidelake.model.time import TimeDomain
from tidelake.shard.runs.plan import run_task
from tidelake.spark.reading.holds import Lasting, hold_for_application, kept
from tidelake.spark.source.options import RowShape, read_options
from tidelake.spark.source.place import opened
from tidelake.spark.source.planning import planned, timed
from tidelake.spark.source.sentences import told
from tidelake.spark.tasks import one_thread
from tidelake.spark.versions import arrow_schema


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What a worker gets.

    Attributes:
        task: a task of a plan.
        shape: the form of the rows, and of their times.
        key: names of the key columns, for a change feed.
        domain: unit of the times.
        held: the hold that keeps the parts of the task.
    """

    task: bytes
    shape: RowShape
    key: tuple[str, ...]
    domain: TimeDomain
    held: Lasting | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with at least the columns that Spark asked for."""
        try:
            yield from self._shaped(kept(run_task(self.task), self.held))
        except LeaseExpired as error:
            error.add_note(
                "the DataFrame was planned too long ago, or released: load it again, with a longer holdFor"
            )
            raise

    def _shaped(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        match self.shape.rows:
            case "table":
                return (piece for batch in batches for piece in expanded(batch))
            case "updates":
                return timed(batches, self.shape, self.domain)
            case "feed":
                return changefeed.change_feed(batches, self.key, self.domain)


class BatchReader(DataSourceReader):
    """A batch read.

    Args:
        options: the options from Spark.
        schema: the columns to read: those of `planning.shown`, or the user's choice.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema

    @told
    def partitions(self) -> list[InputPartition]:
        """Plan the read, and hold its parts. At most one log write."""
        asked = read_options(self._options)
        with opened(self._options) as (_, collection):
            plan, under = planned(collection, asked, self._schema)
            held = None
            if asked.hold_for_s is not None:
                held = hold_for_application(collection, plan, asked.hold_for_s)
            domain = collection.domain
        return [ReadTask(task, asked.shape, under.key, domain, held) for task in plan.tasks]

    @told
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow batches of Spark's own types."""
        one_thread()
        if not isinstance(partition, ReadTask):
            raise UsageError(f"a partition is a {type(partition).__name__}, not one of this read")
        schema = arrow_schema(self._schema)
        for batch in partition.batches():
            yield convert(batch, schema)
