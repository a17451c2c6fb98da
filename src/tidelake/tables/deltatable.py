"""Delta Lake tables by the library `deltalake` (delta-rs); needs the extra `delta`.

The mark of a mirror is two transaction identifiers of the Delta protocol, for the time and for the schema: an
application id and a number, kept in the log and its checkpoints. Two commits from one version with the same
id exclude each other.
"""

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidelake.errors import UsageError
from tidelake.tables.target import Holds, Mark, changed_meanwhile

_NEW = "_tidelake_new"
_SCHEMA = "/schema"


def _check_directory(place: str) -> None:
    """Refuse a file where a Delta table is to be."""
    if os.path.isfile(_local(place)):
        raise UsageError(f"{place!r} is a file: give a directory for the Delta table")


def _local(place: str) -> str:
    """The path of a place in this file system; a URL is its own text, which no path is."""
    url = urlsplit(place)
    return unquote(url.path) if url.scheme == "file" else place


def _listed(place: str) -> list[str]:
    return os.listdir(_local(place)) if os.path.isdir(_local(place)) else []


def _left_behind(name: str) -> bool:
    """Whether a file may be of a first run that was killed before its commit."""
    return name == "_delta_log" or (name.startswith("part-") and name.endswith(".parquet"))


class DeltaTarget:
    """A Delta table that is written as a mirror."""

    def __init__(self, place: str, options: Mapping[str, str]) -> None:
        """Take the place of a table and the options of its store."""
        self.place, self._options = place, dict(options)

    def exists(self) -> bool:
        """Whether there is a Delta table."""
        _check_directory(self.place)
        if DeltaTable.is_deltatable(self.place, self._options):
            return True
        if any(not _left_behind(name) for name in _listed(self.place)):
            raise UsageError(f"{self.place!r} holds other files: choose an empty directory for the table")
        return False

    @cached_property
    def _table(self) -> DeltaTable:
        """The version whose mark is read and which is written to: another commit since then is a conflict."""
        return DeltaTable(self.place, storage_options=self._options)

    def mark(self, collection: str, holds: Holds) -> Mark | None:
        """The numbers of the transaction identifiers."""
        of = _application(collection, holds)
        through, schema_id = map(self._table.transaction_version, (of, of + _SCHEMA))
        if through is None or schema_id is None:
            return None
        return Mark(collection, holds, through, schema_id)

    def schema(self) -> pa.Schema:
        """The columns of the newest version."""
        return _arrow_schema(self._table)

    def overwrite(self, rows: pa.RecordBatchReader, mark: Mark) -> None:
        """Write all rows as a new version; earlier ones stay until the table is vacuumed."""
        self._write(rows, mark, mode="overwrite" if self.exists() else "error")

    def append(self, rows: pa.RecordBatchReader, mark: Mark) -> None:
        """Add files."""
        self._write(rows, mark, mode="append")

    def replace_keys(self, keys: pa.Table, rows: pa.Table, mark: Mark) -> None:
        """Merge: a key deletes all rows that have it, and new rows match nothing, so they are inserted."""
        if not len(keys):
            # The library does not commit a merge that changes nothing, and the mark would stay behind.
            self.append(rows.to_reader(), mark)
            return
        source = pa.concat_tables(
            [
                keys.append_column(_NEW, pa.array([False] * len(keys), pa.bool_())),
                rows.append_column(_NEW, pa.array([True] * len(rows), pa.bool_())),
            ],
            promote_options="default",
        )
        same = [f"(target.{_quoted(n)} IS NOT DISTINCT FROM source.{_quoted(n)})" for n in keys.column_names]
        merge = self._table.merge(
            source,
            " AND ".join([f"(NOT source.{_NEW})", *same]),
            source_alias="source",
            target_alias="target",
            commit_properties=_properties(mark),
        )
        inserted = {_quoted(name): f"source.{_quoted(name)}" for name in rows.column_names}
        try:
            merge.when_matched_delete().when_not_matched_insert(inserted, f"source.{_NEW}").execute()
        except CommitFailedError as error:
            raise changed_meanwhile(self.place, error) from error

    def _write(self, rows: pa.RecordBatchReader, mark: Mark, *, mode: Any) -> None:
        try:
            write_deltalake(
                self._table if self.exists() else self.place,
                rows,
                mode=mode,
                schema_mode="overwrite" if mode == "overwrite" else None,
                storage_options=self._options,
                commit_properties=_properties(mark),
            )
        except CommitFailedError as error:
            raise changed_meanwhile(self.place, error) from error


class DeltaVersions:
    """The versions of a Delta table that its log still has."""

    def __init__(self, place: str, options: Mapping[str, str]) -> None:
        """Take the place of a table and the options of its store."""
        self._place, self._options = place, dict(options)
        _check_directory(place)
        if not DeltaTable.is_deltatable(place, self._options):
            raise UsageError(f"there is no Delta table at {place!r}")
        table = DeltaTable(place, storage_options=self._options)
        self.id = f"delta-{table.metadata().id}"
        found = table.history()
        self._times_ms = {int(one["version"]): int(one["timestamp"]) for one in found}

    def numbers(self) -> list[int]:
        """Their numbers, in order."""
        return sorted(self._times_ms)

    def time_ms(self, number: int) -> int:
        """When a version was committed, in milliseconds of the epoch."""
        return self._times_ms[number]

    def rows(self, number: int) -> pa.RecordBatchReader:
        """The contents of a version, as a stream."""
        table = DeltaTable(self._place, version=number, storage_options=self._options)
        return pa.RecordBatchReader.from_stream(table.scan())


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _application(collection: str, holds: Holds) -> str:
    return f"tidelake/{holds}/{collection}"


def _properties(mark: Mark) -> CommitProperties:
    of = _application(mark.collection, mark.holds)
    numbers = [Transaction(of, mark.through), Transaction(of + _SCHEMA, mark.schema_id)]
    return CommitProperties(app_transactions=numbers, custom_metadata={"tidelake.through": str(mark.through)})


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
