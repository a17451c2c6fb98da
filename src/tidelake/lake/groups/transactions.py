"""Transactions: writes and seals of several collections that are committed at one instant, or not at all.

Owns the user's side of a transaction; `tidelake.state.group.deciding` decides it.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from types import TracebackType

import pyarrow as pa

from tidelake.data.ingest.events import OF_KEYS, EventColumns, removals
from tidelake.errors import (
    AlreadyTaken,
    CollectionNotFound,
    LeftGroup,
    TidelakeError,
    TransactionExpired,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
)
from tidelake.handle import Handle
from tidelake.lake.arguments.deletions import deletion
from tidelake.lake.arguments.frontiers import FrontierLike
from tidelake.lake.groups.attempt import Attempt
from tidelake.lake.groups.draft import Draft
from tidelake.lake.groups.groups import Groups
from tidelake.model.counts import Removals
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing.append import past_last
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.memberwrite import (
    Deletion,
    Offered,
)
from tidelake.shard.writing.proposal import expired
from tidelake.state.core.commands import open_writer
from tidelake.state.core.writername import WriterName
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.tabletext import FieldsAsHtml

# When a group has so many decisions, the next commit applies them to the collections.
_DECISIONS_MAX = 16


@dataclass(frozen=True)
class Committed(Removals, FieldsAsHtml):
    """What a transaction did.

    Attributes:
        upper: times before it are closed in all of the collections; after a write without an upper of its
            own, in the whole group.
        already: nothing had to be written: it was committed before this call, or it was empty.
        uppers: the upper of each collection, by name.
        removed: as for `Removals`, of all collections together.
        absent: likewise.
    """

    upper: Frontier
    already: bool = False
    uppers: Mapping[str, Frontier] = field(default_factory=dict)


class Transaction(Handle):
    """Collects writes; `commit`, or the end of the `with` block, commits them together.

    Nothing is stored before that, and nothing at all if the block raises. After a conflict the rows are
    stored already: `commit(time=...)` tries again with them at a later time, `abort` gives them up. Without
    either, they are removed when they are older than the setting `upload_age_s`.

    A commit uses up its batches. If it certainly failed, the caller may use them again, and may offer uploads
    of workers again. Both stay staged until then, or until they are older than `upload_age_s`.
    """

    def __init__(
        self,
        groups: Groups,
        open_: Callable[[str], Shard],
        new_id: Callable[[], str],
        *,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
        token: str | None = None,
    ) -> None:
        self._groups, self._new_id = groups, new_id
        self._draft = Draft(open_)
        # Instants become times of the unit when the collections are known, before anything is stored.
        self._asked: tuple[TimeLike | None, FrontierLike | None, FrontierLike | None] = (time, lower, upper)
        self._time: int | None = None
        self._lower: Frontier | None = None
        self._upper: Frontier | None = None
        self._token = token
        self._held: list[Batch] = []
        self._offered = self._left = False
        self._attempt: Attempt | None = None
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._ended:
            self.commit()

    def write(
        self,
        name: str,
        updates: object,
        *,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Add updates of a collection. They get the time of the transaction, unless they have their own.

        A collection may be written to several times, at different times, and each collection in an interval
        of its own.

        Args:
            name: name of the collection.
            updates: a table or stream as for `Collection.append`; or a `Batch`, the bytes that an `uploader`
                of the collection returned, or a list of these, which have their own times. If no `upper` is
                given, the times before a batch's upper are closed as well.
            time: the time of all rows of the table, instead of a column `_time`.
            lower: commit only if the collection's upper equals this; otherwise `UpperMismatch`.
            upper: all rows are before it. The commit closes the times before it, of this collection only; if
                no `upper` is given, times of the whole group are closed. Needs rows with times.

        Raises:
            UsageError: a batch or upload is for another collection, or is given twice; or the collection was
                given another `lower`.
        """
        self._open_draft().write("write", name, updates, time=time, lower=lower, upper=upper)

    def upsert(
        self,
        name: str,
        table: object,
        *,
        order_by: str | None = None,
        delete_column: str | None = None,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Replace the rows of the table's keys with its rows; other keys stay. See `Collection.upsert`.

        Old rows are looked up at the commit, and again, without limit, each time others write to the
        collection before the commit is decided. The transaction can write nothing else to this collection.

        Args:
            name: name of the collection.
            table: key and value columns. Without `_time` all rows are at `time`, or the transaction's time.
            order_by: as for `Collection.upsert`.
            delete_column: as for `Collection.upsert`.
            time: as for `write`.
            lower: as for `write`.
            upper: as for `write`.

        Raises:
            UsageError: the collection gets other rows already.
        """
        change = self._open_draft().rows_of(name, table, EventColumns(order_by, delete_column))
        self._draft.change(name, change, time=time, lower=lower, upper=upper)

    def replace(
        self,
        name: str,
        table: object,
        *,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Replace the contents with the rows of a table, at `time` or the time of the transaction.

        The old contents are read at the commit, and again after others write, as by `upsert`.

        Args:
            name: name of the collection.
            table: key and value columns.
            time: as for `write`.
            lower: as for `write`.
            upper: as for `write`.

        Raises:
            UsageError: the collection gets other rows already.
        """
        change = self._open_draft().rows_of(name, table, None)
        self._draft.change(name, change, time=time, lower=lower, upper=upper)

    def delete(
        self,
        name: str,
        keys: object = None,
        *,
        where: str | None = None,
        time: TimeLike | None = None,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
    ) -> None:
        """Remove rows, by their keys or by a condition. See `Collection.delete`.

        The rows are looked up at the commit, and again after others write, as by `upsert`.

        Args:
            name: name of the collection.
            keys: as for `Collection.delete`.
            where: as for `Collection.delete`.
            time: as for `write`.
            lower: as for `write`.
            upper: as for `write`.

        Raises:
            UsageError: neither `keys` nor `where` is given, or both; or the collection gets other rows
                already.
        """
        draft, found = self._open_draft(), deletion(keys, where)
        change = Deletion(found) if isinstance(found, str) else draft.rows_of(name, removals(found), OF_KEYS)
        draft.change(name, change, time=time, lower=lower, upper=upper)

    def stage(self, name: str, updates: object) -> None:
        """Stage updates at open times, which stay open. The updates need `_time`."""
        self._open_draft().write("stage", name, updates)

    def seal(self, name: str, upper: FrontierLike, *, lower: FrontierLike | None = None) -> None:
        """Close the times of one collection before a frontier. The commit is refused if it would go back.

        With `lower`, commit only if the collection's upper equals it; otherwise `UpperMismatch`.
        """
        self._open_draft().seal(name, lower, upper)

    def commit(self, time: TimeLike | None = None) -> Committed:
        """Commit the transaction. One log write for each collection that gets rows, and one that decides.

        Args:
            time: time of all rows, instead of the one that the transaction was begun with.

        Raises:
            UpperMismatch: the time is closed; carries the current frontier. Nothing is committed; commit
                again with a later `time`, which stores nothing twice. Or the upper of a collection (`name`)
                is not the `lower` asked for; then nothing stays staged.
            UpdateBeforeLower: rows have their own times, and one of these is closed. Nothing is committed.
            OutcomeUnknown: it may be committed. Commit again: that commits it once.
            TransactionExpired: it took longer than the setting `upload_age_s`. Nothing is committed.
            BatchConsumed: a batch was used before. Nothing is committed.
            AlreadyTaken: an upload or batch, or a copy of it, was committed before. The rest is not.
            UploadExpired: an upload is too old, or its collection left the group. Nothing is committed.
            UsageError: the collections cannot be in one group, or the arguments contradict each other.
        """
        with self._lock:
            draft = self._open_draft()
            # Check before anything is joined or stored, so that a wrong call changes nothing.
            at, lower, upper = self._asked
            wanted, lower, upper = draft.in_unit(at if time is None else time, lower, upper)
            draft.check_times(wanted)
            self._time, self._lower, self._upper = wanted, lower, upper
            # What a token names may be in already, and have closed these times.
            if self._attempt is None and self._token is None:
                draft.check_bounds(lower)
            # Another commit means the same times, also if they were words such as `now`.
            self._asked = (wanted, lower, upper)
            done = None
            try:
                self._take()
                while draft.shards and done is None:
                    done = self._tried()
            except BaseException:
                self._give_back()
                raise
            self._ended = True
        return done or Committed(Frontier.of(0), already=True)

    def abort(self) -> None:
        """Give the transaction up: it is never committed, and its staged rows are removed. May be repeated.

        Raises:
            UsageError: it is committed already.
            OutcomeUnknown: it may be committed: an earlier commit ended with `OutcomeUnknown`, and the group
                that recorded its outcome is gone by now.
        """
        with self._lock:
            attempt, self._ended = self._attempt, True
            if attempt is not None and not attempt.abort():
                raise UsageError("the transaction is committed: it cannot be given up any more")
            self._attempt = None
            self._give_back()

    def _take(self) -> None:
        """Take the batches from the caller, except those that an earlier commit has taken and still holds."""
        for given in (entry.given for entry in self._draft.rows):
            for batch in given.batches if isinstance(given, Offered) else ():
                if not any(batch is one for one in self._held):
                    batch.take("written")
                    self._held.append(batch)

    def _give_back(self) -> None:
        """Give the batches back to the caller, unless they may be committed."""
        if self._attempt is not None and self._attempt.asked:
            return
        for batch in self._held:
            batch.give_back(offered=self._offered)
        self._held.clear()

    def _tried(self) -> Committed | None:
        """Continue the current attempt, or begin one. None: call again, which begins another attempt."""
        if self._attempt is None:
            draft = self._draft
            draft.check_fits()
            group, joined = self._groups.of(draft.shards)
            self._attempt = Attempt.begun(self._new_id(), group, draft.shards, joined, draft.rows)
        attempt = self._attempt
        try:
            done = self._carried_out(attempt)
        except (LeftGroup, TransactionExpired) as error:
            if attempt.asked:
                raise attempt.forgotten() from error
            attempt.give_up()
            self._attempt = None
            self._left = self._left or isinstance(error, LeftGroup)
            # It is certainly not committed, so another attempt may begin, unless this one was too slow
            # itself.
            if attempt.is_old and isinstance(error, TransactionExpired):
                raise
            return None
        except (UpperMismatch, UpdateBeforeLower) as error:
            conflict = self._conflict(attempt, error)
            if not self._is_refused(attempt, conflict):
                return None
            if conflict is error:
                raise
            raise conflict from error
        except AlreadyTaken as error:
            if self._token is not None and self._number(attempt.group) is None:
                # Another process with the same token was faster, and committed the upload.
                return self._committed(attempt, attempt.group.known().upper, already=True)
            raise self._told(error) from error
        except TidelakeError:
            if attempt.doubtful:
                # It is unknown which rows are staged, so this attempt is never decided.
                self._attempt = None
            raise
        if done.already and self._token is not None:
            # Another process with the same token was faster: remove the rows staged here.
            with suppress(TidelakeError):
                attempt.abort()
        if len(attempt.group.known().decisions) >= _DECISIONS_MAX:
            self._groups.tidy_beside(attempt.group)
        return done

    def _conflict(
        self, attempt: Attempt, error: UpperMismatch | UpdateBeforeLower
    ) -> UpperMismatch | UpdateBeforeLower:
        """The error to raise: that a collection is past its lower, if that is why a time is closed."""
        uppers = attempt.uppers()
        for name, lower in self._draft.all_lowers(self._lower).items():
            if isinstance(error, UpdateBeforeLower) and uppers[name] != lower:
                return UpperMismatch(lower, uppers[name], name).of(self._draft.shards[name].spec.domain.unit)
        return error

    def _is_refused(self, attempt: Attempt, error: UpperMismatch | UpdateBeforeLower) -> bool:
        """Whether the transaction is refused; False: another attempt may succeed."""
        if not self._draft.depends():
            if isinstance(error, UpperMismatch) and self._is_behind(attempt):
                # It can never be committed, so nothing is kept for another commit.
                with suppress(TidelakeError):
                    attempt.abort()
                self._attempt = None
            return True
        if not attempt.abort():
            return False
        # The contents may have changed: begin again with what is there now.
        self._attempt = None
        return self._is_final(attempt, error)

    def _is_behind(self, attempt: Attempt) -> bool:
        """Whether a collection has another upper than the one that was asked for."""
        uppers = attempt.uppers()
        return any(uppers[name] != lower for name, lower in self._draft.all_lowers(self._lower).items())

    def _is_final(self, attempt: Attempt, error: UpperMismatch | UpdateBeforeLower) -> bool:
        """Whether a refusal is due to the caller's arguments, so that another attempt cannot succeed."""
        current = error.current if isinstance(error, UpperMismatch) else None
        if isinstance(current, Frontier) and current.closed:
            return True
        if attempt.is_staged(self._draft.rows):
            return self._is_behind(attempt)
        return self._time is not None or self._draft.own_times()

    def _told(self, error: AlreadyTaken) -> TidelakeError:
        """The error to raise: `UploadExpired` if the upload was lost when its collection left the group."""
        if not self._left:
            return error
        seqnos = [shard.known().seqno for shard in self._draft.shards.values()]
        return expired(error, max(seqnos))

    def _carried_out(self, attempt: Attempt) -> Committed:
        number = self._number(attempt.group)
        if number is None and self._token is not None:
            return self._committed(attempt, attempt.group.known().upper, already=True)
        own_times, time = self._draft.own_times(), self._time
        if time is None and not own_times and self._draft.depends():
            # Upserts and replaces are computed for one time, so choose it now.
            attempt.at = time = attempt.floor() if attempt.at is None else attempt.at
        self._offered = True
        attempt.prepare(self._draft.rows, time)
        upper = self._upper
        if upper is None and self._draft.closes_together:
            last = attempt.last(self._draft.rows) if own_times else self._closed_without_rows(attempt, time)
            upper = None if last is None else past_last(last)
            for entry in self._draft.rows:
                if isinstance(entry.given, Offered) and entry.upper is None:
                    upper = entry.given.upper if upper is None else upper.join(entry.given.upper)
        done = attempt.decide(
            self._draft.all_lowers(self._lower),
            self._draft.seals,
            time,
            own_times=own_times,
            picked=self._time is None,
            upper=upper,
            number=number,
        )
        return self._committed(attempt, done.upper, already=done.already)

    def _closed_without_rows(self, attempt: Attempt, time: int | None) -> int | None:
        """The time that is closed though there are no rows; None: none, or that of the rows.

        A time that was given is; so is one for rows to append, or if no time of a collection is closed yet.
        """
        if self._time is not None or attempt.times is not None:
            return self._time
        appends = any(isinstance(entry.given, pa.Table) for entry in self._draft.rows)
        minimum = TimeDomain().minimum
        if not appends and not any(upper.less_equal(minimum) for upper in attempt.uppers().values()):
            return None
        return attempt.floor() if time is None else time

    def _committed(self, attempt: Attempt, upper: Frontier, *, already: bool) -> Committed:
        uppers = attempt.uppers()
        # Stages, seals and writes with an upper act on each collection by itself.
        together = self._draft.closes_together or self._upper is not None
        shown = upper if together else reduce(Frontier.meet, uppers.values())
        return Committed(shown, already, uppers).plus(*attempt.changed.values())

    def _number(self, group: Shard) -> IdempotencyKey | None:
        """The claim that makes the token's transaction commit once; None: no token, or it is committed."""
        if self._token is None:
            return None
        name = WriterName.of_token(self._token).name
        # A collection that left another group still has the records of transactions of that group.
        for shard in (group, *self._draft.shards.values()):
            record = shard.known().writers.get(name)
            if record is not None and record.sequence is not None:
                return None
        try:
            record = group.run(partial(open_writer, name=name, resume=True))
        except CollectionNotFound as error:
            # The group ended when its last collection left.
            raise LeftGroup(min(self._draft.shards)) from error
        return IdempotencyKey(name, record.epoch, 0) if record.sequence is None else None

    def _open_draft(self) -> Draft:
        if self._ended:
            raise UsageError("the transaction has ended: begin another one")
        return self._draft
