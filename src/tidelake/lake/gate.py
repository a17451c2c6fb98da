"""Closing a lake: wrappers around its stores that refuse calls once the lake is closed.

Every method of a lake or a collection begins with a log call. So refusing log calls closes all of them, no
matter how the store below handles a close; and work that began earlier stores nothing any more. Streams of
rows can still be read. Must not know collections.

INVARIANT: after `shut`, no log call begins except those of commands that entered before; `shut` returns after
these have ended. So a command is either carried out and answered, or not begun.
"""

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from tidelake.errors import Closed
from tidelake.store.protocols import BlobInfo, BlobStore, Entry, Mended, VersionLog


class Gate:
    """Counts the commands in progress on one lake handle. Thread-safe; a forked child starts at none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shut = False
        self._begin()

    def _begin(self) -> None:
        self._inside = 0
        self._changed = threading.Condition()
        self._own = threading.local()
        # Set last: a thread that sees the current pid uses the fields above.
        self._pid = os.getpid()

    def check(self) -> None:
        """Check that it is not shut.

        Raises:
            Closed: it is shut.
        """
        if self._shut:
            raise Closed(f"the lake at {self._url} was closed: open it again with tidelake.open")

    @contextmanager
    def command(self) -> Iterator[None]:
        """Enter: the body runs to its end, even if the gate is shut meanwhile.

        Raises:
            Closed: the gate is shut already.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            if not self._depth:
                self.check()
            self._enter()
        try:
            yield
        finally:
            self._leave()

    def shut(self) -> None:
        """Refuse new commands, and wait for those in progress. May be repeated."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            self._shut = True
            # Do not wait for this thread's own command: a signal handler may call this during one.
            self._changed.wait_for(lambda: self._inside <= bool(self._depth))

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Let this thread finish its work after it has shut the gate."""
        with self._changed:
            self._enter()
        try:
            yield
        finally:
            self._leave()

    @property
    def _depth(self) -> int:
        """How many nested commands of this thread are in progress."""
        return getattr(self._own, "depth", 0)

    def _enter(self) -> None:
        self._inside += not self._depth
        self._own.depth = self._depth + 1

    def _leave(self) -> None:
        with self._changed:
            self._own.depth = self._depth - 1
            self._inside -= not self._depth
            self._changed.notify_all()


class GatedVersionLog:
    """A `VersionLog` for one handle on a lake. Other handles on the same stores have gates of their own."""

    def __init__(self, inner: VersionLog, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        with self._gate.command():
            return self._inner.head(key)

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        with self._gate.command():
            return self._inner.scan(key, start, limit)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`."""
        with self._gate.command():
            return self._inner.compare_and_set(key, expected, data)

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        with self._gate.command():
            return self._inner.truncate(key, seqno)

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        with self._gate.command():
            return self._inner.delete(key)

    def mend(self, key: str, starts: Collection[int]) -> Mended | None:
        """Recover the sound entries; see `VersionLog.mend`."""
        with self._gate.command():
            return self._inner.mend(key, starts)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Ascending keys; see `VersionLog.keys`."""
        self._gate.check()
        return self._inner.keys(prefix)

    def close(self) -> None:
        """Close the log below. REQUIRES: the gate is shut."""
        self._inner.close()


class GatedBlobStore:
    """A `BlobStore` for one handle on a lake, which refuses `put` once the handle is closed.

    Reads and deletes stay possible, so that streams can be read to their end and unused uploads removed.
    """

    def __init__(self, inner: BlobStore, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of a range; see `BlobStore.get`."""
        return self._inner.get(name, start, length)

    def put(self, name: str, data: bytes) -> None:
        """Put if absent; see `BlobStore.put`."""
        with self._gate.command():
            self._inner.put(name, data)

    def delete(self, name: str) -> bool:
        """Remove; see `BlobStore.delete`."""
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
        """Close the store below."""
        self._inner.close()
