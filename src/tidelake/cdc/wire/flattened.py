"""Events that Debezium's transform `ExtractNewRecordState` has flattened, made whole again.

Owns which fields of a flattened event are columns, and which say what happened:

    {"id": 1, "name": "a", "__op": "u", "__source_lsn": 7}        {"op": "u", "after": {"id": 1, "name": "a"},
                                                                  "source": {"lsn": 7}}
    {"id": 1, "name": null, "__deleted": "true"}                  {"op": "d", "before": {...}}

`add.fields` of the transform says which fields there are; `source.sequence` comes as `__source_sequence`, and
`lsn` as `__lsn`. Old rows are not in such events: they are looked up.
"""

from functools import lru_cache
from typing import Any

import msgspec

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.core.rawjson import MEMBERS, fields_of

# Fields of `source` of all connectors, which the transform may also write without that word.
_SOURCE = frozenset(
    {
        *("version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence", "schema"),
        *("table", "txId", "lsn", "xmin", "server_id", "gtid", "file", "pos", "row", "thread", "query"),
        *("commit_lsn", "change_lsn", "event_serial_no", "scn", "commit_scn", "collection", "ord"),
    }
)
_PREFIX, _OP, _DELETED, _SEEN = "__", "__op", "__deleted", "__ts_ms"
_DELETES = (b'"true"', b"true")
_MISSING = (
    f"no {_OP!r} and no {_DELETED!r}: let the transform add what the times of events are made of, such as "
    "add.fields=op,source.connector,source.db,source.schema,source.table,source.lsn,source.sequence,"
    "source.snapshot,source.ts_ms,source.txId, and keep deletions (delete.tombstone.handling.mode=rewrite)"
)
NULL = (
    "a message without a value is a deletion here, or repeats one: let the transform tell deletions "
    "(delete.tombstone.handling.mode=rewrite); if it writes both (rewrite-with-tombstone), say "
    "tombstones='ignore'"
)


def unflattened(line: bytes) -> bytes:
    """An event of Debezium, of a flattened one; heartbeats and marks of transactions stay as they are."""
    try:
        outer = MEMBERS.decode(line)
        if outer.keys() != {"schema", "payload"}:
            return _event(outer, line)
        if bytes(outer["payload"]) == b"null":
            raise Unfit(NULL)
        event = _event(MEMBERS.decode(outer["payload"]), b"")
        if not event:
            return line
        schema = bytes(outer["schema"])
        return event if schema == b"null" else b'{"schema":%b,"payload":%b}' % (_schema(schema), event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unfit(f"not a JSON object: {error}") from None


def _event(fields: dict[str, msgspec.Raw], otherwise: bytes) -> bytes:
    """The event; for a heartbeat or mark `otherwise`."""
    told = {name: value for name, value in fields.items() if _tells(name)}
    if _OP not in told and _DELETED not in told:
        if fields.keys() == {"ts_ms"} or {"id", "status", "event_count"} <= fields.keys():
            return otherwise
        raise Unfit(_MISSING)
    row = {name: value for name, value in fields.items() if name not in told}
    op = b'"d"' if bytes(told.get(_DELETED, b"")) in _DELETES else bytes(told.get(_OP, b'"u"'))
    # Without a word before it, this one is of the event: when the connector saw it, and not of the commit.
    seen = told.pop(_SEEN, None)
    source = {_inner(name): value for name, value in told.items() if _inner(name)}
    after = op != b'"d"'
    made: dict[str, Any] = {
        "before": None if after else row,
        "after": row if after else None,
        "source": source,
        "op": msgspec.Raw(op),
    }
    if seen is not None or "ts_ms" in source:
        made["ts_ms"] = source["ts_ms"] if seen is None else seen
    return msgspec.json.encode(made)


@lru_cache(1024)
def _tells(name: str) -> bool:
    """Whether a field tells of the event, and is no column."""
    return name in (_OP, _DELETED) or _inner(name) != "" or name.startswith("__transaction_")


@lru_cache(1024)
def _inner(name: str) -> str:
    """The name in `source` of a field; empty if it is not from there."""
    if not name.startswith(_PREFIX):
        return ""
    inner = name.removeprefix(_PREFIX)
    if inner.startswith("source_"):
        return inner.removeprefix("source_")
    return inner if inner in _SOURCE else ""


@lru_cache(256)
def _schema(schema: bytes) -> bytes:
    """The schema of Connect of the event, of that of the flattened one."""
    outer = MEMBERS.decode(schema)
    columns = [one for name, one in fields_of(outer) if not _tells(name)]
    row = {**outer, "fields": columns, "optional": True}
    sides = [row | {"field": side} for side in ("before", "after")]
    return msgspec.json.encode({"type": "struct", "fields": sides, "optional": False})
