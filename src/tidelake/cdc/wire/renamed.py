"""Events whose columns get other names, such as those that a collection keeps for itself.

Owns where the names of columns stand in an event of Debezium: in its rows, in its key, and in the schemas
beside them.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.core.rawjson import MEMBERS, fields_of

_SIDES = ("before", "after")


def renamed(line: bytes, names: Mapping[str, str], *, key: bool = False) -> bytes:
    """An event, or the key of a message, with other names of columns. What is neither stays as it is."""
    of = _row if key else _event
    try:
        outer: dict[str, Any] = MEMBERS.decode(line)
        if outer.keys() != {"schema", "payload"}:
            return msgspec.json.encode(of(outer, names))
        outer["payload"] = of(MEMBERS.decode(outer["payload"]), names)
        outer["schema"] = msgspec.Raw(_schema(bytes(outer["schema"]), tuple(names.items()), sides=not key))
        return msgspec.json.encode(outer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line


def _event(event: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    for side in _SIDES:
        row = event.get(side)
        if row is not None and bytes(row)[:1] == b"{":
            event[side] = _row(MEMBERS.decode(row), names)
    return event


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
    struct = MEMBERS.decode(schema)
    fields = []
    for name, one in fields_of(struct):
        if sides and name in _SIDES:
            whole = msgspec.json.encode(one)
            fields.append(msgspec.Raw(_schema(whole, names, sides=False)))
        else:
            new = name if sides else to.get(name, name)
            fields.append(msgspec.Raw(msgspec.json.encode(one | {"field": new})))
    return msgspec.json.encode({**struct, "fields": fields})
