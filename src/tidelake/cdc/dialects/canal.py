"""Messages of Canal, and of TiCDC in Canal's form (`canal-json`).

Owns the meaning of their fields:

    {"type": "INSERT", "data": [{...}, {...}]}                  +1 each row
    {"type": "UPDATE", "data": [{...}], "old": [{"a": "1"}]}    -1 each row with its old values, +1 each row
    {"type": "DELETE", "data": [{...}]}                         -1 each row
    {"isDdl": true, "type": "ALTER", "sql": "..."}              no rows
    {"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": 9}}     no rows

All values are texts. An item of `old` has the columns that changed, the item of `data` all. A statement that
removes rows without naming them is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.dialects.dialect import Change, Dialect, Repair, member
from tidelake.cdc.dialects.jsonvalues import as_base64, as_boolean, as_number
from tidelake.cdc.dialects.maxwell import BINLOG, removes

_DROPS = ("ERASE", "TRUNCATE", "RENAME", "DELETE", "UPDATE")


TOO_LARGE = (
    "the row was too large for a message, which has only the key: let TiCDC write larger ones "
    "(max-message-bytes, large-message-handle-option='none')"
)


# Canal gives the type QUERY to statements whose kind it does not know.
_REMOVES = re.compile(r"\s*(/\*.*?\*/\s*)*(DROP\s+(DATABASE|SCHEMA|TABLE)|TRUNCATE|RENAME)\b", re.I | re.S)


_OPS = {"INSERT": b"c", "UPDATE": b"u", "DELETE": b"d"}


_Rows = list[msgspec.Raw] | None


@dataclass(frozen=True)
class CanalDialect(Dialect):
    """How Canal writes."""

    tool: ClassVar[str] = "Canal"
    terms: ClassVar[Terms] = Terms(
        event="message of Canal",
        op="type",
        ops={"c": "INSERT", "u": "UPDATE", "d": "DELETE"},
        known="INSERT, UPDATE and DELETE",
        sides={"before": "the old row", "after": "'data'", "key": "the key"},
        whole=BINLOG,
    )
    has_zero_times: ClassVar[bool] = True
    members: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            **dict.fromkeys(("type", "database", "table"), str | None),
            **dict.fromkeys(("data", "old"), _Rows),
            **{"isDdl": bool | None, "sql": str | None, "pkNames": list[str] | None},
            "_tidb": dict[str, Any] | None,
        }
    )
    clocks: ClassVar[Mapping[str, str]] = MappingProxyType({"es": "ms", "ts": "ms"})
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType({"us": "es", "ms": "es"})
    no_time: ClassVar[str] = (
        "give time='_tidb.commitTs' if TiCDC writes them, or take a collection of time 'ms'"
    )
    positions: ClassVar[frozenset[str]] = frozenset({"id", "gtid", "_tidb.commitTs"})

    def table_of(self, message: Any) -> tuple[str, ...]:
        """As `Dialect`."""
        names = (member(message, "database"), member(message, "table"))
        return tuple(name for name in names if name) if names[1] else ()

    def key_of(self, message: Any) -> Sequence[str] | None:
        """As `Dialect`."""
        found: Sequence[str] | None = member(message, "pkNames")
        return found

    def on_rows(self, message: Any) -> bool:
        """As `Dialect`."""
        return member(message, "type") in _OPS and not member(message, "isDdl")

    def changes(self, message: Any) -> Iterator[Change] | None:
        """As `Dialect`."""
        if self.of_another_database(member(message, "database")):
            return None
        kind, data, old = (member(message, name) for name in ("type", "data", "old"))
        if member(message, "isDdl"):
            sql = member(message, "sql")
            if kind in _DROPS or (kind == "QUERY" and _REMOVES.match(sql or "")):
                raise Unfit(removes(kind if kind in _DROPS else sql))
            return None
        if kind in ("QUERY", "TIDB_WATERMARK"):
            return None
        if kind not in _OPS:
            raise Unfit(f"type {kind!r} is unknown: known are {self.terms.known}")
        if data is None:
            raise Unfit(f"type {kind!r} without 'data'")
        of_tidb = member(message, "_tidb") or {}
        if kind != "DELETE" and (of_tidb.get("onlyHandleKey") or of_tidb.get("claimCheckLocation")):
            raise Unfit(TOO_LARGE)
        if kind != "UPDATE":
            return iter(self._sides(_OPS[kind], data))
        if old is None or len(old) != len(data):
            raise Unfit("type 'UPDATE' needs as many rows in 'old' as in 'data'")
        return iter([(b"u", self.merged(d, o), self.row(d)) for d, o in zip(data, old, strict=True)])

    def _sides(self, op: bytes, rows: list[Any]) -> list[Change]:
        if op == b"d":
            return [(op, self.row(row), None) for row in rows]
        return [(op, None, self.row(row)) for row in rows]

    def repairs(self) -> Mapping[str, Repair]:
        """Texts of numbers, booleans and bytes."""
        binary = (
            one for one in self.schema if pa.types.is_binary(one.type) or pa.types.is_large_binary(one.type)
        )
        return {**text_repairs(self.schema, self.counted), **{one.name: as_base64 for one in binary}}


def text_repairs(schema: pa.Schema, counted: frozenset[str]) -> dict[str, Repair]:
    """For columns of numbers and booleans, what makes these of texts."""
    found: dict[str, Repair] = {}
    for one in schema:
        if pa.types.is_boolean(one.type):
            found[one.name] = as_boolean
        elif pa.types.is_integer(one.type) or pa.types.is_floating(one.type) or one.name in counted:
            found[one.name] = as_number
    return found
