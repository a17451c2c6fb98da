"""A table as a lazy frame of polars, which tells what it needs of it (the extra `polars`)."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tidelake.data.answer.importable import check_for_polars
from tidelake.data.answer.rows import optional
from tidelake.data.sql.polarsfilter import condition, without_hints
from tidelake.lake.api.tablecontents import TableContents


def lazy_frame(contents: TableContents) -> Any:
    """A `polars.LazyFrame` of a table.

    Polars relies on it that rows are filtered. So its own filter is applied to every batch; what is asked of
    the collection only leaves parts unread.
    """
    polars = optional("polars", "polars")
    plugins = optional("polars.io.plugins", "polars")
    check_for_polars(contents.schema)
    schema = polars.DataFrame(contents.schema.empty_table()).schema

    def read(
        columns: Sequence[str] | None, predicate: Any, limit: int | None, _batch_rows: int | None
    ) -> Iterator[Any]:
        matching, needed = None, columns
        if predicate is not None:
            tree = json.loads(predicate.meta.serialize(format="json"))
            matching = condition(tree, contents.row_schema)
            predicate = without_hints(predicate, tree, polars)
            used = set() if predicate is None else set(predicate.meta.root_names())
            needed = None if columns is None else [*columns, *sorted(used - set(columns))]
        left = limit
        with contents.rows(needed, matching) as rows:
            for batch in rows:
                frame = polars.from_arrow(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                if columns is not None:
                    frame = frame.select(columns)
                if left is not None:
                    frame = frame.head(left)
                    left -= len(frame)
                yield frame
                if left == 0:
                    return

    return plugins.register_io_source(read, schema=schema, explain_name="tidelake")
