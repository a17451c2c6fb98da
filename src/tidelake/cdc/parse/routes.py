"""Which table each change event is of, and what the events say of its columns.

Owns where Debezium's events name their table: `source.db`, `source.schema` and `source.table` (MongoDB:
`source.collection`). It must not know what an event means. An event whose table cannot be read has none; the
parser finds the reason. Nor has an event on a statement that changes no rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import mask
from tidelake.cdc.core.events import Mask
from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.core.ops import TRUNCATE
from tidelake.cdc.core.tablename import ESCAPE, SEPARATOR, Table
from tidelake.cdc.debezium.decoded import Decoded, decode
from tidelake.cdc.debezium.messagekeys import as_text, key_names
from tidelake.cdc.debezium.schemaprefix import SCHEMA
from tidelake.cdc.debezium.statements import empties, is_statement, unfit
from tidelake.data.json.values import loads

_PARTS = ("db", "schema", "table", "collection")
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


def tables_of(lines: pa.Array | Decoded) -> pa.Array:
    """The table of each line, a text for `Table.of`; empty if it names none."""
    return _routed(_decoded(lines))[0]


def seen_in(lines: pa.Array | Decoded, keys: pa.Array | None) -> tuple[pa.Array, list[TableColumns]]:
    """The table of each line, as `tables_of`, and what the lines say of the tables, each thing once."""
    found = _decoded(lines)
    tables, empty = _routed(found)
    codes, names = np.zeros(len(lines), np.int64), [as_text(None)]
    if keys is not None and keys.null_count < len(keys):
        codes, several = key_names(keys)
        names = [as_text(one) for one in several]
    # Events that empty a table have no keys, and a statement's key is not that of the table.
    codes = np.where(empty, 0, codes)
    columns = {"table": tables, "schema": found.schemas, "key": codes, "empty": empty}
    rows = pa.table({**columns, "at": np.arange(len(lines))}).filter(pc.not_equal(tables, ""))
    grouped = rows.group_by(["table", "schema", "key"]).aggregate([("at", "min"), ("empty", "min")])
    texts = [text[len(SCHEMA) :].decode() for text in found.texts]
    seen = [
        TableColumns(row["table"], texts[row["schema"]], names[row["key"]], row["empty_min"])
        for row in grouped.sort_by("at_min").to_pylist()
    ]
    return tables, list(dict.fromkeys(seen))


def _decoded(lines: pa.Array | Decoded) -> Decoded:
    return lines if isinstance(lines, Decoded) else decode(as_bytes(lines))


def _routed(found: Decoded) -> tuple[pa.Array, Mask]:
    """The table of each line, and which lines empty theirs."""
    source = pc.struct_field(found.fields, "source")
    parts = {name: pc.fill_null(pc.struct_field(source, name), "") for name in _PARTS}
    tables = _joined(parts["db"], parts["schema"], parts["table"], parts["collection"])
    op = pc.struct_field(found.fields, "op")
    empty = mask(pc.equal(op, TRUNCATE))
    # A statement is no event on rows, though it names a table.
    exactly = mask(pc.and_(op.is_null(), pc.not_equal(tables, ""))) | ~found.known
    others = np.flatnonzero(exactly)
    if len(others):
        told, empty = tables.to_numpy(zero_copy_only=False).copy(), empty.copy()
        for at in others.tolist():
            told[at], empty[at] = _one(found.lines[at].as_py())
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
    # JSON may escape halves of a character, which are no text.
    if not name or any("\ud800" <= c <= "\udfff" for c in db + schema + name):
        return _NOWHERE
    empty = event.get("op") == TRUNCATE
    if is_statement(event):
        if unfit(event) or not empties(event):
            return _NOWHERE
        empty = True
    return Table(db, schema, name).joined, empty
