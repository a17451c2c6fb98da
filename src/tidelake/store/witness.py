"""What a log has acknowledged, as a small file beside its database says.

Owns the bytes of that file and the hash that links entries. Must not know SQLite, nor decide what a log that
contradicts its witness is good for.

    tidewit1 | seqno, 8 bytes, big-endian | link of that entry, 16 bytes | checksum, 16 bytes

After each durable commit whoever wrote it notes the entry here, without a flush, while it still keeps others
from writing. So the witness is never ahead of the log, also after a power cut: a log that ends before its
witness has lost what was acknowledged. A witness may be behind; one that is missing, torn or of another
database says nothing.
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
# Neither follows a link out of the lake, nor waits for the other end of a pipe.
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Acknowledged:
    """An entry that was durable.

    Attributes:
        seqno: of the entry.
        link: of the entry; see `link`.
    """

    seqno: int
    link: bytes


def link(before: bytes, seqno: int, data: bytes) -> bytes:
    """The running hash of a log, from the one of the entry before (empty: there is none) and an entry."""
    return blake2b(
        before.rjust(LINK_BYTES, b"\0") + seqno.to_bytes(8, "big") + data, digest_size=LINK_BYTES
    ).digest()


def contradiction(acknowledged: Acknowledged | None, head: int, link_there: bytes | None) -> str | None:
    """Why a log cannot be the one of its witness; None: it may be.

    Args:
        acknowledged: what the witness says, read before the log was.
        head: seqno of the newest entry.
        link_there: the link of the entry that was acknowledged; None: it is gone by now, or unknown.
    """
    if acknowledged is None:
        return None
    if head < acknowledged.seqno:
        return f"it ends at entry {head}, and entry {acknowledged.seqno} was acknowledged: the rest is lost"
    if link_there is not None and link_there != acknowledged.link:
        return f"its entry {acknowledged.seqno} is not the one that was acknowledged: it is another log"
    return None


def said(data: bytes, database: bytes) -> Acknowledged | None:
    """What the bytes of a witness of a database of some name say; None: nothing."""
    if len(data) != _SIZE_BYTES or data[_BODY.size :] != _checksum(database, data[: _BODY.size]):
        return None
    magic, seqno, link_ = _BODY.unpack_from(data)
    return Acknowledged(seqno, link_) if magic == _MAGIC else None


def _checksum(database: bytes, body: bytes) -> bytes:
    return blake2b(database + b"\0" + body, digest_size=_CHECKSUM_BYTES).digest()


class Witness:
    """The witness of one database. One thread at a time.

    Args:
        path: of the file.
        database: names the database; a witness of another one says nothing.
    """

    def __init__(self, path: str, database: str) -> None:
        self.path = path
        self._database = database.encode()
        self._descriptor: int | None = None

    def read(self) -> Acknowledged | None:
        """What it says; None: nothing. A read of 48 bytes."""
        try:
            if self._descriptor is None:
                self._descriptor = self._open(0)
            data = os.pread(self._descriptor, _SIZE_BYTES, 0)
        except OSError:
            return None  # without a witness the log is believed, as one is that was copied without it
        return said(data, self._database)

    def write(self, acknowledged: Acknowledged) -> None:
        """Note an entry that is durable. REQUIRES: nobody else commits meanwhile. A write of 48 bytes."""
        body = _BODY.pack(_MAGIC, acknowledged.seqno, acknowledged.link)
        # Whatever fails here, the entry is in, and a witness that stays behind says nothing wrong.
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = self._open(os.O_CREAT)
            os.pwrite(self._descriptor, body + _checksum(self._database, body), 0)

    def close(self) -> None:
        """Give up the descriptor."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self, flags: int) -> int:
        descriptor = os.open(self.path, flags | os.O_RDWR | _CAREFULLY, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(self.path)
        return descriptor
