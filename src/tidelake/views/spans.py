"""A span of a view, carried out in DuckDB: from what its inputs were and how they change, its updates.

Owns the database of a refresh, its walls and settings, and which tables of it are needed. Must not know how
lakes store rows.

INVARIANT: no setting of the machine is in an answer. Nothing is left when it ends, however it ends.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from tidelake.arrangement.checkpoint.home import Home
from tidelake.data.answer.rows import optional
from tidelake.errors import RefreshFailed, TidelakeError, UsageError
from tidelake.lake.api.embedded import DUCKDB_CONFIG, DUCKDB_SETTINGS, Scan
from tidelake.model.schema import DIFF
from tidelake.views.plan import (
    Columns,
    Count,
    FromCollection,
    Join,
    PlanColumn,
    Redo,
    inputs,
    quoted,
)
from tidelake.views.reach import (
    Computed,
    KeptStage,
    Looked,
    Need,
    Reach,
    Summed,
    columns_of,
    distinct,
    needs,
    sum_columns,
    sums_of,
)
from tidelake.views.rules import BEFORE, Emission, Rules, before, firsts, whole

_SETTINGS = (*DUCKDB_SETTINGS, "SET default_null_order = 'nulls_last'", "SET preserve_insertion_order = true")
_ANSWER = "tidelake_answer"
_STORED, _HAVE, _WANT = "tidelake_stored", "tidelake_have", "tidelake_want"
_TIME = "_time"
Updates = Callable[[int], Scan]
"""Reads updates of the collection of a stage: its columns, in its order, then times and multiplicities."""
Contents = Callable[[int, pa.Table | None], Scan]
"""Reads contents of a collection likewise: at least the rows with these values in its key; None: all."""
State = Callable[[KeptStage, pa.Table | None], Scan]
"""Reads what a view keeps, likewise; columns as `columns_of` gives them."""


class Database:
    """A database in memory with a directory of its own to spill to; use as a context manager.

    It is opened when it is first used, and serves one span after the other.
    """

    def __init__(self) -> None:
        self._duckdb: Any = optional("duckdb", "sql")
        self.error: type[Exception] = self._duckdb.Error
        self._made: list[str] = []
        self._home: Home | None = None

    @cached_property
    def connection(self) -> Any:
        """The connection to it."""
        self._home = Home.for_spills()
        spill = str(Path(self._home.path) / "spill")
        opened = self._duckdb.connect(":memory:", config={**DUCKDB_CONFIG, "temp_directory": spill})
        for setting in _SETTINGS:
            opened.execute(setting)
        return opened

    def rows(self, table: str) -> int:
        """The number of rows of a table."""
        ((found,),) = self.connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(found)

    def make(self, kind: str, name: str, text: str) -> None:
        """Make a table or a view, which `clear` removes."""
        self.connection.execute(f"CREATE {kind} {name} {text}")
        self._made.append(f"{kind} {name}")

    def clear(self) -> None:
        """Remove all that was made."""
        while self._made:
            self.connection.execute(f"DROP {self._made.pop()}")

    def __enter__(self) -> "Database":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if "connection" in self.__dict__:
            with suppress(self.error):
                self.connection.close()
        if self._home is not None:
            self._home.release()


def engine_version() -> str:
    """The engine that carries spans out, with its version."""
    return f"duckdb {optional('duckdb', 'sql').__version__}"


def types_of(database: Database, schema: pa.Schema) -> dict[str, str]:
    """DuckDB's types of the columns of a table, by name."""
    database.connection.register(_ANSWER, Scan(schema, lambda: iter(())))
    described = database.connection.execute(f"DESCRIBE SELECT * FROM {_ANSWER}").fetchall()
    database.connection.unregister(_ANSWER)
    return {name: type_ for name, type_, *_ in described}


def answer_schema(database: Database, columns: Columns) -> pa.Schema:
    """Columns of an answer as a collection has them."""
    _make(database, _ANSWER, columns)
    found: pa.Schema = database.connection.sql(f"SELECT * FROM {_ANSWER}").to_arrow_table().schema
    database.clear()
    return found


class SpanTooLarge(Exception):
    """A span has so many times that groups would be computed again too often."""


