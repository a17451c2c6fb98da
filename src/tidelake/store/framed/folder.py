"""The folder of one key: its files are made, put in place and removed here.

Owns the names in the folder, and that what is put in place is flushed first. Must not know who may write.

    lock        locked by the process that writes
    log         the frames
    published   how far they are durable (`tidelake.store.framed.keyfile`)
    new         the frames of a key that is being made, cut or repaired
    damaged-…   kept by a repair
"""

import errno
import os
from contextlib import suppress

from tidelake.store.disk import Folders
from tidelake.store.files import Files, OpenFile, exists, refuse_links
from tidelake.store.framed.frames import HEADER_BYTES, Header, Published, encode_frame
from tidelake.store.framed.keyfile import LOG, PUBLISHED, KeyFile, damaged

_LOCK, _NEW, _DAMAGED = "lock", "new", "damaged-"


class KeyFolder:
    """The folder of a key, which need not exist. Nothing in it is reached through a symbolic link."""

    def __init__(self, files: Files, folders: Folders, base: str, root: str, key: str) -> None:
        self.path = os.path.join(root, key.replace("/", "~"))
        self._files, self._folders, self._base, self._key = files, folders, base, key

    def is_there(self) -> bool:
        """Whether the key exists, or has lost its log."""
        # A symbolic link is not followed, but its key is listed, so that it is not taken for deleted.
        return self._files.islink(self.path) or self._has(LOG) or self._has(PUBLISHED)

    def check_links(self) -> None:
        """Raise `SymbolicLink` if there is one on the way to a file."""
        for name in (LOG, PUBLISHED):
            refuse_links(self._files, self._base, self._at(name))

    def open(self, *, edits: bool) -> KeyFile | None:
        """The file of the key, opened; None if the key does not exist.

        Raises:
            CorruptionError, FormatTooNew: it is lost, or cannot be read.
            OSError: it cannot be opened.
        """
        self.check_links()
        try:
            return KeyFile(self._files, self._key, self.path, edits=edits)
        except (FileNotFoundError, NotADirectoryError):
            # SUBTLE: looked for again, since the key may be just being deleted, or made anew.
            if self._has(PUBLISHED) and not self._has(LOG):
                raise damaged(self._key, self._at(LOG), "it is missing") from None
            return None
        except IsADirectoryError as error:
            raise damaged(self._key, self._at(LOG), "it is not a file") from error

    def open_lock(self, *, edits: bool, create: bool) -> OpenFile | None:
        """The lock file, opened; None if there is none."""
        path = self._at(_LOCK)
        refuse_links(self._files, self._base, path)
        while True:
            try:
                return OpenFile(self._files, (self._files.edit if edits else self._files.open)(path), path)
            except FileNotFoundError:
                if not (create or (edits and self._has(LOG))):
                    return None
            # Another process may make the file, or delete the folder, meanwhile.
            with suppress(FileExistsError, FileNotFoundError):
                if create:
                    self._folders.ensure(self.path)
                self._files.close(self._files.create(path))

    def put(self, header: Header, entries: list[bytes], *, kept: str = "") -> Published:
        """Write a whole file, flush it, and give it the name of the log. `flush` it then. REQUIRES: the lock.

        Raises:
            OSError: the log is as it was.
        """
        self.check_links()
        with suppress(FileNotFoundError):
            self._files.unlink(self._at(_NEW))
        if not self._has(LOG):
            self._clean()
        published = self._written(self._at(_NEW), header, entries)
        if kept:
            self._files.link(self._at(LOG), self.kept(kept))
            self.flush()
        self._files.rename(self._at(_NEW), self._at(LOG))
        return published

    def kept(self, id_: str) -> str:
        """The path of a damaged log that is kept under an id."""
        return self._at(_DAMAGED + id_)

    def flush(self) -> None:
        """Make the names in the folder durable."""
        self._folders.flush(self.path)

    def unlink(self, name: str) -> bool:
        """Remove a file, durably; return whether it was there."""
        try:
            self._files.unlink(self._at(name))
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            self._files.rmdir(self._at(name))
        self.flush()
        return True

    def remove(self) -> None:
        """Remove the folder. REQUIRES: the lock, whose file is removed too, and that the key has no log."""
        self._clean()
        self._files.unlink(self._at(_LOCK))
        try:
            self._files.rmdir(self.path)
        except OSError as error:
            # A process that waited for this lock makes a new lock file, and may already create the key again.
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise

    def content(self, name: str) -> bytes:
        """The bytes of a file; none if it is missing or not a file."""
        try:
            file = OpenFile(self._files, self._files.open(self._at(name)), self._at(name))
            return self._files.pread(file.descriptor, self._files.fstat(file.descriptor).st_size, 0)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENXIO, errno.EISDIR, errno.EINVAL, errno.ESPIPE):
                return b""
            raise

    def _written(self, path: str, header: Header, entries: list[bytes]) -> Published:
        parts, back, before, start = [header.encode()], 0, header.before, HEADER_BYTES
        known = Published(header.file, header.first, start, start, before, self._files.boot())
        for seqno, data in enumerate(entries, header.first):
            frame, before = encode_frame(header.file, data, back, seqno, before)
            back, end = len(frame), start + len(frame)
            known = Published(header.file, seqno, start, end, before, known.boot)
            parts.append(frame)
            start = end
        descriptor = self._files.create(path)
        try:
            self._files.pwrite(descriptor, b"".join(parts), 0)
            self._files.fsync(descriptor)
        finally:
            self._files.close(descriptor)
        return known

    def _clean(self) -> None:
        """Remove what a crash left."""
        for name, _ in self._files.scan(self.path):
            if name != _LOCK:
                self._files.unlink(self._at(name))

    def _has(self, name: str) -> bool:
        return exists(self._files, self._at(name))

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)
