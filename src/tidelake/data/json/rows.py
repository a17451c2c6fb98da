"""Lines that are rows: JSON objects of some columns, and no others.

Owns the columns of such lines. They are read many at once; lines of which that way is not sure are read one
by one, which finds the line and the reason.
"""

import operator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidelake.data.json.block import halved, joined, read_block, trimmed
from tidelake.data.json.encoding import PLAIN
from tidelake.data.json.raw import SeenTexts, Texts, finished, member
from tidelake.data.json.values import UnfitValue, column, loads, not_json


class BadLine(Exception):
    """A line is no row; `line` is its number among those given, from 0."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line, self.reason = line, reason


@dataclass
class RowReader:
    """Reads lines of the same columns. Remembers what the last ones looked like.

    Attributes:
        schema: of the rows: each object has these fields.
    """

    schema: pa.Schema
    _texts: SeenTexts = field(default_factory=SeenTexts)

    def read(self, lines: pa.Array) -> pa.RecordBatch:
        """The rows of lines (binary), in their order."""
        bare = trimmed(lines)
        parts = halved(
            lambda at: self._at_once(bare[at]), lambda at: self._one_by_one(bare[at], at.start), len(bare)
        )
        table = pa.Table.from_batches(parts, schema=self.schema).combine_chunks()
        return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=self.schema)

    def _at_once(self, lines: pa.Array) -> pa.RecordBatch:
        found = self._texts.read(lines, self.schema, lambda texts: self._objects(lines, texts))
        columns = [finished(found.field(wanted.name), wanted, PLAIN) for wanted in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _objects(self, lines: pa.Array, texts: Texts) -> pa.StructArray:
        members = {one.name: member(one, PLAIN, texts, (one.name,)) for one in self.schema}
        return read_block(joined(lines), lines, members, closed=True)[0]

    def _one_by_one(self, lines: pa.Array, start: int) -> pa.RecordBatch:
        rows: list[dict[str, Any]] = []
        bad: list[BadLine] = []
        for number, line in enumerate(lines.to_pylist(), start):
            try:
                rows.append(self._row(line, number))
            except BadLine as found:
                bad.append(found)
                break
        columns = []
        for wanted in self.schema:
            values = [row[wanted.name] for row in rows]
            try:
                if not wanted.nullable and None in values:
                    raise UnfitValue(values.index(None), "is null, but the column is not nullable")
                columns.append(column(values, wanted.type))
            except UnfitValue as unfit:
                bad.append(BadLine(start + max(unfit.index, 0), f"column {wanted.name!r}: {unfit.reason}"))
        if bad:
            raise min(bad, key=operator.attrgetter("line"))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _row(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = loads(line.decode())
        except UnicodeDecodeError as error:
            raise BadLine(number, f"not UTF-8: {error}") from None
        except (ValueError, RecursionError) as error:
            raise BadLine(number, not_json(line, error)) from None
        if not isinstance(row, dict):
            raise BadLine(number, "not a JSON object")
        missing = [name for name in self.schema.names if name not in row]
        known = frozenset(self.schema.names)
        unknown = [name for name in row if name not in known]
        if missing:
            raise BadLine(number, f"column {missing[0]!r}: is missing")
        if unknown:
            raise BadLine(number, f"column {unknown[0]!r}: is not one of the first line's")
        return row