class SpanRun:
    """Carries one span out.

    Args:
        view: the name of the view, for messages.
        reach: the plan of the view, and where rows of its stages are found.
        emission: what the updates depend on.
        contents: reads the contents of a collection just before the span.
        updates: reads the updates of a collection in the span.
        state: reads what the view keeps, as of just before the span; None: it keeps nothing, and computes it.
        pairs_max: a group that is computed again, once for each of its times, has at most so many rows;
            None: any number.

    Attributes:
        read: rows that were read, by stage.
        emitted: updates of each stage.
        kept: the updates of what the view keeps, its columns, `_time` and `_diff`.
    """

    def __init__(
        self,
        view: str,
        reach: Reach,
        emission: Emission,
        *,
        contents: Contents,
        updates: Updates,
        state: State | None = None,
        pairs_max: int | None = None,
    ) -> None:
        self._view, self._plan, self._reach, self._emission = view, reach.plan, reach, emission
        self._contents, self._updates, self._state = contents, updates, state
        self._pairs_max = pairs_max
        self._rules = Rules(self._plan)
        self._known: set[int] = set()
        self.read: dict[int, int] = {}
        self.emitted: dict[int, int] = {}
        self.kept: dict[KeptStage, pa.Table] = {}

    def carried_out(self, database: Database) -> pa.Table:
        """The updates of the view: its columns, `_time` and `_diff`, each row of a time once.

        Raises:
            RefreshFailed: DuckDB could not compute a stage; names it.
            SpanTooLarge: it has too many times for the size of a group.
        """
        try:
            for number in range(len(self._plan.stages)):
                self._change(database, number)
            if self._state is not None:
                self.kept = {one: self._rows_kept(database, one, "d") for one in self._reach.kept()}
            return self._answer(database)
        finally:
            database.clear()

    def computed(self, database: Database, wanted: Sequence[KeptStage]) -> dict[KeptStage, pa.Table]:
        """What the view keeps, as of just before the span, from all of the contents of the inputs.

        Raises:
            RefreshFailed: as `carried_out`.
        """
        try:
            for one in wanted:
                self._know(database, one.stage)
            return {one: self._rows_kept(database, one, "a") for one in wanted}
        finally:
            database.clear()

    def _change(self, database: Database, number: int) -> None:
        stage, rules = self._plan.stages[number], self._rules
        if isinstance(stage, FromCollection):
            self._take(database, f"d{number}", number, self._updates(number), net=True)
        elif self._emission.birth is None and not any(self.emitted[one] for one in inputs(stage)):
            _make(database, f"d{number}", self._timed(stage.columns))
            if isinstance(stage, Count):
                _make(database, f"ds{number}", self._timed(sum_columns(self._plan, number)))
        else:
            changed = frozenset(one for one in inputs(stage) if self.emitted[one])
            emission = replace(self._emission, changed=changed)
            if emission.base:
                self._look(database, number, changed)
            if isinstance(stage, Redo):
                self._check_size(database, number, emission)
            if isinstance(stage, Count):
                self._make_of(database, f"ds{number}", number, rules.sums(number, emission), sums=True)
            self._make_of(database, f"d{number}", number, rules.updates(number, emission))
        self.emitted[number] = database.rows(f"d{number}")

    def _check_size(self, database: Database, number: int, emission: Emission) -> None:
        """Refuse what would take long and much memory, if the span can be cut."""
        ((pairs, times),) = database.connection.execute(self._rules.pairs(number, emission)).fetchall()
        if self._pairs_max is not None and pairs > self._pairs_max and times > 1:
            raise SpanTooLarge

    def _look(self, database: Database, number: int, changed: frozenset[int]) -> None:
        """Make the tables of what a stage reads of its inputs just before the span."""
        match self._plan.stages[number]:
            case Count() as stage:
                need = Need(0, stage.keys, 0, stage.keys, (True,) * len(stage.keys))
                self._sums(database, f"b{number}", number, self._values(database, need, f"d{stage.input}"))
            case Redo() as stage:
                self._meet(database, number, stage, 0)
            case Join() as stage:
                for first in firsts(stage, changed):
                    self._meet(database, number, stage, first)
            case _:
                pass

    def _meet(self, database: Database, number: int, stage: Join | Redo, first: int) -> None:
        """Make the tables of what meets the updates of the input at a place."""
        read = inputs(stage)
        known = {first: f"d{read[first]}"}
        for need in needs(stage, first):
            table, both = before(number, first, need.place), whole(number, first, need.place)
            self._rows(
                database, table, read[need.place], need.by, self._values(database, need, known[need.given])
            )
            database.make("VIEW", both, f"AS FROM {table} UNION ALL FROM d{read[need.place]}")
            known[need.place] = table if need.place < first else both

    def _values(self, database: Database, need: Need, table: str) -> pa.Table | None:
        """The values to look for; None: all rows are wanted."""
        if not need.by:
            return None
        return database.connection.sql(distinct(need, table)).to_arrow_table()

    def _rows(
        self, database: Database, table: str, number: int, by: tuple[str, ...], keys: pa.Table | None
    ) -> None:
        """Make a table of the rows of a stage just before the span: at least those with keys."""
        stage, way = self._plan.stages[number], self._reach.way(number, by)
        if keys is not None and not keys.num_rows:
            _make(database, table, self._timed(stage.columns))
            return
        match way:
            case Looked(key):
                found = None if keys is None or not key else keys.select(list(key))
                self._take(database, table, number, self._contents(number, found))
            case Computed(ways):
                for one, columns in ways:
                    inner = None if keys is None else _renamed(keys.select(list(by)), columns)
                    self._rows(database, f"{table}_{one}", one, columns, inner)
                self._make_of(database, table, number, self._rules.contents(number, f"{table}_"))
            case Summed(columns):
                inner = None if keys is None or not columns else _renamed(keys.select(list(by)), columns)
                self._sums(database, f"{table}_s{number}", number, inner)
                self._make_of(database, table, number, self._rules.contents(number, f"{table}_"))
            case KeptStage():
                if self._state is None:
                    self._know(database, number)
                    database.make("VIEW", table, f"AS FROM a{number}")
                else:
                    self._take(database, table, number, self._state(way, keys))

    def _sums(self, database: Database, table: str, number: int, keys: pa.Table | None) -> None:
        """Make a table of the sums of groups just before the span: at least those of keys."""
        if keys is not None and not keys.num_rows:
            _make(database, table, self._timed(sum_columns(self._plan, number)))
        elif self._state is None:
            self._know(database, number)
            database.make("VIEW", table, f"AS FROM as{number}")
        else:
            scan = self._state(sums_of(self._plan, number), keys)
            self._take(database, table, number, scan, sums=True)

    def _know(self, database: Database, number: int) -> None:
        """Make the table of all contents of a stage just before the span."""
        if number in self._known:
            return
        self._known.add(number)
        stage = self._plan.stages[number]
        if isinstance(stage, FromCollection):
            self._take(database, f"a{number}", number, self._contents(number, None))
            return
        for one in dict.fromkeys(inputs(stage)):
            self._know(database, one)
        if isinstance(stage, Count):
            self._make_of(database, f"as{number}", number, self._rules.sums_before(number), sums=True)
        self._make_of(database, f"a{number}", number, self._rules.contents(number))

    def _take(
        self,
        database: Database,
        table: str,
        number: int,
        scan: Scan,
        *,
        net: bool = False,
        sums: bool = False,
    ) -> None:
        """Read rows into a table: updates, which are netted, or contents, which are at `BEFORE`."""
        source = f"tidelake_source_{table}"
        columns = columns_of(self._plan, KeptStage(number, (), sums))
        names = [quoted(column.name) for column in columns]
        time, count = quoted(self._rules.time), quoted(self._rules.count)
        given = [quoted(name) for name in scan.schema.names[: len(names)]]
        same = ", ".join(f"{old} AS {new}" for old, new in zip(given, names, strict=True))
        at = _TIME if net else f"{BEFORE}::BIGINT"
        query = f"SELECT {same}, {at} AS {time}, {DIFF}::HUGEINT AS {count} FROM {source}"
        if net:
            added = f"SELECT {', '.join(names)}, {time}, sum({count}) AS {count}"
            query = f"{added} FROM ({query}) GROUP BY ALL HAVING sum({count}) <> 0"
        database.connection.register(source, scan)
        try:
            self._make_of(database, table, number, query, sums=sums)
        except RefreshFailed:
            if isinstance(scan.failure, TidelakeError):
                raise scan.failure from None
            raise
        finally:
            database.connection.unregister(source)
        self.read[number] = self.read.get(number, 0) + database.rows(table)

    def _timed(self, columns: Columns) -> Columns:
        return (
            *columns,
            PlanColumn(self._rules.time, "BIGINT"),
            PlanColumn(self._rules.count, "HUGEINT"),
        )

    def _make_of(
        self, database: Database, table: str, number: int, query: str, *, sums: bool = False
    ) -> None:
        columns = columns_of(self._plan, KeptStage(number, (), sums))
        _make(database, table, self._timed(columns))
        try:
            database.connection.execute(f"INSERT INTO {table} {query}")
        except (database.error, pa.ArrowException, OSError, RuntimeError) as error:
            kind = type(self._plan.stages[number]).__name__.lower()
            raise RefreshFailed(self._view, f"{number} ({kind})", _reason(error)) from error

    def _rows_kept(self, database: Database, kept: KeptStage, letter: str) -> pa.Table:
        """What is kept, or its updates, as a collection takes them. A sum that is too large is refused."""
        shown = ", ".join(
            f"CAST({quoted(column.name)} AS {stored_type(column.type)}) AS {quoted(column.name)}"
            for column in columns_of(self._plan, kept)
        )
        table = f"{letter}{'s' if kept.sums else ''}{kept.stage}"
        timed = f"{quoted(self._rules.time)} AS {_TIME}, {quoted(self._rules.count)}::BIGINT AS {DIFF}"
        query = f"SELECT {shown}, {timed} FROM {table}"
        try:
            return database.connection.sql(query).to_arrow_table()
        except (database.error, pa.ArrowException) as error:
            raise RefreshFailed(self._view, str(kept), _reason(error)) from error

    def _answer(self, database: Database) -> pa.Table:
        last, rules = len(self._plan.stages) - 1, self._rules
        names = zip(self._plan.stages[last].columns, self._plan.columns, strict=True)
        shown = ", ".join(f"{quoted(old.name)} AS {quoted(new.name)}" for old, new in names)
        timed = f"{quoted(rules.time)} AS {_TIME}, {quoted(rules.count)}::BIGINT AS {DIFF}"
        query = f"SELECT {shown}, {timed} FROM d{last}"
        try:
            return database.connection.sql(query).to_arrow_table()
        except (database.error, pa.ArrowException) as error:
            raise RefreshFailed(self._view, f"{last} (answer)", _reason(error)) from error


