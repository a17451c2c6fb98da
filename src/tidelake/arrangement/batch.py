"""What a batch of an arrangement is, in memory or on disk, and how one is built.

Owns the two Protocols that mergers, snapshots and checkpoints are written against; must not know where
rows are kept. A batch is immutable: rows of `Layout.arrow`, sorted by key, value and time, consolidated
(no two equal but for their diff, none with diff 0), at least one. It is cut into *blocks*, the unit of
reading; the rows of one key may go on in the next block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.arrangement.keys import Keys

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Batch(Protocol):
    """Sorted updates. Safe to read from several threads."""

    @property
    def id(self) -> str:
        """A name of its own; that of the file without its ending if it is on disk."""

    @property
    def rows(self) -> int:
        """How many updates."""

    @property
    def negative_rows(self) -> int:
        """How many of them have a negative diff."""

    @property
    def size_bytes(self) -> int:
        """Of the rows: as stored if on disk, else in memory."""

    @property
    def memory_bytes(self) -> int:
        """What it takes of the memory budget: rows in memory, filter and index; cached blocks not."""

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
        """How many; at least one, none of them empty."""

    @property
    def block_starts(self) -> Ints:
        """How many rows stand before each block, and at the end of all: `blocks + 1` numbers."""

    def block(self, i: int) -> pa.RecordBatch:
        """The rows of one block; of a file through the cache, by one read if it is not there.

        Raises:
            CorruptionError: the bytes are not what was written; names the file.
        """

    def first_key(self, i: int) -> bytes:
        """The encoded key of the first row of a block, from the index."""

    def last_key(self, i: int) -> bytes:
        """The encoded key of the last row of a block, from the index."""

    def find_block(self, key: bytes, *, after: bool = False) -> int:
        """The first block whose last key is `key` or greater, or with `after` greater; `blocks` if none is.

        Rows of `key` are in the blocks `find_block(key)` to `find_block(key, after=True)`, the latter
        included if there is such a block, if they are there at all.
        """

    def scan(self, first_block: int = 0) -> Iterator[pa.RecordBatch]:
        """The rows from a block on, ascending, for merges: the cache is neither asked nor filled.

        Raises:
            CorruptionError: as `block`.
        """

    def may_hold(self, keys: Keys) -> Mask:
        """For each key, in order, whether range and filter leave it possible; reads nothing."""

    def fetch(self, keys: Keys) -> pa.RecordBatch:
        """All rows whose key is among `keys`, in order. Reads each block that may hold one, once.

        Raises:
            CorruptionError: as `block`.
        """

    def acquire(self) -> None:
        """Be one more user. What is built or opened has one."""

    def release(self) -> None:
        """Be one user less. With the last one the rows are let go, and the file, if the batch owns it."""


@dataclass(frozen=True)
class FilterPlan:
    """What is known of the rows before they are built, for the choice and size of a filter.

    Attributes:
        rows: how many there are at most; of a merge the sum of the inputs'.
        key_lower: no key is less; None if that is not known.
        key_upper: no key is greater; None if that is not known.
    """

    rows: int
    key_lower: bytes | None = None
    key_upper: bytes | None = None


class Builder(Protocol):
    """Makes one batch; for one thread."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows: sorted, consolidated, after all rows before; may be empty.

        Raises:
            InternalError: they are not after the rows before.
            StoreUnavailable: the disk took them not.
        """

    def finish(self) -> Batch | None:
        """The batch, with one user; None if there were no rows. A file stands under its name, not flushed.

        Raises:
            StoreUnavailable: the disk took them not; nothing is left behind.
        """

    def abandon(self) -> None:
        """Leave nothing behind. May be repeated, and be called after `finish`, to no effect."""
