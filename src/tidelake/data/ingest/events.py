"""The entry point for upserts: tables of events, each the new row of a key or its removal.

Owns what a caller may pass in, and the messages about it; `tidelake.data.ingest.upsert` works out what events
do to a collection. Invariant: the events returned have canonical values, times >= 0, and no null except in a
nullable column or in the values of a removal.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.canonical import canonical
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.exactcast import cast_exactly
from tidelake.data.kernel.types import UNFIT, arrow_type, data_type, listed
from tidelake.data.keys.keytext import key_text
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.schema import DIFF, Schema
from tidelake.model.time import Time, TimeDomain, parts

Mask = npt.NDArray[np.bool_]

REMOVED, ORDER, BEFORE = "_tidelake_removed", "_tidelake_order", "_tidelake_before"
LEFT_OUT = "_tidelake_left_out"
DELETED = "_tidelake_deleted"
# Beside the columns of a table of events. It is set where an event says that its key has no row before: true
# refuses a second row, false lets it replace the first.
CREATED = "_tidelake_created"


@dataclass(frozen=True)
class EventColumns:
    """What the columns of a table of events mean, in addition to the collection's own.

    Attributes:
        order_by: of several events of one key and time, the one with the greatest value wins; None: the last
            row wins.
        delete_column: true where the key is removed; None: no key is removed.
        left_out: the names of the value columns that the event does not tell, as a JSON list of texts, or
            null: these values are those of the key's row before it. None: events tell all values.
    """

    order_by: str | None = None
    delete_column: str | None = None
    left_out: str | None = None

    def check(self, schema: Schema, domain: TimeDomain) -> None:
        """Refuse settings that fit no table."""
        if not domain.total_order:
            raise UsageError(
                f"an upsert needs times that follow each other, and those of {domain} do not: append updates"
            )
        taken = {column.name for column in schema.key} | {*domain.columns, DIFF}
        given: tuple[tuple[str, object], ...] = (
            ("order_by", self.order_by),
            ("delete_column", self.delete_column),
            ("left_out", self.left_out),
        )
        for what, name in given:
            if name is not None and (not isinstance(name, str) or name in taken):
                raise UsageError(f"{what}={name!r} must name a value column, or one of the table's own")

    @property
    def only_keys(self) -> bool:
        """Whether all events are removals, and have no values."""
        return self.delete_column == DELETED

    def check_keys(self, names: Collection[str], schema: Schema) -> None:
        """Refuse values of rows that are to be deleted by their keys."""
        values = [column.name for column in schema.value if column.name in names]
        if self.only_keys and values:
            raise InvalidUpdates(
                f"delete takes keys, and column {listed(values)} is none: leave it out, or delete by a "
                "condition with where=..."
            )

    def besides(self, schema: Schema) -> tuple[str, ...]:
        """Names of these columns that the collection does not have."""
        own = {column.name for column in schema.columns}
        names = (self.order_by, self.delete_column, self.left_out)
        return tuple(dict.fromkeys(name for name in names if name is not None and name not in own))

    def needless(self, schema: Schema) -> tuple[str, ...]:
        """Names of the value columns that a table of removals does without."""
        if self.delete_column is None:
            return ()
        own = (self.order_by, self.delete_column)
        return tuple(column.name for column in schema.value if column.name not in own)


OF_KEYS = EventColumns(delete_column=DELETED)
"""What the columns of `removals` mean."""


def removals(keys: pa.Table) -> pa.Table:
    """A table of keys, maybe with times, as events that remove these keys."""
    return keys.append_column(DELETED, pa.array(np.ones(keys.num_rows, np.bool_)))


@lru_cache(64)
def with_nullable_values(schema: Schema) -> Schema:
    """The schema of events: a removal has no values."""
    return Schema(schema.key, tuple(replace(column, nullable=True) for column in schema.value))


def read_events(
    data: object,
    schema: Schema,
    domain: TimeDomain,
    columns: EventColumns,
    *,
    time: Time | None = None,
    optional: Collection[str] = (),
    dropped: Collection[str] = (),
) -> pa.Table:
    """Check a table of events and bring it into canonical form.

    Args:
        data: as for `tidelake.data.ingest.updates.normalize`, with the key and value columns and those of
        `columns`.
            If all rows are removals, value columns may be missing.
        schema: the collection's.
        domain: of its times, which are ints.
        columns: which columns order events and mark removals.
        time: the time of all events; then there is no time column.
        optional: nullable columns that may be missing, and are null then.
        dropped: columns that earlier schemas had, for the message.

    Returns:
        Key, value and time columns, `_tidelake_removed`, with `order_by` also `_tidelake_order`, and with
        `left_out` `_tidelake_left_out`. The rows keep their order.

    Raises:
        InvalidUpdates: the table does not fit; names the column and the first bad row.
        UsageError: see `EventColumns.check`.
    """
    columns.check(schema, domain)
    table = as_table(data)
    if DIFF in table.column_names:
        raise InvalidUpdates(
            f"column {DIFF!r} has no place in an upsert, which finds old rows itself: drop it"
        )
    columns.check_keys(table.column_names, schema)
    extra = {name: _only(table, name) for name in columns.besides(schema)}
    if CREATED in table.column_names and CREATED not in {column.name for column in schema.columns}:
        extra[CREATED] = _only(table, CREATED)
    kept = [i for i, name in enumerate(table.column_names) if name not in extra]
    rows = normalize(
        table.select(kept),
        with_nullable_values(schema),
        domain,
        time=time,
        optional={*optional, *columns.needless(schema)},
        dropped=dropped,
    ).drop_columns([DIFF])
    removed = _removed(rows, columns, extra)
    lacking = [
        column.name
        for column in schema.value
        if column.name not in table.column_names and column.name not in optional
    ]
    if lacking and not removed.all():
        row = int(np.argmin(removed))
        key = encode_key(rows.slice(row, 1), schema)[0].as_py()
        raise InvalidUpdates(
            f"missing column {listed(lacking)}: row {row} (the key {key_text(key, schema)}) is no removal, "
            "so it needs values; only a table of nothing but removals does without"
        )
    untold = {} if columns.left_out is None else left_out_rows(extra[columns.left_out])
    for column in schema.value:
        if not column.nullable:
            told = ~removed & ~untold[column.name] if column.name in untold else ~removed
            remedy = "give it a value, or mark the removal of a key by delete_column"
            _refuse(rows.column(column.name).is_null(), told, column.name, remedy)
    result = rows.append_column(REMOVED, pa.array(removed))
    if columns.left_out is not None:
        result = result.append_column(LEFT_OUT, extra[columns.left_out].cast(pa.string()))
    if CREATED in extra:
        result = result.append_column(CREATED, extra[CREATED].cast(pa.bool_()))
    if columns.order_by is None:
        return result
    order = extra.get(columns.order_by)
    if order is None:
        order = rows.column(columns.order_by)
    _refuse(order.is_null(), np.ones(len(order), np.bool_), columns.order_by, "it orders the events")
    return result.append_column(ORDER, _plain(order, columns.order_by))


def left_out_rows(texts: pa.ChunkedArray) -> dict[str, Mask]:
    """Which rows leave out the value of a column, by column: from JSON lists of names, or nulls."""
    if texts.null_count == len(texts):
        return {}
    coded = texts.cast(pa.string()).combine_chunks().dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy()
    found: dict[str, Mask] = {}
    for code, text in enumerate(coded.dictionary.to_pylist()):
        for name in json.loads(text):
            found[name] = found.get(name, np.zeros(len(texts), np.bool_)) | (codes == code)
    return found


def truncated(
    events: pa.Table, truncates: Sequence[tuple[int, bytes]], schema: Schema, domain: TimeDomain
) -> pa.Table:
    """Events of `read_events`, and for each key among them a removal at each truncation of the collection."""
    parts = [events]
    for time, order in truncates:
        constant = {
            domain.columns[0]: pa.scalar(time, pa.int64()),
            REMOVED: pa.scalar(True),
            ORDER: pa.scalar(order, events.schema.field(ORDER).type),
        }
        keys = {column.name for column in schema.key}
        columns = [
            events.column(field.name)
            if field.name in keys
            else pa.repeat(constant[field.name], events.num_rows)
            if field.name in constant
            else pa.nulls(events.num_rows, field.type)
            for field in events.schema
        ]
        parts.append(pa.Table.from_arrays(columns, schema=events.schema))
    return pa.concat_tables(parts)


def advanced(events: pa.Table, domain: TimeDomain, floor: Time) -> pa.Table:
    """Events with times of at least `floor`; those that are moved to one time keep their order.

    Another column, `_tidelake_before`, holds their own times.
    """
    place = events.column_names.index(domain.columns[0])
    own = events.column(place)
    moved = pc.max_element_wise(own, pa.scalar(parts(floor)[0], pa.int64()))
    return events.set_column(place, events.field(place), moved).append_column(BEFORE, own)


def _only(table: pa.Table, name: str) -> pa.ChunkedArray:
    found = table.schema.get_all_field_indices(name)
    if len(found) != 1:
        there = ", ".join(map(repr, table.column_names)) or "no columns"
        raise InvalidUpdates(f"column {name!r} must appear once: the table has {there}")
    return table.column(found[0])


def _removed(rows: pa.Table, columns: EventColumns, extra: dict[str, pa.ChunkedArray]) -> Mask:
    name = columns.delete_column
    if name is None:
        none: Mask = np.zeros(rows.num_rows, np.bool_)
        return none
    flags = extra[name] if name in extra else rows.column(name)
    if pa.types.is_null(flags.type):
        flags = flags.cast(pa.bool_())
    if not pa.types.is_boolean(flags.type):
        raise InvalidUpdates(f"column {name!r} has type {flags.type}, expected bool: it says what is removed")
    _refuse(flags.is_null(), np.ones(len(flags), np.bool_), name, "say true or false")
    return _numpy(flags)


def _plain(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column of any form as a column of canonical values that can be sorted."""
    if pa.types.is_null(column.type):
        # The column has no rows, or it would have been refused.
        column = column.cast(pa.int8())
    try:
        kind = arrow_type(data_type(column.type, name))
        chunks = [cast_exactly(chunk, kind) for chunk in column.chunks]
        for chunk in chunks:
            chunk.validate(full=True)
    except UNFIT as error:
        raise InvalidUpdates(f"column {name!r} cannot order events: {error}") from error
    return pa.chunked_array([canonical(chunk) for chunk in chunks], kind)


def _refuse(null: pa.ChunkedArray, where: Mask, name: str, remedy: str) -> None:
    if pc.any(null).as_py():
        bad = _numpy(null) & where
        if bad.any():
            raise InvalidUpdates(
                f"column {name!r} must not be null, but is in row {int(np.argmax(bad))}: {remedy}"
            )


def _numpy(mask: pa.ChunkedArray) -> Mask:
    result: Mask = mask.to_numpy()
    return result
