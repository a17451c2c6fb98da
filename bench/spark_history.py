"""Reads by Spark of a collection with a long history, at rest, against Parquet files and a group-by.

    from bench.spark_history import run; run(10_000_000)

The collection has a tenth of the rows asked for, and ten times as many updates as were asked for: upserts of
uniform keys. *plain* is `spark.read.parquet` of the rows of the newest snapshot, as Spark itself wrote them;
like the snapshot, it is planned in each round. *group by* computes the changes of the last thousandth of the
times from all updates, in Parquet files.
"""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import tidelake
from bench.history import APPEND_ROWS, CONFIG, Kept, at_rest, made
from bench.kernels import best
from bench.spark import noop
from bench.workload import SCHEMA
from tidelake.spark import changes, local_session, snapshot

_APPENDS = 100 * APPEND_ROWS
_PER_MILLE = 1000


def filled(folder: Path, contents: int, updates: int) -> Kept:
    """A lake and, beside it, the same updates in plain files."""
    last = rows = 0
    (folder / "raw").mkdir()
    with tidelake.open(folder / "lake", config=CONFIG) as lake:
        collection = lake.create("c", SCHEMA, key=["key"])
        for table, upper in made("upserts, uniform", contents, updates).tables(_APPENDS):
            collection.append(table, upper=upper)
            pq.write_table(table, folder / "raw" / f"{upper}.parquet")
            rows, last = rows + table.num_rows, upper - 1
    return Kept(folder / "lake", contents, rows, last, CONFIG, 0.0)


def measured(spark: Any, folder: Path, kept: Kept) -> dict[str, float]:
    """The newest snapshot and the changes of the last times, in interleaved rounds."""
    from pyspark.sql import functions as f

    with kept.open() as lake:
        c = lake.collection("c")
        snapshot(spark, c).select(*SCHEMA.names).write.parquet(str(folder / "plain"))
        plain = spark.read.parquet(str(folder / "plain"))
        raw = spark.read.parquet(str(folder / "raw"))
        after, through = kept.last - max(1, kept.last // _PER_MILLE), kept.last

        def stretch() -> Any:
            return changes(spark, c, after, through)

        def grouped() -> Any:
            """The difference of the contents at both times, from all updates."""
            later = f.sum(f.when(f.col("_time") > after, f.col("_diff")).otherwise(0))
            return raw.groupBy(*SCHEMA.names).agg(later.alias("_diff")).where("_diff != 0")

        if (found := stretch().count()) != grouped().count() or snapshot(spark, c).count() != plain.count():
            raise ValueError("Tidelake and Spark SQL disagree")
        newest_s, plain_s, stretch_s, grouped_s = best(
            lambda: noop(snapshot(spark, c)),
            lambda: noop(spark.read.parquet(str(folder / "plain"))),
            lambda: noop(stretch()),
            lambda: noop(grouped()),
        )
    return {
        "updates": kept.updates,
        "contents": kept.contents,
        "newest_to_plain": plain_s / newest_s,
        "changed_rows": found,
        "changes_to_group_by": grouped_s / stretch_s,
    }


def run(rows: int = 10_000_000) -> dict[str, dict[str, float]]:
    """As the module says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = filled(folder, rows // 10, rows * 10)
        at_rest(kept)
        spark = local_session(
            "bench", 2, **{"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "8"}
        )
        # More than 32 paths start a listing job, which would be charged to the scan.
        spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000")
        try:
            return {"upserts, uniform, at rest": measured(spark, folder, kept)}
        finally:
            spark.stop()
