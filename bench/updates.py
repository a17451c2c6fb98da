"""Fifty million updates appended while another process merges them, compared with DuckDB over the raw log.

    from bench.updates import run; run(10_000_000)
    python -m bench.updates worker LAKE STOP    (the process that merges)

The updates (`bench.workload`) come in a hundred batches; `since` stays eight batches behind. Each batch is
also written to a plain Parquet file, in turn with its append: together these are the raw log. The worker
repeats `Collection.maintain` and is to do with 512 MiB. What it had resident at most is read from /proc, as
limits of the kernel count what allocators reserve and never use. In the end DuckDB groups the raw log; a
difference to the snapshot is an error.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tidelake
from bench.kernels import CHUNK_ROWS, best, once
from bench.workload import SCHEMA, Workload

BATCHES, HISTORY, MEMORY_MIB = 100, 8, 512
Numbers = dict[str, float | list[float]]


def peak_rss_mib() -> float:
    """What this process had resident at most. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def worker(lake: str, stop: Path) -> dict[str, float]:
    """Maintain until `stop` is there, then once more until nothing is left to do; what was done."""
    done: dict[str, float] = dict.fromkeys(("merges", "rows_read", "refused", "seconds"), 0)
    with tidelake.open(lake, create=False) as opened:
        collection = opened.collection("c")
        while True:
            last = stop.exists()
            report = collection.maintain(thorough=last)
            for name in done:
                done[name] += asdict(report)[name] if report.merges or name == "refused" else 0
            if last and report.complete:
                break
            if not report.merges:
                time.sleep(0.02)
    return {**done, "peak_rss_mib": peak_rss_mib()}


@dataclass
class Course:
    """What was seen while appending."""

    append_s: float = 0.0
    raw_s: float = 0.0
    waited_s: float = 0.0
    updates: int = 0
    retractions: int = 0
    live: int = 0
    runs: list[int] = field(default_factory=list)
    space: list[float] = field(default_factory=list)


def write_raw(table: pa.Table, path: Path) -> None:
    """As cheap as a durable copy can be: neither sorted nor consolidated, encoded as parts are."""
    whole = dict.fromkeys(("key", "n", "_time", "_diff"), "DELTA_BINARY_PACKED")
    with path.open("wb") as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            column_encoding={**whole, "x": "PLAIN", "text": "DELTA_LENGTH_BYTE_ARRAY"},
        )
        file.flush()
        os.fsync(file.fileno())


def ingest(collection: tidelake.Collection, raw: Path, updates: int, batch: int) -> Course:
    seen = Course()
    for number, table in enumerate(Workload(updates, batch)):
        seen.raw_s += once(lambda table=table, number=number: write_raw(table, raw / f"{number:04}.parquet"))
        start = time.perf_counter()
        appended = collection.append(table, upper=number + 1)
        seen.append_s += time.perf_counter() - start
        seen.waited_s += appended.waited_s
        if number > HISTORY:
            collection.advance_since(number - HISTORY)
        diffs = table["_diff"]
        seen.updates += table.num_rows
        seen.retractions += pc.sum(pc.less(diffs, 0)).as_py()
        seen.live += pc.sum(diffs).as_py()
        totals = collection.state().spine.totals
        seen.runs.append(totals.runs)
        seen.space.append(totals.rows / seen.live)
    collection.advance_since(collection.last_time())
    return seen


def appended(folder: Path, updates: int, batch: int) -> tuple[Course, dict[str, float]]:
    """Appends in this process and merges in another; what both saw."""
    lake, raw, stop = folder / "lake", folder / "raw", folder / "stop"
    raw.mkdir()
    command = [sys.executable, "-m", "bench.updates", "worker", str(lake), str(stop)]
    # Merges are the worker's alone, also those that an append would find time for.
    with tidelake.open(lake, config=tidelake.Config(merge_budget_s=0.0)) as opened:
        collection = opened.create("c", SCHEMA, key=["key"])
        merging = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            seen = ingest(collection, raw, updates, batch)
        finally:
            stop.touch()
            output = merging.communicate()[0]
    if merging.returncode:
        raise RuntimeError(f"the worker ended with status {merging.returncode}")
    return seen, json.loads(output)


