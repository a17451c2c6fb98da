"""The format `tidelake`: the entry point of Spark's data source interface.

Owns which options lead to which reader or writer. Spark makes a source, asks for its `schema` and then for a
reader or writer, in short-lived processes of the driver. Only a write loads what writes, since each of these
processes, and each new worker, loads this module.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidelake.data.kernel.types import schema_from_arrow
from tidelake.data.query.selection import bind
from tidelake.errors import TidelakeError
from tidelake.model.selection import ReadOptions
from tidelake.spark.columns import frame_schema
from tidelake.spark.installed import VERSION
from tidelake.spark.source.batch import BatchReader
from tidelake.spark.source.interface import LIMITS
from tidelake.spark.source.options import shape
from tidelake.spark.source.place import opened
from tidelake.spark.source.planning import shown
from tidelake.spark.source.sentences import told
from tidelake.spark.source.stream import RefusedReader, StreamReader, UnlimitedStreamReader
from tidelake.spark.source.stream_read import StreamRead, stream_read
from tidelake.spark.versions import needs

if TYPE_CHECKING:
    from tidelake.spark.source.sink import BatchWriter, StreamWriter


class TidelakeSource(DataSource):
    """`spark.read.format("tidelake")` and its like; see docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tidelake"

    @told
    def schema(self) -> StructType:
        """The columns of a read, of the newest schema of the collection; the condition is checked as well."""
        asked = shape(self.options)
        with opened(self.options) as (_, collection):
            bind(
                ReadOptions(asked.columns, asked.where), schema_from_arrow(collection.schema, collection.key)
            )
            return frame_schema(shown(collection.schema, collection.domain, asked))

    @told
    def reader(self, schema: StructType) -> BatchReader:
        """A batch read of some of the columns."""
        return BatchReader(self.options, schema)

    @told
    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        """A batch write, or an INSERT."""
        from tidelake.spark.source.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedReader:
        """A streaming read of some of the columns. A few store calls."""
        try:
            return _stream_reader(stream_read(self.options), schema)
        except TidelakeError as error:
            return RefusedReader(error)

    @told
    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        """The sink of a streaming query."""
        from tidelake.spark.source.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _stream_reader(read: StreamRead, schema: StructType) -> StreamReader:
    if VERSION >= LIMITS:
        return StreamReader(read, schema)
    for name, limit in (("maxRowsPerTrigger", read.max_rows), ("maxTimesPerTrigger", read.max_times)):
        if limit is not None:
            needs(
                f"option {name}",
                LIMITS,
                "leave it out, and a micro-batch takes all times that are closed",
            )
    return UnlimitedStreamReader(read, schema)
