"""What a simulated disk holds, what of it is durable, and what a power cut may leave of the rest.

Owns files, folders and the ways through them. Must not know processes and their descriptors, which are in
`tidelake.testing.files`.

What is durable is what POSIX promises, and nothing that a certain file system adds to it: the bytes of a
file once it is flushed, its names once the folders that hold them are flushed. In a power cut each change
of an entry that was not flushed happened or not, whatever happened to earlier and later ones; a folder
whose own entry is lost takes along all that is below.

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
class File:
    """Bytes, of which the first `synced_bytes` are durable: they are written once, from start to end."""

    number: int
    modified_ms: int
    content: bytearray = field(default_factory=bytearray)
    synced_bytes: int = 0
    locked_by: object = None

    def sync(self) -> None:
        """Make the bytes durable."""
        self.synced_bytes = len(self.content)

    def lose(self, random: Random) -> None:
        """Keep what was flushed, and of the rest nothing, a beginning, as many zeros, or all."""
        rest = self.content[self.synced_bytes :]
        if rest:
            outcomes = (b"", rest[: random.randrange(len(rest))], bytes(len(rest)), rest)
            self.content[self.synced_bytes :] = random.choice(outcomes)
        self.sync()

    def status(self) -> os.stat_result:
        """What `os.stat` says."""
        return _status(stat.S_IFREG, self.number, len(self.content), self.modified_ms)


@dataclass(eq=False)
class Folder:
    """Entries, and how they differ from those that are durable: `changes` since the last flush, in order."""

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
        """Make the entries durable, but nothing of what they lead to."""
        self.synced = dict(self.entries)
        self.changes.clear()

    def lose(self, random: Random, rate: float) -> None:
        """Keep what was flushed, and each later change with probability `rate`."""
        self.entries = self.synced
        for name, inode in self.changes:
            if random.random() < rate:
                _set_entry(self.entries, name, inode)
        self.sync()

    def status(self) -> os.stat_result:
        """What `os.stat` says."""
        return _status(stat.S_IFDIR, self.number, 0, self.modified_ms)


Inode = File | Folder


class Tree:
    """All files and folders below `/`, by their absolute paths. Errors are those of a POSIX file system."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._inodes_made = 0
        self._root = self.new_folder()

    def new_file(self) -> File:
        """A file without a name."""
        return File(self._next_number(), self._clock.now_ms())

    def new_folder(self) -> Folder:
        """A folder without a name."""
        return Folder(self._next_number(), self._clock.now_ms())

    def find(self, path: str) -> Inode:
        """What is at `path`."""
        inode: Inode = self._root
        for name in filter(None, path.split("/")):
            if isinstance(inode, File):
                raise refused(errno.ENOTDIR, path)
            if name not in inode.entries:
                raise refused(errno.ENOENT, path)
            inode = inode.entries[name]
        return inode

    def folder(self, path: str) -> Folder:
        """The folder at `path`."""
        inode = self.find(path)
        if isinstance(inode, File):
            raise refused(errno.ENOTDIR, path)
        return inode

    def vacancy(self, path: str) -> tuple[Folder, str]:
        """The folder and the name in it where something new may be put."""
        folder, name = self.folder(os.path.dirname(path)), os.path.basename(path)
        if not name or name in folder.entries:
            raise refused(errno.EEXIST, path)
        return folder, name

    def lose(self, random: Random) -> None:
        """What a power cut does."""
        rate = random.random()  # so that all, nothing and a few are lost, however much there is
        folders, seen = [self._root], {self._root.number}
        for folder in folders:  # grows
            folder.lose(random, rate)
            for inode in folder.entries.values():
                if inode.number in seen:  # a file of two names
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
    fields = (kind, number, 0, 1, 0, 0, size, seconds, seconds, seconds)
    return os.stat_result(fields, {"st_mtime_ns": modified_ms * 1_000_000})
