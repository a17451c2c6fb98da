"""The witness: a small file next to a database that names its newest acknowledged entry.

Owns the bytes of that file, and the hash that links entries. Must not know SQLite, nor decide what to do with
a log that contradicts its witness.

    tidewit1 | seqno, 8 bytes, big-endian | link of that entry, 16 bytes | checksum, 16 bytes

After each durable commit, the process that committed writes the entry here, without a flush and before it
releases the write lock. So the witness is never ahead of the log, not even after a power cut: if a log ends
before its witness, it has lost acknowledged entries. A witness may be behind its log. A witness that is
missing, torn, or that belongs to another database is ignored.
"""

import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

LINK_BYTES = 16

_MAGIC = b"tidewit1"
_BODY = struct.Struct(f">{len(_MAGIC)}sQ{LINK_BYTES}s")
_CHECKSUM_BYTES = 16
_SIZE_BYTES = _BODY.size + _CHECKSUM_BYTES
# Do not follow a symbolic link out of the lake, and do not block on a pipe.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Acknowledged:
    """An entry that was acknowledged as durable.

    Attributes:
        seqno: seqno of the entry.
        link: its link; see the function `link`.
    """

    seqno: int
    link: bytes


def link(before: bytes, seqno: int, data: bytes) -> bytes:
    """The running hash of a log: of the link of the previous entry (empty if it has none) and of an entry."""
    return blake2b(
        before.rjust(LINK_BYTES, b"\0") + seqno.to_bytes(8, "big") + data, digest_size=LINK_BYTES
    ).digest()


def contradiction(acknowledged: Acknowledged | None, head: int, link_there: bytes | None) -> str | None:
    """How a log contradicts its witness; None if it does not.

    Args:
        acknowledged: the content of the witness, read before the log.
        head: seqno of the newest entry of the log.
        link_there: the link that the log has at the acknowledged seqno; None if that entry was truncated, or
            if its link is not known.
    """
    if acknowledged is None:
        return None
    if head < acknowledged.seqno:
        return f"it ends at entry {head}, but entry {acknowledged.seqno} was acknowledged: the rest is lost"
    if link_there is not None and link_there != acknowledged.link:
        return f"its entry {acknowledged.seqno} is not the one that was acknowledged: it is another log"
    return None


def said(data: bytes, database: bytes) -> Acknowledged | None:
    """Decode the bytes of a witness of the database named `database`; None if they are not valid."""
    if len(data) != _SIZE_BYTES or data[_BODY.size :] != _checksum(database, data[: _BODY.size]):
        return None
    magic, seqno, link_ = _BODY.unpack_from(data)
    return Acknowledged(seqno, link_) if magic == _MAGIC else None


def _checksum(database: bytes, body: bytes) -> bytes:
    return blake2b(database + b"\0" + body, digest_size=_CHECKSUM_BYTES).digest()


class Witness:
    """The witness of one database. One thread at a time.

    Args:
        path: path of the file.
        database: name of the database. The witness of another database is ignored.
    """

    def __init__(self, path: str, database: str) -> None:
        self.path = path
        self._database = database.encode()
        self._descriptor: int | None = None

    def read(self) -> Acknowledged | None:
        """The newest acknowledged entry; None if the witness is missing or not valid. Reads 48 bytes."""
        try:
            if self._descriptor is None:
                self._descriptor = self._open(0)
            data = os.pread(self._descriptor, _SIZE_BYTES, 0)
        except OSError:
            return None  # a log without a witness is accepted: it may have been copied without
        return said(data, self._database)

    def write(self, acknowledged: Acknowledged) -> None:
        """Write a durable entry. REQUIRES: the write lock of the log is held. Writes 48 bytes."""
        body = _BODY.pack(_MAGIC, acknowledged.seqno, acknowledged.link)
        # An error here does no harm: the entry is durable, and a witness may be behind its log.
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = self._open(os.O_CREAT)
            os.pwrite(self._descriptor, body + _checksum(self._database, body), 0)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self, flags: int) -> int:
        descriptor = os.open(self.path, flags | os.O_RDWR | _CAREFULLY, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(self.path)
        return descriptor
