"""A version log in a directory: a folder of files for each key.

Owns who may write a key, and the order of the steps of a write. Must not retry anything, nor know what the
entries mean.

INVARIANT: a key exists iff its folder has a `log`, which holds at least one entry as soon as it is visible. A
record without a log means that the log was lost. `docs/framed-log.md` has the argument.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from tidelake.env import Clock, IdSource, RandomIds, SystemClock
from tidelake.errors import CorruptionError, StoreUnavailable, SymbolicLink, UsageError
from tidelake.model.names import is_object
from tidelake.store.disk import Folders, unavailable, unknown
from tidelake.store.files import SYSTEM_FILES, Files, OpenFile, Wait, looked
from tidelake.store.framed.folder import KeyFolder
from tidelake.store.framed.frames import DATA_BYTES_MAX, NO_LINK, Header, Published
from tidelake.store.framed.keyfile import LOG, PUBLISHED, KeyFile
from tidelake.store.framed.pool import FilePool, files_allowed
from tidelake.store.framed.salvage import salvage
from tidelake.store.names import check_expected, check_limit, check_name, check_prefix, check_truncation
from tidelake.store.protocols import Entry, Ghost, MendedLog, following

T = TypeVar("T")

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
        self._ids, self._wait = ids or RandomIds(), Wait(clock or SystemClock(), wait_s)
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
        lock, file = self._take(key, waits=True, create=expected is None), None
        if lock is None:
            return False
        try:
            file = self._held(key, KeyFile.is_whole)
            if file is None:
                if expected is None:
                    self._replace(key, Header(self._fresh(), 0, NO_LINK), [data])
                return expected is None
            known = self._recovered(key, file)
            if known.seqno != expected:
                return False
            try:
                if not file.is_named:  # the process that made it may have died before its name was durable
                    self._folder(key).flush()
                    file.is_named = True
                written = file.write(known, data)
            except OSError as error:
                raise unavailable("write key", key, error) from error
            try:
                file.flush(written)
            except OSError as error:
                raise unknown("write key", key, error) from error
            return True
        finally:
            if file is not None:
                self._pool.release(file)
            self._release(key, lock)

    def truncate(self, key: str, seqno: int) -> int:
        """Put a file without the removed entries in the place of the other; see `VersionLog.truncate`."""
        with self._locked(check_name(key)) as is_there, self._opened(key if is_there else None) as file:
            known = None if file is None else self._recovered(key, file)
            check_truncation(key, None if known is None else known.seqno, seqno)
            if file is None or known is None or seqno <= file.header.first:
                return 0
            kept = [entry.data for entry in file.entries(known, seqno)]
            self._replace(key, Header(self._fresh(), seqno, file.link_before(known, seqno)), kept)
            return seqno - file.header.first

    def delete(self, key: str) -> bool:
        """Delete the files of a key; see `VersionLog.delete`."""
        folder, is_gone = self._folder(check_name(key)), False
        with self._locked(key) as is_there:
            if not is_there:
                return False
            folder.check_links()
            try:
                # The record goes first, durably: a record without a log means a lost log.
                was_there = folder.unlink(PUBLISHED)
                is_gone = folder.unlink(LOG)
                folder.remove()
            except OSError as error:
                raise (unknown if is_gone else unavailable)("delete key", key, error) from error
            return was_there or is_gone

    def mend(self, key: str, starts: Collection[int]) -> MendedLog | None:
        """Put a file of the intact entries in the place of a damaged one; see `VersionLog.mend`.

        Each step leaves the damaged file, or the repaired one, under its name: a repair that is killed is
        begun again.
        """
        with self._locked(check_name(key)) as is_there:
            if not is_there:
                return None
            self._folder(key).check_links()
            try:
                with self._opened(key) as file:
                    if file is not None:
                        file.entries(self._recovered(key, file), 0)
                return None
            except SymbolicLink:
                raise
            except CorruptionError as error:
                return self._mended(key, error, starts)

    def ghosts(self) -> list[Ghost]:
        """None: no write lands late; see `VersionLog.ghosts`."""
        return []

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List keys in ascending order; looks into the folder of each. See `VersionLog.keys`."""
        check_prefix(prefix)
        try:
            names = sorted(folder.replace("~", "/") for folder, _ in self._files.scan(self.root))
        except FileNotFoundError:
            return
        except OSError as error:
            raise unavailable("list keys", prefix, error) from error
        for key in names:
            if is_object(key) and key.startswith(prefix) and self._folder(key).is_there():
                yield key

    def close(self) -> None:
        """Close the files; those of running operations when these end."""
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
                self._pool.release(file)
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
        """The current file of a key, to be released after use; None if the key does not exist."""
        try:
            file = self._pool.get(key)
            if file is not None:
                is_kept = False
                try:
                    is_kept = is_valid(file)
                finally:
                    if not is_kept:
                        self._pool.forget(key, file)
                        self._pool.release(file)
                if is_kept:
                    return file
            file = self._folder(key).open(edits=self._writes)
            if file is not None:
                self._pool.keep(key, file)
            return file
        except OSError as error:
            raise unavailable("use key", key, error) from error

    @contextmanager
    def _opened(self, key: str | None) -> Iterator[KeyFile | None]:
        """The current file of a key for a block; None if the key does not exist. REQUIRES: its lock."""
        file = None if key is None else self._held(key, KeyFile.is_whole)
        try:
            yield file
        finally:
            if file is not None:
                self._pool.release(file)

    # --- Writing ---

    def _recovered(self, key: str, file: KeyFile) -> Published:
        """What is durable of a file. REQUIRES: the lock."""
        try:
            return file.recover(writes=True)
        except OSError as error:
            self._pool.forget(key, file)
            raise unavailable("write key", key, error) from error

    def _replace(self, key: str, header: Header, entries: list[bytes], *, kept: str = "") -> None:
        """Put a file of entries in the place of the log, durably, and publish it. REQUIRES: the lock."""
        folder, is_visible = self._folder(key), False
        try:
            published = folder.put(header, entries, kept=kept)
            is_visible = True
            folder.flush()
            # It counts also if it is not published: no reader believes a record of another file.
            with suppress(StoreUnavailable, OSError), self._opened(key) as file:
                if file is not None:
                    file.is_named = True
                    file.publish(published.encode())
                    file.is_recovered = True
        except OSError as error:
            raise (unknown if is_visible else unavailable)("write key", key, error) from error

    def _mended(self, key: str, damage: CorruptionError, starts: Collection[int]) -> MendedLog:
        """Replace a damaged file by one of its intact entries. REQUIRES: the lock."""
        folder, kept = self._folder(key), self._ids.fresh()
        try:
            known = Published.decode(folder.content(PUBLISHED))
            found = salvage(folder.content(LOG), known, starts)
        except OSError as error:
            raise unavailable("mend key", key, error) from error
        if found is None:
            raise damage
        header = Header(self._fresh(), found.entries[0].seqno, found.before)
        # SUBTLE: until the record is that of the new file, the lost entries are still missed by readers, and
        # another repair comes to the same end.
        self._replace(key, header, [entry.data for entry in found.entries], kept=kept)
        lost = None if known is None else known.seqno
        return MendedLog(damage.reason, header.first, found.head, lost, folder.kept(kept))

    # --- Locks ---

    @contextmanager
    def _locked(self, key: str, *, waits: bool = True) -> Iterator[bool]:
        """Hold the lock of a key; yields whether it is held. False if there is no key, or others have it.

        Raises:
            StoreUnavailable: others have had it for too long.
        """
        lock = self._take(key, waits=waits, create=False)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                self._release(key, lock)

    def _take(self, key: str, *, waits: bool, create: bool) -> OpenFile | None:
        """Take the lock of a key, which with `create` need not exist."""
        wait = self._wait if waits else None
        try:
            while True:
                lock = self._pool.lock_of(key)
                if lock is None:
                    lock = self._folder(key).open_lock(edits=self._writes, create=create)
                if lock is None:
                    return None
                try:
                    if not looked(partial(self._files.lock, lock.descriptor), wait):
                        if wait is None:
                            return None
                        raise StoreUnavailable(
                            f"cannot lock key {key!r}: {self._holder(lock)} has held {lock.path!r} for "
                            f"{wait.seconds:g} s; let it go on, or end it"
                        )
                    # SUBTLE: `delete` removes the lock file too, so this may not be the one of its name now.
                    if lock.is_named():
                        self._pool.locked(lock)
                        return lock
                except BaseException:
                    lock.close()
                    raise
        except OSError as error:
            raise unavailable("lock key", key, error) from error

    def _release(self, key: str, lock: OpenFile) -> None:
        try:
            # Closing is not enough: a child process that was forked meanwhile has the file open as well.
            self._files.unlock(lock.descriptor)
        except OSError:
            key = ""  # so it is not kept, and closed
        self._pool.unlocked(key, lock)

    def _holder(self, lock: OpenFile) -> str:
        """The process that has locked a file, as far as the system tells."""
        holder = self._files.holder(lock.descriptor)
        if holder is None:
            return "another process"
        return "another thread" if holder == os.getpid() else f"process {holder}"

    def _folder(self, key: str) -> KeyFolder:
        return KeyFolder(self._files, self._folders, self._base, self.root, key)

    def _fresh(self) -> bytes:
        return bytes.fromhex(self._ids.fresh())
