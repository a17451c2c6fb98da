"""Messages of Canal, and of TiCDC in Canal's form (`canal-json`).

    {"type": "INSERT", "data": [{...}, {...}]}                  +1 each row
    {"type": "UPDATE", "data": [{...}], "old": [{"a": "1"}]}    -1 each row with its old values, +1 each row
    {"type": "DELETE", "data": [{...}]}                         -1 each row
    {"isDdl": true, "type": "ALTER", "sql": "..."}              no rows
    {"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": 9}}     no rows

All values are texts. An item of `old` has the columns that changed, the item of `data` all. A statement that
removes rows without naming them is refused.
"""

import re
from typing import Any

import msgspec

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.dialects.dialect import Change, Dialect, Fields, MessageReader, RefusedWord, removes
from tidelake.cdc.dialects.jsonvalues import as_base64, as_boolean, as_number
from tidelake.cdc.dialects.maxwell import BINLOG

_DROPS = ("ERASE", "TRUNCATE", "RENAME", "DELETE", "UPDATE")
# Canal gives the type QUERY to statements whose kind it does not know.
_REMOVES = re.compile(r"\s*(/\*.*?\*/\s*)*(DROP\s+(DATABASE|SCHEMA|TABLE)|TRUNCATE|RENAME)\b", re.I | re.S)
TOO_LARGE = (
    "the row was too large for a message, which has only the key: let TiCDC write larger ones "
    "(max-message-bytes, large-message-handle-option='none')"
)


def _rows(reader: MessageReader, op: str, message: Fields) -> list[Change]:
    data, old = message.get("data"), message.get("old")
    if data is None:
        raise Unfit(f"type {message['type']!r} without 'data'")
    of_tidb = message.get("_tidb") or {}
    if op != "d" and (of_tidb.get("onlyHandleKey") or of_tidb.get("claimCheckLocation")):
        raise Unfit(TOO_LARGE)
    if op != "u":
        return [change for row in data for change in reader.alone(op, row)]
    if old is None or len(old) != len(data):
        raise Unfit("type 'UPDATE' needs as many rows in 'old' as in 'data'")
    return [(op, reader.merged(d, o), reader.row(d)) for d, o in zip(data, old, strict=True)]


def _word(message: Fields) -> str | None:
    word: str | None = message.get("type")
    if not message.get("isDdl"):
        return word
    sql = message.get("sql") or ""
    if word == "QUERY" and _REMOVES.match(sql):
        return RefusedWord(removes(sql))
    return RefusedWord(removes(word)) if word in _DROPS else "QUERY"


CANAL = Dialect(
    tool="Canal",
    op="type",
    ops={"INSERT": "c", "UPDATE": "u", "DELETE": "d"},
    sides=("the old row", "'data'"),
    whole=BINLOG,
    members={
        **dict.fromkeys(("type", "database", "table", "sql"), str | None),
        **dict.fromkeys(("data", "old"), list[msgspec.Raw] | None),
        **{"isDdl": bool | None, "pkNames": list[str] | None, "_tidb": dict[str, Any] | None},
    },
    rows=_rows,
    numbers={"es": "ms", "ts": "ms", **dict.fromkeys(("id", "gtid", "_tidb.commitTs"), "position")},
    defaults={"us": "es", "ms": "es"},
    no_time="give time='_tidb.commitTs' if TiCDC writes them, or take a collection of time 'ms'",
    table=("database", "table"),
    key="pkNames",
    word=_word,
    no_rows=("QUERY", "TIDB_WATERMARK"),
    repairs={"boolean": as_boolean, "number": as_number, "binary": as_base64},
    has_zero_times=True,
)
