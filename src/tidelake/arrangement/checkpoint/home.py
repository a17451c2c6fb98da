"""A folder for the batch files of an arrangement, or for what a query spills; its last user removes it.

Owns that folder, and the removal of folders that dead processes left behind. Must not know what is in it.

INVARIANT: a folder in use is never removed: its process holds a lock on it, which the operating system
releases when the process ends, however it ends. The folder is private to its user (mode 0700), and folders,
links and files of other users are never touched, whatever their names are.
"""

import atexit
import errno
import fcntl
import itertools
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from tidelake.arrangement import arguments
from tidelake.process import ProcessOrigin
from tidelake.store.disk import unavailable

_PREFIX = "tidelake-arrangement-"
_SPILLS = "tidelake-spill-"
_UNNAMED = "tidelake-new-"
_LOCK = "lock"


class Home:
    """A folder with a count of users. Thread-safe."""

    def __init__(
        self, directory: str | os.PathLike[str] | None, id_: str, *, prefix: str = _PREFIX, sweep: bool = True
    ) -> None:
        """Create a folder with one user, and remove folders of dead processes from the same directory."""
        root = arguments.directory_or_none(directory, "directory") or tempfile.gettempdir()
        self._users = 1
        self._lock = threading.Lock()
        self._origin = ProcessOrigin()
        try:
            os.makedirs(root, exist_ok=True)
            if sweep:
                _sweep(root)
            self.path, self._descriptor = _made(root, prefix, id_)
        except OSError as error:
            raise unavailable("make a folder in", root, error) from error
        atexit.register(self._leave)

    @classmethod
    def for_spills(cls) -> "Home":
        """A folder for what a query spills. The first one of a process removes those of dead processes."""
        return cls(None, "", prefix=_SPILLS, sweep=_is_first())

    def acquire(self) -> "Home":
        """Add a user; returns the folder itself."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Remove a user. The last one removes the folder with all that is in it."""
        with self._lock:
            self._users -= 1
            # In a forked process the folder belongs to the parent.
            if self._users or not self._origin.is_here:
                return
        atexit.unregister(self._leave)
        try:
            _remove(self.path)
        except OSError as error:
            raise unavailable("remove the folder", self.path, error) from error
        finally:
            os.close(self._descriptor)

    def _leave(self) -> None:
        """Remove the folder at exit if it is still open; threads may still be writing files."""
        if self._origin.is_here:
            shutil.rmtree(self.path, ignore_errors=True)


def _made(root: str, prefix: str, id_: str) -> tuple[str, int]:
    """Make a folder, and return its path and the descriptor of its lock.

    SUBTLE: it is locked before it gets its name, or another process would remove it as abandoned. Before that
    it may be removed too, if its process was not as far as the lock; then another one is made.
    """
    while True:
        made = tempfile.mkdtemp(prefix=_UNNAMED, dir=root)
        with suppress(FileNotFoundError, BlockingIOError), ExitStack() as opened:
            lock = os.open(os.path.join(made, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = os.path.join(root, prefix + (id_ or os.path.basename(made).removeprefix(_UNNAMED)))
            os.rename(made, path)
            opened.pop_all()
            return path, lock


_FIRST = itertools.count()


def _is_first() -> bool:
    """Whether this is called for the first time in the process."""
    return next(_FIRST) == 0


def _remove(path: str) -> None:
    """Remove a folder while other threads may be removing files from it."""
    while os.path.lexists(path):
        with suppress(FileNotFoundError):
            shutil.rmtree(path)


def _sweep(root: str) -> None:
    """Remove the abandoned folders of this user from a directory; anything else with such a name stays.

    Other users may write to the directory too, so what is found there must not raise.
    """
    try:
        with os.scandir(root) as entries:
            left = [entry.path for entry in entries if entry.name.startswith((_PREFIX, _SPILLS, _UNNAMED))]
    except PermissionError:  # a directory may allow creating folders but not listing them
        return
    for path in left:
        # Skip what is in use, is being created or removed, or belongs to another user.
        with suppress(OSError):
            if os.path.basename(path).startswith((_PREFIX, _SPILLS)):
                with _abandoned(path):
                    shutil.rmtree(path)
            elif os.listdir(path) == [_LOCK]:
                with _abandoned(path):
                    os.unlink(os.path.join(path, _LOCK))
                    os.rmdir(path)
            elif os.lstat(path).st_uid == os.geteuid():
                os.rmdir(path)  # it stays if there is anything in it


@contextmanager
def _abandoned(path: str) -> Iterator[None]:
    """A context that holds the lock of an abandoned folder of this user."""
    with ExitStack() as opened:

        def own(name: str, flags: int, kind: Callable[[int], bool], folder: int | None = None) -> int:
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            opened.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or not kind(status.st_mode):
                raise PermissionError(errno.EPERM, "it does not belong to this user", name)
            return descriptor

        folder = own(path, os.O_RDONLY, stat.S_ISDIR)
        fcntl.flock(own(_LOCK, os.O_RDWR, stat.S_ISREG, folder), fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
