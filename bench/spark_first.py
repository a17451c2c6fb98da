"""What the first work of a Spark session takes, beside what later work of the same kind takes.

    from bench.spark_first import run; run(10_000_000)
    python -m bench.spark_first ../before    (in turn with the code of another checkout)

Each kind of work has sessions of its own, in which it is done `TIMES` times: a read by Spark alone of the
rows that an upsert brings, an upsert of them by `tidelake.spark.upsert`, and a read of the collection by the
format `tidelake`. *Later* is the least but for the first. Processor time is that of the driver's Python, the
JVM and the Python workers together; the session was started before. The least of `ROUNDS` sessions counts.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import tidelake
from bench.fresh import Row, least, show
from bench.peers.spark.processes import cpu_s
from bench.peers.workload import SCHEMA, rows_of
from tidelake import spark as ts

ROUNDS, TIMES = 3, 4
# An upsert brings this fraction of the rows.
SHARE = 100
KINDS = {"read by Spark alone": "parquet", "upsert": "upsert", "read by the format": "format"}
CODE = "import json; from bench.spark_first import session; print(json.dumps(session({kind!r}, {folder!r})))"


def session(kind: str, folder: str) -> Row:
    """Do one kind of work in a new session, on what `run` left in a folder."""
    spark = ts.local_session("first", 2)
    ts.register(spark)

    def rows(number: int) -> Any:
        return spark.read.parquet(f"{folder}/{number}.parquet")

    def read(frame: Any) -> None:
        frame.selectExpr("sum(id)", "sum(n)", "sum(length(s))").first()

    with tidelake.open(f"{folder}/lake") as lake:
        # Upserts of each session bring news to a fork of its own.
        c = lake.fork("c", f"of {time.time_ns()}")
        work: dict[str, Callable[[int], object]] = {
            "parquet": lambda number: read(rows(number)),
            "upsert": lambda number: ts.upsert(c, rows(number)),
            "format": lambda _: read(spark.read.format("tidelake").load(f"{lake.url}/c")),
        }
        taken = [timed(work[kind], number) for number in range(TIMES)]
    spark.stop()
    (first_s, first_cpu_s), *others = taken
    later_s, later_cpu_s = map(min, zip(*others, strict=True))
    return {
        "first_s": first_s,
        "later_s": later_s,
        "first_cpu_s": first_cpu_s,
        "later_cpu_s": later_cpu_s,
        "first_to_later": first_cpu_s / later_cpu_s,
    }


def timed(work: Callable[[int], object], number: int) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    start_s, start_cpu_s = time.perf_counter(), cpu_s()
    work(number)
    return time.perf_counter() - start_s, cpu_s() - start_cpu_s


def run(rows: int = 10_000_000, before: str | None = None) -> dict[str, Row]:
    """The collection has a tenth of the rows that are asked for."""
    count = max(SHARE, rows // 10)
    rng = np.random.default_rng(1)
    found: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        with tidelake.open(Path(folder, "lake")) as lake:
            lake.create("c", SCHEMA, key=["id"]).append(rows_of(rng.permutation(count), 0))
        for number in range(TIMES):
            changed = rng.choice(count, count // SHARE, replace=False)
            pq.write_table(rows_of(changed, 1 + number), Path(folder, f"{number}.parquet"))
        for name, kind in KINDS.items():
            told = least(CODE.format(kind=kind, folder=folder), ROUNDS, before)
            found |= {name if label == "now" else f"{name}, {label}": row for label, row in told.items()}
    return found


if __name__ == "__main__":
    show(run(before=(sys.argv[1:] or [None])[0]))
