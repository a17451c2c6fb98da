"""Messages of Maxwell's daemon.

Owns the meaning of their fields:

    {"type": "insert", "data": {...}}                        +1 data
    {"type": "update", "data": {...}, "old": {"a": 1}}       -1 data with the old values, +1 data
    {"type": "delete", "data": {...}}                        -1 data
    {"type": "bootstrap-insert", "data": {...}}              a row of a first copy
    {"type": "bootstrap-start"}, {"type": "table-alter"} ... no rows

`old` has the columns that changed, `data` all. A statement that removes rows without naming them is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.dialects.dialect import Change, Dialect, Repair, member
from tidelake.cdc.dialects.jsonvalues import as_boolean

BOOTSTRAP = (
    "a row of a bootstrap may repeat one that is there already: use old_rows='stored', which replaces it"
)


BINLOG = "set binlog_row_image=FULL at MySQL, or old_rows='stored'"


_DROPS = ("table-drop", "database-drop", "table-truncate")


_NO_ROWS = (
    *("bootstrap-start", "bootstrap-complete", "table-create", "table-alter"),
    *("database-create", "database-alter", "heartbeat"),
)


class _Named(msgspec.Struct):
    """A description of a table, of which only the name is read."""

    table: str | None = None


_Names = msgspec.json.Decoder(_Named)


@dataclass(frozen=True)
class MaxwellDialect(Dialect):
    """How Maxwell writes."""

    tool: ClassVar[str] = "Maxwell"
    terms: ClassVar[Terms] = Terms(
        event="message of Maxwell",
        op="type",
        ops={"c": "insert", "u": "update", "d": "delete", "r": "bootstrap-insert"},
        known="insert, update, delete and bootstrap-insert",
        sides={"before": "the old row", "after": "'data'", "key": "the key"},
        whole=BINLOG,
    )
    has_zero_times: ClassVar[bool] = True
    members: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            **dict.fromkeys(("type", "database", "table"), str | None),
            **dict.fromkeys(("data", "old", "def"), msgspec.Raw),
            **{"primary_key_columns": list[str] | None},
        }
    )
    clocks: ClassVar[Mapping[str, str]] = MappingProxyType({"ts": "s"})
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType({"counter": "position", "us": "ts", "ms": "ts"})
    no_time: ClassVar[str] = "take a collection of time 'ms', or 'counter'"
    positions: ClassVar[frozenset[str]] = frozenset({"position", "xid", "xoffset", "gtid"})

    def table_of(self, message: Any) -> tuple[str, ...]:
        """As `Dialect`."""
        names = (member(message, "database"), member(message, "table"))
        # A statement on a database is about all of its tables.
        return tuple(name for name in names if name) if names[1] else ()

    def key_of(self, message: Any) -> Sequence[str] | None:
        """As `Dialect` (`output_primary_key_columns`)."""
        found: Sequence[str] | None = member(message, "primary_key_columns")
        return found

    def first_copy(self, message: Any) -> bool:
        """As `Dialect`."""
        return bool(member(message, "type") == "bootstrap-insert")

    def on_rows(self, message: Any) -> bool:
        """As `Dialect`. Statements have other times than rows: milliseconds."""
        return member(message, "type") in ("insert", "update", "delete")

    def changes(self, message: Any) -> Iterator[Change] | None:
        """As `Dialect`."""
        kind, data = member(message, "type"), member(message, "data")
        if kind == "insert":
            return iter([(b"c", None, self.row(data))])
        if kind == "update":
            return iter([(b"u", self.merged(data, member(message, "old")), self.row(data))])
        if kind == "delete":
            return iter([(b"d", self.row(data), None)])
        if kind == "bootstrap-insert":
            if not self.stored:
                raise Unfit(BOOTSTRAP)
            return iter([(b"r", None, self.row(data))])
        if kind == "table-alter":
            _check_name(member(message, "table"), member(message, "def"))
        if kind in _NO_ROWS:
            return None
        if kind == "database-drop" and self.of_another_database(member(message, "database")):
            return None
        if kind in _DROPS:
            raise Unfit(removes(kind))
        if kind is None:
            raise Unfit("no 'type': not a message of Maxwell")
        raise Unfit(f"type {kind!r} is unknown: known are {self.terms.known}")

    def repairs(self) -> Mapping[str, Repair]:
        """MySQL has no booleans: it has numbers."""
        return {one.name: as_boolean for one in self.schema if pa.types.is_boolean(one.type)}


def _check_name(table: str | None, described: Any) -> None:
    """Refuse a statement that renames the table.

    Raises:
        Unfit: it does.
    """
    try:
        name = None if described is None else _Names.decode(described).table
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unfit(f"'def' describes no table: {error}") from None
    if name is not None and name != table:
        raise Unfit(
            f"the table is renamed to {name!r}, and its messages are of that table from here on: go on with "
            f"table={name!r}, and set this message aside with rejects=FOLDER"
        )


def removes(statement: str) -> str:
    """Why a statement that removes rows is refused."""
    return (
        f"{statement!r} removes rows that no message names: write what is there afterwards with the envelope "
        "'snapshot', and set the message aside with rejects=FOLDER"
    )
