"""SQL in this process: a statement over tables, carried out by DuckDB (the extra `sql`).

Owns the walls around DuckDB. Each statement has a database of its own, in memory, that sees the tables given
and nothing else: no files, no network, no extensions, no variables of Python, no settings. Must not know
lakes.

INVARIANT: no setting of the machine is in an answer.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidelake.arrangement.checkpoint.home import Home
from tidelake.data.answer.importable import check_for_duckdb, hard_columns, importable
from tidelake.data.answer.rows import Rows, optional
from tidelake.errors import TidelakeError, UsageError

_BATCH_ROWS = 65_536
DUCKDB_CONFIG = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}
# What DuckDB takes from the machine: its time zone, and the calendar of its language.
DUCKDB_SETTINGS = ("SET TimeZone = 'UTC'", "SET Calendar = 'gregorian'")
_WALLS = ("SET enable_external_access = false", "SET lock_configuration = true")

Batches = Callable[[], Iterator[pa.RecordBatch]]


class Scan:
    """A table that DuckDB reads as a stream, from its begin for each scan.

    Attributes:
        schema: its columns.
        failure: the error that ended a stream; DuckDB keeps only its text.
    """

    def __init__(self, schema: pa.Schema, batches: Batches) -> None:
        check_for_duckdb(schema)
        self.schema, self._batches = schema, batches
        self.failure: Exception | None = None

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self._watched())
        return reader.__arrow_c_stream__(requested_schema)

    def _watched(self) -> Iterator[pa.RecordBatch]:
        hard = hard_columns(self.schema)
        try:
            for batch in self._batches():
                yield importable(batch, hard)
        except Exception as error:
            self.failure = error
            raise


def table_name(index: int) -> str:
    """The name of the scan `tidelake_table_<index>` in a text, which no WITH clause can take."""
    return f'temp."tidelake_table_{index}"'


def run(
    text: str,
    scans: Mapping[str, Scan],
    args: Sequence[object] | Mapping[str, object] | None,
    *,
    some: bool = False,
) -> Rows:
    """Carry a query out.

    Args:
        text: the query, or EXPLAIN of one; tables have the names in `scans`.
        scans: the tables.
        args: values of the parameters in the text: a list for `?`, a dict for `$name`.
        some: whether a dict may have more, since the text is a piece of another one.

    Returns:
        The answer as a stream. What is spilled is in a directory that only this user can read.

    Raises:
        UsageError: DuckDB is not installed or refuses the statement, or it is no query; has DuckDB's reason.
        TidelakeError: a table could not be read.
    """
    duckdb = optional("duckdb", "sql")
    database = _Database(duckdb)
    connection = database.connection
    try:
        for name, scan in scans.items():
            connection.register(name, scan)
        for setting in (*DUCKDB_SETTINGS, *_WALLS):
            connection.execute(setting)
        parsed = connection.extract_statements(text)
        if len(parsed) != 1 or parsed[0].type not in _kinds(duckdb, text):
            raise UsageError(f"DuckDB reads {text[:200]!r} as something else than one query")
        if some and isinstance(args, Mapping):
            args = {name: value for name, value in args.items() if name in parsed[0].named_parameters}
        reader = connection.sql(text, params=args).to_arrow_reader(_BATCH_ROWS)
    except duckdb.Error as error:
        database.close()
        raise _told(error, scans) from error
    except BaseException:
        database.close()
        raise
    return Rows(reader.schema, _batches(reader, database, scans))


def _kinds(duckdb: Any, text: str) -> set[Any]:
    """What DuckDB may take a query for. It finds the columns of a pivot by a statement before it."""
    found = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
    return found | {duckdb.StatementType.MULTI} if "pivot" in text.lower() else found


class _Database:
    """A database in memory, and a directory of its own to spill to.

    A text may reach that directory. It goes when the database is closed or forgotten.
    """

    def __init__(self, duckdb: Any) -> None:
        home = Home.for_spills()
        self._remove = weakref.finalize(self, home.release)
        spill = str(Path(home.path) / "spill")
        self.connection = duckdb.connect(":memory:", config={**DUCKDB_CONFIG, "temp_directory": spill})

    def close(self) -> None:
        self.connection.close()
        self._remove()


def _batches(reader: Any, database: _Database, scans: Mapping[str, Scan]) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except (pa.ArrowException, OSError, RuntimeError) as error:
        raise _told(error, scans) from error
    finally:
        database.close()


def _told(error: Exception, scans: Mapping[str, Scan]) -> TidelakeError:
    """The error of a table, if one ended the query; else what DuckDB says."""
    for scan in scans.values():
        if isinstance(scan.failure, TidelakeError):
            return scan.failure
    return UsageError(f"DuckDB: {error}")
