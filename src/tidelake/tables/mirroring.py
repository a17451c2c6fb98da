"""Mirrors: tables of other formats with the contents or the changes of a collection, kept up to date.

Owns which rows are written and what the table says of itself; `deltatable` and `icebergtable` write them.

INVARIANT: the time up to which a table has the collection is stored by the commit that brings it there, so a
run that is killed, or repeated, or that meets another one, adds nothing twice and leaves nothing out.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

import pyarrow as pa

from tidelake.data.answer.rows import optional
from tidelake.data.answer.tablerows import expanded
from tidelake.data.kernel.types import row_schema, update_schema
from tidelake.errors import HistoryCompacted, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.model.instants import TimeLike
from tidelake.model.schema import DIFF
from tidelake.tables.plaintypes import as_plain, plain_schema
from tidelake.tables.target import Holds, Mark, MirrorTarget, TableFormat

# A condition on keys is evaluated for each row, and is a tree in memory: above this, all rows are written.
_KEYS_MAX = {"delta": 1_000_000, "iceberg": 1_000}


@dataclass(frozen=True)
class MirrorReport:
    """What a run of a mirror did.

    Attributes:
        table: place of the table.
        format: its format.
        holds: whether it has the contents or all changes.
        through: the time up to which it has them now.
        after: the time up to which it had them before; None if all was written.
        keys: number of keys whose rows were replaced; 0 if all was written.
        rows: number of rows written.
    """

    table: str
    format: TableFormat
    holds: Holds
    through: int
    after: int | None
    keys: int
    rows: int


def mirror(
    collection: Collection,
    table: str,
    *,
    format: TableFormat,  # noqa: A002 - as in an export
    holds: Holds = "contents",
    as_of: TimeLike | None = None,
    columns: Sequence[str] | None = None,
    afresh: bool = False,
    options: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> MirrorReport:
    """Bring a table of Delta Lake or Iceberg to the contents or changes of a collection at a time.

    The first run makes the table. Later runs write only what has changed since: rows of the keys that have
    changed are deleted and added in one commit (`"contents"`), or changes are added (`"changes"`). Each run
    is one commit of the table, which also stores the time, so that a run may be killed and repeated.

    Args:
        collection: the collection. Its times must not be tuples.
        table: the place of a Delta table, a path or URL; or `catalog.namespace.table` for Iceberg.
        format: `"delta"` or `"iceberg"`.
        holds: `"contents"`: a row as often as its multiplicity, which must not be negative. `"changes"`: each
            change once, with `_time` and `_diff`, from `since` on.
        as_of: the time; default: the last closed one. If the table is there already, nothing is written.
        columns: key and value columns of the table, among them all key columns; default: all.
        afresh: write all rows, also if the table has an earlier time, or is no mirror of this collection.
        options: of the store of a Delta table (`storage_options`), or of the catalog of an Iceberg table.
        timeout_s: how long to wait for the time to be closed.

    Returns:
        What was done. Keys that have changed, and their rows, are held in memory; so many keys that a merge
        would cost more than writing all rows (1,000 for Iceberg, a million for Delta) write all rows.

    Raises:
        UsageError: the library is not installed; the table has other rows, other columns or a later time; or
            another process has written it meanwhile. Says what to do.
        HistoryCompacted: the changes since the time of the table are no longer kept: write it afresh.
    """
    if not collection.domain.total_order:
        raise UsageError(
            f"a mirror needs times that follow each other, and those of {collection.name!r} do not"
        )
    if holds not in get_args(Holds):
        raise UsageError(f"holds={holds!r}: a mirror holds {' or '.join(get_args(Holds))}")
    target = _target(table, format, options or {})
    read = times_of(collection).read
    # Reading the contents waits for the time to be closed.
    through = cast(int, collection.last_time() if as_of is None else read(as_of, "as_of"))
    work = _Work(collection, target, holds, through, columns=columns, timeout_s=timeout_s)
    after = None if afresh or not target.exists() else work.had()
    if after is None:
        rows = work.write_all()
        return MirrorReport(table, format, holds, through, None, 0, rows)
    if after == through:
        return MirrorReport(table, format, holds, through, after, 0, 0)
    try:
        if holds == "changes":
            return MirrorReport(table, format, holds, through, after, 0, work.add_changes(after))
        keys = work.changed_keys(after)
    except HistoryCompacted as error:
        remedy = f"table {table} has earlier times only: write it afresh (afresh=True)"
        raise HistoryCompacted(error.asked, error.since, remedy).of(collection.domain.unit) from error
    if len(keys) > _KEYS_MAX[format]:
        return MirrorReport(table, format, holds, through, None, 0, work.write_all())
    return MirrorReport(table, format, holds, through, after, len(keys), work.replace(keys))


def _target(table: str, format_: str, options: Mapping[str, str]) -> MirrorTarget:
    """The table to write."""
    check_installed(format_)
    if format_ == "delta":
        from tidelake.tables.deltatable import DeltaTarget

        return DeltaTarget(table, options)
    from tidelake.tables.icebergtable import IcebergTarget

    return IcebergTarget(table, options)


def check_installed(format_: str) -> None:
    """Refuse a format that is unknown, or whose library is not installed."""
    if format_ not in get_args(TableFormat):
        raise UsageError(f"format={format_!r} is unknown: use {' or '.join(get_args(TableFormat))}")
    library = {"delta": "deltalake", "iceberg": "pyiceberg"}[format_]
    optional(library, format_)


class _Work:
    """The rows of one run."""

    def __init__(
        self,
        collection: Collection,
        target: MirrorTarget,
        holds: Holds,
        through: int,
        *,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._collection, self._target, self._timeout_s = collection, target, timeout_s
        # The columns are those of now, whatever the handle has seen.
        self._state = collection.state()
        self._mark = Mark(collection.id, holds, through, self._state.schema_id)
        schema = self._state.schema
        whole = update_schema(schema, collection.domain)
        self._key = [column.name for column in schema.key]
        present = [column.name for column in schema.columns]
        names = present if columns is None else list(columns)
        absent = [name for name in self._key if name not in names]
        if absent:
            raise UsageError(f"columns={names} leaves key column {absent[0]!r} out, which a mirror needs")
        unknown = [name for name in names if name not in present]
        if unknown:
            raise UsageError(f"collection {collection.name!r} has no column {unknown[0]!r}")
        self._names = names
        extra = [] if holds == "contents" else [*collection.domain.columns, DIFF]
        self._schema = plain_schema(pa.schema([whole.field(name) for name in (*names, *extra)]))
        self._rows = 0
        self._failure: Exception | None = None

    def had(self) -> int:
        """The time that the table has."""
        mark, target, name = self._mark, self._target, self._collection.name
        afresh = "write it afresh (afresh=True), which replaces its rows"
        found = target.mark(mark.collection, mark.holds)
        if found is None:
            raise UsageError(f"table {target.place} is no mirror of the {mark.holds} of {name!r}: {afresh}")
        if found.through > mark.through:
            text = self._collection.domain.text
            raise UsageError(
                f"table {target.place} has times through {text(found.through)}, later than "
                f"{text(mark.through)}: {afresh}"
            )
        had = {field.name: field.type for field in plain_schema(target.schema())}
        wanted = {field.name: field.type for field in self._schema}
        if had != wanted:
            odd = next(n for n in (*wanted, *had) if had.get(n) != wanted.get(n))
            raise UsageError(
                f"column {odd!r} is {had.get(odd, 'absent')} in table {target.place}, and "
                f"{wanted.get(odd, 'absent')} in the mirror: {afresh}"
            )
        # The same names may be those of other columns: two may have changed names, or one came back.
        then = self._state.schemas.get(found.schema_id)
        before = {} if then is None else {column.name: column.id for column in then.schema.columns}
        other = [one.name for one in self._state.schema.columns if before.get(one.name) != one.id]
        renamed = [one for one in other if one in self._names]
        if renamed:
            raise UsageError(
                f"column {renamed[0]!r} of table {target.place} is not the column of {name!r} that has this "
                f"name now: {afresh}"
            )
        return found.through

    def write_all(self) -> int:
        """Write all rows, and return how many."""
        through = self._mark.through
        if self._mark.holds == "contents":
            found = self._collection.snapshot(through, columns=self._names, timeout_s=self._timeout_s)
            batches = (piece for batch in found for piece in expanded(batch))
        else:
            start = self._collection.since
            found = self._collection.updates(
                start, through + 1, columns=self._names, timeout_s=self._timeout_s
            )
            batches = (batch for batch in found)
        with found, self._told():
            self._target.overwrite(self._reader(batches), self._mark)
        return self._rows

    def add_changes(self, after: int) -> int:
        """Add the changes after a time, and return how many."""
        end = self._mark.through + 1
        with (
            self._collection.updates(after + 1, end, columns=self._names, timeout_s=self._timeout_s) as found,
            self._told(),
        ):
            self._target.append(self._reader(found), self._mark)
        return self._rows

    def changed_keys(self, after: int) -> pa.Table:
        """The keys whose rows differ between the time of the table and the new one; each once."""
        key = self._key
        rows = row_schema(self._state.schema)
        kinds = plain_schema(pa.schema([rows.field(name) for name in key]))
        pieces = []
        with self._collection.changes(
            after, self._mark.through, columns=key, timeout_s=self._timeout_s
        ) as found:
            for batch in found:
                # Sorted by key: a key may be in two batches, but is rarely in more.
                pieces.append(_distinct(pa.Table.from_batches([batch]).select(key), kinds))
        whole = pa.concat_tables(pieces) if pieces else _empty(rows, key)
        return _distinct(whole, kinds)

    def replace(self, keys: pa.Table) -> int:
        """Replace the rows of some keys, and return how many there are now."""
        table = self._collection.lookup(keys, self._mark.through, columns=self._names, times="int64")
        rows = self._reader(piece for batch in table.to_batches() for piece in expanded(batch)).read_all()
        kinds = pa.schema([self._schema.field(name) for name in keys.column_names])
        plain = pa.Table.from_batches(as_plain(keys.to_batches(), kinds), kinds)
        self._target.replace_keys(plain, rows, self._mark)
        return len(rows)

    def _check_columns(self) -> None:
        """Refuse rows that were read while the columns changed: they may be those of other columns."""
        if self._collection.state().schema_id != self._mark.schema_id:
            raise UsageError(
                f"the columns of {self._collection.name!r} changed while it was read, and nothing was "
                "written: run the mirror again"
            )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raise the error of a read as it was: on its way through a library it becomes a text."""
        try:
            yield
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise

    def _reader(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        def counted() -> Iterator[pa.RecordBatch]:
            try:
                for batch in as_plain(batches, self._schema):
                    self._rows += batch.num_rows
                    yield batch
                self._check_columns()
            except Exception as error:
                self._failure = error
                raise

        return pa.RecordBatchReader.from_batches(self._schema, counted())


def _empty(schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    return pa.schema([schema.field(name) for name in names]).empty_table()


def _distinct(keys: pa.Table, kinds: pa.Schema) -> pa.Table:
    """Each key once, in order."""
    if not len(keys):
        return keys
    plain = pa.Table.from_batches(as_plain(keys.to_batches(), kinds), kinds)
    numbered = plain.append_column("_tidelake_row", pa.array(range(len(plain)), pa.int64()))
    found = numbered.group_by(plain.column_names, use_threads=False).aggregate([("_tidelake_row", "min")])
    return keys.take(found.column("_tidelake_row_min"))
