"""Bulk appends and full reads, as ratios to plain Parquet files of the same rows.

    from bench.bulk import run; run(10_000_000)

Of a fifth of the rows: an append to a new collection beside pyarrow's write of one file, with zstd and with
pyarrow's defaults, each flushed to disk; then the rows, read in full at rest, beside one plain file. And how
much memory an append takes beside its table, in a process of its own: of half of the rows, and of all.

*Two integers and a text* have a text of 24 digits; the *rows of the peers* are those of `bench.peers`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import tidelake
from bench.peak import peak_mib
from bench.peers.workload import rows_of
from bench.texts import texts

PLAIN = {"zstd": {"compression": "zstd"}, "defaults": {}}
OURS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("s", pa.string())])
ROUNDS = 5
Row = dict[str, float]
Seconds = tuple[float, float]


def in_turn(*works: Callable[[], object], rounds: int = ROUNDS) -> list[Seconds]:
    """The least of each work, by the clock and of the processor in all threads."""
    found = [[_once(work) for work in works] for _ in range(rounds)]
    return [(min(c for c, _ in each), min(p for _, p in each)) for each in zip(*found, strict=True)]


def _once(work: Callable[[], object]) -> Seconds:
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


def ratios(ours: Seconds, others: dict[str, Seconds]) -> Row:
    """Others over ours: above 1, ours was faster."""
    clock = {f"{name}_to_ours": theirs[0] / ours[0] for name, theirs in others.items()}
    return clock | {f"processor_{name}_to_ours": theirs[1] / ours[1] for name, theirs in others.items()}


def integers_and_text(ids: np.ndarray) -> pa.Table:
    return pa.table([pa.array(ids), pa.array(ids * 1_000 + 7), texts(ids, 24)], schema=OURS)


def peers(ids: np.ndarray) -> pa.Table:
    return rows_of(ids, 0)


def ids(rows: int, *, in_order: bool) -> np.ndarray:
    found = np.arange(rows) * 3
    return found if in_order else np.random.default_rng(1).permutation(found)


class Lake:
    """A lake in a folder that is deleted, with a new collection for each append."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._schema, self._count = schema, 0
        self.lake = tidelake.open(folder / "lake")

    def append(self, rows: pa.Table) -> tidelake.Collection:
        self._count += 1
        made = self.lake.create(f"c{self._count}", self._schema, key=["id"])
        made.append(rows)
        return made


def written(rows: pa.Table, path: Path, options: dict[str, str]) -> None:
    with path.open("wb") as file:
        pq.write_table(rows, file, **options)
        file.flush()
        os.fsync(file.fileno())


def appended(rows: pa.Table) -> Row:
    with tempfile.TemporaryDirectory() as name:
        lake = Lake(Path(name), rows.schema)
        plain = Path(name) / "plain.parquet"
        works = [lambda options=options: written(rows, plain, options) for options in PLAIN.values()]
        ours, *others = in_turn(lambda: lake.append(rows), *works)
        lake.lake.close()
    return {"rows": rows.num_rows, "append_ms": ours[0] * 1000, "processor_ms": ours[1] * 1000} | ratios(
        ours, dict(zip(PLAIN, others, strict=True))
    )


def streamed(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def read(rows: pa.Table) -> dict[str, Row]:
    """Full reads of a collection at rest, by itself and by polars and DuckDB, beside plain files."""
    with tempfile.TemporaryDirectory() as name:
        lake = Lake(Path(name), rows.schema)
        c = lake.append(rows)
        c.maintain()
        paths = {}
        for of, options in PLAIN.items():
            paths[of] = str(Path(name) / f"{of}.parquet")
            written(rows, Path(paths[of]), options)
        summed = "sum(id), sum(n), sum(strlen(s))"
        of_polars = [pl.col("id").sum(), pl.col("n").sum(), pl.col("s").str.len_bytes().sum()]
        ways: dict[str, tuple[Callable[[], object], Callable[[str], object]]] = {
            "as a stream": (
                lambda: streamed(c.snapshot()),
                lambda path: streamed(pq.ParquetFile(path).iter_batches()),
            ),
            "as a table": (c.to_arrow, pq.read_table),
            "polars, all rows": (
                lambda: c.to_polars().collect(),
                lambda path: pl.scan_parquet(path).collect(),
            ),
            "polars, sums": (
                lambda: c.to_polars().select(of_polars).collect(),
                lambda path: pl.scan_parquet(path).select(of_polars).collect(),
            ),
            "DuckDB, all rows": (
                lambda: c.to_duckdb().to_arrow_table(),
                lambda path: duckdb.read_parquet(path).to_arrow_table(),
            ),
            "DuckDB, sums": (
                lambda: c.to_duckdb().aggregate(summed).fetchall(),
                lambda path: duckdb.read_parquet(path).aggregate(summed).fetchall(),
            ),
        }
        found = {}
        for way, (ours_, plain) in ways.items():
            works = [lambda path=path, plain=plain: plain(path) for path in paths.values()]
            ours, *others = in_turn(ours_, *works)
            found[way] = {"read_ms": ours[0] * 1000, "processor_ms": ours[1] * 1000} | ratios(
                ours, dict(zip(PLAIN, others, strict=True))
            )
        lake.lake.close()
    return found


def beside_table_mib(rows: int, order: str, chunk_rows: int) -> float:
    """How much this process grows at most by an append; the table has chunks of `chunk_rows` rows."""
    made = integers_and_text(ids(rows, in_order=order == "in order"))
    table = pa.Table.from_batches(made.to_batches(max_chunksize=chunk_rows))
    del made
    pa.default_memory_pool().release_unused()
    # The system forgets what was the most so far.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mib()
    with tempfile.TemporaryDirectory() as name:
        lake = Lake(Path(name), table.schema)
        lake.append(table)
        grown = peak_mib() - before
        lake.lake.close()
    return grown


def remembered(rows: int, order: str, chunk_rows: int) -> Row:
    call = f"beside_table_mib({rows}, {order!r}, {chunk_rows})"
    code = f"from bench.bulk import beside_table_mib; print({call})"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return {"rows": rows, "mib_beside_table": float(done.stdout)}


def run(rows: int = 10_000_000) -> dict[str, Row]:
    few = max(1, rows // 5)
    found: dict[str, Row] = {}
    for shape, made in (("two integers and a text", integers_and_text), ("rows of the peers", peers)):
        for order in ("in order", "in no order"):
            found[f"append, {shape}, {order}"] = appended(made(ids(few, in_order=order == "in order")))
    at_rest = read(integers_and_text(ids(few, in_order=True)))
    found |= {f"read, {way}": row for way, row in at_rest.items()}
    for count in (rows // 2, rows):
        for order in ("in order", "in no order"):
            for chunks, chunk_rows in (("one chunk", count), ("chunks of 100,000", 100_000)):
                row = remembered(max(1, count), order, max(1, chunk_rows))
                found[f"memory of an append, {count:,} rows {order}, {chunks}"] = row
    return found
