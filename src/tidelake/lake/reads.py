"""Reads of a collection: contents, look-ups, changes, and plans of them for other processes.

Owns the arguments; how rows are found is `tidelake.shard.reading`.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest import as_table
from tidelake.errors import HistoryCompacted, UsageError
from tidelake.lake.frontiers import FrontierLike
from tidelake.lake.handle import Handle
from tidelake.lake.intervals import IntervalReads
from tidelake.lake.names import check_name
from tidelake.lake.readers import CollectionReader
from tidelake.lake.spans import patience
from tidelake.lake.wanted import wanted
from tidelake.model.query import AsOf, Query
from tidelake.model.schema import DIFF
from tidelake.model.selection import Wanted
from tidelake.model.time import Time
from tidelake.shard.reading import query
from tidelake.shard.reading.lookup import lookup
from tidelake.shard.reading.reader import Reader
from tidelake.shard.reading.split import split
from tidelake.shard.runs.plan import ReadPlan

R = TypeVar("R")


class Reads(Handle, IntervalReads):
    """A handle that reads."""

    def snapshot(
        self,
        as_of: Time | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        schema_id: int | None = None,
        staged: bool = False,
    ) -> pa.RecordBatchReader:
        """The exact contents at `as_of` (default: the last closed time), with multiplicities in `_diff`.

        Rows come sorted by key, then value; nulls last. Waits for the time to be closed. What is read is
        kept for as long as the stream is read or referenced; it writes nothing unless that is long.

        Rows have the columns of the newest schema, whatever it was at `as_of`; or those of the one with
        `schema_id`, as far as they are there today: what was added since is left out, what was dropped
        since is null.

        Args:
            as_of: the time.
            columns: those to give, in this order, before the times and `_diff`; default: all. Rows that are
                equal in them stay apart, each with its own multiplicity.
            where: SQL that is true of the rows to give, such as `price > 10 AND name LIKE 'a%'`: see "Some
                rows and columns" in docs/guide.md. What cannot match is not read.
            timeout_s: how long to wait for the time to be closed.
            schema_id: to read under.
            staged: wait for nothing: of times that are still open the contents have what was staged for them
                before the call. Without `as_of`, as of the last time that has anything.

        Raises:
            UsageError: there is no such column, or the condition is not supported; says what to write.
            IncompatibleSchema: a column of that schema was widened since, or may be null since.
            HistoryCompacted: `as_of` is before `since`.
            NotYetClosed: it is still open after `timeout_s` (default: the setting `wait_timeout_s`); at
                once if no time was closed yet and none was asked for.
        """
        patience_s = patience(timeout_s)
        asked_for = wanted(columns, where)

        def ask(asked: Query) -> pa.RecordBatchReader:
            return query.stream(
                self._shard, asked, patience_s, schema_id=schema_id, wanted=asked_for, staged=staged
            )

        return self._asked(as_of, ask, staged=staged)

    def negative_rows(self) -> int:
        """How many rows are there less than no times at the last closed time, equal ones counted once.

        They were taken away more often than they came. Costs a read of the contents, none if nothing was
        ever taken away; 0 if no time is closed.

        Raises:
            UsageError: times are tuples, of which none is the last.
        """
        if not self.domain.total_order:
            raise UsageError(f"of {self.domain} no time is the last: count rows of a snapshot with _diff < 0")
        state = self._shard.readable()
        if state.upper == state.minimum or not any(part.negative_rows for part in state.parts()):
            return 0
        counted = (pc.sum(pc.less(batch.column(DIFF), 0)).as_py() for batch in self.snapshot())
        return sum(count or 0 for count in counted)

    def lookup(
        self,
        keys: object,
        as_of: Time | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        staged: bool = False,
    ) -> pa.Table:
        """The rows of some keys at `as_of` (default: the last closed time), as `snapshot` gives them.

        Args:
            keys: a table in any Arrow form with the key columns; a key may come several times.
            as_of: the time.
            columns: as `snapshot`, and so are the other arguments and errors.
            where: which of the rows.
            timeout_s: how long to wait for the time to be closed.
            staged: as `snapshot`.

        Returns:
            In memory: sorted by key, then value, with multiplicities in `_diff`. Keys without rows give
            none. One log scan, and for each part that may hold one of the keys an `open`, a read or two of
            its footer, and reads of the row groups that may hold one.

        Raises:
            InvalidUpdates: the table is none of keys; names the column and the row.
        """
        patience_s, asked_for, given = patience(timeout_s), wanted(columns, where), as_table(keys)

        def ask(asked: AsOf) -> pa.Table:
            return lookup(self._shard, given, asked, patience_s, wanted=asked_for, staged=staged)

        return self._asked(as_of, ask, staged=staged)

    def _asked(self, as_of: Time | None, ask: Callable[[AsOf], R], *, staged: bool = False) -> R:
        if as_of is not None:
            return ask(AsOf(self.domain.check(as_of, "as_of")))
        while True:
            try:
                return ask(AsOf(self.last_staged() if staged else self.last_time()))
            except HistoryCompacted:
                # Others appended and moved `since` in between: there is a later last time now.
                continue

    def _read(
        self, asked: Query, patience_s: float | None, rows: Wanted, *, staged: bool
    ) -> pa.RecordBatchReader:
        return query.stream(self._shard, asked, patience_s, wanted=rows, staged=staged)

    def _split(
        self, asked: Query, n: int, patience_s: float | None, rows: Wanted
    ) -> list[pa.RecordBatchReader]:
        return split(self._shard, asked, n, patience_s, wanted=rows)

    def reader(self, purpose: str, since: FrontierLike | None = None) -> CollectionReader:
        """Hold history from `since` on (default: the current one), and what is read, until it is closed.

        A process that dies leaves its hold behind for `lease_s`. One log write.
        """
        check_name(purpose, "purpose of a reader")
        start = None if since is None else self.frontier(since, "since")
        reader = Reader(self._shard, purpose, start)
        return CollectionReader(reader, self.domain, self.last_time, self._last_staged_in)

    def plan(
        self,
        asked: Query | None,
        parallelism: int,
        timeout_s: float | None = None,
        schema_id: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        task_bytes_max: int | None = None,
        as_stored: bool = False,
        staged: bool = False,
    ) -> ReadPlan:
        """Cut a read into tasks for other processes (`tidelake.shard.runs.plan.run_task`).

        None asks for the contents at the last closed time; `schema_id`, `columns` and `where` as for
        `snapshot`. Tasks that are carried out later than `garbage_age_s` from now need `hold`.

        Args:
            asked: the query.
            parallelism: tasks at most.
            timeout_s: how long to wait for its times to be closed.
            schema_id: to read under.
            columns: to give.
            where: SQL that is true of the rows to give.
            task_bytes_max: more tasks, so that none reads much more stored bytes than this.
            as_stored: the caller reads Parquet files by itself where nothing is to be merged: see
                `ReadPlan.as_stored`.
            staged: as for `snapshot`.
        """
        patience_s, asked_for = patience(timeout_s), wanted(columns, where)

        def ask(of: Query) -> ReadPlan:
            return query.plan(
                self._shard,
                of,
                parallelism,
                patience_s,
                schema_id=schema_id,
                wanted=asked_for,
                task_bytes_max=task_bytes_max,
                as_stored=as_stored,
                staged=staged,
            )

        return ask(asked) if asked is not None else self._asked(None, ask, staged=staged)
