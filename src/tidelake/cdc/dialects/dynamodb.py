"""Records of DynamoDB: of its streams, and of its Kinesis data streams.

Owns the meaning of their fields:

    {"eventName": "INSERT", "dynamodb": {"Keys": {...}, "NewImage": {...}}}                  the new item
    {"eventName": "MODIFY", "dynamodb": {..., "OldImage": {...}}}                            the same
    {"eventName": "REMOVE", "dynamodb": {"Keys": {...}}}                                     removes the item

and of the types of values: `{"S": "a"}`, `{"N": "1.5"}`, `{"BOOL": true}`, `{"NULL": true}`, `{"B": base64}`,
sets `SS`, `NS` and `BS` and lists `L` as lists, maps `M` as structs. An attribute that an item does not have
is null.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.dialects.dialect import Change, Dialect, member
from tidelake.cdc.dialects.jsonvalues import as_number

CREATED = "dynamodb.ApproximateCreationDateTime"
_OPS = ("INSERT", "MODIFY", "REMOVE")
_UNITS = {"SECOND": "s", "MILLISECOND": "ms", "MICROSECOND": "us"}


@dataclass(frozen=True)
class DynamoDbDialect(Dialect):
    """How DynamoDB writes."""

    tool: ClassVar[str] = "DynamoDB"
    terms: ClassVar[Terms] = Terms(
        event="record of DynamoDB",
        op="eventName",
        ops={"c": "INSERT", "u": "MODIFY", "d": "REMOVE"},
        known="INSERT, MODIFY and REMOVE",
        sides={"before": "'OldImage'", "after": "'NewImage'", "key": "'Keys'"},
        whole="let the stream have NEW_AND_OLD_IMAGES, or set old_rows='stored'",
    )
    members: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            **dict.fromkeys(("eventName", "tableName", "eventSourceARN", "recordFormat"), str | None),
            **{"dynamodb": dict[str, Any] | None, "Records": Any},
        }
    )
    # The unit is in the record: see `unit_of`.
    clocks: ClassVar[Mapping[str, str]] = MappingProxyType({CREATED: "s"})
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType({"us": CREATED, "ms": CREATED})
    no_time: ClassVar[str] = "sequence numbers have too many digits: take a collection of time 'us' or 'ms'"

    def unit_of(self, message: Any, path: str) -> str | None:
        """As `Dialect`: records of Kinesis have milliseconds, if they do not say otherwise."""
        if path != CREATED:
            return super().unit_of(message, path)
        told = member(message, "dynamodb") or {}
        if isinstance(told.get("ApproximateCreationDateTime"), str):
            return "iso"
        precision = told.get("ApproximateCreationDateTimePrecision")
        if precision is None:
            return "ms" if member(message, "recordFormat") else "s"
        unit = _UNITS.get(precision) if isinstance(precision, str) else None
        if unit is None:
            raise Unfit(
                f"ApproximateCreationDateTimePrecision {precision!r} is unknown: known are {[*_UNITS]}"
            )
        return unit

    def table_of(self, message: Any) -> tuple[str, ...]:
        """As `Dialect`."""
        name = member(message, "tableName")
        if not name:
            # arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/TIME
            _, _, rest = (member(message, "eventSourceARN") or "").partition(":table/")
            name = rest.partition("/")[0]
        return (name,) if name else ()

    def key_of(self, message: Any) -> Sequence[str] | None:
        """As `Dialect`."""
        keys = (member(message, "dynamodb") or {}).get("Keys")
        return list(keys) if isinstance(keys, dict) else None

    def on_rows(self, message: Any) -> bool:
        """As `Dialect`."""
        return member(message, "eventName") in _OPS

    def changes(self, message: Any) -> Iterator[Change] | None:
        """As `Dialect`."""
        if member(message, "Records") is not None:
            raise Unfit("'Records' of an invocation of Lambda: write one record a line")
        kind, told = member(message, "eventName"), member(message, "dynamodb")
        if kind not in _OPS or told is None:
            raise Unfit(f"eventName {kind!r}: not a record of DynamoDB; known are {self.terms.known}")
        old, new = (self._item(told.get(name)) for name in ("OldImage", "NewImage"))
        if kind == "REMOVE":
            # A key alone is no old row.
            return iter([(b"d", old or (self._item(told.get("Keys")) if self.stored else None), None)])
        if new is None:
            raise Unfit(
                f"eventName {kind!r} without 'NewImage': let the stream have NEW_IMAGE or NEW_AND_OLD_IMAGES"
            )
        # The key of an item does not change.
        return iter([(b"c", None, new) if kind == "INSERT" else (b"u", old, new)])

    def _item(self, item: Any) -> bytes | None:
        if item is None:
            return None
        if not isinstance(item, dict):
            raise Unfit("an item is no object")
        return self.of_columns(
            dict.fromkeys(self.schema.names, _NULL) | {n: _json(v) for n, v in item.items()}
        )


_NULL = msgspec.Raw(b"null")


def _json(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_plain(value)))


def _plain(value: Any) -> Any:
    """A value without the name of its type.

    Raises:
        Unfit: it has none that is known.
    """
    if not isinstance(value, dict) or len(value) != 1:
        raise Unfit(f"a value of an item is not one of a type, such as {{'S': 'a'}}: {str(value)[:60]}")
    ((kind, inner),) = value.items()
    match kind:
        case "NULL":
            return None
        case "S" | "B" | "BOOL" | "SS" | "BS":
            return inner
        case "N":
            return _number(inner)
        case "NS" if isinstance(inner, list):
            return [_number(one) for one in inner]
        case "L" if isinstance(inner, list):
            return [_plain(one) for one in inner]
        case "M" if isinstance(inner, dict):
            return {name: _plain(one) for name, one in inner.items()}
        case _:
            raise Unfit(f"a value of an item has the type {kind!r}, which is unknown")


def _number(text: Any) -> msgspec.Raw:
    raw = msgspec.json.encode(text)
    number = as_number(raw)
    if number == raw:
        raise Unfit(f"a number of an item is {str(text)[:60]!r}")
    return msgspec.Raw(number)
