"""Files that are being written: beside the objects, but not yet objects.

Owns the folder `~tmp` of a store. Must not know under which name a file will be published.

INVARIANT: a file in here either belongs to a living writer, who holds a lock on it, or is left over from a
crash and is removed by the next process that writes here.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tidelake.store.files import Files, is_file_at, refuse_links

FOLDER = "~tmp"


class Scratch:
    """Makes files that are complete and flushed before anyone sees them."""

    def __init__(self, root: str, files: Files, base: str | None = None) -> None:
        """Make files in a folder of `root`; no symbolic link below `base` (default: the root) is followed."""
        self.folder = os.path.join(root, FOLDER)
        self._base = root if base is None else base
        self._files = files
        self._numbers = itertools.count()
        self._swept_by: int | None = None

    @contextmanager
    def written(self, data: bytes) -> Iterator[str]:
        """The path of a flushed file with `data`, removed at the end (publish it by a link).

        Raises:
            OSError: it could not be written; nothing is left over.
            SymbolicLink: the folder is one, or is reached by one.
        """
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
            except FileNotFoundError:  # the folder; its root is there
                with suppress(FileExistsError):
                    self._files.mkdir(self.folder)
                continue
            except FileExistsError:  # left over from a process of the same number, or of another machine
                continue
            if self._files.lock(descriptor) and is_file_at(self._files, descriptor, path):
                return descriptor, path
            self._files.close(descriptor)  # swept away before we had the lock, or just about to be

    def _sweep_once(self) -> None:
        if self._swept_by == os.getpid():
            return
        self._swept_by = os.getpid()
        with suppress(FileNotFoundError):  # nothing was written here yet
            for name, _ in self._files.scan(self.folder):
                self._sweep(os.path.join(self.folder, name))

    def _sweep(self, path: str) -> None:
        # Gone: its writer was quicker. Not ours: its user sweeps it.
        with suppress(FileNotFoundError, PermissionError):
            descriptor = self._files.open(path)
            try:
                # Locked: its writer lives.
                # SUBTLE: while we opened it, its writer may have ended and another one taken the name.
                if self._files.lock(descriptor) and is_file_at(self._files, descriptor, path):
                    self._files.unlink(path)
            finally:
                self._files.close(descriptor)
