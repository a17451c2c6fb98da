"""The contents of a simulated disk, which of them are durable, and what a power cut may leave of the rest.

Owns files, folders and the look-up of paths. Must not know processes and their descriptors, which are in
`tests.doubles.files`.

Durable is only what POSIX promises, whatever some file systems add to it: the bytes of a file once the file
is flushed, and its names once the folders that hold them are flushed. Sectors that were written between two
flushes are kept or lost in any order, and the length of a file apart from them. In a power cut each unflushed
change of a folder entry is kept or lost independently of earlier and later changes. If the entry of a folder
is lost, all contents of the folder are lost.

INVARIANT: the same calls in the same order and the same random choices leave the same tree.
"""

import errno
import os
import stat
from dataclasses import dataclass, field
from random import Random

from tidelake.env import Clock
from tidelake.store.files import refused

_SECTOR_BYTES = 512


@dataclass(eq=False)
class RegularFile:
    """Bytes, those that are durable (`synced`), and the `writes` since the last flush, in order."""

    number: int
    modified_ms: int
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    locked_by: object = None

    def write(self, data: bytes, start: int) -> None:
        """Write at a position. A gap before it is zeros."""
        self.writes.append((start, data))
        _put(self.content, data, start)

    def sync(self) -> None:
        """Make the bytes durable."""
        self.synced = bytes(self.content)
        self.writes.clear()

    def lose(self, random: Random) -> None:
        """Keep what was flushed, and of each sector that was written since what it was at some moment.

        The length of the file is kept or lost apart from its bytes.
        """
        if self.writes:
            left, reached = bytearray(self.synced), len(self.synced)
            keeps = random.choice((0.0, 0.5, 0.9, 1.0))
            for sector in sorted({at for start, data in self.writes for at in _sectors(start, len(data))}):
                pieces = [piece for write in self.writes if (piece := _piece(*write, sector))]
                kept = len(pieces) if random.random() < keeps else random.randrange(len(pieces))
                for start, data in pieces[:kept]:
                    _put(left, data, start)
            lengths = (len(left), len(self.content), random.randint(reached, len(self.content)))
            length = random.choice(lengths) if reached <= len(self.content) else len(left)
            self.content = left[:length].ljust(length, b"\0")
        self.sync()

    def status(self) -> os.stat_result:
        """The result of `os.stat`."""
        return _status(stat.S_IFREG, self.number, len(self.content), self.modified_ms)


@dataclass(eq=False)
class Folder:
    """Entries of a folder, the durable ones (`synced`), and the `changes` since the last flush, in order."""

    number: int
    modified_ms: int
    entries: "dict[str, Inode]" = field(default_factory=dict)
    synced: "dict[str, Inode]" = field(default_factory=dict)
    changes: "list[tuple[str, Inode | None]]" = field(default_factory=list)

    def change(self, name: str, inode: "Inode | None") -> None:
        """Put or remove an entry."""
        self.changes.append((name, inode))
        _set_entry(self.entries, name, inode)

    def sync(self) -> None:
        """Make the entries durable, but not the inodes that they lead to."""
        self.synced = dict(self.entries)
        self.changes.clear()

    def lose(self, random: Random, rate: float) -> None:
        """Keep the flushed entries, and each later change with probability `rate`."""
        self.entries = self.synced
        for name, inode in self.changes:
            if random.random() < rate:
                _set_entry(self.entries, name, inode)
        self.sync()

    def status(self) -> os.stat_result:
        """The result of `os.stat`."""
        return _status(stat.S_IFDIR, self.number, 0, self.modified_ms)


Inode = RegularFile | Folder


class Tree:
    """All files and folders below `/`, by absolute path. Raises the errors of a POSIX file system."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._inodes_made = 0
        self._root = self.new_folder()

    def new_file(self) -> RegularFile:
        """A new file that has no name yet."""
        return RegularFile(self._next_number(), self._clock.now_ms())

    def new_folder(self) -> Folder:
        """A new folder that has no name yet."""
        return Folder(self._next_number(), self._clock.now_ms())

    def find(self, path: str) -> Inode:
        """The inode at `path`."""
        inode: Inode = self._root
        for name in filter(None, path.split("/")):
            if isinstance(inode, RegularFile):
                raise refused(errno.ENOTDIR, path)
            if name not in inode.entries:
                raise refused(errno.ENOENT, path)
            inode = inode.entries[name]
        return inode

    def folder(self, path: str) -> Folder:
        """The folder at `path`."""
        inode = self.find(path)
        if isinstance(inode, RegularFile):
            raise refused(errno.ENOTDIR, path)
        return inode

    def vacancy(self, path: str) -> tuple[Folder, str]:
        """The folder of `path` and the name in it, which must be free."""
        folder, name = self.folder(os.path.dirname(path)), os.path.basename(path)
        if not name or name in folder.entries:
            raise refused(errno.EEXIST, path)
        return folder, name

    def lose(self, random: Random) -> None:
        """Lose what a power cut loses."""
        rate = random.random()  # one rate for all changes, so that losing all, none and a few is likely
        folders, seen = [self._root], {self._root.number}
        for folder in folders:  # grows
            folder.lose(random, rate)
            for inode in folder.entries.values():
                if inode.number in seen:  # a file with two names
                    continue
                seen.add(inode.number)
                if isinstance(inode, Folder):
                    folders.append(inode)
                else:
                    inode.lose(random)

    def _next_number(self) -> int:
        self._inodes_made += 1
        return self._inodes_made


def _sectors(start: int, length: int) -> range:
    return range(start // _SECTOR_BYTES, -(-(start + length) // _SECTOR_BYTES))


def _piece(start: int, data: bytes, sector: int) -> tuple[int, bytes] | None:
    """What of a write falls into a sector."""
    low, high = max(start, sector * _SECTOR_BYTES), min(start + len(data), (sector + 1) * _SECTOR_BYTES)
    return (low, data[low - start : high - start]) if low < high else None


def _put(content: bytearray, data: bytes, start: int) -> None:
    if len(content) < start:
        content.extend(bytes(start - len(content)))
    content[start : start + len(data)] = data


def _set_entry(entries: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        entries.pop(name, None)
    else:
        entries[name] = inode


def _status(kind: int, number: int, size: int, modified_ms: int) -> os.stat_result:
    seconds = modified_ms // 1000
    fields = (kind, number, 0, 1, os.geteuid(), os.getegid(), size, seconds, seconds, seconds)
    return os.stat_result(fields, {"st_mtime_ns": modified_ms * 1_000_000})
