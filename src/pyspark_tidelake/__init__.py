"""What Spark finds by itself: it looks into every module named `pyspark_...` for a `DefaultSource`."""

from tidelake.spark.source.format import TidelakeSource as DefaultSource

__all__ = ["DefaultSource"]
