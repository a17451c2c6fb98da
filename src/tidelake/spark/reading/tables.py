"""A table of a statement as a DataFrame: contents or a change feed, each row as often as it is there.

Owns what a worker does with a task of such a table. Nothing is shuffled.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidelake.data.answer.changefeed import change_feed
from tidelake.data.answer.tablerows import expanded
from tidelake.data.ingest.convert import convert
from tidelake.lake.api.tablereads import TableRead
from tidelake.lake.arguments.spans import DurationLike
from tidelake.model.query import AsOf
from tidelake.model.time import TimeDomain
from tidelake.shard.runs.plan import run_task
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.reading.holds import Lasting, hold_plans, kept
from tidelake.spark.tasks import run_tasks, slots, task_bytes_max


@dataclass(frozen=True)
class _Table:
    schema: pa.Schema
    key: tuple[str, ...]
    domain: TimeDomain
    is_feed: bool
    held: Lasting | None

    def __call__(self, task: bytes) -> Iterator[pa.RecordBatch]:
        found = kept(run_task(task), self.held)
        if self.is_feed:
            rows = change_feed(found, self.key, self.domain)
        else:
            rows = (piece for batch in found for piece in expanded(batch))
        return (convert(piece, self.schema) for piece in rows)


def table(spark: SparkSession, read: TableRead, hold_for: DurationLike | None) -> DataFrame:
    """The rows of a table, planned by key range. At most one log write, for the hold."""
    collection = read.collection
    bytes_max = task_bytes_max(spark)
    plan = collection.distributed.plan(read.asked, slots(spark), read.options, task_bytes_max=bytes_max)
    held = hold_plans(collection, [plan], hold_for)
    is_feed = not isinstance(read.asked, AsOf)
    schema, key = read.schema, tuple(column.name for column in read.rows.key)
    work = _Table(frame_arrow(schema), key, collection.domain, is_feed, held)
    return run_tasks(spark, plan.tasks, work, frame_schema(schema))
