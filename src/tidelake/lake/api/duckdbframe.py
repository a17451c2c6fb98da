"""A table as a dataset that DuckDB scans, which tells it the columns and the rows that a query needs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidelake.data.sql.arrowfilter import KnownFilter, known
from tidelake.lake.api.tablecontents import TableContents


class ContentsDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset for DuckDB: only `schema` and `scanner` may be used.

    DuckDB relies on it that rows are filtered. So its filter is applied to every batch; what is asked of the
    collection only leaves parts unread.
    """

    def __init__(self, contents: TableContents) -> None:
        self._contents = contents

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._contents.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's name
        **_options: Any,
    ) -> "_FilteredScan":
        """A scan of some columns of the rows that a filter keeps."""
        contents, names = self._contents, self._contents.schema.names
        shown = names if columns is None else list(columns)
        needs = KnownFilter(None, frozenset()) if filter is None else known(filter, contents.row_schema)
        used = {*shown, *(names if needs.columns is None else needs.columns)}
        # Rows without columns are counted, so one column is read.
        read = [name for name in names if name in used] or names[:1]
        schema = pa.schema([contents.schema.field(name) for name in shown])

        def batches() -> Iterator[pa.RecordBatch]:
            with contents.rows(read, needs.where) as rows:
                for batch in rows:
                    kept = batch if filter is None else batch.filter(filter)
                    yield kept.select(shown)

        return _FilteredScan(schema, batches)


@dataclass(frozen=True)
class _FilteredScan:
    """What DuckDB takes a stream from."""

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())
