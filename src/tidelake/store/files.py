"""What a store asks of a file system.

Owns the calls, as a Protocol, and the real ones. Must not know why they are made: when a folder has to be
flushed is told in `tidelake.store.disk`. The simulated ones are in `tidelake.testing.files`.

INVARIANT: nothing below `LocalBlobStore` reaches the file system but through `Files`.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol

from tidelake.errors import SymbolicLink

Flush = Callable[[int], None]
"""Makes what was written through a descriptor durable: `os.fsync`, or a stand-in that fails on purpose."""


def no_flush(_descriptor: int) -> None:
    """The flush of whoever may lose everything: caches, measurements."""


class Files(Protocol):
    """A POSIX file system with hard links, through the eyes of one process. Safe for threads.

    Paths are absolute. A call does what the call of `os` does that it is named after, and raises the same
    `OSError`s with the same `errno`.
    """

    def open(self, path: str) -> int:
        """A descriptor of a file or folder, for reading; follows symbolic links, and waits for nobody."""

    def create(self, path: str) -> int:
        """A descriptor of a new, empty file, for writing it once; `FileExistsError` if there is one."""

    def close(self, descriptor: int) -> None:
        """Give up a descriptor and its lock."""

    def pread(self, descriptor: int, length: int, start: int) -> bytes:
        """Up to `length` bytes of a file; none past its end."""

    def reader(self, descriptor: int) -> BinaryIO:
        """An unbuffered reader of a file from its start. It takes over the descriptor, and closes it."""

    def write(self, descriptor: int, data: memoryview) -> int:
        """Append a first piece of `data`; how many bytes."""

    def fsync(self, descriptor: int) -> None:
        """Make the bytes of a file durable, or the entries of a folder: of each only what it holds itself."""

    def lock(self, descriptor: int) -> bool:
        """Lock a file until the descriptor is closed, by this call or by the end of the process.

        Does not wait: False says that it is locked through another descriptor.
        """

    def unlock(self, descriptor: int) -> None:
        """Give up the lock of a descriptor, also for a child that was forked with it."""

    def fstat(self, descriptor: int) -> os.stat_result:
        """Type, identity, size and time of change of what was opened."""

    def lstat(self, path: str) -> os.stat_result:
        """Type, identity, size and time of change of what has this name."""

    def isdir(self, path: str) -> bool:
        """Whether it is a folder, or a symbolic link to one."""

    def islink(self, path: str) -> bool:
        """Whether it is itself a symbolic link; a look that fails finds none."""

    def scan(self, folder: str) -> list[tuple[str, bool]]:
        """The names in a folder, in any order, and whether each is of a folder."""

    def link(self, path: str, name: str) -> None:
        """Give the file at `path` the further name `name`; `FileExistsError` if that is taken."""

    def unlink(self, path: str) -> None:
        """Take a name from a file."""

    def mkdir(self, path: str) -> None:
        """Make a folder; `FileExistsError` if the name is taken."""

    def rmdir(self, path: str) -> None:
        """Remove a folder that is empty; `ENOTEMPTY` if it is not."""


class SystemFiles:
    """The files of this machine.

    Args:
        flush: what makes a descriptor durable.
    """

    def __init__(self, flush: Flush = os.fsync) -> None:
        self._flush = flush

    def open(self, path: str) -> int:
        """See `Files.open`."""
        # Without O_NONBLOCK a pipe would keep us until somebody writes to it.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def create(self, path: str) -> int:
        """See `Files.create`."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def close(self, descriptor: int) -> None:
        """See `Files.close`."""
        os.close(descriptor)

    def pread(self, descriptor: int, length: int, start: int) -> bytes:
        """See `Files.pread`."""
        return os.pread(descriptor, length, start)

    def reader(self, descriptor: int) -> BinaryIO:
        """See `Files.reader`."""
        return os.fdopen(descriptor, "rb", buffering=0)

    def write(self, descriptor: int, data: memoryview) -> int:
        """See `Files.write`."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """See `Files.fsync`."""
        self._flush(descriptor)

    def lock(self, descriptor: int) -> bool:
        """See `Files.lock`."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, descriptor: int) -> None:
        """See `Files.unlock`."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def fstat(self, descriptor: int) -> os.stat_result:
        """See `Files.fstat`."""
        return os.fstat(descriptor)

    def lstat(self, path: str) -> os.stat_result:
        """See `Files.lstat`."""
        return os.lstat(path)

    def isdir(self, path: str) -> bool:
        """See `Files.isdir`."""
        return os.path.isdir(path)

    def islink(self, path: str) -> bool:
        """See `Files.islink`."""
        return os.path.islink(path)

    def scan(self, folder: str) -> list[tuple[str, bool]]:
        """See `Files.scan`."""
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]

    def link(self, path: str, name: str) -> None:
        """See `Files.link`."""
        os.link(path, name)

    def unlink(self, path: str) -> None:
        """See `Files.unlink`."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """See `Files.mkdir`."""
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        """See `Files.rmdir`."""
        os.rmdir(path)


SYSTEM_FILES = SystemFiles()


def exists(files: Files, path: str) -> bool:
    """Whether something has the name `path`; a look that fails finds nothing, as `os.path.lexists`."""
    try:
        files.lstat(path)
    except OSError:
        return False
    return True


def refuse_links(files: Files, base: str, path: str) -> None:
    """Refuse a path that leads through a symbolic link below `base`, or to one. A look at each step.

    SUBTLE: what is above `base` is the caller's choice, `base` itself included. Whoever may change what is
    below it may do so between this look and what follows; this keeps us from going where we would go by
    ourselves.

    Args:
        files: where it is.
        base: a folder.
        path: at or below it.

    Raises:
        SymbolicLink: there is one; names it.
    """
    at = base
    for name in os.path.relpath(path, base).split(os.sep):
        at = os.path.join(at, name)
        if files.islink(at):
            raise SymbolicLink(
                at,
                f"it is a symbolic link, and nothing outside of {base!r} is changed: put in its place what "
                "it leads to, or mount that there",
            )


def is_file_at(files: Files, descriptor: int, path: str) -> bool:
    """Whether the file that was opened as `descriptor` is the one that has the name `path` now."""
    try:
        return os.path.samestat(files.fstat(descriptor), files.lstat(path))
    except FileNotFoundError:
        return False


def refused(code: int, path: str) -> OSError:
    """The error that the operating system raises with the number `code`, a subclass where there is one."""
    return OSError(code, os.strerror(code), path)


@contextmanager
def locked(files: Files, path: str) -> Iterator[bool]:
    """Keep a file locked, which is made if it is not there; False if it is locked by somebody else.

    Raises:
        OSError: it cannot be opened or locked.
    """
    descriptor = _opened(files, path)
    try:
        is_ours = files.lock(descriptor)
        try:
            yield is_ours
        finally:
            # Closing does not do it: a child that was forked meanwhile has the file open as well.
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
        except FileExistsError:  # another process was quicker
            return files.open(path)
