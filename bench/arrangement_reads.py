"""Look-ups of an arrangement, beside DuckDB and polars on the same rows sorted in one Parquet file.

    from bench.arrangement_reads import run; run(10_000_000)

Twice as many rows, with distinct keys, are in 64 batches, each a random share of them: in memory; in files;
and in one file, as after `merge()`. Every engine answers the same random keys in turn; figures are medians,
and the ratios are theirs to ours.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.arrangement.batch.batch import FilterPlan, IndexBatch
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.filebuilder import FileBuilder
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.batch.memory import MemoryBuilder
from tidelake.arrangement.read.snapshot import Snapshot
from tidelake.data.kernel.merge import merge
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.model.frontier import Frontier
from tidelake.model.query import Fold
from tidelake.model.time import TimeDomain

BATCHES = 64
GROUP_ROWS = 131_072
CACHE_BYTES = 64 * 1024 * 1024
ASKED = {1: 60, 100: 30, 10_000: 6}
LAYOUT = Layout(
    schema_from_arrow(pa.schema([("key", pa.int64()), ("text", pa.string())]), ["key"]), TimeDomain()
)
# So many questions one engine answers before it is the next one's turn: its caches are its own.
TURN = 10
Answer = Callable[[pa.Table], object]


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Even keys below `2 * rows`, each in one batch, with 32 letters."""
    random = np.random.default_rng(7)
    home = random.integers(0, BATCHES, rows)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", np.uint8)
    for i in range(BATCHES):
        keys = np.flatnonzero(home == i) * 2
        text = letters[random.integers(0, len(letters), (len(keys), 32), np.int8)]
        offsets = np.arange(len(keys) + 1, dtype=np.int32) * 32
        strings = pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(text))
        ones = pa.array(np.ones(len(keys), np.int64))
        times = pa.array(random.integers(0, 10, len(keys)))
        yield pa.RecordBatch.from_arrays([pa.array(keys), strings, times, ones], schema=LAYOUT.arrow)


def in_memory(rows: pa.RecordBatch, i: int) -> IndexBatch:
    builder = MemoryBuilder(LAYOUT, f"m{i}")
    builder.add(rows)
    return _made(builder.finish())


def in_file(
    pieces: Iterator[pa.RecordBatch], plan: FilterPlan, name: str, folder: Path, cache: BlockCache
) -> IndexBatch:
    builder = FileBuilder(LAYOUT, str(folder), name, plan, cache)
    for rows in pieces:
        builder.add(rows)
    return _made(builder.finish())


def _made(batch: IndexBatch | None) -> IndexBatch:
    if batch is None:
        raise ValueError("no rows")
    return batch


def asked(rows: int, count: int, draw: int) -> pa.Table:
    """Random keys, a tenth of which are not there."""
    random = np.random.default_rng(1000 * count + draw)
    keys = random.integers(0, rows, count) * 2 + (random.random(count) < 0.1)
    return pa.table({"key": np.unique(keys)})


def by_duckdb(path: Path) -> Answer:
    connection = duckdb.connect()

    def answer(keys: pa.Table) -> object:
        if keys.num_rows > 1:
            connection.register("asked", keys)
            return connection.sql(f"SELECT f.* FROM '{path}' f SEMI JOIN asked USING (key)").to_arrow_table()
        values = ", ".join(map(str, keys.column(0).to_pylist()))
        return connection.sql(f"SELECT * FROM '{path}' WHERE key IN ({values})").to_arrow_table()

    return answer


def by_polars(path: Path) -> Answer:
    def answer(keys: pa.Table) -> object:
        wanted = polars.from_arrow(keys)["key"]
        chosen = (
            polars.col("key") == wanted[0] if len(wanted) == 1 else polars.col("key").is_in(wanted.implode())
        )
        return polars.scan_parquet(path).filter(chosen).collect()

    return answer


def run(rows: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="tidelake-bench-") as folder:
        return measured(2 * rows, Path(folder))


def measured(rows: int, folder: Path) -> dict[str, dict[str, float]]:
    cache = BlockCache(CACHE_BYTES)
    parts = list(batches(rows))
    memory = [in_memory(part, i) for i, part in enumerate(parts)]
    files = [
        in_file(iter([part]), _plan([batch]), f"f{i}", folder, cache)
        for i, (part, batch) in enumerate(zip(parts, memory, strict=True))
    ]
    merged = merge([b.scan() for b in memory], LAYOUT.schema, LAYOUT.domain, Fold(Frontier.of(0)), 262_144)
    one = in_file(merged, _plan(memory), "one", folder, cache)
    path = folder / "sorted.parquet"
    with pq.ParquetWriter(path, LAYOUT.arrow, compression="zstd", compression_level=1) as writer:
        writer.write_table(pa.Table.from_batches(one.scan()), GROUP_ROWS)
    del parts
    snapshots = {
        "in memory, 64 batches": Snapshot(LAYOUT, memory),
        "on disk, 64 batches": Snapshot(LAYOUT, files),
        "on disk, compacted": Snapshot(LAYOUT, [one]),
    }
    answers: dict[str, Answer] = {name: snapshot.lookup for name, snapshot in snapshots.items()}
    answers |= {"duckdb": by_duckdb(path), "polars": by_polars(path)}
    found = compared(answers, rows, list(snapshots))
    for batch in (*memory, *files, one):
        batch.release()
    return found


def _plan(made: list[IndexBatch]) -> FilterPlan:
    return FilterPlan(
        sum(b.rows for b in made), min(b.key_lower for b in made), max(b.key_upper for b in made)
    )


def compared(answers: dict[str, Answer], rows: int, ours: list[str]) -> dict[str, dict[str, float]]:
    result: dict[str, dict[str, float]] = {}
    for count, draws in ASKED.items():
        taken: dict[str, list[float]] = {name: [] for name in answers}
        for first in range(0, draws, TURN):
            keys = [asked(rows, count, draw) for draw in range(first, min(first + TURN, draws))]
            sizes = [_timed(answer, keys, taken[name]) for name, answer in answers.items()]
            if any(found != sizes[0] for found in sizes):
                raise AssertionError(f"answers differ for {count} keys: {sizes}")
        ms = {name: 1000 * median(seconds) for name, seconds in taken.items()}
        for name in ours:
            result[f"{count:,} key{'s' * (count > 1)} {name}"] = {
                "lookup_ms": ms[name],
                "duckdb_ms": ms["duckdb"],
                "duckdb_to_lookup": ms["duckdb"] / ms[name],
                "polars_ms": ms["polars"],
                "polars_to_lookup": ms["polars"] / ms[name],
            }
    return result


def _timed(answer: Answer, keys: list[pa.Table], seconds: list[float]) -> list[int]:
    """How many rows each answer has."""
    sizes = []
    for some in keys:
        start = time.perf_counter()
        table = answer(some)
        seconds.append(time.perf_counter() - start)
        sizes.append(len(table))  # type: ignore[arg-type]
    return sizes
