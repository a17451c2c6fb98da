"""Contents of a collection as tables and frames of other libraries."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidelake.data.answer.rows import optional
from tidelake.lake.api.reading import Reading
from tidelake.lake.api.tablecontents import TableContents
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf
from tidelake.model.selection import ReadOptions
from tidelake.shard.engine.version import Version
from tidelake.shard.reading import query
from tidelake.shard.reading.versionread import VersionRead


class Framing(Reading):
    """Methods of a collection that hand its contents to another library, as a table.

    A table has the key and value columns, and each row as often as its multiplicity; `snapshot` has each row
    once, with its multiplicity.
    """

    def to_arrow(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> pa.Table:
        """The contents at `as_of` (default: the last closed time) as a `pyarrow.Table`, by key and value.

        Args:
            as_of: as for `snapshot`, like the other arguments and errors.
            columns: the columns, in this order; default: all. `[]` are none of them, which counts the rows.
            where: an SQL condition on the rows.
            timeout_s: how long to wait for the time to be closed.

        Raises:
            InvalidUpdates: a row has a negative multiplicity.
        """
        contents, version = self._contents(as_of, columns, where, timeout_s)
        return contents.rows(seen=version).to_arrow()

    def to_pandas(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> Any:
        """The contents at `as_of` as a pandas DataFrame; arguments and errors as for `to_arrow`.

        One column is converted after the other, and freed: memory holds the rows once, and one column twice.
        `options` are those of `pyarrow.Table.to_pandas`.
        """
        contents, version = self._contents(as_of, columns, where, timeout_s)
        return contents.rows(seen=version).to_pandas(**options)

    def to_polars(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The contents at `as_of` as a `polars.LazyFrame`, which reads them when it is collected.

        The time is fixed by this call: each `collect` reads the same contents, as long as `since` does not
        pass it. Columns that a query does not use are not read, nor parts without rows that its filters on
        columns let through. Arguments and errors as for `to_arrow`; needs the extra `polars`.
        """
        from tidelake.lake.api.lazyframe import lazy_frame

        return lazy_frame(self._contents(as_of, columns, where, timeout_s)[0])

    def to_duckdb(
        self,
        connection: Any = None,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The contents at `as_of` as a relation of DuckDB, which reads them as a stream each time it is used.

        The time is fixed by this call, as for `to_polars`. Columns that a query on the relation does not use
        are not read, nor parts without rows that those of its filters let through that DuckDB hands on:
        comparisons of a column with a constant. The settings of the connection decide what its time zone is,
        for one; without one it is DuckDB's own. Other arguments and errors as for `to_arrow`. Needs the extra
        `sql`.

        Raises:
            UsageError: names of columns, or of fields of a struct, differ only in case.
        """
        duckdb = optional("duckdb", "sql")
        from tidelake.data.answer.importable import check_for_duckdb
        from tidelake.lake.api.duckdbframe import ContentsDataset

        dataset = ContentsDataset(self._contents(as_of, columns, where, timeout_s)[0])
        check_for_duckdb(dataset.schema)
        return (duckdb if connection is None else connection).from_arrow(dataset)

    def _contents(
        self,
        as_of: TimeLike | None,
        columns: Sequence[str] | None,
        where: str | None,
        timeout_s: float | None,
    ) -> tuple[TableContents, Version]:
        """The contents, and the version that knows them."""
        version = self._shard.version()
        schema = version.spec.schema
        at = self._last_before(version.upper) if as_of is None else self._times.read(as_of, "as_of")
        options = ReadOptions(columns, where, timeout_s, schema_id=version.spec.schema_id, complete=True)
        # A bad argument is told by the call, also where nothing is read yet.
        version = query.ready(self._shard, AsOf(at), options, version)
        VersionRead.of(self._shard, version, AsOf(at), options)
        return TableContents(self, at, options, schema), version
