"""Layers that count calls, entries and bytes.

Owns the names of the counters. Must not change what a call does or returns.

INVARIANT: a call is counted when it is made, also if it fails, since it costs the same. Bytes and entries are
counted after a call has succeeded.
"""

from collections.abc import Callable, Sequence
from typing import BinaryIO, TypeVar

from tidelake.env import Recorder
from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.layers import Around, BlobLayer, LogLayer, LogOperation, Operation
from tidelake.store.protocols import BlobStore, Entry, VersionLog
from tidelake.store.reader import read_through

T = TypeVar("T")


class MeteredBlobStore(BlobLayer):
    """A `BlobStore` that counts `blob.*`; each read of an opened object is a `blob.get`."""

    def __init__(self, inner: BlobStore, recorder: Recorder) -> None:
        super().__init__(inner, _counting(recorder))
        self._count = recorder.count

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Count the bytes; see `BlobStore.get`."""
        data = super().get(name, start, length)
        self._count("blob.get.bytes", len(data))
        return data

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Count the bytes; see `BlobStore.get_ranges`."""
        found = super().get_ranges(name, ranges)
        self._count("blob.get.bytes", sum(map(len, found)))
        return found

    def put(self, name: str, data: bytes) -> None:
        """Count the bytes; see `BlobStore.put`."""
        super().put(name, data)
        self._count("blob.put.bytes", len(data))

    def open(self, name: str) -> BinaryIO:
        """Count each read; see `BlobStore.open`."""
        return read_through(super().open(name), self._read)

    def _read(self, inner: BinaryIO, size: int) -> bytes:
        self._count("blob.get")
        data = inner.read(size)
        self._count("blob.get.bytes", len(data))
        return data


class MeteredVersionLog(LogLayer):
    """A `VersionLog` that counts `log.*`."""

    def __init__(self, inner: VersionLog, recorder: Recorder) -> None:
        super().__init__(inner, _counting(recorder))
        self._count = recorder.count

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Count the entries and their bytes; see `VersionLog.scan`."""
        entries = super().scan(key, start, limit)
        self._tell("log.scan", entries)
        return entries

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Count the entries and their bytes; see `VersionLog.newer`."""
        entries = super().newer(key, seqno, through)
        self._tell("log.newer", entries or [])
        return entries

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Count the bytes that were appended; see `VersionLog.compare_and_set`."""
        is_set = super().compare_and_set(key, expected, data)
        if is_set:
            self._count("log.compare_and_set.bytes", len(data))
        return is_set

    def _tell(self, operation: LogOperation, entries: list[Entry]) -> None:
        self._count(f"{operation}.entries", len(entries))
        self._count(f"{operation}.bytes", sum(len(entry.data) for entry in entries))


def _counting(recorder: Recorder) -> Around:
    count = recorder.count

    def around(operation: Operation, call: Callable[[], T]) -> T:
        count(operation)
        try:
            return call()
        except (StoreUnavailable, OutcomeUnknown):
            count("store.failed")
            raise

    return around
