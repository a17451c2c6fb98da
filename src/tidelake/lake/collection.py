"""A named collection, as users meet it: times as ints or tuples, tables in any Arrow form.

Frontiers may be given as a time (the frontier of that one time), a list of times, or a `Frontier`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pyarrow as pa

from tidelake.data.events import EventColumns
from tidelake.data.ingest import as_table
from tidelake.data.types import row_schema, schema_from_arrow, update_schema
from tidelake.errors import HistoryCompacted, NotYetClosed, UsageError
from tidelake.lake.frontiers import FrontierLike, frontier
from tidelake.lake.names import check_columns, check_name, check_token
from tidelake.lake.readers import CollectionCriticalHold, CollectionReader, duration_s, patience, window
from tidelake.lake.wanted import wanted
from tidelake.lake.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Query, Updates
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.lease import hold_states, release_owned
from tidelake.shard.reading import query
from tidelake.shard.reading.critical import CriticalHold
from tidelake.shard.reading.lookup import lookup
from tidelake.shard.reading.reader import Reader, Step
from tidelake.shard.reading.tail import Tail
from tidelake.shard.runs.plan import ReadPlan
from tidelake.shard.shard import Shard
from tidelake.shard.upkeep.collector import Collector, CollectReport
from tidelake.shard.upkeep.compactor import MergeReport, Shape, Workers
from tidelake.shard.upkeep.maintain import Maintainer, MaintenanceReport, Watch
from tidelake.shard.writing import append, batches, upsert
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.shard.writing.replacement import Replacement, plan_replacement
from tidelake.shard.writing.uploader import Uploader
from tidelake.shard.writing.upserter import Upserter
from tidelake.state import holds
from tidelake.state.append import Appended
from tidelake.state.schemas import schema_id_at
from tidelake.state.state import Retention, ShardState

R = TypeVar("R")


class Collection:
    """A multiset of rows that changes over time.

    Attributes:
        name: in the lake; it is part of messages.
    """

    def __init__(self, name: str, shard: Shard) -> None:
        self.name = name
        self._shard = shard
        shard.title = name

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, {self._shard.spec.schema}, time={self.domain})"

    @property
    def id(self) -> str:
        """The id of its shard, which no other collection ever has."""
        return self._shard.spec.shard_id

    @property
    def lake_url(self) -> str:
        """Where its lake is, for other processes."""
        return self._shard.spec.url

    @property
    def domain(self) -> TimeDomain:
        """The unit of its times."""
        return self._shard.spec.domain

    @property
    def schema(self) -> pa.Schema:
        """Key columns, then value columns, of the newest schema that this handle has seen."""
        return row_schema(self._shard.spec.schema)

    @property
    def update_schema(self) -> pa.Schema:
        """The columns of an update: key, value, `_time` (or `_time_0`, ...) and `_diff`."""
        return update_schema(self._shard.spec.schema, self.domain)

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(column.name for column in self._shard.spec.schema.key)

    @property
    def since(self) -> Frontier:
        """Reads before it are refused. One log scan."""
        return self._shard.state().since

    @property
    def upper(self) -> Frontier:
        """Times beyond it are still open. One log scan."""
        return self._shard.state().upper

    def state(self) -> ShardState:
        """The newest state of the shard: frontiers, batches, writers, holds. One log scan."""
        return self._shard.state()

    def append(
        self, updates: object, *, lower: FrontierLike | None = None, upper: FrontierLike | None = None
    ) -> Appended:
        """Append updates: `+1` adds a row, `-1` takes it away.

        Args:
            updates: any Arrow table or stream (also pandas, polars, DuckDB) with the key and value
                columns. Without `_time` all rows get one time, picked at the commit; without `_diff`
                all are `+1`.
            lower: with `upper`, for writers that all write the same data: only the times that are
                still open are written, and if none is, that is success.
            upper: close all times before it; default: just past the last time.

        Returns:
            The times written, and the upper after it. One `put` a part and one log write.

        Raises:
            InvalidUpdates: the table does not fit; names the column and the row.
            UpdateNotBeyondLower: a time is already closed.
            UpperMismatch: with `lower`: the collection's upper has not reached it.
        """
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

    def builder(self, lower: FrontierLike | None = None, *, sorted: bool = False) -> BatchBuilder:  # noqa: A002
        """Something that takes more updates than fit into memory, and gives a batch to append.

        Args:
            lower: all times must be beyond it; default: the current upper.
            sorted: the updates come sorted by key, value and time; see `BatchBuilder`.
        """
        shard = self._shard
        # Also with a lower: the names of uploads say which state was known, and old ones are given up.
        upper = shard.alive().upper
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
        self, uploads: Sequence[bytes], *, lower: FrontierLike, upper: FrontierLike, advance: bool = False
    ) -> Appended:
        """Append what workers uploaded with `uploader()`, in one commit.

        With `advance`, times before `lower` become `lower`, without another upload.
        """
        start, end = self.frontier(lower, "lower"), self.frontier(upper, "upper")
        return batches.append_uploaded(self._shard, uploads, start, end, advance=advance)

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
    ) -> Appended:
        """Let the rows of a table be those of their keys; rows of other keys stay.

        All rows that are there of a key are taken away, whatever their multiplicity, and the new one is
        added once. An event that changes nothing writes nothing. If another process commits meanwhile, old
        rows are looked up again, for as long as it takes: each time somebody else's append is in.

        Args:
            table: in any Arrow form, with the key and value columns. With `_time` each row is an event at its
                time: those of one key follow each other, and of several at one time the last one wins.
            time: of all events; default: one that is picked at the commit, as for `append`.
            order_by: a column, of the collection or of the table only, by which the event with the greatest
                value wins among those of one key and time, and the later row among equals. If it is one of
                the collection's, an event older than the stored row is late and changes nothing.
            delete_column: a bool column, true where the key is removed; default: a row whose value columns
                (but `order_by`) are all null removes.

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
        return upsert.upsert(self._shard, table, EventColumns(order_by, delete_column), at)

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
        state = self._shard.alive()
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
        state, at = self._shard.alive(), self.domain.check(time, "time")
        blobs = self._shard.stores.blobs
        return plan_replacement(state, self._shard.spec, blobs, uploads, at=at, parallelism=parallelism)

    def discard_uploaded(self, uploads: Sequence[bytes]) -> None:
        """Delete what workers uploaded and nobody appends, in the place of collection a day later.

        SUBTLE: uploads that were offered to `append_uploaded` may be in; only those that never were may go.
        One store call a part. What the store does not delete now is left to collection.
        """
        batches.discard_uploaded(self._shard, uploads)

    def writer(self, name: str, *, owner: str = "", take_over: bool = False) -> Writer:
        """Open a named writer: its appends are numbered, and each is in once or not at all.

        Opening fences every earlier handle of the same name. One log write.
        """
        return Writer(self._shard, name, owner, take_over)

    def evolve(
        self, schema: pa.Schema, *, key: Sequence[str] | None = None, value: Sequence[str] | None = None
    ) -> int:
        """Change the columns. Stored rows are not touched; they are read as rows of the newest schema.

        Columns are compared by name with those of the newest schema. Nullable value columns may be added
        anywhere, value columns dropped; any column may become nullable, and integers, floats and decimals
        (of the same scale) wider. A name that comes back is another column: old values do not return.

        Args:
            schema: of all key and value columns, as they are to be.
            key: the key columns; default: those of the collection. They cannot be added, dropped or
                reordered.
            value: the value columns; default: all others.

        Returns:
            The id of the schema. One log write; none if nothing changes.

        Raises:
            IncompatibleSchema: names the column, what cannot be, and what to do instead. Also where it
                would drop a column that somebody else has added since this handle last looked.
        """
        check_columns(schema, self.key if key is None else key, value)
        return self._shard.evolve(schema_from_arrow(schema, self.key if key is None else key, value))

    def schema_at(self, seqno: int) -> pa.Schema:
        """Key columns, then value columns, as of the state with this seqno. One log scan.

        Raises:
            UsageError: there is no such state.
        """
        if isinstance(seqno, bool) or not isinstance(seqno, int):
            raise UsageError(f"seqno={seqno!r} must be a whole number, such as collection.state().seqno")
        state = self.state()
        return row_schema(state.schemas[schema_id_at(state, seqno)].schema)

    def snapshot(
        self,
        as_of: Time | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        schema_id: int | None = None,
    ) -> pa.RecordBatchReader:
        """The exact contents at `as_of` (default: the last closed time), with multiplicities in `_diff`.

        Rows come sorted by key, then value; nulls last. Waits for the time to be closed. What is read is
        kept for as long as the stream is read, or somebody has it; it writes nothing unless that is long.

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
            return query.stream(self._shard, asked, patience_s, schema_id=schema_id, wanted=asked_for)

        return self._at_last(ask) if as_of is None else ask(AsOf(self.domain.check(as_of, "as_of")))

    def lookup(
        self,
        keys: object,
        as_of: Time | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> pa.Table:
        """The rows of some keys at `as_of` (default: the last closed time), as `snapshot` gives them.

        Args:
            keys: a table in any Arrow form with the key columns; a key may come several times.
            as_of: the time.
            columns: as `snapshot`, and so are the other arguments and errors.
            where: which of the rows.
            timeout_s: how long to wait for the time to be closed.

        Returns:
            In memory: sorted by key, then value, with multiplicities in `_diff`. Keys without rows give
            none. One log scan, and for each part that may hold one of the keys an `open`, a read or two of
            its footer, and reads of the row groups that may hold one.

        Raises:
            InvalidUpdates: the table is none of keys; names the column and the row.
        """
        patience_s, asked_for, given = patience(timeout_s), wanted(columns, where), as_table(keys)

        def ask(asked: AsOf) -> pa.Table:
            return lookup(self._shard, given, asked, patience_s, wanted=asked_for)

        return self._at_last(ask) if as_of is None else ask(AsOf(self.domain.check(as_of, "as_of")))

    def changes(
        self,
        after: Time,
        through: Time,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> pa.RecordBatchReader:
        """The exact netted difference between the contents at `after` and at `through`.

        `+n` rows were added, `-n` taken away; a row that came and went does not appear. Times are
        forwarded to `through`. `columns`, `where` and errors as `snapshot`.
        """
        asked = Changes(self.domain.check(after, "after"), self.domain.check(through, "through"))
        return query.stream(self._shard, asked, patience(timeout_s), wanted=wanted(columns, where))

    def updates(
        self,
        lower: FrontierLike,
        upper: FrontierLike,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> pa.RecordBatchReader:
        """Every update of `[lower, upper)` at its own time. `columns`, `where` and errors as `snapshot`."""
        asked = Updates(self.frontier(lower, "lower"), self.frontier(upper, "upper"))
        return query.stream(self._shard, asked, patience(timeout_s), wanted=wanted(columns, where))

    def listen(self, as_of: Time, *, timeout_s: float | None = None) -> Iterator[Step]:
        """Follow the collection: every time after `as_of` once, in steps; see `Reader.listen`.

        Keeps a hold from the first step to the last. Stops after `timeout_s` without news (default: never).

        Raises:
            HistoryCompacted: updates after `as_of` can no longer be told apart. Nothing was written.
        """
        at, patience_s = self.domain.check(as_of, "as_of"), patience(timeout_s)
        since, start = self._shard.alive().since, Frontier.past(at)
        if since != Frontier.of(self.domain.minimum) and not since.keeps_times_from(start):
            raise HistoryCompacted(at, since)
        return self._listened(at, start.just_before(), patience_s)

    def _listened(self, at: Time, hold: Frontier, patience_s: float | None) -> Iterator[Step]:
        with Reader(self._shard, f"listen to {self.name}", hold.join(self.since)) as reader:
            yield from reader.listen(at, patience_s)

    def tail(
        self,
        hold: str | None = None,
        *,
        hold_for: timedelta | float = timedelta(days=1),
        poll_s: float = 0.5,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        schema_id: int | None = None,
    ) -> Tail:
        """Follow the collection in steps that can be repeated, across processes; for stream processors.

        No store call. See `tidelake.shard.reading.tail`.

        Args:
            hold: the id of its hold, to take a tail up again; default: a fresh one.
            hold_for: how long history is kept for it while no process follows; in seconds, if no timedelta.
            poll_s: least pause between two looks at the log.
            columns: as for `snapshot`.
            where: as for `snapshot`.
            schema_id: as for `snapshot`.

        Raises:
            UsageError: times are tuples, or an argument is none.
        """
        lasts_s = duration_s(hold_for, "hold_for")
        if lasts_s < 1:
            raise UsageError(f"hold_for={hold_for!r} must be at least a second")
        return Tail(
            self._shard,
            hold or self._shard.env.ids.fresh(),
            f"stream of {self.name}",
            hold_for_s=lasts_s,
            poll_s=duration_s(poll_s, "poll_s"),
            wanted=wanted(columns, where),
            schema_id=schema_id,
        )

    def reader(self, purpose: str, since: FrontierLike | None = None) -> CollectionReader:
        """Hold history from `since` on (default: the current one), and what is read, until it is closed.

        A process that dies leaves its hold behind for `lease_s`. One log write.
        """
        check_name(purpose, "purpose of a reader")
        start = None if since is None else self.frontier(since, "since")
        return CollectionReader(Reader(self._shard, purpose, start), self.domain, self.last_time)

    def critical_hold(
        self, name: str, token: str = "", since: FrontierLike | None = None
    ) -> CollectionCriticalHold:
        """The hold on `since` of this name: the one that is there, or a new one, which has the token.

        It lasts until it is dropped, whoever sleeps or dies. Its owner moves it with
        `compare_and_downgrade_since`, and so does the next owner to take it over.

        Args:
            name: of the hold.
            token: of its owner; any text of at most 255 bytes.
            since: where a new one starts; default: the current `since`.
        """
        check_name(name, "name of a critical hold")
        check_token(token, name)
        start = None if since is None else self.frontier(since, "since")
        return CollectionCriticalHold(CriticalHold(self._shard, name, token, start), self.domain)

    def retain(self, window_: int | timedelta | None) -> None:
        """Let `since` follow `upper` at a distance, or (None) no longer. Holds keep it back all the same.

        It follows with every commit, and where none comes with maintenance. One log write.

        Args:
            window_: how much history is wanted, in the unit of the times; for clocks also a timedelta.

        Raises:
            UsageError: there is no such window, such as one of tuples.
        """
        wanted = Retention(window(window_, self.domain))
        self._shard.run(partial(holds.set_retention, retention=wanted))

    def advance_since(self, since: FrontierLike) -> Frontier:
        """Let merges fold history before `since`; where it is now. One log scan and one log write.

        Readers' holds may keep it back; it follows when they move on or close.

        Raises:
            UsageError: no closed time would be left to read from; nothing changed.
        """
        wanted, state = self.frontier(since, "since"), self.state()
        # An element of `since` that is closed is a time that can be read; without one there is none.
        if not wanted <= state.since and all(state.upper.less_equal(t) for t in wanted):
            raise UsageError(
                f"since={wanted} is past the upper {state.upper} of collection {self.name!r} or at it: "
                f"nothing could be read; give at most {state.upper.just_before()}"
            )
        return self._shard.advance_since(wanted)

    def merge(self, workers: Workers | None = None) -> MergeReport:
        """Merge all batches into one sorted run, times advanced to `since`, in bounded memory.

        Args:
            workers: who carries it out; default: this process.
        """
        before = self.state()
        report = Maintainer(self._shard, workers).merge_all()
        return MergeReport(report.merges > 0, _shape(before), _shape(self.state()))

    def maintain(
        self,
        *,
        thorough: bool = True,
        seconds: float | None = None,
        workers: Workers | None = None,
        watch: Watch | None = None,
    ) -> MaintenanceReport:
        """Carry out the merges that the collection needs, so that reads stay cheap and space is bounded.

        Ends with `collect`. Afterwards the number of runs is logarithmic in the updates, and stored updates
        are at most twice the live ones, or one run. See docs/correctness.md for the exact promises.

        Args:
            thorough: also merge what is small, and let no retraction linger that `since` has passed;
                False: only what is worth its while in a collection that is written to right now.
            seconds: begin no merge after so long; default: until it is done.
            workers: who carries the merges out; default: this process.
            watch: is told of each merge before it begins.
        """
        budget_s = None if seconds is None else duration_s(seconds, "seconds")
        return Maintainer(self._shard, workers, watch).run(thorough=thorough, seconds=budget_s)

    def collect(self, *, thorough: bool = False) -> CollectReport:
        """Delete what the collection no longer needs and nobody reads: objects first, then log entries.

        What merges replaced goes when it is older than the setting `garbage_age_s`, except for what a reader
        pins; what failed appends and merges left, when it is older than `upload_age_s`. May be repeated,
        stopped anywhere, and run by several at once. Part of `maintain`.

        Args:
            thorough: look for the latter by a listing now; otherwise only if that was not done for long.

        Raises:
            StoreUnavailable, OutcomeUnknown: something could not be deleted; it is left for the next time.
        """
        return Collector(self._shard).run(thorough=thorough)

    def collection_pause_s(self) -> float:
        """How long there will be nothing more to collect if nobody writes. No store call."""
        return Collector(self._shard).pause_s()

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
            )

        return self._at_last(ask) if asked is None else ask(asked)

    def hold(
        self,
        plans: Iterable[ReadPlan],
        hold_for: timedelta | float,
        purpose: str,
        *,
        owner: str | None = None,
    ) -> str | None:
        """Keep what plans read for some time (in seconds, if it is no timedelta), or until `release`.

        Args:
            plans: of reads of this collection.
            hold_for: how long.
            purpose: for people.
            owner: who holds it, in a word. What one owner holds for the same time of the same stored parts is
                one hold, whose name begins with the owner; asked for again a minute later, it is extended.

        Returns:
            The name of the hold; None if they read nothing that could go. At most one log write.

        Raises:
            LeaseExpired: a part is given up already: plan again.
        """
        check_name(purpose, "purpose of a hold")
        hold_for_s = duration_s(hold_for, "hold_for")
        given: object = plans
        planned = tuple(given) if isinstance(given, Iterable) else (None,)
        if not all(isinstance(plan, ReadPlan) for plan in planned):
            raise UsageError(
                f"plans is a {type(given).__name__}: give a list of what collection.plan returned"
            )
        seqnos = sorted({plan.seqno for plan in planned if plan.seqno is not None})
        if not seqnos:
            return None
        id_ = None
        if owner is not None:
            versions = sorted({plan.version for plan in planned if plan.version})
            id_ = "-".join([check_name(owner, "owner of a hold"), *versions, f"{hold_for_s:g}s"])
        return hold_states(self._shard, seqnos, purpose, hold_for_s, id_)

    def release_owned(self, owner: str) -> int:
        """Give up all that `owner` holds; how many holds. One log write each."""
        return release_owned(self._shard, owner)

    def release(self, hold: str) -> None:
        """Give up what `hold` keeps. May be repeated; at most one log write."""
        self._shard.run(partial(holds.close_hold, hold_id=hold))

    def last_time(self) -> Time:
        """The last closed time. One log scan.

        Raises:
            UsageError: there is no single one: times are tuples, or all are closed.
            NotYetClosed: none is closed yet.
        """
        upper = self._shard.alive().upper
        if not self.domain.total_order or upper.closed:
            raise UsageError(
                f"collection {self.name!r} has no single last time (upper={upper}): give as_of=..."
            )
        if upper.less_equal(self.domain.minimum):
            # Not worth a wait: whoever asks for no time wants what is there, and nothing is.
            raise NotYetClosed(self.domain.minimum, upper.elements[0], 0)
        last: Time = upper.just_before().elements[0]
        return last

    def _at_last(self, ask: Callable[[AsOf], R]) -> R:
        """Ask for the contents at the last closed time, whichever that is when the answer is planned."""
        while True:
            try:
                return ask(AsOf(self.last_time()))
            except HistoryCompacted:
                # Others appended and moved `since` in between: there is a later last time now.
                continue

    def frontier(self, value: FrontierLike, name: str = "frontier") -> Frontier:
        """A frontier from a time, a list of times or a frontier; the times are checked."""
        return frontier(value, self.domain, name)


def _shape(state: ShardState) -> Shape:
    return Shape.of([member.batch for member in state.spine])
