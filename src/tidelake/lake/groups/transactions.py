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
from tidelake.lake.arguments.times import FrontierLike
from tidelake.lake.groups.attempt import Attempt
from tidelake.lake.groups.draft import Draft, Drafting
from tidelake.lake.groups.groups import Groups
from tidelake.model.counts import Removals
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing.append import past_last
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.committing import committed
from tidelake.shard.writing.memberwrite import Offered
from tidelake.shard.writing.proposal import expired
from tidelake.state.core.commands import open_writer
from tidelake.state.core.writername import WriterName
from tidelake.state.group.deciding import IntentTimes
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


class Transaction(Drafting):
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
        super().__init__(Draft(open_))
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

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._ended:
            self.commit()

    def commit(self, time: TimeLike | None = None) -> Committed:
        """Commit the transaction. One log write for each collection that gets rows, and one that decides.

        Args:
            time: time of all rows, instead of the one that the transaction was begun with.

        Raises:
            UpdateBeforeLower: a time is closed; carries the first open frontier as `lower`. Nothing is
                committed; commit again with a later `time`, which stores nothing twice.
            UpperMismatch: the upper of a collection (`name`) is not the `lower` asked for. Nothing stays
                staged.
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
            done = Committed(Frontier.of(0), already=True)
            try:
                self._take()
                if draft.shards:
                    done = committed(self._tried)
            except BaseException:
                self._give_back()
                raise
            self._ended = True
        return done

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
            IntentTimes(
                time=None if own_times else time,
                own_times=own_times,
                upper=upper,
                picked=self._time is None,
            ),
            number,
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
