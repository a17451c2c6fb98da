"""The fast parser for change events: what of decoded lines is surely an event, and many rows at once.

Its result equals that of the exact parser, `tidelake.cdc.debezium.exact`. Where it cannot be sure of that,
it raises `Unsure`; the exact parser then reads the lines, and finds the reason if they are bad.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import among, mask
from tidelake.cdc.core.events import EventLayout, Events, EventSide, Ints, Mask, RawEvents
from tidelake.cdc.core.ops import INCREMENTAL, MARKS, OPS
from tidelake.cdc.debezium.connectschema import row_encoding
from tidelake.cdc.debezium.decoded import Decoded
from tidelake.cdc.debezium.rowcolumns import joined_sides
from tidelake.cdc.debezium.schemaprefix import SCHEMA
from tidelake.cdc.debezium.unavailable import unavailable
from tidelake.data.json.block import JsonMember, Unsure, read_block
from tidelake.data.json.encoding import PLAIN, Encoding
from tidelake.data.json.raw import SeenTexts, Texts, finished, member
from tidelake.data.json.values import loads


def raw_events(found: Decoded, layout: EventLayout) -> tuple[RawEvents, Ints, int, Mask]:
    """The events among decoded lines that are surely right but for their rows.

    Returns:
        The events; the times of heartbeats and messages, and how many there are; and which lines are for the
        exact parser: all others but tombstones.
    """
    sure = found.known.copy()
    if not found.has(layout.paths):
        sure[:] = False
    tombstones = sure & mask(found.fields.is_null())
    op = pc.struct_field(found.fields, "op")
    marks = among(op, MARKS)
    fits = marks | fitting(op, found.before, found.after, stored=layout.stored)
    if not layout.stored:
        snapshot = pc.struct_field(pc.struct_field(found.fields, "source"), "snapshot")
        fits &= ~(among(op, ("r",)) & among(snapshot, (INCREMENTAL,)))
    # Where times are those of transactions, these lines have none.
    brackets = sure & found.brackets & (layout.time is None)
    sure &= fits
    none = np.full(len(found), -1)
    times, orders = np.zeros(len(found), np.int64), None
    if layout.time is not None:
        times = found.numbers(layout.time) if sure.any() else none
        sure &= times >= 0
    if layout.order is not None:
        orders = found.numbers(layout.order) if sure.any() else none
        sure &= marks | (orders >= 0)
    events = sure & ~marks
    given = layout.encodings
    encodings, wrong = [given], []
    for number, prefix in enumerate(found.texts[1:], 1):
        encoding = _encoding_of(prefix)
        encodings.append(given if encoding in (None, PLAIN) else encoding)
        wrong += [number] if encoding is None else []
    if wrong:
        bad = np.isin(found.schemas, wrong)
        events &= ~bad
        sure &= ~bad
    here = pa.array(events)
    raw = RawEvents(
        np.flatnonzero(events),
        times[events],
        None if orders is None else orders[events],
        found.before.filter(here),
        found.after.filter(here),
        found.schemas[events],
        tuple(encodings),
    )
    reached = times[sure & marks]
    return raw, reached, len(reached) + int(brackets.sum()), ~(sure | brackets | tombstones)


def fitting(op: pa.Array, before: pa.Array, after: pa.Array, *, stored: bool) -> Mask:
    """Which events on rows have an old and a new row where their op needs them, and only there."""
    fits = np.zeros(len(op), np.bool_)
    old_there, new_there = (mask(side.is_valid()) for side in (before, after))
    for name, (old, new) in OPS.items():
        right = among(op, (name,)) & (new_there == new)
        fits |= right if stored and old else right & (old_there == old)
    return fits


@dataclass
class BlockReader:
    """Reads rows of one layout. Remembers the form of the last ones, to expect the same of the next.

    Attributes:
        layout: which columns are read.
    """

    layout: EventLayout
    _texts: SeenTexts = field(default_factory=SeenTexts)

    def read(self, raw: RawEvents) -> Events:
        """Read the rows of events.

        Raises:
            Unsure: these events need the exact parser.
        """
        parts = [raw.chosen(raw.encodings == number) for number in np.unique(raw.encodings).tolist()]
        layout = self.layout
        sides: list[list[EventSide]] = [[], []]
        for part in parts:
            encoding = raw.known[int(part.encodings[0])]
            for at, (name, texts) in enumerate((("before", part.before), ("after", part.after))):
                schema = layout.before if name == "before" else layout.after
                sides[at].append(self._side(texts, part.lines, schema, encoding, layout.keeps(name)))
        none = np.zeros(0, np.int64)
        before, after = joined_sides(sides[0], layout.before), joined_sides(sides[1], layout.after)
        return Events(raw.lines, raw.times, raw.orders, before, after, none, 0, 0)

    def _side(
        self, texts: pa.Array, lines: Ints, schema: pa.Schema, encoding: Encoding, keeps: frozenset[str]
    ) -> EventSide:
        there = texts.is_valid()
        if texts.null_count:
            texts = texts.drop_null()
            lines = lines[mask(there)]
        if not len(texts) or not len(schema):
            return EventSide(lines, pa.RecordBatch.from_pylist([], schema=schema))
        try:
            texts.view(pa.string()).validate(full=True)
        except pa.ArrowInvalid:
            raise Unsure from None
        block = _block(texts)
        found = self._texts.read(
            texts,
            schema,
            lambda kinds: read_block(block, texts, _row(schema, encoding, kinds, self.layout.optional))[0],
        )
        return _side(found, lines, schema, encoding, keeps=keeps)


def _block(texts: pa.Array) -> pa.Buffer:
    """The texts, which end with an end of a line each, as they lie one after the other."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    return texts.buffers()[2].slice(start, end - start)


@lru_cache(64)
def _encoding_of(prefix: bytes) -> Encoding | None:
    """The encoding that the schema at the begin of a line specifies; None: it is no schema."""
    try:
        # Strictly: a field that occurs twice is an error.
        return row_encoding(loads(prefix[len(SCHEMA) :].decode()))
    except (ValueError, RecursionError):
        return None


@lru_cache(64)
def _row(
    schema: pa.Schema, encoding: Encoding, texts: Texts, optional: frozenset[str]
) -> dict[str, JsonMember]:
    return {
        one.name: member(one, encoding.of(one.name), texts, (one.name,), one.name not in optional)
        for one in schema
    }


def _side(
    rows: pa.StructArray, lines: Ints, schema: pa.Schema, encoding: Encoding, *, keeps: frozenset[str]
) -> EventSide:
    columns, left_out = [], {}
    for wanted in schema:
        read = rows.field(wanted.name)
        found = unavailable(read)
        if found is not None:
            if wanted.name not in keeps or (read.null_count and not wanted.nullable):
                raise Unsure
            left_out[wanted.name] = found
            read = pc.if_else(pa.array(found), pa.scalar(None, read.type), read)
            wanted = wanted.with_nullable(True)  # noqa: PLW2901
        columns.append(finished(read, wanted, encoding.of(wanted.name)))
    return EventSide(lines, pa.RecordBatch.from_arrays(columns, schema=schema), left_out)
