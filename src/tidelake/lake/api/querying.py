"""SQL over the collections of a lake, in this process."""

from collections.abc import Mapping, Sequence

from tidelake.data.answer.rows import Rows
from tidelake.errors import UsageError
from tidelake.lake.api.naming import Naming
from tidelake.model.instants import TimeLike

_INSTEAD = {
    "insert": "collection.append, or collection.upsert",
    "update": "collection.upsert",
    "delete": "collection.delete",
    "merge": "collection.upsert",
}


class Querying(Naming):
    """Methods of a lake that answer questions about several collections."""

    def sql(
        self,
        text: str,
        *,
        as_of: TimeLike | None = None,
        args: Sequence[object] | Mapping[str, object] | None = None,
        timeout_s: float | None = None,
    ) -> Rows:
        """The answer to a query in DuckDB's SQL, in which collections are tables (needs the extra `sql`).

        A table has the key and value columns, and each row as often as its multiplicity. All tables are of
        one instant; see "One instant" in docs/sql.md. A table may name another time
        (`orders FOR VERSION AS OF 3`, `orders FOR TIMESTAMP AS OF '2026-11-01 12:00Z'`), and
        `table_changes('orders', 3, 5)` is its change feed, of both times and those between.
        Columns that are not named, and parts without rows that the WHERE clause lets through, are not read.
        `TABLE`, `DESCRIBE`, `SUMMARIZE`, `EXPLAIN` and `SHOW TABLES` are queries too. The time zone is UTC.

        Args:
            text: one query. It can reach the collections and nothing else: no files, network, or settings.
            as_of: the time of all tables that name none; default: the last closed time.
            args: values of parameters: a list for `?`, a dict for `$name`.
            timeout_s: how long to wait for a time to be closed; default: the setting `wait_timeout_s`.

        Returns:
            The rows, as a stream. Costs one log scan for the names, a few for each collection, and what
            reading the tables costs.

        Raises:
            UsageError: the text is not a query, or DuckDB refuses it; or names of columns differ only in
                case; or DuckDB is not installed.
            CollectionNotFound: a table is neither a collection nor defined in the text.
            HistoryCompacted, NotYetClosed: as for `Collection.snapshot`.
            InvalidUpdates: a row of a table has a negative multiplicity.
        """
        self._guard.check()
        import pyarrow as pa

        from tidelake.data.sql.statement import quoted, shown, statement
        from tidelake.lake.api.embedded import Scan, run
        from tidelake.lake.api.tablereads import table_reads

        parsed = statement(text, "duckdb")
        if parsed.kind == "show tables":
            named = pa.record_batch({"name": pa.array(sorted(self.list()), pa.string())})
            return Rows(named.schema, iter([named]))
        if parsed.kind != "query":
            instead = _INSTEAD.get(parsed.kind)
            remedy = (
                f"write with {instead}" if instead else "take SELECT, TABLE, DESCRIBE, SUMMARIZE, EXPLAIN"
            )
            remedy += "" if instead else " or SHOW TABLES"
            raise UsageError(f"{shown(text)} is not a query, and this reads only: {remedy}")
        found = table_reads(self, parsed, as_of, timeout_s)
        for index, table in enumerate(parsed.tables):
            if index not in found:
                raise self._shards.not_found(table.name)
        scans = {f"tidelake_table_{i}": Scan(read.schema, read.batches) for i, read in found.items()}
        names = {i: quoted(f"tidelake_table_{i}", "duckdb") for i in found}
        return run(parsed.replaced(names), scans, args)
