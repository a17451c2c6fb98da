"""Lines of Debezium, each decoded once: the fields beside the rows as columns, and the rows as texts.

Owns which fields are read of a line: those of its operation, its table, its transaction, and numbers that a
caller names. All that is asked of a line is answered from here: its position, its table, its rows. What the
fields mean is owned by others. A line that cannot be decoded with others is left to the exact parser.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import concat, mask, numbers
from tidelake.cdc.core.events import Ints, Mask
from tidelake.cdc.debezium.connectors import CONNECTORS, connector_of
from tidelake.cdc.debezium.schemaprefix import by_schema
from tidelake.data.json.block import NEVER, JsonMember, Unsure, halved, joined, read_block, trimmed
from tidelake.data.json.values import loads

Path: TypeAlias = tuple[str, ...]
_TEXT, _NUMBER = pa.string(), pa.int64()
_SHARED = dict.fromkeys(("connector", "snapshot", "db", "schema", "table", "collection"), _TEXT)
_SHARED |= {"ts_ms": _NUMBER, "ts_us": _NUMBER}
_OUTSIDE = {"op": _TEXT, "status": _TEXT, "id": _TEXT, "event_count": _NUMBER}
_TRANSACTION = pa.struct([("id", _TEXT), ("total_order", _NUMBER)])
_ROWS = ("before", "after")
_CHILDREN = ["known", "brackets", "fields", "before", "after", "schema"]
_NULL = msgspec.Raw(b"null")
_NOTHING = pa.array([b"", b"null"])
_BRACKETS = pa.array(["BEGIN", "END"])
# So many first lines are asked for the name of a connector.
_FIRST = 32
_END_OF_LINE = 10


@dataclass(frozen=True)
class Decoded:
    """Some lines, decoded; element i of each array belongs to line i.

    Attributes:
        lines: the lines (binary), as they came.
        known: which lines were decoded; the others are for the exact parser.
        brackets: which of them surely say that a transaction begins or ends.
        fields: the fields beside the rows; null where the line has no event.
        before: the old row as JSON (binary); null: there is none.
        after: the new row.
        schemas: numbers of the schemas beside the payloads.
        texts: the beginnings of lines up to the end of their schemas, by number; empty: there is no schema.
    """

    lines: pa.Array
    known: Mask
    brackets: Mask
    fields: pa.StructArray
    before: pa.Array
    after: pa.Array
    schemas: Ints
    texts: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def column(self) -> pa.StructArray:
        """All of it but the lines, as a column beside them; see `of_column`."""
        schemas = pa.DictionaryArray.from_arrays(
            pa.array(self.schemas, pa.int32()), pa.array(self.texts, pa.binary())
        )
        known, brackets = pa.array(self.known), pa.array(self.brackets)
        return pa.StructArray.from_arrays(
            [known, brackets, self.fields, self.before, self.after, schemas], _CHILDREN
        )

    @classmethod
    def of_column(cls, lines: pa.Array, column: pa.StructArray) -> "Decoded":
        """The inverse of `column`. Both may have been filtered by one mask since."""
        known, brackets, fields, before, after, schemas = (column.field(name) for name in _CHILDREN)
        codes = schemas.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        texts = tuple(schemas.dictionary.to_pylist())
        known, brackets = (mask(one) for one in (known, brackets))
        return cls(lines, known, brackets, fields, before, after, codes, texts)

    def chosen(self, which: Mask) -> "Decoded":
        """Some of the lines."""
        if which.all():
            return self
        here = pa.array(which)
        return Decoded.of_column(self.lines.filter(here), self.column.filter(here))

    def has(self, paths: Iterable[Path]) -> bool:
        """Whether the numbers at these paths were read."""
        return all(is_read(path, self.fields.type) for path in paths)

    def numbers(self, path: Path) -> Ints:
        """The whole number at a path that was read; -1 where there is none."""
        found: pa.Array = self.fields
        for name in path:
            found = pc.struct_field(found, name)
        return numbers(found)


def decode(lines: pa.Array, paths: Collection[Path] = ()) -> Decoded:
    """Decode lines."""
    bare = trimmed(lines)
    guess = _mentioned(bare)
    found = _decoded(lines, bare, guess, frozenset(paths))
    source = pc.struct_field(found.fields, "source")
    named = set(pc.struct_field(source, "connector").unique().to_pylist()) & CONNECTORS.keys()
    if len(named) == 1 and not named <= {guess}:
        return _decoded(lines, bare, named.pop(), frozenset(paths))
    return found


def _mentioned(lines: pa.Array) -> str:
    """The known connector whose name is in the first line that has such a name; empty: none of the first."""
    for line in lines.slice(0, _FIRST).to_pylist():
        for name in sorted(CONNECTORS):
            if line is not None and f'"{name}"'.encode() in line:
                return name
    return ""


def _decoded(lines: pa.Array, bare: pa.Array, connector: str, paths: frozenset[Path]) -> Decoded:
    kinds = _kinds(connector, paths)
    texts = [b""]
    pieces: list[tuple[Ints, Decoded]] = []
    for prefix, at, rest in by_schema(bare):
        texts += [prefix] if prefix else []
        number = len(texts) - 1 if prefix else 0
        pieces += [
            (at[here], replace(one, schemas=np.full(len(one), number))) for here, one in _spans(rest, kinds)
        ]
    if len(pieces) == 1 and len(pieces[0][0]) == len(lines):
        return replace(pieces[0][1], lines=lines, texts=tuple(texts))
    others = np.ones(len(lines), np.bool_)
    others[concat([at for at, _ in pieces])] = False
    left = bare.filter(pa.array(others))
    empty = mask(pc.or_kleene(left.is_null(), pc.is_in(left, value_set=_NOTHING)))
    pieces.append((np.flatnonzero(others), _unread(left, empty, [None] * len(left), kinds)))
    order = np.argsort(concat([at for at, _ in pieces]))
    known, brackets, schemas = (
        np.concatenate([getattr(one, name) for _, one in pieces])[order]
        for name in ("known", "brackets", "schemas")
    )
    fields, before, after = (
        pa.concat_arrays([getattr(one, name) for _, one in pieces]).take(pa.array(order))
        for name in ("fields", *_ROWS)
    )
    return Decoded(lines, known, brackets, fields, before, after, schemas, tuple(texts))


def _unread(lines: pa.Array, known: Mask, fields: list[Any], kinds: Mapping[str, pa.DataType]) -> Decoded:
    """Lines without rows, and some of their fields."""
    none, zeros = pa.nulls(len(lines), pa.binary()), np.zeros(len(lines), np.int64)
    columns = [pa.array([one and one.get(name) for one in fields], kind) for name, kind in kinds.items()]
    # The columns of a struct that is null are null too: they are also asked for alone.
    absent = pa.array([one is None for one in fields], pa.bool_())
    told = pa.StructArray.from_arrays(columns, [*kinds], mask=absent)
    return Decoded(lines, known, zeros > 0, told, none, none, zeros, ())


@lru_cache(64)
def _kinds(connector: str, paths: frozenset[Path]) -> dict[str, pa.DataType]:
    """The fields that are read, and their types."""
    source = _SHARED | dict(connector_of(connector).fields)
    kinds = _OUTSIDE | {"source": pa.struct(list(source.items())), "transaction": _TRANSACTION}
    for path in sorted(paths):
        kinds = _with_number(kinds, path)
    return kinds


def _with_number(kinds: Mapping[str, pa.DataType], path: Path) -> dict[str, pa.DataType]:
    """The same fields, and a number at a path. A field that is read as text already stays a text."""
    name, rest = path[0], path[1:]
    there = kinds.get(name)
    if not rest:
        return {**kinds, name: _NUMBER} if there is None else dict(kinds)
    if there is not None and not pa.types.is_struct(there):
        return dict(kinds)
    inner = {} if there is None else {f.name: f.type for f in map(there.field, range(there.num_fields))}
    return {**kinds, name: pa.struct(list(_with_number(inner, rest).items()))}


def is_read(path: Path, kinds: pa.DataType) -> bool:
    """Whether there is a number at a path of some fields."""
    kind = kinds
    for name in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(kind.get_field_index(name)).type
    return bool(kind == _NUMBER)


def _spans(lines: pa.Array, kinds: Mapping[str, pa.DataType]) -> list[tuple[slice, Decoded]]:
    """Decode lines, by blocks if possible."""

    def one_by_one(at: slice) -> tuple[slice, Decoded]:
        few = lines[at]
        fields = [_one(line, kinds) for line in few.to_pylist()]
        return at, _unread(few, np.zeros(len(few), np.bool_), fields, kinds)

    return halved(lambda at: (at, _block(lines[at], kinds)), one_by_one, len(lines))


def _block(lines: pa.Array, kinds: Mapping[str, pa.DataType]) -> Decoded:
    wrapped = lines[0].as_py().startswith((b'{"schema":', b'{"payload":'))
    members = _members(tuple(kinds.items()), wrapped)
    found, raw = read_block(joined(lines), lines, members)
    # What has a payload is wrapped, unless it has an op; a schema behind the payload is read exactly.
    absent = ("op", "schema") if wrapped else ("payload",)
    if any(found.field(name).null_count < len(found) for name in absent):
        raise Unsure
    if wrapped:
        found = found.field("payload")
        raw = [_EMPTY if one.f0 is None else one.f0 for one in raw]
    fields = pa.StructArray.from_arrays(
        [found.field(name) for name in kinds], names=list(kinds), mask=found.is_null()
    )
    there = [mask(pc.struct_field(found, side).is_valid()) for side in _ROWS]
    before, after = row_texts([one.f0 for one in raw], there[0]), row_texts([one.f1 for one in raw], there[1])
    every, none = np.ones(len(lines), np.bool_), np.zeros(len(lines), np.int64)
    return Decoded(lines, every, _brackets(fields, raw), fields, before, after, none, ())


def _brackets(fields: pa.StructArray, raw: Sequence[Any]) -> Mask:
    """Which events of a block say that a transaction begins or ends; what has an `op` does not."""
    status, told = (pc.struct_field(fields, name) for name in ("status", "id"))
    found = mask(pc.and_(pc.is_in(status, value_set=_BRACKETS), told.is_valid()))
    if found.any():
        found = found & np.array([one.f2 is None for one in raw])
    return found


class _Empty:
    """Stands for a payload of null."""

    f0 = f1 = f2 = _NULL


_EMPTY = _Empty()


@lru_cache(64)
def _members(kinds: tuple[tuple[str, pa.DataType], ...], wrapped: bool) -> dict[str, JsonMember]:
    # First the rows, which msgspec gives as texts; Arrow only sees whether they are objects. Then the op.
    rows = {side: JsonMember(pa.struct([]), msgspec.Raw) for side in _ROWS}
    inner = rows | {name: JsonMember(kind, msgspec.Raw) for name, kind in kinds}
    if not wrapped:
        return inner | {"payload": JsonMember(_TEXT, NEVER)}
    payload = pa.struct([(name, one.kind) for name, one in inner.items()])
    shape = msgspec.defstruct(
        "Rows",
        [("f0", msgspec.Raw, _NULL), ("f1", msgspec.Raw, _NULL), ("f2", msgspec.Raw, None)],
        rename=dict(zip(("f0", "f1", "f2"), (*_ROWS, "op"), strict=True)),
        gc=False,
    )
    return {
        "payload": JsonMember(payload, shape | None, required=True),
        "schema": JsonMember(pa.struct([]), msgspec.Raw),
        "op": JsonMember(_TEXT, NEVER),
    }


def row_texts(rows: Sequence[Any], there: Mask) -> pa.Array:
    """The texts of rows, each with an end of a line; null where there is none."""
    given = rows if there.all() else list(compress(rows, there.tolist()))
    block = b"".join((b"\n".join(given), b"\n")) if given else b""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _END_OF_LINE) + 1
    if len(ends) != len(given):
        # A row is written on several lines.
        ends = np.cumsum([len(bytes(row)) + 1 for row in given])
    lengths = np.zeros(len(rows), np.int64)
    lengths[there] = np.diff(ends, prepend=0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    valid = pa.array(there).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(rows), [valid, pa.py_buffer(offsets), pa.py_buffer(block)])


def _one(line: bytes, kinds: Mapping[str, pa.DataType]) -> dict[str, Any] | None:
    """The same fields of one line, as the exact parser reads it; None if it is no event, which that tells."""
    try:
        event = loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if isinstance(event, dict) and "payload" in event and "op" not in event:
        event = event["payload"]
    return _fields(event, kinds) if isinstance(event, dict) else None


def _fields(event: Mapping[str, Any], kinds: Mapping[str, pa.DataType]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = event.get(name)
        if not pa.types.is_struct(kind):
            found[name] = _plain(value, kind)
        elif isinstance(value, dict):
            found[name] = _fields(value, {f.name: f.type for f in map(kind.field, range(kind.num_fields))})
    return found


def _plain(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        return value if type(value) is int and -(2**63) <= value < 2**63 else None
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | str):
        return None
    # JSON may escape halves of a character, which are no text.
    return str(value).encode("utf-8", "replace").decode()
