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
    FromCollection,
    PlanColumn,
    Redo,
    Stage,
    ViewPlan,
    inputs,
    quoted,
)
from tidelake.views.rules import BEFORE, Emission, Rules, reads_before

_SETTINGS = (*DUCKDB_SETTINGS, "SET default_null_order = 'nulls_last'", "SET preserve_insertion_order = true")
_ANSWER = "tidelake_answer"
_STORED, _HAVE, _WANT = "tidelake_stored", "tidelake_have", "tidelake_want"
_TIME = "_time"
Reads = Callable[[FromCollection], Scan]
"""Reads rows of a collection: the columns of the stage, in its order, then times and multiplicities."""


class Database:
    """A database in memory with a directory of its own to spill to; use as a context manager.

    It is opened when it is first used, and serves one span after the other.
    """

    def __init__(self) -> None:
        self._duckdb: Any = optional("duckdb", "sql")
        self.error: type[Exception] = self._duckdb.Error
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

    def clear(self) -> None:
        """Remove all tables."""
        kinds = "SELECT 'VIEW', view_name FROM duckdb_views() WHERE NOT internal"
        kinds += " UNION ALL SELECT 'TABLE', table_name FROM duckdb_tables()"
        for kind, name in self.connection.execute(kinds).fetchall():
            self.connection.execute(f"DROP {kind} {quoted(name)}")

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
    """The columns of a view as a collection has them."""
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
        plan: of the view.
        emission: what the updates depend on.
        contents: reads the contents of a collection just before the span.
        updates: reads the updates of a collection in the span.
        pairs_max: a group that is computed again, once for each of its times, has at most so many rows;
            None: any number.

    Attributes:
        read: rows that were read, by stage.
        emitted: updates of each stage.
    """

    def __init__(
        self,
        view: str,
        plan: ViewPlan,
        emission: Emission,
        *,
        contents: Reads,
        updates: Reads,
        pairs_max: int | None = None,
    ) -> None:
        self._view, self._plan, self._emission = view, plan, emission
        self._contents, self._updates = contents, updates
        self._pairs_max = pairs_max
        self._rules = Rules(plan)
        self._held: set[int] = set()
        self.read: dict[int, int] = {}
        self.emitted: dict[int, int] = {}

    def carried_out(self, database: Database) -> pa.Table:
        """The updates of the view: its columns, `_time` and `_diff`, each row of a time once.

        Raises:
            RefreshFailed: DuckDB could not compute a stage; names it.
            SpanTooLarge: it has too many times for the size of a group.
        """
        try:
            for number in range(len(self._plan.stages)):
                self._change(database, number)
            return self._answer(database)
        finally:
            database.clear()

    def _change(self, database: Database, number: int) -> None:
        stage, rules = self._plan.stages[number], self._rules
        if isinstance(stage, FromCollection):
            self._take(database, f"d{number}", number, self._updates(stage))
        elif self._emission.birth is None and not any(self.emitted[one] for one in inputs(stage)):
            _make(database, f"d{number}", self._columns(stage))
        else:
            changed = frozenset(one for one in inputs(stage) if self.emitted[one])
            emission = replace(self._emission, changed=changed)
            for one in sorted(reads_before(stage, changed)) if emission.base else ():
                self._hold(database, one)
            if isinstance(stage, Redo):
                self._check_size(database, number, emission)
            self._make_of(database, f"d{number}", number, rules.updates(number, emission))
        self.emitted[number] = database.rows(f"d{number}")

    def _check_size(self, database: Database, number: int, emission: Emission) -> None:
        """Refuse what would take long and much memory, if the span can be cut."""
        ((pairs, times),) = database.connection.execute(self._rules.pairs(number, emission)).fetchall()
        if self._pairs_max is not None and pairs > self._pairs_max and times > 1:
            raise SpanTooLarge

    def _hold(self, database: Database, number: int) -> None:
        """Make the tables of the contents of a stage just before the span, and of all its rows."""
        self._know(database, number)
        both = f"CREATE VIEW IF NOT EXISTS f{number} AS FROM a{number} UNION ALL FROM d{number}"
        database.connection.execute(both)

    def _know(self, database: Database, number: int) -> None:
        if number in self._held:
            return
        self._held.add(number)
        stage = self._plan.stages[number]
        if isinstance(stage, FromCollection):
            self._take(database, f"a{number}", number, self._contents(stage))
            return
        for one in dict.fromkeys(inputs(stage)):
            self._know(database, one)
        self._make_of(database, f"a{number}", number, self._rules.contents(number))

    def _take(self, database: Database, table: str, number: int, scan: Scan) -> None:
        """Read rows of a collection into a table: updates, or contents, which are at `BEFORE`."""
        source = f"tidelake_source_{table}"
        names = [quoted(column.name) for column in self._plan.stages[number].columns]
        time, count = quoted(self._rules.time), quoted(self._rules.count)
        given = [quoted(name) for name in scan.schema.names[: len(names)]]
        same = ", ".join(f"{old} AS {new}" for old, new in zip(given, names, strict=True))
        at = f"{BEFORE}::BIGINT" if table.startswith("a") else _TIME
        query = f"SELECT {same}, {at} AS {time}, {DIFF}::HUGEINT AS {count} FROM {source}"
        if table.startswith("d"):
            sums = f"SELECT {', '.join(names)}, {time}, sum({count}) AS {count}"
            query = f"{sums} FROM ({query}) GROUP BY ALL HAVING sum({count}) <> 0"
        database.connection.register(source, scan)
        try:
            self._make_of(database, table, number, query)
        except RefreshFailed:
            if isinstance(scan.failure, TidelakeError):
                raise scan.failure from None
            raise
        finally:
            database.connection.unregister(source)
        self.read[number] = self.read.get(number, 0) + database.rows(table)

    def _columns(self, stage: Stage) -> tuple[PlanColumn, ...]:
        return (
            *stage.columns,
            PlanColumn(self._rules.time, "BIGINT"),
            PlanColumn(self._rules.count, "HUGEINT"),
        )

    def _make_of(self, database: Database, table: str, number: int, query: str) -> None:
        _make(database, table, self._columns(self._plan.stages[number]))
        try:
            database.connection.execute(f"INSERT INTO {table} {query}")
        except (database.error, pa.ArrowException, OSError, RuntimeError) as error:
            kind = type(self._plan.stages[number]).__name__.lower()
            raise RefreshFailed(self._view, f"{number} ({kind})", _reason(error)) from error

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


def _make(database: Database, table: str, columns: Sequence[PlanColumn]) -> None:
    told = ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)
    database.connection.execute(f"CREATE TABLE {table} ({told})")


def _reason(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nLINE ")[0].split())
