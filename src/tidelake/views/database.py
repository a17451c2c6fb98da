"""DuckDB as the engine of a refresh: a database in memory, with its walls and settings.

INVARIANT: no setting of the machine is in an answer. Nothing is left when it ends, however it ends.
"""

import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from tidelake.arrangement.checkpoint.home import Home
from tidelake.data.answer.rows import optional
from tidelake.errors import TidelakeError, UsageError
from tidelake.lake.api.embedded import DUCKDB_CONFIG, DUCKDB_SETTINGS, Scan
from tidelake.model.schema import DIFF
from tidelake.views.engine import LocalOutput, Named, Schemas, StoredScan, reason
from tidelake.views.plan import Columns, ViewPlan, quoted
from tidelake.views.query.compile import compiled
from tidelake.views.query.engine import DuckAnalyzer
from tidelake.views.reach import Need, distinct

_SETTINGS = (*DUCKDB_SETTINGS, "SET default_null_order = 'nulls_last'", "SET preserve_insertion_order = true")
_ANSWER, _SOURCE, _TIME = "tidelake_answer", "tidelake_source", "_time"
_STORED, _HAVE, _WANT = "tidelake_stored", "tidelake_have", "tidelake_want"


class Database:
    """A database in memory with a directory of its own to spill to; use as a context manager.

    It is opened when it is first used, and serves one span after the other.
    """

    dialect, has_sort_keys, place, holds_rows = "duckdb", True, "", True
    settings: tuple[tuple[str, str], ...] = ()

    def __init__(self) -> None:
        self._duckdb: Any = optional("duckdb", "sql")
        self.version = f"duckdb {self._duckdb.__version__}"
        self.errors: tuple[type[Exception], ...] = (
            self._duckdb.Error,
            pa.ArrowException,
            OSError,
            RuntimeError,
        )
        self._made: list[str] = []
        self._remove: weakref.finalize[[], Any] | None = None

    @cached_property
    def connection(self) -> Any:
        """The connection to it."""
        home = Home.for_spills()
        # Also if it is forgotten, with a lake that was not closed.
        self._remove = weakref.finalize(self, home.release)
        spill = str(Path(home.path) / "spill")
        opened = self._duckdb.connect(":memory:", config={**DUCKDB_CONFIG, "temp_directory": spill})
        for setting in _SETTINGS:
            opened.execute(setting)
        return opened

    def compiled(self, sql: str, schema_of: Schemas) -> ViewPlan:
        """See `Engine`."""
        return compiled(sql, schema_of, lambda: DuckAnalyzer(self.connection))

    def types_of(self, schema: pa.Schema) -> dict[str, str]:
        """See `Engine`."""
        self.connection.register(_ANSWER, Scan(schema, lambda: iter(())))
        described = self.connection.execute(f"DESCRIBE SELECT * FROM {_ANSWER}").fetchall()
        self.connection.unregister(_ANSWER)
        return {name: type_ for name, type_, *_ in described}

    def schema_of(self, columns: Columns) -> pa.Schema:
        """See `Engine`."""
        self.empty(_ANSWER, columns)
        found = self.answer(f"SELECT * FROM {_ANSWER}").schema
        self.clear()
        return found

    def empty(self, table: str, columns: Columns) -> None:
        """See `Engine`."""
        told = ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)
        self._make("TABLE", table, f"({told})")

    def fill(self, table: str, columns: Columns, query: str, most: int | None = None) -> int:
        """See `Engine`."""
        del most
        names = ", ".join(quoted(one.name) for one in columns)
        typed = ", ".join(f"{quoted(one.name)}::{one.type} AS {quoted(one.name)}" for one in columns)
        return self._make("TABLE", table, f"AS SELECT {typed} FROM ({query}) AS q({names})")

    def call(self, table: str, query: str) -> None:
        """See `Engine`."""
        self._make("VIEW", table, f"AS {query}")

    def take(self, table: str, columns: Columns, scan: Scan, time: int | None) -> int:
        """See `Engine`."""
        *names, at, count = (quoted(column.name) for column in columns)
        given = [quoted(name) for name in scan.schema.names[: len(names)]]
        same = ", ".join(f"{old} AS {new}" for old, new in zip(given, names, strict=True))
        when = f'"{_TIME}"' if time is None else f"{time}::BIGINT"
        query = f"SELECT {same}, {when} AS {at}, {DIFF}::HUGEINT AS {count} FROM {_SOURCE}"
        if time is None:
            added = f"SELECT {', '.join(names)}, {at}, sum({count}) AS {count}"
            query = f"{added} FROM ({query}) GROUP BY ALL HAVING sum({count}) <> 0"
        self.connection.register(_SOURCE, scan)
        try:
            return self.fill(table, columns, query)
        finally:
            self.connection.unregister(_SOURCE)

    def read(self, table: str, columns: Named, timed: Named, order: str | None) -> LocalOutput:
        """See `Engine`."""
        first, last = (
            [f"CAST({quoted(old)} AS {type_}) AS {quoted(new)}" for old, new, type_ in each]
            for each in (columns, timed)
        )
        shown = [*first, *([] if order is None else [f"{order} AS o"]), *last]
        return LocalOutput(self.answer(f"SELECT {', '.join(shown)} FROM {table} AS i0"))

    def values(self, table: str, need: Need) -> pa.Table:
        """See `Engine`."""
        return self.answer(distinct(need, table))

    def times(self, table: str, column: str) -> list[int]:
        """See `Engine`."""
        name = quoted(column)
        found = self.answer(f"SELECT DISTINCT {name} FROM {table} ORDER BY {name}")
        return list(found.column(0).to_pylist())

    def answer(self, query: str) -> pa.Table:
        """See `Engine`."""
        return self.connection.sql(query).to_arrow_table()

    def _make(self, kind: str, name: str, text: str) -> int:
        told = self.connection.execute(f"CREATE {kind} {name} {text}").fetchall()
        self._made.append(f"{kind} {name}")
        return int(told[0][0]) if told else 0

    def clear(self) -> None:
        """See `Engine`."""
        while self._made:
            self.connection.execute(f"DROP {self._made.pop()}")

    def release(self) -> None:
        """See `Engine`."""

    def differing(
        self, text: str, tables: Mapping[str, StoredScan], stored: StoredScan
    ) -> tuple[int, pa.Table, pa.Table]:
        """See `Engine`."""
        # Only rows that differ are in memory; the others may be spilled.
        scans = {**tables, _STORED: stored}
        with Database() as database:
            for name, scan in scans.items():
                database.connection.register(name, scan)
            run = database.connection.execute
            try:
                run(f"CREATE TEMP TABLE {_HAVE} AS FROM {_STORED}")
                run(f"CREATE TEMP TABLE {_WANT} AS FROM {_HAVE} LIMIT 0")
                ((wanted,),) = run(f"INSERT INTO {_WANT} {text}").fetchall()
                missing = database.answer(f"FROM {_WANT} EXCEPT ALL FROM {_HAVE}")
                more = database.answer(f"FROM {_HAVE} EXCEPT ALL FROM {_WANT}")
                return wanted, missing, more
            except (self._duckdb.Error, pa.ArrowException, RuntimeError) as error:
                failures = [one.failure for one in scans.values() if isinstance(one.failure, TidelakeError)]
                raise (failures[0] if failures else UsageError(f"DuckDB: {reason(error)}")) from error

    def __enter__(self) -> "Database":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, and remove what it has spilled."""
        if "connection" in self.__dict__:
            with suppress(self._duckdb.Error):
                self.connection.close()
        if self._remove is not None:
            self._remove()
