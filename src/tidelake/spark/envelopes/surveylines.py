"""The tables of change events, found in the tasks.

Owns the batches that come from Spark; `tidelake.cdc.parse.routes` owns where events name their table.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.parse.linenumbers import LineNumbers
from tidelake.cdc.parse.routes import TableColumns, seen_in, tables_of
from tidelake.spark.tasks import one_thread

Mask: TypeAlias = npt.NDArray[np.bool_]
TABLE = "_tidelake_table"


@dataclass
class NumberedLines:
    """Gives the lines of the batches of one task their numbers, which a split by table would lose."""

    _lines: LineNumbers = field(default_factory=LineNumbers)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with columns `AS_TEXT`, with the number of each line as its `offset`, if it has none."""
        files, offsets = batch.column("file"), batch.column("offset")
        if not batch.num_rows or offsets.null_count < len(offsets) or files.null_count == len(files):
            return batch
        blocks = pc.fill_null(batch.column("block"), 0).to_numpy()
        at = batch.schema.get_field_index("offset")
        return batch.set_column(at, "offset", pa.array(self._lines.of(files, blocks)))


@dataclass(frozen=True)
class RouteLines:
    """In a worker: lines with columns `AS_TEXT`, and the table of each."""

    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        numbers = NumberedLines()
        for batch in batches:
            numbered = numbers.of(batch.rename_columns(list(self.columns)))
            yield numbered.append_column(TABLE, tables_of(numbered.column("value")))


@dataclass(frozen=True)
class SurveyLines:
    """In a worker: what the lines say of their tables, as rows with the fields of `TableColumns`."""

    columns: tuple[str, ...]
    kinds: ClassVar[str] = "table string, schema string, key string, empties boolean"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        known: set[TableColumns] = set()
        for batch in batches:
            named = batch.rename_columns(list(self.columns))
            _, found = seen_in(named.column("value"), named.column("key"))
            new = [one for one in found if one not in known]
            known.update(new)
            kinds = [*[(name, pa.string()) for name in ("table", "schema", "key")], ("empties", pa.bool_())]
            yield pa.RecordBatch.from_pylist([asdict(one) for one in new], schema=pa.schema(kinds))
