"""Durable folders, and error messages that name a remedy.

Owns the rule for when a directory is flushed, and the wording of errors of the operating system. Must not
know what the files hold.

INVARIANT: a flush that failed is never repeated. The kernel may report a lost write once and then forget it,
so after a failed flush nothing more is written through the same `Folders`.
"""

import errno
import os
import stat
from contextlib import suppress

from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.files import Files, refused

_REMEDIES = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space or raise the quota",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EACCES: "grant this user access",
    errno.EPERM: "grant this user access",
    errno.EROFS: "mount it for writing",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EMFILE: "raise the limit of this process (ulimit -n), or close lakes that are no longer used,",
    errno.ENFILE: "raise the limit of the system (fs.file-max)",
}
_NOT_TO_BE_FLUSHED = (errno.EACCES, errno.EPERM, errno.EINVAL)


class FlushFailedBefore(OSError):
    """A write was refused because an earlier flush failed."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            errno.EIO,
            f"flushing {folder!r} failed before, so what the disk holds is not certain; "
            "check the disk and open the lake again",
        )


def unavailable(action: str, name: str, error: OSError) -> StoreUnavailable:
    """The error for an operation that had no effect; raise it `from error`."""
    hopeless = error.errno in _REMEDIES or isinstance(error, FlushFailedBefore)
    return StoreUnavailable(_message(action, name, error), not hopeless)


def unknown(action: str, name: str, error: OSError) -> OutcomeUnknown:
    """The error for an operation that may have had its effect; raise it `from error`."""
    return OutcomeUnknown(_message(action, name, error) + "; it may have happened")


def _message(action: str, name: str, error: OSError) -> str:
    reason = error.strerror or str(error)
    reason = reason[:1].lower() + reason[1:]
    remedy = _REMEDIES.get(error.errno or 0)
    place = f" at {error.filename!r}" if error.filename else ""
    return f"cannot {action} {name!r}: {reason}{place}" + (f"; {remedy} and try again" if remedy else "")


class Folders:
    """The folders below one root. They are created and flushed so that files in them survive a power cut.

    SUBTLE: an existing folder may come from another process that has not flushed its parent yet. So each
    process flushes the parent of each folder once, also if it did not create the folder.
    """

    def __init__(self, root: str, files: Files) -> None:
        self._root = root
        self._files = files
        self._durable: set[str] = set()
        self._failed: str | None = None

    def ensure(self, folder: str) -> None:
        """Create `folder` (the root, or below it) and its missing parents, durably."""
        if folder != self._root:
            self.ensure(os.path.dirname(folder))
        made = self._make(folder)
        if made or folder not in self._durable:
            self._flush_parent(folder, made)
            self._durable.add(folder)

    def flush(self, folder: str) -> None:
        """Make the entries of `folder` durable."""
        self.check()
        descriptor = self._files.open(folder)
        try:
            self._files.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # the file system cannot flush folders: no write was lost
                self._failed = folder
            raise
        finally:
            self._files.close(descriptor)

    def flush_removed(self, folder: str) -> None:
        """Make a removal from `folder` durable, also if the folder has been pruned since."""
        try:
            self.flush(folder)
        except FileNotFoundError:
            if folder == self._root:
                raise
            self.flush_removed(os.path.dirname(folder))

    def remove(self, folder: str) -> None:
        """Remove `folder`, which is below the root, and its subfolders, as far as they are empty, durably.

        SUBTLE: another process that has flushed the folder once does not flush it again. If the folder is
        created anew during this call, a power cut may lose what that process puts into it.
        """
        if self._emptied(folder):
            # If the root is missing, nothing was ever put below it.
            with suppress(FileNotFoundError):
                self.flush(os.path.dirname(folder))

    def _emptied(self, folder: str) -> bool:
        """Remove a folder and its subfolders; return whether it is gone."""
        try:
            below = [name for name, is_folder in self._files.scan(folder) if is_folder]
            gone = [self._emptied(os.path.join(folder, name)) for name in below]
            if not all(gone):
                return False
            # SUBTLE: the process that removed the last entry may have died before it flushed the removal.
            # Once the folder is missing, other processes report its objects as durably deleted.
            self.flush(folder)
            self._durable.discard(folder)
            self._files.rmdir(folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                return False
            raise
        return True

    def check(self) -> None:
        """Raise `FlushFailedBefore` if a flush has failed."""
        if self._failed is not None:
            raise FlushFailedBefore(self._failed)

    def _make(self, folder: str) -> bool:
        if folder == self._root and not self._files.isdir(folder):
            # SUBTLE: the parent is ensured even if it exists, because the process that created it may have
            # died before it flushed. Nothing was created in it then, so what is above it is durable.
            parent = os.path.dirname(folder)
            Folders(parent, self._files).ensure(parent)
        while True:
            try:
                self._files.mkdir(folder)
            except FileExistsError:
                if self._files.isdir(folder):
                    return False
                try:
                    # A single `lstat`: the folder may be pruned and created again at any moment.
                    if not stat.S_ISDIR(self._files.lstat(folder).st_mode):
                        raise refused(errno.ENOTDIR, folder) from None
                except FileNotFoundError:
                    continue
                return False
            return True

    def _flush_parent(self, folder: str, made: bool) -> None:
        try:
            self.flush(os.path.dirname(folder))
        except OSError as error:
            # This user may not be allowed to open the parent of the root; then another user created the
            # root. Or the parent cannot be flushed, as with some mount points.
            if made or folder != self._root or error.errno not in _NOT_TO_BE_FLUSHED:
                raise
