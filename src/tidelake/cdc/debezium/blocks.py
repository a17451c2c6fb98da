"""The fast parser for change events: reads many lines at once.

Its result equals that of the exact parser, `tidelake.cdc.debezium.exact`. Where it cannot be sure of that,
it raises `Unsure`; the exact parser then reads the lines, and finds the reason if they are bad.
"""

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.events import EventLayout, Events, EventSide
from tidelake.cdc.core.ops import INCREMENTAL, MARKS, OPS
from tidelake.cdc.debezium.connectschema import row_encoding
from tidelake.cdc.debezium.unavailable import unavailable
from tidelake.data.json.block import NEVER, JsonMember, Unsure, objects, struct_shape, trimmed
from tidelake.data.json.encoding import PLAIN, Encoding
from tidelake.data.json.raw import Texts, finished, member, seen_texts
from tidelake.data.json.values import loads

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
_SAMPLE = 50
_SCHEMA = '{"schema":'
_INCREMENTAL = rf'"snapshot":\s*"{INCREMENTAL}"'
# An explicit end of slices: without one, Arrow computes negative lengths.
_END = 2**31 - 1


@dataclass
class BlockReader:
    """Reads blocks of one layout. Remembers the form of the last block, to expect the same of the next.

    Attributes:
        layout: which fields are read.
    """

    layout: EventLayout
    _texts: Texts = frozenset()
    _prefix: tuple[bytes, Encoding] = field(default=(b"", PLAIN))

    def read(self, lines: pa.Array) -> Events:
        """Parse lines (binary).

        Raises:
            Unsure: these lines need the exact parser.
        """
        bare = trimmed(lines)
        empty = pc.or_(bare.is_null(), pc.is_in(bare, value_set=pa.array([b"", b"null"])))
        there = np.flatnonzero(~empty.to_numpy(zero_copy_only=False))
        tombstones = len(lines) - len(there)
        if tombstones:
            bare = bare.take(pa.array(there))
        if not len(bare):
            raise Unsure
        wrapped, encoding = False, self.layout.encodings
        if bare[0].as_py().startswith((b'{"schema":', b'{"payload":')):
            bare, wrapped, encoding = self._unwrapped(bare)
        found = self._objects(bare, wrapped, encoding)
        if wrapped:
            payload = found.field("payload")
            if found.field("schema").null_count < len(found) or found.field("op").null_count < len(found):
                raise Unsure
            if payload.null_count:
                kept = np.flatnonzero(payload.is_valid().to_numpy(zero_copy_only=False))
                tombstones += payload.null_count
                there, found = there[kept], payload.drop_null()
            else:
                found = payload
        if not self.layout.stored and _is(found.field("op"), ("r",)).any():
            again = pc.match_substring_regex(bare, _INCREMENTAL)
            if pc.any(again).as_py():
                raise Unsure
        events = self._events(found, there.astype(np.int64), tombstones, encoding)
        names = self.layout.fields.names
        if not names:
            return events
        given = pa.StructArray.from_arrays([found.field(name) for name in names], names=names)
        return replace(events, fields=spread(given, there, len(lines)))

    def _unwrapped(self, lines: pa.Array) -> tuple[pa.Array, bool, Encoding]:
        """Strip a schema that all lines begin with; whether events are in payloads, and the encoding."""
        first: bytes = lines[0].as_py()
        if first.startswith(b'{"payload":'):
            return lines, True, self.layout.encodings
        if not self._prefix[0] or not first.startswith(self._prefix[0]):
            self._prefix = _schema_of(first)
        prefix, encoding = self._prefix
        if not pc.all(pc.starts_with(lines, prefix)).as_py():
            raise Unsure
        rest = pc.binary_slice(lines, len(prefix), _END)
        # Replace the schema by null, so that a second one in the line is noticed.
        bare = pc.binary_join_element_wise(pa.scalar(b'{"schema":null'), rest, pa.scalar(b""))
        return bare, True, encoding if encoding != PLAIN else self.layout.encodings

    def _objects(self, lines: pa.Array, wrapped: bool, encoding: Encoding) -> pa.StructArray:
        try:
            return objects(lines, _members(self.layout, wrapped, encoding, self._texts))
        except Unsure:
            texts = _texts_of(lines.slice(0, _SAMPLE), self.layout, wrapped)
            if texts == self._texts:
                raise
            self._texts = texts
            return objects(lines, _members(self.layout, wrapped, encoding, texts))

    def _events(self, found: pa.StructArray, lines: Ints, tombstones: int, encoding: Encoding) -> Events:
        layout = self.layout
        before, after = (found.field(side) for side in ("before", "after"))
        op = found.field("op")
        times = np.zeros(len(found), np.int64) if layout.time is None else _numbers(found, layout.time)
        marks = _is(op, MARKS)
        known = marks.copy()
        for name, needs in OPS.items():
            this = _is(op, (name,))
            known |= this
            for side, needed in zip(("before", "after"), needs, strict=True):
                there = found.field(side).is_valid().to_numpy(zero_copy_only=False)
                optional = layout.stored and needed and side == "before"
                if not optional and (there[this] != needed).any():
                    raise Unsure
        if not known.all():
            raise Unsure
        events = ~marks
        orders = None if layout.order is None else _numbers(found.filter(pa.array(events)), layout.order)
        return Events(
            lines[events],
            times[events],
            orders,
            _side(before, events, lines, layout.before, encoding, keeps=layout.keeps("before")),
            _side(after, events, lines, layout.after, encoding, keeps=layout.keeps("after")),
            times[marks],
            int(marks.sum()),
            tombstones,
        )


