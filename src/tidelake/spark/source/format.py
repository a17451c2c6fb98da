"""The format `tidelake`: what Spark asks a data source.

Owns which options lead to which reader or writer. Spark makes a source, asks for its `schema` and then for a
reader or writer, in processes of the driver's that come and go.
"""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidelake.data.selection import bind
from tidelake.data.types import schema_from_arrow
from tidelake.errors import UsageError
from tidelake.model.selection import Wanted
from tidelake.spark.columns import frame_schema
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.reading.holds import follow
from tidelake.spark.source.batch import BatchReader
from tidelake.spark.source.options import WriteOptions, shape, write_options
from tidelake.spark.source.place import found, opened
from tidelake.spark.source.planning import shown
from tidelake.spark.source.sink import BatchWriter, StreamWriter, chosen
from tidelake.spark.source.stream import StreamReader
from tidelake.spark.source.stream_read import stream_read


class TidelakeSource(DataSource):
    """`spark.read.format("tidelake")` and its like; see docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        """As Spark knows it."""
        return "tidelake"

    def schema(self) -> StructType:
        """The columns of a read, of the newest schema of the collection; the condition is checked as well."""
        asked = shape(self.options)
        with opened(self.options) as (_, collection):
            bind(Wanted(asked.columns, asked.where), schema_from_arrow(collection.schema, collection.key))
            return frame_schema(shown(collection.schema, collection.domain, asked))

    def reader(self, schema: StructType) -> BatchReader:
        """A batch read of some of the columns."""
        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """A streaming read of some of the columns. A few store calls."""
        return StreamReader(stream_read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch write, or an INSERT."""
        asked = write_options(self.options)
        if asked.writer is not None or asked.take_over:
            raise UsageError(
                "options writer and takeOver are of streams: a batch write that may be repeated takes a token"
            )
        _, collection = found(self.options)
        return BatchWriter(collection, schema, _envelope(schema, overwrite, asked), asked.token)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """The sink of a streaming query."""
        asked = write_options(self.options)
        if asked.token is not None:
            raise UsageError(
                "option token is of batch writes: a stream is known by its checkpoint, leave it out"
            )
        _, collection = found(self.options)
        envelope = _envelope(schema, overwrite, asked)
        return StreamWriter(collection, schema, envelope, asked.writer, asked.take_over)


def _envelope(schema: StructType, overwrite: bool, asked: WriteOptions) -> Envelope:
    taken = {
        "time": asked.time,
        "delete_column": asked.delete_column,
        "order_by": asked.order_by,
        "late": asked.late,
        "rejects": asked.rejects,
    }
    return chosen(schema, overwrite, asked.envelope, taken)


def register(spark: SparkSession) -> None:
    """Make the format `tidelake` known to a session, which mostly finds it by itself.

    What is read by the format is held for `holdFor`. With this call also no longer than this process lives,
    and `release()` ends it; not so under Spark Connect, where the planner is elsewhere.
    """
    spark.dataSource.register(TidelakeSource)
    follow(spark)
