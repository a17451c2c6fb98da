"""What a store promises: two small Protocols and the values that they exchange.

Owns the contract of `BlobStore` (immutable objects by name) and `VersionLog` (an append-only list of
entries per key, with compare-and-set). Must not know what the bytes mean, nor how a store keeps them.

INVARIANT: an object never changes once it exists, and the seqnos of a key are contiguous. An acknowledged
write survives a crash of the process and of the machine; a memory store survives neither.

Names and keys are segments separated by `/`; see `tidelake.store.names`. Besides the errors in its own
docstring, every operation may raise:

- `UsageError`: the name or an argument is not allowed; nothing was done.
- `StoreUnavailable`: the operation had no effect. `retryable` says whether trying again soon may help.
- `OutcomeUnknown`: the operation may have had its effect.
- `CorruptionError`: the store found that stored bytes are damaged.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True)
class BlobInfo:
    """An object as a listing shows it.

    Attributes:
        modified_ms: when it was written, in milliseconds since 1970 UTC, by the clock of the store.
    """

    name: str
    size_bytes: int
    modified_ms: int


class BlobStore(Protocol):
    """Immutable objects by name. Safe to use from several threads and processes at once."""

    @property
    def is_far(self) -> bool:
        """Whether a call takes a round trip over a network, so that fewer calls matter most."""

    @property
    def url(self) -> str | None:
        """Where other programs find objects: `url/name`, without escapes; None if only this process can."""

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read the bytes `[start, start + length)` of an object, or all from `start` on.

        A range past the end of the object gives fewer bytes, or none. One store call.

        Raises:
            BlobNotFound: there is no such object.
        """

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges `(start, length)` of an object, each as `get` does, in one round trip.

        A store may fetch near ranges together, and others at once.

        Raises:
            BlobNotFound: there is no such object.
        """

    def put(self, name: str, data: bytes) -> None:
        """Store a new object; it is durable on return. One store call.

        A name must not be a folder of another name (`a` and `a/b`); stores that can detect this refuse it.

        Raises:
            BlobExists: an object of this name exists. It is unchanged, and it is durable. If it has the same
                bytes, a store may also return as if it had put it.
        """

    def delete(self, name: str) -> bool:
        """Delete an object; return whether it existed. Deleting it again is not an error."""

    def delete_all(self, names: Sequence[str]) -> int:
        """Delete objects; return how many existed. After an error some of them may be deleted.

        A store that is far deletes up to 1,000 with one call, and cannot tell which existed: it counts all.
        """

    def prune(self, folder: str) -> None:
        """Remove what the store keeps for names `folder/...`, such as directories, where no object is left.

        May be repeated. One store call; none for a store that keeps nothing but objects.

        REQUIRES: no object is needed that is put there during this call or later.
        """

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List the objects whose names start with `prefix`, in ascending order of name.

        An object that is put or deleted while the listing runs may or may not be in it.
        """

    def open(self, name: str) -> BinaryIO:
        """Open an object as a seekable reader, for range reads; the caller closes it.

        Raises:
            BlobNotFound: there is no such object. Raised by this call, or by the first read.
        """

    def close(self) -> None:
        """Release handles. May be repeated. The store must not be used afterwards."""


@dataclass(frozen=True)
class Entry:
    """One version of a key."""

    seqno: int
    data: bytes


@dataclass(frozen=True)
class MendedLog:
    """The result of repairing a damaged key.

    Attributes:
        first: seqno of the oldest entry after the repair.
        head: seqno of the newest entry after the repair.
        acknowledged: seqno of the newest entry known to have been acknowledged; None if none is known.
    """

    reason: str
    first: int
    head: int
    acknowledged: int | None
    kept: str

    @property
    def lost(self) -> tuple[int, int] | None:
        """Seqnos of the first and the last entry known to be lost; None if none is."""
        if self.acknowledged is None or self.acknowledged <= self.head:
            return None
        return self.head + 1, self.acknowledged


@dataclass(frozen=True)
class Ghost:
    """An entry that was put again after its removal, by a write that landed late. It is no part of its key.

    Attributes:
        is_gone: whether the key was deleted; `VersionLog.delete` then removes what is left under it.
    """

    key: str
    seqno: int
    is_gone: bool


def following(found: list[Entry], seqno: int, through: int | None = None) -> list[Entry] | None:
    """The answer of `VersionLog.newer`, from a scan that began with entry `seqno`."""
    if not found or found[0].seqno > seqno + 1:
        return None
    return [entry for entry in found if seqno < entry.seqno and (through is None or entry.seqno <= through)]


class VersionLog(Protocol):
    """A list of entries per key, appended to by compare-and-set. Safe for threads and processes.

    A key exists from its first `compare_and_set` to its `delete`. While it exists it has at least one entry,
    and the seqnos of its entries are contiguous.
    """

    def head(self, key: str) -> Entry | None:
        """The newest entry; `None` if the key does not exist. Linearizable. One store call."""

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries with `seqno >= start`, ascending, at most `limit`. One store call.

        The list is empty if the key does not exist.
        """

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Entries after entry `seqno`, ascending: all, or those up to entry `through`. One store call.

        None if a reader cannot go on from entry `seqno`: entry `seqno + 1` was removed, the key was deleted,
        or the log has lost its newest entries. Such a reader looks at `head` and begins anew.

        Args:
            key: the key.
            seqno: of an entry that the caller has read; -1 to begin with entry 0.
            through: of an entry that the caller has read. Its log may have newer ones.
        """

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append `data` iff the newest seqno is `expected`; durable on return. One store call.

        The new entry has seqno `expected + 1`. `expected=None` means that the key must not exist; its
        first entry has seqno 0. Returns False, and writes nothing, if the newest seqno is another one. A
        store may also return False for a key that was deleted: it is not created again.
        """

    def truncate(self, key: str, seqno: int) -> int:
        """Give up all entries before `seqno`; return how many entries were removed.

        `scan` shows them no more. A store may remove them later, in a later call, so that others that are
        reading them can go on.

        Raises:
            UsageError: there is no such key, or `seqno` is greater than that of its newest entry.
        """

    def delete(self, key: str) -> bool:
        """Delete the key and all its entries; return whether it did.

        False if there is no such key, or if its newest entry is so young that others may not have seen it
        yet: then nothing was done, and the key can be deleted later.

        REQUIRES: no process appends to the key from now on.
        """

    def mend(self, key: str, starts: Collection[int]) -> MendedLog | None:
        """Repair a damaged key from those of its entries that are intact.

        Reads the whole key, so it is meant for repairs only. The damaged bytes are kept. No other call
        gives up entries that are lost.

        Args:
            key: the key to repair.
            starts: seqnos of states that a reader can begin from, besides entry 0. The repaired key holds
                one of them.

        Returns:
            What was repaired; None if nothing is wrong, or if there is no such key.

        Raises:
            CorruptionError: no entry is intact. The key is left as it is.
        """

    def ghosts(self) -> list[Ghost]:
        """The ghosts of all keys, in no order that matters. May be slow: meant for administration.

        Empty where no write can land late. A ghost of a key that exists goes with a later truncation.
        """

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List the keys that start with `prefix`, ascending. May be slow: meant for administration."""

    def close(self) -> None:
        """Release handles. May be repeated. The log must not be used afterwards."""
