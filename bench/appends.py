"""Many small appends to one shard in a lake directory: what one costs, as history grows.

    from bench.appends import run; run(1_000_000)

An append brings ten updates. *Upserts* change five of 200,000 rows that are there before: each takes the
old row away and adds the new one; `since` follows every hundred appends. *Inserts* bring ten new rows, and
history stays. *Upkeep* is upserts with `lake.upkeep()` in a thread in place of merges after an append.

The limit is what any durable log pays: one commit to SQLite, in WAL mode with full flushes, of as many
bytes as the log entries of the appends just measured. It takes turns with them, so that a slow moment of
the machine hits both.
"""

import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidelake
from bench.kernels import best, once
from bench.texts import texts
from tidelake.env import Counters, Env

KEYS, UPDATES = 200_000, 10
BINS = 200
# Appends between two looks at the limit.
TURN = 500
SINCE_EVERY = 100
SCHEMA = pa.schema(
    [pa.field("key", pa.int64(), nullable=False), ("balance", pa.int64()), ("name", pa.string())]
)
Numbers = dict[str, float | list[float]]


def rows(key: np.ndarray, version: np.ndarray, diffs: np.ndarray) -> pa.Table:
    balance = key * 1_000 + version
    columns = [pa.array(key), pa.array(balance), texts(balance, 24), pa.array(diffs)]
    return pa.table(columns, names=[*SCHEMA.names, "_diff"])


