"""Messages of Oracle GoldenGate for Big Data, in its form `json` (of operations).

Owns the meaning of their fields:

    {"op_type": "I", "table": "S.T", "pos": "00000000000000002928", "after": {...}}     the new row
    {"op_type": "U", ..., "before": {...}, "after": {...}}                              the same
    {"op_type": "D", ..., "before": {...}}                                              removes the row
    {"op_type": "T", "table": "S.T", ...}                                               removes all rows

`pos` is the number of the trail's file and a position in it: operations have it in the order of the commits.
The trail has the columns that the source logs: those that are left out, or marked (`A_isMissing`), are those
of the row before.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.core.tablename import name_parts
from tidelake.cdc.dialects.dialect import Change, Dialect, Repair, as_object, member
from tidelake.cdc.dialects.jsonvalues import as_number
from tidelake.errors import UsageError

POSITION, _COMMITTED, _WRITTEN = "pos", "op_ts", "current_ts"
_OPS = ("I", "U", "D", "T")
_MISSING = "_isMissing"


@dataclass(frozen=True)
class GoldenGateDialect(Dialect):
    """How GoldenGate writes."""

    tool: ClassVar[str] = "GoldenGate"
    terms: ClassVar[Terms] = Terms(
        event="message of GoldenGate",
        op="op_type",
        ops={"c": "I", "u": "U", "d": "D", "t": "T"},
        known="I, U, D and T",
        sides={"before": "'before'", "after": "'after'", "key": "the key"},
        whole="log all columns at the source (ADD TRANDATA ... ALLCOLS), or set old_rows='stored'",
    )
    members: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            **dict.fromkeys(("op_type", "table"), str | None),
            **dict.fromkeys(("before", "after"), msgspec.Raw),
            "primary_keys": list[str] | None,
        }
    )
    clocks: ClassVar[Mapping[str, str]] = MappingProxyType(
        {POSITION: "digits", _COMMITTED: "iso", _WRITTEN: "iso"}
    )
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType({"counter": POSITION})
    no_time: ClassVar[str] = (
        "its times of a clock say no zone: take a collection of time 'counter', whose time is then 'pos'"
    )
    positions: ClassVar[frozenset[str]] = frozenset({POSITION})

    def table_of(self, message: Any) -> tuple[str, ...]:
        """As `Dialect`: schema and table; the catalog before them is left out."""
        name = member(message, "table")
        if not name:
            return ()
        try:
            return name_parts(name)[-2:]
        except UsageError as error:
            raise Unfit(f"'table': {error}") from None

    def key_of(self, message: Any) -> Sequence[str] | None:
        """As `Dialect` (`includePrimaryKeys`)."""
        found: Sequence[str] | None = member(message, "primary_keys")
        return found

    def on_rows(self, message: Any) -> bool:
        """As `Dialect`."""
        return member(message, "op_type") in _OPS

    def changes(self, message: Any) -> Iterator[Change] | None:
        """As `Dialect`."""
        kind = member(message, "op_type")
        if kind is None:
            raise Unfit("no 'op_type': not a message of GoldenGate")
        if kind not in _OPS:
            raise Unfit(f"op_type {kind!r} is unknown: known are {self.terms.known}")
        if kind == "T":
            return iter([(b"t", None, None)])
        before, after = (self._columns(member(message, name)) for name in ("before", "after"))
        if before is None and after is None:
            raise Unfit(
                "neither 'before' nor 'after': rows of the form json_row have no old key; let the handler "
                "write gg.handler.NAME.format=json"
            )
        if kind == "D":
            return iter([(b"d", None if before is None else self.of_columns(before), None)])
        if after is None:
            raise Unfit(f"op_type {kind!r} without 'after'")
        if kind == "I":
            return iter([(b"c", None, self.of_columns(after))])
        return iter(
            [(b"u", None if before is None else self.of_columns(before), self.partial(after, before))]
        )

    def repairs(self) -> Mapping[str, Repair]:
        """Numbers may be texts (`treatAllColumnsAsStrings`)."""
        return {
            one.name: as_number
            for one in self.schema
            if pa.types.is_integer(one.type) or pa.types.is_floating(one.type) or one.name in self.counted
        }

    def _columns(self, row: Any) -> dict[str, Any] | None:
        if row is None:
            return None
        columns = as_object(row)
        missing = {name for name in columns if bytes(columns.get(name + _MISSING, b"")) == b"true"}
        return {name: value for name, value in columns.items() if name not in missing}
