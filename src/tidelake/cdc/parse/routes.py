"""Which table each change event is of, and what the events say of its columns.

Owns where Debezium's events name their table: `source.db`, `source.schema` and `source.table` (MongoDB:
`source.collection`). It must not know what an event means. An event whose table cannot be read has none; the
parser finds the reason. Nor has an event on a statement that changes no rows.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.events import Mask
from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.core.ops import TRUNCATE
from tidelake.cdc.core.tablename import ESCAPE, SEPARATOR, Table
from tidelake.cdc.debezium.messagekeys import as_text, key_names
from tidelake.cdc.debezium.schemaprefix import SCHEMA, by_schema
from tidelake.cdc.debezium.statements import empties, is_statement, unfit
from tidelake.data.json.block import JsonMember, Unsure, objects, struct_shape, trimmed
from tidelake.data.json.values import loads

_PARTS = ("db", "schema", "table", "collection")


_LINES_MIN = 32


_NOWHERE = ("", False)


@dataclass(frozen=True)
class TableColumns:
    """What events say of their table, beside the rows.

    Attributes:
        table: as `tables_of` spells it.
        schema: the schema beside the payload, as JSON; empty: there is none.
        key: the names of the columns of the messages' keys, as `messagekeys.as_text` spells them.
        empties: the events only remove all rows of the table. They have no keys.
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
    return _routed(as_bytes(lines))[0]


def seen_in(lines: pa.Array, keys: pa.Array | None) -> tuple[pa.Array, list[TableColumns]]:
    """The table of each line, as `tables_of`, and what the lines say of the tables, each thing once."""
    tables, empty, schemas, texts = _routed(as_bytes(lines))
    codes, names = np.zeros(len(lines), np.int64), [as_text(None)]
    if keys is not None and keys.null_count < len(keys):
        codes, found = key_names(keys)
        names = [as_text(one) for one in found]
    # Events that empty a table have no keys, and a statement's key is not that of the table.
    codes = np.where(empty, 0, codes)
    columns = {"table": tables, "schema": schemas, "key": codes, "empty": empty, "at": np.arange(len(lines))}
    rows = pa.table(columns).filter(pc.not_equal(tables, ""))
    grouped = rows.group_by(["table", "schema", "key"]).aggregate([("at", "min"), ("empty", "min")])
    seen = [
        TableColumns(row["table"], texts[row["schema"]], names[row["key"]], row["empty_min"])
        for row in grouped.sort_by("at_min").to_pylist()
    ]
    return tables, list(dict.fromkeys(seen))


def _routed(lines: pa.Array) -> tuple[pa.Array, Mask, npt.NDArray[np.int64], list[str]]:
    """The tables, which lines empty theirs, the number of the schema of each line; the schemas by number."""
    tables = np.full(len(lines), "", object)
    empty = np.zeros(len(lines), np.bool_)
    schemas = np.zeros(len(lines), np.int64)
    texts = [""]
    for prefix, at, rest in by_schema(trimmed(lines)):
        if prefix:
            schemas[at] = len(texts)
            texts.append(prefix[len(SCHEMA) :].decode())
        found, empty[at] = _named(rest)
        tables[at] = found.to_numpy(zero_copy_only=False)
    return pa.array(tables, pa.string()), empty, schemas, texts


@lru_cache(1)
def _members() -> dict[str, JsonMember]:
    parts = {name: JsonMember(pa.string(), msgspec.Raw) for name in _PARTS}
    kind = pa.struct([(name, one.kind) for name, one in parts.items()])
    inner = {"op": JsonMember(pa.string(), msgspec.Raw), "source": JsonMember(kind, struct_shape(parts))}
    payload = pa.struct([(name, one.kind) for name, one in inner.items()])
    return {**inner, "payload": JsonMember(payload, struct_shape(inner))}


def _named(lines: pa.Array) -> tuple[pa.Array, Mask]:
    """The tables of lines without schemas, and which lines empty theirs."""
    try:
        found = objects(lines, _members())
    except Unsure:
        if len(lines) > _LINES_MIN:
            half = len(lines) // 2
            (first, one), (second, other) = _named(lines.slice(0, half)), _named(lines.slice(half))
            return pa.concat_arrays([first, second]), np.concatenate([one, other])
        tables, empty = zip(*(_one(line) for line in lines.to_pylist()), strict=True)
        return pa.array(tables, pa.string()), np.array(empty)
    outer, inner = found.field("source"), found.field("payload")
    source = pc.struct_field(inner, "source")
    parts = {
        name: pc.fill_null(pc.coalesce(pc.struct_field(outer, name), pc.struct_field(source, name)), "")
        for name in _PARTS
    }
    tables = _joined(parts["db"], parts["schema"], parts["table"], parts["collection"])
    op = pc.coalesce(found.field("op"), pc.struct_field(inner, "op"))
    empty = pc.fill_null(pc.equal(op, TRUNCATE), False).to_numpy(zero_copy_only=False)
    # A statement is no event on rows, though it names a table.
    others = np.flatnonzero(pc.and_(op.is_null(), pc.not_equal(tables, "")).to_numpy(zero_copy_only=False))
    if len(others):
        told, empty = tables.to_numpy(zero_copy_only=False).copy(), empty.copy()
        for at in others.tolist():
            told[at], empty[at] = _one(lines[at].as_py())
        tables = pa.array(told, pa.string())
    return tables, empty


def _joined(db: pa.Array, schema: pa.Array, table: pa.Array, collection: pa.Array) -> pa.Array:
    """As `Table.joined`."""
    name = pc.if_else(pc.equal(table, ""), collection, table)
    whole = pc.binary_join_element_wise(db, schema, name, SEPARATOR)
    whole = pc.if_else(pc.equal(name, ""), "", whole)
    several = (pc.max(pc.count_substring(whole, SEPARATOR)).as_py() or 0) >= len(Table._fields)
    if several or pc.any(pc.match_substring(whole, ESCAPE)).as_py():
        rows = zip(*(part.to_pylist() for part in (db, schema, name)), strict=True)
        return pa.array([Table(*row).joined if row[2] else "" for row in rows], pa.string())
    return whole


def _one(line: bytes | None) -> tuple[str, bool]:
    try:
        event: Any = loads((line or b"").decode())
    except (ValueError, RecursionError):
        return _NOWHERE
    if isinstance(event, dict) and "payload" in event and "source" not in event:
        event = event["payload"]
    source = event.get("source") if isinstance(event, dict) else None
    parts = [source.get(name) if isinstance(source, dict) else None for name in _PARTS]
    db, schema, table, collection = (part if isinstance(part, str) else "" for part in parts)
    name = table or collection
    if not name:
        return _NOWHERE
    empty = event.get("op") == TRUNCATE
    if is_statement(event):
        if unfit(event) or not empties(event):
            return _NOWHERE
        empty = True
    return Table(db, schema, name).joined, empty
