"""How fast the kernels are, as ratios to a plain Parquet copy of the same rows in the same process.

    from bench.kernels import run; run(10_000_000)

Shape: int64 key, 32-character string, int64 time; some 30 % of the rows are duplicates or cancel.
"""

import io
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.data.consolidate import consolidate
from tidelake.data.merge import merge
from tidelake.data.part import read_part, write_parts
from tidelake.data.stats import StatsSettings
from tidelake.data.types import schema_from_arrow, update_schema
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Fold
from tidelake.model.time import TimeDomain
from tidelake.shard.overlap import prefetch

DOMAIN = TimeDomain("counter")
SCHEMA = schema_from_arrow(
    pa.schema([pa.field("key", pa.int64(), nullable=False), ("text", pa.string())]), ["key"]
)
CHUNK_ROWS, GROUP_ROWS, TIMES = 262_144, 16_384, 1_000
SETTINGS = {"row_group_rows": GROUP_ROWS, "stats": StatsSettings(1_024, 64)}


def table(rows: int, seed: int, keys: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    key = rng.integers(0, keys, rows)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    # The text follows from the key, so that equal keys are equal rows.
    words = (
        key[:, None] * np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64).view(np.int64)
    ).view(np.uint8)
    text = digits[np.stack([words >> 4, words & 15], axis=2).reshape(rows, 32)]
    offsets = pa.py_buffer((np.arange(rows + 1) * 32).astype(np.int32))
    texts = pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(np.ascontiguousarray(text)))
    times = rng.integers(0, TIMES, rows)
    diffs = np.where(rng.random(rows) < 0.15, -1, 1)
    return pa.Table.from_arrays(
        [pa.array(key), texts, pa.array(times), pa.array(diffs)], schema=update_schema(SCHEMA, DOMAIN)
    )


def once(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(*works: Callable[[], object], repeat: int = 3) -> list[float]:
    """Min of `repeat`, the works taking turns, so that a slow moment of the machine hits all of them."""
    found = [[once(work) for work in works] for _ in range(repeat)]
    return [min(column) for column in zip(*found, strict=True)]


def parts(batches: Iterable[pa.RecordBatch]) -> list[tuple[object, bytes]]:
    return list(
        write_parts(batches, SCHEMA, DOMAIN, 0, target_bytes=128 << 20, name=lambda: "part", **SETTINGS)
    )


def reader(run: list, rows: int) -> Iterator[pa.RecordBatch]:
    for part, data in run:
        yield from read_part(io.BytesIO(data), part, SCHEMA, DOMAIN, batch_rows=rows)


def plain(data: bytes, rows: int) -> Iterator[pa.RecordBatch]:
    yield from pq.ParquetFile(io.BytesIO(data), pre_buffer=False).iter_batches(rows)


def plain_writer(sink: object) -> pq.ParquetWriter:
    """Writes as parts are written, without anything of ours."""
    encodings = dict.fromkeys(("key", "_time", "_diff"), "DELTA_BINARY_PACKED")
    return pq.ParquetWriter(
        sink,
        update_schema(SCHEMA, DOMAIN),
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        column_encoding={**encodings, "text": "DELTA_LENGTH_BYTE_ARRAY"},
        write_page_checksum=True,
    )


def copy(runs: list) -> None:
    """What a merge cannot do without: read all, write all, with a reader thread beside the writer."""
    batches = (b for run in runs for _, data in run for b in plain(data, CHUNK_ROWS))
    with plain_writer(io.BytesIO()) as writer:
        for batch in prefetch(batches, 2):
            writer.write_table(pa.Table.from_batches([batch]), GROUP_ROWS)


def scan(runs: list) -> None:
    for run in runs:
        for _ in reader(run, CHUNK_ROWS):
            pass


def merged(runs: list, query: object, *, threads: bool = True) -> Iterator[pa.RecordBatch]:
    share = max(1, CHUNK_ROWS // len(runs))
    sources = [reader(run, share) for run in runs]
    if threads:
        sources = [prefetch(source, 1) for source in sources]
    return merge(sources, SCHEMA, DOMAIN, query, CHUNK_ROWS)  # type: ignore[arg-type]


def measured(stored: list) -> list[float]:
    since = Frontier.of(TIMES)
    return best(
        lambda: copy(stored),
        lambda: scan(stored),
        lambda: parts(prefetch(merged(stored, Fold(since)), 2)),
        lambda: [None for _ in merged(stored, AsOf(TIMES // 2))],
    )


def ratios(rows: int, copied: float, scanned: float, merge_s: float, snapshot_s: float) -> dict[str, float]:
    return {
        "rows": rows,
        "copy_rows_s": rows / copied,
        "scan_rows_s": rows / scanned,
        "merge_rows_s": rows / merge_s,
        "merge_to_copy": copied / merge_s,
        "snapshot_rows_s": rows / snapshot_s,
        "snapshot_to_scan": scanned / snapshot_s,
    }


def run(rows: int = 10_000_000, runs: tuple[int, ...] = (2, 8, 64)) -> dict[str, dict[str, float]]:
    """Measure; ratios above 1 mean faster than the copy or the scan."""
    result: dict[str, dict[str, float]] = {}
    # Over all runs together: a range for each run would fold away most rows, and flatter the merge.
    keys = max(1, rows * 3 // 2)
    for count in runs:
        tables = [consolidate(table(rows // count, seed, keys), SCHEMA, DOMAIN) for seed in range(count)]
        stored = [parts(t.to_batches(CHUNK_ROWS)) for t in tables]
        total = sum(t.num_rows for t in tables)
        del tables
        copied, scanned, merge_s, snapshot_s = measured(stored)
        result[f"R={count}"] = ratios(total, copied, scanned, merge_s, snapshot_s)
    whole = table(rows, 0, keys)
    (seconds,) = best(lambda: consolidate(whole, SCHEMA, DOMAIN))
    first = next(iter(result.values()))
    result["consolidate"] = {
        "rows_s": rows / seconds,
        "to_copy": rows / seconds / first["copy_rows_s"],
        "to_scan": rows / seconds / first["scan_rows_s"],
    }
    result["process"] = {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    return result


if __name__ == "__main__":
    for name, numbers in run(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000).items():
        print(name, {key: round(value, 2) for key, value in numbers.items()})
