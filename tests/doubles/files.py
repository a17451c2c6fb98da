"""A disk in memory that loses unflushed data in a power cut: `Files` without a file system.

Owns processes: their descriptors, their locks and their end. Must not know which files a store keeps, nor
what is durable, which `tests.doubles.inodes` decides.

INVARIANT: a process that has ended changes nothing, and no call here waits for another process.
"""

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import BinaryIO, Literal

from tests.doubles.faults import SimulatedCrash
from tests.doubles.inodes import Folder, Inode, RegularFile, Tree
from tidelake.env import Clock, SystemClock
from tidelake.store.files import refused


class SimulatedDisk:
    """The disk of one machine, which many processes use. Thread-safe.

    Args:
        clock: source of the files' modification times.
        skipped_flush: a defect for tests to find: flushes of files, or of folders, do nothing.
    """

    def __init__(
        self, clock: Clock | None = None, skipped_flush: Literal["file", "folder"] | None = None
    ) -> None:
        self.clock = clock or SystemClock()
        self.lock = threading.RLock()
        self.tree = Tree(self.clock)
        self._skipped_flush = skipped_flush
        self._processes: list[SimulatedFiles] = []
        self.boots = 1

    def process(self, before: Callable[[str], None] = lambda _operation: None) -> "SimulatedFiles":
        """Start a process, and return the files as it sees them.

        Args:
            before: called with the operation (`file.link`, `file.fsync`, ...) before each one but `close`,
                outside of any lock. It may let other processes run, or end this one by `SimulatedCrash`.
        """
        with self.lock:
            process = SimulatedFiles(self, before)
            self._processes.append(process)
            return process

    def crash(self, random: Random) -> None:
        """Cut the power: all processes end, and `random` decides what is left of unflushed data."""
        with self.lock:
            for process in list(self._processes):
                process.kill()
            self.tree.lose(random)
            self.boots += 1

    def sync(self, inode: Inode) -> None:
        """Make an inode durable, or do nothing if this flush is skipped. REQUIRES: the lock."""
        if self._skipped_flush != ("file" if isinstance(inode, RegularFile) else "folder"):
            inode.sync()

    def forget(self, process: "SimulatedFiles") -> None:
        """Remove a process that has ended. REQUIRES: the lock."""
        if process in self._processes:
            self._processes.remove(process)


@dataclass(eq=False)
class _Opened:
    inode: Inode
    reads: bool = True
    writes: bool = False


