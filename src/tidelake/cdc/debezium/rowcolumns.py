"""The rows of change events, before and after, as columns with the numbers of their lines.

Owns how rows that were parsed one by one become columns, and how rows of several blocks are joined. Must not
know what an event means.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidelake.cdc.core.columns import concat, one_batch
from tidelake.cdc.core.events import Events, EventSide, Mask
from tidelake.cdc.core.ops import DEBEZIUM, Terms, Unfit
from tidelake.cdc.debezium.connectschema import struct_encoding
from tidelake.cdc.debezium.extendedjson import document
from tidelake.cdc.debezium.messagekeys import of_document
from tidelake.cdc.debezium.unavailable import is_unavailable
from tidelake.data.json.encoding import PLAIN, Encoding
from tidelake.data.json.values import UnfitValue, column, loads


class BadRow(Exception):
    """The row of a line does not fit the columns."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line, self.reason = line, reason


def message_key(text: bytes | None, wanted: Sequence[str], terms: Terms) -> tuple[dict[str, Any], Encoding]:
    """The key columns in the key of a message, and how they are encoded."""
    try:
        key = None if text is None else loads(text.decode("utf-8"))
        encoding = PLAIN
        if isinstance(key, dict) and "payload" in key and key.keys() <= {"schema", "payload"}:
            key, encoding = key["payload"], struct_encoding(key.get("schema"))
    except (ValueError, RecursionError) as error:
        raise Unfit(f"the key of the message is not JSON: {error}") from None
    if not isinstance(key, dict):
        there = f"{terms.of('d')} without {terms.sides['before']}"
        raise Unfit(f"{there}, and the message has no key that is an object" if terms is DEBEZIUM else there)
    if of_document(key, wanted):
        (name,) = wanted
        try:
            key = {name: document(*key.values())}
        except (TypeError, AttributeError, ValueError) as error:
            raise Unfit(f"the key of the message is no JSON text of an '_id': {error}") from None
    return key, encoding


def rows_of(
    rows: dict[int, dict[str, Any]],
    name: str,
    schema: pa.Schema,
    encoding: Encoding,
    optional: frozenset[str] = frozenset(),
    *,
    keeps: frozenset[str] = frozenset(),
    terms: Terms = DEBEZIUM,
) -> EventSide:
    """Columns of the rows of lines; those that `keeps` names may leave values out."""
    lines, values = list(rows), list(rows.values())
    columns: list[pa.Array] = []
    left_out: dict[str, Mask] = {}
    for wanted in schema:
        try:
            found = values
            if wanted.name in optional:
                found = [row if wanted.name in row else {**row, wanted.name: None} for row in values]
            gone = [is_unavailable(row.get(wanted.name)) for row in found] if wanted.name in keeps else []
            if any(gone):
                left_out[wanted.name] = np.array(gone, np.bool_)
            # By default, sources write only the key of an old row.
            remedy = f"; {terms.whole}" if name == "before" else ""
            columns.append(_column(found, wanted, encoding.of(wanted.name), remedy, gone))
        except UnfitValue as unfit:
            line = lines[max(unfit.index, 0)]
            raise BadRow(line, f"column {wanted.name!r} of {terms.sides[name]}: {unfit.reason}") from None
    at = np.array(lines, np.int64)
    return EventSide(at, pa.RecordBatch.from_arrays(columns, schema=schema), left_out)


def _column(
    rows: list[dict[str, Any]], wanted: pa.Field, encoding: Encoding, remedy: str, gone: list[bool]
) -> pa.Array:
    values = []
    for index, row in enumerate(rows):
        if wanted.name not in row:
            raise UnfitValue(index, f"is missing{remedy}")
        value = row[wanted.name]
        if gone and gone[index]:
            value = None
        elif value is None and not wanted.nullable:
            raise UnfitValue(index, f"is null, but the column is not nullable{remedy}")
        elif is_unavailable(value):
            raise UnfitValue(index, f"the source left the value out: {DEBEZIUM.whole}")
        values.append(value)
    return column(values, wanted.type, encoding)


def chosen(events: Events, which: Mask) -> Events:
    """Some of the events on rows."""
    lines = events.lines[which]

    def side(of: EventSide) -> EventSide:
        there = np.isin(of.lines, lines)
        left_out = {name: rows[there] for name, rows in of.left_out.items()}
        return EventSide(of.lines[there], of.rows.filter(pa.array(there)), left_out)

    return replace(
        events,
        lines=lines,
        times=events.times[which],
        orders=None if events.orders is None else events.orders[which],
        before=side(events.before),
        after=side(events.after),
        truncates=np.intersect1d(events.truncates, lines),
    )


def joined_sides(sides: list[EventSide], schema: pa.Schema) -> EventSide:
    """The rows of several sides, in the order of their lines."""
    lines = concat([side.lines for side in sides])
    table = pa.Table.from_batches([side.rows for side in sides], schema=schema)
    order = np.argsort(lines, kind="stable")
    left_out = {
        name: np.concatenate(
            [side.left_out.get(name, np.zeros(len(side.lines), np.bool_)) for side in sides]
        )[order]
        for name in dict.fromkeys(name for side in sides for name in side.left_out)
    }
    if (order == np.arange(len(order))).all():
        return EventSide(lines, one_batch(table), left_out)
    return EventSide(lines[order], one_batch(table.take(pa.array(order))), left_out)
