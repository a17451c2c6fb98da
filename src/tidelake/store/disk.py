"""What a directory needs to keep a promise: folders that outlive a power cut, and errors with a remedy.

Owns the rule when a directory is flushed, and the words for what the operating system refused. Must not
know what the files hold.

INVARIANT: no flush that failed is tried again. The kernel may report a lost write once and then forget it,
so after a failure nothing more is written through the same `Folders`.
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
    """Nothing more is written here since a flush failed."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            errno.EIO,
            f"flushing {folder!r} failed before, so what the disk holds is not certain; "
            "check the disk and open the lake again",
        )


def unavailable(action: str, name: str, error: OSError) -> StoreUnavailable:
    """The error for something that certainly did not happen; raise it `from error`."""
    hopeless = error.errno in _REMEDIES or isinstance(error, FlushFailedBefore)
    return StoreUnavailable(_message(action, name, error), not hopeless)


def unknown(action: str, name: str, error: OSError) -> OutcomeUnknown:
    """The error for something that may have happened; raise it `from error`."""
    return OutcomeUnknown(_message(action, name, error) + "; it may have happened")


def _message(action: str, name: str, error: OSError) -> str:
    reason = error.strerror or str(error)
    reason = reason[:1].lower() + reason[1:]
    remedy = _REMEDIES.get(error.errno or 0)
    place = f" at {error.filename!r}" if error.filename else ""
    return f"cannot {action} {name!r}: {reason}{place}" + (f"; {remedy} and try again" if remedy else "")


class Folders:
    """The folders below one root, made and flushed so that what is put into them stays reachable.

    SUBTLE: a folder that is already there may have been made by another process that did not flush its
    parent yet. So the parent of each folder is flushed once per process, whoever made it.
    """

    def __init__(self, root: str, files: Files) -> None:
        self._root = root
        self._files = files
        self._durable: set[str] = set()
        self._failed: str | None = None

    def ensure(self, folder: str) -> None:
        """Make `folder` (the root, or below it) and what is missing above, durably.

        Raises:
            NotADirectoryError: a file is in the way.
            OSError: it could not be made or flushed.
        """
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
            if error.errno != errno.EINVAL:  # which says that it was not even tried
                self._failed = folder
            raise
        finally:
            self._files.close(descriptor)

    def flush_removed(self, folder: str) -> None:
        """Make it durable that something went from `folder`, which may have been pruned since."""
        try:
            self.flush(folder)
        except FileNotFoundError:
            if folder == self._root:
                raise
            self.flush_removed(os.path.dirname(folder))

    def remove(self, folder: str) -> None:
        """Remove `folder`, below the root, and those below it, as far as they are empty, durably.

        SUBTLE: whoever has known it as durable relies on that. What is put there beside this may be lost in
        a power cut, if another process makes it again.
        """
        if self._emptied(folder):
            # Nothing was ever put below a root that is missing.
            with suppress(FileNotFoundError):
                self.flush(os.path.dirname(folder))

    def _emptied(self, folder: str) -> bool:
        """Remove a folder with those below it; whether it is gone by now."""
        try:
            below = [name for name, is_folder in self._files.scan(folder) if is_folder]
            gone = [self._emptied(os.path.join(folder, name)) for name in below]
            if not all(gone):
                return False
            # SUBTLE: whoever removed the last entry may have died before it was flushed. Where there is no
            # folder, others say that what was in it is gone for good.
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
        """Refuse if a flush failed before."""
        if self._failed is not None:
            raise FlushFailedBefore(self._failed)

    def _make(self, folder: str) -> bool:
        if folder == self._root and not self._files.isdir(folder):
            # SUBTLE: also if the parent is there. Whoever made it may have died before it was flushed; but
            # then nothing was made in it, so what stands above it is durable.
            parent = os.path.dirname(folder)
            Folders(parent, self._files).ensure(parent)
        while True:
            try:
                self._files.mkdir(folder)
            except FileExistsError:
                if self._files.isdir(folder):
                    return False
                try:
                    # One look: it may be pruned and made again at any moment.
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
            # The parent of the root may be closed to us; then someone who may open it made the root. Or it
            # is of a kind that cannot be flushed, as that of mount points may be.
            if made or folder != self._root or error.errno not in _NOT_TO_BE_FLUSHED:
                raise
