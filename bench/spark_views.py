"""Refreshes of views by Spark beside its own recompute of the query, and of many views by one call.

    from bench.spark_views import run; run(10_000_000)

A view joins facts with a tenth as many customers and sums by a thousand regions. It is refreshed after
changes of 0.1 and 1 percent of the facts, half of them gone and half new, at random places; *recompute* is
the query over the same rows as plain Parquet, whose answer is compared with nothing. Then many views over ten
inputs are refreshed by one call after ten changes of each input, of one, and of none.

Milliseconds are medians of `ROUNDS`, by the clock and of the processor: of driver, JVM and workers
together. Memory is the most that these had until then.
"""

import json
import multiprocessing
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidelake
from bench.peers.spark.processes import Peaks
from bench.spark import noop
from bench.spark_first import timed
from tidelake import spark as ts

ROUNDS, REGIONS, CHUNK = 3, 1_000, 2_000_000
PERMILLE = (1, 10)
FACTS = {"id": "int64", "customer": "int64", "amount": "int64", "day": "int64"}
CUSTOMERS = {"customer": "int64", "region": "int64"}
QUERY = """
SELECT c.region, count(*) AS n, sum(f.amount) AS amount
FROM facts f JOIN customers c ON f.customer = c.customer GROUP BY c.region
"""
# Of ten inputs, of which `b` is the next one.
INPUTS, VIEWS, INPUT_ROWS, CHANGED = 10, 100, 100_000, 10
TEXTS = (
    "SELECT id, x * 2 AS y FROM {a} WHERE x > 900",
    "SELECT k, count(*) AS n, sum(x) AS s FROM {a} GROUP BY k",
    "SELECT k, max(x) AS most FROM {a} GROUP BY k",
    "SELECT DISTINCT x FROM {a}",
    "SELECT {a}.id, {a}.x, {b}.x AS z FROM {a} JOIN {b} ON {a}.k = {b}.id",
    "SELECT {b}.x, count(*) AS n, sum({a}.x) AS s FROM {a} JOIN {b} ON {a}.k = {b}.id GROUP BY {b}.x",
    "SELECT {a}.id, {b}.x AS z FROM {a} LEFT JOIN {b} ON {a}.k = {b}.id AND {b}.x > 500",
    "SELECT id, x FROM {a} WHERE k NOT IN (SELECT id FROM {b} WHERE x > 500)",
    "SELECT k, id FROM {a} QUALIFY row_number() OVER (PARTITION BY k ORDER BY x, id) < 3",
    "SELECT id, x FROM {a} WHERE x > (SELECT avg(x) FROM {b} WHERE {b}.k = {a}.k)",
)
Row = dict[str, float]


