"""The contents of a collection at a time as a table: each row as often as its multiplicity."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tidelake.data.answer.rows import Rows
from tidelake.data.answer.tablerows import expanded
from tidelake.data.kernel.types import row_schema
from tidelake.lake.api.reading import Reading, ask
from tidelake.model.predicate import Predicate
from tidelake.model.query import AsOf
from tidelake.model.schema import Schema
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time
from tidelake.shard.engine.version import Version


class TableContents:
    """The contents of a collection at a time, as a table that can be read again."""

    def __init__(self, collection: Reading, at: Time, options: ReadOptions, rows: Schema) -> None:
        self._collection, self._at, self._options, self.row_schema = collection, at, options, rows
        whole = row_schema(rows)
        names = whole.names if options.columns is None else options.columns
        self.schema = pa.schema([whole.field(name) for name in names])

    def rows(
        self,
        columns: Sequence[str] | None = None,
        matching: Predicate | None = None,
        seen: Version | None = None,
    ) -> Rows:
        """The rows, as a stream.

        Args:
            columns: of these columns; default: all of them.
            matching: a further condition.
            seen: a version that was just read; default: the newest.

        Raises:
            IncompatibleSchema: a column was dropped since.
        """
        names = list(self.schema.names if columns is None else columns)
        options = replace(self._options, columns=names, matching=matching)
        found = ask(self._collection, AsOf(self._at), options, seen)
        schema = pa.schema([self.schema.field(name) for name in names])
        return Rows(schema, _expanded(found, names))


def _expanded(found: Rows, names: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in found:
        for piece in expanded(batch):
            yield piece.select(names)