def differing(text: str, tables: Mapping[str, Scan], stored: Scan) -> tuple[int, pa.Table, pa.Table]:
    """A query over whole tables, by the engine alone, beside what is stored of its answer.

    Returns:
        The number of its rows, the rows that are not stored, and the stored rows that it has not. NaN is one
        value, and -0.0 is 0.0. Only these rows are in memory; the others may be spilled.

    Raises:
        UsageError: DuckDB refuses it; has its reason.
    """
    scans = {**tables, _STORED: stored}
    with Database() as database:
        for name, scan in scans.items():
            database.connection.register(name, scan)
        run = database.connection.execute
        try:
            run(f"CREATE TEMP TABLE {_HAVE} AS FROM {_STORED}")
            run(f"CREATE TEMP TABLE {_WANT} AS FROM {_HAVE} LIMIT 0")
            run(f"INSERT INTO {_WANT} {text}")
            missing = database.connection.sql(f"FROM {_WANT} EXCEPT ALL FROM {_HAVE}").to_arrow_table()
            more = database.connection.sql(f"FROM {_HAVE} EXCEPT ALL FROM {_WANT}").to_arrow_table()
            return database.rows(_WANT), missing, more
        except (database.error, pa.ArrowException, RuntimeError) as error:
            failures = [one.failure for one in scans.values() if isinstance(one.failure, TidelakeError)]
            raise (failures[0] if failures else UsageError(f"DuckDB: {_reason(error)}")) from error


def stored_type(type_: str) -> str:
    """The type in which a collection keeps a column."""
    return type_.replace("HUGEINT", "DECIMAL(38,0)")


def _renamed(keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """Keys under other names; if two columns get one name, the first stays."""
    columns = dict(zip(reversed(names), reversed(keys.columns), strict=True))
    return pa.table({name: columns[name] for name in dict.fromkeys(names)})


def _make(database: Database, table: str, columns: Sequence[PlanColumn]) -> None:
    told = ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)
    database.make("TABLE", table, f"({told})")


def _reason(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nLINE ")[0].split())
