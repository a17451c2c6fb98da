"""Run by an environment with PySpark: compares tables that a file of JSON lists. Also given: jars."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    """Print the differences of each table, as JSON, and which statements would change one."""
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    )
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", sys.argv[2])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.extensions", extensions)
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .getOrCreate()
    )
    found = []
    for one in json.loads(Path(sys.argv[1]).read_text()):
        reader = spark.read.format(one["format"])
        if one["format"] == "delta":
            table = (reader if one["newest"] else reader.option("versionAsOf", one["version"])).load(
                one["table"]
            )
        else:
            table = reader.load(one["table"] if one["newest"] else one["metadata"])
        wanted = spark.read.parquet(one["wanted"])
        differ = [a.exceptAll(b).count() for a, b in ((table, wanted), (wanted, table))]
        found.append([*differ, table.columns])
        if one["format"] == "delta" and one["newest"]:
            for statement in ("VACUUM delta.`{}`", "DELETE FROM delta.`{}` WHERE id = 1"):
                try:
                    spark.sql(statement.format(one["table"]))
                except Exception as error:
                    if "tidelake" in str(error):
                        continue
                    raise
                raise AssertionError(f"{statement} is not refused")
    sys.stdout.write(json.dumps(found))


main()
