"""Stores in the memory of one process. Tests compare the other stores with them.

Owns the simplest implementation of the two Protocols. Data is lost with the process; speed is no goal.

INVARIANT: every operation takes effect atomically, under one lock.
"""

import io
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import BinaryIO

from tidelake.env import Clock
from tidelake.errors import BlobExists, BlobNotFound, UsageError
from tidelake.store.names import (
    check_expected,
    check_limit,
    check_name,
    check_prefix,
    check_range,
    check_truncation,
)
from tidelake.store.protocols import BlobInfo, Entry, Ghost, MendedLog, following


class MemoryBlobStore:
    """A `BlobStore` in a dictionary."""

    is_far = False
    url = None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._blobs: dict[str, tuple[bytes, int]] = {}

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of bytes; see `BlobStore.get`."""
        check_range(check_name(name), start, length)
        data = self._find(name)
        return data[start:] if length is None else data[start : start + length]

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; see `BlobStore.get_ranges`."""
        for start, length in ranges:
            check_range(check_name(name), start, length)
        data = self._find(check_name(name))
        return [data[start : start + length] for start, length in ranges]

    def put(self, name: str, data: bytes) -> None:
        """Store a new object; see `BlobStore.put`."""
        check_name(name)
        with self._lock:
            if name in self._blobs:
                raise BlobExists(name)
            self._check_folders(name)
            self._blobs[name] = (bytes(data), self._clock.now_ms())

    def delete(self, name: str) -> bool:
        """Delete an object; see `BlobStore.delete`."""
        check_name(name)
        with self._lock:
            return self._blobs.pop(name, None) is not None

    def delete_all(self, names: Sequence[str]) -> int:
        """Delete objects; see `BlobStore.delete_all`."""
        return sum(self.delete(name) for name in [check_name(name) for name in names])

    def prune(self, folder: str) -> None:
        """Do nothing: only objects are kept; see `BlobStore.prune`."""
        check_name(folder)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List objects in ascending order of name; see `BlobStore.list`."""
        check_prefix(prefix)
        with self._lock:
            found = [(name, *blob) for name, blob in self._blobs.items() if name.startswith(prefix)]
        return (BlobInfo(name, len(data), at_ms) for name, data, at_ms in sorted(found, key=lambda f: f[0]))

    def open(self, name: str) -> BinaryIO:
        """Open a reader; see `BlobStore.open`."""
        return io.BytesIO(self._find(check_name(name)))

    def close(self) -> None:
        """Do nothing: there are no handles."""

    def _find(self, name: str) -> bytes:
        with self._lock:
            blob = self._blobs.get(name)
        if blob is None:
            raise BlobNotFound(name)
        return blob[0]

    def _check_folders(self, name: str) -> None:
        # A directory cannot hold both `a` and `a/b`, so the store that tests compare with must refuse it too.
        for other in self._blobs:
            if other.startswith(name + "/") or name.startswith(other + "/"):
                raise UsageError(f"bad name {name!r}: one of {name!r} and {other!r} is a folder of the other")


class MemoryVersionLog:
    """A `VersionLog` in a dictionary of lists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, list[Entry]] = {}

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        check_name(key)
        with self._lock:
            entries = self._entries.get(key)
            return entries[-1] if entries else None

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        check_limit(check_name(key), limit)
        with self._lock:
            entries = self._entries.get(key, [])
            first = bisect_left(entries, start, key=lambda entry: entry.seqno)
            return entries[first:] if limit is None else entries[first : first + limit]

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Entries after `seqno`; see `VersionLog.newer`."""
        # From the known entry on: the newest entry is always there while the key exists.
        return following(self.scan(key, seqno), seqno, through)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`."""
        check_expected(check_name(key), expected)
        with self._lock:
            entries = self._entries.get(key)
            if (entries[-1].seqno if entries else None) != expected:
                return False
            seqno = 0 if expected is None else expected + 1
            self._entries.setdefault(key, []).append(Entry(seqno, bytes(data)))
            return True

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        check_name(key)
        with self._lock:
            entries = self._entries.get(key)
            check_truncation(key, entries[-1].seqno if entries else None, seqno)
            kept = [entry for entry in entries or [] if entry.seqno >= seqno]
            dropped = len(entries or []) - len(kept)
            self._entries[key] = kept
            return dropped

    def delete(self, key: str) -> bool:
        """Delete the key; see `VersionLog.delete`."""
        check_name(key)
        with self._lock:
            return self._entries.pop(key, None) is not None

    def mend(self, key: str, starts: Collection[int]) -> MendedLog | None:  # noqa: ARG002 - the signature
        """Do nothing: memory is taken to be intact; see `VersionLog.mend`."""
        check_name(key)
        return None

    def ghosts(self) -> list[Ghost]:
        """None: no write lands late; see `VersionLog.ghosts`."""
        return []

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List keys in ascending order; see `VersionLog.keys`."""
        check_prefix(prefix)
        with self._lock:
            return iter(sorted(key for key in self._entries if key.startswith(prefix)))

    def close(self) -> None:
        """Do nothing: there are no handles."""
