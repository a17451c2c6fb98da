"""Work of one collection that several processes or threads do together.

Owns the arguments; `tidelake.shard` uploads and reads. A process that works alone needs none of it. The Spark
jobs in `tidelake.spark` are built on it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelake.data.answer.rows import Rows
from tidelake.data.ingest.events import EventColumns
from tidelake.env import Env
from tidelake.errors import UsageError
from tidelake.lake.api.handle import times_of
from tidelake.lake.api.intervals import R, ReadAt, SplitReads
from tidelake.lake.api.reading import Reading
from tidelake.lake.arguments.names import check_name
from tidelake.lake.arguments.spans import DurationLike, duration_s
from tidelake.lake.arguments.times import FrontierLike, ReadTimes
from tidelake.lake.arguments.tokens import written
from tidelake.model import time as times
from tidelake.model.instants import TimeLike
from tidelake.model.query import Query
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import Version
from tidelake.shard.reading import planholds, query
from tidelake.shard.runs.plan import ReadPlan, TaskOptions
from tidelake.shard.writing import batches, stage
from tidelake.shard.writing.append import commit_floor
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.builder import Uploader
from tidelake.shard.writing.replacement import Replacement, plan_replacement
from tidelake.shard.writing.uploads import discard_uploaded
from tidelake.shard.writing.upserter import Upserter
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import Appended

_ALL = ReadOptions()


@dataclass(frozen=True, eq=False)
class Distributed(SplitReads):
    """Work of one collection that several processes or threads do together; `Collection.distributed`.

    One process, the driver, has the collection open. The others, the workers, need no handle of it.

    To write, the driver sends an `uploader`, an `upserter` or `replacements` to the workers. Each worker
    uploads rows and answers with bytes, and the driver commits all answers at once with `append_uploaded` or
    `stage_uploaded`. A worker that has the collection open can send a `Batch` as bytes instead.

    To read, the driver makes a `plan`, whose tasks the workers run; `hold` keeps the parts that they read.
    `split_snapshot`, `split_changes` and `split_updates` split a read among the threads of one process.

    Everything that is sent to a worker can be pickled. This object has no state of its own: it can be asked
    for again at any time, and raises `Closed` when the lake is closed.
    """

    _reads: Reading

    @property
    def _shard(self) -> Shard:
        return self._reads._shard

    @property
    def domain(self) -> TimeDomain:
        """The unit of the collection's times."""
        return self._reads.domain

    @property
    def _times(self) -> ReadTimes:
        return times_of(self._reads)

    @property
    def env(self) -> Env:
        """Clock, ids and counters that its lake was opened with."""
        return self._shard.env

    @property
    def lake_url(self) -> str:
        """Where its lake is, for other processes."""
        return self._shard.spec.url

    @property
    def objects_url(self) -> str | None:
        """Where other programs find the objects of its lake; see `BlobStore.url`."""
        return self._shard.stores.blobs.url

    def newest_state(self) -> ShardState:
        """The newest state, after applying what its group has decided for it.

        Its seqno can be given as `read_at`. One log scan; for a collection in a group two, and a log write if
        there was a decision to apply.
        """
        return self._shard.apply_decided().state

    def commit_time(self) -> Time:
        """The time that rows without one get if they are committed now. One log scan.

        Raises:
            UsageError: times are tuples; or the last time was given, and is much older than the clock.
            UpperMismatch: all times are closed for good.
        """
        return commit_floor(self._shard, self._shard.version().state)

    def uploader(self, lower: FrontierLike | None = None, upper: FrontierLike | None = None) -> Uploader:
        """A picklable object that uploads updates in other processes; their times must be in the interval.

        One log scan. Uploads made with it later than `upload_age_s` from now may be refused.
        """
        return Uploader(
            self._shard.version_of(self._shard.alive()).spec,
            None if lower is None else self._reads._frontier(lower, "lower"),
            None if upper is None else self._reads._frontier(upper, "upper"),
        )

    def append_uploaded(
        self,
        uploads: Sequence[bytes],
        *,
        lower: FrontierLike,
        upper: FrontierLike,
        advance: bool = False,
        read_at: int | None = None,
        read_time: TimeLike | None = None,
    ) -> Appended:
        """Append uploads that workers made with `uploader()`, in one commit.

        Args:
            uploads: what the workers returned.
            lower: the append succeeds only if the upper equals this.
            upper: the new upper.
            advance: times before `lower` become `lower`, without another upload.
            read_at: for uploads that depend on contents (`upserter`, `replacements`): the seqno of a state
                that was the newest before these were called. Then `UpperMismatch` is also raised if more was
                staged for their times since, and `UsageError` if something is staged between them.
            read_time: with `read_at`: the time of the contents; default: the first open time.

        Raises:
            AlreadyTaken: an upload is committed already; says where. Each upload can be committed once.
            UploadExpired: an upload is older than `upload_age_s`, or than an erasure.
            UpperMismatch: the upper does not equal `lower`.
        """
        time = None if read_time is None else times.parts(self._times.at(read_time, "read_time"))[0]
        seen = None if read_at is None else Seen(read_at, time)
        within = self._times.interval(lower, upper)
        return batches.append_uploaded(self._shard, uploads, *within, advance=advance, seen=seen)

    def stage_uploaded(self, uploads: Sequence[bytes]) -> bool:
        """Stage uploads that workers made with `uploader()`, in one commit; see `Collection.stage`.

        Raises:
            AlreadyTaken: an upload is committed already.
            UploadExpired: an upload is older than `upload_age_s`, or than an erasure.
        """
        return stage.stage_uploaded(self._shard, uploads)

    def discard_uploaded(self, uploads: Sequence[bytes]) -> None:
        """Delete uploads of workers that will not be appended; else `collect` does it after `upload_age_s`.

        SUBTLE: give only uploads that were never passed to `append_uploaded`: others may be committed.
        One store call for each part. What the store does not delete now is left to `collect`.
        """
        discard_uploaded(self._shard, uploads)

    def upserter(
        self,
        *,
        time: TimeLike | None = None,
        order_by: str | None = None,
        delete_column: str | None = None,
        left_out: str | None = None,
        rows_count: bool = True,
        advance: bool = False,
    ) -> Upserter:
        """A picklable object that turns events into uploads in other processes, for the current upper.

        `append_uploaded` accepts the uploads only at that upper (`Upserter.lower`). One log scan. The parts
        that it reads are not held: use it within `garbage_age_s`. Arguments as for `Collection.upsert`,
        but `time` must be given unless events have their own.

        Args:
            time: time of all events.
            order_by: as for `Collection.upsert`.
            delete_column: as for `Collection.upsert`.
            left_out: a column with a JSON list of the value columns that an event leaves out, or null: these
                values are those of the key's row before the event.
            rows_count: if events tie, the later row wins; False: tied events must be equal.
            advance: move events whose times are closed to the upper, in their order.
        """
        at = self._times.given(time)
        columns = EventColumns(order_by, delete_column, left_out)
        return Upserter.at(self._shard.apply_decided(), columns, at, rows_count=rows_count, advance=advance)

    def replacements(
        self, uploads: Sequence[bytes], *, time: TimeLike, parallelism: int
    ) -> list[Replacement]:
        """Split a `Collection.replace` with uploaded rows into tasks for other processes.

        `append_uploaded` accepts what the tasks return only at the current upper (`Replacement.lower`). The
        uploads given here are not appended themselves: see `discard_uploaded`.

        Args:
            uploads: the new rows, at times up to `time`, made with `uploader()`.
            time: time of the change.
            parallelism: the largest number of tasks.

        One log scan, and a read or two of each part. Errors as for `Collection.replace`.
        """
        version, at = self._shard.apply_decided(), self._times.at(time, "time")
        blobs = self._shard.stores.blobs
        return plan_replacement(version, blobs, uploads, at=at, parallelism=parallelism)

    def batch_from_bytes(self, data: bytes) -> Batch:
        """Decode a batch of this collection that another process encoded with `Batch.to_bytes`."""
        return Batch.from_bytes(self._shard, data)

    def append_batches(
        self, offered: Sequence[Batch], *, lower: FrontierLike, upper: FrontierLike
    ) -> Appended:
        """Append batches in one commit iff the collection's upper equals `lower`.

        A batch may cover more than `[lower, upper)`; only its updates inside are visible. The batches are
        used up, unless the append is refused. One log write.

        Raises:
            InvalidBatchBounds: a batch covers less than `[lower, upper)`, or its times were rewritten, so
                that it cannot be narrowed.
            BatchConsumed: a batch was used before.
            UpperMismatch: the upper does not equal `lower`; carries the upper. Nothing was written.
        """
        return batches.append_batches(self._shard, offered, *self._times.interval(lower, upper))

    def token_record(self, token: str) -> WriterRecord | None:
        """The record of a committed write under a token; None if there is none.

        One log scan; two for a collection in a group.
        """
        return written(self._shard, token)

    def plan(
        self,
        asked: Query | None,
        parallelism: int,
        options: ReadOptions = _ALL,
        *,
        task_bytes_max: int | None = None,
        as_stored: bool = False,
    ) -> ReadPlan:
        """Split a read into tasks for other processes (`tidelake.shard.runs.plan.run_task`).

        Tasks that run later than `garbage_age_s` from now need a `hold`.

        Args:
            asked: the query; None: the contents at the last closed time.
            parallelism: the largest number of tasks.
            options: which rows and columns, and what to wait for; as the arguments of `Collection.snapshot`.
            task_bytes_max: make more tasks, so that none reads much more stored bytes than this.
            as_stored: the caller reads Parquet files by itself where nothing is to be merged: see
                `ReadPlan.as_stored`.
        """
        tasks = TaskOptions(parallelism, task_bytes_max, as_stored)

        def plan(of: Query, options: ReadOptions, seen: Version | None = None) -> ReadPlan:
            return query.read(self._shard, of, options, seen).plan(tasks)

        return self._at(None, options, plan) if asked is None else plan(asked, options)

    def hold(
        self, plans: Iterable[ReadPlan], hold_for: DurationLike, purpose: str, *, owner: str | None = None
    ) -> str | None:
        """Keep the parts that plans read for some time, or until `release`.

        Args:
            plans: plans of reads of this collection.
            hold_for: how long; a timedelta, or seconds.
            purpose: shown to people who list the holds.
            owner: a word that names the holder. Calls of one owner for the same parts and the same `hold_for`
                share one hold, whose name begins with the owner; repeating the call a minute later extends
                it.

        Returns:
            The name of the hold; None if the plans read nothing that could be deleted. At most one log write.

        Raises:
            LeaseExpired: a part is given up already: plan again.
        """
        check_name(purpose, "purpose of a hold")
        hold_for_s = duration_s(hold_for, "hold_for")
        given: object = plans
        planned = tuple(given) if isinstance(given, Iterable) else (None,)
        if not all(isinstance(plan, ReadPlan) for plan in planned):
            raise UsageError(
                f"plans is a {type(given).__name__}: give a list of what collection.distributed.plan returned"
            )
        if owner is not None:
            check_name(owner, "owner of a hold")
        return planholds.open_plan_hold(self._shard, planned, purpose, hold_for_s, owner)

    def release_owned(self, owner: str) -> int:
        """Release all holds of exactly this `owner`; returns how many. One log write for each."""
        return planholds.release_owned(self._shard, owner)

    def release(self, hold: str) -> None:
        """Release a hold. May be repeated; at most one log write."""
        planholds.release_plan_hold(self._shard, hold)

    def _at(self, as_of: TimeLike | None, options: ReadOptions, read: ReadAt[R]) -> R:
        return self._reads._at(as_of, options, read)

    def _split(self, n: int, asked: Query, options: ReadOptions, seen: Version | None = None) -> list[Rows]:
        return query.read(self._shard, asked, options, seen).split(n)
