"""Files that are being written: beside the objects, but not yet objects.

Owns the folder `~tmp` of a store. Must not know under which name a file will be published.

INVARIANT: a file in here either belongs to a living writer, who holds a lock on it, or is left over from a
crash and is removed by the next process that writes here.
"""

import fcntl
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tidelake.store.disk import Flush, is_file_at

FOLDER = "~tmp"


class Scratch:
    """Makes files that are complete and flushed before anyone sees them."""

    def __init__(self, root: str, flush: Flush) -> None:
        self.folder = os.path.join(root, FOLDER)
        self._flush = flush
        self._numbers = itertools.count()
        self._swept_by: int | None = None

    @contextmanager
    def written(self, data: bytes) -> Iterator[str]:
        """The path of a flushed file with `data`, removed at the end (publish it by a link).

        Raises:
            OSError: it could not be written; nothing is left over.
        """
        self._sweep_once()
        descriptor, path = self._create()
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                self._flush(descriptor)
                yield path
            finally:
                os.unlink(path)
        finally:
            os.close(descriptor)

    def _create(self) -> tuple[int, str]:
        while True:
            path = os.path.join(self.folder, f"{os.getpid()}-{next(self._numbers)}")
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:  # the folder; its root is there
                with suppress(FileExistsError):
                    os.mkdir(self.folder)
                continue
            except FileExistsError:  # left over from a process of the same number, or of another machine
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_file_at(descriptor, path):
                return descriptor, path
            os.close(descriptor)  # swept away before we had the lock

    def _sweep_once(self) -> None:
        if self._swept_by == os.getpid():
            return
        self._swept_by = os.getpid()
        with suppress(FileNotFoundError):  # nothing was written here yet
            for name in os.listdir(self.folder):
                self._sweep(os.path.join(self.folder, name))

    def _sweep(self, path: str) -> None:
        # Gone: its writer was quicker. Not ours: its user sweeps it.
        with suppress(FileNotFoundError, PermissionError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # SUBTLE: while we opened it, its writer may have ended and another one taken the name.
                if is_file_at(descriptor, path):
                    os.unlink(path)
            except BlockingIOError:
                return  # its writer lives
            finally:
                os.close(descriptor)
