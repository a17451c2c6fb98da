"""A blob store in a directory: each object is a file.

Owns how an object is created: write and flush a temporary file, hard-link it to its name, flush the folder.
Must not know what the bytes mean, nor retry anything.

INVARIANT: a visible name always leads to the whole object, also after a crash at any moment. An object that
`put` acknowledged, or reported by `BlobExists`, survives a power cut. Nothing is created, removed or listed
through a symbolic link below the directory.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from tidelake.errors import BlobExists, BlobNotFound, UsageError
from tidelake.model.names import is_object
from tidelake.store.disk import Folders, unavailable, unknown
from tidelake.store.files import SYSTEM_FILES, Files, exists, refuse_links, refused
from tidelake.store.names import check_name, check_prefix, check_range
from tidelake.store.protocols import BlobInfo
from tidelake.store.reader import read_through
from tidelake.store.scratch import Scratch

_READ_BYTES_MAX = 1 << 30  # the kernel reads a little less than 2 GiB at once


class LocalBlobStore:
    """A `BlobStore` in a directory of a POSIX file system with hard links.

    Temporary files are in the folder `~tmp`, a name that no object can have. A folder stays when its last
    object is deleted, until it is pruned.

    Args:
        root: the directory; created by the first `put` if it is missing.
        files: the file system.
        base: calls that change or list objects follow no symbolic link below it; default: the root.
    """

    is_far = False

    def __init__(self, root: str, files: Files = SYSTEM_FILES, base: str | None = None) -> None:
        self.root = os.path.abspath(root)
        self.url: str | None = f"file://{self.root}"
        self._base = self.root if base is None else os.path.abspath(base)
        self._files = files
        self._folders = Folders(self.root, files)
        self._scratch = Scratch(self.root, files, self._base)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of bytes; see `BlobStore.get`."""
        check_range(check_name(name), start, length)
        with _reading(name):
            descriptor = self._descriptor(name)
            try:
                size = self._files.fstat(descriptor).st_size
                end = size if length is None else min(size, start + length)
                return self._read_range(descriptor, start, end)
            finally:
                self._files.close(descriptor)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; see `BlobStore.get_ranges`."""
        for start, length in ranges:
            check_range(check_name(name), start, length)
        with _reading(check_name(name)):
            descriptor = self._descriptor(name)
            try:
                size = self._files.fstat(descriptor).st_size
                return [
                    self._read_range(descriptor, start, min(size, start + length)) for start, length in ranges
                ]
            finally:
                self._files.close(descriptor)

    def put(self, name: str, data: bytes) -> None:
        """Store a new object, with two flushes; see `BlobStore.put`."""
        path = self._path(name)
        folder = os.path.dirname(path)
        refuse_links(self._files, self._base, path)
        linked = False
        try:
            self._folders.check()
            self._folders.ensure(folder)
            if exists(self._files, path):
                raise FileExistsError
            with self._scratch.written(data) as temporary:
                self._link(temporary, path)
                linked = True
            self._folders.flush(folder)
        except FileExistsError:
            self._answer_exists(name, path)
        except NotADirectoryError as error:
            raise UsageError(f"bad name {name!r}: there is an object where its folder would be") from error
        except OSError as error:
            raise (unknown if linked else unavailable)("write object", name, error) from error

    def delete(self, name: str) -> bool:
        """Delete an object, with one flush; see `BlobStore.delete`."""
        path = self._path(name)
        refuse_links(self._files, self._base, os.path.dirname(path))
        try:
            self._folders.check()
            if not stat.S_ISREG(self._files.lstat(path).st_mode):
                return False
            self._files.unlink(path)
        except FileNotFoundError:
            self._flush_absence(name, os.path.dirname(path))
            return False
        except NotADirectoryError:
            return False
        except OSError as error:
            raise unavailable("delete object", name, error) from error
        try:
            self._folders.flush_removed(os.path.dirname(path))
        except OSError as error:
            raise unknown("delete object", name, error) from error
        return True

    def delete_all(self, names: Sequence[str]) -> int:
        """Delete objects, with a flush for each; see `BlobStore.delete_all`."""
        return sum(self.delete(name) for name in [check_name(name) for name in names])

    def prune(self, folder: str) -> None:
        """Remove empty folders, with one flush for each and one more; see `BlobStore.prune`."""
        path = self._path(folder)
        refuse_links(self._files, self._base, path)
        try:
            self._folders.check()
            self._folders.remove(path)
        except OSError as error:
            raise unavailable("remove folder", folder, error) from error

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List objects in ascending order of name; see `BlobStore.list`."""
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        refuse_links(self._files, self._base, os.path.join(self.root, folder))
        return self._walk(folder, prefix)

    def open(self, name: str) -> BinaryIO:
        """Open an unbuffered reader; see `BlobStore.open`."""
        check_name(name)
        with _reading(name):
            file = self._files.reader(self._descriptor(name))

        def read(inner: BinaryIO, size: int) -> bytes:
            with _reading(name):
                return inner.read(size)

        return read_through(file, read)

    def close(self) -> None:
        """Do nothing: there are no handles."""

    def _path(self, name: str) -> str:
        return os.path.join(self.root, check_name(name))

    def _link(self, temporary: str, path: str) -> None:
        """Make an object visible: give its temporary file its name."""
        try:
            self._files.link(temporary, path)
        except FileNotFoundError:
            # The folder was pruned after it was created.
            self._folders.ensure(os.path.dirname(path))
            self._files.link(temporary, path)

    def _descriptor(self, name: str) -> int:
        descriptor = self._files.open(self._path(name))
        if stat.S_ISREG(self._files.fstat(descriptor).st_mode):
            return descriptor
        self._files.close(descriptor)
        raise refused(errno.EISDIR, name)

    def _answer_exists(self, name: str, path: str) -> None:
        """Raise `BlobExists`, after making the object durable.

        SUBTLE: the process that linked the object may have died before it flushed the folder, or may not have
        flushed it yet. `BlobExists` promises a durable object, so the folder is flushed first.
        """
        if self._files.isdir(path):
            raise UsageError(f"bad name {name!r}: it is a folder of other objects")
        try:
            self._folders.flush(os.path.dirname(path))
        except OSError as error:
            raise unavailable("write object", name, error) from error
        raise BlobExists(name)

    def _flush_absence(self, name: str, folder: str) -> None:
        # SUBTLE: the process that deleted the object may have died before it flushed the folder, but the
        # answer of `delete` promises that the object is durably gone.
        try:
            self._folders.flush(folder)
        except FileNotFoundError:
            return  # the folder never existed, or was pruned, which requires that it was durably empty
        except OSError as error:
            raise unavailable("delete object", name, error) from error

    def _walk(self, folder: str, prefix: str) -> Iterator[BlobInfo]:
        try:
            entries = self._files.scan(os.path.join(self.root, folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise unavailable("list objects", prefix, error) from error
        # A folder sorts as its name followed by "/": "a-b" < "a/b" < "a0".
        for sort_name in sorted(name + "/" * is_folder for name, is_folder in entries if is_object(name)):
            name = f"{folder}/{sort_name}" if folder else sort_name
            if name.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._walk(name[:-1], prefix)
            elif name.startswith(prefix):
                yield from self._info(name)

    def _info(self, name: str) -> Iterator[BlobInfo]:
        try:
            status = self._files.lstat(os.path.join(self.root, name))
        except FileNotFoundError:  # deleted after the folder was read
            return
        except OSError as error:
            raise unavailable("list object", name, error) from error
        if stat.S_ISREG(status.st_mode):
            yield BlobInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def _read_range(self, descriptor: int, start: int, end: int) -> bytes:
        pieces = []
        while start < end:
            piece = self._files.pread(descriptor, min(end - start, _READ_BYTES_MAX), start)
            if not piece:
                break
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise BlobNotFound(name) from error
    except OSError as error:
        raise unavailable("read object", name, error) from error
