"""The file system calls that a store makes.

Owns the calls, as a Protocol, and their implementation on this machine. Must not know why they are made:
`tidelake.store.disk` decides when a folder is flushed. `tests.doubles.files` simulates the calls.

INVARIANT: `LocalBlobStore` reaches the file system only through `Files`.
"""

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, Protocol

from tidelake.env import Clock, RandomIds
from tidelake.errors import SymbolicLink
from tidelake.process import PerProcess

# How often a wait for a lock looks: first, and at last.
LOOK_S_MIN, LOOK_S_MAX = 0.00025, 0.002

Flush = Callable[[int], None]
"""Makes what was written through a descriptor durable: `os.fsync`, or a replacement that fails in tests."""


def no_flush(_descriptor: int) -> None:
    """Do not flush. For files that may be lost: caches and measurements."""


class Files(Protocol):
    """A POSIX file system with hard links, as one process sees it. Safe for threads.

    Paths are absolute. Each call behaves like the function of the same name in `os`, and raises the same
    `OSError`s with the same `errno`.
    """

    def boot(self) -> bytes:
        """Which start of the machine it is, 16 bytes; zeros if the system does not tell."""

    def open(self, path: str, /) -> int:
        """Open a file or folder for reading. Follows symbolic links, and does not block."""

    def create(self, path: str, /) -> int:
        """Create an empty file and open it for writing; `FileExistsError` if the name is taken."""

    def edit(self, path: str, /) -> int:
        """Open a file for reading and writing; `ELOOP` if it is a symbolic link. Does not block."""

    def close(self, descriptor: int, /) -> None:
        """Close a descriptor; this releases its lock."""

    def pread(self, descriptor: int, length: int, start: int, /) -> bytes:
        """Read up to `length` bytes of a file from `start`; no bytes past its end."""

    def reader(self, descriptor: int, /) -> BinaryIO:
        """An unbuffered reader from the start of a file. It owns the descriptor and closes it."""

    def write(self, descriptor: int, data: memoryview, /) -> int:
        """Append the beginning of `data`; return how many bytes were written."""

    def pwrite(self, descriptor: int, data: bytes, start: int, /) -> None:
        """Write all of `data` at a position. After an error any part of it may be written."""

    def fsync(self, descriptor: int, /) -> None:
        """Make the bytes of a file durable, or the entries of a folder (not the files they lead to)."""

    def datasync(self, descriptor: int, /) -> None:
        """Make the bytes of a file and its size durable, but not when it was changed."""

    def lock(self, descriptor: int, /) -> bool:
        """Lock a file until the descriptor is closed, by this call or by the end of the process.

        Does not wait: returns False if it is locked through another descriptor.
        """

    def holder(self, descriptor: int, /) -> int | None:
        """The id of the process that has locked a file; None if the system does not tell."""

    def unlock(self, descriptor: int, /) -> None:
        """Release the lock of a descriptor, also for child processes that inherited it."""

    def fstat(self, descriptor: int, /) -> os.stat_result:
        """Type, identity, size and modification time of an open file or folder."""

    def lstat(self, path: str, /) -> os.stat_result:
        """Type, identity, size and modification time of what has this name."""

    def isdir(self, path: str, /) -> bool:
        """Whether it is a folder, or a symbolic link to one."""

    def islink(self, path: str, /) -> bool:
        """Whether it is a symbolic link; False if that cannot be found out."""

    def scan(self, folder: str, /) -> list[tuple[str, bool]]:
        """The names in a folder, in any order, each with whether it is a folder."""

    def link(self, path: str, name: str, /) -> None:
        """Make `name` a hard link to the file at `path`; `FileExistsError` if the name is taken."""

    def rename(self, path: str, name: str, /) -> None:
        """Give a file another name, in one step also if that name is taken by another file."""

    def unlink(self, path: str, /) -> None:
        """Remove a name of a file."""

    def mkdir(self, path: str, /) -> None:
        """Create a folder; `FileExistsError` if the name is taken."""

    def rmdir(self, path: str, /) -> None:
        """Remove an empty folder; `ENOTEMPTY` if it is not empty."""


def _boot() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):  # not Linux
        return bytes(16)


_BOOT = PerProcess(_boot)


