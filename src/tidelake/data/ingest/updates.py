"""The entry point for data from outside: tables of updates are checked and made canonical.

Owns what a caller may pass in and every message about it; must not know where the updates go. Invariant: the
table returned has exactly the columns, order and types of `update_schema`, no null where none may be,
times >= 0, no diff of 0, and canonical values. All other code relies on this.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.astable import as_table, first_line
from tidelake.data.kernel.arrays import from_numpy, null_mask, to_numpy
from tidelake.data.kernel.canonical import canonical, filled, has_floats
from tidelake.data.kernel.exactcast import cast_exactly
from tidelake.data.kernel.timestamps import days_of
from tidelake.data.kernel.types import UNFIT, check_kept, data_type, listed, stored_type, update_schema
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.schema import DIFF, DataType, Schema
from tidelake.model.time import Time, TimeDomain, parts
from tidelake.timetext import US_PER_UNIT

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Combining copies; larger tables are handled chunk by chunk anyway.
_COMBINE_BYTES = 64 * 1024 * 1024
# Constants of more rows are cut: no copy is held of each row.
_CONSTANT_ROWS = 1024 * 1024
_INTEGERS = ("int", "uint")
# Which kinds of types may be cast into which; the cast itself still refuses values that it would change.
_SAFE = {
    "integer": ("integer", "float", "decimal"),
    "float": ("float",),
    "decimal": ("decimal",),
    "string": ("string",),
    "binary": ("binary",),
    "date": ("date",),
    "time": ("time",),
    "duration": ("duration",),
    "timestamp": ("timestamp",),
    "zoned timestamp": ("zoned timestamp",),
}


def normalize(
    data: object,
    schema: Schema,
    domain: TimeDomain,
    *,
    time: Time | None = None,
    optional: Collection[str] = (),
    dropped: Collection[str] = (),
) -> pa.Table:
    """Check a table of updates and bring it into canonical form.

    Args:
        data: a table, batch or reader of pyarrow, a pandas DataFrame, or anything with
            `__arrow_c_stream__` or `__arrow_c_array__`; columns in any order.
        schema: the collection's key and value columns.
        domain: the collection's unit of time.
        time: the time of all rows; then `data` has no time column.
        optional: nullable columns that may be missing, and are null then.
        dropped: columns that earlier schemas had, for the message.

    Returns:
        A table of `update_schema(schema, domain)` in the order of the rows. A missing `_diff` is +1.

    Raises:
        InvalidUpdates: unknown or missing columns, types or values that do not fit; names the column and the
            first bad row, counted from 0.
    """
    table = as_table(data)
    wanted, fields, names = _wanted(schema, domain)
    given = () if time is None else domain.columns
    found: list[str] = table.column_names
    _check_columns(found, names, given, optional, dropped)
    values = () if time is None else parts(domain.check(time))
    columns: list[pa.Array | pa.ChunkedArray] = []
    several = False
    for name, target in zip(names, fields, strict=True):
        field = target.field
        if name in given:
            columns.append(_constant(values[given.index(name)], table))
        elif name in found:
            chunks = _chunks(table.column(found.index(name)), target, domain)
            if name == DIFF:
                _check_rows(chunks, name, lambda x: x == 0, "a diff must not be 0: leave the row out")
            elif name in domain.columns:
                _check_rows(chunks, name, lambda x: x < 0, "a time must not be negative")
            columns.append(chunks[0] if len(chunks) == 1 else pa.chunked_array(chunks, field.type))
            several = several or len(chunks) > 1
        elif name == DIFF:
            columns.append(_constant(1, table))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    result = pa.Table.from_arrays(columns, schema=wanted)
    return result.combine_chunks() if several and result.nbytes <= _COMBINE_BYTES else result


@dataclass(frozen=True)
class _Target:
    """A column of the result, and what is asked of its type for every table.

    Attributes:
        as_is: whether that is the type of the field.
    """

    field: pa.Field
    stored: pa.DataType
    as_is: bool
    nested: bool
    floats: bool

    @classmethod
    def of(cls, field: pa.Field) -> "_Target":
        kind, stored = field.type, stored_type(field.type)
        return cls(field, stored, kind.equals(stored), pa.types.is_nested(kind), has_floats(kind))


@lru_cache(64)
def _wanted(schema: Schema, domain: TimeDomain) -> tuple[pa.Schema, tuple[_Target, ...], tuple[str, ...]]:
    """The schema of updates, its columns and their names: asking Arrow for them again takes long."""
    wanted = update_schema(schema, domain)
    return wanted, tuple(map(_Target.of, wanted)), tuple(wanted.names)


def _constant(value: int, table: pa.Table) -> pa.Array | pa.ChunkedArray:
    """A number for each row. Of many rows, in chunks as the table has them, which share their memory."""
    if table.num_rows <= _CONSTANT_ROWS:
        return from_numpy(np.zeros(table.num_rows, np.int64) + value)
    one = from_numpy(np.full(_CONSTANT_ROWS, value, np.int64))
    lengths = [len(chunk) for chunk in table.column(0).chunks] if table.num_columns else [table.num_rows]
    cuts = [
        one.slice(0, min(_CONSTANT_ROWS, length - start))
        for length in lengths
        for start in range(0, length, _CONSTANT_ROWS)
    ]
    return pa.chunked_array(cuts)


def _check_columns(
    found: list[str],
    wanted: tuple[str, ...],
    given: tuple[str, ...],
    optional: Collection[str],
    dropped: Collection[str],
) -> None:
    names = frozenset(found)
    if len(names) == len(found) and names.isdisjoint(given) and names | {DIFF, *given} == {*wanted}:
        return
    there = f"the table has {listed(found) or 'no columns'}"
    doubled = sorted(name for name, count in Counter(found).items() if count > 1)
    if doubled:
        raise InvalidUpdates(f"column {doubled[0]!r} appears twice: {there}")
    twice = [name for name in given if name in names]
    if twice:
        raise InvalidUpdates(f"column {twice[0]!r} gives times, but the call gives one as well: drop either")
    allowed = {*names, *given, *optional, DIFF}
    known = frozenset(wanted)
    unknown = [name for name in found if name not in known]
    gone = [name for name in unknown if name in dropped]
    if gone:
        raise InvalidUpdates(
            f"column {listed(gone)} was dropped from the collection or renamed: it has "
            f"{listed(wanted)} now; leave it out of the table, or give it its new name"
        )
    missing = [name for name in wanted if name not in allowed]
    if missing:
        raise InvalidUpdates(f"missing column {listed(missing)}: {there}")
    if unknown:
        raise InvalidUpdates(
            f"unknown column {listed(unknown)}: the collection has {listed(wanted)}; drop or rename it"
        )


def _chunks(column: pa.ChunkedArray, target: _Target, domain: TimeDomain) -> list[pa.Array]:
    """The chunks of a column: checked, of the type of the field, and canonical."""
    field = target.field
    several = [column.chunk(0)] if column.num_chunks == 1 else column.chunks
    chunks = several if column.type.equals(field.type) else [_cast(chunk, field, domain) for chunk in several]
    start = 0
    for chunk in chunks:
        try:
            chunk.validate(full=True)
            # Seconds are stored as milliseconds; a time past their range cannot be stored.
            if not target.as_is:
                filled(chunk).cast(target.stored)
        except pa.ArrowInvalid as error:
            raise InvalidUpdates(
                f"column {field.name!r} holds invalid values: {first_line(error)}"
            ) from error
        bad = _missing(chunk, field) if target.nested or (chunk.null_count and not field.nullable) else None
        if bad is not None and bad.any():
            row = start + int(np.argmax(bad))
            raise InvalidUpdates(
                f"column {field.name!r} must not be null, but is in row {row}: give it a value"
            )
        start += len(chunk)
    return [canonical(chunk) for chunk in chunks] if target.floats else chunks


def _cast(chunk: pa.Array, field: pa.Field, domain: TimeDomain) -> pa.Array:
    """The chunk cast to the type of `field`, which is another one, its values unchanged."""
    found, expected = chunk.type, field.type
    is_ = pa.types
    is_clock = field.name in domain.columns and domain.unit in US_PER_UNIT
    if is_clock and domain.unit == "date" and (is_.is_timestamp(found) or is_.is_date(found)):
        return days_of(chunk, field.name)
    if is_clock and is_.is_timestamp(found):
        if found.tz is None:
            raise InvalidUpdates(
                f"column {field.name!r} has type {found}, which does not say its zone: give timestamps with "
                f"one, by pyarrow.compute.assume_timezone(column, 'UTC'), or by frame[{field.name!r}]"
                ".dt.tz_localize('UTC') of pandas or .dt.replace_time_zone('UTC') of polars"
            )
        # In these units an int64 time and a timestamp are the same number.
        expected = pa.timestamp(domain.unit, "UTC")
    try:
        check_kept(found, field.name)
    except UsageError as error:
        raise InvalidUpdates(str(error)) from error
    refusal = f"column {field.name!r} has type {found}, expected {expected}"
    if not pa.types.is_null(found):
        try:
            described = data_type(found, field.name)
        except UsageError as error:
            raise InvalidUpdates(f"{refusal}: {error}") from error
        if not _castable(described, data_type(expected, field.name)):
            raise InvalidUpdates(f"{refusal}: cast the column first")
    try:
        result = cast_exactly(chunk, expected)
        return result.view(pa.int64()) if expected is not field.type else result
    except UNFIT as error:
        raise InvalidUpdates(f"{refusal}, and not every value fits: {first_line(error)}") from error


def _castable(found: DataType, expected: DataType) -> bool:
    """Whether values of one type may be cast to the other, as far as the types say."""
    if found.nested or expected.nested:
        lists = ("list", "fixed_size_list")
        same = found.name == expected.name or (found.name in lists and expected.name in lists)
        return (
            same
            and [c.name for c in found.children] == [c.name for c in expected.children]
            and all(_castable(a.type, b.type) for a, b in zip(found.children, expected.children, strict=True))
        )
    kind, target = _kind(found), _kind(expected)
    if kind == target == "float":
        # By type and not by value: a column that fits today and fails tomorrow is no help.
        return int(found.name[5:]) <= int(expected.name[5:])
    return found == expected or target in _SAFE.get(kind, ())


def _kind(type_: DataType) -> str:
    name = type_.name
    if name == "timestamp":
        return "timestamp" if len(type_.params) == 1 else "zoned timestamp"
    stem = "binary" if name == "fixed_size_binary" else name.rstrip("0123456789")
    return "integer" if stem in _INTEGERS else stem


def _missing(array: pa.Array, field: pa.Field) -> Mask | None:
    """Rows with a null where `field` or a field in it allows none; None if there surely is no such row."""
    bad: Mask | None = None
    if not field.nullable and array.null_count:
        bad = null_mask(array)
    kind = field.type
    if not pa.types.is_nested(kind):
        return bad
    children: list[pa.Array]
    if pa.types.is_struct(kind):
        children = array.flatten()
        # Fields of a null struct are null too, which is allowed.
        rows = np.arange(len(array))
        inside = ~null_mask(array)
    else:
        children = [array.flatten()]
        rows = to_numpy(pc.list_parent_indices(array))
        inside = np.ones(len(rows), np.bool_)
    for i, child in enumerate(children):
        below = _missing(child, kind.field(i))
        if below is not None:
            bad = np.zeros(len(array), np.bool_) if bad is None else bad
            bad[rows[below & inside]] = True
    return bad


def _check_rows(chunks: list[pa.Array], name: str, offends: Callable[[Ints], Mask], rule: str) -> None:
    start = 0
    for chunk in chunks:
        values = to_numpy(chunk)
        bad = offends(values)
        if np.logical_or.reduce(bad):
            row = int(np.argmax(bad))
            raise InvalidUpdates(f"column {name!r} is {values[row]} in row {start + row}: {rule}")
        start += len(chunk)
