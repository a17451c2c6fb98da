"""Writes of a collection: appends, batches made elsewhere, upserts, full dumps, restorations, named writers.

Owns the arguments; `tidelake.shard.writing` makes the commits, and is imported by the first write: reads have
no use for it.
"""

from functools import partial
from typing import TYPE_CHECKING

from tidelake.lake.api.handle import CollectionHandle
from tidelake.lake.arguments.times import FrontierLike
from tidelake.model.instants import TimeLike

if TYPE_CHECKING:
    from tidelake.arrangement.follow.follow import FollowedArrangement
    from tidelake.lake.api.writer import Writer
    from tidelake.shard.writing.builder import BatchBuilder
    from tidelake.shard.writing.derived import ContentChange
    from tidelake.shard.writing.upserter import OldRows
    from tidelake.state.write.write import Appended


class Writing(CollectionHandle):
    """Methods of a collection that add, remove or replace rows, or close times: each ends in one commit."""

    def append(
        self,
        updates: object,
        *,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
        time: TimeLike | None = None,
        token: str | None = None,
        author: str = "",
        message: str = "",
    ) -> "Appended":
        """Append updates: a `_diff` of `+1` adds a row, `-1` removes it.

        Args:
            updates: any Arrow table or stream (also pandas, polars, DuckDB) with the key and value
                columns. Without `_time` all rows get one time, `time` or the commit's; without `_diff`
                all are `+1`. Or a `Batch`, for several writers that all write the same data, possibly cut
                differently: only its times that are still open are written; if none is, the call succeeds.
            lower: with `upper`, for several writers that all write the same data: only the times that are
                still open are written; if none is, the call succeeds.
            upper: close all times before it; default: just past the last time.
            time: time of all rows, which then have no `_time`. Default: the first open time or, for clock
                times, the wall clock if that is later. It must be given, in every write, if the last time is
                one that a writer gave more than a day after it: `"now"` closes all times until now.
            token: a text that identifies this write; as for `stage`. A repeated write answers `already`,
                whatever its rows are.
            author: who makes the commit, such as a name or a job: at most 255 bytes. `commits` shows it,
                for as long as the log has the commit. Not in a lake that earlier versions write too.
            message: why: at most 4,096 bytes; likewise.

        Returns:
            The times written, and the new upper. One `put` for each part and one log write. A batch costs
            only the log write and is then used up; if another writer was first (`already`), its parts are
            deleted.

        Raises:
            InvalidUpdates: the table does not fit; names the column and the row.
            UpdateBeforeLower: a time is already closed.
            UpperMismatch: the collection's upper has not reached `lower`, or the lower of the batch.
            BatchConsumed: the batch was used before.
            UsageError: a time must be given; see `time`.
        """
        from tidelake.lake.api.writer import appending
        from tidelake.lake.arguments.tokens import commit_once

        rows = appending(self._shard, updates, lower=lower, upper=upper, time=time)
        return commit_once(self._shard, rows, token, author, message)

    def compare_and_append(
        self,
        updates: object,
        lower: FrontierLike,
        upper: FrontierLike,
        *,
        author: str = "",
        message: str = "",
    ) -> "Appended":
        """Append all updates of `[lower, upper)` iff the collection's upper equals `lower`.

        `author` and `message` as for `append`.

        Raises:
            UpperMismatch: it does not; carries the current one. Nothing was written.
        """
        from tidelake.lake.api.writer import exactly
        from tidelake.lake.arguments.tokens import commit_once

        return commit_once(self._shard, exactly(self._shard, updates, lower, upper), None, author, message)

    def stage(self, updates: object, *, token: str | None = None) -> bool:
        """Store updates durably at times that are still open; they appear when these times are closed.

        Times may be any at or after the upper, in any order, from any number of writers: stages do not
        conflict. Readers see the updates as soon as their times are closed, by `seal` or by any append;
        `staged=True` shows them before. To take updates back, stage the same rows with the opposite `_diff`.

        Args:
            updates: as for `append`, with times.
            token: a text that identifies this call, such as `"orders 2026-01-31"`. A call whose token is
                committed already succeeds without writing, so that a job that is run again stages once. A
                record of it (about 100 bytes) stays in the collection's state for the lake's `token_age_s`
                (30 days); after that, the same token is a new call.

        Returns:
            False if nothing had to be stored: the token is committed, or there are no rows. One log scan, one
            `put` for each part that is not tiny, and one log write; a token costs another log scan and write.

        Raises:
            InvalidUpdates: the table does not fit; names the column and the row.
            UpdateBeforeLower: a time is closed; names the first one. Nothing is stored.
            UpperMismatch: all times are closed for good.
            WriterFenced: another process that began later is writing under the same token.
        """
        from tidelake.lake.arguments.tokens import under_token
        from tidelake.shard.writing.stage import stage

        return under_token(self._shard, token, partial(stage, self._shard, updates), lambda _: False)

    def seal(self, upper: FrontierLike) -> "Appended":
        """Close all times before `upper`. If they are closed already, nothing changes.

        From then on every reader sees the updates that are staged for these times. Times without updates cost
        nothing.

        Returns:
            The times closed by this call, and the new upper (`already`: they were closed before). One log
            write, however much is staged. Staged batches that also hold later times are split afterwards, by
            maintenance, and to a small part here: see the setting `merge_budget_s`.
        """
        from tidelake.shard.writing.stage import seal

        return seal(self._shard, self._frontier(upper, "upper")).of_unit(self.domain.unit)

    def builder(self, lower: FrontierLike | None = None, *, sorted: bool = False) -> "BatchBuilder":  # noqa: A002
        """A builder that takes more updates than fit into memory, and makes a batch to append.

        Args:
            lower: all times must be at or after it; default: the current upper.
            sorted: the updates come sorted by key, value and time; see `BatchBuilder`.
        """
        from tidelake.shard.writing.builder import BatchBuilder

        shard = self._shard
        # Read the state also if `lower` is given: names of uploads contain its seqno, and old ones expire.
        version = shard.version()
        start = version.upper if lower is None else self._frontier(lower, "lower")
        return BatchBuilder(version.spec, shard.stores.blobs, shard.env, start, sorted=sorted)

    def upsert(
        self,
        table: object,
        *,
        time: TimeLike | None = None,
        order_by: str | None = None,
        delete_column: str | None = None,
        state: "FollowedArrangement | None" = None,
        token: str | None = None,
        author: str = "",
        message: str = "",
    ) -> "Appended":
        """Replace the rows of the table's keys with the table's rows; rows of other keys stay.

        All old rows of a key are removed, whatever their multiplicity, and the new row is added once. An
        event that changes nothing writes nothing. If another process commits meanwhile, old rows are looked
        up again; there is no limit to that, since each time another append has succeeded.

        Args:
            table: in any Arrow form, with the key and value columns. With `_time` each row is an event at its
                time: events of one key apply in the order of times, and at one time the last one wins.
            time: time of all events; default: chosen at the commit, as for `append`.
            order_by: a column of the collection, or only of the table. Of the events of one key and time, the
                one with the greatest value wins; among equals the later row. If it is a column of the
                collection, an event older than the stored row is late and changes nothing.
            delete_column: a bool column that is true where the key is removed; default: no row removes its
                key, also if its values are all null. If all rows are removals, value columns may be missing.
            state: an arrangement of the collection, with all rows and columns: old rows are looked up in it,
                and no stored part is opened. It catches up first.
            token: as for `append`.
            author: as for `append`.
            message: as for `append`.

        Returns:
            The times written, and the new upper. One log scan, for each part that may hold one of the keys an
            `open` and some reads, one `put` for each new part and one log write; no log write if nothing
            changes and no time was given.

        Raises:
            InvalidUpdates: the table does not fit; names the column and the row.
            UpdateBeforeLower: a time is already closed.
            UsageError: times are tuples, or there is no such column.
        """
        from tidelake.data.ingest.events import EventColumns
        from tidelake.shard.writing.derived import RowChanges

        at, old_rows = self._times.given(time), None if state is None else self._old_rows(state)
        columns = EventColumns(order_by, delete_column)
        return self._changed(RowChanges(table, columns, at, old_rows), token, author, message)

    def replace(
        self,
        table: object,
        *,
        time: TimeLike | None = None,
        token: str | None = None,
        author: str = "",
        message: str = "",
    ) -> "Appended":
        """Replace the contents with the rows of a table (a full dump); only differences are stored.

        Whole rows and their multiplicities are compared, so that it is right for any collection. If another
        process commits meanwhile, the contents are compared again, as by `upsert`, and its rows are replaced
        too.

        Args:
            table: in any Arrow form, with the key and value columns; without `_diff` each row counts once.
            time: time of the change; default: chosen at the commit.
            token: as for `append`.
            author: as for `append`.
            message: as for `append`.

        Returns:
            The times written, and the new upper. Reads all contents; then one `put` for each new part and one
            log write; no log write if nothing changes and no time was given.

        Raises:
            InvalidUpdates, UpdateBeforeLower, UsageError: as for `upsert`.
        """
        from tidelake.shard.writing.derived import RowChanges

        return self._changed(RowChanges(table, None, self._times.given(time)), token, author, message)

    def delete(
        self,
        keys: object = None,
        *,
        where: str | None = None,
        time: TimeLike | None = None,
        token: str | None = None,
        author: str = "",
        message: str = "",
    ) -> "Appended":
        """Remove rows, by their keys or by a condition.

        All rows of a key go, whatever their multiplicity. If another process commits meanwhile, the rows are
        looked up again, as by `upsert`.

        Args:
            keys: as for `lookup`; a table with `_time` says for each key when it goes.
            where: a condition, as for `snapshot`: the rows that it is true for go. `"TRUE"` deletes all rows.
            time: time of the change; default: chosen at the commit.
            token: as for `append`.
            author: as for `append`.
            message: as for `append`.

        Returns:
            The times written, the new upper, how many rows went (`removed`), and how many of the keys had
            none (`absent`). Keys are looked up as by `upsert`; a condition reads what a snapshot with it
            reads. Then one `put` for each new part and one log write; no log write if nothing changes and no
            time was given.

        Raises:
            UsageError: neither `keys` nor `where` is given, or both; the condition cannot be read; or times
                are tuples.
            InvalidUpdates: a key does not fit, or the table has other columns.
            UpdateBeforeLower: the time is already closed.
        """
        from tidelake.lake.arguments.keys import deletion

        change = deletion(keys, where, self._times.given(time), lambda: self._shard.alive().schema)
        return self._changed(change, token, author, message)

    def restore(
        self,
        as_of: TimeLike,
        *,
        time: TimeLike | None = None,
        token: str | None = None,
        author: str = "",
        message: str = "",
    ) -> "Appended":
        """Change the contents back to those of an earlier time; only differences are stored.

        Nothing of history is lost: what was there until now can be read at its times. Whole rows and their
        multiplicities are restored, in the columns of the newest schema. If another process commits
        meanwhile, the differences are computed again, as by `upsert`, and its rows are taken back too.

        Args:
            as_of: the closed time, as for `snapshot`.
            time: time of the change; default: chosen at the commit.
            token: as for `append`.
            author: as for `append`.
            message: as for `append`.

        Returns:
            The times written, and the new upper. Reads the updates since `as_of`; then one `put` for each new
            part and one log write; no log write if nothing changes and no time was given.

        Raises:
            HistoryCompacted: `as_of` is before `since`.
            NotYetClosed: `as_of` is still open.
            UpdateBeforeLower: `time` is already closed.
            UsageError: times are tuples.
        """
        from tidelake.shard.writing.derived import Restoration

        then = self._times.read(as_of, "as_of")
        return self._changed(Restoration(then, self._times.given(time)), token, author, message)

    def writer(
        self, name: str, *, owner: str = "", take_over: bool = False, resume: bool = False
    ) -> "Writer":
        """Open a named writer: its appends are numbered, and each is committed at most once.

        Opening fences every earlier handle of the same name. One log write.

        Args:
            name: name of the writer.
            owner: the owner of the numbers; a name that has another owner is refused.
            take_over: take the name from another owner.
            resume: if the name has this owner already, continue beside its other handles and fence none: for
                owners whose processes write the same rows under the same numbers, in order. No log write
                then.
        """
        from tidelake.lake.api.writer import Writer

        return Writer(self._shard, name, owner, take_over, resume)

    def _changed(self, wanted: "ContentChange", token: str | None, author: str, message: str) -> "Appended":
        from tidelake.lake.arguments.tokens import commit_once
        from tidelake.shard.writing.derived import commit_change

        return commit_once(self._shard, partial(commit_change, self._shard, wanted), token, author, message)

    def _old_rows(self, state: "FollowedArrangement") -> "OldRows":
        # Imported here, as in `arrange`: few users need it, and the import takes time.
        from tidelake.arrangement.follow.oldrows import old_rows_in

        return old_rows_in(state, self._shard.spec, self.name)
