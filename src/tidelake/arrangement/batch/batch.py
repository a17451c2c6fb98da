"""The interfaces of a batch of an arrangement, in memory or on disk, and of its builder.

Owns the two Protocols that mergers, snapshots and checkpoints are written against; must not know where
rows are kept. A batch is immutable and not empty. Its rows have the schema `Layout.arrow`, are sorted by
key, value and time, and are consolidated: no two rows are equal but for their diff, and no diff is 0. A
batch is cut into *blocks*, the unit of reading; the rows of one key may continue in the next block.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.arrangement.batch.keys import Keys

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class IndexBatch(Protocol):
    """Sorted updates. Safe to read from several threads."""

    @property
    def id(self) -> str:
        """A unique name; on disk it is the file's name without its suffix."""

    @property
    def rows(self) -> int:
        """Number of updates."""

    @property
    def negative_rows(self) -> int:
        """Number of updates with a negative diff."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows: of the file if on disk, else in memory."""

    @property
    def memory_bytes(self) -> int:
        """Bytes counted in the memory budget: rows in memory, filter and index, but not cached blocks."""

    @property
    def on_disk(self) -> bool:
        """Whether the rows are in a file."""

    @property
    def key_lower(self) -> bytes:
        """The least key, encoded."""

    @property
    def key_upper(self) -> bytes:
        """The greatest key, encoded."""

    @property
    def blocks(self) -> int:
        """Number of blocks; at least one, none of them empty."""

    @property
    def block_starts(self) -> Ints:
        """The number of rows before each block, then the total: `blocks + 1` numbers."""

    def block(self, i: int) -> pa.RecordBatch:
        """The rows of one block; a block on disk comes from the cache, or takes one read."""

    def first_key(self, i: int) -> bytes:
        """The encoded key of the first row of a block, from the index."""

    def last_key(self, i: int) -> bytes:
        """The encoded key of the last row of a block, from the index."""

    def find_block(self, key: bytes, *, after: bool = False) -> int:
        """The first block whose last key is at least `key`, or with `after` greater; `blocks` if none is.

        All rows of `key` are in the blocks from `find_block(key)` up to and including
        `find_block(key, after=True)`.
        """

    def scan(self, first_block: int = 0) -> Iterator[pa.RecordBatch]:
        """The rows from a block on, ascending, for merges: bypasses the cache."""

    def may_hold(self, keys: Keys) -> Mask:
        """For each key, whether the batch may have rows of it, by key range and filter; reads nothing."""

    def lookup(self, keys: Keys) -> pa.RecordBatch:
        """All rows whose key is among `keys`, in order. Reads each block that may hold one, once."""

    def acquire(self) -> None:
        """Add a user. A batch that was just built or opened has one."""

    def release(self) -> None:
        """Remove a user. The last one frees the rows, and deletes the file if the batch owns it."""


def release_all(batches: Iterable[IndexBatch]) -> None:
    """Remove a user of each batch."""
    for batch in batches:
        batch.release()


@dataclass(frozen=True)
class FilterPlan:
    """What is known about the rows of a batch before it is built; chooses the kind and size of its filter.

    Attributes:
        rows: upper bound on the number of rows; for a merge, the sum over its inputs.
        key_lower: lower bound of the keys; None if it is not known.
        key_upper: upper bound of the keys, inclusive; None if it is not known.
    """

    rows: int
    key_lower: bytes | None = None
    key_upper: bytes | None = None


class Builder(Protocol):
    """Makes one batch; for one thread."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows: sorted, consolidated, greater than all rows added before; may be empty."""

    def finish(self) -> IndexBatch | None:
        """The batch, with one user; None if there were no rows. A file gets its final name, unflushed."""

    def abandon(self) -> None:
        """Remove what was written. May be repeated; has no effect after `finish`."""
