"""Messages of wal2json, a plug-in of PostgreSQL's logical decoding, in both of its versions.

Version 1 has one message for each transaction, whose time is its end:

    {"nextlsn": "0/15482F0", "timestamp": "…", "change": [
      {"kind": "insert", "table": "t", "columnnames": ["id"], "columnvalues": [1]},
      {"kind": "update", ..., "oldkeys": {"keynames": ["id"], "keyvalues": [1]}},
      {"kind": "delete", "table": "t", "oldkeys": {...}},
      {"kind": "message", ...}]}                                                    no row

Version 2 has one for each row, with the wall clock of its transaction:

    {"action": "I", "table": "t", "columns": [{"name": "id", "value": 1}]}
    {"action": "U", ..., "identity": [{"name": "id", "value": 1}]}
    {"action": "D", "table": "t", "identity": [...]}
    {"action": "T", "table": "t"}                                                   removes all rows
    {"action": "B"}, {"action": "C"}, {"action": "M"}                               no row

A large value that did not change is left out, and is that of the row before.

LIMITATION: version 1 leaves every TRUNCATE out, and both write null for NaN and infinities of numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.dialects.dialect import Change, Dialect, Fields, MessageReader, Names, RefusedWord
from tidelake.cdc.dialects.jsonvalues import as_hexadecimal

NEXT, _COMMITTED = "nextlsn", "timestamp"
_OPS = {"insert": "c", "update": "u", "delete": "d", "I": "c", "U": "u", "D": "d", "T": "t"}
_NO_ROWS = ("B", "C", "M")


class _Keys(msgspec.Struct):
    keynames: list[str] = []
    keyvalues: list[msgspec.Raw] = []


class _Primary(msgspec.Struct):
    pknames: list[str] = []


class _Change(msgspec.Struct):
    """A change in a message of version 1."""

    kind: str = ""
    schema: str = ""
    table: str = ""
    columnnames: list[str] = []
    columnvalues: list[msgspec.Raw] = []
    oldkeys: _Keys | None = None
    pk: _Primary | None = None


class _Column(msgspec.Struct):
    """A column in a message of version 2."""

    name: str
    value: msgspec.Raw = msgspec.Raw(b"null")


def _word(message: Fields) -> str | None:
    """The action; of a transaction (version 1) whether it changes rows, of which each change has a kind."""
    change, action = message.get("change"), message.get("action")
    if change is not None:
        return "insert" if any(one.table for one in change) else _NO_ROWS[0]
    return (
        RefusedWord("neither 'change' nor 'action': not a message of wal2json") if action is None else action
    )


def _tables(message: Fields) -> list[Names]:
    change = message.get("change")
    if change is None:
        there = [(message.get("schema"), message.get("table"))]
    else:
        there = [(one.schema, one.table) for one in change]
    return [tuple(part for part in names if part) for names in there if names[1]]


def _key(reader: MessageReader, message: Fields) -> Sequence[str] | None:
    """With `include-pk`."""
    change = message.get("change")
    if change is None:
        return [one.name for one in message.get("pk") or ()]
    told = (one.pk for one in change if one.pk is not None and reader.is_ours((one.schema, one.table)))
    return next((one.pknames for one in told), None)


def _rows(reader: MessageReader, _op: str, message: Fields) -> list[Change]:
    change = message.get("change")
    if change is None:
        columns, identity = (
            None if there is None else {one.name: one.value for one in there}
            for there in (message.get("columns"), message.get("identity"))
        )
        return [_change(reader, message["action"], columns, identity)]
    ours = [one for one in change if one.table and reader.is_ours((one.schema, one.table))]
    if reader.table is None and not reader.several and len({(one.schema, one.table) for one in ours}) > 1:
        first = f"{ours[0].schema}.{ours[0].table}"
        raise Unfit(f"the transaction changes several tables: choose one, such as table={first!r}")
    return list(_of_transaction(reader, ours))


def _of_transaction(reader: MessageReader, changes: list[_Change]) -> Iterator[Change]:
    """The changes of one message, of which the last of a key counts: so it has what those before told."""
    rows: dict[tuple[bytes, ...], dict[str, Any]] = {}

    def key(row: Mapping[str, Any]) -> tuple[bytes, ...]:
        return tuple(bytes(row.get(name, b"")) for name in reader.key)

    for one in changes:
        columns = _named(one.columnnames, one.columnvalues) if one.columnnames else None
        old = None if one.oldkeys is None else _named(one.oldkeys.keynames, one.oldkeys.keyvalues)
        # Without a key nothing tells which row it was.
        before = rows.pop(key(old if old is not None else columns or {}), {}) if reader.key else {}
        if columns is not None:
            columns = {**before, **(old or {}), **columns}
            rows[key(columns)] = columns
        yield _change(reader, one.kind, columns, old)


def _change(
    reader: MessageReader, kind: str, columns: dict[str, Any] | None, old: dict[str, Any] | None
) -> Change:
    op = _OPS.get(kind)
    if op is None:
        raise Unfit(WAL2JSON.refusal(kind))
    if op == "t":
        return op, None, None
    if columns is None and op != "d":
        raise Unfit(f"action {kind!r} without columns")
    return reader.partial(op, columns, old)


def _named(names: list[str], values: list[msgspec.Raw]) -> dict[str, msgspec.Raw]:
    if len(names) != len(values):
        raise Unfit(f"there are {len(names)} names of columns and {len(values)} values")
    return dict(zip(names, values, strict=True))


WAL2JSON = Dialect(
    tool="wal2json",
    op="action",
    ops=_OPS,
    sides=("the old row", "the new row"),
    whole="set REPLICA IDENTITY FULL at the table, or old_rows='stored' with the columns of its key",
    members={
        **dict.fromkeys(("action", "schema", "table"), str | None),
        **dict.fromkeys(("columns", "identity", "pk"), list[_Column] | None),
        "change": list[_Change] | None,
    },
    rows=_rows,
    numbers={NEXT: "lsn", "lsn": "lsn", "xid": "position", _COMMITTED: "iso"},
    defaults={"counter": NEXT, "us": _COMMITTED, "ms": _COMMITTED},
    no_time="take a collection of time 'counter' (version 1) or 'us'",
    untimed={
        NEXT: "let the plug-in write it (include-lsn=1), in version 1 (format-version=1): version 2 "
        "has it in a message of its own, so take a collection of time 'us' for that",
        _COMMITTED: "let the plug-in write it (include-timestamp=1)",
    },
    tables=_tables,
    key=_key,
    word=_word,
    no_rows=_NO_ROWS,
    # Bytes are hexadecimal.
    repairs={"binary": as_hexadecimal},
)
