"""SQL in this process: a statement over tables, carried out by DuckDB (the extra `sql`).

Owns the walls around DuckDB. Each statement has a database of its own, in memory, that sees the tables given
and nothing else: no files, no network, no extensions, no variables of Python, no settings. Must not know
lakes.

INVARIANT: no setting of the machine is in an answer.
"""

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
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
# Functions that tell of this process and its machine, and those that carry a text of a text out.
_OF_THE_MACHINE = re.compile(
    r"\b(current_setting|getenv|duckdb_(?:settings|temporary_files|memory|secrets|logs)|pragma_\w+|which_secret)\b"
    r'|\b(query|query_table)"?\s*\(',
    re.IGNORECASE,
)
_UNKNOWN = re.compile(
    r'Binder Error: (?:Referenced|Values list "([^\n]*)" does not have a) column (?:named )?'
    r'"([^\n]*?)"(?: not found|[!\n]|$)'
)
_LISTED_MAX = 10  # columns that a message lists of a table
_WALLS = ("SET enable_external_access = false", "SET lock_configuration = true")

Batches = Callable[[], Iterator[pa.RecordBatch]]


class Scan:
    """A table that DuckDB reads as a stream, from its begin for each scan.

    Attributes:
        schema: its columns.
        names: of the columns of the collection, more than those here if the others are not read.
        title: what messages call it.
        failure: the error that ended a stream; DuckDB keeps only its text.
    """

    def __init__(
        self, schema: pa.Schema, batches: Batches, names: Sequence[str] = (), title: str = ""
    ) -> None:
        check_for_duckdb(schema)
        self.schema, self._batches, self.names = schema, batches, names or schema.names
        self.title = title
        self.failure: Exception | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, from the begin."""
        return self._batches()

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
        _check_reach(duckdb, text)
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


def _check_reach(duckdb: Any, text: str) -> None:
    """Refuse functions whose answer would depend on the machine.

    Raises:
        UsageError: the text calls one; names it.
    """
    raw, tokens = text.encode(), duckdb.tokenize(text)
    ends = [*(at for at, _ in tokens[1:]), len(raw)]
    code = b" ".join(
        raw[at:end]
        for (at, kind), end in zip(tokens, ends, strict=True)
        if kind != duckdb.token_type.string_const
    )
    found = _OF_THE_MACHINE.search(code.decode())
    if found is not None:
        raise UsageError(
            f"{found[1] or found[2]} tells of this process and not of the lake: a statement reads "
            "collections only"
        )


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
    unknown, names = _UNKNOWN.match(str(error)), {name for scan in scans.values() for name in scan.names}
    there = {scan.title: scan.names for scan in scans.values() if scan.title}
    if unknown is None or (unknown[1] not in there and unknown[2].lower() in map(str.lower, names)):
        # A table may have it, and only not give it there, as inside of a query in parentheses.
        return UsageError(f"DuckDB: {error}")
    who = "no table that is read here has a" if unknown[1] is None else f"{unknown[1]!r} has no"
    # DuckDB's own proposals are of the columns that are read.
    has = "; ".join(f"{title!r} has {_listed(unknown[2], names)}" for title, names in there.items())
    return UsageError(f"{who} column {unknown[2]!r}{': ' if has else ''}{has}")


def _listed(wanted: str, names: Sequence[str]) -> str:
    """Names of columns, those like the wanted one first."""
    first = dict.fromkeys([*get_close_matches(wanted, names), *names])
    more = len(first) - _LISTED_MAX
    return ", ".join([*map(repr, first)][:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
