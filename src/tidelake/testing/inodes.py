"""The contents of a simulated disk, which of them are durable, and what a power cut may leave of the rest.

Owns files, folders and the look-up of paths. Must not know processes and their descriptors, which are in
`tidelake.testing.files`.

Durable is only what POSIX promises, whatever some file systems add to it: the bytes of a file once the file
is flushed, and its names once the folders that hold them are flushed. In a power cut each unflushed change of
a folder entry is kept or lost independently of earlier and later changes. If the entry of a folder is lost,
all contents of the folder are lost.

INVARIANT: the same calls in the same order and the same random choices leave the same tree.
"""

import errno
import os
import stat
from dataclasses import dataclass, field
from random import Random

from tidelake.env import Clock
from tidelake.store.files import refused


@dataclass(eq=False)
class RegularFile:
    """Bytes, of which the first `synced_bytes` are durable. They are written once, from start to end."""

    number: int
    modified_ms: int
    content: bytearray = field(default_factory=bytearray)
    synced_bytes: int = 0
    locked_by: object = None

    def sync(self) -> None:
        """Make the bytes durable."""
        self.synced_bytes = len(self.content)

    def lose(self, random: Random) -> None:
        """Keep the flushed bytes, and of the rest nothing, a prefix, as many zeros, or all."""
        rest = self.content[self.synced_bytes :]
        if rest:
            outcomes = (b"", rest[: random.randrange(len(rest))], bytes(len(rest)), rest)
            self.content[self.synced_bytes :] = random.choice(outcomes)
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


def _set_entry(entries: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        entries.pop(name, None)
    else:
        entries[name] = inode


def _status(kind: int, number: int, size: int, modified_ms: int) -> os.stat_result:
    seconds = modified_ms // 1000
    fields = (kind, number, 0, 1, os.geteuid(), os.getegid(), size, seconds, seconds, seconds)
    return os.stat_result(fields, {"st_mtime_ns": modified_ms * 1_000_000})
