"""The format `tidelake` of Spark: what `spark.read` and `df.write` call.

Importing it raises `ImportError`, with the remedy, if PySpark has no data sources (3.5).
"""

from tidelake.spark.installed import RELEASE, SOURCES, VERSION

if SOURCES > VERSION:
    raise ImportError(
        f"the format 'tidelake' needs PySpark 4.0 or newer, and PySpark {RELEASE} is installed: use the "
        "functions of tidelake.spark, such as snapshot, append and sink, or pip install 'pyspark>=4.0'",
        name="pyspark.sql.datasource",
    )
