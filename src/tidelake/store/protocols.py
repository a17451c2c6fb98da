"""What a store promises: two small Protocols and the values that they speak in.

Owns the contract of `BlobStore` (immutable objects by name) and `VersionLog` (an append-only list of
entries per key, with compare-and-set). Must not know what the bytes mean, nor how a store keeps them.

INVARIANT: an object never changes once it is there, and the seqnos of a key are contiguous; what was
acknowledged survives a crash of the process and of the machine (a memory store: of neither).

Names and keys are `/`-separated segments, see `tidelake.store.names`. Every operation raises, beside the
errors named at it:

- `UsageError`: the name or an argument is not allowed; nothing was done.
- `StoreUnavailable`: it certainly did not happen. `retryable` says whether trying again soon may help.
- `OutcomeUnknown`: it may have happened.
- `CorruptionError`: the store found stored bytes damaged.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True)
class BlobInfo:
    """An object as a listing shows it.

    Attributes:
        name: its name.
        size_bytes: its length.
        modified_ms: when it was written, milliseconds since 1970 UTC by the clock of the store.
    """

    name: str
    size_bytes: int
    modified_ms: int


class BlobStore(Protocol):
    """Immutable objects by name. Safe to use from several threads and processes at once."""

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes `[start, start + length)` of an object, or all from `start` on.

        A range past the end gives what there is, perhaps nothing. One store call.

        Raises:
            BlobNotFound: there is no such object.
        """

    def put(self, name: str, data: bytes) -> None:
        """Put an object where there is none; durable on return. One store call.

        No name may be a folder of another one (`a` beside `a/b`); stores that can see it refuse it.

        Raises:
            BlobExists: there is an object of that name; it was left as it is, and it is durable.
        """

    def delete(self, name: str) -> bool:
        """Remove an object; whether it was there. Removing twice is fine."""

    def prune(self, folder: str) -> None:
        """Give up what is kept for the names `folder/...` beside objects, where there are none.

        REQUIRES: nobody needs what is put there beside this or later. One store call; none where nothing is
        kept. May be repeated.
        """

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """The objects whose names start with `prefix`, in ascending order of their names.

        An object that comes or goes while the listing runs may or may not be in it.
        """

    def open(self, name: str) -> BinaryIO:
        """A seekable reader for range reads; the caller closes it.

        Raises:
            BlobNotFound: there is no such object; raised here, or by the first read.
        """

    def close(self) -> None:
        """Give up handles. May be repeated; the store is not used afterwards."""


@dataclass(frozen=True)
class Entry:
    """One version of a key."""

    seqno: int
    data: bytes


@dataclass(frozen=True)
class Mended:
    """What was made of a key that was damaged.

    Attributes:
        reason: what was wrong with it.
        first: seqno of the oldest entry that is there now.
        head: seqno of the newest one.
        acknowledged: seqno of the newest one that is known to have been acknowledged; None: none is.
        kept: where the damaged bytes are now.
    """

    reason: str
    first: int
    head: int
    acknowledged: int | None
    kept: str

    @property
    def lost(self) -> tuple[int, int] | None:
        """The first and the last entry that is known to be lost; None: none is."""
        if self.acknowledged is None or self.acknowledged <= self.head:
            return None
        return self.head + 1, self.acknowledged


class VersionLog(Protocol):
    """A list of entries per key, appended to by compare-and-set. Safe for threads and processes.

    A key exists from its first `compare_and_set` to its `delete`; it has always at least one entry, and
    the seqnos of its entries are contiguous.
    """

    def head(self, key: str) -> Entry | None:
        """The newest entry, `None` without the key. Linearizable. One store call."""

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries with `seqno >= start`, ascending, at most `limit`; none without the key. One call."""

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append `data` iff the newest seqno is `expected`; durable on return. One store call.

        The new entry has seqno `expected + 1`. `expected=None` says that the key must not exist; its
        first entry has seqno 0. False says that the newest seqno was another one and nothing was written.
        """

    def truncate(self, key: str, seqno: int) -> int:
        """Remove all entries before `seqno`; how many. The newest entry always stays.

        Raises:
            UsageError: there is no such key, or `seqno` lies beyond its newest entry.
        """

    def delete(self, key: str) -> bool:
        """Remove the key and all its entries; whether it was there."""

    def mend(self, key: str, starts: Collection[int]) -> Mended | None:
        """Take back of a damaged key what is sound; None: nothing is wrong, or there is no such key.

        For repairs: it reads all. Nothing is thrown away, and entries that are lost are given up only here.

        Args:
            key: of a log.
            starts: seqnos of states that a reader can begin from, beside that of entry 0. What is left
                holds one of them.

        Raises:
            CorruptionError: nothing of it is sound. It stays as it is.
        """

    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys that start with `prefix`, ascending. For administration: it may be slow."""

    def close(self) -> None:
        """Give up handles. May be repeated; the log is not used afterwards."""
