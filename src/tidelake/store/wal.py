"""Detects damage in a write-ahead log of SQLite that the recovery of SQLite would not report.

Owns the layout of that file (https://www.sqlite.org/fileformat2.html, section 4) and what its bytes prove.
Must not know what the pages hold. Writes nothing.

A frame is *valid* if it belongs to the current generation of the file and its checksum continues that of the
frame before it. The recovery of SQLite stops at the first invalid frame and silently ignores the rest. That
is right if the rest was never acknowledged: after a power cut any frame of such a transaction may be missing,
and the next transaction overwrites the frames of a failed one from their start, so its last may remain.

But a valid frame that directly follows a *commit* frame proves that this commit had succeeded: the frame
belongs to a later transaction. So everything before such a pair of frames was durable once, and an invalid
frame there is damage.

This does not detect damage in the last transaction, nor in the end of the one before it: that looks like an
interrupted write. The witness detects it (`tidelake.store.witness`).
"""

import itertools
import os
import stat
import struct
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
HEADER_BYTES = _HEADER.size
_MAGIC = 0x377F0682  # the lowest bit: words are big-endian
_VERSION = 3007000
_PAGE_BYTES = frozenset(1 << n for n in range(9, 17))
_CHUNK_BYTES = 4 << 20
_WORD = 0xFFFFFFFF

Sum = tuple[int, int]


@dataclass(frozen=True)
class Frame:
    """One frame of the write-ahead log: a page, and a header.

    Attributes:
        start: position of the frame in the file, in bytes.
        page: number of the page that it holds.
        commits: size of the database in pages if the frame commits a transaction; otherwise 0.
        salt: identifies the generation of the file that the frame belongs to.
        sum: its stored checksum.
        follows: whether this checksum continues that of the previous frame.
    """

    start: int
    page: int
    commits: int
    salt: Sum
    sum: Sum
    follows: bool


@dataclass(frozen=True)
class Header:
    """The header of the file.

    Attributes:
        page_bytes: size of a page in bytes.
        big_endian: whether checksums read the bytes as big-endian words.
        salt: salt of the current generation; frames with another salt are left from earlier ones.
        sum: checksum that the first frame continues.
        sound: whether the header is intact. If not, the other attributes are defaults.
    """

    page_bytes: int
    big_endian: bool
    salt: Sum
    sum: Sum
    sound: bool


def lost(path: str) -> str | None:
    """Why the recovery of SQLite would lose durable transactions; None if no loss can be proven.

    Cost: reads the file once, or twice if the first look finds damage, and computes the checksums: about ten
    milliseconds per megabyte. Other processes may write to the log meanwhile.

    Raises:
        OSError: the file cannot be read.
    """
    first = _look(path)
    if first is None:
        return None
    # SUBTLE: another process may have written to the file while we read it. If the invalid frame was only
    # half written then, it is valid in the second look, or the file has started a new generation.
    again = _look(path)
    if again is None or again.header != first.header or again.unsound > first.committed:
        return None
    with suppress(FileNotFoundError), open_wal(path) as file:
        if os.pread(file, _HEADER.size, 0) == first.header:
            return _described(again)
    return None


@dataclass(frozen=True)
class _Proof:
    """A proof of damage, by frame numbers: the first invalid frame, and the last proven commit after it."""

    header: bytes
    unsound: int
    start: int
    committed: int


def _described(proof: _Proof) -> str:
    place = f"byte {proof.start} of its write-ahead log"
    return f"it is damaged from {place} on, and acknowledged entries come after that"


def _look(path: str) -> _Proof | None:
    try:
        with open_wal(path) as file:
            raw = os.pread(file, _HEADER.size, 0)
            header = read_header(raw)
            return None if header is None else _proof(raw, header, frames(file, header))
    except FileNotFoundError:
        return None


def _proof(raw: bytes, header: Header, found: Iterator[Frame]) -> _Proof | None:
    # With a damaged header, recovery ignores all frames.
    unsound = None if header.sound else (-1, 0)
    committed: int | None = None
    before: Frame | None = None
    for number, frame in enumerate(found):
        # The salt is not known then, but two frames of one generation have the same.
        salt = header.salt if header.sound or before is None else before.salt
        counts = frame.follows and frame.salt == salt and frame.page > 0
        if unsound is None:
            unsound = None if counts else (number, frame.start)
        elif counts and before is not None and before.commits:
            committed = number - 1
        before = frame
    return None if unsound is None or committed is None else _Proof(raw, *unsound, committed)


