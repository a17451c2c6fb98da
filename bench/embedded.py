"""Merge and snapshot of a collection in a lake directory, as ratios to plain Parquet files beside it.

    from bench.embedded import run; run(5_000_000)

The same rows as `bench.kernels`, through the whole product: append, read, merge, on disk. The copy reads
the very parts with pyarrow and writes them to one file, which it flushes to disk as a merge does; the scan
reads them. The file system's cache is warm for all of them.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import tidelake
from bench.kernels import CHUNK_ROWS, GROUP_ROWS, SCHEMA, TIMES, best, plain_writer, ratios, table
from tidelake.data.kernel.types import row_schema
from tidelake.model.query import Fold
from tidelake.shard.engine.overlap import prefetch
from tidelake.shard.runs.plan import cut, decode_run, run_merge_task
from tidelake.shard.runs.read import Source
from tidelake.state.core.codec import encode_record


def store(folder: Path, rows: int, runs: int) -> tidelake.Collection:
    # No merge but the measured one: as many runs are to be left as were appended.
    config = tidelake.Config(merge_budget_s=0.0, runs_max=10_000)
    c = tidelake.open(folder / "lake", config=config).create("c", row_schema(SCHEMA), key=["key"])
    for seed in range(runs):
        lower, upper = TIMES * seed // runs, TIMES * (seed + 1) // runs
        rows_ = table(rows // runs, seed, rows)
        times = pa.array(rows_["_time"].to_numpy() % (upper - lower) + lower)
        c.append(rows_.set_column(rows_.column_names.index("_time"), "_time", times), upper=upper)
    c.advance_since(TIMES - 1)
    return c


def scan(paths: list[str]) -> None:
    for path in paths:
        for _ in pq.ParquetFile(path, pre_buffer=False).iter_batches(CHUNK_ROWS):
            pass


def copy(paths: list[str], out: Path) -> None:
    batches = (b for path in paths for b in pq.ParquetFile(path, pre_buffer=False).iter_batches(CHUNK_ROWS))
    with out.open("wb") as file:
        with plain_writer(file) as writer:
            for batch in prefetch(batches, 2):
                writer.write_table(pa.Table.from_batches([batch]), GROUP_ROWS)
        file.flush()
        os.fsync(file.fileno())


def merge_tasks(c: tidelake.Collection, parallelism: int) -> list[bytes]:
    """The tasks of a merge of everything, times advanced to `since`; at most `parallelism` of them."""
    state = c.state()
    needed = [Source.of(run, item.batch) for item in state.spine for run in item.batch.runs]
    tasks = cut(c._shard.version().spec, c._shard.stores.blobs, needed, Fold(state.since), parallelism)
    return [encode_record("task", task) for task in tasks]


def merge(c: tidelake.Collection) -> None:
    """The whole merge but for the commit, so that it can be measured again on the same inputs."""
    forget(c, [run_merge_task(task) for task in merge_tasks(c, 1)])


def forget(c: tidelake.Collection, outputs: Iterable[bytes]) -> None:
    """Delete what tasks of a merge have written."""
    for output in filter(None, outputs):
        for part in decode_run(output).parts:
            c._shard.stores.blobs.delete(part.name)


def measured(c: tidelake.Collection, folder: Path) -> dict[str, float]:
    parts = [p for item in c.state().spine for p in item.batch.parts()]
    paths = [str(folder / "lake" / "blobs" / p.name) for p in parts]
    total = sum(p.rows for p in parts)
    copied, scanned, merge_s, snapshot_s = best(
        lambda: copy(paths, folder / "copy.parquet"),
        lambda: scan(paths),
        lambda: merge(c),
        lambda: [None for _ in c.snapshot(TIMES - 1)],
    )
    return ratios(total, copied, scanned, merge_s, snapshot_s)


def run(rows: int = 10_000_000, runs: tuple[int, ...] = (2, 8, 64)) -> dict[str, dict[str, float]]:
    """Ratios above 1 mean faster than the copy or the scan."""
    result: dict[str, dict[str, float]] = {}
    for count in runs:
        with tempfile.TemporaryDirectory() as name:
            result[f"R={count}"] = measured(store(Path(name), rows, count), Path(name))
    return result
