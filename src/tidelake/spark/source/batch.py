"""The format `tidelake`: what Spark asks a data source, and the batch read.

Owns how a read becomes tasks of Spark, and what a worker makes of one. Spark calls `schema` and `partitions`
in a planner's process, and `read` in the workers. `partitions` is called once for a DataFrame or view: it
decides which version that is, plans it, and holds what the plan names (`tidelake.spark.reading.holds`).

Filters are not taken over from Spark: it keeps the first pushed read for others of the same DataFrame, and
they lose rows. Conditions come as the option `where`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelake.data.selection import bind
from tidelake.data.types import schema_from_arrow
from tidelake.errors import LeaseExpired, UsageError
from tidelake.model.selection import Wanted
from tidelake.model.time import TimeDomain
from tidelake.shard.runs.plan import run_task
from tidelake.spark.columns import convert, frame_schema
from tidelake.spark.reading.holds import Lasting, follow, hold_for_application, kept
from tidelake.spark.source import change_feed
from tidelake.spark.source.options import Rows, read_options, shape
from tidelake.spark.source.place import opened
from tidelake.spark.source.planning import planned, shown
from tidelake.spark.source.rows import expanded
from tidelake.spark.source.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from tidelake.spark.source.stream import StreamReader
from tidelake.spark.source.stream_read import stream_read
from tidelake.spark.tasks import one_thread


class TidelakeSource(DataSource):
    """`spark.read.format("tidelake")`; see docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        """As Spark knows it."""
        return "tidelake"

    def schema(self) -> StructType:
        """The columns, of the newest schema of the collection; the condition is checked as well."""
        asked = shape(self.options)
        with opened(self.options) as (_, collection):
            bind(Wanted(asked.columns, asked.where), schema_from_arrow(collection.schema, collection.key))
            return frame_schema(shown(collection.schema, collection.domain, asked))

    def reader(self, schema: StructType) -> "BatchReader":
        """A batch read of some of the columns."""
        return BatchReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch write, and INSERT INTO a view."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """The sink of a stream."""
        return stream_writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> StreamReader:
        """A streaming read of some of the columns. A few store calls."""
        return StreamReader(stream_read(self.options), schema)


def register(spark: SparkSession) -> None:
    """Make the format `tidelake` known to a session, which mostly finds it by itself.

    What is read by the format is held for `holdFor`. With this call also no longer than this process lives,
    and `release()` ends it; not so under Spark Connect, where the planner is elsewhere.
    """
    spark.dataSource.register(TidelakeSource)
    follow(spark)


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What a worker gets.

    Attributes:
        task: of a plan.
        rows: what they are to look like.
        key: names of the key columns, for a change feed.
        domain: of the times.
        held: what keeps the parts of the task.
    """

    task: bytes
    rows: Rows
    key: tuple[str, ...]
    domain: TimeDomain
    held: Lasting | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with at least the columns that Spark asked for.

        Raises:
            LeaseExpired: the hold ended, and a part is gone.
            InvalidUpdates: a multiplicity is negative where rows are to be those of a table.
        """
        try:
            yield from self._shaped(kept(run_task(self.task), self.held))
        except LeaseExpired as error:
            error.add_note(
                "the DataFrame was planned too long ago, or released: load it again, with a longer holdFor"
            )
            raise

    def _shaped(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        match self.rows:
            case "table":
                return (piece for batch in batches for piece in expanded(batch))
            case "updates":
                return batches
            case "feed":
                return change_feed.change_feed(batches, self.key, self.domain)


class BatchReader(DataSourceReader):
    """A batch read.

    Args:
        options: of Spark.
        schema: the columns that are wanted: those of `TidelakeSource.schema`, or some that a user chose.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Plan the read, and hold what it reads. One log write at most.

        Raises:
            UsageError: an option or a column does not fit.
            HistoryCompacted: the times asked for lie before the collection's `since`.
            NotYetClosed: they are still open when the time to wait is over.
        """
        asked = read_options(self._options)
        with opened(self._options) as (lake, collection):
            plan = planned(collection, asked, self._schema)
            held = None
            if asked.hold_for_s is not None:
                held = hold_for_application(lake.url, collection, plan, asked.hold_for_s)
            key, domain = collection.key, collection.domain
        return [ReadTask(task, asked.shape.rows, key, domain, held) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow batches of Spark's own types."""
        one_thread()
        if not isinstance(partition, ReadTask):
            raise UsageError(f"a partition is a {type(partition).__name__}, not one of this read")
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for batch in partition.batches():
            yield convert(batch, schema)
