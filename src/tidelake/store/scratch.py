"""Temporary files, for objects that are being written.

Owns the folder `~tmp` of a store. Must not know under which name a file will be published.

INVARIANT: a file in this folder is either locked by the process that writes it, or was left by a crash. The
next process that writes here removes files that a crash left.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tidelake.process import ProcessOrigin
from tidelake.store.files import Files, is_file_at, refuse_links

FOLDER = "~tmp"


class Scratch:
    """Creates files that are complete and flushed before they are published."""

    def __init__(self, root: str, files: Files, base: str | None = None) -> None:
        """Use the folder `~tmp` of `root`. No symbolic link below `base` (default: the root) is followed."""
        self.folder = os.path.join(root, FOLDER)
        self._base = root if base is None else base
        self._files = files
        self._numbers = itertools.count()
        self._swept_by: ProcessOrigin | None = None

    @contextmanager
    def written(self, data: bytes) -> Iterator[str]:
        """The path of a flushed file that holds `data`. Publish it by a hard link, before it is removed."""
        refuse_links(self._files, self._base, self.folder)
        self._sweep_once()
        descriptor, path = self._create()
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._files.write(descriptor, rest) :]
                self._files.fsync(descriptor)
                yield path
            finally:
                self._files.unlink(path)
        finally:
            self._files.close(descriptor)

    def _create(self) -> tuple[int, str]:
        while True:
            path = os.path.join(self.folder, f"{os.getpid()}-{next(self._numbers)}")
            try:
                descriptor = self._files.create(path)
            except FileNotFoundError:  # the folder is missing; the root exists
                with suppress(FileExistsError):
                    self._files.mkdir(self.folder)
                continue
            except FileExistsError:  # left by an earlier process with this pid, or from another machine
                continue
            if self._files.lock(descriptor) and is_file_at(self._files, descriptor, path):
                return descriptor, path
            self._files.close(descriptor)  # another process swept it before we had the lock, or is about to

    def _sweep_once(self) -> None:
        if self._swept_by is not None and self._swept_by.is_here:
            return
        self._swept_by = ProcessOrigin()
        with suppress(FileNotFoundError):  # nothing has been written here yet
            for name, _ in self._files.scan(self.folder):
                self._sweep(os.path.join(self.folder, name))

    def _sweep(self, path: str) -> None:
        # Not found: its writer has just removed it. Not permitted: it belongs to another user, who sweeps it.
        with suppress(FileNotFoundError, PermissionError):
            descriptor = self._files.open(path)
            try:
                # If it is locked, its writer is alive.
                # SUBTLE: since we opened it, its writer may have ended and another file taken the name.
                if self._files.lock(descriptor) and is_file_at(self._files, descriptor, path):
                    self._files.unlink(path)
            finally:
                self._files.close(descriptor)
