"""Debezium change events on DataFrames.

Owns how lines come out of Spark and rows go back; what an event means is `tidelake.spark.envelopes.changes`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from tidelake.lake.collection import Collection
from tidelake.spark.columns import convert, frame_arrow, frame_schema
from tidelake.spark.envelopes.changes import ChangeParser
from tidelake.spark.tasks import one_thread


@dataclass(frozen=True)
class _ParseLines:
    parser: ChangeParser
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        for batch in batches:
            parsed = self.parser.parse(batch.column(0), batch.column(1).to_pylist())
            yield convert(parsed.rows, self.schema)


def parse_changes(lines: DataFrame, collection: Collection, time_field: str = "source.lsn") -> DataFrame:
    """A DataFrame of updates from one of change events, streaming or not.

    Args:
        lines: column `value` has a line of text, column `file`, if there is one, its file.
        collection: its key and value columns are looked for in the rows of the events.
        time_field: where in the event its time is.

    Returns:
        Key and value columns, `_time` and `_diff`; a heartbeat yields no row. A line that cannot be
        read fails the job with `InvalidUpdates`, wrapped in Spark's `PythonException`.
    """
    parser = ChangeParser(collection.schema, time_field=time_field)
    output = parser.schema_of_rows
    if "file" not in lines.columns:
        lines = lines.withColumn("file", lit(None).cast("string"))
    return lines.select("value", "file").mapInArrow(
        _ParseLines(parser, frame_arrow(output)), frame_schema(output)
    )
