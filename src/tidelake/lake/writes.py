"""Writes of a collection: appends, batches that are made elsewhere, upserts, full dumps and named writers.

Owns the arguments; how a commit is made is `tidelake.shard.writing`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelake.data.events import EventColumns
from tidelake.errors import UsageError
from tidelake.lake.frontiers import FrontierLike
from tidelake.lake.handle import Handle
from tidelake.lake.tokens import writer_of, written
from tidelake.lake.writer import Writer
from tidelake.model.time import Time
from tidelake.shard.writing import append, batches, stage, upsert
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.shard.writing.replacement import Replacement, plan_replacement
from tidelake.shard.writing.uploader import Uploader
from tidelake.shard.writing.upserter import OldRows, Upserter
from tidelake.state.append import Appended
from tidelake.state.staging import Seen
from tidelake.state.state import WriterRecord

if TYPE_CHECKING:
    from tidelake.arrangement.follow import FollowedArrangement


class Writes(Handle):
    """A handle that writes."""

    def append(
        self, updates: object, *, lower: FrontierLike | None = None, upper: FrontierLike | None = None
    ) -> Appended:
        """Append updates: `+1` adds a row, `-1` takes it away.

        Args:
            updates: any Arrow table or stream (also pandas, polars, DuckDB) with the key and value
                columns. Without `_time` all rows get one time, picked at the commit; without `_diff`
                all are `+1`. Or a `Batch`, for writers that all write the same data, however each of them
                cut it: what is still open of it is written, and if nothing is, that is success.
            lower: with `upper`, for writers that all write the same data: only the times that are
                still open are written, and if none is, that is success.
            upper: close all times before it; default: just past the last time.

        Returns:
            The times written, and the upper after it. One `put` a part and one log write. A batch costs the
            log write; it is used then, and where another writer was first (`already`) its parts are deleted.

        Raises:
            InvalidUpdates: the table does not fit; names the column and the row.
            UpdateNotBeyondLower: a time is already closed.
            UpperMismatch: with `lower`, or of a batch: the collection's upper has not reached it.
            BatchConsumed: the batch was used before.
        """
        if isinstance(updates, Batch):
            if lower is not None or upper is not None:
                raise UsageError("a batch has its own bounds: append it without, or by append_batches")
            return batches.append_batch(self._shard, updates)
        if lower is None:
            end = None if upper is None else self.frontier(upper, "upper")
            return append.append_rows(self._shard, updates, end)
        if upper is None:
            raise UsageError(f"lower={lower} needs an upper: give upper=...")
        return append.append_up_to(
            self._shard, updates, self.frontier(lower, "lower"), self.frontier(upper, "upper")
        )

    def compare_and_append(self, updates: object, lower: FrontierLike, upper: FrontierLike) -> Appended:
        """Append all updates of `[lower, upper)` iff the collection's upper equals `lower`.

        Raises:
            UpperMismatch: it does not; carries the current one. Nothing was written.
        """
        return append.compare_and_append(
            self._shard, updates, self.frontier(lower, "lower"), self.frontier(upper, "upper")
        )

    def stage(self, updates: object, *, token: str | None = None) -> bool:
        """Keep updates at times that are still open, for when they are closed: durable at once.

        Any times at or after the upper, in any order, from any number of writers: these do not conflict.
        Readers see them as soon as their times are closed, by `seal` or by any append; `staged=True` shows
        them before. They can be taken back by staging the same rows with the opposite `_diff`.

        Args:
            updates: as `append` takes them, with times.
            token: a text of the caller's for this very call, such as `"orders 2026-01-31"`. A call whose
                token is in succeeds without doing anything, so that a job that is run again stages once. A
                record of it (about 100 bytes) stays in the collection's state for the lake's `token_age_s`
                (30 days); the same token is a new call after that.

        Returns:
            False if nothing had to be kept: the token is in, or there are no rows. One log scan, one `put` a
            part that is not tiny, and one log write; with a token, one log scan and one log write more.

        Raises:
            InvalidUpdates: the table does not fit; names the column and the row.
            UpdateNotBeyondLower: a time is closed; names the first. Nothing is kept.
            UpperMismatch: all times are closed for good.
            WriterFenced: another process is writing under the same token, and began later.
        """
        if token is None:
            return stage.stage(self._shard, updates)
        if written(self._shard, token) is not None:
            return False
        return self.writer(writer_of(token)).stage(updates, sequence=0)

    def token_record(self, token: str) -> WriterRecord | None:
        """What is known of a write under a token that is in; None if it is not.

        One log scan; of a collection in a group two.
        """
        return written(self._shard, token)

    def seal(self, upper: FrontierLike) -> Appended:
        """Close all times before `upper`; those that are closed already stay so.

        What is staged for them is in the collection from then on, for every reader. Times without updates
        cost nothing.

        Returns:
            The times that were closed, and the upper after it (`already`: they were). One log write, whatever
            is staged. Batches that hold later times as well are read and written in two afterwards, by
            maintenance, and a little here: see the setting `merge_budget_s`.
        """
        return stage.seal(self._shard, self.frontier(upper, "upper"))

    def stage_uploaded(self, uploads: Sequence[bytes]) -> bool:
        """Stage what workers uploaded with `uploader()`, in one commit; see `stage`.

        Raises:
            AlreadyTaken: one of them is in.
            UploadExpired: one was uploaded longer ago than `upload_age_s`.
        """
        return stage.stage_uploaded(self._shard, uploads)

    def builder(self, lower: FrontierLike | None = None, *, sorted: bool = False) -> BatchBuilder:  # noqa: A002
        """Something that takes more updates than fit into memory, and gives a batch to append.

        Args:
            lower: all times must be at or after it; default: the current upper.
            sorted: the updates come sorted by key, value and time; see `BatchBuilder`.
        """
        shard = self._shard
        # Also with a lower: the names of uploads say which state was known, and old ones are given up.
        upper = shard.readable().upper
        start = upper if lower is None else self.frontier(lower, "lower")
        return BatchBuilder(shard.spec, shard.stores.blobs, shard.env, start, sorted=sorted)

    def append_batches(
        self, offered: Sequence[Batch], *, lower: FrontierLike, upper: FrontierLike
    ) -> Appended:
        """Append batches in one commit iff the collection's upper equals `lower`.

        Each may cover more than `[lower, upper)`; only what lies inside is then ever read. They are used
        afterwards, and stay the caller's if the append is refused. One log write.

        Raises:
            InvalidBatchBounds: a batch covers less, or its rewritten times forbid to narrow it.
            BatchConsumed: a batch was used before.
            UpperMismatch: the upper is another one; carries it. Nothing was written.
        """
        start, end = self.frontier(lower, "lower"), self.frontier(upper, "upper")
        return batches.append_batches(self._shard, offered, start, end)

    def batch_from_bytes(self, data: bytes) -> Batch:
        """The batch that `Batch.to_bytes` sent here from another process, of this collection."""
        return Batch.from_bytes(self._shard, data)

    def append_uploaded(
        self,
        uploads: Sequence[bytes],
        *,
        lower: FrontierLike,
        upper: FrontierLike,
        advance: bool = False,
        read_at: int | None = None,
    ) -> Appended:
        """Append what workers uploaded with `uploader()`, in one commit.

        Args:
            uploads: what they answered.
            lower: the upper as it must be.
            upper: as it is to be.
            advance: times before `lower` become `lower`, without another upload.
            read_at: of uploads that depend on contents (`upserter`, `replacements`), the seqno of a state
                that was the newest before these were asked for. `UpperMismatch` then also if more was staged
                for their times since; `UsageError` if something is staged between them.

        Raises:
            AlreadyTaken: an upload is in, by this append or another; says where. Uploads are taken once.
            UploadExpired: one was uploaded longer ago than `upload_age_s`.
            UpperMismatch: the upper is another one.
        """
        start, end = self.frontier(lower, "lower"), self.frontier(upper, "upper")
        seen = None if read_at is None else Seen(read_at)
        return batches.append_uploaded(self._shard, uploads, start, end, advance=advance, seen=seen)

    def uploader(self, lower: FrontierLike | None = None, upper: FrontierLike | None = None) -> Uploader:
        """Something that uploads updates from other processes; times are checked against the interval.

        One log scan. What is uploaded by it more than `upload_age_s` from now may be refused.
        """
        self._shard.alive()
        return Uploader(
            self._shard.spec,
            None if lower is None else self.frontier(lower, "lower"),
            None if upper is None else self.frontier(upper, "upper"),
        )

    def upsert(
        self,
        table: object,
        *,
        time: Time | None = None,
        order_by: str | None = None,
        delete_column: str | None = None,
        state: "FollowedArrangement | None" = None,
    ) -> Appended:
        """Let the rows of a table be those of their keys; rows of other keys stay.

        All rows that are there of a key are taken away, whatever their multiplicity, and the new one is
        added once. An event that changes nothing writes nothing. If another process commits meanwhile, old
        rows are looked up again, for as long as it takes: each time another append is in.

        Args:
            table: in any Arrow form, with the key and value columns. With `_time` each row is an event at its
                time: those of one key follow each other, and of several at one time the last one wins.
            time: of all events; default: one that is picked at the commit, as for `append`.
            order_by: a column, of the collection or of the table only, by which the event with the greatest
                value wins among those of one key and time, and the later row among equals. If it is one of
                the collection's, an event older than the stored row is late and changes nothing.
            delete_column: a bool column, true where the key is removed; default: a row whose value columns
                (but `order_by`) are all null removes.
            state: an arrangement of the collection, with all rows and columns: old rows are looked up in it,
                and no stored part is opened. It takes in first what it has not seen yet.

        Returns:
            The times written, and the upper after it. One log scan, for each part that may hold one of the
            keys an `open` and some reads, one `put` a part and one log write; no log write if nothing
            changes and no time was given.

        Raises:
            InvalidUpdates: the table does not fit; names the column and the row.
            UpdateNotBeyondLower: a time is already closed.
            UsageError: times are tuples, or there is no such column.
        """
        at = None if time is None else self.domain.check(time, "time")
        old_rows = None if state is None else self._old_rows(state)
        columns = EventColumns(order_by, delete_column)
        return upsert.upsert(self._shard, table, columns, at, old_rows=old_rows)

    def replace(self, table: object, *, time: Time | None = None) -> Appended:
        """Let the contents be exactly the rows of a table: a full dump, of which only differences are stored.

        Whole rows are compared, with their multiplicity, so that it is right for any collection. Others that
        commit meanwhile are treated as by `upsert`, and what they wrote is replaced too.

        Args:
            table: in any Arrow form, with the key and value columns; without `_diff` each row counts once.
            time: of the change; default: one that is picked at the commit.

        Returns:
            The times written, and the upper after it. Reads all that is there; then one `put` a part and one
            log write; no log write if nothing changes and no time was given.

        Raises:
            InvalidUpdates, UpdateNotBeyondLower, UsageError: as `upsert`.
        """
        at = None if time is None else self.domain.check(time, "time")
        return upsert.replace(self._shard, table, at)

    def upserter(
        self,
        *,
        time: Time | None = None,
        order_by: str | None = None,
        delete_column: str | None = None,
        rows_count: bool = True,
        advance: bool = False,
    ) -> Upserter:
        """Something that turns events into uploads in other processes, for the upper that is now.

        `append_uploaded` takes them at that upper (`Upserter.lower`) only. One log scan. Nothing keeps what
        it reads for longer than `garbage_age_s`. Arguments as `upsert`, but `time` must be given unless
        events have their own.

        Args:
            time: of all events.
            order_by: what tells which event wins.
            delete_column: what removes.
            rows_count: whether of equally good events the later row wins; else they must be equal.
            advance: whether events whose times are closed happen at the upper, in their order.
        """
        at = None if time is None else self.domain.check(time, "time")
        columns = EventColumns(order_by, delete_column)
        state = self._shard.settle()
        spec = self._shard.spec
        return Upserter.at(state, spec, columns, at, rows_count=rows_count, advance=advance)

    def replacements(self, uploads: Sequence[bytes], *, time: Time, parallelism: int) -> list[Replacement]:
        """Cut the replacement of the contents by what workers uploaded into tasks for other processes.

        `append_uploaded` takes what they answer at the upper that is now (`Replacement.lower`) only. The
        uploads themselves are not appended: see `discard_uploaded`.

        Args:
            uploads: the new rows, at times up to `time`, by `uploader()`.
            time: of the change.
            parallelism: tasks, at most.

        One log scan, and a read or two of each part. Errors as `replace`.
        """
        state, at = self._shard.settle(), self.domain.check(time, "time")
        blobs = self._shard.stores.blobs
        return plan_replacement(state, self._shard.spec, blobs, uploads, at=at, parallelism=parallelism)

    def discard_uploaded(self, uploads: Sequence[bytes]) -> None:
        """Delete uploads of workers that will not be appended; otherwise collection does it a day later.

        SUBTLE: uploads that were offered to `append_uploaded` may be in; only those that never were may go.
        One store call a part. What the store does not delete now is left to collection.
        """
        batches.discard_uploaded(self._shard, uploads)

    def writer(self, name: str, *, owner: str = "", take_over: bool = False, resume: bool = False) -> Writer:
        """Open a named writer: its appends are numbered, and each is in once or not at all.

        Opening fences every earlier handle of the same name. One log write.

        Args:
            name: of the writer.
            owner: whose numbers these are; another owner's name is refused.
            take_over: take another owner's name.
            resume: if the name is the owner's already, go on beside its other handles, and fence none: for
                owners whose processes have the same rows under the same number, in order. No log write then.
        """
        return Writer(self._shard, name, owner, take_over, resume)

    def _old_rows(self, state: "FollowedArrangement") -> OldRows:
        # As in `arrange`: few need it.
        from tidelake.arrangement.oldrows import old_rows_in

        return old_rows_in(state, lambda: self._shard.spec, self.name)
