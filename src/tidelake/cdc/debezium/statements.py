"""Events of Debezium on statements that change tables, and not rows (`include.schema.changes`).

Owns which statements leave the rows as they are, and which remove rows that no event names. They have `ddl`,
the statement, which some connectors leave null, and `tableChanges`, and no `op`.
"""

import re
from collections.abc import Mapping
from typing import Any

# What may stand before a statement.
_BEGIN = r"(\s|/\*.*?\*/|--[^\n]*\n|#[^\n]*\n)*"
_FLAGS = re.IGNORECASE | re.DOTALL
_EMPTIES = re.compile(rf"{_BEGIN}(TRUNCATE\b|DROP\s+TABLE\b)", _FLAGS)
_RENAMES = re.compile(
    rf"{_BEGIN}(RENAME\s+TABLE|ALTER\s+TABLE\s+\S+\s+RENAME\s+(?!(COLUMN|INDEX|KEY|CONSTRAINT)\b))", _FLAGS
)
_UNNAMED = re.compile(
    rf"{_BEGIN}(DROP\s+(DATABASE|SCHEMA)\b|ALTER\s+TABLE\b.*?"
    r"\b((TRUNCATE|DROP|EXCHANGE)\s+(SUB)?PARTITION|(DISCARD|IMPORT)\s.*?TABLESPACE))",
    _FLAGS,
)


def is_statement(event: Mapping[str, Any]) -> bool:
    """Whether an event (unwrapped) is on a statement."""
    return event.get("op") is None and "ddl" in event and "tableChanges" in event


def of_copy(event: Mapping[str, Any]) -> bool:
    """Whether the connector made the statement up for a first copy: it says how tables were made."""
    source = event.get("source")
    snapshot = source.get("snapshot") if isinstance(source, Mapping) else None
    return snapshot not in (None, False, "false")


def empties(event: Mapping[str, Any]) -> bool:
    """Whether a statement removes all rows of the table that `source` names."""
    dropped = any(one.get("type") == "DROP" for one in _changes(event))
    return not of_copy(event) and (dropped or _EMPTIES.match(_text(event)) is not None)


def unfit(event: Mapping[str, Any]) -> str:
    """Why a statement cannot be followed; empty if it can be."""
    text = _text(event)
    if of_copy(event):
        return ""
    if any(one.get("previousId") for one in _changes(event)) or _RENAMES.match(text):
        return (
            f"{text!r} renames a table, and no event names the rows that it then has: set the event aside "
            "with rejects=FOLDER, and go on if the table has the rows that it had, as after an online change "
            "of its schema; otherwise take the feed into new collections, with a first copy"
        )
    if _UNNAMED.match(text) or sum(one.get("type") == "DROP" for one in _changes(event)) > 1:
        return (
            f"{text!r} removes rows that no event names: delete them in the collections (collection.delete), "
            "and set the event aside with rejects=FOLDER"
        )
    return ""


def _text(event: Mapping[str, Any]) -> str:
    text = event.get("ddl")
    return text if isinstance(text, str) else ""


def _changes(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    changes = event.get("tableChanges")
    return [one for one in changes if isinstance(one, Mapping)] if isinstance(changes, list) else []
