"""Batches on local disk, one file each.

Owns the reading of a file and when it is deleted; `fileformat` owns its bytes. Invariant: a file exists as
long as it has a user, and the rows that are read are the ones that were written.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from tidelake.arrangement.batch.batch import Mask
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.fileformat import SUFFIX, Contents, block_rows, read_contents
from tidelake.arrangement.batch.keys import Keys, Places
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.batch.memory import joined, possible
from tidelake.arrangement.batch.search import rows_of
from tidelake.errors import Closed, CorruptionError, InternalError, StoreUnavailable
from tidelake.process import ProcessOrigin

# Bytes that a merge reads at once.
_SCAN_BYTES = 1024 * 1024


class FileOwner:
    """An open file with a count of users; the last one closes it, and deletes it if that was asked for."""

    def __init__(self, path: str, *, delete: bool) -> None:
        """Open a file for its first user."""
        self.path = path
        self._delete = delete
        self._users = 1
        self._origin = ProcessOrigin()
        self._lock = threading.Lock()
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise StoreUnavailable(f"cannot open {path!r}: {error.strerror}", False) from error

    @property
    def size_bytes(self) -> int:
        """File size in bytes."""
        return os.fstat(self._descriptor).st_size

    def keep(self) -> None:
        """Do not delete the file when its last user is gone."""
        with self._lock:
            self._delete = False

    def acquire(self) -> None:
        """Add a user."""
        with self._lock:
            if not self._users:
                raise InternalError(f"{self.path!r} is used after its last user released it")
            self._users += 1

    def release(self) -> bool:
        """Remove a user; returns whether it was the last one."""
        with self._lock:
            if not self._users:
                raise InternalError(f"{self.path!r} is released more often than it was acquired")
            self._users -= 1
            if self._users:
                return False
            os.close(self._descriptor)
            # In a forked process the file belongs to the parent.
            if self._delete and self._origin.is_here:
                # A snapshot may outlive its arrangement, which removes the folder with the file.
                with suppress(FileNotFoundError):
                    os.unlink(self.path)
            return True

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes at an offset."""
        with self._lock:
            if not self._users:
                raise Closed("the snapshot was closed during a read: take another one")
            # The read is a user of its own: a closed descriptor could be reused for another file meanwhile.
            self._users += 1
        try:
            found = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise StoreUnavailable(f"cannot read {self.path!r}: {error.strerror}") from error
        finally:
            self.release()
        if len(found) != size:
            raise CorruptionError(self.path, f"it ends at byte {offset + len(found)}")
        return found


class FileBatch:
    """See `IndexBatch`."""

    on_disk = True

    def __init__(self, layout: Layout, owner: FileOwner, contents: Contents, cache: BlockCache) -> None:
        self.id = os.path.basename(owner.path).removesuffix(SUFFIX)
        self.owner = owner
        self.rows, self.negative_rows = int(contents.starts[-1]), contents.negative_rows
        self.block_starts = contents.starts
        self.size_bytes = owner.size_bytes
        self._layout, self._contents, self._cache = layout, contents, cache
        self._index, self._filter = contents.index, contents.filter
        self.key_lower, self.key_upper = self._index.firsts[0], self._index.lasts[-1]
        self.memory_bytes = self._index.memory_bytes + self._filter.words.nbytes
        self.blocks = len(self._index)

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.owner.path

    def block(self, i: int) -> pa.RecordBatch:
        """See `IndexBatch`."""
        return self._cache.get(self, i, self._read)

    def first_key(self, i: int) -> bytes:
        """See `IndexBatch`."""
        return self._index.firsts[i]

    def last_key(self, i: int) -> bytes:
        """See `IndexBatch`."""
        return self._index.lasts[i]

    def find_block(self, key: bytes, *, after: bool = False) -> int:
        """See `IndexBatch`."""
        return self._index.find(key, after=after)

    def scan(self, first_block: int = 0) -> Iterator[pa.RecordBatch]:
        """See `IndexBatch`. Reads a megabyte at a time."""
        offsets = self._contents.offsets
        while first_block < self.blocks:
            start = offsets[first_block]
            end_block = max(first_block + 1, int(np.searchsorted(offsets, start + _SCAN_BYTES, "right")) - 1)
            read = memoryview(self.owner.read(int(start), int(offsets[end_block] - start)))
            yield pa.concat_batches(
                [
                    self._decoded(i, read[offsets[i] - start : offsets[i + 1] - start])
                    for i in range(first_block, end_block)
                ]
            )
            first_block = end_block

    def may_hold(self, keys: Keys) -> Mask:
        """See `IndexBatch`."""
        mask = np.zeros(len(keys), np.bool_)
        first, end = keys.between(self.key_lower, self.key_upper)
        mask[first:end] = self._filter.may_hold(keys, first, end)
        return mask

    def lookup(self, keys: Keys) -> pa.RecordBatch:
        """See `IndexBatch`."""
        places = self._possible(keys)
        if not len(places):
            return self._layout.empty
        blocks = self._index.blocks_of(keys, places)
        taken = keys.take(places)
        found = (rows_of(self.block(b), taken, first, end) for b, first, end in blocks)
        return joined(found, self._layout, self._cache.counts)

    def acquire(self) -> None:
        """See `IndexBatch`."""
        self.owner.acquire()

    def release(self) -> None:
        """See `IndexBatch`."""
        if self.owner.release():
            self._cache.drop(self, self.blocks)

    def _possible(self, keys: Keys) -> Places:
        """The keys that key range and filter do not exclude."""
        first, end = keys.between(self.key_lower, self.key_upper)
        if first == end:
            self._cache.counts.range_misses += 1
            return np.arange(0)
        return possible(self._filter, keys, first, end, self._cache.counts)

    def _read(self, i: int) -> pa.RecordBatch:
        offsets = self._contents.offsets
        start, end = int(offsets[i]), int(offsets[i + 1])
        return self._decoded(i, memoryview(self.owner.read(start, end - start)))

    def _decoded(self, i: int, stored: memoryview) -> pa.RecordBatch:
        contents = self._contents
        return block_rows(stored, contents.crcs[i], contents.sizes[i], self._layout, f"{self.path} block {i}")


def open_batch(path: str, layout: Layout, cache: BlockCache, *, delete: bool) -> FileBatch:
    """Open a batch that is in a file, with one user."""
    owner = FileOwner(path, delete=delete)
    try:
        contents = read_contents(owner.read, owner.size_bytes, path, layout)
    except BaseException:
        owner.keep()
        owner.release()
        raise
    return FileBatch(layout, owner, contents, cache)
