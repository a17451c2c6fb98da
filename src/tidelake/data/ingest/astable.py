"""What callers hand in as rows, in any library's form, as an Arrow table that is not checked yet.

Owns the forms that are taken, and what a library would lose or garble on the way to Arrow; must not know
collections. Invariant: every value of the table is the one that was handed in.
"""

import re
from typing import Any

import pyarrow as pa

from tidelake.data.ingest.pythonrows import check_values, is_rows, table_of
from tidelake.data.kernel.types import UNFIT
from tidelake.errors import InvalidUpdates, UsageError

_REASON_MAX = 300
_FORMS = "hand in a pyarrow table, a DataFrame, dicts, or anything else that exports Arrow streams"
# Types of polars that Arrow lacks.
_NOT_ARROW = {"Int128": "pl.Decimal(38, 0)", "UInt128": "pl.Decimal(38, 0)", "Object": "pl.String"}


def as_table(data: object, what: str = "updates") -> pa.Table:
    """Rows in any form, as an unchecked table. Reads a stream to its end."""
    table = data if isinstance(data, pa.Table) else _as_table(data, what)
    try:
        table.column_names  # noqa: B018 - decodes them
    except UnicodeDecodeError as error:
        raise InvalidUpdates(f"the name of a column is not UTF-8: {error}; rename it") from error
    return table


def is_table(data: object) -> bool:
    """Whether data is in one of the forms that `as_table` reads, or has to be collected before."""
    return (
        isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader)
        or is_rows(data)
        or any(hasattr(data, name) for name in ("__arrow_c_stream__", "__arrow_c_array__", "collect"))
        or (type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"))
    )


def check_polars(columns: Any, refusal: type[UsageError] = UsageError) -> None:
    """Check that Arrow has the types of a polars schema, a mapping of names to types."""
    for name, kind in columns.items():
        for odd, instead in _NOT_ARROW.items():
            if re.search(rf"\b{odd}\b", str(kind)):
                raise refusal(
                    f"column {name!r} has the type {kind} of polars, which Arrow lacks: cast it to {instead}"
                )


def first_line(error: Exception) -> str:
    """The first line of another library's message, cut to a readable length."""
    line = str(error).split("\n", 1)[0]
    return line if len(line) <= _REASON_MAX else line[: _REASON_MAX - 3] + "..."


def _as_table(data: object, what: str) -> pa.Table:
    if is_rows(data):
        return table_of(data)
    kind = type(data)
    library = kind.__module__.partition(".")[0]
    try:
        if isinstance(data, pa.RecordBatch):
            return pa.Table.from_batches([data])
        if isinstance(data, pa.RecordBatchReader):
            return data.read_all()
        if library == "pandas" and hasattr(data, "columns"):
            return _from_pandas(data, what)
        if library == "polars" and hasattr(data, "__arrow_c_stream__") and hasattr(data, "schema"):
            check_polars(data.schema, InvalidUpdates)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data).read_all()
        if hasattr(data, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(data)])
    except UNFIT as error:
        raise InvalidUpdates(f"cannot read {what} from a {kind.__name__}: {first_line(error)}") from error
    hint = "collect() it first" if hasattr(data, "collect") else _FORMS
    if isinstance(data, list) and not data:
        hint = "it has no rows, which would say the columns; leave the call out, or hand in an empty table"
    raise InvalidUpdates(f"cannot read {what} from a {kind.__name__}: {hint}")


def with_named_index(frame: Any) -> Any:
    """A DataFrame of pandas whose named index is a column, as `reset_index` makes it.

    An index without a name, or with the name of a column, numbers rows and is no data.
    """
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    return frame.reset_index(level=named) if named else frame


def _from_pandas(data: Any, what: str) -> pa.Table:
    """A DataFrame; its own stream would add an index without a name as a column."""
    try:
        data = with_named_index(data)
        table = pa.Table.from_pandas(data, preserve_index=False)
    # Python's errors for duplicate names, numbers past 64 bits, and texts that are not Unicode.
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise InvalidUpdates(f"cannot read {what} from a DataFrame: {first_line(error)}") from error
    for place, field in enumerate(table.schema):
        if data.dtypes.iloc[place].kind == "O":
            check_values(field.name, data.iloc[:, place], field.type)
    return table
