"""Messages of TiCDC in its protocol `simple`, as JSON. Those of its `canal-json` are Canal's.

    {"type": "INSERT", "commitTs": 447984084414103554, "data": {...}}     the new row
    {"type": "UPDATE", ..., "data": {...}, "old": {...}}                  the same, and the old row
    {"type": "DELETE", ..., "old": {...}}                                 removes the row
    {"type": "WATERMARK"}, {"type": "BOOTSTRAP"}, {"type": "ALTER"}       no rows

All values are texts. Rows of a transaction have one `commitTs`. A statement that removes rows without naming
them is refused.
"""

from collections.abc import Sequence

import msgspec

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.dialects.canal import TOO_LARGE
from tidelake.cdc.dialects.dialect import Change, Dialect, Fields, MessageReader, Names, raw
from tidelake.cdc.dialects.jsonvalues import as_boolean, as_number

_COMMITTED = "commitTs"


class _Index(msgspec.Struct):
    primary: bool = False
    columns: list[str] = []


class _Table(msgspec.Struct):
    """A description of a table."""

    schema: str = ""
    table: str = ""
    indexes: list[_Index] | None = None


def _rows(reader: MessageReader, op: str, message: Fields) -> list[Change]:
    if op != "d" and (message.get("handleKeyOnly") or message.get("claimCheckLocation")):
        raise Unfit(TOO_LARGE)
    old = None if op == "c" else reader.row(raw(message, "old"))
    return [(op, old, None if op == "d" else reader.row(raw(message, "data")))]


def _tables(message: Fields) -> list[Names]:
    """Of a table that is renamed its old name."""
    told = message.get("preTableSchema") or message.get("tableSchema")
    names = (message.get("database"), message.get("table")) if told is None else (told.schema, told.table)
    return [tuple(name for name in names if name)] if names[1] else []


def _key(_: MessageReader, message: Fields) -> Sequence[str] | None:
    """Statements, and the messages `BOOTSTRAP`, have it."""
    told = message.get("tableSchema")
    indexes = () if told is None else told.indexes or ()
    return next((one.columns for one in indexes if one.primary), None)


TICDC = Dialect(
    tool="TiCDC",
    op="type",
    ops={"INSERT": "c", "UPDATE": "u", "DELETE": "d"},
    sides=("'old'", "'data'"),
    whole="set old_rows='stored'",
    members={
        **dict.fromkeys(("type", "database", "table", "claimCheckLocation"), str | None),
        **dict.fromkeys(("data", "old"), msgspec.Raw),
        **dict.fromkeys(("tableSchema", "preTableSchema"), _Table | None),
        "handleKeyOnly": bool | None,
    },
    rows=_rows,
    numbers={_COMMITTED: "tso", "buildTs": "ms"},
    defaults=dict.fromkeys(("counter", "us", "ms"), _COMMITTED),
    no_time="take a collection of time 'counter' or 'ms'",
    tables=_tables,
    key=_key,
    no_rows=("WATERMARK", "BOOTSTRAP", "CREATE", "ALTER", "CINDEX", "DINDEX", "QUERY"),
    removes=("ERASE", "TRUNCATE", "RENAME"),
    repairs={"boolean": as_boolean, "number": as_number},
    has_zero_times=True,
)
