"""The collections that the tables of a change feed go to.

Owns what the collection of a table is called, how it is created and evolved from what the events say of its
columns, and the register: a collection with one row for each table, which remembers both.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from tidelake.cdc.core.tablename import Table
from tidelake.cdc.core.unmade import Unmade
from tidelake.cdc.debezium.connectschema import columns_of, row_fields
from tidelake.cdc.debezium.messagekeys import Names, changed, fits, from_text
from tidelake.cdc.parse.routes import TableColumns
from tidelake.cdc.times.timeline import Timeline
from tidelake.data.kernel.types import data_type
from tidelake.errors import CollectionNotFound, IncompatibleSchema, TidelakeWarning, UsageError
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.named import FEEDS, made
from tidelake.feeds.tablelines import Lines, TableEvents, TablePlan, TableTarget
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.ingesting import Ingesting
from tidelake.model.evolution import widens
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF

R = TypeVar("R")
# What Kafka Connect says of each column.
Fields = list[dict[str, Any]]
# What the register says of tables: collection and columns of each, by table. One without a collection is left
# out.
Entries = dict[str, tuple[str | None, str | None]]

_REGISTER = pa.schema(
    [pa.field("table", pa.string(), nullable=False), ("collection", pa.string()), ("columns", pa.string())]
)
_START = Frontier.of(0)
_LEFT_OUT = (
    "table '{0}' is left out, since its messages have no key: its events are in no collection. To take them, "
    "begin anew with another register, with keys={{{1!r}: [...]}} or a primary key at the source"
)


@dataclass(frozen=True)
class Plans:
    """What is to be done for the tables of a micro-batch.

    Attributes:
        tables: the plan of each table that has a collection then.
        left_out: tables whose events are in no collection.
    """

    tables: tuple[TablePlan, ...]
    left_out: tuple[Table, ...]


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

    lake: Ingesting
    into: str
    time_unit: str
    names: Mapping[str, str]
    keys: Mapping[str, Sequence[str]] | Sequence[str] | None
    options: Mapping[str, object]
    _known: Entries = field(default_factory=dict)
    # Opened once for each run of a stream: a name takes a look into the catalog, and the log of a shard.
    _opened: dict[str, Collection] = field(default_factory=dict, repr=False)
    # Tables that are left out, of which a warning told.
    _told: set[Table] = field(default_factory=set, repr=False)

    @property
    def register(self) -> Collection:
        """The collection with one row for each table; it is created if there is none."""
        if self.into not in self._opened:
            made = self.lake.create(self.into, _REGISTER, key=["table"], time=self.time_unit)
            self._opened[self.into] = made
        return self._opened[self.into]

    def envelope(self) -> Debezium:
        """How events are read of which no table is known."""
        found: Debezium = made("debezium", {**self.options, "old_rows": "stored"}, FEEDS)
        return found

    def load(self, register: Collection) -> None:
        """Read the register, and let names lead to where they lead now."""
        self._opened.clear()
        rows = register.snapshot().read_all().to_pylist() if register.upper > _START else []
        self._known = {row["table"]: (row["collection"], row["columns"]) for row in rows}

    def plan(self, lines: Lines, times: Timeline | None) -> Plans:
        """Find what is to be done so that each table of a micro-batch has a collection. Makes nothing."""
        by_table: dict[str, list[TableColumns]] = {}
        for one in lines.seen:
            by_table.setdefault(one.table, []).append(one)
        found: list[TablePlan] = []
        left_out: list[Table] = []
        for text in sorted(by_table):
            table = Table.of(text)
            if self._is_left_out(table, by_table[text]):
                left_out.append(table)
            elif (plan := self._planned(table, by_table[text], times, keyed=lines.keyed)) is not None:
                found.append(plan)
        if left_out and not found and not any(name for name, _ in self._known.values()):
            raise self._without_key(left_out[0])
        self._check_apart(found)
        return Plans(tuple(found), tuple(left_out))

    def make(self, plans: Plans) -> list[TableTarget]:
        """Make the collections of plans, or let them have other columns; one target for each plan."""
        for table in plans.left_out:
            if table not in self._told:
                self._told.add(table)
                warnings.warn(TidelakeWarning(_LEFT_OUT.format(table, table.spellings[-1])), stacklevel=2)
        return [self._made(plan) for plan in plans.tables]

    def _made(self, plan: TablePlan) -> TableTarget:
        there, shape = plan.there, plan.shape
        evolved = there is not None and there.schema != shape.schema
        if there is None:
            made = self.lake.create(shape.name, shape.schema, key=shape.key, time=self.time_unit)
            self._opened[shape.name] = made
        else:
            made = there
            if evolved:
                made.evolve(shape.schema)
        return TableTarget(
            plan.table, made, plan.envelope, plan.columns, created=there is None, evolved=evolved
        )

    def changed(self, targets: Sequence[TableTarget], left_out: Sequence[Table]) -> Entries:
        """What the register does not say yet of tables."""
        entries: Entries = {str(one.table): (one.collection.name, one.columns) for one in targets}
        entries |= {str(table): (None, None) for table in left_out}
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

    def _check_apart(self, plans: Sequence[TablePlan]) -> None:
        """Refuse two tables of one collection: the rows of one would replace those of the other."""
        owners = {collection: table for table, (collection, _) in self._known.items() if collection}
        for plan in plans:
            name, table = plan.shape.name, str(plan.table)
            if name == self.into:
                raise UsageError(f"table {table!r} would go to {name!r}, which is the register: name another")
            if owners.setdefault(name, table) != table:
                raise UsageError(
                    f"tables {owners[name]!r} and {table!r} would both go to collection {name!r}: name "
                    f"another one for one of them, with names={{{table!r}: '...'}}"
                )

    def _is_left_out(self, table: Table, seen: Sequence[TableColumns]) -> bool:
        """Whether the events of a table are left out: nothing told its rows apart when it was first seen."""
        known = self._known.get(str(table))
        if known is not None:
            return known[0] is None
        told = [one for one in seen if not one.empties]
        without = bool(told) and not any(from_text(one.key) for one in told)
        return without and self._given_key(table) is None and self._there(self._name(table)) is None

    def _planned(
        self, table: Table, seen: Sequence[TableColumns], times: Timeline | None, *, keyed: bool
    ) -> TablePlan | None:
        """The plan of a table; None if it has no collection and needs none: its events only truncate it."""
        name = self._name(table)
        fields = [_read(row_fields, one.schema, table) for one in seen if one.schema]
        told = [found for found in fields if found is not None]
        before = self._known.get(str(table), (None, None))[1]
        latest = _text(told[-1]) if told else before
        there = self._there(name)
        if there is None and all(one.empties for one in seen):
            return None
        if there is None and not told:
            raise UsageError(
                f"table '{table}' has no collection yet, and its events do not say which columns it has: "
                f"let the converter write schemas (schemas.enable=true; MongoDB has none), or create "
                f"collection {name!r}"
            )
        if there is not None and there.domain != self.register.domain:
            raise UsageError(
                f"table '{table}' cannot go to collection {name!r} of time {there.domain}: the register has "
                f"times of {self.register.domain}; name another collection, with names="
            )
        key = self._key(table, seen) if there is None else list(there.key)
        told_keys = [from_text(one.key) for one in seen if not one.empties]
        needed = keyed and (self._given_key(table) is None or any(told_keys))
        _check_keys(table, key, told_keys, needed=needed)
        try:
            columns = columns_of(told[0]) if there is None else there.schema
            for one in told:
                columns = _followed(name, columns, key, before or _text(told[0]), one)
                before = _text(one)
            if there is None:
                _check_key(key, columns)
            shape = Unmade.of(name, columns, key, self.register.domain)
        except IncompatibleSchema as error:
            raise IncompatibleSchema(f"table '{table}': {error}") from None
        except UsageError as error:
            if there is not None:
                raise
            own = {DIFF, *self.register.domain.columns} & {str(one["field"]) for one in told[0]}
            remedy = f" with decode_events(frame, rename={{{min(own)!r}: ...}})" if own else ""
            raise UsageError(f"table '{table}' gets no collection: {error}{remedy}") from error
        missing: set[str] = set()
        if told:
            all_named = set.intersection(*({str(column["field"]) for column in one} for one in told))
            missing = {column.name for column in shape.schema if column.nullable} - all_named
        options = {key: value for key, value in self.options.items() if value is not None}
        envelope = TableEvents(old_rows="stored", missing=frozenset(missing), **options)  # type: ignore[arg-type]
        envelope.parser(shape)
        if times is not None:
            envelope = envelope.at(times)
        return TablePlan(table, there, shape, envelope, latest)

    def _there(self, name: str) -> Collection | None:
        """The collection of a name; None if there is none."""
        if name not in self._opened:
            try:
                self._opened[name] = self.lake.collection(name)
            except CollectionNotFound:
                return None
        return self._opened[name]

    def _name(self, table: Table) -> str:
        known = self._known.get(str(table))
        if known is not None and known[0] is not None:
            return known[0]
        for spelled in table.spellings:
            if spelled in self.names:
                return self.names[spelled]
        return f"{self.into}.{table.short}"

    def _given_key(self, table: Table) -> list[str] | None:
        """The key columns that the caller gave; None: they are those of the messages."""
        if not isinstance(self.keys, Mapping):
            return None if self.keys is None else list(self.keys)
        return next((list(self.keys[one]) for one in table.spellings if one in self.keys), None)

    def _key(self, table: Table, seen: Sequence[TableColumns]) -> list[str]:
        given = self._given_key(table)
        if given is not None:
            return given
        found = next((names for one in seen if (names := from_text(one.key))), None)
        if found is None:
            raise self._without_key(table)
        return list(found)

    def _without_key(self, table: Table) -> UsageError:
        return UsageError(
            f"table '{table}' has no collection yet, and its messages have no key: give the columns that "
            f"tell its rows apart, keys={{{table.spellings[-1]!r}: ['id']}}, or create the collection "
            f"{self._name(table)!r} first"
        )


def table_targets(
    lake: Ingesting,
    into: str,
    *,
    time_unit: str,
    names: Mapping[str, str] | None,
    keys: Mapping[str, Sequence[str]] | Sequence[str] | None,
    options: Mapping[str, object],
) -> TableTargets:
    """The targets of what users say; see `tidelake.spark.tables_sink`."""
    if time_unit == "date":
        raise UsageError("time_unit='date': change events have positions and moments, and no days: give 'ms'")
    if isinstance(keys, str):
        raise UsageError(f"keys={keys!r} is one text: give a list of columns, or a dict by table")
    if "old_rows" in options:
        raise UsageError("old_rows is not for many tables: their old rows are looked up")
    found = TableTargets(lake, into, time_unit, names or {}, keys, options)
    found.envelope()
    return found


def _text(fields: Fields) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _read(read: Callable[[Any], R], text: str, table: Table) -> R:
    try:
        return read(json.loads(text))
    except ValueError as error:
        raise UsageError(f"the schema in the events of table '{table}' is not valid: {error}") from None


def _check_key(key: Sequence[str], columns: pa.Schema) -> None:
    strange = [column for column in key if column not in columns.names]
    if strange:
        raise UsageError(
            f"key column {strange[0]!r} is no column: there is {', '.join(map(repr, columns.names))}"
        )


def _check_keys(table: Table, key: Sequence[str], told: Sequence[Names | None], *, needed: bool) -> None:
    """Compare the keys of messages with the key of their collection."""
    for names in told:
        if (names is None and needed) or (names and not fits(names, key)):
            without = f"; if columns tell its rows apart without one: keys={{'{table}': [...]}}"
            raise IncompatibleSchema(
                f"table '{table}': {changed(names, key)}{without if names is None else ''}"
            )


def _followed(name: str, there: pa.Schema, key: Sequence[str], before: str, fields: Fields) -> pa.Schema:
    """The columns that a collection needs for the columns that events have.

    Args:
        name: of the collection.
        there: its columns.
        key: its key columns.
        before: what events last said of the columns.
        fields: what they say now.
    """
    now, then = columns_of(fields), columns_of(json.loads(before))
    wanted = []
    for column in there:
        if column.name not in now.names:
            # The source dropped it: from now on it is null.
            wanted.append(column.with_nullable(column.nullable or column.name not in key))
            continue
        told = now.field(column.name)
        kind = column.type
        # A type that the caller chose for the collection stays as long as that of the source does. A column
        # that was dropped and comes again is another one.
        same = column.name in then.names and then.field(column.name).type == told.type
        if not same and told.type != kind:
            old, new = data_type(kind, column.name), data_type(told.type, column.name)
            if widens(old, new):
                kind = told.type
            elif not widens(new, old):
                raise IncompatibleSchema(
                    f"column {column.name!r} has become {told.type} at the source, and in "
                    f"collection {name!r} it is {kind}, which cannot change to that: send the "
                    "changed table to a new collection (names=..., after a new snapshot of the table), or "
                    "convert the column on its way"
                )
        wanted.append(pa.field(column.name, kind, nullable=column.nullable or told.nullable))
    wanted += [one.with_nullable(True) for one in now if one.name not in there.names]
    return pa.schema(wanted)
