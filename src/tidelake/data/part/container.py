"""The bytes of a part: a Parquet file in which no flipped byte goes unnoticed.

Owns the layout around Parquet's own pages; must not know rows, order or types. Invariant: the bytes that are
returned are the ones that were written, or there is a `CorruptionError`.

    "PAR1" | row group ... | filter | seal | footer | footer length (4, little-endian) | "PAR1"

Page checksums cover neither page headers nor the footer. So the footer's key-value metadata hold a CRC-32 of
every row group's bytes, headers included. The *seal*, 24 bytes in the gap that Parquet allows before the
footer, is `tidelake` and the blake2b-128 of everything after it. A reader checks the seal, and then what it
reads of row groups and the filter against the footer. The four magic bytes at the start carry no data. A
part's description repeats the digest of the footer, so another part in its place is noticed too. The hash of
the rows comes last there.

Key-value metadata: `tidelake.format` = "1"; `tidelake.index` = JSON, three arrays with an item for
each row group: `keys` (base64 of its first key as `encode_key` makes it), `ends` (offset of the byte
after it), `crcs`. A part with a filter of its keys has `tidelake.filter` = JSON: `size_bytes` and `crc` of
the filter, which begins where the last row group ends.
"""

import base64
import hashlib
import io
import json
import zlib
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.errors import CorruptionError, FormatTooNew
from tidelake.model.batch import Part

FORMAT = 1
MAGIC = b"PAR1"
FORMAT_KEY, INDEX_KEY, FILTER_KEY = "tidelake.format", "tidelake.index", "tidelake.filter"
_SEAL = b"tidelake"
_SEAL_BYTES = len(_SEAL) + 16
_TAIL_BYTES = 8
# Hexadecimal digits of a digest.
_DIGITS = 32
# The footer grows with the number of row groups: about 1/200 of a part with usual rows.
_GUESS_BYTES = 16 * 1024


class File(Protocol):
    """What a part is read from, such as a binary file that is open for reading."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move."""

    def read(self, size: int, /) -> bytes:
        """Read at most so many bytes."""


@dataclass(frozen=True)
class Footer:
    """A footer whose seal was checked.

    Attributes:
        ends: of every row group, the offset of the byte after it.
        filter_bytes: size of the filter of the keys; 0: the part has none.
    """

    metadata: pq.FileMetaData
    first_keys: tuple[bytes, ...]
    ends: tuple[int, ...]
    crcs: tuple[int, ...]
    filter_bytes: int = 0
    filter_crc: int = 0

    def start(self, group: int) -> int:
        """The offset of a row group's first byte."""
        return self.ends[group - 1] if group else len(MAGIC)

    def rows(self, group: int) -> int:
        """The rows of a row group."""
        return int(self.metadata.row_group(group).num_rows)


def checksum(data: bytes) -> str:
    """The blake2b-128 of the bytes, as 32 hexadecimal digits."""
    return hasher(data).hexdigest()


def hasher(data: bytes = b"") -> "hashlib.blake2b":
    """A hash that gives what `checksum` does, for bytes that come in pieces; `data` is the first piece."""
    return hashlib.blake2b(data, digest_size=16)


def index_metadata(first_keys: list[bytes], ends: list[int], crcs: list[int]) -> dict[str, str]:
    """The key-value metadata that a part carries."""
    keys = [base64.b64encode(key).decode() for key in first_keys]
    index = json.dumps({"keys": keys, "ends": ends, "crcs": crcs}, separators=(",", ":"))
    return {FORMAT_KEY: str(FORMAT), INDEX_KEY: index}


def filter_metadata(data: bytes) -> dict[str, str]:
    """The key-value metadata of a part with a filter of these bytes."""
    found = {"size_bytes": len(data), "crc": zlib.crc32(data)}
    return {FILTER_KEY: json.dumps(found, separators=(",", ":"))}


def sealed(file: io.BytesIO) -> tuple[bytes, str]:
    """A Parquet file with the seal before its footer, and its digest. In place: a part is large."""
    size = file.seek(0, io.SEEK_END)
    file.seek(size - _TAIL_BYTES)
    body = size - _TAIL_BYTES - int.from_bytes(file.read(4), "little")
    file.seek(body)
    footer = file.read()
    file.seek(body)
    digest = hasher(footer)
    file.write(_SEAL + digest.digest() + footer)
    return file.getvalue(), digest.hexdigest()


def whole_checksum(part: Part) -> str:
    """The `checksum` of all bytes of a part."""
    return part.checksum[:_DIGITS]


def with_row_hash(digests: str, row_hash: int) -> str:
    """The checksum of a part from the digests of its bytes and the hash of its rows."""
    return f"{digests}+{row_hash:016x}"