class SimulatedFiles:
    """`Files` of one process on a `SimulatedDisk`. After its end every call raises `SimulatedCrash`."""

    def __init__(self, disk: SimulatedDisk, before: Callable[[str], None]) -> None:
        self._disk = disk
        self._before = before
        self._is_alive = True
        self._opened: dict[int, _Opened] = {}
        self._last_descriptor = 2

    def kill(self) -> None:
        """End the process: close its descriptors and release its locks. The disk keeps what was written.

        Does nothing if the process has ended.
        """
        with self._disk.lock:
            self._is_alive = False
            for descriptor in list(self._opened):
                self.close(descriptor)
            self._disk.forget(self)

    def boot(self) -> bytes:
        """See `Files.boot`. A power cut is another start."""
        return self._disk.boots.to_bytes(16, "big")

    def open(self, path: str) -> int:
        """See `Files.open`."""
        with self._operation("open") as tree:
            return self._add(_Opened(tree.find(path)))

    def create(self, path: str) -> int:
        """See `Files.create`."""
        with self._operation("create") as tree:
            folder, name = tree.vacancy(path)
            file = tree.new_file()
            folder.change(name, file)
            return self._add(_Opened(file, reads=False, writes=True))

    def edit(self, path: str) -> int:
        """See `Files.edit`."""
        with self._operation("edit") as tree:
            inode = tree.find(path)
            if isinstance(inode, Folder):
                raise refused(errno.EISDIR, path)
            return self._add(_Opened(inode, writes=True))

    def close(self, descriptor: int) -> None:
        """See `Files.close`. Does nothing after the end of the process, which closed all descriptors."""
        with self._disk.lock:
            opened = self._opened.pop(descriptor, None)
            if opened is None:
                if self._is_alive:
                    raise refused(errno.EBADF, "")
            elif isinstance(opened.inode, RegularFile) and opened.inode.locked_by is opened:
                opened.inode.locked_by = None

    def pread(self, descriptor: int, length: int, start: int) -> bytes:
        """See `Files.pread`."""
        with self._operation("pread"):
            return bytes(self._readable(descriptor).content[start : start + length])

    def reader(self, descriptor: int) -> BinaryIO:
        """See `Files.reader`. It reads a copy of the bytes: a file is written once, before it is read."""
        with self._operation("reader"):
            content = bytes(self._readable(descriptor).content)
            self.close(descriptor)
            return io.BytesIO(content)

    def write(self, descriptor: int, data: memoryview) -> int:
        """See `Files.write`."""
        with self._operation("write"):
            file = self._writable(descriptor)
            file.write(bytes(data), len(file.content))
            return data.nbytes

    def pwrite(self, descriptor: int, data: bytes, start: int) -> None:
        """See `Files.pwrite`."""
        with self._operation("pwrite"):
            self._writable(descriptor).write(data, start)

    def fsync(self, descriptor: int) -> None:
        """See `Files.fsync`."""
        with self._operation("fsync"):
            self._disk.sync(self._get(descriptor).inode)

    def datasync(self, descriptor: int) -> None:
        """See `Files.datasync`."""
        with self._operation("datasync"):
            self._disk.sync(self._get(descriptor).inode)

    def lock(self, descriptor: int) -> bool:
        """See `Files.lock`."""
        with self._operation("lock"):
            opened = self._get(descriptor)
            if isinstance(opened.inode, Folder):
                raise refused(errno.EISDIR, "")
            opened.inode.locked_by = opened.inode.locked_by or opened
            return opened.inode.locked_by is opened

    def holder(self, descriptor: int) -> int | None:
        """See `Files.holder`. Its processes have no ids."""
        return None

    def unlock(self, descriptor: int) -> None:
        """See `Files.unlock`."""
        with self._operation("unlock"):
            opened = self._get(descriptor)
            if isinstance(opened.inode, RegularFile) and opened.inode.locked_by is opened:
                opened.inode.locked_by = None

    def fstat(self, descriptor: int) -> os.stat_result:
        """See `Files.fstat`."""
        with self._operation("fstat"):
            return self._get(descriptor).inode.status()

    def lstat(self, path: str) -> os.stat_result:
        """See `Files.lstat`."""
        with self._operation("lstat") as tree:
            return tree.find(path).status()

    def isdir(self, path: str) -> bool:
        """See `Files.isdir`."""
        with self._operation("isdir") as tree:
            try:
                return isinstance(tree.find(path), Folder)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def islink(self, path: str) -> bool:
        """See `Files.islink`. There are no links."""
        return False

    def scan(self, folder: str) -> list[tuple[str, bool]]:
        """See `Files.scan`."""
        with self._operation("scan") as tree:
            entries = tree.folder(folder).entries
            return [(name, isinstance(inode, Folder)) for name, inode in entries.items()]

    def link(self, path: str, name: str) -> None:
        """See `Files.link`."""
        with self._operation("link") as tree:
            inode = tree.find(path)
            folder, last = tree.vacancy(name)
            if isinstance(inode, Folder):
                raise refused(errno.EPERM, path)
            folder.change(last, inode)

    def rename(self, path: str, name: str) -> None:
        """See `Files.rename`."""
        with self._operation("rename") as tree:
            inode = tree.find(path)
            if isinstance(inode, Folder):
                raise refused(errno.EISDIR, path)
            tree.folder(os.path.dirname(name)).change(os.path.basename(name), inode)
            tree.folder(os.path.dirname(path)).change(os.path.basename(path), None)

    def unlink(self, path: str) -> None:
        """See `Files.unlink`."""
        with self._operation("unlink") as tree:
            if isinstance(tree.find(path), Folder):
                raise refused(errno.EISDIR, path)
            tree.folder(os.path.dirname(path)).change(os.path.basename(path), None)

    def mkdir(self, path: str) -> None:
        """See `Files.mkdir`."""
        with self._operation("mkdir") as tree:
            folder, name = tree.vacancy(path)
            folder.change(name, tree.new_folder())

    def rmdir(self, path: str) -> None:
        """See `Files.rmdir`."""
        with self._operation("rmdir") as tree:
            if tree.folder(path).entries:
                raise refused(errno.ENOTEMPTY, path)
            tree.folder(os.path.dirname(path)).change(os.path.basename(path), None)

    @contextmanager
    def _operation(self, name: str) -> Iterator[Tree]:
        """Carry out one operation of the process while no other process uses the disk."""
        self._check_alive(name)
        try:
            self._before(f"file.{name}")
        except SimulatedCrash:
            self.kill()
            raise
        with self._disk.lock:
            self._check_alive(name)  # `before` may have let others go on
            yield self._disk.tree

    def _check_alive(self, name: str) -> None:
        if not self._is_alive:
            raise SimulatedCrash(f"file.{name} of a process that crashed")

    def _add(self, opened: _Opened) -> int:
        self._last_descriptor += 1
        self._opened[self._last_descriptor] = opened
        return self._last_descriptor

    def _get(self, descriptor: int) -> _Opened:
        opened = self._opened.get(descriptor)
        if opened is None:
            raise refused(errno.EBADF, "")
        return opened

    def _readable(self, descriptor: int) -> RegularFile:
        opened = self._get(descriptor)
        if isinstance(opened.inode, Folder):
            raise refused(errno.EISDIR, "")
        if not opened.reads:
            raise refused(errno.EBADF, "")
        return opened.inode

    def _writable(self, descriptor: int) -> RegularFile:
        opened = self._get(descriptor)
        if isinstance(opened.inode, Folder) or not opened.writes:
            raise refused(errno.EBADF, "")
        opened.inode.modified_ms = self._disk.clock.now_ms()
        return opened.inode
