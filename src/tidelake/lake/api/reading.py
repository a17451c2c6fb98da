"""Reads of a collection: contents, look-ups, changes, and plans of reads for other processes.

Owns the arguments; `tidelake.shard.reading` finds the rows.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelake.data.answer.rows import Rows
from tidelake.data.ingest.keyvalues import key_maker, one_key
from tidelake.errors import HistoryCompacted, UsageError
from tidelake.lake.api.handle import CollectionHandle
from tidelake.lake.api.intervals import IntervalReads, R, ReadAt
from tidelake.lake.arguments.names import check_name
from tidelake.lake.arguments.times import FrontierLike
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf, Query
from tidelake.model.selection import ReadOptions, TimesAs
from tidelake.shard.engine.version import Version
from tidelake.shard.reading import query
from tidelake.shard.reading.lookup import history, lookup
from tidelake.timetext import is_clock

if TYPE_CHECKING:
    from tidelake.lake.api.readers import CollectionReader


class Reading(CollectionHandle, IntervalReads):
    """Methods of a collection that answer one question about rows at times; they leave nothing behind."""

    def snapshot(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        schema_id: int | None = None,
        staged: bool = False,
        times: TimesAs = "int64",
    ) -> Rows:
        """The exact contents at `as_of` (default: the last closed time), with multiplicities in `_diff`.

        Rows come sorted by key, then value; nulls last. The time must be closed. The parts are kept
        as long as the stream is read or referenced; only a long read writes a hold for that.

        Rows have the columns of the newest schema, also if another one was in force at `as_of`. With
        `schema_id` they have the columns of that schema: columns added since are left out, columns dropped
        since are null.

        Args:
            as_of: the time: in the collection's unit or, for a clock, an instant with its zone, such as a
                datetime or `"2026-11-01 12:00Z"`, which is rounded down. `"now"` is the last closed time, if
                the clock is ahead of that.
            columns: the columns to return, in this order, before the times and `_diff`; default: all. Rows
                that are equal in them stay apart, each with its own multiplicity.
            where: an SQL condition on the rows, such as `price > 10 AND name LIKE 'a%'`: see "Some rows and
                columns" in docs/guide.md. Parts that cannot match are not read.
            timeout_s: how long to wait for the time to be closed.
            schema_id: read under the schema of this id.
            staged: do not wait. For times that are still open, the contents include the updates that were
                staged before the call. Default of `as_of` is then `last_staged`.
            times: the type of `_time`: `"int64"`, as it is stored, or `"timestamp"`, an Arrow timestamp
                in UTC, of the collection's unit. Only clocks have timestamps.

        Raises:
            UsageError: there is no such column, or the condition is not supported; says what to write.
            IncompatibleSchema: since that schema, a column was widened or became nullable.
            HistoryCompacted: `as_of` is before `since`.
            NotYetClosed: `as_of` is still open after `timeout_s` (default: the setting `wait_timeout_s`, 0);
                names the last closed time. At once if no time is closed yet.
        """
        return self._at(as_of, ReadOptions(columns, where, timeout_s, staged, schema_id, times), self._read)

    def negative_rows(self) -> int:
        """The number of distinct rows with a negative multiplicity at the last closed time.

        Such rows were removed more often than they were added. Costs a read of the contents, or none if
        nothing was ever removed; 0 if no time is closed.

        Raises:
            UsageError: times are tuples, which have no last time.
        """
        if not self.domain.total_order:
            raise UsageError(f"{self.domain} has no last time: count rows of a snapshot with _diff < 0")
        from tidelake.shard.reading.negatives import may_be_negative, negatives

        state = self._shard.version().state
        if state.upper == state.minimum or not may_be_negative(state):
            return 0
        return negatives(self.snapshot()).rows

    def lookup(
        self,
        keys: object,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        staged: bool = False,
        times: TimesAs | None = None,
    ) -> pa.Table:
        """The rows of some keys at `as_of` (default: the last closed time), as `snapshot` returns them.

        Args:
            keys: a key as for `history`, a list or set of keys, or a table in any Arrow form with the key
                columns; keys may repeat. Of a table with the first key columns only, the rows of all keys
                that begin so: a read for each of these.
            as_of: the time.
            columns: as for `snapshot`, like the other arguments and errors.
            where: as for `snapshot`.
            timeout_s: how long to wait for the time to be closed.
            staged: as for `snapshot`.
            times: as for `snapshot`; default: timestamps (dates, if it counts days) where times are a clock.

        Returns:
            A table in memory, sorted by key, then value, with multiplicities in `_diff`. Keys without rows
            are absent. One log scan; for each part that may hold one of the keys an `open`, a read or two of
            its footer, and reads of the row groups that may hold one.

        Raises:
            InvalidUpdates: a key is not valid; names the column and the row.
        """
        options = ReadOptions(columns, where, timeout_s, staged, times=self._shown(times))
        return self._at(as_of, options, partial(lookup, self._shard, key_maker(keys)))

    def history(
        self,
        key: object,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        staged: bool = False,
        times: TimesAs | None = None,
    ) -> pa.Table:
        """The updates of one key in the order of time: when its rows came (`_diff` > 0) and went (< 0).

        Args:
            key: the value of the key column; of several key columns a tuple, in their order, or a dict by
                name.
            lower: begin at this frontier. Default: with all that is known. If history was given up, that
                begins with the rows that were there at `since`, at time `since`.
            upper: end before this frontier. Default: with the last closed time or, with `staged`, the last
                staged update.
            columns: as for `snapshot`, like the other arguments and errors.
            where: as for `snapshot`.
            timeout_s: how long to wait for the times before `upper` to be closed.
            staged: as for `snapshot`.
            times: as for `lookup`.

        Returns:
            A table in memory. Of one time the removed rows come first, then the added ones, by value. Times
            that are tuples are in the order of their components. Costs as `lookup`, for all parts with times
            that are asked for.

        Raises:
            InvalidUpdates: the key does not fit the key columns.
            HistoryCompacted: updates from `lower` on can no longer be told apart, or `upper` is not after
                `since`.
        """
        bound = partial(self._times.read_bound, staged=staged)
        start = None if lower is None else bound(lower, "lower")
        end = None if upper is None else bound(upper, "upper")
        options = ReadOptions(columns, where, timeout_s, staged, times=self._shown(times))
        return history(self._shard, lambda schema: one_key(key, schema), start, end, options)

    def _shown(self, times: TimesAs | None) -> TimesAs:
        """The type of the times of a table, which people look at."""
        if times is None:
            return "timestamp" if is_clock(self.domain.unit) else "int64"
        return times

    def _at(self, as_of: TimeLike | None, options: ReadOptions, read: ReadAt[R]) -> R:
        if as_of is not None:
            return read(AsOf(self._times.read(as_of, "as_of", staged=options.staged)), options, None)
        while True:
            seen = self._shard.version()
            last = self._last_staged_in(seen.state) if options.staged else self._last_before(seen.upper)
            try:
                return read(AsOf(last), options, seen)
            except HistoryCompacted:
                # Others appended and moved `since` in between: the last closed time is a later one now.
                continue

    def _read(self, asked: Query, options: ReadOptions, seen: Version | None = None) -> Rows:
        return query.read(self._shard, asked, options, seen).stream()

    def reader(self, purpose: str, since: FrontierLike | None = None) -> "CollectionReader":
        """Open a reader. It holds history from `since` on (default: the current one) until it is closed.

        The hold of a process that dies expires after `lease_s`. One log write.
        """
        from tidelake.lake.api.readers import CollectionReader
        from tidelake.shard.reading.reader import Reader

        check_name(purpose, "purpose of a reader")
        start = None if since is None else self._times.since(since, "since")
        reader = Reader(self._shard, purpose, start)
        return CollectionReader(reader, self._times, self._last_staged_in)


def ask(collection: Reading, asked: Query, options: ReadOptions, seen: Version | None = None) -> Rows:
    """The answer to a query whose times are those of the collection; errors as for `Collection.snapshot`."""
    return collection._read(asked, options, seen)
