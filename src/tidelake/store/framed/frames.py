"""The bytes of a framed log.

Owns the layout of a file of frames and of its record of what is published, and what their bytes prove. Must
not know files. `docs/framed-log.md` has the argument.

A file is a header, frames without gaps, and zeros or what a torn write left:

    header   magic, format, id of the file, seqno of the first frame, link before it, checksum
    frame    magic, bytes of data, size of the frame before, seqno, link before, link, checksum; data, padding

The link of an entry is a hash of the link before it, its seqno and its data. So an intact frame proves its
own data, and that it continues the frame before it. The checksum of a frame covers the id of its file, so
nothing that users store is taken for a frame.
"""

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

FORMAT = 1
LINK_BYTES = 16
ID_BYTES = 16
NO_LINK = bytes(LINK_BYTES)

_ALIGNMENT = 8
_CRC = struct.Struct(">I")
_HEADER = struct.Struct(f">8sI{ID_BYTES}sQ{LINK_BYTES}s")
_HEADER_MAGIC = b"tidelog\n"
HEADER_BYTES = 56
_FRAME = struct.Struct(f">4sIIQ{LINK_BYTES}s{LINK_BYTES}s")
_FRAME_MAGIC = b"\xf0frm"
FRAME_BYTES = _FRAME.size + _CRC.size
DATA_BYTES_MAX = 2**32 - 1 - FRAME_BYTES - _ALIGNMENT
_PUBLISHED = struct.Struct(f">8s{ID_BYTES}sQQQ{LINK_BYTES}s{ID_BYTES}s")
_PUBLISHED_MAGIC = b"tidepub\n"
_PUBLISHED_CHECK_BYTES = 16
PUBLISHED_BYTES = _PUBLISHED.size + _PUBLISHED_CHECK_BYTES


def link(before: bytes, seqno: int, data: bytes) -> bytes:
    """The link of an entry: a running hash of the log up to it. Entry 0 follows `NO_LINK`."""
    return blake2b(before + seqno.to_bytes(8, "big") + data, digest_size=LINK_BYTES).digest()


class Header(NamedTuple):
    """The header of a file.

    Attributes:
        file: id of this file; a truncation makes another file.
    """

    file: bytes
    first: int
    before: bytes
    format: int = FORMAT

    def encode(self) -> bytes:
        """Its bytes."""
        body = _HEADER.pack(_HEADER_MAGIC, self.format, self.file, self.first, self.before)
        return body + _CRC.pack(crc32(body))

    @staticmethod
    def decode(data: bytes) -> "Header | None":
        """The header at the start of a file; None if it is damaged."""
        body = data[: _HEADER.size]
        if len(data) < HEADER_BYTES or data[_HEADER.size : HEADER_BYTES] != _CRC.pack(crc32(body)):
            return None
        magic, format_, file, first, before = _HEADER.unpack(body)
        return Header(file, first, before, format_) if magic == _HEADER_MAGIC else None


class Frame(NamedTuple):
    """A frame, as its own header tells.

    Attributes:
        back: bytes of the frame before it; 0 for the first of a file.
    """

    start: int
    length: int
    back: int
    seqno: int
    before: bytes
    link: bytes

    @property
    def end(self) -> int:
        """Position of the first byte behind it."""
        return self.start + frame_bytes(self.length)

    def data(self, content: bytes, origin: int = 0) -> bytes | None:
        """Its data, from bytes of the file from position `origin` on; None if they are not what it proves."""
        at = self.start + FRAME_BYTES - origin
        data = content[at : at + self.length]
        return data if len(data) == self.length and link(self.before, self.seqno, data) == self.link else None


def frame_bytes(length: int) -> int:
    """Bytes of a frame with so many bytes of data."""
    return FRAME_BYTES + -(-length // _ALIGNMENT) * _ALIGNMENT


def encode_frame(file: bytes, data: bytes, back: int, seqno: int, before: bytes) -> tuple[bytes, bytes]:
    """The bytes of a frame of the file with this id, and its link."""
    here = link(before, seqno, data)
    head = _FRAME.pack(_FRAME_MAGIC, len(data), back, seqno, before, here)
    padding = bytes(-len(data) % _ALIGNMENT)
    return b"".join((head, _CRC.pack(crc32(head, crc32(file))), data, padding)), here


def frame_at(file: bytes, content: bytes, start: int, origin: int = 0) -> Frame | None:
    """The frame at a position, by its header; None if there is none, or its header is damaged."""
    at = start - origin
    head = content[at : at + _FRAME.size]
    if head[:4] != _FRAME_MAGIC:
        return None
    if content[at + _FRAME.size : at + FRAME_BYTES] != _CRC.pack(crc32(head, crc32(file))):
        return None
    _, length, back, seqno, before, here = _FRAME.unpack(head)
    return Frame(start, length, back, seqno, before, here)


def continuing(
    file: bytes, content: bytes, start: int, seqno: int, before: bytes
) -> Iterator[tuple[Frame, bytes]]:
    """The intact frames from a position on that continue entry `seqno - 1`, each with its data."""
    while True:
        frame = frame_at(file, content, start)
        if frame is None or frame.seqno != seqno or frame.before != before:
            return
        data = frame.data(content)
        if data is None:
            return
        yield frame, data
        start, seqno, before = frame.end, seqno + 1, frame.link


def intact(file: bytes, content: bytes, start: int) -> Iterator[tuple[Frame, bytes]]:
    """All frames from a position on that prove their own data, each with it, whatever is between them."""
    at = content.find(_FRAME_MAGIC, start)
    while at >= 0:
        frame = frame_at(file, content, at) if not (at - HEADER_BYTES) % _ALIGNMENT else None
        data = None if frame is None else frame.data(content)
        if frame is not None and data is not None:
            yield frame, data
            at = frame.end - 1
        at = content.find(_FRAME_MAGIC, at + 1)


class Published(NamedTuple):
    """How far a log is durable, as its last writer said. The bytes are never ahead of the durable log.

    Attributes:
        file: id of the file that the positions are of.
        boot: the start of the machine in which it was written; zeros if that is not known.
    """

    file: bytes
    seqno: int
    start: int
    end: int
    link: bytes
    boot: bytes

    def encode(self) -> bytes:
        """Its bytes."""
        body = _PUBLISHED.pack(_PUBLISHED_MAGIC, *self)
        return body + blake2b(body, digest_size=_PUBLISHED_CHECK_BYTES).digest()

    @staticmethod
    def decode(data: bytes) -> "Published | None":
        """What a record says; None if it is torn, damaged or missing."""
        body = data[: _PUBLISHED.size]
        check = blake2b(body, digest_size=_PUBLISHED_CHECK_BYTES).digest()
        if len(data) != PUBLISHED_BYTES or data[_PUBLISHED.size :] != check:
            return None
        magic, *fields = _PUBLISHED.unpack(body)
        return Published(*fields) if magic == _PUBLISHED_MAGIC else None
