"""The exact parser of one Debezium event: its fields, or the reason why the line cannot be read.

Owns the parsed JSON of one event and the meaning of its fields. It is the reference: the fast parser
(`tidelake.cdc.debezium.blocks`) must agree with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelake.cdc.core.ops import DEBEZIUM, INCREMENTAL, MARKS, OPS, TRUNCATE, Terms, Unfit
from tidelake.cdc.debezium.connectschema import row_encoding
from tidelake.cdc.debezium.extendedjson import document
from tidelake.cdc.debezium.statements import empties, is_statement, unfit
from tidelake.data.json.encoding import PLAIN, Encoding
from tidelake.data.json.values import loads, not_json
from tidelake.model.time import TIME_MAX

NEEDS_STORED = (
    "op 't' (truncate) names no rows: take old_rows='stored', which looks up the rows that it removes"
)
REPEATS = (
    "a row of an incremental snapshot, or of a later one, may repeat one that is there already: use "
    "old_rows='stored', which replaces it"
)


_NO_DOCUMENT = (
    "let the connector send whole documents (capture.mode=change_streams_update_full); it leaves one out "
    "that was removed meanwhile, which a later event tells: set such lines aside with rejects=FOLDER"
)


@dataclass(frozen=True)
class Event:
    """One parsed event.

    Attributes:
        op: one of `OPS`, one of `MARKS`, or `TRUNCATE`.
        time: its time; None for a mark without one.
        order: the value that orders it among events of its time; None if there is no order field.
        before: the old row, if there is one.
        after: the new row, if there is one.
        encoding: encoding of the values in the rows.
    """

    op: str
    time: int | None
    order: int | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    encoding: Encoding


def parse(
    line: bytes | None,
    time_path: str | None,
    order_path: str | None,
    stored: bool,
    terms: Terms = DEBEZIUM,
    *,
    routed: bool = False,
) -> Event | None:
    """Parse a line; None if it is a tombstone: empty, `null`, or with a payload of null.

    Args:
        line: one JSON text.
        time_path: names, separated by dots; None: the time is not in the event, and is 0 here.
        order_path: names, separated by dots, or None.
        stored: old rows are looked up, and need not be in `before`.
        terms: for the reason.
        routed: it is an event on the table that it names, also if it is one on a statement.
    """
    found = _unwrapped(line)
    if found is None:
        return None
    event, encoding = found
    if _is_mark(event):
        there = time_path is not None and value_at(event, time_path) is not None
        return Event("h", _time(event, time_path, terms) if there else None, None, None, None, PLAIN)
    op = _of_statement(event, routed) if is_statement(event) else event.get("op")
    if op == MARKS[0] and event.get("op") is None:
        return Event(op, None, None, None, None, PLAIN)
    if not isinstance(op, str):
        raise Unfit(f"no 'op': not a {terms.event}")
    time = _time(event, time_path, terms)
    if op in MARKS:
        return Event(op, time, None, None, None, PLAIN)
    order = None if order_path is None else _number_at(event, order_path, "order")
    before, after = sides_of(event, op, stored, terms)
    return Event(op, time, order, before, after, encoding)


def old_row(line: bytes | None) -> dict[str, Any]:
    """The old row of an event that was read; empty if it has none."""
    found = _unwrapped(line)
    row = None if found is None else _document(found[0].get("before"))
    return row if isinstance(row, dict) else {}


def _of_statement(event: dict[str, Any], routed: bool) -> str:
    """What a statement does to the rows of its table: nothing, or it removes them."""
    reason = unfit(event)
    if reason:
        raise Unfit(reason)
    if not empties(event):
        return MARKS[0]
    if not routed:
        raise Unfit(
            f"{event['ddl']!r} removes all rows of a table: take tidelake.spark.ingest_tables or "
            "tables_sink, which know of which table, or let the connector leave statements out "
            "(include.schema.changes=false) and tell truncations (skipped.operations=none)"
        )
    return TRUNCATE


def _time(event: dict[str, Any], path: str | None, terms: Terms) -> int:
    if path is not None and terms.no_time is not None and value_at(event, path) is None:
        raise Unfit(terms.no_time)
    return 0 if path is None else _number_at(event, path, "time")


def _unwrapped(line: bytes | None) -> tuple[dict[str, Any], Encoding] | None:
    if line is None or not line.strip():
        return None
    event = parsed_json(line)
    encoding = PLAIN
    if isinstance(event, dict) and "payload" in event and "op" not in event:
        try:
            encoding = row_encoding(event.get("schema"))
        except ValueError as error:
            raise Unfit(f"the 'schema' beside 'payload' is not valid: {error}") from None
        event = event["payload"]
    if event is None:
        return None
    if not isinstance(event, dict):
        raise Unfit("not a JSON object")
    return event, encoding


def parsed_json(text: bytes) -> Any:
    """The value of a JSON text, as `loads` gives it."""
    try:
        return loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Unfit(f"not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise Unfit(not_json(text, error)) from None


def _is_mark(event: dict[str, Any]) -> bool:
    """Whether it is a heartbeat or transaction marker of Debezium; these come in topics of their own."""
    if "op" in event:
        return False
    return event.keys() == {"ts_ms"} or ("id" in event and event.get("status") in ("BEGIN", "END"))


def value_at(event: Mapping[str, Any], path: str) -> Any:
    """The value at a path of names, separated by dots; None if there is none."""
    if "." not in path:
        return event.get(path)
    value: Any = event
    for name in path.split("."):
        if not isinstance(value, dict) or value.get(name) is None:
            return None
        value = value[name]
    return value


def _number_at(event: dict[str, Any], path: str, what: str) -> int:
    """The whole number at a path; `what` is `time` or `order`."""
    value = value_at(event, path)
    if value is None:
        argument = {"time": "time", "order": "order_by"}[what]
        raise Unfit(f"no {what} at {path!r}: set {argument} to the path where events have it")
    if type(value) is not int or not 0 <= value <= TIME_MAX:
        shown = repr(value) if isinstance(value, int | str | float | list) else "no number"
        raise Unfit(f"the {what} at {path!r} is {shown}, not a whole number from 0 to 2^63 - 1")
    return value


def _document(row: Any) -> Any:
    """A row; MongoDB's is the text of a document."""
    if not isinstance(row, str):
        return row
    try:
        return document(row)
    except ValueError:
        return row


def sides_of(event: Mapping[str, Any], op: str, stored: bool, terms: Terms) -> tuple[Any, Any]:
    """The old and the new row of an event on rows. Arguments and errors as for `parse`."""
    if op == TRUNCATE and stored:
        return None, None
    if op == TRUNCATE:
        raise Unfit(NEEDS_STORED)
    if op not in OPS:
        raise Unfit(f"{terms.of(op)} is unknown: known are {terms.known}")
    if op == "r" and not stored and value_at(event, "source.snapshot") == INCREMENTAL:
        raise Unfit(REPEATS)
    found = []
    for side, needed in zip(("before", "after"), OPS[op], strict=True):
        row = _document(event.get(side))
        if row is not None and not needed:
            raise Unfit(f"{terms.of(op)} must not have a row in {terms.sides[side]}")
        if row is None and needed and not (stored and side == "before"):
            remedy = f": {terms.whole}" if side == "before" else ""
            if side == "after" and value_at(event, "source.connector") == "mongodb":
                remedy = f": {_NO_DOCUMENT}"
            raise Unfit(f"{terms.of(op)} without {terms.sides[side]}{remedy}")
        if row is not None and not isinstance(row, dict):
            raise Unfit(f"{terms.sides[side]} is not an object, nor the text of one")
        found.append(row)
    return found[0], found[1]