def verify(data: bytes, part: Part) -> None:
    """Compare a whole object with its description."""
    if len(data) != part.size_bytes:
        raise CorruptionError(part.name, f"it has {len(data)} bytes instead of {part.size_bytes}")
    # As `checksum` and `whole_checksum`; a look-up compares those of many small parts.
    if hashlib.blake2b(data, digest_size=16).hexdigest() != part.checksum[:_DIGITS]:
        raise CorruptionError(part.name, "its checksum does not match")


def read_footer(file: File, part: Part) -> Footer:
    """Read and check the footer: one read, two if it is long."""
    size = file.seek(0, io.SEEK_END)
    if size != part.size_bytes:
        raise CorruptionError(part.name, f"it has {size} bytes instead of {part.size_bytes}")
    tail = read_range(file, part, max(0, size - max(_GUESS_BYTES, size // 128)), size)
    if tail[-4:] != MAGIC:
        raise CorruptionError(part.name, "it does not end like a Parquet file")
    length = int.from_bytes(tail[-8:-4], "little") + _TAIL_BYTES + _SEAL_BYTES
    if length > size - len(MAGIC):
        raise CorruptionError(part.name, "its footer has an impossible length")
    if length > len(tail):
        tail = read_range(file, part, size - length, size - len(tail)) + tail
    tail = tail[-length:]
    digest = hasher(tail[_SEAL_BYTES:])
    if not tail.startswith(_SEAL) or tail[len(_SEAL) : _SEAL_BYTES] != digest.digest():
        raise CorruptionError(part.name, "the checksum of its footer does not match")
    if part.checksum.partition("+")[0][_DIGITS:] != digest.hexdigest():
        raise CorruptionError(part.name, "its footer is that of another part")
    # The seal was right, so this is no accidental damage; it may still be some other object.
    try:
        return _parsed(tail[_SEAL_BYTES:], part)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptionError(part.name, f"its footer cannot be read: {error}") from error


def check_groups(data: bytes, part: Part, footer: Footer, groups: range) -> None:
    """Check the bytes of adjacent row groups."""
    origin, view = footer.start(groups[0]), memoryview(data)
    for group in groups:
        if zlib.crc32(view[footer.start(group) - origin : footer.ends[group] - origin]) != footer.crcs[group]:
            raise CorruptionError(part.name, f"the checksum of row group {group} does not match")


def read_filter_bytes(file: File, part: Part, footer: Footer) -> bytes:
    """The checked bytes of the filter of a part that has one: one read."""
    start = footer.ends[-1]
    data = read_range(file, part, start, start + footer.filter_bytes)
    if zlib.crc32(data) != footer.filter_crc:
        raise CorruptionError(part.name, "the checksum of its filter does not match")
    return data


def read_range(file: File, part: Part, start: int, end: int) -> bytes:
    """The bytes [start, end); errors of the file itself pass through."""
    file.seek(start)
    pieces: list[bytes] = []
    missing = end - start
    while missing > 0:
        piece = file.read(missing)
        if not piece:
            raise CorruptionError(part.name, f"it ends {missing} bytes short of offset {end}")
        pieces.append(piece)
        missing -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _parsed(footer: bytes, part: Part) -> Footer:
    # A file that has only a footer is enough for Parquet to parse it.
    metadata = pq.read_metadata(pa.BufferReader(MAGIC + footer))
    found: dict[bytes, bytes] = metadata.metadata or {}
    version = int(found.get(FORMAT_KEY.encode(), b"0"))
    if version > FORMAT:
        raise FormatTooNew(part.name, version, FORMAT)
    if version != FORMAT:
        raise CorruptionError(part.name, "it is a Parquet file, but not a part")
    index: dict[str, list[Any]] = json.loads(found[INDEX_KEY.encode()])
    keys = tuple(base64.b64decode(key) for key in index["keys"])
    of_filter: dict[str, int] = json.loads(found.get(FILTER_KEY.encode(), b"{}"))
    result = Footer(
        metadata,
        keys,
        tuple(index["ends"]),
        tuple(index["crcs"]),
        of_filter.get("size_bytes", 0),
        of_filter.get("crc", 0),
    )
    if metadata.num_rows != part.rows:
        raise CorruptionError(part.name, f"it has {metadata.num_rows} rows instead of {part.rows}")
    if not metadata.num_row_groups == len(keys) == len(result.ends) == len(result.crcs) > 0:
        raise CorruptionError(part.name, "its index does not match its row groups")
    if keys[0][: len(part.key_lower)] < part.key_lower:
        raise CorruptionError(part.name, "its first key lies before the part's lower bound")
    return result
