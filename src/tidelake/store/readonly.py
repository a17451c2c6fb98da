"""Stores for a lake that is opened for reading only.

Owns the refusal of every write, and a way to read a version log without SQLite opening its files: SQLite
creates files next to a database even to read it, and where it cannot create them, it silently leaves out the
newest commits. This module writes no file, neither in the lake nor elsewhere.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TypeAlias, TypeVar

from tidelake.errors import CorruptionError, ReadOnlyLake, StoreUnavailable
from tidelake.store import wal
from tidelake.store.disk import unavailable
from tidelake.store.layers import WRITES, Around, Operation
from tidelake.store.sqlite import SqliteVersionLog
from tidelake.store.sqlite_database import Database, open_image, witness_of
from tidelake.store.sqlite_errors import damaged
from tidelake.store.sqlite_pool import KeyHandle, close_descriptor, open_descriptor

T = TypeVar("T")

_CAREFULLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# A witness, a database and its write-ahead log.
Files: TypeAlias = tuple[bytes, bytes, bytes]

_ATTEMPTS = 5
_READ_BYTES = 1 << 20


def refusing_writes(lake: str) -> Around:
    """Refuse every call that may change what is stored."""

    def around(operation: Operation, call: Callable[[], T]) -> T:
        if operation in WRITES:
            raise ReadOnlyLake(lake)
        return call()

    return around


class CopiedVersionLog(SqliteVersionLog):
    """A log in a directory, read by copying each database and its write-ahead log into memory.

    Every call reads both files, and decodes them if they have changed: a few megabytes at most, if the log is
    maintained. A call sees every entry that was acknowledged before it began. REQUIRES: only its methods for
    reading are called.
    """

    def __init__(self, root: str, base: str | None = None) -> None:
        super().__init__(root, base=base)
        self._seen: dict[str, bytes] = {}

    @contextmanager
    def _reading(self, key: str) -> Iterator[Database | None]:
        with self._pool.reading(key) as handle, self._checked(key, handle):
            yield self._copied(key, handle)

    def _copied(self, key: str, handle: KeyHandle) -> Database | None:
        damage: CorruptionError | None = None
        # SUBTLE: a frame that another process is just writing looks like damage, so we look again.
        for _ in range(_ATTEMPTS):
            path = self._find(key)
            if path is None:
                handle.drop()
                return None
            files = _files(path, key)
            if files is None:
                continue
            try:
                return self._opened(path, key, handle, files)
            except CorruptionError as error:
                handle.drop()
                damage = error
        if damage is not None:
            raise damage
        raise StoreUnavailable(f"cannot read key {key!r}: it changed during every attempt to read it")

    def _opened(self, path: str, key: str, handle: KeyHandle, files: Files) -> Database:
        witness, pages, log = files
        seen = b"".join(blake2b(data).digest() for data in (path.encode(), *files))
        if handle.database is None or self._seen.get(key) != seen:
            handle.drop()
            lost = wal.lost_in(log)
            if lost is not None:
                raise damaged(key, path, lost)
            handle.database = open_image(path, key, wal.carried_over(pages, log), witness)
            self._seen[key] = seen
        return handle.database


def _files(path: str, key: str) -> Files | None:
    """The witness, the database and its write-ahead log as of one moment; None if they changed meanwhile."""
    try:
        witness = _content(witness_of(path))
        before = _content(path + "-wal", wal.HEADER_BYTES)
        pages = _content(path)
        log = _content(path + "-wal")
        after = _content(path + "-wal", wal.HEADER_BYTES)
        if pages is None or before != after:
            return None
        # SUBTLE: while the log stays in one generation, it still holds all pages that were copied into the
        # database meanwhile. If there was no log before or after, the database must not have changed.
        if not before and (log or _content(path) != pages):
            return None
    except OSError as error:
        raise unavailable("read key", key, error) from error
    return (witness or b"", pages, log or b"") if log or not before else None


def _content(path: str, most: int | None = None) -> bytes | None:
    """The bytes of a file, at most `most`; None if it does not exist or is not a regular file."""
    try:
        descriptor = open_descriptor(path, _CAREFULLY)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        found = bytearray()
        while data := os.pread(descriptor, most or _READ_BYTES, len(found)):
            found += data
            if most is not None:
                break
        return bytes(found)
    finally:
        close_descriptor(descriptor)
