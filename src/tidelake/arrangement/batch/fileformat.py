"""The file format of a batch on disk.

Owns the format; must not know when files are read or deleted. Invariant: a reader gets the rows that were
written, or a `CorruptionError` that names the file.

    "TIDEBAT1" | block ... | filter | index | meta | trailer

- block: a record batch as an Arrow IPC message, compressed as one LZ4 block without a frame. (Reading takes
  three times as long if IPC compresses each buffer by itself.)
- filter: its 64-bit words, little-endian.
- index: an Arrow IPC stream with a row for each block: `end` (offset of the byte after it), `crc` (CRC-32
  of its bytes), `size` (uncompressed), `rows` (up to its end), `first` and `last` (encoded keys).
- meta: JSON: `schema` and `time` as text, `rows`, `negative_rows`, `filter` (kind), `base` of the filter.
- trailer: the lengths of filter, index and meta (8 bytes each), the CRC-32 of these three and of the
  lengths, the format (4 bytes each), "TIDEBAT1"; integers little-endian.
"""

import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.arrangement.batch.filters import Filter, filter_of
from tidelake.arrangement.batch.index import BlockIndex
from tidelake.arrangement.batch.layout import Layout
from tidelake.errors import CorruptionError, FormatTooNew, UsageError

FORMAT = 1
MAGIC = b"TIDEBAT1"
SUFFIX = ".batch"
_LENGTHS = struct.Struct("<QQQ")
_TRAILER = struct.Struct("<QQQII8s")
_INDEX = pa.schema(
    [
        ("end", pa.int64()),
        ("crc", pa.uint32()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("first", pa.binary()),
        ("last", pa.binary()),
    ]
)
_CODEC = pa.Codec("lz4_raw")


@dataclass(frozen=True)
class Contents:
    """The metadata of a file: everything but its rows.

    Attributes:
        starts: the number of rows before each block, then the total.
        offsets: the byte offset of each block, then the end of the last one.
        index: the first and last key of each block.
    """

    starts: npt.NDArray[np.int64]
    negative_rows: int
    offsets: npt.NDArray[np.int64]
    crcs: list[int]
    sizes: list[int]
    index: BlockIndex
    filter: Filter


def block_bytes(rows: pa.RecordBatch) -> tuple[bytes, int]:
    """The stored bytes of a block, and its uncompressed size."""
    message = rows.serialize()
    stored: bytes = _CODEC.compress(message, asbytes=True)
    return stored, message.size


def block_rows(stored: memoryview, crc: int, size: int, layout: Layout, name: str) -> pa.RecordBatch:
    """Decode a block of `size` uncompressed bytes."""
    if zlib.crc32(stored) != crc:
        raise CorruptionError(name, "its checksum does not match")
    return pa.ipc.read_record_batch(_CODEC.decompress(stored, size), layout.arrow)


def end_bytes(contents: Contents, layout: Layout) -> bytes:
    """The bytes after the blocks: filter, index, meta and trailer."""
    index = pa.RecordBatch.from_arrays(
        [
            pa.array(contents.offsets[1:]),
            pa.array(contents.crcs, pa.uint32()),
            pa.array(contents.sizes, pa.int64()),
            pa.array(contents.starts[1:]),
            pa.array(contents.index.firsts, pa.binary()),
            pa.array(contents.index.lasts, pa.binary()),
        ],
        schema=_INDEX,
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, _INDEX) as writer:
        writer.write_batch(index)
    meta = _described(layout) | {
        "rows": int(contents.starts[-1]),
        "negative_rows": contents.negative_rows,
        "filter": contents.filter.kind,
        "base": contents.filter.base,
    }
    pieces = contents.filter.words.tobytes(), sink.getvalue(), json.dumps(meta).encode()
    lengths = [len(piece) for piece in pieces]
    crc = _crc(b"".join(pieces), lengths)
    return b"".join((*pieces, _TRAILER.pack(*lengths, crc, FORMAT, MAGIC)))


def read_contents(read: Callable[[int, int], bytes], size: int, name: str, layout: Layout) -> Contents:
    """Read the metadata of a file. Two reads."""
    if size < len(MAGIC) + _TRAILER.size:
        raise CorruptionError(name, f"{size} bytes are too few for a batch file")
    *lengths, crc, format_, magic = _TRAILER.unpack(read(size - _TRAILER.size, _TRAILER.size))
    if magic != MAGIC:
        raise CorruptionError(name, "it does not end like a batch file")
    if format_ > FORMAT:
        raise FormatTooNew(name, format_, FORMAT)
    if format_ != FORMAT:
        raise CorruptionError(name, "it has no format number")
    start = size - _TRAILER.size - sum(lengths)
    if start < len(MAGIC):
        raise CorruptionError(name, "its lengths do not add up")
    end = read(start, sum(lengths))
    if _crc(end, lengths) != crc:
        raise CorruptionError(name, "the checksum of its index does not match")
    pieces = np.split(np.frombuffer(end, np.uint8), np.cumsum(lengths)[:2])
    meta = json.loads(pieces[2].tobytes())
    described = _described(layout)
    if {key: meta[key] for key in described} != described:
        raise UsageError(f"{name!r} holds {meta['schema']} with time {meta['time']}, not {layout.schema}")
    filter_ = filter_of(meta["filter"], pieces[0].view("<u8"), meta["base"])
    if filter_ is None:
        raise CorruptionError(name, f"a filter of kind {meta['filter']!r} is unknown")
    index = pa.ipc.open_stream(pieces[1].tobytes()).read_all()
    offsets, starts = (
        np.concatenate([[first], index.column(name).to_numpy()]).astype(np.int64)
        for first, name in ((len(MAGIC), "end"), (0, "rows"))
    )
    if offsets[-1] != start:
        raise CorruptionError(name, "its blocks do not end where its filter begins")
    keys = BlockIndex(layout, index.column("first").to_pylist(), index.column("last").to_pylist())
    crcs, sizes = index.column("crc").to_pylist(), index.column("size").to_pylist()
    return Contents(starts, meta["negative_rows"], offsets, crcs, sizes, keys, filter_)


def _described(layout: Layout) -> dict[str, object]:
    return {"schema": str(layout.schema), "time": str(layout.domain)}


def _crc(end: bytes, lengths: list[int]) -> int:
    return zlib.crc32(_LENGTHS.pack(*lengths), zlib.crc32(end))
