"""Messages of Oracle GoldenGate for Big Data, in its form `json` (of operations).

    {"op_type": "I", "table": "S.T", "pos": "00000000000000002928", "after": {...}}     the new row
    {"op_type": "U", ..., "before": {...}, "after": {...}}                              the same
    {"op_type": "D", ..., "before": {...}}                                              removes the row
    {"op_type": "T", "table": "S.T", ...}                                               removes all rows

`pos` is the number of the trail's file and a position in it: operations have it in the order of the commits.
The trail has the columns that the source logs: those that are left out, or marked (`A_isMissing`), are those
of the row before.
"""

from typing import Any

import msgspec

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.core.tablename import name_parts
from tidelake.cdc.dialects.dialect import Change, Dialect, Fields, MessageReader, Names, as_object, raw
from tidelake.cdc.dialects.jsonvalues import as_number
from tidelake.errors import UsageError

_MISSING = "_isMissing"


def _rows(reader: MessageReader, op: str, message: Fields) -> list[Change]:
    before, after = (_columns(raw(message, name)) for name in ("before", "after"))
    if before is None and after is None:
        raise Unfit(
            "neither 'before' nor 'after': rows of the form json_row have no old key; let the handler "
            "write gg.handler.NAME.format=json"
        )
    if op != "d" and after is None:
        raise Unfit(f"op_type {message['op_type']!r} without 'after'")
    return [reader.partial(op, after, before)]


def _columns(row: Any) -> dict[str, Any] | None:
    if row is None:
        return None
    columns = as_object(row)
    return {name: v for name, v in columns.items() if bytes(columns.get(name + _MISSING, b"")) != b"true"}


def _tables(message: Fields) -> list[Names]:
    """Schema and table; the catalog before them is left out."""
    name = message.get("table")
    try:
        return [name_parts(name)[-2:]] if name else []
    except UsageError as error:
        raise Unfit(f"'table': {error}") from None


GOLDENGATE = Dialect(
    tool="GoldenGate",
    op="op_type",
    ops={"I": "c", "U": "u", "D": "d", "T": "t"},
    sides=("'before'", "'after'"),
    whole="log all columns at the source (ADD TRANDATA ... ALLCOLS), or set old_rows='stored'",
    members={
        **dict.fromkeys(("op_type", "table"), str | None),
        **dict.fromkeys(("before", "after"), msgspec.Raw),
        "primary_keys": list[str] | None,
    },
    rows=_rows,
    numbers={"pos": "digits", "op_ts": "iso", "current_ts": "iso"},
    defaults={"counter": "pos"},
    no_time="its times of a clock say no zone: take a collection of time 'counter', whose time is then 'pos'",
    tables=_tables,
    # With `includePrimaryKeys`.
    key="primary_keys",
    # Numbers may be texts (`treatAllColumnsAsStrings`).
    repairs={"number": as_number},
)
