"""Lines and messages as batches, with the columns of `AS_TEXT`, and of messages those of `PLACES`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from tidelake.cdc.core.lineerrors import place
from tidelake.errors import InvalidUpdates, UsageError

TextFormat: TypeAlias = Literal["jsonl", "keyed"]
_PACKED = frozenset(
    {".xz", ".lzma", ".snappy", ".sz", ".br", ".lzo", ".deflate", ".zip", ".7z", ".tar", ".tgz"}
)
CHUNK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
STAY = "files must stay as they are until they are taken as a whole"
LINES = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("file", pa.string()),
        pa.field("block", pa.int64()),
        pa.field("modified", pa.int64()),
        pa.field("offset", pa.int64()),
    ]
)
MESSAGES = pa.schema([*LINES, pa.field("topic", pa.string()), pa.field("partition", pa.int32())])
_OF_RECORDS = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Piece:
    """Lines of a file that follow each other.

    Attributes:
        name: of the file, in its directory.
        begin: where they begin, in bytes of text.
        line: how many lines are before them.
        end: where they end; None: with the file.
        count: how many there are.
    """

    name: str
    begin: int = 0
    line: int = 0
    end: int | None = None
    count: int = 0

    @property
    def after(self) -> "Piece | None":
        """Where the rest of the file begins; None if there is none."""
        return None if self.end is None else Piece(self.name, self.end, self.line + self.count)


def check_format(format_: str) -> None:
    """Check what lines are."""
    if format_ not in get_args(TextFormat):
        raise UsageError(
            f"format={format_!r}: lines of change events are {' or '.join(get_args(TextFormat))}; files of "
            "one table may be csv or parquet as well"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in errors of the block."""
    try:
        yield
    except OSError as error:
        raise InvalidUpdates(f"cannot read {place(path.as_uri())}: {error.strerror or error}") from error
    except UnicodeEncodeError as error:
        raise InvalidUpdates(f"cannot read {place(path.as_uri())}: its name is not UTF-8") from error


def text_of(path: Path) -> pa.NativeFile:
    """The text of a file, which may be packed."""
    if path.suffix.lower() in _PACKED:
        raise InvalidUpdates(
            f"cannot read {place(path.as_uri())}: lines may be packed by gzip, bzip2, lz4 or zstd (.gz, "
            ".bz2, .lz4, .zst), and this is another way: unpack the file"
        )
    return pa.input_stream(str(path), compression="detect")


