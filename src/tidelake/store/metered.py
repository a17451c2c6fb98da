"""Layers that count calls, entries and bytes.

Owns the names of the counters. Must not change what a call does or returns.

INVARIANT: a call is counted when it is made, also if it fails, since it costs the same. Bytes and entries are
counted after a call has succeeded.
"""

from collections.abc import Collection, Iterator
from typing import BinaryIO

from tidelake.env import Recorder
from tidelake.store.protocols import BlobInfo, BlobStore, Entry, Mended, VersionLog
from tidelake.store.reader import read_through


class MeteredBlobStore:
    """A `BlobStore` that counts `blob.*`; each read of an opened object is a `blob.get`."""

    def __init__(self, inner: BlobStore, recorder: Recorder) -> None:
        self._inner = inner
        self._count = recorder.count

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of a range; see `BlobStore.get`."""
        self._count("blob.get")
        data = self._inner.get(name, start, length)
        self._count("blob.get.bytes", len(data))
        return data

    def put(self, name: str, data: bytes) -> None:
        """Put if absent; see `BlobStore.put`."""
        self._count("blob.put")
        self._inner.put(name, data)
        self._count("blob.put.bytes", len(data))

    def delete(self, name: str) -> bool:
        """Remove; see `BlobStore.delete`."""
        self._count("blob.delete")
        return self._inner.delete(name)

    def prune(self, folder: str) -> None:
        """Folders; see `BlobStore.prune`."""
        self._count("blob.prune")
        self._inner.prune(folder)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Ascending names; see `BlobStore.list`."""
        self._count("blob.list")
        return self._inner.list(prefix)

    def open(self, name: str) -> BinaryIO:
        """A reader; see `BlobStore.open`."""
        self._count("blob.open")
        return read_through(self._inner.open(name), self._read)

    def close(self) -> None:
        """Close the store below."""
        self._inner.close()

    def _read(self, inner: BinaryIO, size: int) -> bytes:
        self._count("blob.get")
        data = inner.read(size)
        self._count("blob.get.bytes", len(data))
        return data


class MeteredVersionLog:
    """A `VersionLog` that counts `log.*`."""

    def __init__(self, inner: VersionLog, recorder: Recorder) -> None:
        self._inner = inner
        self._count = recorder.count

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        self._count("log.head")
        return self._inner.head(key)

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        self._count("log.scan")
        entries = self._inner.scan(key, start, limit)
        self._count("log.scan.entries", len(entries))
        self._count("log.scan.bytes", sum(len(entry.data) for entry in entries))
        return entries

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`."""
        self._count("log.compare_and_set")
        is_set = self._inner.compare_and_set(key, expected, data)
        if is_set:
            self._count("log.compare_and_set.bytes", len(data))
        return is_set

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        self._count("log.truncate")
        return self._inner.truncate(key, seqno)

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        self._count("log.delete")
        return self._inner.delete(key)

    def mend(self, key: str, starts: Collection[int]) -> Mended | None:
        """Take back what is sound; see `VersionLog.mend`."""
        self._count("log.mend")
        return self._inner.mend(key, starts)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Ascending keys; see `VersionLog.keys`."""
        self._count("log.keys")
        return self._inner.keys(prefix)

    def close(self) -> None:
        """Close the log below."""
        self._inner.close()
