"""How fast the kernels are, as ratios to a plain Parquet copy of the same rows in the same process.

    from bench.kernels import run; run(10_000_000)

A merge is one task: read parts, merge, write parts. The rows are those of `bench.shapes`; some 30 % of them
are duplicates or cancel. Peak memory is that of a child process which merges the same parts from a directory.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.shapes import DOMAIN, SHAPES, TIMES, A, Shape
from tidelake.config import Config
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.types import update_schema
from tidelake.data.part.part import read_part
from tidelake.env import Env
from tidelake.model.batch import Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Fold
from tidelake.shard.engine.overlap import prefetch
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.plan import Task, decode_run, run_merge_task
from tidelake.shard.runs.read import KeyRange, Source
from tidelake.shard.runs.upload import write_run
from tidelake.state.core.codec import encode_record
from tidelake.store.files import SystemFiles, no_flush
from tidelake.store.local import LocalBlobStore
from tidelake.store.protocols import BlobStore

SCHEMA, CHUNK_ROWS, GROUP_ROWS = A.schema, 262_144, 16_384
_BOUNDS = Bounds(Frontier.of(0), Frontier.of(TIMES), Frontier.of(0))


def table(rows: int, seed: int, keys: int) -> pa.Table:
    """Rows of shape `a`."""
    return A.table(rows, seed, keys)


def once(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(*works: Callable[[], object], repeat: int = 3) -> list[float]:
    """Min of `repeat`, the works taking turns, so that a slow moment of the machine hits all of them."""
    found = [[once(work) for work in works] for _ in range(repeat)]
    return [min(column) for column in zip(*found, strict=True)]


class Stored:
    """Sorted runs of one shape as parts in a directory, and the ways through them that are compared."""

    def __init__(self, folder: Path, shape: Shape, rows: int, count: int) -> None:
        self.folder, self.shape = folder, shape
        # Nothing is flushed: this measures kernels, not disks.
        self.blobs: BlobStore = LocalBlobStore(str(folder / "blobs"), SystemFiles(no_flush))
        self.spec = ShardSpec(folder.as_uri(), "0" * 32, DOMAIN, 0, {0: shape.schema}, Config())
        keys = max(1, rows * 3 // 2)
        runs = (self._run(rows // count, seed, keys) for seed in range(count))
        self.sources = [Source(run, _BOUNDS.lower, _BOUNDS.upper) for run in runs]
        self.paths = [str(folder / "blobs" / p.name) for s in self.sources for p in s.run.parts]
        self.rows = sum(source.run.rows for source in self.sources)
        fold = Task.of(self.spec, self.sources, KeyRange(), Fold(Frontier.of(TIMES)))
        self.task = encode_record("task", fold)

    def _run(self, rows: int, seed: int, keys: int) -> Run:
        table_ = consolidate(self.shape.table(rows, seed, keys), self.shape.schema, DOMAIN)
        run = write_run(self.spec, self.blobs, Env(), table_.to_batches(CHUNK_ROWS))
        if run is None:
            raise ValueError("too few rows to measure")
        return run

    def copy(self) -> None:
        """What a merge cannot do without: read all, write all, with a reader thread beside the writer."""
        out = self.folder / "copy.parquet"
        with out.open("wb") as file, self._plain_writer(file) as writer:
            for batch in prefetch(plain(self.paths, CHUNK_ROWS), 2):
                writer.write_table(pa.Table.from_batches([batch]), GROUP_ROWS)
        out.unlink()

    def scan(self) -> None:
        """Read all parts, each checked."""
        for source in self.sources:
            for part in source.run.parts:
                with self.blobs.open(part.name) as file:
                    for _ in read_part(file, part, self.shape.schema, DOMAIN, batch_rows=CHUNK_ROWS):
                        pass

    def merge(self) -> None:
        """Merge all runs into one, with all times folded, and delete it."""
        for part in decode_run(run_merge_task(self.task, self.blobs)).parts:
            self.blobs.delete(part.name)

    def snapshot(self) -> None:
        """Read all runs as of a time in the middle."""
        for _ in Task.of(self.spec, self.sources, KeyRange(), AsOf(TIMES // 2)).rows(self.blobs):
            pass

    def merge_peak_mib(self) -> float:
        """How much the resident memory of a process grows at most by the merge."""
        (self.folder / "task").write_bytes(self.task)
        command = [sys.executable, "-m", "bench.peak", str(self.folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return float(json.loads(done.stdout)["growth_mib"])

    def _plain_writer(self, sink: object) -> pq.ParquetWriter:
        """Writes with the encodings of the parts, without anything of ours."""
        group = pq.read_metadata(self.paths[0]).row_group(0)
        found = {c.path_in_schema: c.encodings for c in map(group.column, range(group.num_columns))}
        dictionaries = [name for name, encodings in found.items() if "RLE_DICTIONARY" in encodings]
        delta = {
            n: e for n, es in found.items() if n not in dictionaries for e in es if e.startswith("DELTA")
        }
        return plain_writer(sink, update_schema(self.shape.schema, DOMAIN), dictionaries, delta)


def plain(paths: Iterable[str], rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of Parquet files, by pyarrow alone."""
    for path in paths:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            yield from file.iter_batches(rows)


def plain_writer(
    sink: object,
    schema: pa.Schema | None = None,
    dictionaries: Iterable[str] = (),
    encodings: dict[str, str] | None = None,
) -> pq.ParquetWriter:
    """Writes as parts are written, without anything of ours; unless told otherwise those of shape `a`."""
    if encodings is None:
        numbers = dict.fromkeys(("key", "_time", "_diff"), "DELTA_BINARY_PACKED")
        encodings = {**numbers, "text": "DELTA_LENGTH_BYTE_ARRAY"}
    return pq.ParquetWriter(
        sink,
        schema or update_schema(SCHEMA, DOMAIN),
        compression="zstd",
        compression_level=1,
        use_dictionary=list(dictionaries),
        column_encoding=encodings,
        write_page_checksum=True,
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


def measured(shape: Shape, rows: int, count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        stored = Stored(Path(name), shape, rows, count)
        times = best(stored.copy, stored.scan, stored.merge, stored.snapshot)
        return {**ratios(stored.rows, *times), "merge_peak_mib": stored.merge_peak_mib()}


def run(
    rows: int = 10_000_000, runs: tuple[int, ...] = (2, 8, 64), shapes: tuple[Shape, ...] = SHAPES
) -> dict[str, dict[str, float]]:
    """Measure; ratios above 1 mean faster than the copy or the scan."""
    result: dict[str, dict[str, float]] = {}
    for shape in shapes:
        mine = max(*runs, 1, int(rows * shape.share))
        for count in runs:
            result[f"{shape.name}, R={count}"] = measured(shape, mine, count)
        whole = shape.table(mine, 0, max(1, mine * 3 // 2))
        (seconds,) = best(lambda: consolidate(whole, shape.schema, DOMAIN))  # noqa: B023
        first = result[f"{shape.name}, R={runs[0]}"]
        result[f"{shape.name}, consolidate"] = {
            "rows": mine,
            "consolidate_rows_s": mine / seconds,
            "consolidate_to_copy": mine / seconds / first["copy_rows_s"],
        }
    return result


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    chosen = tuple(s for s in SHAPES if len(sys.argv) <= 2 or s.name in sys.argv[2])
    fans = tuple(int(n) for n in sys.argv[3].split(",")) if len(sys.argv) > 3 else (2, 8, 64)
    for name, numbers in run(asked, fans, chosen).items():
        print(name, {key: round(value, 2) for key, value in numbers.items()}, flush=True)
