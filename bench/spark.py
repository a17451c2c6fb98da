"""Snapshots and merges with Spark against its own Parquet scan and Spark SQL, in one process, as ratios.

    from bench.spark import run; run(10_000_000)

Shape: int64 key, 32-character string, double, int64, int64 time; of 10M updates 5.3M rows are left. Each
read goes to Spark's noop sink. *scan* decodes the very parts and consolidates nothing: no reader in Spark can
be faster. *plain* is `spark.read.parquet` of the answer's rows, as Spark itself wrote them. *rewrite* is a
merge by Spark SQL: range partitions, group, sort, write.
"""

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidelake
from bench.embedded import forget, merge_tasks
from bench.kernels import best
from bench.texts import texts
from tidelake.spark import local_session, snapshot
from tidelake.spark.jobs.merge import workers

TIMES = 1_000
SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("x", pa.float64()),
        ("n", pa.int64()),
    ]
)


def updates(rows: int, seed: int, space: int, lower: int, upper: int) -> pa.Table:
    """Random updates of `space` rows, at times of `[lower, upper)`; half of them take a row away again."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, space, rows)
    diffs = np.where(rng.random(rows) < 0.5, -1, 1)
    columns = [key, texts(key, 32), key * 0.5, key % 1000, rng.integers(lower, upper, rows), diffs]
    return pa.table([pa.array(c) for c in columns], names=[*SCHEMA.names, "_time", "_diff"])


def store(folder: Path, rows: int, runs: int) -> tidelake.Collection:
    # No merge but the measured one: as many runs are to be left as were appended.
    config = tidelake.Config(merge_budget_s=0.0, runs_max=10_000)
    c = tidelake.open(folder, config=config).create("c", SCHEMA, key=["key"])
    for i in range(runs):
        lower, upper = TIMES * i // runs, TIMES * (i + 1) // runs
        c.append(updates(rows // runs, i, rows, lower, upper), upper=upper)
    c.advance_since(TIMES - 1)
    return c


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def plain(spark: Any, frame: Any, folder: Path) -> Any:
    """The rows of a DataFrame, read back from Parquet that Spark wrote."""
    path = str(folder / "plain")
    frame.select(*SCHEMA.names).write.mode("overwrite").parquet(path)
    return spark.read.parquet(path)


def measured(spark: Any, c: tidelake.Collection, folder: Path, rows: int, cores: int) -> dict[str, float]:
    from pyspark.sql import functions as f

    parts = [p for item in c.state().spine for p in item.batch.parts()]
    paths = [str(folder / "blobs" / p.name) for p in parts]

    def grouped(raw: Any) -> Any:
        return raw.groupBy(*SCHEMA.names).agg(f.sum("_diff").alias("_diff")).where("_diff != 0")

    def raw() -> Any:
        return spark.read.parquet(*paths).where(f.col("_time") <= TIMES - 1)

    left = snapshot(spark, c, TIMES - 1).count()
    if grouped(raw()).count() != left:
        raise ValueError("the planned read and Spark SQL disagree")
    plain_frame = plain(spark, snapshot(spark, c, TIMES - 1), folder.parent)

    def copied() -> None:
        spark.read.parquet(*paths).write.mode("overwrite").parquet(str(folder.parent / "copy"))

    def rewritten() -> None:
        # Ranges of the key serve the grouping as well: one shuffle.
        ranged = grouped(raw().repartitionByRange(4 * cores, "key")).sortWithinPartitions(*SCHEMA.names)
        ranged.write.mode("overwrite").parquet(str(folder.parent / "rewritten"))

    def merged() -> None:
        """The whole merge but for the commit, so that it can be measured again on the same inputs."""
        forget(c, workers(spark, "bench", cores).run(merge_tasks(c, cores)))

    planned_s, plain_s, grouped_s, raw_s, merge_s, copy_s, rewrite_s = best(
        lambda: noop(snapshot(spark, c, TIMES - 1)),
        lambda: noop(plain_frame),
        lambda: noop(grouped(raw())),
        lambda: noop(spark.read.parquet(*paths)),
        merged,
        copied,
        rewritten,
    )
    return {
        "rows": rows,
        "rows_left": left,
        "copy_rows_s": rows / copy_s,
        "scan_rows_s": rows / raw_s,
        "group_by_rows_s": rows / grouped_s,
        "merge_rows_s": rows / merge_s,
        "merge_to_copy": copy_s / merge_s,
        "merge_to_rewrite": rewrite_s / merge_s,
        "snapshot_rows_s": rows / planned_s,
        "snapshot_to_plain": plain_s / planned_s,
        "snapshot_to_scan": raw_s / planned_s,
        "snapshot_to_group_by": grouped_s / planned_s,
    }


def distinct(rows: int) -> pa.Table:
    """So many different rows, in no order of their keys."""
    key = np.random.default_rng(0).permutation(rows)
    return pa.table([pa.array(key), texts(key, 32), pa.array(key * 0.5), pa.array(key % 1000)], schema=SCHEMA)


def compacted(spark: Any, folder: Path, rows: int) -> dict[str, float]:
    """A shard after a merge up to its last time, by every way in, against the same rows as plain Parquet."""
    c = tidelake.open(folder / "lake").create("c", SCHEMA, key=["key"])
    c.append(distinct(rows))
    c.merge()
    plain_frame = plain(spark, snapshot(spark, c), folder)

    def by_format() -> Any:
        return spark.read.format("tidelake").load(f"{(folder / 'lake').as_uri()}/c")

    ways: dict[str, Callable[[], Any]] = {
        "helper": lambda: snapshot(spark, c),
        "by_workers": lambda: snapshot(spark, c, native=False),
        "format": by_format,
        "plain": lambda: plain_frame,
    }
    for name, way in ways.items():
        if way().count() != rows:
            raise ValueError(f"the read by {name} and the plain one disagree")
    # Each lambda has a way of its own.
    seconds = dict(zip(ways, best(*(lambda way=way: noop(way()) for way in ways.values())), strict=True))
    found: dict[str, float] = {"rows": rows, "plain_rows_s": rows / seconds["plain"]}
    return found | {
        f"{name}_to_plain": seconds["plain"] / s for name, s in seconds.items() if name != "plain"
    }


def run(
    rows: int = 10_000_000, runs: tuple[int, ...] = (1, 2, 8, 16, 64), cores: int = 2
) -> dict[str, dict[str, float]]:
    """Ratios by number of runs; above 1 mean that Tidelake is faster."""
    spark = local_session(
        "bench", cores, **{"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "8"}
    )
    # More than 32 paths start a listing job, which would be charged to the scan.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000")
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        found["compacted"] = compacted(spark, Path(name), rows)
    for count in runs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "lake"
            c = store(folder, rows, count)
            gc.collect()
            found[f"R={count}"] = measured(spark, c, folder, rows, cores)
    spark.stop()
    return found


if __name__ == "__main__":
    for name, numbers in run().items():
        print(name, numbers)
