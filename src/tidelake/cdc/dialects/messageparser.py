"""The parser of other tools' messages.

Owns that a message is read as a whole or not at all, and that rows keep the numbers of their lines.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidelake.cdc.core.events import Ints
from tidelake.cdc.core.lineerrors import as_bytes, shown, unreadable
from tidelake.cdc.core.ops import Terms
from tidelake.cdc.core.outcome import Parsed, Reject
from tidelake.cdc.core.tablename import quoted_name
from tidelake.cdc.debezium.blocks import fitting
from tidelake.cdc.debezium.decoded import Decoded
from tidelake.cdc.debezium.exact import Event, event_of, parsed_json
from tidelake.cdc.dialects.dialect import ORDER_PATH, TIME_PATH, Dialect, Messages
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.rows import LINE, TIME
from tidelake.data.json.encoding import PLAIN
from tidelake.errors import UsageError


@dataclass(frozen=True)
class DialectParser(ChangeParser):
    """Reads the messages of a tool.

    Attributes:
        dialect: how they are written.
    """

    dialect: Dialect | None = field(default=None)

    @property
    def terms(self) -> Terms:
        """Those of the tool."""
        return super().terms if self.dialect is None else self.dialect.terms

    @staticmethod
    def of(parser: ChangeParser, dialect: Dialect, **changed: Any) -> "DialectParser":
        """A parser for messages, with the settings of another one."""
        given = {one.name: getattr(parser, one.name) for one in fields(ChangeParser)}
        order = None if dialect.order is None else ORDER_PATH
        return DialectParser(
            **(given | {"time": TIME_PATH, "order_by": order, "earliest": 0} | changed), dialect=dialect
        )

    def parse(
        self,
        lines: pa.Array | Decoded,
        where: Callable[[int], str],
        keys: pa.Array | None = None,  # noqa: ARG002 - other tools' keys have other forms
        times: Ints | None = None,  # noqa: ARG002 - messages have times of their own
    ) -> Parsed:
        """As `ChangeParser.parse`. Neither keys of messages nor other times are read.

        Raises:
            InvalidUpdates: as there; or the messages are of several tables.
        """
        if self.dialect is None:
            raise UsageError("a DialectParser needs a dialect")
        lines = lines.lines if isinstance(lines, Decoded) else as_bytes(lines)
        made = self.dialect.read(lines, self.layout.encodings)
        if len(made.tables) > 1:
            first = quoted_name(made.tables[0])
            reason = f"the messages are of several tables: choose one, such as table={first!r}"
            raise unreadable(reason, where(int(made.lines[0])))
        worst = made.another_key or (made.bad[0] if made.bad and not self.rejects else None)
        if worst is not None:
            raise unreadable(worst.reason, f"{where(worst.line)} line={shown(lines[worst.line].as_py())}")
        parsed, numbers, bad = self._whole(made, lines, where)
        emptied = parsed.truncates
        return replace(
            parsed,
            rows=self._numbered(parsed.rows, numbers),
            heartbeats=parsed.heartbeats + made.skipped,
            truncates=None if emptied is None else replace(emptied, lines=numbers[emptied.lines]),
            rejects=tuple(sorted((*made.bad, *bad), key=lambda reject: reject.line)),
        )

    def _whole(
        self, made: Messages, lines: pa.Array, where: Callable[[int], str]
    ) -> tuple[Parsed, Ints, list[Reject]]:
        """The rows of the messages of which all rows can be read."""
        bad: dict[int, Reject] = {}
        while True:
            parsed = self._read_messages(made, lines, where)
            for reject in parsed.rejects:
                line = int(made.lines[reject.line])
                bad.setdefault(line, Reject(line, reject.reason))
            rejected = np.isin(made.lines, list(bad))
            if rejected.sum() == len(parsed.rejects):
                return parsed, made.lines, list(bad.values())
            # Some rows of a rejected message were read.
            made = made.chosen(~rejected)

    def _read_messages(self, made: Messages, lines: pa.Array, where: Callable[[int], str]) -> Parsed:
        bad: list[Reject] = []

        def fail(at: Reject) -> None:
            if not len(made.lines):
                raise unreadable(at.reason, where(0))
            line = int(made.lines[at.line])
            raise unreadable(at.reason, f"{where(line)} line={shown(lines[line].as_py())}")

        sure = fitting(made.ops, made.raw.before, made.raw.after, stored=self.layout.stored)
        found = self.events_of(
            made.raw.chosen(sure),
            np.flatnonzero(~sure),
            partial(self._exact_event, made),
            bad,
            marks=made.marks,
            tombstones=made.tombstones,
        )
        return self.parsed_of(found, bad, None, fail)

    def _exact_event(self, made: Messages, number: int) -> Event | None:
        raw = made.raw
        event = {
            "op": made.ops[number].as_py(),
            "before": _loaded(raw.before[number].as_py()),
            "after": _loaded(raw.after[number].as_py()),
            TIME_PATH: int(raw.times[number]),
            ORDER_PATH: 0 if raw.orders is None else int(raw.orders[number]),
        }
        return event_of(event, PLAIN, self.time, self.order_by, stored=self.layout.stored, terms=self.terms)

    def _numbered(self, rows: pa.RecordBatch, numbers: Ints) -> pa.RecordBatch:
        """With the numbers of lines instead of texts; of a key's events in one line, only the last."""
        if LINE not in rows.schema.names:
            return rows
        at = rows.schema.get_field_index(LINE)
        texts = rows.column(LINE)
        rows = rows.set_column(at, rows.schema.field(LINE), pa.array(numbers[texts.to_numpy()]))
        if len(np.unique(numbers)) == len(numbers):
            return rows
        table = pa.table(
            {
                **{f"k{i}": rows.column(name) for i, name in enumerate(self.key)},
                **{"line": rows.column(LINE), "time": rows.column(TIME)},
                **{"text": texts, "row": pa.array(np.arange(rows.num_rows))},
            }
        ).sort_by([("text", "ascending"), ("row", "ascending")])
        by = [name for name in table.column_names if name not in ("text", "row")]
        last = table.group_by(by, use_threads=False).aggregate([("row", "last")]).column("row_last")
        return rows.take(last.combine_chunks().sort())


def _loaded(row: bytes | None) -> Any:
    return None if row is None else parsed_json(row)
