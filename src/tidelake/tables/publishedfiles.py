"""What the metadata of published tables is made of, whatever their format: files, versions, columns."""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.errors import UsageError
from tidelake.model import names
from tidelake.store.protocols import BlobStore

# The property of a table in which its versions are listed.
VERSIONS = "tidelake.versions"
# A file of rows that stand apart has about so many bytes in memory.
_FILE_BYTES = 128 * 1024 * 1024
_FIELD_ID = b"PARQUET:field_id"
_FILES = "file://"
# Fields within a column get ids from here on: a column's own id is less.
_NESTED_IDS = 1_000_000
_PER_COLUMN = 1_000


@dataclass(frozen=True)
class PublishedVersion:
    """A version of a published table, as the table itself tells it.

    Attributes:
        number: of the version; its files have it in their names.
        seqno: of the state of the collection that it names parts of.
        place: where the lake was then: parts are named by their whole URLs.
        table: random; the same in all versions of a table.
        features: of the format that this version or an earlier one needs.
    """

    number: int
    id: str
    seqno: int
    through: int
    schema_id: int
    place: str
    made_ms: int
    table: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableFile:
    """A file with rows of a table.

    Attributes:
        gone: numbers of the rows that are no rows of the table, ascending.
    """

    url: str
    size_bytes: int
    rows: int
    gone: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class PublishedContents:
    """The rows and columns of a version.

    Attributes:
        names: by the id of a column of now or of before, the name that it has in all files.
        times: names of the columns with times, which parts have and the table has not.
    """

    schema: pa.Schema
    files: tuple[TableFile, ...]
    names: Mapping[int, str]
    times: Sequence[str]

    @property
    def renamed(self) -> bool:
        """Whether a column of now has another name in the files."""
        return any(self.names[field_id(column)] != column.name for column in self.schema)


class TableFolder:
    """The folder of a published table in the store of the lake."""

    def __init__(self, blobs: BlobStore, shard_id: str, kind: str) -> None:
        """Take the store, and which table it is."""
        if blobs.url is None:
            raise UsageError("a lake in memory cannot be published: only this process can read it")
        self._blobs, self._prefix = blobs, names.published(shard_id, kind)
        # One lake has one place, also if it is opened by a link.
        root = blobs.url.removeprefix(_FILES)
        self.place = blobs.url if root == blobs.url else f"{_FILES}{os.path.realpath(root)}"
        self.url = f"{self.place}/{self._prefix[:-1]}"

    def at(self, name: str) -> str:
        """The URL of a file."""
        return f"{self.url}/{name}"

    def put(self, name: str, data: bytes) -> None:
        """Write a file; see `BlobStore.put`."""
        self._blobs.put(self._prefix + name, data)

    def get(self, name: str) -> bytes:
        """The bytes of a file."""
        return self._blobs.get(self._prefix + name)

    def list(self, under: str = "") -> list[str]:
        """The names of the files that begin with a text; default: of all files."""
        found = self._blobs.list(self._prefix + under)
        return [info.name.removeprefix(self._prefix) for info in found]

    def delete(self, name: str) -> None:
        """Delete a file."""
        self._blobs.delete(self._prefix + name)

    def delete_unless(self, needed: Callable[[str], bool]) -> None:
        """Delete the files that are not needed, by their names."""
        for name in self.list():
            if not needed(name):
                self.delete(name)

    def put_rows(
        self, stem: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[TableFile]:
        """Write rows as files, whose names begin with `stem`; none if there are no rows."""
        for number, table in enumerate(_pieces(schema, batches)):
            sink = io.BytesIO()
            pq.write_table(table, sink, compression="zstd", store_schema=False)
            name = f"{stem}-{number}.parquet"
            self.put(name, sink.getvalue())
            yield TableFile(self.at(name), sink.tell(), len(table))


class PublishedTable(Protocol):
    """The metadata of a published table of one format, in its folder."""

    def read(self) -> tuple[Sequence[PublishedVersion], int]:
        """The versions that can be read, oldest first, and the number of the next one."""

    def commit(
        self, kept: Sequence[PublishedVersion], new: PublishedVersion, what: PublishedContents
    ) -> None:
        """Write a version, and let go those that are not kept. Nothing of it is seen before it is whole."""

    def finish(self, kept: Sequence[PublishedVersion]) -> None:
        """Write what only makes reading easier, and delete files that the versions do not need.

        Several processes may do so at once, also for versions that are no longer the last.
        """

    def metadata(self, newest: PublishedVersion) -> str:
        """Where a reader begins."""

    def features(self, what: PublishedContents) -> tuple[str, ...]:
        """What a reader must know to read this."""


def encoded(versions: Iterable[PublishedVersion]) -> str:
    """Versions as a table tells them."""
    return json.dumps([asdict(one) for one in versions])


def decoded(text: str) -> tuple[PublishedVersion, ...]:
    """The versions that a table tells."""
    return tuple(PublishedVersion(**{**one, "features": tuple(one["features"])}) for one in json.loads(text))


def with_ids(schema: pa.Schema, ids: dict[str, int]) -> pa.Schema:
    """Columns with field ids: those of the collection's columns, and of fields within them others."""
    return pa.schema(
        [_numbered(f, ids[f.name], count(_NESTED_IDS + ids[f.name] * _PER_COLUMN)) for f in schema]
    )


def field_id(column: pa.Field) -> int:
    """The id of a field."""
    return int(column.metadata[_FIELD_ID])


def _numbered(one: pa.Field, id_: int, more: Iterator[int]) -> pa.Field:
    kind = one.type
    if pa.types.is_struct(kind):
        inner = [kind.field(i) for i in range(kind.num_fields)]
        kind = pa.struct([_numbered(f, next(more), more) for f in inner])
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, next(more), more))
    return pa.field(one.name, kind, one.nullable, {_FIELD_ID: str(id_).encode()})


def _pieces(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(
            pa.RecordBatch.from_arrays(
                [c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)], schema=schema
            )
        )
        if sum(one.nbytes for one in held) >= _FILE_BYTES:
            yield pa.Table.from_batches(held, schema)
            held = []
    if held:
        yield pa.Table.from_batches(held, schema)


def number_of(name: str) -> int | None:
    """The version's number in the name of a file of a table; None: it has none."""
    digits = name.rpartition("/")[2].removeprefix("v").partition(".")[0].partition("-")[0]
    return int(digits) if digits.isdigit() else None


def belongs(name: str, kept: Sequence[PublishedVersion]) -> bool:
    """Whether a file is one of these versions', or perhaps of a version that is being written."""
    number = number_of(name)
    if number is None or number > kept[-1].number:
        return True
    stem = name.rpartition("/")[2]
    of = next((one for one in kept if one.number == number), None)
    return of is not None and ("-" not in stem or of.id in stem)
