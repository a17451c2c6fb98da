"""SQL over the collections of a lake, carried out by Spark.

Owns which statements are taken; the text itself reaches Spark as it was written, but for the names of tables.
"""

from pyspark.sql import DataFrame, SparkSession

from tidelake.data.sql.statement import shown
from tidelake.errors import UsageError
from tidelake.lake.api.lake import Lake
from tidelake.lake.arguments.spans import DurationLike
from tidelake.model.instants import TimeLike
from tidelake.spark.reading.holds import HOLD_FOR
from tidelake.spark.statements.changing import changed
from tidelake.spark.statements.parsing import parsed as parsed_by
from tidelake.spark.statements.tables import Args, SqlTables, piece


def sql(
    spark: SparkSession,
    text: str,
    *,
    lake: Lake,
    as_of: TimeLike | None = None,
    time: TimeLike | None = None,
    args: Args = None,
    timeout_s: float | None = None,
    hold_for: DurationLike | None = HOLD_FOR,
    author: str = "",
    message: str = "",
) -> DataFrame:
    """Carry out a statement of Spark's SQL in which the collections of a lake are tables.

    A table has the key and value columns, and each row as often as its multiplicity. All tables are of one
    instant; see "One instant" in docs/sql.md. A table may name another time (`orders FOR VERSION AS OF 3`,
    `orders FOR TIMESTAMP AS OF '2026-11-01 12:00Z'`), and `table_changes('orders', 3, 5)` is its change feed,
    of both times and those between. Temporary views hide collections of their name; other tables of Spark's
    catalog are found where the lake has no collection of the name. Columns that are not named, and parts
    without rows that the WHERE clause lets through, are not read.

    `INSERT INTO`, `UPDATE`, `DELETE FROM` and `MERGE INTO` change a collection by one commit; see "Changing
    rows" in docs/sql.md. They run when the function is called.

    Args:
        spark: the session.
        text: one statement.
        lake: where the collections are.
        as_of: the time of all tables that name none; default: the last closed time.
        time: time of the change, for a statement that changes a collection; default: the first open time or,
            for clock times, now. `"now"` also where `Collection.append` refuses a write without a time.
        args: values of parameters, as for `spark.sql`: a dict for `:name`, a list for `?`.
        timeout_s: how long to wait for a time to be closed; default: the setting `wait_timeout_s`.
        hold_for: how long the DataFrame can be used; see `snapshot`. One log write for each table.
        author: who makes the commit of a statement that changes a collection; see `write`.
        message: what it is for.

    Returns:
        The rows. Of a statement that changes a collection: one row, `updates` (how many were written) and
        `upper` (the collection's upper afterwards).

    Raises:
        UsageError: the statement is of another kind, or a version or a value does not fit its table.
        CollectionNotFound: there is no collection to change, or to show the changes of.
        HistoryCompacted, NotYetClosed: as for `snapshot`.
        InvalidUpdates: rows to be written do not fit.
        UpperMismatch: other writers were first, five times; nothing was written.
    """
    parsed = parsed_by(spark, text)
    if parsed.kind == "other":
        raise UsageError(
            f"{shown(text)}: ts.sql takes queries, INSERT INTO, UPDATE, DELETE FROM and MERGE INTO. "
            "Collections are made by lake.create; for everything else use spark.sql"
        )
    if parsed.kind == "query" and (author or message or time is not None):
        raise UsageError(
            "time, author and message are for statements that change a collection: leave them out"
        )
    tables = SqlTables(spark, lake, as_of, args, timeout_s, hold_for, author, message, time)
    if parsed.kind != "query":
        return changed(parsed, tables)
    frames = tables.frames(parsed)
    return tables.run(piece(parsed, frames), frames)
