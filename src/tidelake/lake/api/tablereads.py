"""The tables of a statement of SQL, as reads of collections.

Owns which collection a name means, and which time each table is read at; `tidelake.data.sql` knows the text.

INVARIANT: tables that name no time of their own are read at one instant: at `as_of`; without it, at their
last closed times, where all collections of a group have the same one. A transaction is in all of them or in
none.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidelake.data.answer import changefeed
from tidelake.data.answer.importable import lowered
from tidelake.data.answer.tablerows import expanded
from tidelake.data.kernel.types import row_schema
from tidelake.data.sql.needs import needs_of
from tidelake.data.sql.statement import Engine, Statement, TableReference
from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Scan
from tidelake.lake.api.handle import last_time_and_group
from tidelake.lake.api.naming import Naming
from tidelake.lake.api.reading import ask
from tidelake.lake.arguments.times import ReadTimes, whole_of
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.instants import PER_UNIT, TimeLike, is_now
from tidelake.model.query import AsOf, Updates
from tidelake.model.schema import Schema
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time


@dataclass(frozen=True)
class TableRead:
    """A table of a statement.

    Attributes:
        collection: to read.
        asked: the contents at a time, or the updates of `table_changes`.
        options: columns and condition, and the id of the schema to read under.
        rows: that schema.
    """

    collection: Collection
    asked: AsOf | Updates
    options: ReadOptions
    rows: Schema

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table: of contents those of the collection, of changes also those of a feed."""
        rows = row_schema(self.rows)
        fields = [rows.field(name) for name in self.options.columns or rows.names]
        return pa.schema(fields if isinstance(self.asked, AsOf) else [*fields, *changefeed.FIELDS])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, each as often as its multiplicity says. Errors as for `Collection.snapshot`."""
        found = ask(self.collection, self.asked, self.options)
        if isinstance(self.asked, Updates):
            key = [column.name for column in self.rows.key]
            yield from changefeed.change_feed(found, key, self.collection.domain)
            return
        names = self.schema.names
        for batch in found:
            for piece in expanded(batch):
                yield piece.select(names)


def scans_of(found: Mapping[int, TableRead]) -> dict[str, Scan]:
    """The tables of a statement as DuckDB reads them, by their names there."""
    return {
        f"tidelake_table_{i}": Scan(
            read.schema, read.batches, [column.name for column in read.rows.columns], read.collection.name
        )
        for i, read in found.items()
    }


def table_reads(
    lake: Naming,
    statement: Statement,
    as_of: TimeLike | None,
    timeout_s: float | None,
    *,
    apart: Iterable[int] = (),
    own: tuple[Collection, Time] | None = None,
) -> dict[int, TableRead]:
    """The tables of a statement that are collections, by position.

    Costs one log scan for the names, and a few for each collection.

    Args:
        lake: where the collections are.
        statement: the statement.
        as_of: the time of all tables that name none.
        timeout_s: how long to wait for times to be closed.
        apart: positions of tables that are something else, or are written to.
        own: the collection that the statement changes, and when: it is read as it is just before that.

    Raises:
        UsageError: a version does not fit its table, or `as_of` does not fit all of them.
        NotYetClosed: a table without a time has no closed one.
    """
    names, skipped = lake.list(parts=True), set(apart)
    found: dict[int, Collection] = {}
    opened: dict[str, Collection] = {}
    for index, table in enumerate(statement.tables):
        name = collection_name(table, names, statement.engine)
        if index in skipped or (name is None and table.changes is None):
            continue
        wanted = table.name if name is None else name
        if wanted not in opened:
            opened[wanted] = lake.collection(wanted)
        found[index] = opened[wanted]
    states = {name: one.state() for name, one in opened.items()}
    needs = needs_of(statement, {i: states[one.name].schema for i, one in found.items()})
    written = [
        i
        for i, one in found.items()
        if own is not None
        and one.id == own[0].id
        and statement.tables[i].version is None
        and statement.tables[i].changes is None
    ]
    others = {i: one for i, one in found.items() if i not in written}
    moments = _Moments(others, statement, as_of, lake.env.clock.now_ms())
    reads = {}
    for index, one in found.items():
        state, need = states[one.name], needs[index]
        asked = AsOf(own[1]) if own is not None and index in written else moments.of(index)
        options = ReadOptions(
            need.columns,
            need.where,
            timeout_s,
            staged=index in written,
            schema_id=state.schema_id,
            complete=True,
        )
        reads[index] = TableRead(one, asked, options, state.schema)
    return reads


def collection_name(table: TableReference, names: Iterable[str], engine: Engine) -> str | None:
    """The collection that a table names; None if there is none.

    Case matters in names of collections. A name also means the only one that differs in case, but for a name
    in quotes of Spark.
    """
    listed = list(names)
    if table.name in listed:
        return table.name
    same = lowered if engine == "duckdb" else str.casefold
    alike = [name for name in listed if same(name) == same(table.name)]
    if (table.quoted and engine == "spark") or not alike:
        return None
    if len(alike) > 1:
        both = ", ".join(map(repr, alike))
        raise UsageError(f"table {table.name!r} could be {both}: write one of them, in quotes")
    return alike[0]


class _Moments:
    """The times at which the tables of a statement are read."""

    def __init__(
        self, found: Mapping[int, Collection], statement: Statement, as_of: TimeLike | None, now_ms: int
    ) -> None:
        self._found, self._statement, self._as_of, self._now_ms = found, statement, as_of, now_ms
        tables = statement.tables
        self._implied = [i for i in found if tables[i].version is None and tables[i].changes is None]
        if isinstance(as_of, int | tuple):
            self._check_units()
        self._last = {} if as_of is not None and not is_now(as_of) else self._last_times()

    def of(self, index: int) -> AsOf | Updates:
        collection, table = self._found[index], self._statement.tables[index]
        reads = ReadTimes(collection.domain, lambda: self._now_ms, collection.last_time)
        if table.changes is not None:
            return _updates(collection, reads, *table.changes)
        if table.version is not None:
            text, is_number = table.version.text, table.version.kind == "version"
            return AsOf(_time(text, reads, collection.name, is_number=is_number))
        if index not in self._last:
            return AsOf(reads.read(self._as_of, f"as_of of table {table.name!r}"))  # type: ignore[arg-type]
        last = self._last[index]
        if self._as_of is None:
            return AsOf(last)
        return AsOf(times.meet(reads.at(self._as_of, f"as_of of table {table.name!r}"), last))

    def _check_units(self) -> None:
        units = {str(self._found[i].domain) for i in self._implied}
        if len(units) > 1:
            raise UsageError(
                f"as_of={self._as_of!r} is a number, and times of these tables count "
                f"{', '.join(sorted(units))}: give an instant, or write FOR VERSION AS OF behind each table"
            )

    def _last_times(self) -> dict[int, Time]:
        """The last closed times: the same of all collections of a group, so that no transaction is torn."""
        seen = {i: last_time_and_group(self._found[i]) for i in self._implied}
        least: dict[str, Time] = {}
        for time, group in seen.values():
            if group:
                least[group] = min(time, least.get(group, time), key=times.parts)
        return {i: least.get(group, time) for i, (time, group) in seen.items()}


def _time(text: str, reads: ReadTimes, name: str, *, is_number: bool) -> Time:
    """The time that a literal behind a table names."""
    what = f"{'VERSION' if is_number else 'TIMESTAMP'} AS OF of table {name!r}"
    if not is_number:
        if reads.domain.unit not in PER_UNIT:
            raise UsageError(f"{what}: its times are {reads.domain}, no clock: write FOR VERSION AS OF 3")
        return reads.read(text, what)
    return reads.read(_number(text, reads, what), what)


def _number(text: str, reads: ReadTimes, what: str) -> int | tuple[int, ...]:
    found = whole_of(text)
    if found is None:
        raise UsageError(f"{what}: {text!r} is not a number: write FOR VERSION AS OF 3")
    return (found,) if reads.domain.unit == "tuple" and isinstance(found, int) else found


def _updates(collection: Collection, reads: ReadTimes, first: str, last: str | None) -> Updates:
    """The updates from the first to the last time, both included; default: the last closed one."""
    changefeed.check_feed(collection.schema.names, collection.domain)
    what = f"table_changes of {collection.name!r}"

    def time(text: str) -> Time:
        is_clock = reads.domain.unit in PER_UNIT
        return reads.read(text if is_clock and whole_of(text) is None else _number(text, reads, what), what)

    lower = Frontier.of(time(first))
    if last is None:
        return Updates(lower, lower.join(collection.upper))
    return Updates(lower, Frontier.past(time(last)))
