"""Writes with Spark against Spark's own writers of plain Parquet, in one process, as ratios.

    from bench.spark_writes import run; run(10_000_000)

Rows as in `bench.spark`. An append sorts its rows, looks at their values and commits; *plain* writes the same
DataFrame, read from the same files, as it comes. An upsert of a hundredth of the rows is compared with what a
table without keys has to do: read it, leave out the old rows, write all of it again: the fastest rounds
after the first ones, and the medians, in which a merge beside the upsert mostly is. With *nothing kept* no
part is unpacked, as for who upserts once. A micro-batch of a few rows is compared with one that does nothing,
and with one that sends its rows through a Python worker and forgets them.
"""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidelake
from bench.kernels import best
from bench.spark import SCHEMA, distinct
from bench.texts import texts
from tidelake.config import Config
from tidelake.spark import append, local_session, sink, upsert

_SHARE = 100
_BATCHES, _BATCH_ROWS, _WARM = 30, 10, 8
_UPSERTS, _WARM_UPSERTS = 7, 4


def source(spark: Any, folder: Path, rows: int, files: int = 4) -> Any:
    """Rows in no order of their keys, as plain Parquet."""
    table = distinct(rows)
    path = folder / "source"
    path.mkdir()
    for i in range(files):
        piece = table.slice(rows * i // files, rows * (i + 1) // files - rows * i // files)
        pq.write_table(piece, path / f"{i}.parquet", compression="snappy", row_group_size=1 << 20)
    return spark.read.parquet(str(path))


def appends(folder: Path, frame: Any, rows: int) -> dict[str, float]:
    lake = tidelake.open(folder / "appended")
    numbers = count()

    def appended(**more: Any) -> None:
        name = f"c{next(numbers)}"
        append(lake.create(name, SCHEMA, key=["key"]), frame, **more)
        lake.drop(name)

    def written() -> None:
        frame.write.mode("overwrite").parquet(str(folder / "written"))

    def ordered() -> None:
        ranged = frame.repartitionByRange(4, "key").sortWithinPartitions(*SCHEMA.names)
        ranged.write.mode("overwrite").parquet(str(folder / "ordered"))

    append_s, ranged_s, plain_s, ordered_s = best(appended, lambda: appended(ranges=4), written, ordered)
    return {
        "rows": rows,
        "append_rows_s": rows / append_s,
        "append_to_plain": plain_s / append_s,
        "backfill_rows_s": rows / ranged_s,
        "backfill_to_sorted_plain": ordered_s / ranged_s,
    }


def changed(keys: np.ndarray, version: int) -> pa.Table:
    columns = [
        pa.array(keys),
        texts(keys + version, 32),
        pa.array(keys * 0.5),
        pa.array(keys % 1000 + version),
    ]
    return pa.table(columns, schema=SCHEMA)


def upserts(spark: Any, folder: Path, frame: Any, rows: int) -> dict[str, dict[str, float]]:
    """Of keys anywhere, also without unpacked parts, and of keys that lie together, as the newest ones do."""
    rng, versions = np.random.default_rng(1), count(1)
    few = max(1, rows // _SHARE)

    def anywhere() -> np.ndarray:
        return rng.choice(rows, few, replace=False)

    ways: dict[str, tuple[Callable[[], np.ndarray], Config]] = {
        "keys anywhere": (anywhere, Config()),
        "keys together": (lambda: np.arange(few) + rng.integers(0, rows - few), Config()),
        "keys anywhere, nothing kept": (anywhere, Config(lookup_cache_bytes=0)),
    }
    found: dict[str, dict[str, float]] = {}
    for name, (keys, config) in ways.items():
        lake = tidelake.open(folder / "upserted", config=config)
        events = folder / f"events-{name}"
        c = lake.create(name, SCHEMA, key=["key"])
        append(c, frame, ranges=4)
        c.merge()

        def made(keys: Callable[[], np.ndarray] = keys, events: Path = events) -> Any:
            """Other values each time, so that no upsert finds its own."""
            pq.write_table(changed(keys(), next(versions)), events)
            return spark.read.parquet(str(events))

        seconds: dict[str, list[float]] = {"upsert": [], "rewrite": []}
        for _ in range(_WARM_UPSERTS + _UPSERTS):
            new = made()
            (upsert_s,) = best(lambda c=c, new=new: upsert(c, new), repeat=1)
            (rewrite_s,) = best(lambda new=new: rewritten(frame, new, folder), repeat=1)
            seconds["upsert"].append(upsert_s)
            seconds["rewrite"].append(rewrite_s)
        upserts_s, rewrites_s = (taken[_WARM_UPSERTS:] for taken in seconds.values())
        found[f"upsert, {name}"] = {
            "rows": rows,
            "events": few,
            "first_upsert_s": seconds["upsert"][0],
            "upsert_s": min(upserts_s),
            "rewrite_s": min(rewrites_s),
            "upsert_to_rewrite": min(rewrites_s) / min(upserts_s),
            "median_upsert_to_rewrite": median(rewrites_s) / median(upserts_s),
        }
        if c.snapshot(columns=["key"]).read_all().num_rows != rows:
            raise ValueError("an upsert has added or lost rows")
    return found


def rewritten(frame: Any, new: Any, folder: Path) -> None:
    kept = frame.join(new.select("key"), "key", "left_anti")
    kept.select(*SCHEMA.names).unionByName(new).write.mode("overwrite").parquet(str(folder / "rewritten"))


def micro_batches(spark: Any, folder: Path) -> dict[str, float]:
    """Milliseconds of a micro-batch: the median of those that follow the first ones."""
    lake = tidelake.open(folder / "streamed")
    schema = pa.schema([pa.field("key", pa.int64(), nullable=False), ("at", pa.timestamp("us", tz="UTC"))])
    helped, formatted = (lake.create(name, schema, key=["key"]) for name in ("helped", "formatted"))

    def stream() -> Any:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _BATCH_ROWS).load()
        return rows.selectExpr("value AS key", "timestamp AS at").writeStream

    def passed(frame: Any, _: int) -> None:
        """What any writer in Python needs of Spark: a job that sends the rows through a worker."""
        frame.mapInArrow(lambda batches: batches, frame.schema).write.format("noop").mode("append").save()

    ways: dict[str, Callable[[], Any]] = {
        "empty": lambda: stream().foreachBatch(lambda _frame, _number: None),
        "noop": lambda: stream().format("noop"),
        "worker": lambda: stream().foreachBatch(passed),
        "helper": lambda: stream().foreachBatch(sink(helped)),
        "format": lambda: stream().format("tidelake").option("path", f"{lake.url}/formatted"),
    }
    took = {
        name: _batch_ms(way().option("checkpointLocation", str(folder / f"checkpoint-{name}")))
        for name, way in ways.items()
    }
    for c in (helped, formatted):
        if c.snapshot().read_all().num_rows < _BATCHES * _BATCH_ROWS:
            raise ValueError("a micro-batch is missing")
    return {
        **{f"{name}_ms": ms for name, ms in took.items()},
        "helper_over_empty_ms": took["helper"] - took["empty"],
        "helper_over_worker_ms": took["helper"] - took["worker"],
        "format_over_noop_ms": took["format"] - took["noop"],
        "format_over_worker_ms": took["format"] - took["worker"],
    }


def _batch_ms(writer: Any) -> float:
    query = writer.start()
    try:
        while (last := query.lastProgress) is None or last["batchId"] < _BATCHES:
            if query.exception() is not None:
                raise query.exception()
            query.awaitTermination(0.1)
        # Not by rows: an empty batch does not even read them.
        done = [p["durationMs"] for p in query.recentProgress if "addBatch" in p["durationMs"]]
        taken = [ms["triggerExecution"] for ms in done]
    finally:
        query.stop()
    return float(median(taken[_WARM:]))


def run(rows: int = 10_000_000, cores: int = 2) -> dict[str, dict[str, float]]:
    """Ratios above 1 mean that Tidelake is faster; overheads are in milliseconds."""
    spark = local_session(
        "bench",
        cores,
        **{
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": "8",
            "spark.sql.streaming.numRecentProgressUpdates": str(4 * _BATCHES),
        },
    )
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frame = source(spark, folder, rows)
        found["append"] = appends(folder, frame, rows)
        found |= upserts(spark, folder, frame, rows)
        found["micro-batch"] = micro_batches(spark, folder)
    spark.stop()
    return found


if __name__ == "__main__":
    for name, numbers in run().items():
        print(name, numbers)
