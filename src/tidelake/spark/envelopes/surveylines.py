"""The tables of change events, found in the tasks.

Owns the batches that come from Spark; `tidelake.cdc.parse.routes` owns where events name their table.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.debezium.decoded import Decoded, decode
from tidelake.cdc.parse.routes import TableColumns, seen_in
from tidelake.feeds.places import NumberedLines
from tidelake.spark.tasks import one_thread

TABLE, SEEN, SURVEYED = "_tidelake_table", "_tidelake_seen", "_tidelake_survey"
# What is found of lines: the table of each, and with the first line of a batch what they say of their tables
# and the survey of their positions.
ROUTED = pa.schema([(TABLE, pa.string()), (SEEN, pa.string()), (SURVEYED, pa.binary())])


@dataclass(frozen=True)
class RouteLines:
    """In a worker: lines with columns `AS_TEXT`, and what `ROUTED` says of them.

    Attributes:
        columns: names of the columns.
        survey: the survey of a batch of decoded lines, as bytes; None: none is wanted.
    """

    columns: tuple[str, ...]
    survey: Callable[[Decoded, pa.RecordBatch], bytes] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        numbers = NumberedLines()
        for batch in batches:
            numbered = numbers.of(batch.rename_columns(list(self.columns)))
            found = decode(as_bytes(numbered.column("value")))
            tables, told = seen_in(found, numbered.column("key"))
            survey = None if self.survey is None else self.survey(found, numbered)
            columns = (
                tables,
                _first(_seen_text(told), found, pa.string()),
                _first(survey, found, pa.binary()),
            )
            for one, values in zip(ROUTED, columns, strict=True):
                numbered = numbered.append_column(one, values)
            yield numbered


def _first(value: str | bytes | None, lines: Decoded, kind: pa.DataType) -> pa.Array:
    """A value of the first line, and null of the others."""
    return pa.array([value, *[None] * (len(lines) - 1)][: len(lines)], kind)


def _seen_text(told: Iterable[TableColumns]) -> str:
    return json.dumps(sorted([one.table, one.schema, one.key, one.empties] for one in told))


def seen_of(texts: Iterable[str]) -> list[TableColumns]:
    """What lines say of their tables, each thing once, from texts of the column `SEEN`."""
    found = {TableColumns(*one) for text in texts for one in json.loads(text)}
    return sorted(found, key=lambda one: (one.table, len(one.schema), one.schema, one.key))
