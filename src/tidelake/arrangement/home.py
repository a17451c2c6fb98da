"""Where an arrangement keeps its batch files: a folder of its own, which goes with the last who uses it.

Owns that folder and what is left of those of processes that died. Must not know what is in it.

INVARIANT: a folder is removed only when nobody uses it: it is locked as long as somebody does, and the
operating system unlocks it when the process ends, however it ends. It is its user's alone (mode 0700), and
folders, links and files of other users are left alone, whatever they are called.
"""

import atexit
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from tidelake.arrangement import given
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
            UsageError: it is no path.
            StoreUnavailable: it cannot be made.
        """
        root = given.directory_or_none(directory, "directory") or tempfile.gettempdir()
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
    """Remove the folders of this user that nobody uses any more; whatever else has such a name stays.

    Others may write here too: what they put here keeps nobody from making a folder.
    """
    try:
        with os.scandir(root) as entries:
            left = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    except PermissionError:  # folders can be made here, and not be listed
        return
    for path in left:
        # In use, just being made or removed, of another user, or no folder of ours at all.
        with suppress(OSError), _abandoned(path):
            shutil.rmtree(path)


@contextmanager
def _abandoned(path: str) -> Iterator[None]:
    """A context in which nobody else removes a folder, which is this user's and in use by nobody.

    Raises:
        OSError: it is not.
    """
    with ExitStack() as opened:

        def own(name: str, flags: int, kind: Callable[[int], bool], folder: int | None = None) -> int:
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            opened.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or not kind(status.st_mode):
                raise PermissionError(errno.EPERM, "it is not ours", name)
            return descriptor

        folder = own(path, os.O_RDONLY, stat.S_ISDIR)
        fcntl.flock(own(_LOCK, os.O_RDWR, stat.S_ISREG, folder), fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
