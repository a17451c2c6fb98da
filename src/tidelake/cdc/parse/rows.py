"""Events of one collection become rows: updates, or events for an upsert.

Owns the columns of these rows. Must not know lines, nor how they are read.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import mask, one_batch
from tidelake.cdc.core.events import EventLayout, Events, EventSide, Ints, Mask
from tidelake.cdc.core.lineerrors import as_bytes, cut
from tidelake.cdc.core.ops import DEBEZIUM, Terms, Unfit
from tidelake.cdc.core.outcome import Reject, Truncates
from tidelake.cdc.debezium.exact import old_row
from tidelake.cdc.debezium.messagekeys import changed, fits, key_names
from tidelake.cdc.debezium.rowcolumns import BadRow, joined_sides, message_key, rows_of
from tidelake.data.json.encoding import PLAIN
from tidelake.data.kernel.order import differ

# Columns of events for an upsert, beside the collection's own.
TIME, REMOVED, ORDER, LINE = "_time", "_removed", "_order", "_line"
LEFT_OUT = "_left_out"


@dataclass(frozen=True)
class EventRows:
    """Makes rows of events.

    Attributes:
        schema: of the rows, see `ChangeParser.schema_of_rows`.
        columns: names of the collection's columns.
        key: names of its key columns.
        layout: which fields of events were read.
        terms: how errors call what an event has.
    """

    schema: pa.Schema
    columns: list[str]
    key: tuple[str, ...]
    layout: EventLayout
    terms: Terms

    def check_keys(self, found: Events, keys: pa.Array, fail: Callable[[Reject], None]) -> None:
        """Refuse events whose messages have another key than the collection: rows would get lost.

        It is no fault of one line, so it is no reject either.
        """
        # A delete without key and old row is a line that cannot be read, and a truncation has neither.
        keyed = found.lines[mask(keys.is_valid())[found.lines]]
        lines = np.unique(np.concatenate([found.before.lines, found.after.lines, keyed]))
        codes, told = key_names(keys.take(pa.array(lines)))
        names = [told[code] for code in np.unique(codes).tolist()]
        for one in names:
            lost = one is None and len(names) > 1
            if lost or (one and not fits(one, self.key)):
                at = next(i for i, code in enumerate(codes.tolist()) if told[code] == one)
                fail(Reject(int(lines[at]), changed(one, self.key)))

    def updates(self, found: Events) -> pa.RecordBatch:
        """Updates: old rows with -1, new ones with +1."""
        old, new = found.before, found.after
        lines = np.concatenate([old.lines, new.lines])
        diffs = np.concatenate([np.full(len(old.lines), -1), np.full(len(new.lines), 1)]).astype(np.int64)
        rows = pa.Table.from_batches([old.rows, new.rows])
        times = found.times[np.searchsorted(found.lines, lines)]
        # The old row of an update comes before the new one.
        order = np.lexsort((diffs, lines))
        columns = [
            *one_batch(rows.take(pa.array(order))).columns,
            pa.array(times[order]),
            pa.array(diffs[order]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def events(
        self, found: Events, keys: pa.Array | None, bad: list[Reject], texts: pa.Array | None
    ) -> pa.RecordBatch:
        """Events for an upsert: removed keys and new rows."""
        removed = self._removed(found, keys, bad)
        if texts is not None and self.terms is DEBEZIUM:
            removed = replace(removed, left_out=self._without_key(removed, found.after.lines, texts))
        schema = self.schema
        whole = pa.schema([schema.field(name) for name in self.columns])
        gone = [
            removed.rows.column(f.name) if f.name in self.key else pa.nulls(len(removed.lines), f.type)
            for f in whole
        ]
        new = pa.RecordBatch.from_arrays(found.after.rows.columns, schema=whole)
        rows = pa.Table.from_batches([pa.RecordBatch.from_arrays(gone, schema=whole), new])
        lines = np.concatenate([removed.lines, found.after.lines])
        is_removal = np.arange(len(lines)) < len(removed.lines)
        order = np.lexsort((~is_removal, lines))
        lines, is_removal = lines[order], is_removal[order]
        at = np.searchsorted(found.lines, lines)
        orders = np.zeros(len(lines), np.int64) if found.orders is None else found.orders[at]
        columns = [
            *one_batch(rows.take(pa.array(order))).columns,
            pa.array(found.times[at]),
            pa.array(is_removal),
            pa.array(orders),
            pa.array(lines),
            pa.concat_arrays([_left_out_names(removed), _left_out_names(found.after)]).take(pa.array(order)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _removed(self, found: Events, keys: pa.Array | None, bad: list[Reject]) -> EventSide:
        """The removed keys: those of deletes, and the old keys of updates that change the key."""
        old, new = found.before, found.after
        kept = ~np.isin(old.lines, new.lines)
        both = np.flatnonzero(~kept)
        before = old.rows.take(pa.array(both))
        after = new.rows.select(self.layout.before.names)
        after = after.take(pa.array(np.searchsorted(new.lines, old.lines[both])))
        for name in self.layout.before.names:
            kept[both] |= differ(before.column(name), after.column(name))
        there = EventSide(old.lines[kept], old.rows.filter(pa.array(kept)))
        told = np.concatenate([old.lines, new.lines, found.truncates])
        missing = found.lines[~np.isin(found.lines, told)]
        if not len(missing):
            return there
        return joined_sides([there, self._keys(missing.tolist(), keys, bad)], self.layout.before)

    def _without_key(self, removed: EventSide, new: Ints, texts: pa.Array) -> dict[str, Mask]:
        """The key columns that deletions may leave out, because of a replica identity of other columns.

        They have 0 or an empty text, which Debezium writes for what the log does not have of a column that
        may not be null; and another column has a value. Whether it is so, the stored rows tell.
        """
        found: dict[str, Mask] = {}
        for name in self.layout.before.names:
            at = np.flatnonzero(_is_zero(removed.rows.column(name)) & ~np.isin(removed.lines, new))
            if not len(at):
                continue
            found[name] = np.zeros(len(removed.lines), np.bool_)
            for one in at.tolist():
                row = old_row(texts[int(removed.lines[one])].as_py())
                others = [value for other, value in row.items() if other not in self.key]
                found[name][one] = any(value not in (None, 0, "") for value in others)
        return found

    def _keys(self, lines: list[int], keys: pa.Array | None, bad: list[Reject]) -> EventSide:
        """The keys of deletes without an old row, from the keys of their messages."""
        texts = [None] * len(lines) if keys is None else as_bytes(keys.take(pa.array(lines))).to_pylist()
        sides: list[EventSide] = []
        for line, text in zip(lines, texts, strict=True):
            try:
                row, encoding = message_key(text, self.layout.before.names, self.terms)
                given = encoding if encoding != PLAIN else self.layout.encodings
                sides.append(rows_of({line: row}, "key", self.layout.before, given))
            except (Unfit, BadRow) as error:
                reason = error.reason if isinstance(error, BadRow) else str(error)
                bad.append(Reject(line, cut(reason)))
        return joined_sides(sides, self.layout.before)


def truncates(found: Events) -> Truncates | None:
    """The truncations among events; None: there are none."""
    if not len(found.truncates):
        return None
    at = np.searchsorted(found.lines, found.truncates)
    orders = np.zeros(len(at), np.int64) if found.orders is None else found.orders[at]
    return Truncates(found.truncates, found.times[at], orders)


def _is_zero(values: pa.Array) -> Mask:
    """Which values are 0 or empty."""
    kind = values.type
    if pa.types.is_temporal(kind):
        values = values.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    elif not pa.types.is_integer(kind) and not pa.types.is_floating(kind) and not pa.types.is_decimal(kind):
        if not pa.types.is_string(kind) and not pa.types.is_binary(kind):
            return np.zeros(len(values), np.bool_)
        values = pc.binary_length(values)
    return mask(pc.equal(values, 0))


def _left_out_names(side: EventSide) -> pa.Array:
    """For each row a JSON list of the columns that it leaves out, null for none."""
    if not any(rows.any() for rows in side.left_out.values()):
        return pa.nulls(len(side.lines), pa.string())
    names = sorted(side.left_out)
    # The rows of one combination of columns have one text.
    rows = np.stack([side.left_out[name] for name in names], axis=1)
    combinations, codes = np.unique(rows, axis=0, return_inverse=True)
    texts = [
        json.dumps([name for name, there in zip(names, row, strict=True) if there]) if any(row) else None
        for row in combinations.tolist()
    ]
    return pa.array(texts, pa.string()).take(pa.array(codes.reshape(-1)))
