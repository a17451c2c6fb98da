"""Change events that are columns already: `op`, `before`, `after`, a time.

Owns the checks of such columns; `tidelake.cdc.parse.parser` owns the meaning of events.
"""

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import among, mask
from tidelake.cdc.core.events import EventLayout, Events, EventSide, Ints, Mask
from tidelake.cdc.core.ops import DEBEZIUM, MARKS, OPS, REPEATED, TRUNCATE
from tidelake.cdc.core.outcome import Reject
from tidelake.cdc.debezium.exact import NEEDS_STORED, REPEATS
from tidelake.cdc.debezium.unavailable import unavailable
from tidelake.data.json.raw import fields

Rows: TypeAlias = tuple[pa.StructArray, pa.StructArray]


def events(
    op: pa.Array, rows: Rows, times: pa.Array, orders: pa.Array | None, layout: EventLayout
) -> tuple[Events, list[Reject]]:
    """Convert rows to events. Also returns the rows that are not valid events.

    Args:
        op: text; null is a tombstone.
        rows: the old rows, with the columns of `layout.before`, and the new ones, with those of
            `layout.after`.
        times: the times, int64.
        orders: the values that order events of one time, int64; None if there are none.
        layout: which fields are read.
    """
    count = len(op)
    before, after = rows
    reasons = _Reasons(count)
    tombstones = _null(op)
    marks = among(op, MARKS)
    reasons.add(_negative(times) & ~tombstones, "its time is null or negative")
    if orders is not None:
        reasons.add(_negative(orders) & ~tombstones & ~marks, "what orders it is null or negative")
    truncates = among(op, [TRUNCATE])
    if not layout.stored:
        reasons.add(truncates, NEEDS_STORED)
    again = among(op, [REPEATED])
    reasons.add(again, REPEATS)
    known = again | among(op, (*OPS, *MARKS, TRUNCATE))
    reasons.add(~known & ~tombstones, "its op is none of c, r, u, d, t, h and m")
    for name, needs in OPS.items():
        this = among(op, [name])
        for side, of_side, needed in zip(("before", "after"), rows, needs, strict=True):
            there = ~_null(of_side)
            if not needed:
                reasons.add(this & there, f"op {name!r} must not have a row in {side!r}")
            elif not (layout.stored and side == "before"):
                remedy = f": {DEBEZIUM.whole}" if side == "before" else ""
                reasons.add(this & ~there, f"op {name!r} without {side!r}{remedy}")
    ignored = marks | truncates
    for side, of_side, schema in (("before", before, layout.before), ("after", after, layout.after)):
        _check_values(of_side, side, schema, ~_null(of_side) & ~ignored, reasons, keeps=layout.keeps(side))
    good = ~reasons.bad & ~tombstones
    on_rows = good & ~marks
    numbers = np.arange(count, dtype=np.int64)
    found = Events(
        numbers[on_rows],
        _numbers(times, on_rows),
        None if orders is None else _numbers(orders, on_rows),
        _side(before, on_rows & ~truncates & ~_null(before), layout.before, layout.keeps("before")),
        _side(after, on_rows & ~truncates & ~_null(after), layout.after, layout.keeps("after")),
        _numbers(times, good & marks),
        int((good & marks).sum()),
        int(tombstones.sum()),
        np.flatnonzero(on_rows & truncates).astype(np.int64),
    )
    return found, reasons.rejects()


class _Reasons:
    """The first reason of each row, if it has one."""

    def __init__(self, count: int) -> None:
        self.bad: Mask = np.zeros(count, np.bool_)
        self._code = np.zeros(count, np.int64)
        self._texts: list[str] = []

    def add(self, where: Mask, reason: str) -> None:
        if where.any():
            self._code[where & ~self.bad] = len(self._texts)
            self._texts.append(reason)
            self.bad |= where

    def rejects(self) -> list[Reject]:
        return [Reject(int(row), self._texts[self._code[row]]) for row in np.flatnonzero(self.bad)]


def _check_values(
    rows: pa.StructArray,
    side: str,
    schema: pa.Schema,
    there: Mask,
    reasons: _Reasons,
    *,
    keeps: frozenset[str],
) -> None:
    for wanted in schema:
        values = rows.field(wanted.name)
        where = f"column {wanted.name!r} of {side!r}"
        if not wanted.nullable:
            remedy = f"; {DEBEZIUM.whole}" if side == "before" else ""
            reasons.add(_null(values) & there, f"{where}: is null, but the column is not nullable{remedy}")
        inner = _null_inside(values, wanted.type)
        if inner is not None:
            reasons.add(inner & there, f"{where}: holds a null where none is allowed")
        left_out = unavailable(values)
        if left_out is not None and wanted.name not in keeps:
            reasons.add(left_out & there, f"{where}: the source left the value out: {DEBEZIUM.whole}")


def _null_inside(values: pa.Array, kind: pa.DataType) -> Mask | None:
    """Which values have a null in a field that is not nullable, in structs at any depth."""
    if not pa.types.is_struct(kind):
        return None
    bad = np.zeros(len(values), np.bool_)
    for field in fields(kind):
        child = values.field(field.name)
        if not field.nullable:
            bad |= _null(child) & ~_null(values)
        below = _null_inside(child, field.type)
        if below is not None:
            bad |= below & ~_null(values)
    return bad


def _side(rows: pa.StructArray, there: Mask, schema: pa.Schema, keeps: frozenset[str]) -> EventSide:
    chosen = rows.filter(pa.array(there))
    columns, left_out = [], {}
    for wanted in schema:
        values = chosen.field(wanted.name)
        mask = unavailable(values) if wanted.name in keeps else None
        if mask is not None:
            left_out[wanted.name] = mask
            values = pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)
        columns.append(values)
    lines = np.flatnonzero(there).astype(np.int64)
    return EventSide(lines, pa.RecordBatch.from_arrays(columns, schema=schema), left_out)


def _null(values: pa.Array) -> Mask:
    return mask(values.is_null())


def _negative(values: pa.Array) -> Mask:
    return ~mask(pc.greater_equal(values, 0))


def _numbers(values: pa.Array, where: Mask) -> Ints:
    found: Ints = values.filter(pa.array(where)).to_numpy()
    return found
