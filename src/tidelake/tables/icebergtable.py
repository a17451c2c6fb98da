"""Iceberg tables by the library `pyiceberg`; needs the extra `iceberg`.

The mark of a mirror is properties of the table, set by the transaction that writes the rows.

INVARIANT: a mirror's commit is tried once (`commit.retry.num-retries` of the table is 0), because the library
would otherwise repeat it on a table that another process has brought up to the same time meanwhile.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import (
    AlwaysFalse,
    And,
    BooleanExpression,
    EqualTo,
    In,
    IsNaN,
    IsNull,
    Or,
    Reference,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import ancestors_of

from tidelake.errors import UsageError
from tidelake.tables.plaintypes import plain_schema
from tidelake.tables.target import Holds, Mark, changed_meanwhile

_RETRIES = "commit.retry.num-retries"
_SCHEMA = ".schema"


class IcebergTarget:
    """An Iceberg table that is written as a mirror."""

    def __init__(self, place: str, options: Mapping[str, str]) -> None:
        """Take `catalog.namespace.table` and the properties of the catalog."""
        self.place = place
        self._catalog, self._name = _parts(place, options)

    def exists(self) -> bool:
        """Whether the catalog has the table."""
        return bool(self._catalog.table_exists(self._name))

    def mark(self, collection: str, holds: Holds) -> Mark | None:
        """The mark in the properties."""
        of = _property(collection, holds)
        through, schema_id = map(self._table.properties.get, (of, of + _SCHEMA))
        if through is None or schema_id is None:
            return None
        return Mark(collection, holds, int(through), int(schema_id))

    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return plain_schema(schema_to_pyarrow(self._table.schema(), include_field_ids=False))

    def overwrite(self, rows: pa.RecordBatchReader, mark: Mark) -> None:
        """Create the table, or delete all rows and add others."""
        if not self.exists():
            try:
                created = self._catalog.create_table_transaction(
                    self._name, schema=rows.schema, properties={_RETRIES: "0"}
                )
                created.append(rows)
                _commit(created, mark)
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise changed_meanwhile(self.place, error) from error
            return
        if self.schema() != rows.schema:
            raise UsageError(
                f"table {self.place} has other columns than the mirror: drop it, or mirror to another one"
            )
        transaction = self._table.transaction()
        transaction.overwrite(rows)
        self._finish(transaction, mark)

    def append(self, rows: pa.RecordBatchReader, mark: Mark) -> None:
        """Add files."""
        transaction = self._table.transaction()
        transaction.append(rows)
        self._finish(transaction, mark)

    def replace_keys(self, keys: pa.Table, rows: pa.Table, mark: Mark) -> None:
        """Rewrite the files that have one of the keys, without them, and add rows."""
        transaction = self._table.transaction()
        if len(keys):
            transaction.delete(_has_one_of(keys))
        if len(rows):
            transaction.append(rows)
        self._finish(transaction, mark)

    @cached_property
    def _table(self) -> Table:
        """The table as it is when its mark is read: another snapshot since then is a conflict."""
        table = self._catalog.load_table(self._name)
        if table.properties.get(_RETRIES) != "0":
            with table.transaction() as setting:
                setting.set_properties({_RETRIES: "0"})
            table = self._catalog.load_table(self._name)
        return table

    def _finish(self, transaction: Transaction, mark: Mark) -> None:
        try:
            _commit(transaction, mark)
        except CommitFailedException as error:
            raise changed_meanwhile(self.place, error) from error


class IcebergVersions:
    """The snapshots of the main branch that an Iceberg table still has; the number is the sequence number."""

    def __init__(self, place: str, options: Mapping[str, str]) -> None:
        """Take `catalog.namespace.table` and the properties of the catalog."""
        catalog, name = _parts(place, options)
        try:
            self._table = catalog.load_table(name)
        except NoSuchTableError as error:
            raise UsageError(f"there is no Iceberg table {place!r}") from error
        self.id = f"iceberg-{self._table.metadata.table_uuid}"
        newest = self._table.current_snapshot()
        found = [] if newest is None else ancestors_of(newest, self._table.metadata)
        # Tables of format 1 have no sequence numbers.
        listed = list(reversed([*found]))
        self._snapshots = {one.sequence_number or i: one for i, one in enumerate(listed)}

    def numbers(self) -> list[int]:
        """Their numbers, in order."""
        return sorted(self._snapshots)

    def time_ms(self, number: int) -> int:
        """When a snapshot was made, in milliseconds of the epoch."""
        return int(self._snapshots[number].timestamp_ms)

    def rows(self, number: int) -> pa.RecordBatchReader:
        """The contents of a snapshot, as a stream."""
        return self._table.scan(snapshot_id=self._snapshots[number].snapshot_id).to_arrow_batch_reader()


def _parts(place: str, options: Mapping[str, str]) -> tuple[Catalog, str]:
    catalog, _, name = place.partition(".")
    if "." not in name:
        raise UsageError(f"{place!r} is not the name of an Iceberg table: write catalog.namespace.table")
    return load_catalog(catalog, **options), name


def _property(collection: str, holds: Holds) -> str:
    return f"tidelake.{holds}.{collection}"


def _commit(transaction: Transaction, mark: Mark) -> None:
    of = _property(mark.collection, mark.holds)
    transaction.set_properties({of: str(mark.through), of + _SCHEMA: str(mark.schema_id)})
    transaction.commit_transaction()


def _has_one_of(keys: pa.Table) -> BooleanExpression:
    """The condition that a row has one of the keys."""
    if keys.num_columns == 1:
        (name,) = keys.column_names
        return _is_one_of(name, keys.column(0).to_pylist())
    found: BooleanExpression = AlwaysFalse()
    for row in keys.to_pylist():
        parts = [_is_one_of(name, [value]) for name, value in row.items()]
        found = Or(found, And(*parts))
    return found


def _is_one_of(name: str, values: Sequence[Any]) -> BooleanExpression:
    term = Reference(name)
    plain = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    found: BooleanExpression = AlwaysFalse()
    if len(plain) == 1:
        found = EqualTo(term=term, value=plain[0])
    elif plain:
        found = In(term=term, values=plain)  # type: ignore[arg-type]
    if None in values:
        found = Or(found, IsNull(term=term))
    if len(plain) + values.count(None) < len(values):
        found = Or(found, IsNaN(term=term))
    return found