def blocks_of(text: pa.NativeFile, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The rest of a text in blocks of whole lines, of about so many bytes."""
    rest = b""
    while chunk := text.read(chunk_bytes):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield whole + newline
    if rest:
        yield rest


def piece_of(folder: Path, format_: str, begun: Piece, bytes_max: int | None) -> tuple[pa.RecordBatch, Piece]:
    """The next lines of a file, and the piece that they are."""
    path = (folder / begun.name).resolve()
    with reading(path):
        return _piece_of(path, begun, format_, bytes_max)


def _piece_of(path: Path, begun: Piece, format_: str, bytes_max: int | None) -> tuple[pa.RecordBatch, Piece]:
    modified, texts, size = path.stat().st_mtime_ns // 1000, list[bytes](), 0
    with text_of(path) as opened:
        if not _skipped(opened, begun.begin):
            raise InvalidUpdates(
                f"{place(path.as_uri())} has fewer than the {begun.begin} bytes that were taken of it: {STAY}"
            )
        blocks = blocks_of(opened, CHUNK_BYTES if bytes_max is None else max(1, min(CHUNK_BYTES, bytes_max)))
        for block in blocks:
            texts += block.splitlines()
            size += len(block)
            if bytes_max is not None and size >= bytes_max:
                break
        left = next(blocks, None) is not None
    if begun.begin == 0 and texts:
        texts[0] = texts[0].removeprefix(BOM)
    lines = _batch(texts, path.as_uri(), modified, begun.line, format_)
    end = begun.begin + size if left else None
    return lines, Piece(begun.name, begun.begin, begun.line, end, len(texts))


def _skipped(opened: pa.NativeFile, count: int) -> bool:
    """Whether there are so many bytes, which are skipped."""
    if not isinstance(opened, pa.CompressedInputStream):
        opened.seek(count)
        return bool(count <= opened.size())
    while count:
        found = len(opened.read(min(count, CHUNK_BYTES)))
        if not found:
            return False
        count -= found
    return True


def _batch(texts: Sequence[bytes], file: str, modified: int, before: int, format_: str) -> pa.RecordBatch:
    keys: Sequence[bytes | None] = [None] * len(texts)
    if format_ == "keyed":
        # JSON has no tabs but between its parts, where Kafka Connect writes none.
        pairs = [line.partition(b"\t") for line in texts]
        keys = [key if tab and key not in (b"", b"null") else None for key, tab, _ in pairs]
        texts = [value if tab else key for key, tab, value in pairs]
    count = len(texts)
    columns = [
        pa.array(texts, pa.binary()),
        pa.array(keys, pa.binary()),
        pa.repeat(pa.scalar(file), count),
        pa.repeat(pa.scalar(0, pa.int64()), count),
        pa.repeat(pa.scalar(modified, pa.int64()), count),
        pa.array(range(before + 1, before + 1 + count), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LINES)


def batches_of(given: Iterable[Any], bytes_max: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Lines, or messages of Kafka, in batches of about so many bytes; and how many were left out of each.

    A message that is in its batch already is left out: a consumer gives it again after a rebalance.
    """
    try:
        left = iter(given)
    except TypeError:
        raise UsageError(f"a {type(given).__name__} is no directory, and has no lines or messages") from None
    head = [*islice(left, 1)]
    placed = any(one is not None and not isinstance(one, str | bytes) for one in head)
    some, size, repeated = list[Any](), 0, 0
    there = dict[tuple[Any, ...], Any]()
    for number, one in enumerate(chain(head, left), 1):
        row = _message(one) if placed else _line(one, number)
        if placed and (before := there.setdefault(row[-3:], row)) is not row:
            if row[:2] != before[:2]:
                raise InvalidUpdates(
                    f"two messages of topic {row[-2]!r}, partition {row[-1]} have the offset {row[-3]}: the "
                    "topic was deleted and made anew"
                )
            repeated += 1
            continue
        some.append(row)
        size += sum(len(text or b"") for text in row[:2]) + 64
        if size >= bytes_max:
            yield _rows(some, placed=placed), repeated
            some, size, repeated = [], 0, 0
            there.clear()
    if some:
        yield _rows(some, placed=placed), repeated


def after(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Lines of `batches_of` in the order of their micro-batches: each call numbers its lines from 1."""
    if batch.schema.equals(MESSAGES):
        return batch
    at = batch.schema.get_field_index("block")
    return batch.set_column(at, batch.schema.field(at), pa.array(np.full(batch.num_rows, number)))


def _rows(rows: Sequence[Sequence[Any]], *, placed: bool) -> pa.RecordBatch:
    schema = MESSAGES if placed else LINES
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _line(line: Any, number: int) -> tuple[Any, ...]:
    return _bytes(line, "a line"), None, None, None, None, number


def _message(record: Any) -> tuple[Any, ...]:
    names = ("value", "key", "timestamp", *_OF_RECORDS)
    no_message = record is None or isinstance(record, str | bytes)
    found = dict.fromkeys(names) if no_message else {name: _part(record, name) for name in names}
    if any(found[name] is None for name in _OF_RECORDS):
        raise InvalidUpdates(
            f"a {type(record).__name__} is neither a line nor a message of Kafka: give texts or bytes, or "
            "what has topic, partition, offset, value and, if there is one, key"
        )
    stamp = found["timestamp"]
    # The client of Confluent gives the kind of the moment with it.
    stamp = stamp[1] if isinstance(stamp, tuple) else stamp
    if not isinstance(found["topic"], str):
        raise InvalidUpdates(f"the topic of a message is {found['topic']!r}, and not a text")
    for name, number, bits in (
        ("partition", found["partition"], 31),
        ("offset", found["offset"], 63),
        ("timestamp", stamp or 0, 63),
    ):
        if type(number) is not int or not -1 <= number < 1 << bits:
            raise InvalidUpdates(
                f"the {name} of a message is {number!r}, and not a whole number of {bits} bits"
            )
    value, key = (_bytes(found[name], name) for name in ("value", "key"))
    return value, key, None, None, stamp or 0, found["offset"], found["topic"], found["partition"]


def _part(record: Any, name: str) -> Any:
    found = record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)
    return found() if callable(found) else found


def _bytes(text: Any, what: str) -> bytes | None:
    if isinstance(text, str):
        # Halves of a character stay: such a line is then refused, as it is no UTF-8.
        return text.encode("utf-8", "surrogatepass")
    if text is None or isinstance(text, bytes):
        return text
    raise InvalidUpdates(f"{what} is a {type(text).__name__}, and not text or bytes")
