"""A look into a write-ahead log of SQLite before SQLite recovers it.

Owns the layout of that file (https://www.sqlite.org/fileformat2.html, section 4) and what can be proven from
its bytes. Must not know what the pages hold. Writes nothing.

Recovery ends at the first frame that is not sound, and says nothing of what lies behind it. That is right
for the frames of a transaction that was never acknowledged: after a power cut any of them may be missing, and
those of a transaction that failed are written over from their beginning by the next one, so that its last
frames may stay. A frame that continues the checksum of a frame *that commits* is different: whoever wrote it
had seen that commit. So all that lies before such a pair of frames was durable once, and an unsound frame
there is damage.

What this cannot tell from a torn end: damage in the last transaction of all, and in the last bytes of the one
before. The witness can (`tidelake.store.witness`).
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
    """A frame.

    Attributes:
        start: its first byte in the file.
        page: number of the page that it holds.
        commits: the size of the database in pages, if it ends a transaction; otherwise 0.
        salt: says to which generation of the file it belongs.
        sum: as it is stored.
        follows: whether that continues the sum of the frame before it.
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
        page_bytes: size of a page.
        big_endian: the order of bytes in the words that are summed.
        salt: of the frames that count.
        sum: that the first frame continues.
        sound: whether it is as it was written.
    """

    page_bytes: int
    big_endian: bool
    salt: Sum
    sum: Sum
    sound: bool


def lost(path: str) -> str | None:
    """Why recovery would lose transactions that were durable; None: it loses none, as far as can be proven.

    Costs a read of the file and its sums, some ten milliseconds a megabyte, however many beside it write.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    first = _look(path)
    if first is None:
        return None
    # SUBTLE: another process may have written here while we read. What was committed when we saw the proof is
    # whole when we look again, unless it is damaged, or the file began anew.
    again = _look(path)
    if again is None or again.header != first.header or again.unsound > first.committed:
        return None
    with suppress(FileNotFoundError), open_wal(path) as file:
        if os.pread(file, _HEADER.size, 0) == first.header:
            return _described(again)
    return None


@dataclass(frozen=True)
class _Proof:
    """Frames by number: the first that is not sound, and the last commit behind it that somebody has seen."""

    header: bytes
    unsound: int
    start: int
    committed: int


def _described(proof: _Proof) -> str:
    place = f"byte {proof.start} of its write-ahead log"
    return f"the bytes from {place} on are damaged, and what was acknowledged lies behind them"


def _look(path: str) -> _Proof | None:
    try:
        with open_wal(path) as file:
            raw = os.pread(file, _HEADER.size, 0)
            header = read_header(raw)
            return None if header is None else _proof(raw, header, frames(file, header))
    except FileNotFoundError:
        return None


def _proof(raw: bytes, header: Header, found: Iterator[Frame]) -> _Proof | None:
    # Without a sound header no frame counts.
    unsound = None if header.sound else (-1, 0)
    committed: int | None = None
    before: Frame | None = None
    for number, frame in enumerate(found):
        # Nor is the salt known, but of one generation two frames agree.
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
    """A descriptor of a write-ahead log, for reading.

    Raises:
        FileNotFoundError: there is none, or something else that is no file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def recovered(header: Header, found: list[Frame]) -> list[Frame]:
    """The frames that SQLite takes: all that are sound, up to the last one that commits."""
    if not header.sound:
        return []
    sound = itertools.takewhile(lambda one: one.follows and one.salt == header.salt and one.page > 0, found)
    taken = list(sound)
    while taken and not taken[-1].commits:
        taken.pop()
    return taken


def proven(header: Header, found: list[Frame]) -> int:
    """How many frames from the first on were durable, though some are damaged; 0: that is not shown."""
    proof = _proof(b"", header, iter(found))
    if proof is None:
        return 0
    end = proof.committed + 1
    salt = found[end].salt
    taken = itertools.takewhile(lambda one: one.follows and one.salt == salt and one.page > 0, found[end:])
    commits = [number for number, one in enumerate(taken, end + 1) if one.commits]
    return commits[-1] if commits else end


def read_header(data: bytes) -> Header | None:
    """The header in the first bytes of a file; None: there are too few."""
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
    """Why recovery would lose transactions that were durable, by the bytes of a file; see `lost`."""
    header = read_header(log[: _HEADER.size])
    found = None if header is None else _proof(log[: _HEADER.size], header, frames(log, header))
    return None if found is None else _described(found)


def carried_over(pages: bytes, log: bytes) -> bytes:
    """A database with what was committed to its write-ahead log, as recovery would make it.

    Args:
        pages: the file of the database, some of which may already be as in the log.
        log: the file of the write-ahead log.
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
    """The frames of an open file, or of its bytes, in their order, also those that do not count."""
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
    """What each frame's sum has to be, given the sum that it continues.

    The sum of a sequence of words is the last two of t(k) = t(k-1) + t(k-2) + word(k), modulo 2^32. Here the
    same step of all frames is one step of a large number that has 64 bits for each of them, which is thirty
    times as fast as frame by frame.
    """
    count, words = len(starts), array("I", data)
    if big_endian:
        words.byteswap()
    view, per_frame = memoryview(words), size // words.itemsize
    lanes = _lanes([_WORD] * ((count + 1) // 2))
    even1, even2, odd1, odd2 = (
        _lanes([one[i] for one in starts[half::2]]) for half in (0, 1) for i in (0, 1)
    )
    # Of the header of a frame only the first two words are summed.
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
