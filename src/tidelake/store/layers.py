"""Layers: stores that pass each call to an inner store through one function.

Owns the two classes that do this, one for each Protocol of `tidelake.store.protocols`. A layer counts,
retries, refuses or breaks calls. It gives an `Around`: a function that gets each call as an operation and a
thunk, and decides whether and how often to make it. A subclass overrides a method if its work depends on the
arguments or the result of the call.

INVARIANT: every call reaches the inner store through the `Around`, except `close` and the reads of an opened
object. A layer that must see these reads overrides `open`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import BinaryIO, Literal, Protocol, TypeAlias, TypeVar

from tidelake.store.protocols import BlobInfo, BlobStore, Entry, Ghost, MendedLog, VersionLog

T = TypeVar("T")

BlobOperation: TypeAlias = Literal[
    "blob.get",
    "blob.get_ranges",
    "blob.put",
    "blob.delete",
    "blob.delete_all",
    "blob.prune",
    "blob.list",
    "blob.open",
    "blob.read",
]
LogOperation: TypeAlias = Literal[
    "log.head",
    "log.scan",
    "log.newer",
    "log.compare_and_set",
    "log.truncate",
    "log.delete",
    "log.mend",
    "log.ghosts",
    "log.keys",
]
Operation: TypeAlias = BlobOperation | LogOperation
"""The methods of the Protocols, and `blob.read`: a read of an object that `blob.open` has opened."""

WRITES: frozenset[Operation] = frozenset(
    {
        *("blob.put", "blob.delete", "blob.delete_all", "blob.prune"),
        *("log.compare_and_set", "log.truncate", "log.delete", "log.mend"),
    }
)
"""The operations that may change what is stored."""


class Around(Protocol):
    """What a layer does with each call of its inner store."""

    def __call__(self, operation: Operation, call: Callable[[], T], /) -> T:
        """Make a call, once or more often, and return its result; or raise without making it."""


def plainly(_operation: Operation, call: Callable[[], T]) -> T:
    """Make the call and do nothing else."""
    return call()


class BlobLayer:
    """A `BlobStore` that makes each call of another one by way of `around`."""

    def __init__(self, inner: BlobStore, around: Around = plainly) -> None:
        self._inner = inner
        self._around = around

    @property
    def is_far(self) -> bool:
        """Whether calls take a round trip; see `BlobStore.is_far`."""
        return self._inner.is_far

    @property
    def url(self) -> str | None:
        """Where other programs find the objects; see `BlobStore.url`."""
        return self._inner.url

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of bytes; see `BlobStore.get`."""
        return self._around("blob.get", lambda: self._inner.get(name, start, length))

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges at once; see `BlobStore.get_ranges`."""
        return self._around("blob.get_ranges", lambda: self._inner.get_ranges(name, ranges))

    def put(self, name: str, data: bytes) -> None:
        """Store a new object; see `BlobStore.put`."""
        self._around("blob.put", lambda: self._inner.put(name, data))

    def delete(self, name: str) -> bool:
        """Delete an object; see `BlobStore.delete`."""
        return self._around("blob.delete", lambda: self._inner.delete(name))

    def delete_all(self, names: Sequence[str]) -> int:
        """Delete objects; see `BlobStore.delete_all`."""
        return self._around("blob.delete_all", lambda: self._inner.delete_all(names))

    def prune(self, folder: str) -> None:
        """Remove empty folders; see `BlobStore.prune`."""
        self._around("blob.prune", lambda: self._inner.prune(folder))

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List objects by prefix; see `BlobStore.list`. `around` sees the start of the listing."""
        return self._around("blob.list", lambda: self._inner.list(prefix))

    def open(self, name: str) -> BinaryIO:
        """Open a reader; see `BlobStore.open`."""
        return self._around("blob.open", lambda: self._inner.open(name))

    def close(self) -> None:
        """Close the inner store."""
        self._inner.close()


class LogLayer:
    """A `VersionLog` that makes each call of another one by way of `around`."""

    def __init__(self, inner: VersionLog, around: Around = plainly) -> None:
        self._inner = inner
        self._around = around

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        return self._around("log.head", lambda: self._inner.head(key))

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        return self._around("log.scan", lambda: self._inner.scan(key, start, limit))

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Entries after `seqno`; see `VersionLog.newer`."""
        return self._around("log.newer", lambda: self._inner.newer(key, seqno, through))

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`."""
        return self._around("log.compare_and_set", lambda: self._inner.compare_and_set(key, expected, data))

    def truncate(self, key: str, seqno: int) -> int:
        """Give up entries before `seqno`; see `VersionLog.truncate`."""
        return self._around("log.truncate", lambda: self._inner.truncate(key, seqno))

    def delete(self, key: str) -> bool:
        """Delete the key; see `VersionLog.delete`."""
        return self._around("log.delete", lambda: self._inner.delete(key))

    def mend(self, key: str, starts: Collection[int]) -> MendedLog | None:
        """Repair a damaged key; see `VersionLog.mend`."""
        return self._around("log.mend", lambda: self._inner.mend(key, starts))

    def ghosts(self) -> list[Ghost]:
        """Entries that were put again after their removal; see `VersionLog.ghosts`."""
        return self._around("log.ghosts", self._inner.ghosts)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List keys by prefix; see `VersionLog.keys`. `around` sees the start of the listing."""
        return self._around("log.keys", lambda: self._inner.keys(prefix))

    def close(self) -> None:
        """Close the inner log."""
        self._inner.close()
