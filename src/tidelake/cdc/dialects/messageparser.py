"""The parser of other tools' messages.

Owns that a message is read as a whole or not at all, and that rows keep the numbers of their lines.

INVARIANT: a message is rejected as a whole: none of its rows is kept if one of them cannot be read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidelake.cdc.core.events import Ints, RawEvents
from tidelake.cdc.core.lineerrors import as_bytes, cut, shown, unreadable
from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.core.outcome import Parsed, Reject
from tidelake.cdc.core.tablename import quoted_name
from tidelake.cdc.debezium.blocks import fitting
from tidelake.cdc.debezium.decoded import Decoded, row_texts
from tidelake.cdc.debezium.exact import Event, parsed_json, sides_of
from tidelake.cdc.debezium.messagekeys import changed
from tidelake.cdc.dialects.dialect import Json, MessageReader
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.rows import LINE
from tidelake.data.json.encoding import PLAIN
from tidelake.errors import UsageError

# The number of its line, time, order, op, old row, new row.
_Change: TypeAlias = tuple[int, int, int, str, Json | None, Json | None]


@dataclass(frozen=True)
class DialectParser(ChangeParser):
    """Reads the messages of a tool.

    Attributes:
        reader: reads each of them.
    """

    reader: MessageReader | None = None

    @property
    def terms(self) -> Terms:
        """Those of the tool."""
        return super().terms if self.reader is None else self.reader.dialect.terms

    @property
    def refuses_second(self) -> bool | None:
        """As `ChangeParser`."""
        return None if self.reader is None else self.reader.refuses_second

    @staticmethod
    def of(parser: ChangeParser, reader: MessageReader, **changed: Any) -> "DialectParser":
        """A parser for messages, with the settings of another one."""
        given = {one.name: getattr(parser, one.name) for one in fields(ChangeParser)}
        return DialectParser(**(given | {"earliest": 0} | changed), reader=reader)

    def parse(
        self,
        lines: pa.Array | Decoded,
        where: Callable[[int], str],
        keys: pa.Array | None = None,  # noqa: ARG002 - other tools' keys have other forms
        times: Ints | None = None,  # noqa: ARG002 - messages have times of their own
    ) -> Parsed:
        """As `ChangeParser.parse`. Neither keys of messages nor other times are read."""
        if self.reader is None:
            raise UsageError("a DialectParser needs a reader of messages")
        given = lines.lines if isinstance(lines, Decoded) else as_bytes(lines)

        def fail(at: Reject) -> None:
            raise unreadable(at.reason, f"{where(at.line)} line={shown(given[at.line].as_py())}")

        changes: list[_Change] = []
        marks: list[int] = []
        bad: list[Reject] = []
        tables: dict[tuple[str, ...], int] = {}
        another: Reject | None = None
        silent = tombstones = 0
        for at, told in enumerate(self.reader.read(given.to_pylist())):
            if told is None:
                tombstones += 1
                continue
            if isinstance(told, Unfit):
                bad.append(Reject(at, cut(str(told))))
                continue
            if told.mark is not None:
                marks.append(told.mark)
            # Without a table named, what changes no rows may be about another one.
            ours = told.changes or told.mark is not None or self.reader.table is not None
            if told.key and ours and another is None and self.layout.stored and {*told.key} != {*self.key}:
                another = Reject(at, changed(tuple(told.key), self.key))
            silent += not told.changes
            for op, old, new in told.changes:
                changes.append((at, told.time, told.order, op, old, new))
            for named in told.tables if told.changes else ():
                tables.setdefault(named, at)
        if len(tables) > 1:
            table, at = next(iter(tables.items()))
            reason = f"the messages are of several tables: choose one, such as table={quoted_name(table)!r}"
            raise unreadable(reason, where(at))
        worst = another or (bad[0] if bad and not self.rejects else None)
        if worst is not None:
            fail(worst)
        while True:
            parsed = self._rows(changes, marks, fail)
            if not parsed.rejects:
                break
            # The other rows of these messages were read.
            worse = {changes[one.line][0]: one.reason for one in reversed(parsed.rejects)}
            bad += [Reject(at, reason) for at, reason in worse.items()]
            changes = [one for one in changes if one[0] not in worse]
        numbers = np.array([at for at, *_ in changes], np.int64)
        emptied = parsed.truncates
        rows, steps = _numbered(parsed.rows, numbers)
        return replace(
            parsed,
            rows=rows,
            steps=steps,
            # A message that says nothing is one.
            heartbeats=silent,
            tombstones=tombstones,
            truncates=None if emptied is None else replace(emptied, lines=numbers[emptied.lines]),
            rejects=tuple(sorted(bad, key=lambda reject: reject.line)),
        )

    def _rows(self, changes: list[_Change], marks: list[int], fail: Callable[[Reject], None]) -> Parsed:
        """The rows of changes; the lines are their numbers."""
        _, times, orders, ops, old, new = zip(*changes, strict=True) if changes else ((),) * 6
        raw = RawEvents(
            np.arange(len(changes)),
            np.array(times, np.int64),
            None if self.order_by is None else np.array(orders, np.int64),
            _texts(old),
            _texts(new),
            np.zeros(len(changes), np.int64),
            (self.layout.encodings,),
        )
        sure = fitting(pa.array(ops, pa.string()), raw.before, raw.after, stored=self.layout.stored)
        bad: list[Reject] = []
        exact, others = partial(self._exact_change, changes), np.flatnonzero(~sure)
        reached = np.array(marks, np.int64)
        found = self.events_of(raw.chosen(sure), others, exact, bad, marks=reached, tombstones=0)
        return self.parsed_of(found, bad, None, lambda at: fail(replace(at, line=changes[at.line][0])))

    def _exact_change(self, changes: list[_Change], number: int) -> Event | None:
        _, time, order, op, *rows = changes[number]
        before, after = (None if row is None else parsed_json(row) for row in rows)
        sides = sides_of({"before": before, "after": after}, op, self.layout.stored, self.terms)
        return Event(op, time, order, *sides, PLAIN)


def _numbered(rows: pa.RecordBatch, numbers: Ints) -> tuple[pa.RecordBatch, Ints | None]:
    """Rows with the numbers of lines instead of changes; and those of changes, if a line has several."""
    if LINE not in rows.schema.names:
        return rows, None
    at, steps = rows.schema.get_field_index(LINE), rows.column(LINE).to_numpy()
    rows = rows.set_column(at, rows.schema.field(LINE), pa.array(numbers[steps]))
    return rows, steps if len(np.unique(numbers)) < len(numbers) else None


def _texts(rows: Sequence[Json | None]) -> pa.Array:
    return row_texts(rows, np.array([row is not None for row in rows], np.bool_))
