"""A tiny append: what ten new rows of three columns cost, in a lake in memory and in a directory.

    from bench.small import run; run(10_000_000)
    python -m bench.small ../before    (in turn with the code of another checkout)

*Append ms* is processor time of all threads for each of `BURST` appends, with the merges among them; *p50 ms*
is by the clock. *Calls* are of Python's functions and of C's by Python, for each append: about the same in
every run and on every machine. The least of `ROUNDS` processes counts.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType

import pyarrow as pa

import tidelake
from bench.appends import SCHEMA, inserts
from bench.fresh import Row, least, show

PLACES = ("memory", "directory")
# A multiple of how many appends are merged at once, so that each burst has as many merges.
BURST, ROUNDS = 240, 5


def burst(place: str, appends: int = BURST) -> None:
    """Append, and print what it cost: once as many appends, then twice for the numbers."""
    with tempfile.TemporaryDirectory() as name:
        url = f"memory://{Path(name).name}" if place == "memory" else str(Path(name) / "lake")
        with tidelake.open(url) as lake:
            collection, tables = lake.create("c", SCHEMA, key=["key"]), inserts(3 * appends)
            timed(collection, islice(tables, appends))
            processor_s = time.process_time()
            seconds = timed(collection, islice(tables, appends))
            processor_s = time.process_time() - processor_s
            calls = counted(collection, islice(tables, appends))
    row = {
        "append_ms": 1_000 * processor_s / appends,
        "p50_ms": 1_000 * statistics.median(seconds),
        "calls": calls / appends,
    }
    print(json.dumps(row))


def timed(collection: tidelake.Collection, tables: Iterator[pa.Table]) -> list[float]:
    """Seconds of each append by the clock."""
    found = []
    for table in tables:
        start = time.perf_counter()
        collection.append(table)
        found.append(time.perf_counter() - start)
    return found


def counted(collection: tidelake.Collection, tables: Iterator[pa.Table]) -> int:
    """Calls that the appends make in this thread."""
    calls = 0

    def profile(_frame: FrameType, event: str, _given: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(profile)
    try:
        for table in tables:
            collection.append(table)
    finally:
        sys.setprofile(None)
    return calls


def run(rows: int = 10_000_000, before: str | None = None) -> dict[str, Row]:
    """With few rows asked for, a burst is shorter."""
    appends = max(1, min(BURST, rows // 100))
    found: dict[str, Row] = {}
    for place in PLACES:
        code = f"from bench.small import burst; burst({place!r}, {appends})"
        told = least(code, ROUNDS, before)
        found |= {f"{place}, {name}" if before else place: row for name, row in told.items()}
    return found


if __name__ == "__main__":
    show(run(before=(sys.argv[1:] or [None])[0]))