def upserts(appends: int, keys: int) -> Iterator[pa.Table]:
    """Tables of ten updates each; `base` has to be there before them."""
    rng, versions = np.random.default_rng(1), np.zeros(keys, np.int64)
    changed = UPDATES // 2
    block = min(1_000, keys // changed)
    for start in range(0, appends, block):
        count = min(block, appends - start)
        key = rng.choice(keys, (count, changed), replace=False)
        version = np.stack([versions[key], versions[key] + 1], axis=1)
        versions[key] += 1
        diffs = np.broadcast_to([[-1], [1]], version.shape)
        pair = np.broadcast_to(key[:, None, :], version.shape)
        made = rows(pair.ravel(), version.ravel(), diffs.ravel())
        for i in range(count):
            yield made.slice(i * UPDATES, UPDATES)


def base(keys: int) -> pa.Table:
    return rows(np.arange(keys), np.zeros(keys, np.int64), np.ones(keys, np.int64))


def inserts(appends: int) -> Iterator[pa.Table]:
    key = np.random.default_rng(2).permutation(appends * UPDATES)
    for start in range(0, appends, 1_000):
        made = key[start * UPDATES : (start + 1_000) * UPDATES]
        table = rows(made, np.zeros_like(made), np.ones_like(made))
        for i in range(len(made) // UPDATES):
            yield table.slice(i * UPDATES, UPDATES)


class Limit:
    """A durable SQLite database that takes one commit after the other."""

    def __init__(self, path: Path) -> None:
        self.seconds: list[float] = []
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE entries (seqno INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        self._random = np.random.default_rng(3)

    def commit(self, times: int, size_bytes: int) -> None:
        for data in [self._random.bytes(size_bytes) for _ in range(times)]:
            start = time.perf_counter()
            self._connection.execute("INSERT INTO entries (data) VALUES (?)", (data,))
            self.seconds.append(time.perf_counter() - start)

    def close(self) -> None:
        self._connection.close()


@dataclass
class Course:
    """What was seen while appending."""

    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    advance_s: float = 0.0


def course(
    collection: tidelake.Collection, tables: Iterator[pa.Table], counters: Counters, limit: Limit, since: bool
) -> Course:
    seen = Course()
    while turn := list(itertools.islice(tables, TURN)):
        sent_bytes, sent = counters.counts["log.compare_and_set.bytes"], len(turn)
        for i, table in enumerate(turn, start=1):
            busy_s = time.thread_time()
            seen.seconds.append(once(lambda table=table: collection.append(table)))
            seen.busy.append(time.thread_time() - busy_s)
            seen.runs.append(collection.state().spine.totals.runs)
            if since and i % SINCE_EVERY == 0:
                seen.advance_s += once(lambda: collection.advance_since(collection.last_time()))
        log_bytes = counters.counts["log.compare_and_set.bytes"] - sent_bytes
        limit.commit(max(1, sent // 5), log_bytes // sent)
    return seen


def medians(values: list[float], bins: int) -> list[float]:
    """The median of each of `bins` stretches, or of as many as there are values."""
    edges = np.linspace(0, len(values), min(bins, len(values)) + 1).astype(int)
    return [float(np.median(values[a:b])) for a, b in itertools.pairwise(edges)]


def read(snapshot: pa.RecordBatchReader) -> int:
    return sum(batch.num_rows for batch in snapshot)


def snapshots(lake: tidelake.Lake, collection: tidelake.Collection) -> dict[str, float]:
    """Snapshots as the appends left the collection, and at rest, against its rows in one fresh batch."""
    fresh = lake.create("fresh", SCHEMA, key=["key"])
    fresh.append(collection.snapshot().read_all().drop_columns(["_time"]))
    left_s, fresh_s = best(lambda: read(collection.snapshot()), lambda: read(fresh.snapshot()), repeat=5)
    found = {"snapshot_to_fresh": left_s / fresh_s}
    rest_s = once(collection.maintain)
    again_s, fresh_s = best(lambda: read(collection.snapshot()), lambda: read(fresh.snapshot()), repeat=5)
    if (
        not collection.snapshot()
        .read_all()
        .drop_columns(["_time"])
        .equals(fresh.snapshot().read_all().drop_columns(["_time"]))
    ):
        raise ValueError("maintenance changed the contents")
    return {**found, "rest_s": rest_s, "snapshot_at_rest_to_fresh": again_s / fresh_s}


def stored_bytes(folder: Path, shard_id: str) -> dict[str, float]:
    """What the files take, those included that only a collection of garbage would remove."""

    def total(files: Iterator[Path]) -> float:
        return sum(file.stat().st_size for file in files if file.is_file()) / 2**20

    blobs = folder / "blobs" / shard_id
    return {
        "log_mib": total(folder.glob(f"**/{shard_id}/log")),
        "rollup_mib": total((blobs / "rollups").glob("*")),
        "parts_mib": total((blobs / "parts").glob("*")),
    }


def measured(kind: str, appends: int, keys: int) -> Numbers:
    counters = Counters()
    config = tidelake.Config(merge_budget_s=0.0) if kind == "upkeep" else tidelake.Config()
    with (
        tempfile.TemporaryDirectory() as name,
        tidelake.open(Path(name) / "lake", config=config, env=Env(recorder=counters)) as lake,
    ):
        collection = lake.create("c", SCHEMA, key=["key"])
        upserting = kind != "inserts"
        if upserting:
            collection.append(base(keys))
        limit = Limit(Path(name) / "limit.db")
        tables = upserts(appends, keys) if upserting else inserts(appends)
        if kind == "upkeep":
            with lake.upkeep(["c"], interval_s=0.1) as upkeep:
                seen = course(collection, tables, counters, limit, upserting)
                await_rest(collection)
            if upkeep.last_error is not None:
                raise upkeep.last_error
        else:
            seen = course(collection, tables, counters, limit, upserting)
        limit.close()
        return {
            **costs(seen, limit, appends),
            **shape(collection, seen, keys if upserting else appends * UPDATES),
            "rollups": sum(1 for _ in Path(name).glob(f"lake/blobs/{collection.id}/rollups/*")),
            **stored_bytes(Path(name) / "lake", collection.id),
            "open_ms": 1_000 * once(lambda: tidelake.open(Path(name) / "lake").collection("c").state()),
            **snapshots(lake, collection),
            "latency_ms": [1_000 * s for s in medians(seen.seconds, BINS)],
            "limit_ms": [1_000 * s for s in medians(limit.seconds, BINS)],
            "runs_over_history": medians(seen.runs, BINS),  # type: ignore[arg-type]
        }


def await_rest(collection: tidelake.Collection, timeout_s: float = 60.0) -> None:
    """Give upkeep time to notice that the collection is idle, and to bring it to rest."""
    deadline_s = time.monotonic() + timeout_s
    while collection.state().spine.totals.runs > 1 and time.monotonic() < deadline_s:
        time.sleep(0.1)


def costs(seen: Course, limit: Limit, appends: int) -> dict[str, float]:
    """Latencies of an append, and the ratio of throughputs: below 1, since nothing beats the limit."""
    ends = min(1_000, max(1, appends // 10))
    mean_s = (sum(seen.seconds) + seen.advance_s) / appends
    return {
        "appends": appends,
        "last_to_first": last_to_first(seen.seconds, ends),
        # The processor's time in the appending thread alone: what else the machine does matters less.
        "busy_last_to_first": last_to_first(seen.busy, ends),
        "throughput_to_limit": statistics.fmean(limit.seconds) / mean_s,
        "median_to_limit": statistics.median(seen.seconds) / statistics.median(limit.seconds),
        "appends_s": 1 / mean_s,
        "median_ms": 1_000 * statistics.median(seen.seconds),
        "mean_ms": 1_000 * statistics.fmean(seen.seconds),
        "p99_ms": 1_000 * float(np.quantile(seen.seconds, 0.99)),
        "max_ms": 1_000 * max(seen.seconds),
    }


def last_to_first(values: list[float], count: int) -> float:
    """The median of the last so many over that of the first."""
    return statistics.median(values[-count:]) / statistics.median(values[:count])


def shape(collection: tidelake.Collection, seen: Course, live: int) -> dict[str, float]:
    """Runs, and amplification with `live` rows that are left of all updates at `since`."""
    state = collection.state()
    written, totals = state.written, state.spine.totals
    return {
        "runs": totals.runs,
        "runs_max": max(seen.runs),
        "write_amplification": (written.appended_bytes + written.merged_bytes) / written.appended_bytes,
        "rows_written_to_appended": (written.appended_rows + written.merged_rows) / written.appended_rows,
        "space_amplification": totals.rows / live,
    }


def run(rows: int = 10_000_000) -> dict[str, Numbers]:
    """A hundredth as many appends as rows are asked for, and a fifth of these where appends merge upserts."""
    appends = max(UPDATES, rows // 100)
    keys, fewer = min(KEYS, 2 * appends), max(UPDATES, appends // 5)
    return {
        "upserts": measured("upserts", fewer, keys),
        "inserts": measured("inserts", appends, keys),
        "upserts, upkeep": measured("upkeep", appends, keys),
    }


if __name__ == "__main__":
    for name, numbers in run().items():
        print(name, {k: round(v, 3) for k, v in numbers.items() if not isinstance(v, list)})