class Oracle:
    """DuckDB over the raw log."""

    def __init__(self, folder: Path) -> None:
        import duckdb

        self._folder = folder
        self._connection = duckdb.connect(str(folder / "duck.db"))
        self._connection.execute(f"SET temp_directory = '{folder / 'spill'}'")
        self._connection.execute("SET memory_limit = '6GB'")
        self._connection.execute("SET preserve_insertion_order = false")
        columns = ", ".join(SCHEMA.names)
        self._net = (
            f"SELECT {columns}, CAST(SUM(_diff) AS BIGINT) AS _diff "
            f"FROM read_parquet('{folder}/raw/*.parquet') GROUP BY {columns} HAVING SUM(_diff) <> 0"
        )

    def close(self) -> None:
        self._connection.close()

    def read(self) -> int:
        """The whole answer, as Arrow batches; how many rows."""
        with self._connection.cursor() as cursor:
            return sum(batch.num_rows for batch in cursor.sql(self._net).to_arrow_reader(CHUNK_ROWS))

    def check(self, snapshot: Path) -> int:
        """Compare the answer with a file, by count and digest, then row by row; how many rows.

        Raises:
            ValueError: they differ.
        """
        answer = self.answer()
        wanted, found = self._digest(answer), self._digest(snapshot)
        if wanted != found:
            raise ValueError(f"DuckDB has (rows, multiplicities, digest) {wanted}, the snapshot {found}")
        self.check_rows(answer, snapshot)
        return int(wanted[0])

    def answer(self) -> Path:
        """The whole answer as a file."""
        path = self._folder / "answer.parquet"
        self._connection.execute(f"COPY ({self._net}) TO '{path}' (FORMAT parquet)")
        return path

    def check_rows(self, answer: Path, snapshot: Path, shares: int = 16) -> None:
        """Compare two files as multisets, share by share of their keys: what both have is not held at once.

        Raises:
            ValueError: they differ.
        """
        for share in range(shares):
            one, other = (
                f"SELECT {', '.join(SCHEMA.names)}, _diff FROM '{path}' WHERE key % {shares} = {share}"
                for path in (answer, snapshot)
            )
            both = f"(({one}) EXCEPT ALL ({other})) UNION ALL (({other}) EXCEPT ALL ({one}))"
            different = self._one(f"SELECT COUNT(*) FROM ({both})")[0]
            if different:
                raise ValueError(f"{different} rows of share {share} differ between DuckDB and the snapshot")

    def _digest(self, path: Path) -> tuple[int, ...]:
        """Rows, multiplicities, and a sum of hashes that does not depend on the order of the rows."""
        hashed = f"CAST(hash({', '.join(SCHEMA.names)}, _diff) AS HUGEINT)"
        return self._one(f"SELECT COUNT(*), SUM(_diff), SUM({hashed}) FROM '{path}'")

    def _one(self, query: str) -> tuple[int, ...]:
        # Fetched to the end: a connection that has an unfinished result refuses the next query.
        (row,) = self._connection.execute(query).fetchall()
        return tuple(row)


def read(snapshot: pa.RecordBatchReader) -> int:
    return sum(batch.num_rows for batch in snapshot)


def scan(path: Path) -> None:
    for _ in pq.ParquetFile(path, pre_buffer=False).iter_batches(CHUNK_ROWS):
        pass


def write_snapshot(collection: tidelake.Collection, path: Path) -> None:
    schema = pa.schema([*SCHEMA, collection.update_schema.field("_diff")])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in collection.snapshot():
            writer.write_batch(batch.select(schema.names))


def queried(folder: Path) -> dict[str, float]:
    """The snapshot, checked, then against DuckDB and against a scan of the same rows in plain Parquet."""
    oracle = Oracle(folder)
    with tidelake.open(folder / "lake", create=False) as lake:
        collection = lake.collection("c")
        plain = folder / "snapshot.parquet"
        write_snapshot(collection, plain)
        rows = oracle.check(plain)
        snapshot_s, duckdb_s, scan_s = best(
            lambda: read(collection.snapshot()), oracle.read, lambda: scan(plain)
        )
    oracle.close()
    return {
        "rows_left": rows,
        "snapshot_to_duckdb": duckdb_s / snapshot_s,
        "snapshot_to_scan": scan_s / snapshot_s,
        "snapshot_s": snapshot_s,
        "duckdb_s": duckdb_s,
        "scan_s": scan_s,
    }


def measured(updates: int, batch: int) -> dict[str, Numbers]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen, merged = appended(folder, updates, batch)
        with tidelake.open(folder / "lake", create=False) as lake:
            state = lake.collection("c").state()
        written, totals = state.written, state.spine.totals
        return {
            "appends": {
                "updates": seen.updates,
                "updates_s": seen.updates / seen.append_s,
                "append_to_plain_file": seen.raw_s / seen.append_s,
                "retractions": seen.retractions / seen.updates,
                "waited_s": seen.waited_s,
                "runs_max": max(seen.runs),
                "space_amplification_max": max(seen.space),
                "runs_over_history": [float(runs) for runs in seen.runs],
                "space_over_history": seen.space,
            },
            "merges": {
                "merges": merged["merges"],
                "updates_s": merged["rows_read"] / merged["seconds"] if merged["seconds"] else 0.0,
                "busy_s": merged["seconds"],
                "refused": merged["refused"],
                "write_amplification": (written.appended_bytes + written.merged_bytes)
                / written.appended_bytes,
                "runs": totals.runs,
                "space_amplification": totals.rows / seen.live,
                "worker_peak_rss_mib": merged["peak_rss_mib"],
                "peak_rss_to_512_mib": merged["peak_rss_mib"] / MEMORY_MIB,
            },
            "snapshot": queried(folder),  # type: ignore[dict-item]
        }


def run(rows: int = 10_000_000) -> dict[str, Numbers]:
    """Five times as many updates as rows are asked for."""
    return measured(5 * rows, max(1, 5 * rows // BATCHES))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        print(json.dumps(worker(sys.argv[2], Path(sys.argv[3]))))
    else:
        for name, numbers in run().items():
            print(name, numbers)
