"""Statements of SQL that change a collection, carried out by DuckDB in this process.

Owns which updates a statement means: DuckDB evaluates every expression, and rows that go are taken as they
are stored, so that they cancel.

INVARIANT: what is committed is the statement carried out on the contents just before the commit; of other
collections, on what they had after those were read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.answer.importable import lowered
from tidelake.data.answer.rows import Rows
from tidelake.data.kernel.exactcast import cast_exactly
from tidelake.data.kernel.sums import opposite
from tidelake.data.kernel.types import UNFIT, row_schema
from tidelake.data.sql.changes import (
    Action,
    Insertion,
    RowChange,
    TextSpan,
    change,
    in_order,
    insertion,
    places,
)
from tidelake.data.sql.needs import needs_of
from tidelake.data.sql.statement import Engine, Statement, quoted, shown, statement
from tidelake.errors import CollectionNotFound, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Scan, run, table_name
from tidelake.lake.api.handle import shard_of, times_of
from tidelake.lake.api.naming import Naming
from tidelake.lake.api.reading import ask
from tidelake.lake.api.tablereads import scans_of, table_reads
from tidelake.lake.arguments.tokens import commit_once
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf
from tidelake.model.schema import DIFF, Schema
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time
from tidelake.shard.engine.version import Version
from tidelake.shard.writing.derived import ComputedChange, commit_change

Args = Sequence[object] | Mapping[str, object] | None

_ENGINE: Engine = "duckdb"
_TARGET, _SOURCE = '"tidelake_target"', '"tidelake_source"'
# How DuckDB gives an infinite date or instant to Arrow.
_INFINITE = {pa.date32().id: 2**31 - 1, pa.timestamp("us").id: 2**63 - 1}
_PLACE = "_tidelake_row"  # a name that no column can have


def changed(
    lake: Naming,
    parsed: Statement,
    target: Collection,
    *,
    not_found: Callable[[str], CollectionNotFound],
    args: Args,
    timeout_s: float | None,
    time: TimeLike | None,
    token: str | None,
    author: str,
    message: str,
) -> Rows:
    """Carry out an INSERT, UPDATE, DELETE or MERGE in one commit; other arguments and errors as `Lake.sql`.

    Args:
        lake: where the tables are.
        parsed: the statement.
        target: the collection to change.
        not_found: the error if there is no table of a name.
        args: as for `Lake.sql`.
        timeout_s: likewise.
        time: likewise.
        token: likewise.
        author: likewise.
        message: likewise.

    Returns:
        One row: how many updates were written, and the new upper.
    """
    at = None if time is None else times_of(target).at(time, "time")
    work = _Work(lake, parsed, target, args, timeout_s)
    work.not_found = not_found
    shard = shard_of(target)
    asked = ComputedChange(work.updates, parsed.text, at)
    done = commit_once(shard, partial(commit_change, shard, asked), token, author, message)
    updates = pa.array([0 if done.already else work.written], pa.int64())
    told = pa.record_batch({"updates": updates, "upper": [target.domain.text(done.upper)]})
    return Rows(told.schema, iter([told]))


class _Work:
    """A statement, and the updates that it means for a version of its target.

    Attributes:
        not_found: the error if there is no table of a name.
        written: how many updates the last ones were, before equal ones were summed.
    """

    not_found: Callable[[str], CollectionNotFound]

    def __init__(
        self, lake: Naming, parsed: Statement, target: Collection, args: Args, timeout_s: float | None
    ) -> None:
        self._lake, self._parsed, self._target = lake, parsed, target
        self._args, self._timeout_s = args, timeout_s
        self._asked = insertion(parsed) if parsed.kind == "insert" else change(parsed)
        self._alias = quoted(parsed.tables[self._asked.target].alias, _ENGINE)
        self._names: dict[int, str] = {}
        self._scans: dict[str, Scan] = {}
        self.written = 0
        if parsed.kind == "merge" and args is not None and not isinstance(args, Mapping):
            raise UsageError("args of a MERGE is a dict: write $name, not ?, in the text")

    def updates(self, version: Version, at: Time) -> list[pa.Table]:
        """The updates on the contents of a version at an open time, without times."""
        apart = self._asked.target
        own = (self._target, at)
        found = table_reads(self._lake, self._parsed, None, self._timeout_s, apart=[apart], own=own)
        for index, table in enumerate(self._parsed.tables):
            if index != apart and index not in found:
                raise self.not_found(table.name)
        self._scans = scans_of(found)
        self._names = {i: table_name(i) for i in found}
        if isinstance(self._asked, Insertion):
            made = [self._inserted(version.spec.schema, self._asked)]
        else:
            made = self._changed(version, at, self._asked)
        self.written = sum(table.num_rows for table in made)
        return made

    # INSERT

    def _inserted(self, schema: Schema, asked: Insertion) -> pa.Table:
        rows = self._run(self._text(asked.before) + self._text(asked.query))
        there, title, text = [c.name for c in schema.columns], self._target.name, shown(self._parsed.text)
        names = rows.column_names if asked.by_name else list(asked.columns or there)
        if rows.num_columns != len(names):
            raise UsageError(
                f"{text} gives rows of {rows.num_columns} values for the {len(names)} columns of "
                f"{title!r}: name the columns that are given, of {', '.join(there)}"
            )
        if asked.columns is None and not asked.by_name and not in_order(schema, rows.column_names):
            listed = ", ".join(quoted(name, _ENGINE) for name in there)
            raise UsageError(
                f"{text}: keys come first in {title!r}, unlike where it was made: name them, INSERT INTO "
                f"{title} ({listed}), or write BY NAME"
            )
        values = dict(zip(places(there, names, title, lowered), rows.columns, strict=True))
        return _with_counts(_rows(row_schema(schema), values, rows.num_rows), 1)

    # UPDATE, DELETE and MERGE

    def _changed(self, version: Version, at: Time, asked: RowChange) -> list[pa.Table]:
        schema = row_schema(version.spec.schema)
        contents = _Contents(self._target, version, at, self._where(asked, version.spec.schema))
        self._scans["tidelake_target"] = Scan(
            contents.schema, contents.batches, contents.rows.names, self._target.name
        )
        source = _TARGET + f" AS {self._alias}"
        if asked.source is not None:
            # Read once: it may give other rows when it is read again.
            rows = self._run(f"SELECT * FROM {self._text(asked.source)}")  # noqa: S608 - the user's own text
            self._scans["tidelake_source"] = Scan(rows.schema, rows.to_batches)
        found, made = list[tuple[Action, pa.Table]](), list[pa.Table]()
        for matched in (True, False):
            before: list[str] = []
            for action in (one for one in asked.actions if one.matched == matched):
                own = "TRUE" if action.condition is None else self._condition(action.condition)
                where = " AND ".join([own, *(f"NOT coalesce({one}, FALSE)" for one in before)])
                values = self._values(action, schema.names)
                if matched:
                    join = "" if asked.on is None else f" JOIN {self._other} ON {self._condition(asked.on)}"
                    columns = ", ".join([f"{self._alias}.{_PLACE}", *values])
                    found.append((action, self._run(f"SELECT {columns} FROM {source}{join} WHERE {where}")))  # noqa: S608 - the user's own text
                else:
                    on = "FALSE" if asked.on is None else self._condition(asked.on)
                    text = f"FROM {self._other} ANTI JOIN {source} ON {on} WHERE {where}"
                    rows = self._run(f"SELECT {', '.join(values)} {text}")
                    given = dict(zip(self._places(action, schema.names), rows.columns, strict=True))
                    made.append(_with_counts(_rows(schema, given, rows.num_rows), 1))
                before.append(own)
        return [*self._replaced(contents, found), *made]

    def _replaced(self, contents: "_Contents", found: list[tuple[Action, pa.Table]]) -> Iterator[pa.Table]:
        """The rows that go, and those that come for them."""
        taken = [table.column(0).to_numpy() for _, table in found]
        all_ = np.concatenate(taken) if taken else np.zeros(0, np.int64)
        only_deletes = len(found) == 1 and found[0][0].kind == "delete"
        if not only_deletes and len(np.unique(all_)) < len(all_):
            raise UsageError(
                "several rows of the source match one row of the target, which would become several: give "
                "the source one row for each key, or use collection.upsert(..., order_by=...)"
            )
        for (action, table), numbers in zip(found, taken, strict=True):
            _, first = np.unique(numbers, return_index=True)
            old = contents.at(numbers[first])
            counts = old.column(DIFF)
            yield old.set_column(len(old.column_names) - 1, DIFF, opposite(counts))
            if action.kind == "update":
                rows = table.take(pa.array(first))
                schema = contents.rows
                values = {i: old.column(i) for i in range(len(schema))}
                given = zip(self._places(action, schema.names), rows.columns[1:], strict=True)
                yield _with_counts(_rows(schema, values | dict(given), old.num_rows), counts)

    def _where(self, asked: RowChange, schema: Schema) -> str | None:
        """A condition that all rows satisfy that the statement may change; None: there is none.

        Rows of a MERGE are found by its source.
        """
        condition = asked.actions[0].condition
        if asked.source is not None or condition is None:
            return None
        text = self._parsed.text[condition.start : condition.end]
        alone = statement(f"SELECT * FROM {self._alias} WHERE ({text}\n)", _ENGINE)  # noqa: S608 - the user's own text
        return needs_of(alone, {0: schema})[0].where

    def _values(self, action: Action, names: Sequence[str]) -> list[str]:
        """The texts of the new values."""
        if action.kind == "delete":
            return []
        if action.columns is None:
            source = quoted(self._source_alias, _ENGINE)
            return [f"{source}.{quoted(name, _ENGINE)} AS c{i}" for i, name in enumerate(names)]
        return [f"({self._text(value)}\n) AS c{i}" for i, value in enumerate(action.values)]

    def _places(self, action: Action, names: Sequence[str]) -> list[int]:
        """The places of the columns that get the new values."""
        if action.columns is None:
            return list(range(len(names)))
        return places(names, action.columns, self._target.name, lowered)

    def _run(self, text: str) -> pa.Table:
        return run(text, self._scans, self._args, some=True).to_arrow()

    def _condition(self, span: TextSpan) -> str:
        return f"({self._text(span)}\n)"

    def _text(self, span: TextSpan) -> str:
        return self._parsed.replaced(self._names, span.start, span.end)

    @property
    def _source_alias(self) -> str:
        return str(self._parsed.tree.args["using"].alias_or_name) or "source"

    @property
    def _other(self) -> str:
        return f"{_SOURCE} AS {quoted(self._source_alias, _ENGINE)}"


class _Contents:
    """The contents of a version at an open time, with what is staged, each row with its place among them.

    Attributes:
        rows: the columns of a row.
        schema: these, and the place.
        none: no updates, with the columns of updates.
    """

    def __init__(self, target: Collection, version: Version, at: Time, where: str | None) -> None:
        self._target, self._version, self._at = target, version, at
        self._options = ReadOptions(where=where, staged=True)
        self.rows = row_schema(version.spec.schema)
        self.schema = self.rows.append(pa.field(_PLACE, pa.int64()))
        self.none = self.rows.append(pa.field(DIFF, pa.int64())).empty_table()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in their order."""
        for start, batch in self._numbered():
            numbers = pa.array(np.arange(start, start + batch.num_rows))
            columns = [batch.column(name) for name in self.rows.names]
            yield pa.RecordBatch.from_arrays([*columns, numbers], schema=self.schema)

    def at(self, numbers: Any) -> pa.Table:
        """The rows at some places, which ascend, with their multiplicities."""
        found = [self.none]
        if len(numbers):
            for start, batch in self._numbered():
                here = numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, start + len(batch))]
                if len(here):
                    rows = batch.take(pa.array(here - start)).select(self.none.column_names)
                    found.append(pa.Table.from_batches([rows]).cast(self.none.schema))
        return pa.concat_tables(found)

    def _numbered(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        start = 0
        with ask(self._target, AsOf(self._at), self._options, self._version) as rows:
            for batch in rows:
                yield start, batch
                start += batch.num_rows


def _with_counts(rows: pa.Table, counts: Any) -> pa.Table:
    counts = pa.repeat(pa.scalar(counts, pa.int64()), rows.num_rows) if isinstance(counts, int) else counts
    return rows.append_column(pa.field(DIFF, pa.int64()), counts)


def _rows(schema: pa.Schema, values: Mapping[int, Any], count: int) -> pa.Table:
    """Rows with values for the columns at some places, and null in the others."""
    columns = [
        _assigned(values[i], field) if i in values else pa.nulls(count, field.type)
        for i, field in enumerate(schema)
    ]
    return pa.table(columns, schema.names)


def _assigned(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Numbers as those of a column, if nothing is lost but in the nearest float of a decimal.

    Values of other kinds stay as they are: whether they fit is decided as for all rows that are handed in.

    Raises:
        UsageError: a number does not fit; says what to write.
    """
    kind = field.type
    if _is_string(values.type) and pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        try:
            values = values.cast(kind)
        except UNFIT as error:
            reason = str(error).split("\n", 1)[0]
            raise UsageError(f"a text is no {kind}, as column {field.name!r} is: {reason}") from error
    elif (limit := _INFINITE.get(values.type.id)) is not None and _has(values, limit):
        raise UsageError(
            f"'infinity' does not fit column {field.name!r}, which is {kind}: write NULL or a date"
        )
    if values.type.equals(kind) or not (_is_number(values.type) and _is_number(kind)):
        # DuckDB gives a type to NULL.
        alone = values.null_count == len(values)
        return pa.nulls(len(values), kind) if alone else values.cast(_with_types(values.type, kind))
    try:
        return pa.chunked_array([_number(chunk, kind) for chunk in values.chunks], kind)
    except UNFIT as error:
        raise UsageError(
            f"a value does not fit column {field.name!r}, which is {kind}: round it, or cast it"
        ) from error


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has(values: pa.ChunkedArray, limit: int) -> bool:
    """Whether a date or an instant is DuckDB's infinity, or the negative one."""
    bits = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    return any(
        pc.any(pc.is_in(chunk.view(bits), pa.array([limit, -limit], bits)), min_count=0).as_py()
        for chunk in values.drop_null().chunks
    )


def _with_types(found: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """A type of values, in which what is always NULL or empty has the type that is wanted."""
    if pa.types.is_null(found):
        return wanted
    if pa.types.is_list(found) and (pa.types.is_list(wanted) or pa.types.is_large_list(wanted)):
        return pa.list_(_with_types(found.value_type, wanted.value_type))
    if pa.types.is_struct(found) and pa.types.is_struct(wanted) and found.names == wanted.names:
        both = zip(found, wanted, strict=True)
        return pa.struct([one.with_type(_with_types(one.type, other.type)) for one, other in both])
    return found


def _number(array: pa.Array, kind: pa.DataType) -> pa.Array:
    is_floating = pa.types.is_floating(array.type)
    if pa.types.is_decimal(kind) and not is_floating:
        return cast_exactly(array, kind)
    made = array.cast(kind)
    if is_floating:
        same = pc.equal(made.cast(array.type), array)
        if not pc.all(pc.or_(same, pc.is_nan(array)), min_count=0).as_py():
            raise pa.ArrowInvalid(f"a number is not exact as {kind}")
    return made


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
