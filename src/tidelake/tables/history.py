"""Tables of other formats as collections: each version of a table becomes a time.

INVARIANT: the number of a version is the number of an append of a named writer, whose owner is the table. So
each version is taken once, in order, however often the import is run or killed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import pyarrow as pa

from tidelake.data.kernel.types import data_type
from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.model.evolution import widens
from tidelake.tables.mirroring import check_installed
from tidelake.tables.target import TableFormat

_WRITER = "tidelake-import"


@dataclass(frozen=True)
class HistoryReport:
    """What an import took.

    Attributes:
        collection: name of the collection.
        versions: how many versions were taken now.
        first: number of the first of them; None: there was nothing new.
        last: number of the last version that the collection has.
        through: its time.
        rows: number of rows of these versions that were read.
    """

    collection: str
    versions: int
    first: int | None
    last: int
    through: int
    rows: int


class Versions(Protocol):
    """The versions that a table still has."""

    @property
    def id(self) -> str:
        """An id that no other table has."""

    def numbers(self) -> list[int]:
        """Their numbers, in order."""

    def time_ms(self, number: int) -> int:
        """When a version was committed, in milliseconds of the epoch."""

    def rows(self, number: int) -> pa.RecordBatchReader:
        """The contents of a version, as a stream."""


def import_history(
    lake: Lake,
    collection: str,
    table: str,
    *,
    format: TableFormat,  # noqa: A002 - as in an export
    key: Sequence[str] | None = None,
    time_unit: str = "counter",
    first: int | None = None,
    options: Mapping[str, str] | None = None,
) -> HistoryReport:
    """Take the versions of a table of Delta Lake or Iceberg as times of a collection, each exactly once.

    The first run creates the collection. Later runs take the versions that have come since. The contents at
    the time of a version are its rows; only differences are stored. Rows that others have written into the
    collection are replaced.

    Args:
        lake: the lake.
        collection: name of the collection, which may be there already.
        table: the place of a Delta table, a path or URL; or `catalog.namespace.table` for Iceberg.
        format: `"delta"` or `"iceberg"`.
        key: key columns of a new collection; needed by the first run.
        time_unit: unit of a new collection. `"counter"`: times are the numbers of versions (Delta) or
            the sequence numbers of snapshots (Iceberg). A clock such as `"ms"`: times are those of the
            commits, and a version that is not later than the one before gets the next time.
        first: begin with this version; default: with the oldest that the table still lists.
        options: of the store of a Delta table (`storage_options`), or of the catalog of an Iceberg table.

    Returns:
        What was taken. Each version costs a read of all its rows and of the contents, and one commit. Columns
        that a version adds are added to the collection; a column that a version lacks is null there.

    Raises:
        UsageError: the library is not installed; there is no such table or version; a collection has to be
            created and `key` is missing; or the collection has the history of another table.
        IncompatibleSchema: a column changed its type in a way that the collection cannot follow.
    """
    versions = _versions(table, format, options or {})
    numbers = versions.numbers()
    if not numbers:
        raise UsageError(f"table {table} has no version yet")
    start = numbers[0] if first is None else first
    if start not in numbers:
        raise UsageError(f"first={first}: table {table} has the versions {numbers[0]} to {numbers[-1]}")
    if collection in lake:
        into = lake.collection(collection)
    elif key is None:
        raise UsageError(f"there is no collection {collection!r} yet: name its key columns with key=[...]")
    else:
        if time_unit == "date":
            raise _no_days(collection)
        with versions.rows(start) as shown:
            schema = pa.schema([field.with_nullable(True) for field in shown.schema])
        into = lake.create(collection, schema, key=list(key), time=time_unit)
    if into.domain.unit == "date":
        raise _no_days(collection)
    if into.domain.unit == "tuple":
        raise UsageError(f"times of {collection!r} are {into.domain}, and versions have none such")
    had_by = into.writers().get(_WRITER)
    if had_by is not None and had_by.owner != versions.id:
        raise UsageError(
            f"collection {collection!r} has the versions of another table, {had_by.owner}: import table "
            f"{table} into a collection of its own"
        )
    writer = into.writer(_WRITER, owner=versions.id)
    had = writer.last_sequence
    todo = [n for n in numbers if n >= start and (had is None or n > had)]
    if had is not None and had >= 0 and todo and numbers[0] > had + 1 and first is None:
        raise UsageError(
            f"table {table} no longer lists the versions after {had}, the last one taken; the oldest is "
            f"{numbers[0]}: give first={numbers[0]} to leave the others out"
        )
    rows = 0
    for number in todo:
        with versions.rows(number) as found:
            _follow(into, found.schema)
            counted = _Counted(found, into.schema)
            writer.replace(counted.reader(), time=_time(into, versions, number), sequence=number)
            rows += counted.rows
    last = todo[-1] if todo else (had if had is not None else -1)
    through = cast(int, into.last_time())
    return HistoryReport(collection, len(todo), todo[0] if todo else None, last, through, rows)


def _versions(table: str, format_: str, options: Mapping[str, str]) -> Versions:
    check_installed(format_)
    if format_ == "delta":
        from tidelake.tables.deltatable import DeltaVersions

        return DeltaVersions(table, options)
    from tidelake.tables.icebergtable import IcebergVersions

    return IcebergVersions(table, options)


def _follow(collection: Collection, schema: pa.Schema) -> None:
    """Add the columns that a version has and the collection does not; widen those that it has wider."""
    ours, theirs = collection.schema, {field.name: field for field in schema}
    fields = []
    for field in ours:
        kind = theirs[field.name].type if field.name in theirs else field.type
        wider = widens(data_type(field.type, field.name), data_type(kind, field.name))
        fields.append(field.with_type(kind) if wider else field)
    fields += [f.with_nullable(True) for name, f in theirs.items() if name not in ours.names]
    wanted = pa.schema(fields)
    if wanted != ours:
        collection.evolve(wanted)


def _no_days(name: str) -> UsageError:
    """The refusal of days: versions of one day would take those that follow."""
    return UsageError(
        f"times of {name!r} are days, and there may be several versions in one day: take a collection of "
        "time 'ms', or 'counter'"
    )


def _time(collection: Collection, versions: Versions, number: int) -> int:
    """The time of a version: its own, or the next open one if that is later."""
    domain = collection.domain
    own = number if domain.unit == "counter" else domain.now(versions.time_ms(number))
    return max(own, cast(int, collection.upper.elements[0]))


class _Counted:
    """Rows of a version with the columns of the collection, counted as they are read."""

    def __init__(self, found: pa.RecordBatchReader, schema: pa.Schema) -> None:
        self._found, self._schema, self.rows = found, schema, 0
        self._missing = [field for field in schema if field.name not in found.schema.names]

    def reader(self) -> pa.RecordBatchReader:
        """The rows, as a stream."""
        present = [field for field in self._found.schema if field.name in self._schema.names]
        whole = pa.schema([*present, *self._missing])
        return pa.RecordBatchReader.from_batches(whole, self._batches(present, whole))

    def _batches(self, present: list[pa.Field], whole: pa.Schema) -> Iterator[pa.RecordBatch]:
        for batch in self._found:
            self.rows += batch.num_rows
            columns = [batch.column(field.name) for field in present]
            columns += [pa.nulls(batch.num_rows, field.type) for field in self._missing]
            yield pa.RecordBatch.from_arrays(columns, schema=whole)
