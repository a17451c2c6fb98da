"""Writes a batch into a file.

Owns the cutting of rows into blocks, and when a file gets its name; must not know merges. Invariant: a file
has its final name only when all its bytes are written; until then its name ends with `.tmp`. It is not
flushed: a checkpoint, which needs the file after this process ends, flushes it.
"""

import os
import zlib
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from tidelake.arrangement.batch.batch import FilterPlan
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.fileformat import MAGIC, SUFFIX, Contents, block_bytes, end_bytes
from tidelake.arrangement.batch.files import FileBatch, FileOwner
from tidelake.arrangement.batch.filters import filter_builder
from tidelake.arrangement.batch.index import BlockIndex
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.batch.memory import check_follows
from tidelake.data.kernel.sums import diffs
from tidelake.errors import StoreUnavailable

UNFINISHED = ".tmp"
_BLOCK_BYTES = 64 * 1024
_BLOCK_ROWS_MAX = 8192
# Rows are gathered up to this many bytes, and then cut into blocks.
_GATHER_BYTES = 16 * _BLOCK_BYTES


class FileBuilder:
    """See `Builder`. Holds about a megabyte of rows, the filter and the index in memory."""

    def __init__(self, layout: Layout, directory: str, id_: str, plan: FilterPlan, cache: BlockCache) -> None:
        """Begin a file."""
        self._layout, self._cache = layout, cache
        self._path = os.path.join(directory, id_ + SUFFIX)
        self._filter = filter_builder(layout, plan)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._negative = 0
        self._ends, self._starts, self._crcs = [len(MAGIC)], [0], list[int]()
        self._sizes = list[int]()
        self._firsts, self._lasts = list[bytes](), list[bytes]()
        self._last_row: pa.RecordBatch | None = None
        self._file: BinaryIO | None = None
        try:
            self._file = open(self._path + UNFINISHED, "xb", buffering=0)  # noqa: SIM115 - closed by finish or abandon
            self._write(MAGIC)
        except OSError as error:
            self.abandon()
            raise self._unavailable(error) from error

    def add(self, rows: pa.RecordBatch) -> None:
        """See `Builder`."""
        if not rows.num_rows:
            return
        if self._last_row is not None:
            check_follows(self._last_row, rows, self._layout)
        self._last_row = rows.slice(rows.num_rows - 1)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _GATHER_BYTES:
            self._cut(everything=False)

    def finish(self) -> FileBatch | None:
        """See `Builder`."""
        self._cut(everything=True)
        if not self._crcs or self._file is None:
            self.abandon()
            return None
        contents = Contents(
            np.array(self._starts, np.int64),
            self._negative,
            np.array(self._ends, np.int64),
            self._crcs,
            self._sizes,
            BlockIndex(self._layout, self._firsts, self._lasts),
            self._filter.finish(),
        )
        try:
            self._write(end_bytes(contents, self._layout))
            self._file.close()
            os.rename(self._path + UNFINISHED, self._path)
        except OSError as error:
            self.abandon()
            raise self._unavailable(error) from error
        self._file = None
        return FileBatch(self._layout, FileOwner(self._path, delete=True), contents, self._cache)

    def abandon(self) -> None:
        """See `Builder`."""
        if self._file is not None:
            self._file.close()
            self._file = None
            os.unlink(self._path + UNFINISHED)
        self._waiting = []

    def _cut(self, *, everything: bool) -> None:
        """Write the gathered rows as blocks; unless `everything`, rows that do not fill a block stay."""
        if not self._waiting:
            return
        rows = pa.concat_batches(self._waiting)
        block_rows = max(1, min(_BLOCK_ROWS_MAX, _BLOCK_BYTES * rows.num_rows // max(1, rows.nbytes)))
        count = rows.num_rows if everything else rows.num_rows // block_rows * block_rows
        self._account(rows.slice(0, count), block_rows)
        for start in range(0, count, block_rows):
            self._block(rows.slice(start, min(block_rows, count - start)))
        rest = rows.slice(count)
        self._waiting = [rest] if rest.num_rows else []
        self._waiting_bytes = rest.nbytes

    def _account(self, rows: pa.RecordBatch, block_rows: int) -> None:
        """Add the keys of rows to filter and index, and count negative diffs."""
        if not rows.num_rows:
            return
        self._filter.add(rows)
        self._negative += int(np.count_nonzero(diffs(rows) < 0))
        starts = np.arange(0, rows.num_rows, block_rows)
        ends = np.minimum(starts + block_rows, rows.num_rows) - 1
        key_columns = rows.select(range(self._layout.key_width))
        for at, held in ((starts, self._firsts), (ends, self._lasts)):
            held.extend(self._layout.encode(key_columns.take(pa.array(at))).to_pylist())

    def _block(self, rows: pa.RecordBatch) -> None:
        stored, size = block_bytes(rows)
        self._crcs.append(zlib.crc32(stored))
        self._sizes.append(size)
        self._starts.append(self._starts[-1] + rows.num_rows)
        self._ends.append(self._ends[-1] + len(stored))
        try:
            self._write(stored)
        except OSError as error:
            self.abandon()
            raise self._unavailable(error) from error

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while self._file is not None and view:
            view = view[self._file.write(view) :]

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"cannot write {self._path!r}: {error.strerror}", False)
