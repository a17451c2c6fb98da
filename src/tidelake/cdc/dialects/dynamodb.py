"""Records of DynamoDB: of its streams, and of its Kinesis data streams.

    {"eventName": "INSERT", "dynamodb": {"Keys": {...}, "NewImage": {...}}}                  the new item
    {"eventName": "MODIFY", "dynamodb": {..., "OldImage": {...}}}                            the same
    {"eventName": "REMOVE", "dynamodb": {"Keys": {...}}}                                     removes the item

and of the types of values: `{"S": "a"}`, `{"N": "1.5"}`, `{"BOOL": true}`, `{"NULL": true}`, `{"B": base64}`,
sets `SS`, `NS` and `BS` and lists `L` as lists, maps `M` as structs. An attribute that an item does not have
is null.
"""

from typing import Any

import msgspec

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.dialects.dialect import Change, Dialect, Fields, MessageReader, Names, RefusedWord
from tidelake.cdc.dialects.jsonvalues import as_number

_CREATED = "ApproximateCreationDateTime"
_UNITS = {"SECOND": "s", "MILLISECOND": "ms", "MICROSECOND": "us"}
_NULL = msgspec.Raw(b"null")


def _rows(reader: MessageReader, op: str, message: Fields) -> list[Change]:
    told = message.get("dynamodb") or {}
    old, new = (_item(reader, told.get(name)) for name in ("OldImage", "NewImage"))
    if op == "d":
        # A key alone is no old row.
        return [(op, old or (_item(reader, told.get("Keys")) if reader.stored else None), None)]
    if new is None:
        raise Unfit(
            f"eventName {message['eventName']!r} without 'NewImage': let the stream have NEW_IMAGE or "
            "NEW_AND_OLD_IMAGES"
        )
    # The key of an item does not change.
    return [(op, None if op == "c" else old, new)]


def _word(message: Fields) -> str | None:
    if message.get("Records") is not None:
        return RefusedWord("'Records' of an invocation of Lambda: write one record a line")
    word: str | None = message.get("eventName")
    return word


def _unit(message: Fields) -> str:
    """What the moment of a record counts: of Kinesis milliseconds, if it does not say otherwise."""
    told = message["dynamodb"]
    if isinstance(told[_CREATED], str):
        return "iso"
    precision = told.get(f"{_CREATED}Precision")
    if precision is None:
        return "ms" if message.get("recordFormat") else "s"
    unit = _UNITS.get(precision) if isinstance(precision, str) else None
    if unit is None:
        raise Unfit(f"{_CREATED}Precision {precision!r} is unknown: known are {[*_UNITS]}")
    return unit


def _tables(message: Fields) -> list[Names]:
    # arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/TIME
    _, _, rest = (message.get("eventSourceARN") or "").partition(":table/")
    name = message.get("tableName") or rest.partition("/")[0]
    return [(name,)] if name else []


def _item(reader: MessageReader, item: Any) -> bytes | None:
    if item is None:
        return None
    if not isinstance(item, dict):
        raise Unfit("an item is no object")
    return reader.of_columns(
        dict.fromkeys(reader.schema.names, _NULL) | {n: _json(v) for n, v in item.items()}
    )


def _json(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_plain(value)))


def _plain(value: Any) -> Any:
    """A value without the name of its type."""
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


DYNAMODB = Dialect(
    tool="DynamoDB",
    op="eventName",
    ops={"INSERT": "c", "MODIFY": "u", "REMOVE": "d"},
    sides=("'OldImage'", "'NewImage'"),
    whole="let the stream have NEW_AND_OLD_IMAGES, or set old_rows='stored'",
    members={
        **dict.fromkeys(("eventName", "tableName", "eventSourceARN", "recordFormat"), str | None),
        **{"dynamodb": dict[str, Any] | None, "Records": Any},
    },
    rows=_rows,
    numbers={f"dynamodb.{_CREATED}": _unit},
    defaults=dict.fromkeys(("us", "ms"), f"dynamodb.{_CREATED}"),
    no_time="sequence numbers have too many digits: take a collection of time 'us' or 'ms'",
    tables=_tables,
    key="dynamodb.Keys",
    word=_word,
    noun="record",
)
