"""Messages of AWS DMS, of its targets Kinesis and Kafka.

Owns the meaning of their fields:

    {"metadata": {"operation": "load", ...}, "data": {...}}                        a row of the full load
    {"metadata": {"operation": "insert", ...}, "data": {...}}                      the new row of its key
    {"metadata": {"operation": "update", ...}, "data": {...}, "before-image": {...}}   the same
    {"metadata": {"operation": "delete", ...}, "data": {...}}                      removes the key
    {"metadata": {"record-type": "control", "operation": "create-table"}}          no rows

A before image may lack columns: the settings of the task say which ones it keeps. The parser looks up the
stored row, unless the image is complete.
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
from tidelake.cdc.dialects.maxwell import BOOTSTRAP, removes

COMMIT, _WRITTEN = "metadata.commit-timestamp", "metadata.timestamp"
_ROWS = ("insert", "update", "delete")


@dataclass(frozen=True)
class DmsDialect(Dialect):
    """How DMS writes messages.

    Attributes:
        image: the field with the before image.
    """

    image: str = "before-image"

    tool: ClassVar[str] = "AWS DMS"
    terms: ClassVar[Terms] = Terms(
        event="message of AWS DMS",
        op="operation",
        ops={"c": "insert", "u": "update", "d": "delete", "r": "load"},
        known="load, insert, update and delete",
        sides={"before": "the old row", "after": "'data'", "key": "the key"},
        whole="let BeforeImageSettings keep all columns (column-filter 'all'), or set old_rows='stored'",
    )
    has_zero_times: ClassVar[bool] = True
    members: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"metadata": dict[str, Any] | None, "data": msgspec.Raw, "control": dict[str, Any] | None}
    )
    clocks: ClassVar[Mapping[str, str]] = MappingProxyType({COMMIT: "iso", _WRITTEN: "iso"})
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(dict.fromkeys(("us", "ms"), COMMIT))
    no_time: ClassVar[str] = (
        "give time=PATH of a whole number that never goes back, or take a collection of time 'ms'"
    )
    untimed: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            COMMIT: "let the endpoint write it (IncludeTransactionDetails), or take the moment at which "
            f"DMS wrote the message: time={_WRITTEN!r}"
        }
    )
    positions: ClassVar[frozenset[str]] = frozenset(
        {"metadata.transaction-id", "metadata.transaction-record-id", "metadata.stream-position"}
    )

    def extra(self) -> Mapping[str, Any]:
        """As `Dialect`."""
        return {self.image: msgspec.Raw}

    def table_of(self, message: Any) -> tuple[str, ...]:
        """As `Dialect`."""
        told = member(message, "metadata") or {}
        names = (told.get("schema-name"), told.get("table-name"))
        return tuple(name for name in names if isinstance(name, str) and name)

    def key_of(self, message: Any) -> Sequence[str] | None:
        """As `Dialect`: the control record of a table has it."""
        control = member(message, "control") or {}
        told = control.get("table-def")
        found = told.get("primary-key") if isinstance(told, dict) else None
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else None

    def first_copy(self, message: Any) -> bool:
        """As `Dialect`."""
        return bool((member(message, "metadata") or {}).get("operation") == "load")

    def on_rows(self, message: Any) -> bool:
        """As `Dialect`."""
        return (member(message, "metadata") or {}).get("operation") in _ROWS

    def changes(self, message: Any) -> Iterator[Change] | None:
        """As `Dialect`."""
        told, data = member(message, "metadata"), member(message, "data")
        if told is None:
            raise Unfit("no 'metadata': not a message of AWS DMS")
        kind = told.get("operation")
        if told.get("record-type") == "control":
            if isinstance(kind, str) and "truncate" in kind:
                raise Unfit(removes(kind))
            return None
        if kind == "load":
            if not self.stored:
                raise Unfit(BOOTSTRAP)
            return iter([(b"r", None, self.row(data))])
        if kind == "insert":
            return iter([(b"c", None, self.row(data))])
        if kind == "delete":
            return iter([(b"d", self.row(data), None)])
        if kind == "update":
            return iter([(b"u", self._before(message, data), self.row(data))])
        raise Unfit(f"operation {kind!r} is unknown: known are {self.terms.known}")

    def _before(self, message: Any, data: Any) -> bytes | None:
        image = member(message, self.image)
        if image is None:
            return None
        return self.merged(data, image) if self.stored else self.row(image)

    def repairs(self) -> Mapping[str, Repair]:
        """Booleans of MySQL are numbers."""
        return {one.name: as_boolean for one in self.schema if pa.types.is_boolean(one.type)}
