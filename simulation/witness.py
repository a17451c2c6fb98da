"""The true stores, with an observer that sees every effect at the moment it happens.

Must not know what an effect means, nor change any answer.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from tidelake.store.protocols import BlobInfo, BlobStore, Entry, Mended, VersionLog


@dataclass(frozen=True)
class Actor:
    """The cause of an effect.

    Attributes:
        process: name of the process.
        about: what the thread that asked for the effect was doing; None: nothing in particular.
        beside: what the other threads of the process are doing.
    """

    process: str
    about: object
    beside: tuple[object, ...] = ()


class Observer(Protocol):
    """Is told of effects, at the moment of each."""

    def entered(self, key: str, entry: Entry, actor: Actor) -> None:
        """A log has a new entry, which `actor` caused."""

    def survived(self) -> None:
        """The machine has crashed; the stores hold only what was durable."""

    def deleting(self, name: str) -> None:
        """A blob is about to be deleted."""

    def ending(self, key: str) -> None:
        """A log is about to be deleted."""


class WitnessedBlobs:
    """A `BlobStore` whose deletions are seen."""

    def __init__(self, inner: BlobStore, observer: Observer) -> None:
        self._inner, self._observer = inner, observer

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of a range; see `BlobStore.get`."""
        return self._inner.get(name, start, length)

    def put(self, name: str, data: bytes) -> None:
        """Put if absent; see `BlobStore.put`."""
        self._inner.put(name, data)

    def delete(self, name: str) -> bool:
        """Remove; see `BlobStore.delete`."""
        self._observer.deleting(name)
        return self._inner.delete(name)

    def prune(self, folder: str) -> None:
        """Remove empty folders; see `BlobStore.prune`."""
        self._inner.prune(folder)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Ascending names; see `BlobStore.list`."""
        return self._inner.list(prefix)

    def open(self, name: str) -> BinaryIO:
        """A reader; see `BlobStore.open`."""
        return self._inner.open(name)

    def close(self) -> None:
        """Do nothing: other processes use it."""


class WitnessedLog:
    """A `VersionLog` whose new entries are seen."""

    def __init__(self, inner: VersionLog, observer: Observer, acting: Callable[[], Actor]) -> None:
        self._inner, self._observer, self._acting = inner, observer, acting

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        return self._inner.head(key)

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        return self._inner.scan(key, start, limit)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`."""
        won = self._inner.compare_and_set(key, expected, data)
        if won:
            entry = Entry(0 if expected is None else expected + 1, data)
            self._observer.entered(key, entry, self._acting())
        return won

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        return self._inner.truncate(key, seqno)

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        self._observer.ending(key)
        return self._inner.delete(key)

    def mend(self, key: str, starts: Collection[int]) -> Mended | None:
        """Repair the key; see `VersionLog.mend`."""
        return self._inner.mend(key, starts)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Ascending keys; see `VersionLog.keys`."""
        return self._inner.keys(prefix)

    def close(self) -> None:
        """Do nothing: other processes use it."""
