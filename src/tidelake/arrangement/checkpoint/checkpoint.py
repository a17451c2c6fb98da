"""A directory of checkpoints. A checkpoint is complete or invisible, and the last two are kept.

Owns the files of such a directory and the order in which they are written and removed. Must not know what is
in a batch file, nor how an arrangement works.

    <path>/checkpoint-00000007.list     a `Checkpoint`: which batch files make it up
    <path>/batches/<name>               batch files, each under one name in all lists that need it
    <path>/lock                         locked during a save; empty
    <path>/~tmp/                        lists that are being written

INVARIANT: a list exists only while every file that it names exists and is durable, so lists are written last
and removed first. The next save removes files that no list names. The first save writes an empty list before
any batch file, so that a directory that lost its lists cannot be mistaken for an empty one. All lists are of
one arrangement: a save of another arrangement is refused and changes nothing.

SUBTLE: a save or a restore makes a hard link to each file, or a copy where the file system has no links. So
each checkpoint, fork and arrangement has its own names, and removing a name never takes the bytes from
another user: no count of users is needed. A file of another user of the machine is copied, since its owner
could go on writing to it.

INVARIANT: no symbolic link in the directory is followed, and the name of a batch file is plain (`PlainName`).
Other users of the machine may write there, and lead no reader to another file.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidelake.arrangement.arguments import count, directory
from tidelake.arrangement.checkpoint.saved import Checkpoint, SavedBatch
from tidelake.errors import CorruptionError, IncompatibleSchema, StoreUnavailable, UsageError
from tidelake.store.disk import Folders, unavailable, unknown
from tidelake.store.files import SYSTEM_FILES, Files, exists, locked, refuse_links
from tidelake.store.scratch import Scratch

_KEPT = 2
_BATCHES = "batches"
_LOCK = "lock"
_LIST = re.compile(r"checkpoint-(\d{8,})\.list")
_COPY_BYTES = 4 * 1024 * 1024
# The file system has no hard links, none between these two folders, or no more of this file.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)

# Lists the batches of a checkpoint, given the batches that the directory has already, by name.
Listed: TypeAlias = Callable[[Mapping[str, SavedBatch]], Sequence[SavedBatch]]


@dataclass(frozen=True)
class Saved:
    """What a save did.

    Attributes:
        checkpoint: the newest checkpoint of the directory now.
        is_new: whether it was written; False if the newest checkpoint had the same contents already.
        files_added: number of batch files that were added to the directory.
        bytes_copied: bytes of added files that could not be hard-linked.
        left: why files of older checkpoints could not be removed (the next save tries again); else empty.
    """

    checkpoint: Checkpoint
    is_new: bool
    files_added: int = 0
    bytes_copied: int = 0
    left: str = ""


class CheckpointDirectory:
    """The checkpoints of one arrangement.

    Args:
        path: the directory; the first save creates it.
        files: the file system.
    """

    def __init__(self, path: str | os.PathLike[str], files: Files = SYSTEM_FILES) -> None:
        self.path = directory(path, "path")
        self._batches = os.path.join(self.path, _BATCHES)
        self._files = files
        self._folders = Folders(self.path, files)
        self._scratch = Scratch(self.path, files)

    def save(self, wanted: Checkpoint, listed: Listed, source: Callable[[str], str]) -> Saved:
        """Save a checkpoint, unless the newest one has the same contents.

        Raises:
            StoreUnavailable: it was not saved; the checkpoints that were there are as they were. Also while
                another process saves there.
            OutcomeUnknown: it may be saved; saving again decides.
            CorruptionError: a list is damaged, or all lists are missing and batch files are there.
            IncompatibleSchema: the directory has checkpoints of another schema.
            UsageError: it has checkpoints of another arrangement. Nothing was changed.
        """
        try:
            self._refuse_links(self._batches)
            self._folders.ensure(self._batches)
            with self._locked():
                return self._save(wanted, listed, source)
        except OSError as error:
            raise unavailable("save a checkpoint in", self.path, error) from error

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, oldest first; none if nothing was saved yet or the directory does not exist.

        Raises:
            CorruptionError: a list is damaged, or all lists are missing and batch files are there.
        """
        try:
            return [checkpoint for checkpoint in self._lists() if checkpoint.number]
        except OSError as error:
            raise unavailable("read the checkpoints in", self.path, error) from error

    def discard(self, is_old: Callable[[Checkpoint], bool]) -> None:
        """Remove some checkpoints with their files.

        Raises:
            StoreUnavailable: some are still there; also while another process saves there.
            CorruptionError: a list is damaged or missing.
        """
        try:
            with self._locked():
                there = self._lists()
                old = [checkpoint for checkpoint in there if is_old(checkpoint)]
                stay = [checkpoint for checkpoint in there if checkpoint not in old]
                if old and not stay:
                    self._begun(old[-1])
                for checkpoint in old:
                    self._files.unlink(self._list_path(checkpoint.number))
                if old:
                    self._folders.flush(self.path)
                    self._sweep(stay)
        except OSError as error:
            raise unavailable("remove checkpoints in", self.path, error) from error

    def restore(self, folder: str, number: int | None = None) -> tuple[Checkpoint, dict[str, str]]:
        """Link or copy the files of a checkpoint into a folder.

        Returns:
            The checkpoint, and the path in `folder` of each batch file, by name.

        Raises:
            UsageError: there is no such checkpoint.
            CorruptionError: a list is damaged or missing, or a batch file is missing or truncated.
        """
        try:
            while True:
                found = self.find(number)
                try:
                    return found, {batch.name: self._taken(batch, folder) for batch in found.batches}
                except CorruptionError:
                    # Two saves meanwhile remove a checkpoint with its files: then look again.
                    if exists(self._files, self._list_path(found.number)):
                        raise
        except OSError as error:
            raise unavailable("restore the checkpoint in", self.path, error) from error

    def find(self, number: int | None = None) -> Checkpoint:
        """A checkpoint by number, by default the newest. Raises as `restore`."""
        if number is None:
            there = self.checkpoints()
            if there:
                return there[-1]
            raise UsageError(f"there is no checkpoint of an arrangement in {self.path!r}")
        # Reads only this list: the lists of other checkpoints may be damaged.
        found = self._read(number) if count("number", number) else None
        if found is None:
            there_ = ", ".join(str(known) for known in self._numbers() if known) or "none"
            raise UsageError(f"there is no checkpoint {number!r} in {self.path!r} (there: {there_})")
        return found

    def _save(self, wanted: Checkpoint, listed: Listed, source: Callable[[str], str]) -> Saved:
        there = self._lists() or [self._begun(wanted)]
        newest = there[-1]
        if not newest.schema.same_columns(wanted.schema) or newest.domain != wanted.domain:
            raise IncompatibleSchema(
                f"{self.path!r} has checkpoints of {newest.schema} time {newest.domain}, not of "
                f"{wanted.schema} time {wanted.domain}: save in another directory"
            )
        if newest.number and newest.content == wanted.content:
            # SUBTLE: the process that wrote it may have died before the name was durable.
            self._folders.flush(self.path)
            return Saved(newest, is_new=False, left=self._forget(there))
        before = [checkpoint for checkpoint in there if checkpoint.number]
        if before and not any(checkpoint.same_arrangement(wanted) for checkpoint in before):
            raise UsageError(
                f"{self.path!r} has checkpoints of another arrangement ({newest.title}), which are left as "
                f"they are; this is {wanted.title}: save in another directory, or restore that one first"
            )
        named = self._sweep(there)
        batches = tuple(listed(named))
        missing = [batch for batch in batches if batch.name not in named]
        copied = sum(self._put(batch, source(batch.name)) for batch in missing)
        self._folders.flush(self._batches)
        saved = replace(wanted, number=newest.number + 1, batches=batches)
        self._write_list(saved)
        return Saved(saved, True, len(missing), copied, self._forget([*there, saved]))

    def _begun(self, wanted: Checkpoint) -> Checkpoint:
        """Write the empty list that comes before any batch file."""
        nothing = replace(wanted, number=0, content="", batches=(), followed=None)
        self._write_list(nothing)
        return nothing

    def _write_list(self, checkpoint: Checkpoint) -> None:
        path = self._list_path(checkpoint.number)
        with self._scratch.written(checkpoint.to_bytes()) as written:
            self._files.link(written, path)
            try:
                self._folders.flush(self.path)
            except OSError as error:
                raise unknown("save a checkpoint in", self.path, error) from error

    def _forget(self, there: list[Checkpoint]) -> str:
        """Remove all but the last checkpoints; returns why it failed, or an empty text."""
        try:
            for old in there[:-_KEPT]:
                self._files.unlink(self._list_path(old.number))
            if len(there) > _KEPT:
                # The removal of a list must be durable before its files go: a reader trusts a list.
                self._folders.flush(self.path)
            self._sweep(there[-_KEPT:])
        except OSError as error:
            return str(unavailable("remove old files in", self.path, error))
        return ""

    def _sweep(self, there: list[Checkpoint]) -> dict[str, SavedBatch]:
        """Remove files that no list names; returns the named batches, by name."""
        named = {batch.name: batch for checkpoint in there for batch in checkpoint.batches}
        for name, is_folder in self._files.scan(self._batches):
            if not is_folder and name not in named:
                self._files.unlink(os.path.join(self._batches, name))
        return named

    def _put(self, batch: SavedBatch, source: str) -> int:
        """Link or copy a file into the directory, durably; returns the bytes copied."""
        target = os.path.join(self._batches, batch.name)
        copied = self._shared(source, target)
        descriptor = self._files.open(target)
        try:
            size = self._files.fstat(descriptor).st_size
            if size != batch.size_bytes:
                raise CorruptionError(source, f"it has {size} bytes and not {batch.size_bytes}")
            self._files.fsync(descriptor)
        finally:
            self._files.close(descriptor)
        return copied

    def _taken(self, batch: SavedBatch, folder: str) -> str:
        source, target = os.path.join(self._batches, batch.name), os.path.join(folder, batch.name)
        self._refuse_links(source)
        try:
            status = self._files.lstat(source)
            if not stat.S_ISREG(status.st_mode):
                raise CorruptionError(source, "it is not a file")
            if status.st_size != batch.size_bytes:
                raise CorruptionError(source, f"it has {status.st_size} bytes and not {batch.size_bytes}")
            if not exists(self._files, target):
                share = self._shared if status.st_uid == os.geteuid() else self._copied
                share(source, target)
        except FileNotFoundError as error:
            if not self._files.isdir(folder):
                raise
            raise CorruptionError(source, "it is missing") from error
        return target

    def _shared(self, source: str, target: str) -> int:
        """Link a file, or copy it where that is not possible; returns the bytes copied."""
        try:
            self._files.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return self._copied(source, target)
        return 0

    def _copied(self, source: str, target: str) -> int:
        reader, writer, done = self._files.open(source), self._files.create(target), 0
        try:
            while piece := self._files.pread(reader, _COPY_BYTES, done):
                done += len(piece)
                rest = memoryview(piece)
                while rest:
                    rest = rest[self._files.write(writer, rest) :]
        finally:
            self._files.close(reader)
            self._files.close(writer)
        return done

    def _lists(self) -> list[Checkpoint]:
        """All lists, oldest first, including the empty list with number 0."""
        numbers = self._numbers()
        if not numbers and self._has_files():
            raise CorruptionError(
                self.path,
                "all lists of checkpoints are missing, but there are batch files; they are left as they are",
            )
        return [found for number in numbers if (found := self._read(number)) is not None]

    def _numbers(self) -> list[int]:
        if not self._files.isdir(self.path):
            return []
        matched = (_LIST.fullmatch(name) for name, is_folder in self._files.scan(self.path) if not is_folder)
        return sorted(int(match.group(1)) for match in matched if match)

    def _has_files(self) -> bool:
        return self._files.isdir(self._batches) and bool(self._files.scan(self._batches))

    def _read(self, number: int) -> Checkpoint | None:
        """A list; None if it was removed meanwhile."""
        path = self._list_path(number)
        self._refuse_links(path)
        try:
            descriptor = self._files.open(path)
        except FileNotFoundError:
            return None
        with self._files.reader(descriptor) as reader:
            found = Checkpoint.from_bytes(reader.read(), path)
        if found.number != number:
            raise CorruptionError(path, f"it is the list of checkpoint {found.number}")
        return found

    def _list_path(self, number: int) -> str:
        return os.path.join(self.path, f"checkpoint-{number:08d}.list")

    def _refuse_links(self, path: str) -> None:
        """Refuse a path of the directory with a symbolic link in it, below the directory."""
        refuse_links(self._files, self.path, path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.path.join(self.path, _LOCK)
        self._refuse_links(lock)
        self._refuse_links(self._batches)
        with locked(self._files, lock) as is_ours:
            if not is_ours:
                raise StoreUnavailable(
                    f"cannot save a checkpoint in {self.path!r}: another process is saving there; try again"
                )
            yield
