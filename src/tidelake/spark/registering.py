"""Registering the format `tidelake` with a session.

Apart from the format itself, whose modules need a PySpark with data sources in Python.
"""

from pyspark.sql import SparkSession

from tidelake.spark.installed import SOURCES
from tidelake.spark.reading.holds import follow
from tidelake.spark.versions import needs


def register(spark: SparkSession) -> None:
    """Register the format `tidelake` with a session; most sessions find it by themselves.

    Reads by the format hold their parts for `holdFor`. After this call the holds also end with this process,
    or by `release()`; not under Spark Connect, where the planner is on another machine.

    Raises:
        UsageError: this PySpark has no data sources in Python; the functions of `tidelake.spark` need none.
    """
    needs(
        "the format 'tidelake'",
        SOURCES,
        "use the functions of tidelake.spark, such as snapshot, append and sink",
    )
    from tidelake.spark.source.format import TidelakeSource

    spark.dataSource.register(TidelakeSource)
    follow(spark)
