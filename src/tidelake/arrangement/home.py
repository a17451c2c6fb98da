"""Where an arrangement keeps its batch files: a folder of its own, which goes with the last who uses it.

Owns that folder and what is left of those of processes that died. Must not know what is in it.

INVARIANT: a folder is removed only when nobody uses it: it is locked as long as somebody does, and the
operating system unlocks it when the process ends, however it ends.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import suppress

from tidelake.store.disk import unavailable

_PREFIX = "tidelake-arrangement-"
_UNNAMED = "tidelake-new-"
_LOCK = "lock"


class Home:
    """A folder with one user, who may let others use it too. Thread-safe.

    Attributes:
        path: of the folder.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, id_: str) -> None:
        """Make a folder, and remove those below the same directory whose processes are gone.

        Args:
            directory: in which it is to be; made if it is not there. None: that of temporary files.
            id_: that no other folder there has.

        Raises:
            StoreUnavailable: it cannot be made.
        """
        root = tempfile.gettempdir() if directory is None else os.path.abspath(os.fspath(directory))
        self.path = os.path.join(root, _PREFIX + id_)
        self._users = 1
        self._turn = threading.Lock()
        self._pid = os.getpid()
        try:
            os.makedirs(root, exist_ok=True)
            _sweep(root)
            # SUBTLE: locked before it has its name, or another process would take it for one that was left.
            made = tempfile.mkdtemp(prefix=_UNNAMED, dir=root)
            lock = os.path.join(made, _LOCK)
            self._descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(made, self.path)
        except OSError as error:
            raise unavailable("make a folder for batches in", root, error) from error
        atexit.register(self._leave)

    def acquire(self) -> "Home":
        """One more user; the folder itself."""
        with self._turn:
            self._users += 1
        return self

    def release(self) -> None:
        """One user less. With the last one the folder goes, and all that is in it.

        Raises:
            StoreUnavailable: it cannot be removed.
        """
        with self._turn:
            self._users -= 1
            # In a fork the folder is the parent's.
            if self._users or self._pid != os.getpid():
                return
        atexit.unregister(self._leave)
        try:
            _remove(self.path)
        except OSError as error:
            raise unavailable("remove the folder", self.path, error) from error
        finally:
            os.close(self._descriptor)

    def _leave(self) -> None:
        """The process ends, and nobody has closed it. Threads may still be writing files."""
        if self._pid == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)


def _remove(path: str) -> None:
    """Remove a folder of which others may be removing files."""
    while os.path.lexists(path):
        with suppress(FileNotFoundError):
            shutil.rmtree(path)


def _sweep(root: str) -> None:
    """Remove the folders that nobody uses any more."""
    with os.scandir(root) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_PREFIX) and entry.is_dir()]
    for path in left:
        try:
            descriptor = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # just being made or removed, or of another user
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
        except (BlockingIOError, FileNotFoundError):  # in use, or swept by another process
            continue
        finally:
            os.close(descriptor)
