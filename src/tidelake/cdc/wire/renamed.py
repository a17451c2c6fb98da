"""Events whose columns get other names, such as those that a collection keeps for itself.

Owns where the names of columns stand in an event of Debezium: in its rows, in its key, and in the schemas
beside them.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from tidelake.cdc.core.ops import Unfit

_SIDES = ("before", "after")
_Members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Fields = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_Text = msgspec.json.Decoder(str)


def renamed_event(line: bytes, names: Mapping[str, str]) -> bytes:
    """An event, with other names of columns. What is no event stays as it is.

    Raises:
        Unfit: a row has a column of the new name, too.
    """
    try:
        outer = _Members.decode(line)
        if outer.keys() == {"schema", "payload"}:
            event = _Members.decode(outer["payload"])
            outer["payload"] = _event(event, names)
            outer["schema"] = msgspec.Raw(_schema(bytes(outer["schema"]), tuple(names.items()), sides=True))
            return msgspec.json.encode(outer)
        return bytes(_event(outer, names))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line


def renamed_key(line: bytes, names: Mapping[str, str]) -> bytes:
    """A key of a message, likewise."""
    try:
        outer = _Members.decode(line)
        if outer.keys() != {"schema", "payload"}:
            return msgspec.json.encode(_row(outer, names))
        outer["payload"] = msgspec.Raw(msgspec.json.encode(_row(_Members.decode(outer["payload"]), names)))
        outer["schema"] = msgspec.Raw(_schema(bytes(outer["schema"]), tuple(names.items()), sides=False))
        return msgspec.json.encode(outer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line


def _event(event: dict[str, Any], names: Mapping[str, str]) -> msgspec.Raw:
    for side in _SIDES:
        row = event.get(side)
        if row is not None and bytes(row)[:1] == b"{":
            event[side] = _row(_Members.decode(row), names)
    return msgspec.Raw(msgspec.json.encode(event))


def _row(row: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    taken = next((new for old, new in names.items() if old in row and new in row), None)
    if taken is not None:
        raise Unfit(f"the table has a column {taken!r}: rename to another name")
    return {names.get(name, name): value for name, value in row.items()}


@lru_cache(256)
def _schema(schema: bytes, names: tuple[tuple[str, str], ...], *, sides: bool) -> bytes:
    """A schema of Connect with the columns' other names: at its top, or in the structs of the rows."""
    if schema == b"null":
        return schema
    to = dict(names)
    struct = _Members.decode(schema)
    fields = []
    for one in _Fields.decode(struct.get("fields", msgspec.Raw(b"[]"))):
        name = _Text.decode(one.get("field", msgspec.Raw(b'""')))
        if sides and name in _SIDES:
            whole = msgspec.json.encode(one)
            fields.append(msgspec.Raw(_schema(whole, names, sides=False)))
        else:
            new = name if sides else to.get(name, name)
            fields.append(msgspec.Raw(msgspec.json.encode(one | {"field": new})))
    return msgspec.json.encode({**struct, "fields": fields})
