"""Which table each change event is of, and what the events say of its columns.

Owns where Debezium's events name their table: `source.db`, `source.schema` and `source.table` (MongoDB:
`source.collection`). It must not know what an event means. An event whose table cannot be read has none; the
parser finds the reason.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.json.block import JsonMember, Unsure, objects, struct_shape, trimmed
from tidelake.data.json.values import loads
from tidelake.spark.envelopes.messages import as_bytes
from tidelake.spark.envelopes.read import LineNumbers
from tidelake.spark.tasks import one_thread

TABLE = "_tidelake_table"
_PARTS = ("db", "schema", "table", "collection")
# No name of a table has it.
_SEPARATOR = "\x1f"
_SCHEMA = b'{"schema":'
# An explicit end of slices: without one, Arrow computes negative lengths.
_END = 2**31 - 1
_LINES_MIN = 32
_PREFIXES_MAX = 1000


class Table(NamedTuple):
    """The name of a table at the source; parts that the source does not have are empty."""

    db: str
    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> "Table":
        """The table of a text of `tables_of`."""
        return cls(*text.split(_SEPARATOR))

    @property
    def text(self) -> str:
        """As `tables_of` spells it."""
        return _SEPARATOR.join(self)

    @property
    def short(self) -> str:
        """`schema.table`, or `db.table` if the source has no schemas."""
        return ".".join(filter(None, (self.schema or self.db, self.name)))

    def __str__(self) -> str:
        return ".".join(filter(None, self))


@dataclass(frozen=True)
class TableColumns:
    """What events say of their table, beside the rows.

    Attributes:
        table: as `tables_of` spells it; empty: none.
        schema: the schema beside the payload, as JSON; empty: there is none.
        key: the schema beside the payload of the key of a message, as JSON; empty: there is none.
        empties: the events only truncate the table. They have no keys.
    """

    table: str
    schema: str
    key: str
    empties: bool = False


def tables_of(lines: pa.Array) -> pa.Array:
    """The table of each line, a text for `Table.of`; empty if it names none.

    Args:
        lines: binary or text, one JSON text each; may have nulls.
    """
    return _tables_and_schemas(as_bytes(lines))[0]


def seen_in(lines: pa.Array, keys: pa.Array | None) -> tuple[pa.Array, list[TableColumns]]:
    """The table of each line, as `tables_of`, and what the lines say of the tables, each thing once."""
    tables, schemas, texts = _tables_and_schemas(as_bytes(lines))
    at = pa.array(np.arange(len(lines)))
    keyed = pa.nulls(len(lines), at.type) if keys is None else pc.if_else(keys.is_valid(), at, None)
    rows = pa.table({"table": tables, "schema": schemas, "at": at, "keyed": keyed})
    found = rows.group_by(["table", "schema"]).aggregate([("at", "min"), ("keyed", "min")])
    seen = []
    for row in found.sort_by("at_min").to_pylist():
        table, schema, first, keyed_at = (row[name] for name in ("table", "schema", "at_min", "keyed_min"))
        if not table:
            continue
        key, empties = "", False
        if keys is not None and keyed_at is not None:
            key = _schema_text(as_bytes(keys.slice(keyed_at, 1))[0].as_py())
        elif _truncates(lines.slice(first, 1)):
            empties = _truncates(lines.filter(pc.and_(pc.equal(tables, table), pc.equal(schemas, schema))))
        seen.append(TableColumns(table, texts[schema], key, empties))
    return tables, seen


def _truncates(lines: pa.Array) -> bool:
    """Whether all of these events truncate their table."""
    return bool(pc.all(pc.match_substring_regex(as_bytes(lines), r'"op":\s*"t"')).as_py())


def _tables_and_schemas(lines: pa.Array) -> tuple[pa.Array, pa.Array, list[str]]:
    """The tables, the number of the schema of each line, and the schemas by number."""
    bare = trimmed(lines)
    tables = np.full(len(lines), "", object)
    schemas = np.zeros(len(lines), np.int64)
    texts = [""]
    for prefix, at, rest in _by_schema(bare):
        if prefix:
            schemas[at] = len(texts)
            texts.append(prefix[len(_SCHEMA) :].decode())
        tables[at] = _named(rest).to_numpy(zero_copy_only=False)
    return pa.array(tables, pa.string()), pa.array(schemas), texts


def _by_schema(lines: pa.Array) -> Iterator[tuple[bytes, npt.NDArray[np.int64], pa.Array]]:
    """Lines by the schema that they begin with, without it: the beginning, their numbers, and the rest."""
    there = pc.fill_null(pc.starts_with(lines, b"{"), False).to_numpy(zero_copy_only=False)
    begins = pc.fill_null(pc.starts_with(lines, _SCHEMA), False).to_numpy(zero_copy_only=False)
    left, others = np.flatnonzero(begins), np.flatnonzero(there & ~begins)
    if len(others):
        yield b"", others, lines.take(pa.array(others))
    for _ in range(_PREFIXES_MAX):
        if not len(left):
            return
        here = lines.take(pa.array(left))
        prefix = _prefix(here[0].as_py())
        if not prefix:
            yield b"", left[:1], here.slice(0, 1)
            left = left[1:]
            continue
        same = pc.starts_with(here, prefix).to_numpy(zero_copy_only=False)
        rest = pc.binary_slice(here.filter(pa.array(same)), len(prefix), _END)
        # Without the schema, which is long.
        short = pc.binary_join_element_wise(pa.scalar(b'{"schema":null'), rest, pa.scalar(b""))
        yield prefix, left[same], short
        left = left[~same]
    if len(left):
        yield b"", left, lines.take(pa.array(left))


def _prefix(line: bytes) -> bytes:
    """The beginning of a line up to the end of its schema; empty if it is no JSON."""
    try:
        text = line.decode()
        start = len(text) - len(text[len(_SCHEMA) :].lstrip(" "))
        return text[: json.JSONDecoder().raw_decode(text, start)[1]].encode()
    except (ValueError, RecursionError):
        return b""


def _schema_text(key: bytes | None) -> str:
    """The schema of a message's key, as JSON; empty if it has none."""
    prefix = b"" if key is None or not key.startswith(_SCHEMA) else _prefix(key)
    return prefix[len(_SCHEMA) :].decode()


