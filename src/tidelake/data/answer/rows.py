"""`Rows`: the answer of a read as a stream that is read once, is printed, and converts to what others read.

Owns which rows are printed and what becomes of them; must not know where they come from.

INVARIANT: each row is given once, in order, whether it was printed before or not, in columns that polars and
DuckDB can import.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelake import tabletext
from tidelake.data.answer.importable import check_for_duckdb, check_for_polars, hard_columns, importable
from tidelake.data.answer.pandasframe import frame
from tidelake.data.answer.timecells import texts
from tidelake.data.kernel.timestamps import timestamp_schema, with_timestamps
from tidelake.data.kernel.types import UNFIT
from tidelake.errors import UsageError, to_install
from tidelake.handle import Handle
from tidelake.model.time import TimeDomain
from tidelake.timetext import is_clock, many

SHOWN_ROWS = 10
SHOWN_COLUMNS = 20
_LAST_COLUMNS = 3  # of a wide table; times and `_diff` are the last ones
_SHOWN_ITEMS = 10


class Rows(Handle):
    """Rows of an answer, as a stream of record batches that can be read once.

    It is an iterator of `pyarrow.RecordBatch`, and an Arrow stream for every library that takes one (polars,
    DuckDB, pandas, pyarrow). It holds one batch at a time. What keeps the stored parts ends with the stream,
    with `close`, or when the object is forgotten.

    Printed (`repr`, or as a table in a notebook), it shows its first 10 rows. For that it reads the first
    batch or two, and keeps them: who reads the rows later gets them as well. Once rows were taken, printing
    reads nothing and shows the columns only. Times of a clock are shown as people write them.
    """

    def __init__(
        self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], domain: TimeDomain | None = None
    ) -> None:
        """Wrap batches.

        Args:
            schema: of all batches.
            batches: read once, one at a time.
            domain: unit of the times in a column `_time`, if there is one, for printing.
        """
        self._schema, self._batches, self._domain = schema, iter(batches), domain
        self._hard = hard_columns(schema)
        self._ahead: deque[pa.RecordBatch] = deque()  # read for printing
        self._failure: Exception | None = None  # met while printing
        self._taken = False
        self._over = ""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def read_next_batch(self) -> pa.RecordBatch:
        """The next batch.

        Raises:
            StopIteration: there are no more.
            UsageError: the rows were closed, or an earlier read of them failed or was interrupted.
        """
        self._taken = True
        if self._ahead:
            return self._ahead.popleft()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._next()

    def _next(self) -> pa.RecordBatch:
        if self._over:
            raise UsageError(self._over)
        try:
            return importable(next(self._batches), self._hard)
        except StopIteration:
            raise
        except BaseException as error:
            # What comes next is lost, and an end without an error would look like the end of the rows.
            self._over = f"reading these rows ended with {type(error).__name__}: ask for them again"
            raise

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self.read_next_batch()

    def read_all(self) -> pa.Table:
        """The rows that were not read yet, as a table in memory."""
        return pa.Table.from_batches(self, self._schema)

    def read_pandas(self, **options: Any) -> Any:
        """The rows that were not read yet, as a pandas DataFrame; see `to_pandas`."""
        return self._frame(options)

    def to_arrow(self) -> pa.Table:
        """All rows as a `pyarrow.Table`.

        Raises:
            UsageError: some were read before.
        """
        self._check_whole("to_arrow")
        return self.read_all()

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a pandas DataFrame.

        The frame holds the values that the rows have, and can be appended or upserted as it is. Columns are
        of NumPy's types where those hold the values. Otherwise they are of pandas' own (`Int64`, `boolean`,
        for nulls) or of Arrow's (lists, structs, NaN, dates after the year 9999, times with nanoseconds).
        Times of a clock are timestamps in UTC, or dates. One column is converted after the other, and freed:
        memory holds the rows once, and one column twice.

        Args:
            options: of `pyarrow.Table.to_pandas`; `types_mapper` and `integer_object_nulls` choose other
                types.

        Raises:
            UsageError: pandas is not installed, some rows were read before, or a day is past the last date.
        """
        self._check_whole("to_pandas")
        return self._frame(options)

    def to_polars(self) -> Any:
        """All rows as a `polars.DataFrame`, which uses the memory of the rows that were read.

        Raises:
            UsageError: polars is not installed, or some rows were read before.
        """
        polars = optional("polars", "polars")
        check_for_polars(self._schema)
        self._check_whole("to_polars")
        return polars.from_arrow(self.read_all(), rechunk=False)

    def to_duckdb(self, connection: Any = None) -> Any:
        """All rows as a relation of DuckDB, which reads them in place, as often as it is asked.

        Args:
            connection: a connection of DuckDB; default: its default one.

        Raises:
            UsageError: DuckDB is not installed, names differ only in case, or some rows were read before.
        """
        duckdb = optional("duckdb", "sql")
        check_for_duckdb(self._schema)
        self._check_whole("to_duckdb")
        rows = self.read_all()
        return duckdb.from_arrow(rows) if connection is None else connection.from_arrow(rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows that were not read yet, for other libraries."""
        return pa.RecordBatchReader.from_batches(self._schema, self).__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Read no further, and let go of what the stream keeps. May be repeated."""
        self._over = self._over or "these rows were closed: ask for them again"
        self._taken, self._failure = True, None
        self._ahead.clear()
        end = getattr(self._batches, "close", None)
        if end is not None:
            end()

    def __enter__(self) -> "Rows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        head, rows, note = self._shown()
        if not rows:
            return f"Rows({', '.join(map(tabletext.cell, head))}): {note}"
        return f"{tabletext.as_text(head, rows)}\n{note}"

    def _repr_html_(self) -> str:
        head, rows, note = self._shown()
        return tabletext.as_html(head, rows, note=note)

    def _shown(self) -> tuple[list[str], list[list[str]], str]:
        """Names of columns, the cells of the first rows, and a line about them."""
        places = _places(len(self._schema))
        fields = [self._schema.field(i) for i in places]
        is_wide = len(places) < len(self._schema)
        head = _with_gap([field.name for field in fields], is_wide)
        if self._taken:
            return head, [], "rows were read from it; ask again to see them"
        is_all = self._look_ahead()
        table = pa.Table.from_batches(self._ahead, self._schema).slice(0, SHOWN_ROWS)
        columns = [_cells(table.column(i), f, self._domain) for i, f in zip(places, fields, strict=True)]
        rows = [_with_gap([*row], is_wide) for row in zip(*columns, strict=True)]
        found = sum(batch.num_rows for batch in self._ahead)
        if self._failure is not None:
            note = f"cannot be read further: {self._failure}"
        elif is_all and found <= SHOWN_ROWS:
            note = "no rows" if not found else many(found, "row")
        else:
            note = f"the first {SHOWN_ROWS} rows"
        if is_wide:
            note += f"; {len(places)} of {len(self._schema):,} columns"
        return head, rows, tabletext.harmless(note)

    def _look_ahead(self) -> bool:
        """Read until there are more rows than are shown. Returns whether these are all."""
        while self._failure is None and sum(batch.num_rows for batch in self._ahead) <= SHOWN_ROWS:
            try:
                self._ahead.append(self._next())
            except StopIteration:
                return True
            except Exception as error:  # kept, and raised to who reads the rows
                self._failure = error
        return False

    def _check_whole(self, call: str) -> None:
        if self._over:
            raise UsageError(self._over)
        if self._taken:
            raise UsageError(
                f"{call}: rows of this answer were read before, and it gives them once: ask again"
            )

    def _frame(self, options: dict[str, Any]) -> Any:
        pandas = optional("pandas", None)
        if self._domain is None or not is_clock(self._domain.unit):
            return frame(self._schema, self, pandas, options)
        batches = (with_timestamps(batch, self._domain) for batch in self)
        return frame(timestamp_schema(self._schema, self._domain), batches, pandas, options)


def optional(name: str, extra: str | None) -> Any:
    """A library that does not come with the core, but with an extra, or (None) by itself.

    Raises:
        UsageError: it is not installed; says how to install it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        how = f"pip install '{name}'" if extra is None else to_install(extra)
        raise UsageError(f"this needs {name} ({error}): {how}") from error


def _places(columns: int) -> list[int]:
    """The places of the columns that are shown: all, or the first and the last ones."""
    first = columns if columns <= SHOWN_COLUMNS else SHOWN_COLUMNS - _LAST_COLUMNS
    return [*range(first), *range(max(first, columns - _LAST_COLUMNS), columns)]


def _with_gap(cells: list[str], is_wide: bool) -> list[str]:
    """Cells of a row; in a wide table with one that says that others are left out."""
    return [*cells[:-_LAST_COLUMNS], "…", *cells[-_LAST_COLUMNS:]] if is_wide else cells


def _cells(column: pa.ChunkedArray, field: pa.Field, domain: TimeDomain | None) -> list[str]:
    """The texts of the values of a column; only the beginning of long values is converted."""
    try:
        array = _beginnings(column.combine_chunks())
        (found,) = texts(pa.RecordBatch.from_arrays([array], [field.name])).columns
        values = found.to_pylist()
    except (*UNFIT, ValueError, OverflowError):
        # A type that Tidelake does not store, such as of a result of SQL.
        values = [f"<{field.type}>"] * len(column)
    if domain is not None and (field.name,) == domain.columns and pa.types.is_integer(field.type):
        values = [value if value is None else domain.text(value) for value in values]
    return [tabletext.cell(value) for value in values]


def _beginnings(array: pa.Array) -> pa.Array:
    is_, kind = pa.types, array.type
    if is_.is_string(kind) or is_.is_large_string(kind):
        return pc.utf8_slice_codeunits(array, 0, tabletext.CELL_MAX + 1)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return pc.binary_slice(array, 0, tabletext.CELL_MAX + 1)
    if is_.is_list(kind) or is_.is_large_list(kind):
        return pc.list_slice(array, 0, _SHOWN_ITEMS)
    return array