class SystemFiles:
    """The file system of this machine.

    Args:
        flush: makes what was written through a descriptor durable.
    """

    # Without a frame of Python around them: each commit makes many of them.
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    fstat = staticmethod(os.fstat)
    lstat = staticmethod(os.lstat)
    isdir = staticmethod(os.path.isdir)
    islink = staticmethod(os.path.islink)
    link = staticmethod(os.link)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)

    def __init__(self, flush: Flush = os.fsync) -> None:
        self._flush = flush
        self._datasync = getattr(os, "fdatasync", flush) if flush is os.fsync else flush

    def boot(self) -> bytes:
        """See `Files.boot`."""
        return _BOOT.get()

    def open(self, path: str) -> int:
        """See `Files.open`."""
        # Without O_NONBLOCK, opening a pipe would block until a process opens it for writing.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def create(self, path: str) -> int:
        """See `Files.create`."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def edit(self, path: str) -> int:
        """See `Files.edit`."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)

    def reader(self, descriptor: int) -> BinaryIO:
        """See `Files.reader`."""
        return os.fdopen(descriptor, "rb", buffering=0)

    def write(self, descriptor: int, data: memoryview) -> int:
        """See `Files.write`."""
        return os.write(descriptor, data)

    def pwrite(self, descriptor: int, data: bytes, start: int) -> None:
        """See `Files.pwrite`."""
        done = os.pwrite(descriptor, data, start)
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], start + done)

    def fsync(self, descriptor: int) -> None:
        """See `Files.fsync`."""
        self._flush(descriptor)

    def datasync(self, descriptor: int) -> None:
        """See `Files.datasync`."""
        self._datasync(descriptor)

    def lock(self, descriptor: int) -> bool:
        """See `Files.lock`."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def holder(self, descriptor: int) -> int | None:
        """See `Files.holder`."""
        place = f":{os.fstat(descriptor).st_ino}"
        try:
            with open("/proc/locks", encoding="ascii") as locks:
                held = [words for words in map(str.split, locks) if words[1] == "FLOCK"]
        except OSError:  # not Linux
            return None
        # The process is not told if it is in another container.
        return next((int(words[4]) for words in held if words[5].endswith(place) and int(words[4]) > 0), None)

    def unlock(self, descriptor: int) -> None:
        """See `Files.unlock`."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def scan(self, folder: str) -> list[tuple[str, bool]]:
        """See `Files.scan`."""
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


SYSTEM_FILES = SystemFiles()


def put_file(path: Path, data: bytes) -> None:
    """Give a path these bytes in one step, whatever it had, and make that durable.

    Until then they have a name that begins with a dot, which Spark's file source and listings skip.
    """
    # A name of its own, as two threads may put the same file.
    hidden = path.with_name(f".{path.name}.{RandomIds().fresh()}")
    try:
        with hidden.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def exists(files: Files, path: str) -> bool:
    """Whether something has the name `path`. False if that cannot be found out, as `os.path.lexists`."""
    try:
        files.lstat(path)
    except OSError:
        return False
    return True


def refuse_links(files: Files, base: str, path: str) -> None:
    """Refuse a path that has a symbolic link below `base`. One `islink` for each of its segments.

    `base` itself, and what is above it, may be symbolic links: the user chose that path.

    SUBTLE: this is no protection against a process that replaces a folder by a link between this check and
    the call that follows. It prevents following a link that is already there.
    """
    for at in _segments(base, path):
        if files.islink(at):
            raise SymbolicLink(
                at,
                f"it is a symbolic link, and nothing outside of {base!r} is changed: replace it by the files "
                "that it points to, or mount them there",
            )


@lru_cache(4096)
def _segments(base: str, path: str) -> tuple[str, ...]:
    """The paths of the segments of a path below a folder: every write to a log asks for the same ones."""
    names = os.path.relpath(path, base).split(os.sep)
    return tuple(itertools.accumulate(names, os.path.join, initial=base))[1:]


def is_file_at(files: Files, descriptor: int, path: str) -> bool:
    """Whether `path` still names the file that is open as `descriptor`."""
    try:
        return os.path.samestat(files.fstat(descriptor), files.lstat(path))
    except FileNotFoundError:
        return False


class OpenFile:
    """An open file, and the name by which it was opened. Closed with its last reference, if not before."""

    __slots__ = ("_device", "_files", "_inode", "descriptor", "path")

    def __init__(self, files: Files, descriptor: int, path: str) -> None:
        self.descriptor, self.path, self._files = descriptor, path, files
        status = files.fstat(descriptor)
        self._inode, self._device = status.st_ino, status.st_dev

    def is_named(self) -> bool:
        """Whether the file still has its name. One call."""
        try:
            there = self._files.lstat(self.path)
        except FileNotFoundError:
            return False
        return there.st_ino == self._inode and there.st_dev == self._device

    def close(self) -> None:
        """Close the descriptor. May be repeated."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)

    __del__ = close


def refused(code: int, path: str) -> OSError:
    """The `OSError` (or its subclass) that the operating system raises for `code`."""
    return OSError(code, os.strerror(code), path)


@dataclass(frozen=True)
class Wait:
    """How long to wait for others, by which clock."""

    clock: Clock
    seconds: float


def looked(look: Callable[[], bool], wait: Wait | None) -> bool:
    """Look again and again, less and less often; False if it was not so in time. None: do not wait."""
    if look():
        return True
    if wait is None:
        return False
    until_s, look_s = wait.clock.monotonic_s() + wait.seconds, LOOK_S_MIN
    while wait.clock.monotonic_s() < until_s:
        wait.clock.sleep(look_s)
        look_s = min(2 * look_s, LOOK_S_MAX)
        if look():
            return True
    return False


@contextmanager
def locked(files: Files, path: str, wait: Wait | None = None) -> Iterator[bool]:
    """Hold the lock of a file, created if missing, during the block; yields False if others hold it."""
    descriptor = _opened(files, path)
    try:
        is_ours = looked(partial(files.lock, descriptor), wait)
        try:
            yield is_ours
        finally:
            # Closing is not enough: a child process that was forked meanwhile has the file open as well.
            if is_ours:
                files.unlock(descriptor)
    finally:
        files.close(descriptor)


def _opened(files: Files, path: str) -> int:
    try:
        return files.open(path)
    except FileNotFoundError:
        try:
            return files.create(path)
        except FileExistsError:  # another process has just created it
            return files.open(path)
