"""A data source of the streaming reader alone, and drivers for tests of it."""

import json
from collections import Counter

from pyspark.sql.datasource import DataSource

import tidelake
from tidelake.model.frontier import Frontier
from tidelake.spark.columns import frame_schema
from tidelake.spark.source.stream import StreamRead, StreamReader


class TailSource(DataSource):
    """Options: url, collection, and `read`, JSON of other fields of `StreamRead`."""

    @classmethod
    def name(cls):
        return "tail_of_tidelake"

    def schema(self):
        collection = tidelake.open(self.options["url"]).collection(self.options["collection"])
        return frame_schema(collection.update_schema)

    def streamReader(self, schema):
        fields = json.loads(self.options.get("read", "{}"))
        if isinstance(fields.get("start"), int):
            fields["start"] = Frontier.past(fields["start"])
        return StreamReader(StreamRead(self.options["url"], self.options["collection"], **fields), schema)


def stream(spark, url, name, **fields):
    """A streaming DataFrame of a collection."""
    spark.dataSource.register(TailSource)
    reader = spark.readStream.format("tail_of_tidelake").option("url", str(url))
    return reader.option("collection", name).option("read", json.dumps({"poll_s": 0.0, **fields})).load()


def to_parquet(frame, root, trigger):
    """A query of a frame into an exactly-once sink of files; its checkpoint is beside."""
    # The file manager for local disks: half the time of a batch is Spark's own bookkeeping.
    frame.sparkSession.conf.set(
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    )
    writer = frame.writeStream.format("parquet").option("path", str(root / "out"))
    return writer.option("checkpointLocation", str(root / "checkpoint")).trigger(**trigger).start()


def run(frame, root):
    """All that is there now."""
    query = to_parquet(frame, root, {"availableNow": True})
    query.awaitTermination()
    return query


def sink(spark, root):
    """The rows of the sink, with the times each one appears."""
    if not (root / "out" / "_spark_metadata").exists():
        return Counter()
    return Counter(tuple(row) for row in spark.read.parquet(str(root / "out")).collect())
