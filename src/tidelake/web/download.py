"""Rows as a file that a browser saves, written while they are read: memory holds a batch or two.

Owns the formats; must not know requests.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tidelake.data.answer.rows import Rows
from tidelake.data.kernel.types import UNFIT
from tidelake.errors import UsageError

Format: TypeAlias = Literal["csv", "parquet"]
MEDIA_TYPES: dict[Format, str] = {"csv": "text/csv; charset=utf-8", "parquet": "application/octet-stream"}


def format_of(text: str) -> Format:
    """The format of this name."""
    match text:
        case "csv" | "parquet":
            return text
        case _:
            raise UsageError(f"format={text[:20]!r} must be csv or parquet")


class _Written:
    """A file that keeps what was written since it was last asked."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""

    def taken(self) -> bytes:
        found = b"".join(self._pieces)
        self._pieces.clear()
        return found


def pieces(rows: Rows, format_: Format) -> Iterator[bytes]:
    """The bytes of a file with the rows; the first piece is there before any row is sent."""
    try:
        yield from _pieces(rows, format_)
    except UNFIT as error:
        reason = str(error).split("\n", 1)[0]
        raise UsageError(f"{format_} cannot hold these rows: {reason}; choose the other format") from error
    finally:
        rows.close()


def _pieces(rows: Rows, format_: Format) -> Iterator[bytes]:
    into = _Written()
    file = pa.PythonFile(into, mode="w")
    made = pa.csv.CSVWriter(file, rows.schema) if format_ == "csv" else pq.ParquetWriter(file, rows.schema)
    with made as writer:
        for batch in rows:
            writer.write_batch(batch)
            if piece := into.taken():
                yield piece
    yield into.taken()


def disposition(name: str, format_: Format) -> str:
    """What tells a browser to save an answer under the name of a collection."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name).lstrip(".")
    plain = plain or "rows"
    return f"attachment; filename=\"{plain}.{format_}\"; filename*=UTF-8''{quote(name, safe='')}.{format_}"
