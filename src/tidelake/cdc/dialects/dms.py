"""Messages of AWS DMS, of its targets Kinesis and Kafka.

    {"metadata": {"operation": "load", ...}, "data": {...}}                        a row of the full load
    {"metadata": {"operation": "insert", ...}, "data": {...}}                      the new row of its key
    {"metadata": {"operation": "update", ...}, "data": {...}, "before-image": {...}}   the same
    {"metadata": {"operation": "delete", ...}, "data": {...}}                      removes the key
    {"metadata": {"record-type": "control", "operation": "create-table"}}          no rows

A before image may lack columns: the settings of the task say which ones it keeps. The parser looks up the
stored row, unless the image is complete.
"""

from functools import partial
from typing import Any

import msgspec

from tidelake.cdc.dialects.dialect import Change, Dialect, Fields, MessageReader, RefusedWord, raw, removes
from tidelake.cdc.dialects.jsonvalues import as_boolean

_COMMIT, _WRITTEN = "metadata.commit-timestamp", "metadata.timestamp"
_CONTROL = "control"


def _rows(image: str, reader: MessageReader, op: str, message: Fields) -> list[Change]:
    data, old = raw(message, "data"), raw(message, image)
    if op != "u":
        return reader.alone(op, data)
    before = None if old is None else reader.merged(data, old) if reader.stored else reader.row(old)
    return [(op, before, reader.row(data))]


def _word(message: Fields) -> str | None:
    told = message.get("metadata") or {}
    word: str | None = told.get("operation")
    if told.get("record-type") != _CONTROL:
        return word
    return RefusedWord(removes(word)) if isinstance(word, str) and "truncate" in word else _CONTROL


def dms(image: str = "before-image") -> Dialect:
    """The dialect, where a field of this name has the before image."""
    return Dialect(
        tool="AWS DMS",
        op="metadata.operation",
        ops={"load": "r", "insert": "c", "update": "u", "delete": "d"},
        sides=("the old row", "'data'"),
        whole="let BeforeImageSettings keep all columns (column-filter 'all'), or set old_rows='stored'",
        members={
            **dict.fromkeys(("metadata", "control"), dict[str, Any] | None),
            **dict.fromkeys(("data", image), msgspec.Raw),
        },
        rows=partial(_rows, image),
        numbers={
            **dict.fromkeys((_COMMIT, _WRITTEN), "iso"),
            **dict.fromkeys(
                (
                    f"metadata.{name}"
                    for name in ("transaction-id", "transaction-record-id", "stream-position")
                ),
                "position",
            ),
        },
        defaults=dict.fromkeys(("us", "ms"), _COMMIT),
        no_time="give time=PATH of a whole number that never goes back, or take a collection of time 'ms'",
        untimed={
            _COMMIT: "let the endpoint write it (IncludeTransactionDetails), or take the moment at which "
            f"DMS wrote the message: time={_WRITTEN!r}"
        },
        table=("metadata.schema-name", "metadata.table-name"),
        # The control record of a table has it.
        key="control.table-def.primary-key",
        word=_word,
        no_rows=(_CONTROL,),
        # Booleans of MySQL are numbers.
        repairs={"boolean": as_boolean},
        has_zero_times=True,
    )


DMS = dms()
