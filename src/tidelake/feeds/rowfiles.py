"""Rows of the files of a directory: JSON lines, CSV and Parquet.

Owns which columns such files have. No value is guessed: those of the collection's columns must fit its types.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.cdc.core.lineerrors import place, shown
from tidelake.data.ingest.astable import first_line
from tidelake.data.ingest.convert import convert
from tidelake.data.json.rows import BadLine, RowReader
from tidelake.data.json.values import loads
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds import csvfile
from tidelake.feeds.lines import BOM, STAY, blocks_of, reading, text_of
from tidelake.lake.api.collection import Collection

R = TypeVar("R")
_BATCH_ROWS = 1 << 14
RowFormat: TypeAlias = Literal["jsonl", "csv", "parquet"]
# Envelopes of change events, and fields by which a line shows that it is one.
_SHAPES = (
    ("debezium", {"op", "after"}),
    ("debezium", {"payload"}),
    ("canal", {"type", "data", "isDdl"}),
    ("maxwell", {"type", "data", "ts"}),
    ("dms", {"metadata", "data"}),
)


def check_row_format(format_: object) -> None:
    """Check the format of files of rows."""
    if format_ == "keyed":
        raise UsageError("format='keyed' is for lines of change events: use jsonl, csv or parquet for rows")
    if format_ not in get_args(RowFormat):
        raise UsageError(f"format={format_!r} is unknown: use {', '.join(get_args(RowFormat))}")


@dataclass(frozen=True)
class RowFiles:
    """Reads files of rows.

    Attributes:
        folder: their directory.
        format: what they are.
        collection: gives its columns their types; None: none does. Other columns are texts in CSV, and have
            the type of the first line's value in JSON.
        prepare: applied to each batch first; None: nothing is.
    """

    folder: Path
    format: RowFormat
    collection: Collection | None
    prepare: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None

    def __post_init__(self) -> None:
        check_row_format(self.format)

    def read(self, names: Sequence[str], check: Callable[[pa.Schema], None]) -> Generator[pa.RecordBatch]:
        """The rows of some files, which have the same columns; no batch if none has columns.

        Args:
            names: the files, in their order.
            check: called with the columns.

        Raises:
            InvalidUpdates: a file cannot be read, or the columns do not fit; names the file.
        """
        columns: pa.Schema | None = None
        for name in names:
            path = self.path(name)
            for rows in self.of(path):
                batch = rows if self.prepare is None else _with_place(path, self.prepare, rows)
                if columns is None:
                    columns = batch.schema
                    _with_place(path, check, columns)
                yield batch if batch.schema.equals(columns) else _with_place(path, _alike, batch, columns)

    def path(self, name: str) -> Path:
        """Where a file is."""
        return (self.folder / name).resolve()

    def columns(self, name: str) -> pa.Schema | None:
        """The columns of a file; None if it has none. Errors as `of`."""
        with closing(self.of(self.path(name))) as rows:
            first = next(rows, None)
        return None if first is None else first.schema

    def of(self, path: Path, begin: int = 0) -> Generator[pa.RecordBatch]:
        """The rows of one file from a number on; the first batch tells the columns.

        Raises:
            InvalidUpdates: the file cannot be read, or has fewer rows; names it.
        """
        with reading(path):
            if self.format == "parquet":
                yield from _of_parquet(path, begin)
            elif path.stat().st_size:
                known = None if self.collection is None else self.collection.update_schema
                if self.format == "csv":
                    rows: Iterator[pa.RecordBatch] = csvfile.batches(path, lambda: text_of(path), known)
                else:
                    rows = self._of_json(path, known or pa.schema([]))
                yield from _after(rows, begin, path)

    def _of_json(self, path: Path, known: pa.Schema) -> Iterator[pa.RecordBatch]:
        reader, before = None, 0
        with text_of(path) as text:
            for block in blocks_of(text):
                lines = block.splitlines()
                if not before:
                    lines[0] = lines[0].removeprefix(BOM)
                rows = [(number, line) for number, line in enumerate(lines, before + 1) if line.strip()]
                before += len(lines)
                if not rows:
                    continue
                if reader is None:
                    reader = RowReader(first_columns(rows[0][1], known, str(path)))
                try:
                    yield reader.read(pa.array([line for _, line in rows], pa.binary()))
                except BadLine as bad:
                    number, line = rows[bad.line]
                    where = place(path.as_uri(), number)
                    raise InvalidUpdates(
                        f"cannot read a row: {bad.reason}; {where} line={shown(line)}"
                    ) from None


def _of_parquet(path: Path, begin: int) -> Iterator[pa.RecordBatch]:
    try:
        # A page that has a checksum must have the bytes that it was made of.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield _no_rows(file.schema_arrow)
            group = 0
            while group < file.num_row_groups and (rows := file.metadata.row_group(group).num_rows) <= begin:
                group, begin = group + 1, begin - rows
            groups = [*range(group, file.num_row_groups)]
            yield from _after(file.iter_batches(_BATCH_ROWS, row_groups=groups), begin, path)
    except pa.ArrowException as error:
        raise InvalidUpdates(
            f"{place(path.as_uri())} cannot be read as parquet: {first_line(error)}"
        ) from error


def _after(rows: Iterable[pa.RecordBatch], count: int, path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a file without the first ones."""
    for batch in rows:
        gone = min(count, batch.num_rows)
        count -= gone
        yield batch.slice(gone)
    if count:
        raise InvalidUpdates(f"{place(path.as_uri())} has {count} fewer rows than were taken of it: {STAY}")


def _no_rows(columns: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=columns)


def _alike(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns of the files before, in their order."""
    told = [{field.name: str(field.type) for field in one} for one in (batch.schema, columns)]
    if told[0] != told[1] or len(batch.schema) != len(columns):
        raise InvalidUpdates(
            f"the columns are {told[0]}, and those of files before {told[1]}: take files of other columns "
            "apart, with max_files_per_trigger=1"
        )
    return convert(batch, columns)


def _with_place(path: Path, work: Callable[..., R], *given: Any) -> R:
    """Work on the rows of a file, which is named in its errors."""
    try:
        return work(*given)
    except InvalidUpdates as error:
        raise InvalidUpdates(f"{error}; {place(path.as_uri())}") from error


def first_columns(line: bytes | str, known: pa.Schema, where: str) -> pa.Schema:
    """The columns of the first line of JSON."""
    kinds = {bool: pa.bool_(), int: pa.int64(), Decimal: pa.float64(), str: pa.string()}
    try:
        row = loads(line if isinstance(line, str) else line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidUpdates(f"the first line at {where!r} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise InvalidUpdates(f"the first line at {where!r} is not a JSON object")
    others = row.keys() - set(known.names)
    envelope = next((name for name, shape in _SHAPES if others >= shape), None)
    if envelope is not None:
        raise InvalidUpdates(f"the first line at {where!r} is a change event: give the envelope {envelope!r}")
    fields = []
    for name, value in row.items():
        if name not in known.names and type(value) not in kinds:
            raise InvalidUpdates(f"the first line at {where!r} has {name!r}, which is no column")
        fields.append(known_field(known, name, kinds.get(type(value), pa.string())))
    return pa.schema(fields)


def known_field(known: pa.Schema, name: str, other: pa.DataType) -> pa.Field:
    """The collection's field for a column; if it has none, a field of type `other`."""
    return known.field(name) if name in known.names else pa.field(name, other)
