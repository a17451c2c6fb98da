"""The open file of one key, and its record of what is published.

Owns the order of what is read and written in them: a frame is flushed before it is published, and only what
is published is believed. Must not know where keys are, nor who may write.

    <folder>/log         the frames; a truncation or a repair puts another file in its place
    <folder>/published   how far they are durable, written after each flush and never flushed itself
"""

import os
import stat
import threading
import warnings
from contextlib import suppress
from typing import NamedTuple

from tidelake.errors import CorruptionError, FormatTooNew
from tidelake.store.files import Files, OpenFile
from tidelake.store.framed.frames import (
    FORMAT,
    FRAME_BYTES,
    HEADER_BYTES,
    PUBLISHED_BYTES,
    Frame,
    Header,
    Published,
    continuing,
    encode_frame,
    frame_at,
    intact,
)
from tidelake.store.protocols import Entry

LOG, PUBLISHED = "log", "published"

_WINDOW_BYTES = 1 << 16
# The newest entry is remembered if its frame has at most so many bytes.
_REMEMBERED_BYTES_MAX = 1 << 14
_ZEROS = bytes(FRAME_BYTES)
# The file grows by as much as it holds, within these bounds, so that most appends change no length.
_GROWTH_BYTES_MIN, _GROWTH_BYTES_MAX = 1 << 12, 1 << 18


def damaged(key: str, path: str, reason: str) -> CorruptionError:
    """The error that names the damaged key and its file."""
    return CorruptionError(key, f"{path}: {reason}; `tidelake fsck --repair` recovers what is intact")


class Newest(NamedTuple):
    """The newest entry, and what shows that there is no other one.

    Attributes:
        record: the bytes of the record that says so.
    """

    known: Published
    data: bytes
    record: bytes
    frame: bytes