def spread(values: pa.Array, at: Ints, count: int) -> pa.Array:
    """An array of `count` items: `values` at the positions `at`, null elsewhere."""
    if len(at) == count:
        return values
    index = np.full(count, -1)
    index[at] = np.arange(len(at))
    return values.take(pa.array(index, mask=index < 0))


def _schema_of(line: bytes) -> tuple[bytes, Encoding]:
    """The beginning of a line up to the end of its schema, and the encoding that this specifies."""
    if not line.startswith(_SCHEMA.encode()):
        raise Unsure
    try:
        text = line.decode()
        start = len(text) - len(text[len(_SCHEMA) :].lstrip(" "))
        end = json.JSONDecoder().raw_decode(text, start)[1]
        prefix = text[:end]
        # Parse again, strictly: a field that occurs twice is an error.
        return prefix.encode(), row_encoding(loads(prefix[len(_SCHEMA) :]))
    except (ValueError, RecursionError):
        raise Unsure from None


@lru_cache(64)
def _members(layout: EventLayout, wrapped: bool, encoding: Encoding, texts: Texts) -> dict[str, JsonMember]:
    inner = {
        "op": JsonMember(pa.string(), msgspec.Raw),
        "before": _row(layout.before, encoding, texts, layout.optional),
        "after": _row(layout.after, encoding, texts, layout.optional),
    }
    inner |= {one.name: JsonMember(one.type, msgspec.Raw) for one in layout.fields if one.name != "op"}
    for path in (layout.time, layout.order):
        if path is not None:
            _add_number(inner, path)
    if not wrapped:
        return inner
    payload = pa.struct([(name, one.kind) for name, one in inner.items()])
    return {
        "schema": JsonMember(pa.struct([]), msgspec.Raw),
        "op": JsonMember(pa.string(), NEVER),
        "payload": JsonMember(payload, struct_shape(inner), required=True),
    }


def _row(schema: pa.Schema, encoding: Encoding, texts: Texts, optional: frozenset[str]) -> JsonMember:
    inner = {
        one.name: member(one, encoding.of(one.name), texts, (one.name,), one.name not in optional)
        for one in schema
    }
    kind = pa.struct([(name, one.kind) for name, one in inner.items()])
    return JsonMember(kind, struct_shape(inner))


def _add_number(members: dict[str, JsonMember], path: tuple[str, ...]) -> None:
    name, rest = path[0], path[1:]
    if name in ("op", "before", "after", "payload"):
        raise Unsure
    there = members.get(name)
    if not rest:
        if there is not None and there.kind != pa.int64():
            raise Unsure
        members[name] = JsonMember(pa.int64(), msgspec.Raw)
        return
    kind: pa.DataType = pa.int64()
    for inner in reversed(rest[1:]):
        kind = pa.struct([(inner, kind)])
    fields = {rest[0]: kind}
    if there is not None:
        if not pa.types.is_struct(there.kind):
            raise Unsure
        old = {f.name: f.type for f in (there.kind.field(i) for i in range(there.kind.num_fields))}
        if old.get(rest[0], kind) != kind:
            raise Unsure
        fields = old | fields
    members[name] = JsonMember(pa.struct(list(fields.items())), msgspec.Raw)


def _numbers(found: pa.StructArray, path: tuple[str, ...]) -> Ints:
    values = found.field(path[0])
    for name in path[1:]:
        if values.null_count:
            raise Unsure
        values = values.field(name)
    if values.null_count:
        raise Unsure
    numbers: Ints = values.to_numpy()
    if (numbers < 0).any():
        raise Unsure
    return numbers


def _is(op: pa.Array, names: tuple[str, ...]) -> Mask:
    found: Mask = pc.is_in(op, value_set=pa.array(names)).to_numpy(zero_copy_only=False)
    return found


def _side(
    rows: pa.StructArray,
    events: Mask,
    lines: Ints,
    schema: pa.Schema,
    encoding: Encoding,
    *,
    keeps: frozenset[str],
) -> EventSide:
    there = rows.is_valid().to_numpy(zero_copy_only=False) & events
    rows = rows.filter(pa.array(there))
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
    return EventSide(lines[there], pa.RecordBatch.from_arrays(columns, schema=schema), left_out)


def _texts_of(lines: pa.Array, layout: EventLayout, wrapped: bool) -> Texts:
    """Which columns of dates and timestamps are texts in JSON, judged by their first values."""
    found: dict[tuple[str, ...], bool] = {}
    for line in lines.to_pylist():
        try:
            event = loads(line.decode())
        except (ValueError, RecursionError):
            raise Unsure from None
        event = event.get("payload") if wrapped and isinstance(event, dict) else event
        for side, schema in (("before", layout.before), ("after", layout.after)):
            row = event.get(side) if isinstance(event, dict) else None
            if isinstance(row, dict):
                for one in schema:
                    seen_texts(row.get(one.name), one.type, (one.name,), found)
    return frozenset(path for path, is_text in found.items() if is_text)
