"""Reads messages of other tools."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidelake.cdc.core.events import Events, Ints
from tidelake.cdc.core.lineerrors import as_bytes, shown, unreadable
from tidelake.cdc.core.ops import Terms
from tidelake.cdc.core.outcome import Parsed, Reject
from tidelake.cdc.core.tablename import quoted_name
from tidelake.cdc.dialects.dialect import ORDER_PATH, TIME_PATH, Dialect, Rewritten
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.rows import LINE, TIME
from tidelake.errors import UsageError


def _place(where: Callable[[int], str], numbers: Ints, text: int) -> str:
    return where(int(numbers[text]))


def _origin(lines: pa.Array, numbers: Ints, text: int) -> bytes | None:
    line: bytes | None = lines[int(numbers[text])].as_py()
    return line


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
        lines: pa.Array,
        where: Callable[[int], str],
        keys: pa.Array | None = None,  # noqa: ARG002 - other tools' keys have other forms
        times: Ints | None = None,  # noqa: ARG002 - messages have times of their own
        found: Events | None = None,  # noqa: ARG002 - which only a timeline reads before
        *,
        origin: Callable[[int], bytes | None] | None = None,  # noqa: ARG002 - the lines are as they came
    ) -> Parsed:
        """As `ChangeParser.parse`. Neither keys of messages nor other times are read.

        Raises:
            InvalidUpdates: as there; or the messages are of several tables.
        """
        if self.dialect is None:
            raise UsageError("a DialectParser needs a dialect")
        lines = as_bytes(lines)
        made = self.dialect.rewritten(lines)
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
        self, made: Rewritten, lines: pa.Array, where: Callable[[int], str]
    ) -> tuple[Parsed, Ints, list[Reject]]:
        """Parse the texts of the messages of which all rows can be read."""
        texts, numbers = made.texts, made.lines
        bad: dict[int, Reject] = {}
        while True:
            parsed = super().parse(
                texts, partial(_place, where, numbers), origin=partial(_origin, lines, numbers)
            )
            for reject in parsed.rejects:
                line = int(numbers[reject.line])
                bad.setdefault(line, Reject(line, reject.reason))
            rejected = np.isin(numbers, list(bad))
            if rejected.sum() == len(parsed.rejects):
                return parsed, numbers, list(bad.values())
            # Some rows of a rejected message were read.
            texts, numbers = texts.filter(pa.array(~rejected)), numbers[~rejected]

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
