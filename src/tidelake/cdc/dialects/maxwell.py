"""Messages of Maxwell's daemon.

    {"type": "insert", "data": {...}}                        +1 data
    {"type": "update", "data": {...}, "old": {"a": 1}}       -1 data with the old values, +1 data
    {"type": "delete", "data": {...}}                        -1 data
    {"type": "bootstrap-insert", "data": {...}}              a row of a first copy
    {"type": "bootstrap-start"}, {"type": "table-alter"} ... no rows

`old` has the columns that changed, `data` all. A statement that removes rows without naming them is refused.
"""

import msgspec

from tidelake.cdc.dialects.dialect import Change, Dialect, Fields, MessageReader, RefusedWord, raw
from tidelake.cdc.dialects.jsonvalues import as_boolean

BINLOG = "set binlog_row_image=FULL at MySQL, or old_rows='stored'"


class _Named(msgspec.Struct):
    """A description of a table, of which only the name is read."""

    table: str | None = None


_Names = msgspec.json.Decoder(_Named)


def _rows(reader: MessageReader, op: str, message: Fields) -> list[Change]:
    data = raw(message, "data")
    if op == "u":
        return [(op, reader.merged(data, raw(message, "old")), reader.row(data))]
    return reader.alone(op, data)


def _word(message: Fields) -> str | None:
    """The type; a statement that renames its table is refused."""
    word: str | None = message.get("type")
    described = raw(message, "def") if word == "table-alter" else None
    if described is None:
        return word
    try:
        name = _Names.decode(described).table
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return RefusedWord(f"'def' describes no table: {error}")
    if name is None or name == message.get("table"):
        return word
    return RefusedWord(
        f"the table is renamed to {name!r}, and its messages are of that table from here on: go on with "
        f"table={name!r}, and set this message aside with rejects=FOLDER"
    )


MAXWELL = Dialect(
    tool="Maxwell",
    op="type",
    ops={"insert": "c", "update": "u", "delete": "d", "bootstrap-insert": "r"},
    sides=("the old row", "'data'"),
    whole=BINLOG,
    members={
        **dict.fromkeys(("type", "database", "table"), str | None),
        **dict.fromkeys(("data", "old", "def"), msgspec.Raw),
        "primary_key_columns": list[str] | None,
    },
    rows=_rows,
    numbers={"ts": "s", **dict.fromkeys(("position", "xid", "xoffset", "gtid"), "position")},
    defaults={"counter": "position", "us": "ts", "ms": "ts"},
    no_time="take a collection of time 'ms', or 'counter'",
    table=("database", "table"),
    # With `output_primary_key_columns`.
    key="primary_key_columns",
    word=_word,
    no_rows=(
        *("bootstrap-start", "bootstrap-complete", "table-create", "table-alter"),
        *("database-create", "database-alter", "heartbeat"),
    ),
    removes=("table-drop", "database-drop", "table-truncate"),
    # MySQL has no booleans: it has numbers.
    repairs={"boolean": as_boolean},
    has_zero_times=True,
)
