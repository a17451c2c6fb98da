"""Spark's interface of data sources in Python, as the PySpark that is installed has it.

Owns what its versions differ in. 4.0 hands Arrow batches to a stream's writer only if it is also a writer of
batch jobs; 4.1 has a class for it. Up to 4.1 a stream's reader tells how far it has come without being told
where the batch begins, nor a limit; Spark asks once for a query with `availableNow`.
"""

from typing import TYPE_CHECKING

from tidelake.spark.installed import VERSION

# From this version on, Spark tells a stream's reader where a batch begins, and how large it may be.
LIMITS = (4, 2)

if TYPE_CHECKING or VERSION >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """A stream's writer that gets Arrow batches: 4.0 gives them to whatever is an Arrow writer."""


if TYPE_CHECKING or VERSION >= LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """Never given: this PySpark knows no limits."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    class ReadMaxRows(ReadLimit):
        """A limit on rows."""

    class SupportsTriggerAvailableNow:
        """Nothing: this PySpark asks a reader once for a query with `availableNow`."""


__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
