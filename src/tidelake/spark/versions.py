"""The versions of PySpark that Tidelake works with, and how they differ.

Owns every call whose name or arguments differ between versions, and the errors for what a version lacks.
Must not know collections. What a data source can do is in `tidelake.spark.source.interface`.
"""

from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas import types as arrow_types

from tidelake.errors import UsageError
from tidelake.spark.installed import RELEASE, VERSION


def needs(what: str, least: tuple[int, int], instead: str = "") -> None:
    """Refuse what this PySpark lacks."""
    if least > VERSION:
        raise UsageError(
            f"{what} needs PySpark {least[0]}.{least[1]} or newer, and PySpark {RELEASE} is "
            f"installed{': ' + instead if instead else ''}"
        )


def condition(error: PySparkException) -> str:
    """The name of Spark's error condition, such as `PATH_NOT_FOUND`; empty if there is none."""
    if hasattr(error, "getCondition"):
        return str(error.getCondition() or "")
    return str(cast("Any", error).getErrorClass() or "")  # PySpark 3.5


def to_arrow(frame: DataFrame) -> pa.Table:
    """The rows of a frame, in the driver's memory. Runs a job."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    old = cast("Any", frame)  # PySpark 3.5
    if hasattr(old, "_collect_as_arrow"):
        return pa.Table.from_batches(old._collect_as_arrow(), arrow_schema(frame.schema))
    client = old._session.client
    return client.to_table(old._plan.to_proto(client))[0]


def from_arrow(spark: SparkSession, rows: pa.RecordBatch, schema: t.StructType) -> DataFrame:
    """A frame of rows that this process has. No Python worker gets them, but with PySpark 3.5.

    A worker that has not imported `tidelake.spark` prints a traceback when idle: see `tidelake.spark.idle`.
    """
    if VERSION >= (4, 0):
        return spark.createDataFrame(pa.Table.from_batches([rows]).cast(arrow_schema(schema)), schema)
    return spark.createDataFrame(list(zip(*(c.to_pylist() for c in rows.columns), strict=True)), schema)


def frame_of(spark: SparkSession, rows: pa.Table, schema: t.StructType) -> DataFrame:
    """As `from_arrow`, of rows in any number of batches."""
    (batch,) = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    return from_arrow(spark, batch, schema)


def arrow_schema(schema: t.StructType) -> pa.Schema:
    """The Arrow schema in which Spark takes and gives rows of `schema`."""
    if VERSION >= (4, 2):
        return arrow_types.to_arrow_schema(schema, timezone="UTC")
    return arrow_types.to_arrow_schema(schema)


def spark_type(kind: pa.DataType) -> t.DataType:
    """The type of a column whose Arrow type is one that Spark has; without a zone: `timestamp_ntz`."""
    return arrow_types.from_arrow_type(kind, True)


def spark_schema(schema: pa.Schema) -> t.StructType:
    """The schema of a frame with the columns of an Arrow schema, whose types Spark has."""
    return t.StructType([t.StructField(f.name, spark_type(f.type), f.nullable) for f in schema])