def facts(ids: np.ndarray, rows: int) -> pa.Table:
    """The facts of some ids: the customer of each is any of them, as the bits of the id are mixed."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = ((mixed ^ (mixed >> np.uint64(27))) >> np.uint64(1)).astype(np.int64)
    columns = [ids, mixed % max(1, rows // 10), (mixed >> 20) % 10_000, ids // 1_000]
    return pa.table(dict(zip(FACTS, columns, strict=True)))


def stored(place: str, rows: int) -> None:
    """Store the facts and customers as collections, and as Parquet."""
    lake, ids = tidelake.open(f"{place}/lake"), np.arange(rows)
    customers = np.arange(max(1, rows // 10))
    dimension = pa.table({"customer": customers, "region": customers * 7_919 % REGIONS})
    lake.create("customers", CUSTOMERS, key=["customer"]).append(dimension, time=0)
    pq.write_table(dimension, f"{place}/customers.parquet")
    Path(place, "facts").mkdir()
    c = lake.create("facts", FACTS, key=["id"])
    with c.builder(sorted=True) as builder:
        for start in range(0, rows, CHUNK):
            chunk = facts(ids[start : start + CHUNK], rows)
            pq.write_table(chunk, f"{place}/facts/{start}.parquet")
            builder.add(chunk.append_column("_time", pa.array(np.zeros(len(chunk), np.int64))))
        c.distributed.append_batches([builder.finish(tidelake.Frontier.of(1))], lower=0, upper=1)
    lake.close()


def changed(rows: int, start: int, count: int) -> pa.Table:
    """Removes some facts and adds as many. No two changes remove the same fact."""
    half = np.arange(start, start + count // 2)
    pairs = [(facts(half * 32_416_190_071 % rows, rows), -1), (facts(rows + half, rows), 1)]
    return pa.concat_tables(one.append_column("_diff", pa.array([diff] * len(one))) for one, diff in pairs)


def median(taken: list[tuple[float, float]], peaks: Peaks) -> Row:
    """Of all but the first; and the memory until now."""
    peaks.look()
    ms, processor_ms = (1_000 * statistics.median(one) for one in zip(*taken[1:], strict=True))
    return {"ms": ms, "processor_ms": processor_ms} | {f"{name}_mib": mib for name, mib in peaks.mib.items()}


def large(spark: Any, place: str, rows: int) -> dict[str, Row]:
    """One view of facts and customers."""
    for name, path in (("facts", "facts"), ("customers", "customers.parquet")):
        spark.read.parquet(f"{place}/{path}").createOrReplaceTempView(name)
    peaks, turns, found, start = Peaks(), range(1 + ROUNDS), dict[str, Row](), 0
    with tidelake.open(f"{place}/lake") as lake:
        made = timed(lambda _: ts.view(spark, lake, "by_region", QUERY), 0)
        found["the view is made"] = median([made, made], peaks)
        for permille in PERMILLE:
            taken, again, count = [], [], rows * permille // 1_000
            for turn in turns:
                (upper,) = lake["facts"].upper
                lake["facts"].append(changed(rows, start, count), time=upper)
                lake["customers"].seal(upper + 1)
                start += count
                taken.append(timed(lambda _: ts.refresh(spark, lake), turn))
                again.append(timed(lambda _: noop(spark.sql(QUERY)), turn))
            row, recompute = median(taken, peaks), median(again, peaks)
            ratios = {
                f"recompute_to_refresh_{one}": recompute[one] / row[one] for one in ("ms", "processor_ms")
            }
            found[f"refresh, {permille / 10} % changed"] = row | ratios
            found[f"recompute, {permille / 10} % changed"] = recompute
        if not ts.verify(spark, lake, "by_region").equal:
            raise ValueError("the view is not its query")
    return found


def many(spark: Any, place: str, views: int) -> dict[str, Row]:
    """Many views over ten inputs; the numbers are those of one view."""
    peaks, turns, next_id = Peaks(), range(1 + ROUNDS), INPUT_ROWS
    with tidelake.open(f"{place}/many") as lake:
        for number in range(INPUTS):
            c = lake.create(f"i{number}", dict.fromkeys(("id", "k", "x"), "int64"), key=["id"])
            c.append(few(np.arange(INPUT_ROWS)), time=0)
        for number in range(views):
            text, of = TEXTS[number // INPUTS % len(TEXTS)], number % INPUTS
            ts.view(spark, lake, f"v{number}", text.format(a=f"i{of}", b=f"i{(of + 1) % INPUTS}"))
        found = dict[str, Row]()
        for name, inputs in (("all inputs", INPUTS), ("one input", 1), ("no input", 0)):
            taken = []
            for turn in turns:
                (upper,) = lake["i0"].upper
                for number in range(INPUTS):
                    c = lake[f"i{number}"]
                    if number < inputs:
                        c.append(few(np.arange(next_id, next_id + CHANGED)), time=upper)
                    else:
                        c.seal(upper + 1)
                next_id += CHANGED
                clock_s, processor_s = timed(lambda _: ts.refresh(spark, lake), turn)
                taken.append((clock_s / views, processor_s / views))
            found[f"{views} views, {name} changed"] = median(taken, peaks)
        for number in range(0, views, 1 + views // 10):
            if not ts.verify(spark, lake, f"v{number}").equal:
                raise ValueError(f"view v{number} is not its query")
    return found


def few(ids: np.ndarray) -> pa.Table:
    """Rows of an input; some three have one `k`."""
    return pa.table({"id": ids, "k": ids * 7_919 % (INPUT_ROWS // 3), "x": ids * 104_729 % 1_000})


def run(rows: int = 10_000_000, views: int = VIEWS) -> dict[str, dict[str, float]]:
    """The measurements by what was done."""
    with tempfile.TemporaryDirectory() as place:
        # In a process of its own, as its memory is not measured.
        storing = multiprocessing.get_context("spawn").Process(target=stored, args=(place, rows))
        storing.start()
        storing.join()
        if storing.exitcode:
            raise RuntimeError("the rows were not stored")
        # With less, the recompute of fifty million rows has no room for its joins.
        memory = {"spark.driver.memory": "6g", "spark.sql.shuffle.partitions": "16"}
        spark = ts.local_session("bench", 2, **memory)
        found = large(spark, place, rows) | many(spark, place, views)
        spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(run(*map(int, sys.argv[1:])), indent=1))
