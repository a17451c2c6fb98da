"""Messages of wal2json, a plug-in of PostgreSQL's logical decoding, in both of its versions.

Owns the meaning of their fields. Version 1 has one message for each transaction, whose time is its end:

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.dialects.dialect import Change, Dialect, Repair, member
from tidelake.cdc.dialects.jsonvalues import as_hexadecimal

NEXT, COMMITTED = "nextlsn", "timestamp"
_KINDS = {"insert": "c", "update": "u", "delete": "d", "I": "c", "U": "u", "D": "d", "T": "t"}
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


@dataclass(frozen=True)
class Wal2JsonDialect(Dialect):
    """How wal2json writes."""

    tool: ClassVar[str] = "wal2json"
    terms: ClassVar[Terms] = Terms(
        event="message of wal2json",
        op="action",
        ops={"c": "insert", "u": "update", "d": "delete", "t": "truncate"},
        known="insert, update and delete, or I, U, D and T",
        sides={"before": "the old row", "after": "the new row", "key": "the key"},
        whole="set REPLICA IDENTITY FULL at the table, or old_rows='stored' with the columns of its key",
    )
    members: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            **dict.fromkeys(("action", "schema", "table"), str | None),
            **dict.fromkeys(("columns", "identity", "pk"), list[_Column] | None),
            "change": list[_Change] | None,
        }
    )
    clocks: ClassVar[Mapping[str, str]] = MappingProxyType({NEXT: "lsn", "lsn": "lsn", COMMITTED: "iso"})
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"counter": NEXT, "us": COMMITTED, "ms": COMMITTED}
    )
    no_time: ClassVar[str] = "take a collection of time 'counter' (version 1) or 'us'"
    positions: ClassVar[frozenset[str]] = frozenset({NEXT, "lsn", "xid"})
    untimed: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            NEXT: "let the plug-in write it (include-lsn=1), in version 1 (format-version=1): version 2 "
            "has it in a message of its own, so take a collection of time 'us' for that",
            COMMITTED: "let the plug-in write it (include-timestamp=1)",
        }
    )

    def table_of(self, message: Any) -> tuple[str, ...]:
        """As `Dialect`. Of the tables of a transaction (version 1) that of the collection, if it is there."""
        tables = self._tables(message)
        return next((one for one in tables if self._is_ours(one)), tables[0] if tables else ())

    def key_of(self, message: Any) -> Sequence[str] | None:
        """As `Dialect` (`include-pk`)."""
        change = member(message, "change")
        if change is None:
            return [one.name for one in member(message, "pk") or ()]
        ours = (one.pk for one in change if one.pk is not None and self._is_ours((one.schema, one.table)))
        return next((one.pknames for one in ours), None)

    def on_rows(self, message: Any) -> bool:
        """As `Dialect`."""
        return bool(self._tables(message))

    def changes(self, message: Any) -> Iterator[Change] | None:
        """As `Dialect`."""
        change, action = member(message, "change"), member(message, "action")
        if change is None and action is None:
            raise Unfit("neither 'change' nor 'action': not a message of wal2json")
        if change is None:
            if action in _NO_ROWS:
                return None
            columns, identity = (
                None if there is None else {one.name: one.value for one in there}
                for there in (member(message, "columns"), member(message, "identity"))
            )
            return iter([self._change(action, columns, identity)])
        ours = [one for one in change if one.table and self._is_ours((one.schema, one.table))]
        if self.table is None and len({(one.schema, one.table) for one in ours}) > 1:
            first = f"{ours[0].schema}.{ours[0].table}"
            raise Unfit(f"the transaction changes several tables: choose one, such as table={first!r}")
        return self._of_transaction(ours) if ours else None

    def repairs(self) -> Mapping[str, Repair]:
        """Bytes are hexadecimal."""
        return {
            one.name: as_hexadecimal
            for one in self.schema
            if pa.types.is_binary(one.type) or pa.types.is_large_binary(one.type)
        }

    def _tables(self, message: Any) -> list[tuple[str, ...]]:
        change = member(message, "change")
        if change is None:
            there: Iterable[Any] = [(member(message, "schema"), member(message, "table"))]
        else:
            there = ((one.schema, one.table) for one in change)
        return [tuple(part for part in names if part) for names in there if names[1]]

    def _of_transaction(self, changes: list[_Change]) -> Iterator[Change]:
        """The changes of one message, of which the last of a key counts: so it has what those before told."""
        rows: dict[tuple[bytes, ...], dict[str, Any]] = {}
        for one in changes:
            columns = _named(one.columnnames, one.columnvalues) if one.columnnames else None
            old = None if one.oldkeys is None else _named(one.oldkeys.keynames, one.oldkeys.keyvalues)
            # Without a key nothing tells which row it was.
            before = rows.pop(self._key(old if old is not None else columns or {}), {}) if self.key else {}
            if columns is not None:
                columns = {**before, **(old or {}), **columns}
                rows[self._key(columns)] = columns
            yield self._change(one.kind, columns, old)

    def _key(self, row: Mapping[str, Any]) -> tuple[bytes, ...]:
        return tuple(bytes(row.get(name, b"")) for name in self.key)

    def _change(self, kind: str, columns: Mapping[str, Any] | None, old: Mapping[str, Any] | None) -> Change:
        op = _KINDS.get(kind)
        before = None if old is None else self.of_columns(old)
        if op == "t":
            return b"t", None, None
        if op == "d":
            return b"d", before, None
        if op is None:
            raise Unfit(f"action {kind!r} is unknown: known are {self.terms.known}")
        if columns is None:
            raise Unfit(f"action {kind!r} without columns")
        return (
            (b"c", None, self.of_columns(columns))
            if op == "c"
            else (b"u", before, self.partial(columns, old))
        )


def _named(names: list[str], values: list[msgspec.Raw]) -> dict[str, msgspec.Raw]:
    if len(names) != len(values):
        raise Unfit(f"there are {len(names)} names of columns and {len(values)} values")
    return dict(zip(names, values, strict=True))
