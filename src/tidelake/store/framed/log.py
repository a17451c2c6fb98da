"""A version log in a directory: a folder of files for each key.

Owns the files of a key, who may write them, and the order of the steps of a write. Must not retry anything,
nor know what the entries mean.

    <root>/<key, with / written as ~>/lock       locked by the process that writes
                                      log        the frames
                                      published  how far they are durable (`tidelake.store.framed.keyfile`)
                                      new        the frames of a key that is being made, cut or repaired
                                      damaged-…  kept by a repair

INVARIANT: a key exists iff its folder has a `log`, which holds at least one entry as soon as it is visible. A
record without a log means that the log was lost. Nothing is opened or removed through a symbolic link below
the root. `docs/framed-log.md` has the argument.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from tidelake.env import Clock, IdSource, RandomIds, SystemClock
from tidelake.errors import CorruptionError, StoreUnavailable, SymbolicLink, UsageError
from tidelake.model.names import is_object
from tidelake.store.disk import Folders, unavailable, unknown
from tidelake.store.files import SYSTEM_FILES, Files, OpenFile, exists, lock_within, refuse_links
from tidelake.store.framed.frames import (
    DATA_BYTES_MAX,
    HEADER_BYTES,
    NO_LINK,
    Header,
    Published,
    encode_frame,
)
from tidelake.store.framed.keyfile import LOG, PUBLISHED, KeyFile, damaged
from tidelake.store.framed.pool import FilePool, files_allowed
from tidelake.store.framed.salvage import salvage
from tidelake.store.names import (
    check_expected,
    check_limit,
    check_name,
    check_prefix,
    check_truncation,
)
from tidelake.store.protocols import Entry, Ghost, MendedLog, following

T = TypeVar("T")

_LOCK, _NEW, _DAMAGED = "lock", "new", "damaged-"
_REPLACED_MAX = 100


class _Replaced(Exception):
    """The file of a key was replaced while it was read."""


class FramedVersionLog:
    """A `VersionLog` in a directory of a POSIX file system.

    Args:
        root: the directory; created by the first write if it is missing.
        ids: source of ids for new files.
        files: the file system.
        base: no symbolic link below it is followed; default: the root.
        wait_s: how long a call waits for the lock of a key that another process or thread has.
        clock: measures that.
        read_only: only methods for reading are called, and nothing is written.
        opened_max: most keys that are kept open; each takes three file descriptors. Default: by the limit of
            this process on descriptors (`files_allowed`).
    """

    def __init__(
        self,
        root: str,
        ids: IdSource | None = None,
        *,
        files: Files = SYSTEM_FILES,
        base: str | None = None,
        wait_s: float = 30.0,
        clock: Clock | None = None,
        read_only: bool = False,
        opened_max: int | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self._base = self.root if base is None else os.path.abspath(base)
        self._ids, self._clock, self._wait_s = ids or RandomIds(), clock or SystemClock(), wait_s
        self._files, self._writes = files, not read_only
        self._folders = Folders(self.root, files)
        self._pool = FilePool(opened_max or files_allowed())

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        found = self._read(check_name(key), lambda file, known: file.entries(known, known.seqno))
        return found[-1] if found else None

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        check_limit(check_name(key), limit)
        return self._read(key, lambda file, known: file.entries(known, start, limit)) or []

    def newer(self, key: str, seqno: int, through: int | None = None) -> list[Entry] | None:
        """Entries after `seqno`; see `VersionLog.newer`."""
        # From the known entry on: the newest entry is always there while the key exists.
        return following(self.scan(key, seqno), seqno, through)

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`, with one flush; see `VersionLog.compare_and_set`."""
        check_expected(check_name(key), expected)
        if len(data) > DATA_BYTES_MAX:
            raise UsageError(f"cannot write key {key!r}: an entry of {len(data)} bytes is too large")
        with self._writing(key, create=expected is None) as file:
            if file is None:
                if expected is None:
                    self._make(key, Header(self._fresh(), 0, NO_LINK), [data])
                return expected is None
            known = self._recovered(key, file)
            if known.seqno != expected:
                return False
            try:
                self._name(key, file)
                written = file.write(known, data)
            except OSError as error:
                raise unavailable("write key", key, error) from error
            try:
                file.flush(written)
            except OSError as error:
                raise unknown("write key", key, error) from error
            return True

    def truncate(self, key: str, seqno: int) -> int:
        """Put a file without the removed entries in the place of the other; see `VersionLog.truncate`."""
        with self._writing(check_name(key), create=False) as file:
            known = None if file is None else self._recovered(key, file)
            check_truncation(key, None if known is None else known.seqno, seqno)
            if file is None or known is None:
                return 0
            first = file.header.first
            if seqno <= first:
                return 0
            kept = [entry.data for entry in file.entries(known, seqno)]
            self._make(key, Header(self._fresh(), seqno, file.link_before(known, seqno)), kept)
            return seqno - first

    def delete(self, key: str) -> bool:
        """Delete the files of a key; see `VersionLog.delete`."""
        with self._locked(check_name(key), waits=True) as is_there:
            if not is_there:
                return False
            self._check_links(key)
            is_gone = False
            try:
                # The record goes first, durably: a record without a log means a lost log.
                was_there = self._unlink(key, PUBLISHED)
                is_gone = self._unlink(key, LOG)
                self._clean(key)
                self._remove_folder(key)
            except OSError as error:
                raise (unknown if is_gone else unavailable)("delete key", key, error) from error
            return was_there or is_gone

    def mend(self, key: str, starts: Collection[int]) -> MendedLog | None:
        """Put a file of the intact entries in the place of a damaged one; see `VersionLog.mend`.

        Each step leaves the damaged file, or the repaired one, under its name: a repair that is killed is
        begun again.
        """
        with self._locked(check_name(key), waits=True) as is_there:
            if not is_there:
                return None
            self._check_links(key)
            try:
                with self._opened(key) as file:
                    if file is not None:
                        file.entries(self._recovered(key, file), 0)
                return None
            except SymbolicLink:
                raise
            except CorruptionError as error:
                damage = error
            try:
                return self._mended(key, damage, starts)
            except OSError as error:
                raise unavailable("mend key", key, error) from error

    def ghosts(self) -> list[Ghost]:
        """None: no write lands late; see `VersionLog.ghosts`."""
        return []

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List keys in ascending order; looks into the folder of each. See `VersionLog.keys`."""
        check_prefix(prefix)
        try:
            names = [folder.replace("~", "/") for folder, _ in self._files.scan(self.root)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise unavailable("list keys", prefix, error) from error
        for key in sorted(names):
            if is_object(key) and key.startswith(prefix) and self._is_there(key):
                yield key

    def close(self) -> None:
        """Close the files, once running operations have ended."""
        self._pool.close()

    # --- Reading ---

    def _read(self, key: str, ask: Callable[[KeyFile, Published], T]) -> T | None:
        """What a file answers; None if the key does not exist."""
        for _ in range(_REPLACED_MAX):
            file = self._held(key, KeyFile.is_current)
            if file is None:
                return None
            try:
                return ask(file, file.unchanged() or self._believed(key, file))
            except _Replaced:
                pass
            except CorruptionError:
                if file.is_current():
                    raise
            except OSError as error:
                self._pool.forget(key, file)
                raise unavailable("read key", key, error) from error
            finally:
                self._pool.release(key, file)
        raise StoreUnavailable(f"cannot read key {key!r}: it was replaced at every attempt to read it")

    def _believed(self, key: str, file: KeyFile) -> Published:
        """How far a file may be believed by a reader.

        SUBTLE: a frame behind what is published is that of a process that is just writing, or one that a
        killed process or a lost record left. A reader that gets the lock can tell. Two such frames are never
        of a process that is just writing, which has recovered the first.
        """
        known = file.published()
        waits = True
        if known is not None and file.trusts(known):
            unpublished = file.unpublished(known)
            if not unpublished:
                return known
            waits = unpublished > 1
        elif not file.is_current():
            raise _Replaced
        elif not self._writes:
            return self._seen(file)
        with self._locked(key, waits=waits) as is_ours:
            if not is_ours:
                return known if known is not None and not waits else self._seen(file)
            if not file.is_whole():
                self._pool.forget(key, file)
                raise _Replaced
            return file.recover(writes=self._writes)

    def _seen(self, file: KeyFile) -> Published:
        """What a user without access to the lock may believe: all intact frames, if no writer came meanwhile.

        A writer publishes what it finds before it writes anything.
        """
        before = file.published()
        found = file.recover(writes=False)
        if file.published() != before or not file.is_current():
            raise _Replaced
        return found

    def _held(self, key: str, is_valid: Callable[[KeyFile], bool]) -> KeyFile | None:
        """The current file of a key, which is to be released; None if the key does not exist."""
        try:
            file = self._pool.take(key)
            if file is not None:
                is_kept = False
                try:
                    is_kept = is_valid(file)
                finally:
                    if not is_kept:
                        self._pool.forget(key, file)
                        self._pool.release(key, file)
                if is_kept:
                    return file
            file = self._open(key)
            if file is not None:
                self._pool.add(key, file)
            return file
        except OSError as error:
            raise unavailable("use key", key, error) from error

    @contextmanager
    def _opened(self, key: str) -> Iterator[KeyFile | None]:
        """The current file of a key, with its record; None if the key does not exist."""
        file = self._held(key, KeyFile.is_whole)
        try:
            yield file
        finally:
            if file is not None:
                self._pool.release(key, file)

    def _open(self, key: str) -> KeyFile | None:
        folder = self._folder(key)
        self._check_links(key)
        try:
            return KeyFile(self._files, key, folder, edits=self._writes)
        except (FileNotFoundError, NotADirectoryError):
            # SUBTLE: looked for again, since the key may be just being deleted, or made anew.
            lost = exists(self._files, os.path.join(folder, PUBLISHED))
            if lost and not exists(self._files, os.path.join(folder, LOG)):
                raise damaged(key, os.path.join(folder, LOG), "it is missing") from None
            return None
        except OSError as error:
            if error.errno == errno.EISDIR:
                raise damaged(key, os.path.join(folder, LOG), "it is not a file") from error
            raise unavailable("open key", key, error) from error

    # --- Writing ---

    def _recovered(self, key: str, file: KeyFile) -> Published:
        """What is durable of a file. REQUIRES: the lock."""
        try:
            return file.recover(writes=True)
        except OSError as error:
            self._pool.forget(key, file)
            raise unavailable("write key", key, error) from error

    def _name(self, key: str, file: KeyFile) -> None:
        """Make the name of a file durable: the process that made it may have died before that."""
        if not file.is_named:
            self._folders.flush(self._folder(key))
            file.is_named = True

    def _make(self, key: str, header: Header, entries: list[bytes]) -> None:
        """Make a file of entries, flush it, and put it in its place. REQUIRES: the lock."""
        folder, is_visible = self._folder(key), False
        self._check_links(key)
        try:
            self._unlink_new(key)
            if not exists(self._files, os.path.join(folder, LOG)):
                self._clean(key)
            published = self._written(os.path.join(folder, _NEW), header, entries)
            self._files.rename(os.path.join(folder, _NEW), os.path.join(folder, LOG))
            is_visible = True
            self._folders.flush(folder)
            self._publish(key, published)
        except OSError as error:
            raise (unknown if is_visible else unavailable)("write key", key, error) from error

    def _publish(self, key: str, published: Published) -> None:
        """Publish a file that has just got its name, durably.

        It counts also if that fails: a reader does not believe a record of another file, and recovers.
        """
        with suppress(StoreUnavailable), self._opened(key) as file:
            if file is not None:
                file.is_named = True
                file.publish(published.encode())
                file.is_recovered = True

    def _written(self, path: str, header: Header, entries: list[bytes]) -> Published:
        """Write a whole file and flush it."""
        parts, back, before, start = [header.encode()], 0, header.before, HEADER_BYTES
        known = Published(header.file, header.first, start, start, before, self._files.boot())
        for seqno, data in enumerate(entries, header.first):
            frame, before = encode_frame(header.file, data, back, seqno, before)
            known = Published(header.file, seqno, start, start + len(frame), before, self._files.boot())
            parts.append(frame)
            back, start = len(frame), start + len(frame)
        descriptor = self._files.create(path)
        try:
            self._files.pwrite(descriptor, b"".join(parts), 0)
            self._files.fsync(descriptor)
        finally:
            self._files.close(descriptor)
        return known

    def _mended(self, key: str, damage: CorruptionError, starts: Collection[int]) -> MendedLog:
        """Replace a damaged file by one of its intact entries. REQUIRES: the lock."""
        folder = self._folder(key)
        path, kept = os.path.join(folder, LOG), os.path.join(folder, _DAMAGED + self._ids.fresh())
        known = self._content(os.path.join(folder, PUBLISHED))
        acknowledged = Published.decode(known)
        found = salvage(self._content(path), acknowledged, starts)
        if found is None:
            raise damage
        self._unlink_new(key)
        header = Header(self._fresh(), found.entries[0].seqno, found.before)
        published = self._written(os.path.join(folder, _NEW), header, [entry.data for entry in found.entries])
        self._files.link(path, kept)
        self._folders.flush(folder)
        # SUBTLE: until the record is that of the new file, the lost entries are still missed by readers, and
        # another repair comes to the same end.
        self._files.rename(os.path.join(folder, _NEW), path)
        self._folders.flush(folder)
        self._publish(key, published)
        lost = None if acknowledged is None else acknowledged.seqno
        return MendedLog(damage.reason, header.first, found.head, lost, kept)

    # --- Locks and folders ---

    @contextmanager
    def _writing(self, key: str, *, create: bool) -> Iterator[KeyFile | None]:
        """Hold the lock of a key; yields its file, None if the key does not exist."""
        lock = self._take(key, waits=True, create=create)
        if lock is None:
            yield None
            return
        try:
            file = self._held(key, KeyFile.is_whole)
            try:
                yield file
            finally:
                if file is not None:
                    self._pool.release(key, file)
        finally:
            self._release(key, lock)

    @contextmanager
    def _locked(self, key: str, *, waits: bool) -> Iterator[bool]:
        """Lock the lock file of a key; yields whether it is locked. False if there is none, or it is taken.

        Args:
            key: the key.
            waits: wait for another process that has it.

        Raises:
            StoreUnavailable: another process has had it for too long.
        """
        lock = self._take(key, waits=waits, create=False)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                self._release(key, lock)

    def _take(self, key: str, *, waits: bool, create: bool) -> OpenFile | None:
        """Take the lock of a key; with `create` make its folder if there is none."""
        while True:
            try:
                lock = self._pool.lock_of(key) or self._lock_opened(key, create=create)
                if lock is None:
                    return None
                is_ours = False
                try:
                    if lock_within(self._files, lock.descriptor, self._clock, self._wait_s if waits else 0.0):
                        # SUBTLE: `delete` removes the lock file too, so what we have locked may not be the
                        # file that has this name now.
                        is_ours = lock.is_named()
                    elif waits:
                        raise StoreUnavailable(
                            f"cannot lock key {key!r}: {self._holder(lock)} has held {lock.path!r} for "
                            f"{self._wait_s:g} s; let it go on, or end it"
                        )
                    else:
                        return None
                    if is_ours:
                        self._pool.locked(lock)
                        return lock
                finally:
                    if not is_ours:
                        lock.close()
            except OSError as error:
                raise unavailable("lock key", key, error) from error

    def _release(self, key: str, lock: OpenFile) -> None:
        is_free = False
        with suppress(OSError):
            # Closing is not enough: a child process that was forked meanwhile has the file open as well.
            self._files.unlock(lock.descriptor)
            is_free = True
        self._pool.unlocked(key, lock, keep=is_free)

    def _lock_opened(self, key: str, *, create: bool) -> OpenFile | None:
        path, folder = os.path.join(self._folder(key), _LOCK), self._folder(key)
        refuse_links(self._files, self._base, path)
        opened = self._files.edit if self._writes else self._files.open
        while True:
            try:
                return OpenFile(self._files, opened(path), path)
            except FileNotFoundError:
                if not (create or (self._writes and exists(self._files, os.path.join(folder, LOG)))):
                    return None
            # Another process may make the file, or delete the folder, meanwhile.
            with suppress(FileExistsError, FileNotFoundError):
                if create:
                    self._folders.ensure(folder)
                self._files.close(self._files.create(path))

    def _holder(self, lock: OpenFile) -> str:
        """The process that has locked a file, as far as the system tells."""
        holder = self._files.holder(lock.descriptor)
        if holder is None:
            return "another process"
        return "another thread" if holder == os.getpid() else f"process {holder}"

    def _folder(self, key: str) -> str:
        return os.path.join(self.root, key.replace("/", "~"))

    def _fresh(self) -> bytes:
        return bytes.fromhex(self._ids.fresh())

    def _is_there(self, key: str) -> bool:
        # A symbolic link is not followed, but its key is listed, so that it is not taken for deleted.
        folder = self._folder(key)
        if self._files.islink(folder):
            return True
        return any(exists(self._files, os.path.join(folder, name)) for name in (LOG, PUBLISHED))

    def _check_links(self, key: str) -> None:
        for name in (LOG, PUBLISHED):
            refuse_links(self._files, self._base, os.path.join(self._folder(key), name))

    def _content(self, path: str) -> bytes:
        """The bytes of a file; none if it is missing or not a file."""
        try:
            descriptor = self._files.open(path)
        except OSError:
            return b""
        try:
            return self._files.pread(descriptor, self._files.fstat(descriptor).st_size, 0)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.EINVAL, errno.ESPIPE):
                return b""
            raise
        finally:
            self._files.close(descriptor)

    def _unlink(self, key: str, name: str) -> bool:
        """Remove a file of a key, durably; return whether it was there."""
        try:
            self._files.unlink(os.path.join(self._folder(key), name))
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            self._files.rmdir(os.path.join(self._folder(key), name))
        self._folders.flush(self._folder(key))
        return True

    def _unlink_new(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._files.unlink(os.path.join(self._folder(key), _NEW))

    def _clean(self, key: str) -> None:
        # Removes what a crash left. REQUIRES: the lock, and that the key has no log.
        for name, _ in self._files.scan(self._folder(key)):
            if name != _LOCK:
                self._files.unlink(os.path.join(self._folder(key), name))

    def _remove_folder(self, key: str) -> None:
        # REQUIRES: the lock, whose file is removed here.
        self._files.unlink(os.path.join(self._folder(key), _LOCK))
        try:
            self._files.rmdir(self._folder(key))
        except OSError as error:
            # A process that waited for this lock makes a new lock file, and may already create the key again.
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