@contextmanager
def open_wal(path: str) -> Iterator[int]:
    """Open a write-ahead log for reading.

    Raises:
        FileNotFoundError: there is none, or it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def recovered(header: Header, found: list[Frame]) -> list[Frame]:
    """The frames that SQLite would apply: the valid ones from the start, up to the last that commits."""
    if not header.sound:
        return []
    sound = itertools.takewhile(lambda one: one.follows and one.salt == header.salt and one.page > 0, found)
    taken = list(sound)
    while taken and not taken[-1].commits:
        taken.pop()
    return taken


def proven(header: Header, found: list[Frame]) -> int:
    """How many frames, from the start, were durable although some are damaged; 0 if none can be proven."""
    proof = _proof(b"", header, iter(found))
    if proof is None:
        return 0
    end = proof.committed + 1
    salt = found[end].salt
    taken = itertools.takewhile(lambda one: one.follows and one.salt == salt and one.page > 0, found[end:])
    commits = [number for number, one in enumerate(taken, end + 1) if one.commits]
    return commits[-1] if commits else end


def read_header(data: bytes) -> Header | None:
    """Read the header from the first bytes of a file; None if there are too few bytes."""
    if len(data) < _HEADER.size:
        return None
    magic, version, page_bytes, _, *salt_and_sum = _HEADER.unpack(data)
    salt1, salt2, sum1, sum2 = salt_and_sum
    big_endian = bool(magic & 1)
    known = magic & ~1 == _MAGIC and version == _VERSION and page_bytes in _PAGE_BYTES
    if known:
        words = struct.unpack(f"{'>' if big_endian else '<'}6I", data[:24])
        known = _summed(words, (0, 0)) == (sum1, sum2)
    if not known:
        return Header(4096, sys.byteorder == "big", (0, 0), (0, 0), sound=False)
    return Header(page_bytes, big_endian, (salt1, salt2), (sum1, sum2), sound=True)


def lost_in(log: bytes) -> str | None:
    """As `lost`, for a write-ahead log that was read into memory."""
    header = read_header(log[: _HEADER.size])
    found = None if header is None else _proof(log[: _HEADER.size], header, frames(log, header))
    return None if found is None else _described(found)


def carried_over(pages: bytes, log: bytes) -> bytes:
    """Apply a write-ahead log to a database, as the recovery of SQLite would.

    Args:
        pages: bytes of the database file. Some pages may already be as in the log.
        log: bytes of the write-ahead log.
    """
    header = read_header(log[: _HEADER.size])
    taken = [] if header is None else recovered(header, list(frames(log, header)))
    if header is None or not taken:
        return pages
    size = taken[-1].commits * header.page_bytes
    result = bytearray(pages[:size].ljust(size, b"\0"))
    for frame in taken:
        if frame.page <= taken[-1].commits:
            at, start = (frame.page - 1) * header.page_bytes, frame.start + _FRAME.size
            result[at : at + header.page_bytes] = log[start : start + header.page_bytes]
    return bytes(result)


def frames(file: int | bytes, header: Header) -> Iterator[Frame]:
    """All frames of a write-ahead log (a descriptor or its bytes) in file order, also invalid ones."""
    size = _FRAME.size + header.page_bytes
    start, before = _HEADER.size, header.sum
    while True:
        length = max(1, _CHUNK_BYTES // size) * size
        data = os.pread(file, length, start) if isinstance(file, int) else file[start : start + length]
        count = len(data) // size
        if not count:
            return
        heads = [_FRAME.unpack_from(data, number * size) for number in range(count)]
        stored = [(head[4], head[5]) for head in heads]
        starts = [before, *stored[:-1]]
        summed = _sums(data[: count * size], size, starts, big_endian=header.big_endian)
        for number, (page, commits, salt1, salt2, sum1, sum2) in enumerate(heads):
            follows = summed[number] == (sum1, sum2)
            yield Frame(start + number * size, page, commits, (salt1, salt2), (sum1, sum2), follows)
        start, before = start + count * size, stored[-1]


def _sums(data: bytes, size: int, starts: list[Sum], *, big_endian: bool) -> list[Sum]:
    """The checksum that each frame must have, given the checksum that it continues.

    The checksum of a sequence of words is the last two terms of t(k) = t(k-1) + t(k-2) + word(k) modulo 2^32.
    This function computes the term k of all frames at once, in integers with 64 bits for each frame: thirty
    times faster than frame by frame.
    """
    count, words = len(starts), array("I", data)
    if big_endian:
        words.byteswap()
    view, per_frame = memoryview(words), size // words.itemsize
    lanes = _lanes([_WORD] * ((count + 1) // 2))
    even1, even2, odd1, odd2 = (
        _lanes([one[i] for one in starts[half::2]]) for half in (0, 1) for i in (0, 1)
    )
    # Of a frame header, the checksum covers only the first two words.
    for word in (0, 1, *range(_FRAME.size // words.itemsize, per_frame)):
        column = int.from_bytes(view[word::per_frame].tobytes(), "little")
        even1, even2 = even2, (even1 + even2 + (column & lanes)) & lanes
        odd1, odd2 = odd2, (odd1 + odd2 + (column >> 32 & lanes)) & lanes
    answer: list[Sum] = [(0, 0)] * count
    answer[::2] = zip(_words(even1, (count + 1) // 2), _words(even2, (count + 1) // 2), strict=True)
    answer[1::2] = zip(_words(odd1, count // 2), _words(odd2, count // 2), strict=True)
    return answer


def _lanes(words: list[int]) -> int:
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *words), "little")


def _words(lanes: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}Q", lanes.to_bytes(8 * count + 8, "little"))


def _summed(words: tuple[int, ...], start: Sum) -> Sum:
    first, second = start
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second
