"""Appends into an arrangement: what merging beside them costs, and how much memory they take.

    from bench.arrangement_spine import run; run(10_000_000)
    python -m bench.arrangement_spine FOLDER BUDGET_BYTES BYTES    (a process that is held to a budget)

An append brings ten thousand updates of random keys, one in ten of them a retraction of a row that was
appended before. *Throughput* appends all rows with merging paused and with merging on, waiting included, in
turn. *Latency* appends every ten milliseconds while ten million rows become one batch, and before that, while
nothing is merged.
*Budget* is a process of its own that may hold so much memory, all told, and appends five times as much.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.kernels import once
from bench.peak import peak_mib
from bench.texts import texts
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.config import MIB
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.env import Env
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain

INSERT_ROWS = 10_000
# Every tenth row takes one away that came in so many appends before.
RETRACTED, BEHIND = 10, 7
BUDGET_MIB, TIMES = 768, 5
PAUSE_S = 0.01
SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64()), ("name", pa.string())])
LAYOUT = Layout(schema_from_arrow(SCHEMA, ["key"]), TimeDomain())
# All in memory.
PLENTY = ArrangementConfig(memory_budget_bytes=64 * 1024 * MIB)
Numbers = dict[str, float | list[float]]


def drawn(n: int) -> np.ndarray:
    """The keys of an append."""
    return np.random.default_rng(n).integers(0, 1 << 40, INSERT_ROWS)


def updates(n: int) -> pa.Table:
    """The rows of the nth append."""
    key, diff = drawn(n), np.ones(INSERT_ROWS, np.int64)
    if n >= BEHIND:
        key[::RETRACTED] = drawn(n - BEHIND)[1::RETRACTED]
        diff[::RETRACTED] = -1
    times = pa.array(np.full(INSERT_ROWS, n))
    return pa.Table.from_arrays(
        [pa.array(key), pa.array(key % 1_000), texts(key, 16), times, pa.array(diff)], schema=LAYOUT.arrow
    )


def appended(spine: AsyncSpine, tables: list[pa.Table], first: int = 0, pause_s: float = 0.0) -> list[float]:
    """Append tables, with `since` behind them; the seconds of each."""
    seconds = []
    for n, table in enumerate(tables, first):
        if pause_s:
            time.sleep(pause_s)
        began = time.perf_counter()
        spine.append(table)
        seconds.append(time.perf_counter() - began)
        spine.advance_since(Frontier.of(max(0, n - 1)))
    return seconds


def throughput(rows: int) -> Numbers:
    tables = [updates(n) for n in range(max(1, rows // INSERT_ROWS))]
    taken: dict[bool, list[float]] = {False: [], True: []}
    waited = batches = merges = 0.0
    for turn in range(4):
        merging = turn % 2 == 1
        with AsyncSpine(LAYOUT, PLENTY, env=Env()) as spine:
            if not merging:
                spine.pause()
            taken[merging].append(once(lambda spine=spine: appended(spine, tables)))
            if merging:
                report = spine.report()
                waited, batches, merges = report.waited_s, report.batches, report.merged.rows_read
    count = len(tables) * INSERT_ROWS
    off, on = min(taken[False]), min(taken[True])
    return {
        "paused_rows_s": count / off,
        "merging_rows_s": count / on,
        "merging_to_paused": off / on,
        "waited_s": waited,
        "batches_left": batches,
        "rows_merged_to_appended": merges / count,
    }


def latency(rows: int) -> Numbers:
    tables = [updates(n) for n in range(max(8, rows // INSERT_ROWS))]
    later = [updates(n) for n in range(len(tables), len(tables) + 400)]
    with AsyncSpine(LAYOUT, PLENTY, env=Env()) as spine:
        spine.pause()
        # In few batches, so that nobody waits for their number.
        for first in range(0, len(tables), 50):
            spine.append(pa.concat_tables(tables[first : first + 50]))
        quiet = appended(spine, later[:100], len(tables), PAUSE_S)
        spine.resume()
        spine.merge_nowait()
        busy: list[float] = []
        while spine.report().sweeping:
            busy += appended(spine, [later[100 + len(busy) % 300]], len(tables) + 100 + len(busy), PAUSE_S)
        report = spine.report()
    ms = [seconds * 1000 for seconds in busy]
    median = statistics.median(quiet) * 1000
    p99 = float(np.quantile(ms, 0.99))
    return {
        "quiet_median_ms": median,
        "quiet_p99_ms": float(np.quantile(quiet, 0.99)) * 1000,
        "merging_median_ms": statistics.median(ms),
        "merging_p99_ms": p99,
        "merging_max_ms": max(ms),
        "p99_to_quiet_median": p99 / median,
        "p99_to_median": p99 / statistics.median(ms),
        "appends": len(ms),
        "waits": report.waits,
        "rows_merged": report.merged.rows_read,
    }


def held(folder: str, budget: int, size: int) -> Numbers:
    """Append so many bytes of rows into a process that may hold a budget; what it held at most."""
    began_mib = peak_mib()
    config = ArrangementConfig(memory_budget_bytes=budget, process_budget_bytes=budget)
    done = 0
    began = time.perf_counter()
    with AsyncSpine(LAYOUT, config, directory=folder, env=Env()) as spine:
        for n, table in enumerate(forever()):
            done += table.nbytes
            spine.append(table)
            spine.advance_since(Frontier.of(max(0, n - 1)))
            if done >= size:
                break
        report = spine.report()
        return {
            "budget_mib": budget / MIB,
            "imports_mib": began_mib,
            "appended_mib": done / MIB,
            "peak_rss_mib": peak_mib(),
            "peak_to_budget": peak_mib() * MIB / budget,
            "on_disk_mib": report.bytes_on_disk / MIB,
            "seconds": time.perf_counter() - began,
            "waited_s": report.waited_s,
            "batches_left": report.batches,
        }


def forever() -> Iterator[pa.Table]:
    n = 0
    while True:
        yield updates(n)
        n += 1


def budget(rows: int) -> Numbers:
    # So that the least runs of the tests stay short: a full measurement appends five times the budget.
    size = int(min(1.0, rows / 10_000_000) * TIMES * BUDGET_MIB * MIB)
    with tempfile.TemporaryDirectory() as folder:
        asked = [sys.executable, "-m", "bench.arrangement_spine", folder, str(BUDGET_MIB * MIB), str(size)]
        done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True)
    found: Numbers = json.loads(done.stdout)
    return found


def run(rows: int) -> dict[str, Numbers]:
    return {"throughput": throughput(rows), "latency": latency(rows), "budget": budget(rows)}


if __name__ == "__main__":
    print(json.dumps(held(str(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))))