@lru_cache(1)
def _members() -> dict[str, JsonMember]:
    parts = {name: JsonMember(pa.string(), msgspec.Raw) for name in _PARTS}
    kind = pa.struct([(name, one.kind) for name, one in parts.items()])
    source = JsonMember(kind, struct_shape(parts))
    payload = JsonMember(pa.struct([("source", kind)]), struct_shape({"source": source}))
    return {"source": source, "payload": payload}


def _named(lines: pa.Array) -> pa.Array:
    """The tables of lines without schemas."""
    try:
        found = objects(lines, _members())
    except Unsure:
        if len(lines) > _LINES_MIN:
            half = len(lines) // 2
            return pa.concat_arrays([_named(lines.slice(0, half)), _named(lines.slice(half))])
        return pa.array([_one(line) for line in lines.to_pylist()], pa.string())
    outer, inner = found.field("source"), found.field("payload").flatten()[0]
    parts = {
        name: pc.fill_null(pc.coalesce(pc.struct_field(outer, name), pc.struct_field(inner, name)), "")
        for name in _PARTS
    }
    return _joined(parts["db"], parts["schema"], parts["table"], parts["collection"])


def _joined(db: pa.Array, schema: pa.Array, table: pa.Array, collection: pa.Array) -> pa.Array:
    name = pc.if_else(pc.equal(table, ""), collection, table)
    whole = pc.binary_join_element_wise(db, schema, name, _SEPARATOR)
    return pc.if_else(pc.equal(name, ""), "", whole)


def _one(line: bytes | None) -> str:
    try:
        event: Any = loads((line or b"").decode())
    except (ValueError, RecursionError):
        return ""
    if isinstance(event, dict) and "payload" in event and "source" not in event:
        event = event["payload"]
    source = event.get("source") if isinstance(event, dict) else None
    parts = [source.get(name) if isinstance(source, dict) else None for name in _PARTS]
    db, schema, table, collection = (part if isinstance(part, str) else "" for part in parts)
    name = table or collection
    return _SEPARATOR.join((db, schema, name)) if name else ""


@dataclass
class NumberedLines:
    """Gives the lines of the batches of one task their numbers, which a split by table would lose."""

    _lines: LineNumbers = field(default_factory=LineNumbers)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with columns `AS_TEXT`, with the number of each line as its `offset`, if it has none."""
        files, offsets = batch.column("file"), batch.column("offset")
        if not batch.num_rows or offsets.null_count < len(offsets) or files.null_count == len(files):
            return batch
        blocks = pc.fill_null(batch.column("block"), 0).to_numpy()
        at = batch.schema.get_field_index("offset")
        return batch.set_column(at, "offset", pa.array(self._lines.of(files, blocks)))


@dataclass(frozen=True)
class RouteLines:
    """In a worker: lines with columns `AS_TEXT`, and the table of each."""

    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        numbers = NumberedLines()
        for batch in batches:
            numbered = numbers.of(batch.rename_columns(list(self.columns)))
            yield numbered.append_column(TABLE, tables_of(numbered.column("value")))


@dataclass(frozen=True)
class SurveyLines:
    """In a worker: what the lines say of their tables, as rows with the fields of `TableColumns`."""

    columns: tuple[str, ...]
    kinds: ClassVar[str] = "table string, schema string, key string, empties boolean"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        known: set[TableColumns] = set()
        for batch in batches:
            named = batch.rename_columns(list(self.columns))
            _, found = seen_in(named.column("value"), named.column("key"))
            new = [one for one in found if one not in known]
            known.update(new)
            kinds = [*[(name, pa.string()) for name in ("table", "schema", "key")], ("empties", pa.bool_())]
            yield pa.RecordBatch.from_pylist([asdict(one) for one in new], schema=pa.schema(kinds))
