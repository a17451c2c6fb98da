"""What an event does to the rows of its table, and how errors call what it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# op: (has an old row, has a new row)
OPS = {"c": (False, True), "r": (False, True), "u": (True, True), "d": (True, False)}
# Events on no row, which only move time: heartbeats, and messages of the source's log.
MARKS = ("h", "m")
# An event on all rows: the table is empty from its time on.
TRUNCATE = "t"
# What `source.snapshot` is in rows that are copied while events go on.
INCREMENTAL = "incremental"
# The op of such a row where events are columns, and old rows are not looked up.
REPEATED = "r of an incremental snapshot"
# Begins an op that the source does not know, in texts that are made of the source's rows.
UNKNOWN = "unknown op "


class Unfit(Exception):
    """The line at hand cannot be read."""


@dataclass(frozen=True)
class Terms:
    """How errors call what an event has, where the events are made of rows or messages of another tool.

    Attributes:
        event: what one of them is.
        op: the field with the operation.
        ops: the tool's word for an op.
        known: the words that the tool has.
        sides: what `before`, `after` and the key are.
        whole: what to do so that old rows are whole.
        no_time: why an event has no time, or what to do then; None: the caller names the field.
    """

    event: str = "Debezium change event"
    op: str = "op"
    ops: Mapping[str, str] = field(default_factory=dict)
    known: str = "c, r, u, d, t, h and m"
    sides: Mapping[str, str] = field(default_factory=lambda: {s: repr(s) for s in ("before", "after", "key")})
    whole: str = "set REPLICA IDENTITY FULL (or its like) at the source, or old_rows='stored'"
    no_time: str | None = None

    def of(self, op: str) -> str:
        """The field and the tool's word for an op."""
        return f"{self.op} {self.ops.get(op, op.removeprefix(UNKNOWN))!r}"


DEBEZIUM = Terms()
