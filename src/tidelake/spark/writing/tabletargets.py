"""The collections that the tables of a change feed go to.

Owns what the collection of a table is called, how it is created and evolved from what the events say of its
columns, and the register: a collection with one row for each table, which remembers both.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from tidelake.data.types import data_type
from tidelake.errors import CollectionNotFound, IncompatibleSchema, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.model.evolution import widens
from tidelake.model.frontier import Frontier
from tidelake.spark.columns import frame_schema
from tidelake.spark.envelopes.connect import columns_of, key_fields, row_fields
from tidelake.spark.envelopes.routes import Table, TableColumns
from tidelake.spark.envelopes.timeline import Timeline
from tidelake.spark.writing.tablelines import TableEvents, TableTarget

R = TypeVar("R")
# What Kafka Connect says of each column.
Fields = list[dict[str, Any]]
# What the register says of tables: collection and columns of each, by table.
Entries = dict[str, tuple[str, str | None]]

_REGISTER = pa.schema(
    [pa.field("table", pa.string(), nullable=False), ("collection", pa.string()), ("columns", pa.string())]
)
_START = Frontier.of(0)
_LINES = frame_schema(pa.schema([("value", pa.string())]))


@dataclass
class TableTargets:
    """Finds the collection of each table, and lets it have the columns that the events have.

    Attributes:
        lake: the lake of the collections.
        into: name of the register, and the beginning of the names of the collections.
        time_unit: what the times of new collections count.
        names: names of collections, by table.
        keys: key columns, by table, or of all tables; None: as the keys of the messages say.
        options: options of the envelope `debezium`.
    """

    lake: Lake
    into: str
    time_unit: str
    names: Mapping[str, str]
    keys: Mapping[str, Sequence[str]] | Sequence[str] | None
    options: Mapping[str, object]
    _known: Entries = field(default_factory=dict)
    # Opened once for each run of a stream: a name takes a look into the catalog, and the log of a shard.
    _opened: dict[str, Collection] = field(default_factory=dict, repr=False)

    @property
    def register(self) -> Collection:
        """The collection with one row for each table; it is created if there is none."""
        if self.into not in self._opened:
            made = self.lake.create(self.into, _REGISTER, key=["table"], time=self.time_unit)
            self._opened[self.into] = made
        return self._opened[self.into]

    def load(self, register: Collection) -> None:
        """Read the register, and let names lead to where they lead now."""
        self._opened.clear()
        rows = register.snapshot().read_all().to_pylist() if register.upper > _START else []
        self._known = {row["table"]: (row["collection"], row["columns"]) for row in rows}

    def of(self, seen: Sequence[TableColumns], times: Timeline | None) -> list[TableTarget]:
        """Find the collections of the tables of a micro-batch; created or evolved if necessary.

        Args:
            seen: what its events say of their tables.
            times: the times of its transactions; None: the events have times of their own.

        Raises:
            UsageError: a table has no collection, and none can be created; or two tables have the same one.
            IncompatibleSchema: a column has changed in a way that no collection can follow.
        """
        by_table: dict[str, list[TableColumns]] = {}
        for one in seen:
            by_table.setdefault(one.table, []).append(one)
        targets = [self._target(Table.of(text), by_table[text], times) for text in sorted(by_table)]
        found = [target for target in targets if target is not None]
        self._check_apart(found)
        return found

    def changed(self, targets: Sequence[TableTarget]) -> Entries:
        """What the register does not say yet of tables."""
        entries = {str(one.table): (one.collection.name, one.columns) for one in targets}
        return {table: entry for table, entry in entries.items() if self._known.get(table) != entry}

    def upload(self, register: Collection, changed: Entries, at: int) -> bytes:
        """Store changed rows of the register at a time, as an upload."""
        rows: list[tuple[object, ...]] = []
        for table, entry in changed.items():
            rows.append((table, *entry, at, 1))
            if table in self._known:
                rows.append((table, *self._known[table], at, -1))
        schema = register.update_schema
        arrays = [
            pa.array(list(values), one.type)
            for values, one in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return register.distributed.uploader().upload(iter([batch]))

    def add(self, changed: Entries) -> None:
        """Remember rows that the register has now."""
        self._known.update(changed)

    def _check_apart(self, targets: Sequence[TableTarget]) -> None:
        """Refuse two tables of one collection: the rows of one would replace those of the other."""
        owners = {collection: table for table, (collection, _) in self._known.items()}
        for target in targets:
            name, table = target.collection.name, str(target.table)
            if owners.setdefault(name, table) != table:
                raise UsageError(
                    f"tables {owners[name]!r} and {table!r} would both go to collection {name!r}: name "
                    f"another one for one of them, with names={{{table!r}: '...'}}"
                )

    def _target(
        self, table: Table, seen: Sequence[TableColumns], times: Timeline | None
    ) -> TableTarget | None:
        """The collection of a table; None if it has none and needs none: its events only truncate it."""
        name = self._name(table)
        fields = [_read(row_fields, one.schema, table) for one in seen if one.schema]
        told = [found for found in fields if found is not None]
        latest = self._known.get(str(table), (name, None))[1]
        before = latest
        created = evolved = False
        try:
            collection = self._collection(name)
        except CollectionNotFound:
            if all(one.empties for one in seen):
                return None
            if not told:
                raise UsageError(
                    f"table '{table}' has no collection yet, and its events do not say which columns it has: "
                    f"let the converter write schemas (schemas.enable=true), or create collection {name!r}"
                ) from None
            collection, created, before = self._created(name, table, told[0], seen), True, None
        if before is None and told:
            before = _text(told[0])
        for one in told:
            latest = _text(one)
            evolved |= _evolve(collection, table, before, one)
            before = latest
        missing: set[str] = set()
        if told:
            all_named = set.intersection(*({str(column["field"]) for column in one} for one in told))
            missing = {column.name for column in collection.schema if column.nullable} - all_named
        options = {key: value for key, value in self.options.items() if value is not None}
        envelope = TableEvents(old_rows="stored", missing=frozenset(missing), **options)  # type: ignore[arg-type]
        envelope.check(_LINES, collection)
        if times is not None:
            envelope = envelope.at(times)
        return TableTarget(table, collection, envelope, latest, created=created, evolved=evolved)

    def _collection(self, name: str) -> Collection:
        if name not in self._opened:
            self._opened[name] = self.lake.collection(name)
        return self._opened[name]

    def _name(self, table: Table) -> str:
        known = self._known.get(str(table))
        if known is not None:
            return known[0]
        for spelled in (str(table), table.short):
            if spelled in self.names:
                return self.names[spelled]
        return f"{self.into}.{table.short}"

    def _created(self, name: str, table: Table, fields: Fields, seen: Sequence[TableColumns]) -> Collection:
        key = self._key(table, seen)
        try:
            columns = columns_of(fields)
            strange = [column for column in key if column not in columns.names]
            if strange:
                raise UsageError(
                    f"key column {strange[0]!r} is no column: there is {', '.join(map(repr, columns.names))}"
                )
            return self.lake.create(name, columns, key=key, time=self.time_unit)
        except UsageError as error:
            raise UsageError(f"table '{table}' gets no collection: {error}") from error

    def _key(self, table: Table, seen: Sequence[TableColumns]) -> list[str]:
        if isinstance(self.keys, Mapping):
            for spelled in (str(table), table.short):
                if spelled in self.keys:
                    return list(self.keys[spelled])
        elif self.keys is not None:
            return list(self.keys)
        for one in seen:
            found = _read(key_fields, one.key, table) if one.key else None
            if found is not None:
                return found
        raise UsageError(
            f"table '{table}' has no collection yet, and the messages have no key with a schema: give its "
            f"key, keys={{'{table.short}': ['id']}}, or create the collection {self._name(table)!r} first"
        )


def _text(fields: Fields) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _read(read: Callable[[Any], R], text: str, table: Table) -> R:
    try:
        return read(json.loads(text))
    except ValueError as error:
        raise UsageError(f"the schema in the events of table '{table}' is not valid: {error}") from None


def _evolve(collection: Collection, table: Table, before: str | None, fields: Fields) -> bool:
    """Let a collection have the columns that the events have now; whether it changed.

    Raises:
        IncompatibleSchema: a column has changed in a way that no collection can follow.
    """
    if before == _text(fields):
        return False
    now = columns_of(fields)
    then = None if before is None else columns_of(json.loads(before))
    there = collection.schema
    wanted = []
    for column in there:
        if column.name not in now.names:
            # The source dropped it: from now on it is null.
            wanted.append(column.with_nullable(column.nullable or column.name not in collection.key))
            continue
        told = now.field(column.name)
        kind = column.type
        changed = then is not None and column.name in then.names and then.field(column.name).type != told.type
        if changed and told.type != kind:
            old, new = data_type(kind, column.name), data_type(told.type, column.name)
            if widens(old, new):
                kind = told.type
            elif not widens(new, old):
                raise IncompatibleSchema(
                    f"table '{table}': column {column.name!r} has become {told.type} at the source, and in "
                    f"collection {collection.name!r} it is {kind}, which cannot change to that: send the "
                    "changed table to a new collection (names=..., after a new snapshot of the table), or "
                    "convert the column on its way"
                )
        wanted.append(pa.field(column.name, kind, nullable=column.nullable or told.nullable))
    wanted += [one.with_nullable(True) for one in now if one.name not in there.names]
    if pa.schema(wanted) == there:
        return False
    collection.evolve(pa.schema(wanted))
    return True