class KeyFile:
    """The open file of one key. Threads may read it at once; a writer holds the lock of the key.

    Attributes:
        is_recovered: whether this process has recovered it: then what is published is never behind the file.
        is_named: whether its name was made durable by this process.
        is_kept, users: whether its pool keeps it open, and how many calls use it (see there).
    """

    is_kept, users = False, 0

    def __init__(self, files: Files, key: str, folder: str, *, edits: bool) -> None:
        """Open the file.

        Raises:
            FileNotFoundError: there is none.
            CorruptionError, FormatTooNew: it cannot be read.
            OSError: it cannot be opened.
        """
        self.path = os.path.join(folder, LOG)
        self._record_path = os.path.join(folder, PUBLISHED)
        self._files, self._key, self._edits = files, key, edits
        self.is_recovered = self.is_named = False
        self._record: OpenFile | None = None
        self._newest: Newest | None = None
        self._size = 0
        self._opening = threading.Lock()
        descriptor = files.edit(self.path) if edits else files.open(self.path)
        self._descriptor, self._log = descriptor, OpenFile(files, descriptor, self.path)
        if not stat.S_ISREG(files.fstat(descriptor).st_mode):
            raise self.damaged("it is not a file")
        header = Header.decode(self._read(0, HEADER_BYTES))
        if header is None:
            raise self.damaged("its header is damaged")
        if header.format > FORMAT:
            raise FormatTooNew(key, header.format, FORMAT)
        self.header = header

    def damaged(self, reason: str) -> CorruptionError:
        """The error that reports this file as damaged."""
        return damaged(self._key, self.path, reason)

    def is_current(self) -> bool:
        """Whether this file still has its name."""
        return self._log.is_named()

    def is_whole(self) -> bool:
        """Whether this file and its record still have their names."""
        return self._log.is_named() and (self._record is None or self._record.is_named())

    def published(self) -> Published | None:
        """What the record says; None if it is missing or torn. Reads 96 bytes."""
        return Published.decode(self._recorded())

    def unchanged(self) -> Published | None:
        """How far the file may be believed, if that is as far as at the last look. Two reads.

        The record is that of the last look, the newest entry is intact, and nothing follows it.
        """
        newest = self._newest
        if newest is None or self._recorded() != newest.record:
            return None
        length = len(newest.frame)
        found = self._read(newest.known.start, length + FRAME_BYTES)
        is_same = found.startswith(newest.frame) and _ZEROS.startswith(found[length:])
        return newest.known if is_same else None

    def trusts(self, known: Published | None) -> bool:
        """Whether a record is known to be as new as the file."""
        if known is None or known.file != self.header.file:
            return False
        return self.is_recovered or known.boot == self._files.boot() != bytes(16)

    def unpublished(self, known: Published) -> int:
        """How many frames, at most two, follow what is published, by their headers."""
        count, start, before = 0, known.end, known.link
        while count < 2:
            head = self._files.pread(self._descriptor, FRAME_BYTES, start)
            frame = frame_at(self.header.file, head, start, start)
            if frame is None or frame.seqno != known.seqno + count + 1 or frame.before != before:
                break
            count, start, before = count + 1, frame.end, frame.link
        return count

    def entries(self, known: Published, start: int, limit: int | None = None) -> list[Entry]:
        """Entries with `seqno >= start`, ascending, at most `limit`, up to the newest one published.

        Each is compared with its link, and each continues the one before it. Reads what it returns, and at
        most as much again.

        Raises:
            CorruptionError: the file does not hold what was published.
        """
        if start > known.seqno or limit == 0:
            return []
        newest = self._newest
        if start == known.seqno and newest is not None and newest.known is known:
            return [Entry(start, newest.data)]
        frames, content, origin = self._frames(known, start)
        found: list[Entry] = []
        before = self.header.before if frames[0].start == HEADER_BYTES else frames[0].before
        for frame in frames:
            data = frame.data(content, origin)
            if data is None or frame.before != before:
                raise self.damaged(f"its entry {frame.seqno} is damaged, or does not continue the one before")
            found.append(Entry(frame.seqno, data))
            before = frame.link
        bytes_ = content[known.start - origin : known.end - origin]
        if len(bytes_) <= _REMEMBERED_BYTES_MAX and self.trusts(known):
            self._newest = Newest(known, found[-1].data, known.encode(), bytes_)
        return found if limit is None else found[:limit]

    def recover(self, *, writes: bool) -> Published:
        """Take in what is durable and not published, and publish it.

        REQUIRES: the lock of the key, and `is_whole`.

        A process that was killed, or a power cut, may leave frames that were not published. The intact ones
        that continue the log are flushed, and count from now on. What a torn write left is taken away.

        Raises:
            CorruptionError: the file has lost what was published, or intact frames follow damage.
        """
        unchanged = self.unchanged()
        if unchanged is not None:
            return unchanged
        known, file = self.published(), self.header.file
        is_ours = known is not None and known.file == file
        if known is not None and is_ours:
            self.entries(known, known.seqno)
        if known is not None and self.trusts(known) and not any(self._read(known.end, FRAME_BYTES)):
            return known
        content = self.content()
        last, start = None, HEADER_BYTES
        if known is not None and is_ours:
            last, start = known._replace(boot=self._files.boot()), known.end
        seqno, before = (last.seqno + 1, last.link) if last else (self.header.first, self.header.before)
        for frame, _ in continuing(file, content, start, seqno, before):
            if known is not None and frame.seqno == known.seqno and frame.link != known.link:
                raise self.damaged(
                    f"its entry {frame.seqno} is not the one that was acknowledged: it is another log"
                )
            last = Published(file, frame.seqno, frame.start, frame.end, frame.link, self._files.boot())
        end = last.end if last else HEADER_BYTES
        if any(frame.seqno > (last.seqno if last else -1) for frame, _ in intact(file, content, end)):
            raise self.damaged(f"it is damaged from byte {end} on, and acknowledged entries come after that")
        if last is None:
            raise self.damaged("it has no entries")
        if known is not None and last.seqno < known.seqno:
            raise self.damaged(
                f"it ends at entry {last.seqno}, but entry {known.seqno} was acknowledged: the rest is lost"
            )
        if writes and start < last.end:
            # SUBTLE: written again, since after a flush that failed the kernel may take it for durable.
            self._files.pwrite(self._descriptor, content[start : last.end], start)
        self._files.datasync(self._descriptor)
        if writes:
            self._clear(last.end)
            self.publish(last.encode())
            self.is_recovered = True
        return last

    def write(self, known: Published, data: bytes) -> Newest:
        """Write the next entry, which no reader believes yet; `flush` it then.

        REQUIRES: the lock, and `recover` since it was taken.

        Raises:
            OSError: it is not in.
        """
        file, start, seqno = self.header.file, known.end, known.seqno + 1
        frame, here = encode_frame(file, data, start - known.start, seqno, known.link)
        end = start + len(frame)
        try:
            if end > self._size:
                self._grow(end)
            self._files.pwrite(self._descriptor, frame, start)
        except BaseException:
            self._clear(start)
            raise
        written = Published(file, seqno, start, end, here, known.boot)
        return Newest(written, data, written.encode(), frame)

    def flush(self, written: Newest) -> None:
        """Make a written entry durable, then publish it.

        Raises:
            OSError: the entry may be durable; it counts if a later `recover` finds it.
        """
        try:
            self._files.datasync(self._descriptor)
        except BaseException:
            self._clear(written.known.start)
            raise
        self.publish(written.record)
        if len(written.frame) <= _REMEMBERED_BYTES_MAX:
            self._newest = written

    def publish(self, record: bytes) -> None:
        """Let readers believe what is durable. Writes 96 bytes."""
        with self._opening:
            self._record = self._record or self._made_record()
        self._files.pwrite(self._record.descriptor, record, 0)

    def link_before(self, known: Published, seqno: int) -> bytes:
        """The link of entry `seqno - 1`. REQUIRES: the file has entry `seqno`."""
        return self._frames(known, seqno)[0][0].before

    def content(self) -> bytes:
        """All bytes of the file."""
        return self._read(0, self._files.fstat(self._descriptor).st_size)

    def close(self) -> None:
        """Close the files at once."""
        self.is_kept = False
        self._log.close()
        if self._record is not None:
            self._record.close()

    def __del__(self) -> None:
        """Warn of a log that was dropped without a `close`."""
        if self.is_kept:
            message = f"{self.path} was not closed: close the lake, or use it as a context manager"
            warnings.warn(message, ResourceWarning, stacklevel=2)

    def _frames(self, known: Published, first: int) -> tuple[list[Frame], bytes, int]:
        """Frames from entry `first` (or the first of the file) to the newest, with the bytes they are in.

        They are found from the end: each says how long the one before it is.
        """
        file, end = self.header.file, known.end
        window = _WINDOW_BYTES if first < known.seqno else 0
        origin = max(HEADER_BYTES, min(known.start, end - window))
        content = self._read(origin, end - origin)
        if len(content) < end - origin:
            raise self.damaged(
                f"it ends before entry {known.seqno}, which was acknowledged: the rest is lost"
            )
        frame, seqno, found = frame_at(file, content, known.start, origin), known.seqno, list[Frame]()
        if frame is None or (frame.link, frame.end) != (known.link, end):
            raise self.damaged(f"its entry {seqno} is not the one that was acknowledged")
        while True:
            if frame is None or frame.seqno != seqno:
                raise self.damaged(f"its entry {seqno} is damaged")
            found.append(frame)
            if seqno <= first or frame.start == HEADER_BYTES:
                break
            position, seqno = frame.start - frame.back, seqno - 1
            if position < origin:
                further = max(HEADER_BYTES, min(position, origin - len(content)))
                content = self._read(further, origin - further) + content
                origin = further
            frame = frame_at(file, content, position, origin) if position >= origin else None
        if frame.start == HEADER_BYTES and frame.seqno != self.header.first:
            raise self.damaged(f"its first entry is {frame.seqno}, not {self.header.first}")
        found.reverse()
        return found, content, origin

    def _read(self, start: int, length: int) -> bytes:
        return self._files.pread(self._descriptor, length, start)

    def _grow(self, end: int) -> None:
        """Write zeros for the frames to come: a flush of bytes that are there is cheaper than of new ones."""
        self._size = size = self._files.fstat(self._descriptor).st_size
        if end <= size:
            return
        more = min(max(size, _GROWTH_BYTES_MIN), _GROWTH_BYTES_MAX)
        grown = -(-max(end, size + more) // _GROWTH_BYTES_MIN) * _GROWTH_BYTES_MIN
        with suppress(OSError):  # the frame itself may fit
            self._files.pwrite(self._descriptor, bytes(grown - size), size)
            self._size = grown

    def _clear(self, start: int) -> None:
        """Take away what stands where the next frame comes."""
        with suppress(OSError):  # then it is found by `recover`
            if any(self._read(start, FRAME_BYTES)):
                self._files.pwrite(self._descriptor, bytes(FRAME_BYTES), start)

    def _recorded(self) -> bytes:
        """The bytes of the record; none if it is missing."""
        record = self._record
        if record is None:
            with self._opening:
                record = self._record = self._record or self._opened_record()
            if record is None:
                return b""
        return self._files.pread(record.descriptor, PUBLISHED_BYTES, 0)

    def _opened_record(self) -> OpenFile | None:
        try:
            descriptor = (self._files.edit if self._edits else self._files.open)(self._record_path)
        except (FileNotFoundError, IsADirectoryError):
            return None
        record = OpenFile(self._files, descriptor, self._record_path)
        return record if stat.S_ISREG(self._files.fstat(descriptor).st_mode) else None

    def _made_record(self) -> OpenFile:
        try:
            with suppress(FileNotFoundError):  # something else may have this name
                self._files.unlink(self._record_path)
        except IsADirectoryError:
            self._files.rmdir(self._record_path)
        self._files.close(self._files.create(self._record_path))
        return OpenFile(self._files, self._files.edit(self._record_path), self._record_path)
