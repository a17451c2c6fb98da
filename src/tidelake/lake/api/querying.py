"""SQL over the collections of a lake, in this process."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidelake.data.answer.rows import Rows
from tidelake.errors import UsageError
from tidelake.lake.api.naming import Naming
from tidelake.model.instants import TimeLike

if TYPE_CHECKING:
    from tidelake.data.sql.statement import Statement


_TAKEN = (
    "SELECT, TABLE, PIVOT, DESCRIBE, SUMMARIZE, EXPLAIN of a query, SHOW TABLES, INSERT INTO, UPDATE, "
    "DELETE FROM or MERGE INTO"
)


class Querying(Naming):
    """Methods of a lake that answer questions about several collections."""

    def sql(
        self,
        text: str,
        *,
        as_of: TimeLike | None = None,
        args: Sequence[object] | Mapping[str, object] | None = None,
        timeout_s: float | None = None,
        time: TimeLike | None = None,
        token: str | None = None,
        author: str = "",
        message: str = "",
    ) -> Rows:
        """Carry out a statement of DuckDB's SQL, in which collections are tables (needs the extra `sql`).

        A table has the key and value columns, and each row as often as its multiplicity. All tables are of
        one instant; see "One instant" in docs/sql.md. A table may name another time
        (`orders FOR VERSION AS OF 3`, `orders FOR TIMESTAMP AS OF '2026-11-01 12:00Z'`), and
        `table_changes('orders', 3, 5)` is its change feed, of both times and those between.
        Columns that are not named, and parts without rows that the WHERE clause lets through, are not read.
        `TABLE`, `PIVOT`, `DESCRIBE`, `SUMMARIZE`, `EXPLAIN` and `SHOW TABLES` are queries too. The time zone
        is UTC.

        `INSERT INTO`, `UPDATE`, `DELETE FROM` and `MERGE INTO` change a collection by one commit, when the
        method is called; see "Changing rows" in docs/sql.md. They read the newest contents. If another
        process commits meanwhile, they are carried out again, as by `upsert`. Rows that change are held in
        memory.

        Args:
            text: one statement. It can reach the collections and nothing else: no files, network, settings.
            as_of: the time of all tables that name none; default: the last closed time.
            args: values of parameters: a list for `?`, a dict for `$name`.
            timeout_s: how long to wait for a time to be closed; default: the setting `wait_timeout_s`.
            time: time of a change; default: chosen at the commit.
            token: of a change, as for `Collection.append`.
            author: of a change, likewise.
            message: of a change, likewise.

        Returns:
            The rows, as a stream. Of a change one row: `updates` (how many were written) and `upper` (that of
            the collection afterwards). Costs one log scan for the names, a few for each collection, and what
            reading the tables costs.

        Raises:
            UsageError: the text is another statement, or DuckDB refuses it; or names of columns differ only
                in case; or DuckDB is not installed.
            CollectionNotFound: a table is neither a collection nor defined in the text.
            HistoryCompacted, NotYetClosed: as for `Collection.snapshot`.
            InvalidUpdates: a row of a table has a negative multiplicity, or a new one does not fit.
        """
        self._guard.check()
        import pyarrow as pa

        from tidelake.data.sql.statement import shown, statement
        from tidelake.lake.api.embedded import run, table_name
        from tidelake.lake.api.tablereads import scans_of, table_reads

        parsed = statement(text, "duckdb")
        if parsed.kind == "show tables":
            named = pa.record_batch({"name": pa.array(sorted(self.list()), pa.string())})
            return Rows(named.schema, iter([named]))
        if parsed.kind == "other":
            raise UsageError(
                f"{shown(text)} is no statement for a lake: take {_TAKEN}; lake.create makes collections"
            )
        if parsed.kind != "query":
            if as_of is not None:
                raise UsageError("as_of is for queries: a statement that changes rows reads the newest ones")
            return self._changed(
                parsed, args=args, timeout_s=timeout_s, time=time, token=token, author=author, message=message
            )
        if author or message or token is not None or time is not None:
            raise UsageError(
                "time, token, author and message are for statements that change a collection: leave them out"
            )
        found = table_reads(self, parsed, as_of, timeout_s)
        for index, table in enumerate(parsed.tables):
            if index not in found:
                raise self._shards.not_found(table.name)
        scans = scans_of(found)
        names = {i: table_name(i) for i in found}
        return run(parsed.replaced(names), scans, args)

    def _changed(self, parsed: "Statement", **given: Any) -> Rows:
        from tidelake.data.sql.changes import target_of
        from tidelake.lake.api.sqlchanges import changed
        from tidelake.lake.api.tablereads import collection_name

        table = parsed.tables[target_of(parsed)]
        name = collection_name(table, self.list(), parsed.engine)
        if name is None:
            raise self._shards.not_found(table.name)
        return changed(self, parsed, self.collection(name), not_found=self._shards.not_found, **given)
