"""Messages of TiCDC in its protocol `simple`, as JSON. Those of its `canal-json` are Canal's.

Owns the meaning of their fields:

    {"type": "INSERT", "commitTs": 447984084414103554, "data": {...}}     the new row
    {"type": "UPDATE", ..., "data": {...}, "old": {...}}                  the same, and the old row
    {"type": "DELETE", ..., "old": {...}}                                 removes the row
    {"type": "WATERMARK"}, {"type": "BOOTSTRAP"}, {"type": "ALTER"}       no rows

All values are texts. Rows of a transaction have one `commitTs`. A statement that removes rows without naming
them is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.dialects.canal import TOO_LARGE, text_repairs
from tidelake.cdc.dialects.dialect import Change, Dialect, Repair, member
from tidelake.cdc.dialects.maxwell import removes

COMMITTED = "commitTs"
_OPS = ("INSERT", "UPDATE", "DELETE")
_NO_ROWS = ("WATERMARK", "BOOTSTRAP", "CREATE", "ALTER", "CINDEX", "DINDEX", "QUERY")
_DROPS = ("ERASE", "TRUNCATE", "RENAME")


class _Index(msgspec.Struct):
    primary: bool = False
    columns: list[str] = []


class _Table(msgspec.Struct):
    """A description of a table."""

    schema: str = ""
    table: str = ""
    indexes: list[_Index] | None = None


@dataclass(frozen=True)
class TicdcDialect(Dialect):
    """How TiCDC writes."""

    tool: ClassVar[str] = "TiCDC"
    terms: ClassVar[Terms] = Terms(
        event="message of TiCDC",
        op="type",
        ops={"c": "INSERT", "u": "UPDATE", "d": "DELETE"},
        known="INSERT, UPDATE and DELETE",
        sides={"before": "'old'", "after": "'data'", "key": "the key"},
        whole="set old_rows='stored'",
    )
    has_zero_times: ClassVar[bool] = True
    members: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            **dict.fromkeys(("type", "database", "table"), str | None),
            **dict.fromkeys(("data", "old"), msgspec.Raw),
            **dict.fromkeys(("tableSchema", "preTableSchema"), _Table | None),
            **{"handleKeyOnly": bool | None, "claimCheckLocation": str | None},
        }
    )
    clocks: ClassVar[Mapping[str, str]] = MappingProxyType({COMMITTED: "tso", "buildTs": "ms"})
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        dict.fromkeys(("counter", "us", "ms"), COMMITTED)
    )
    no_time: ClassVar[str] = "take a collection of time 'counter' or 'ms'"

    def table_of(self, message: Any) -> tuple[str, ...]:
        """As `Dialect`. Of a table that is renamed its old name."""
        told = member(message, "preTableSchema") or member(message, "tableSchema")
        names = (member(message, "database"), member(message, "table"))
        if told is not None:
            names = (told.schema, told.table)
        return tuple(name for name in names if name) if names[1] else ()

    def key_of(self, message: Any) -> Sequence[str] | None:
        """As `Dialect`: statements, and the messages `BOOTSTRAP`, have it."""
        told = member(message, "tableSchema")
        indexes = () if told is None else told.indexes or ()
        return next((one.columns for one in indexes if one.primary), None)

    def on_rows(self, message: Any) -> bool:
        """As `Dialect`."""
        return member(message, "type") in _OPS

    def changes(self, message: Any) -> Iterator[Change] | None:
        """As `Dialect`."""
        kind, data, old = (member(message, name) for name in ("type", "data", "old"))
        if kind in _NO_ROWS:
            return None
        if kind in _DROPS:
            raise Unfit(removes(kind))
        if kind not in _OPS:
            raise Unfit(f"type {kind!r} is unknown: known are {self.terms.known}")
        if kind != "DELETE" and (member(message, "handleKeyOnly") or member(message, "claimCheckLocation")):
            raise Unfit(TOO_LARGE)
        if kind == "INSERT":
            return iter([(b"c", None, self.row(data))])
        if kind == "DELETE":
            return iter([(b"d", self.row(old), None)])
        return iter([(b"u", self.row(old), self.row(data))])

    def repairs(self) -> Mapping[str, Repair]:
        """Texts of numbers and booleans."""
        return text_repairs(self.schema, self.counted)
