"""Writes and seals of several collections: all of it comes in at one instant, or nothing does.

Owns what a user says of a transaction; how it is decided is `tidelake.state.transactions`.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from types import TracebackType
from typing import Literal

import pyarrow as pa

from tidelake.data.consolidate import copied
from tidelake.data.events import EventColumns
from tidelake.data.ingest import as_table
from tidelake.errors import (
    AlreadyTaken,
    CollectionNotFound,
    LeftGroup,
    TidelakeError,
    TransactionExpired,
    UpdateNotBeyondLower,
    UploadExpired,
    UpperMismatch,
    UsageError,
)
from tidelake.lake.attempt import Attempt
from tidelake.lake.frontiers import FrontierLike, frontier
from tidelake.lake.groups import Groups
from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.shard.shard import Shard
from tidelake.shard.writing.append import past_last
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.batches import check_once
from tidelake.shard.writing.transaction import Changes, Given, Offered, check_fits, has_times, offered_of
from tidelake.state.append import Claim
from tidelake.state.commands import open_writer
from tidelake.state.tokens import PREFIX

# So many decisions wait in a group until somebody who commits writes them down in the collections.
_DECISIONS_MAX = 16
_ALONE = "{name!r} is upserted or replaced by the transaction: it gets no other rows, use another transaction"


@dataclass(frozen=True)
class Committed:
    """What a transaction did.

    Attributes:
        upper: times before it are closed in all of the collections: of a write in the whole group.
        already: nothing had to be written: it was in before this call, or there was nothing in it.
        uppers: up to where the times of each are closed, by name.
    """

    upper: Frontier
    already: bool = False
    uppers: Mapping[str, Frontier] = field(default_factory=dict)


class Transaction:
    """Collects what is to come in together; `commit`, or the end of the `with` block, brings it in.

    Nothing is stored before that, and nothing at all if the block raises. After a conflict the rows are
    stored already: `commit(time=...)` tries them again at a later time, `abort` gives them up. What nobody
    commits or gives up is removed when it is older than the setting `upload_age_s`.

    A batch is used by a commit, and the caller's again after one that is certainly not in; what workers
    uploaded may be offered again then as well. Both stay staged until then, or until they are that old.
    """

    def __init__(
        self,
        groups: Groups,
        open_: Callable[[str], Shard],
        new_id: Callable[[], str],
        *,
        time: int | None = None,
        lower: Frontier | None = None,
        upper: Frontier | None = None,
        token: str | None = None,
    ) -> None:
        self._groups, self._open = groups, open_
        self._new_id = new_id
        self._time, self._lower, self._upper, self._token = time, lower, upper, token
        self._shards: dict[str, Shard] = {}
        self._rows: list[tuple[str, Given]] = []
        self._held: list[Batch] = []
        self._offered = self._left = False
        self._seals: dict[str, Frontier] = {}
        self._kind: Literal["write", "stage"] | None = None
        self._attempt: Attempt | None = None
        self._turn = threading.Lock()
        self._ended = False

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._ended:
            self.commit()

    def write(self, name: str, updates: object) -> None:
        """Add rows of a collection. They get the time of the transaction, unless they have `_time`.

        Args:
            name: of the collection.
            updates: a table or stream as for `Collection.append`; or a `Batch`, or the bytes that an
                `uploader` of the collection gave, or a list of these, which have times of their own. Where
                no `upper` is given, times before a batch's upper are closed as well.

        Raises:
            UsageError: a batch or upload is for another collection, or is given twice.
        """
        self._add("write", name, updates)

    def upsert(
        self, name: str, table: object, *, order_by: str | None = None, delete_column: str | None = None
    ) -> None:
        """Let the rows of a table be those of their keys; rows of other keys stay. See `Collection.upsert`.

        Old rows are looked up when the transaction is committed, and again if others write to the collection
        before that is decided, for as long as it takes. The collection gets nothing else by the transaction.

        Args:
            name: of the collection.
            table: with the key and value columns. Without `_time` all of it is at the transaction's time.
            order_by: as for `Collection.upsert`.
            delete_column: as for `Collection.upsert`.

        Raises:
            UsageError: the collection gets other rows already.
        """
        self._add_changes(name, table, EventColumns(order_by, delete_column))

    def replace(self, name: str, table: object) -> None:
        """Let the contents be exactly the rows of a table, at the time of the transaction.

        What was there is read when the transaction is committed, and again as by `upsert`.

        Args:
            name: of the collection.
            table: with the key and value columns.

        Raises:
            UsageError: the collection gets other rows already.
        """
        self._add_changes(name, table, None)

    def stage(self, name: str, updates: object) -> None:
        """Add rows at times that are open, which stay open; they need `_time`."""
        self._add("stage", name, updates)

    def seal(self, name: str, upper: FrontierLike) -> None:
        """Close the times of one collection before a frontier."""
        self._check_open()
        shard = self._shard(name)
        self._seals[name] = frontier(upper, shard.spec.domain, f"upper of {name!r}")

    def commit(self, time: int | None = None) -> Committed:
        """Let all of it in. A log write for each collection that rows go to, and one that decides.

        Args:
            time: of all rows, in the place of the one that the transaction was begun with.

        Raises:
            UpperMismatch: the time is closed; carries the current frontier. Nothing is in; commit again
                with a later `time`, nothing is stored twice.
            UpdateNotBeyondLower: a time of the rows themselves is closed. Nothing is in.
            OutcomeUnknown: it may be in. Commit again: it comes in once.
            TransactionExpired: it took longer than the setting `upload_age_s`. Nothing is in.
            BatchConsumed: a batch was used before. Nothing is in.
            AlreadyTaken: an upload or a batch is in, or a copy of it. Nothing else is in.
            UploadExpired: one was uploaded too long ago, or its collection left the group. Nothing is in.
            UsageError: the collections cannot be in one group, or the call makes no sense.
        """
        with self._turn:
            self._check_open()
            wanted = self._time if time is None else time
            # Before anything is joined or stored: a call that makes no sense changes nothing.
            self._check_times(wanted)
            self._time = wanted
            done = None
            try:
                self._take()
                while self._shards and done is None:
                    done = self._tried()
            except BaseException:
                self._give_back()
                raise
            self._ended = True
        return done or Committed(Frontier.of(0), already=True)

    def abort(self) -> None:
        """Give it up: nothing of it comes in, and what it has stored is removed. May be repeated.

        Raises:
            UsageError: it is in.
            OutcomeUnknown: it may be in: the outcome of a commit was unknown, and its group is gone by now.
        """
        with self._turn:
            attempt, self._ended = self._attempt, True
            if attempt is not None and not attempt.abort():
                raise UsageError("the transaction is in: it cannot be given up any more")
            self._attempt = None
            self._give_back()

    def _take(self) -> None:
        """Use the batches, unless an earlier commit did, whose outcome is unknown."""
        for _, given in self._rows:
            for batch in given.batches if isinstance(given, Offered) else ():
                if not any(batch is one for one in self._held):
                    batch.take("written")
                    self._held.append(batch)

    def _give_back(self) -> None:
        """Give the batches back to the caller, unless they may be in."""
        if self._attempt is not None and self._attempt.asked:
            return
        for batch in self._held:
            batch.give_back(offered=self._offered)
        self._held.clear()

    def _tried(self) -> Committed | None:
        """Go on with the attempt that there is, or begin one; None: begin another one."""
        if self._attempt is None:
            for name, given in self._rows:
                check_fits(self._shards[name], given)
            group, joined = self._groups.of(self._shards)
            self._attempt = Attempt.begun(self._new_id(), group, self._shards, joined, self._rows)
        attempt = self._attempt
        try:
            done = self._carried_out(attempt)
        except (LeftGroup, TransactionExpired) as error:
            if attempt.asked:
                raise attempt.forgotten() from error
            attempt.give_up()
            self._attempt = None
            self._left = self._left or isinstance(error, LeftGroup)
            # Certainly not in, so it may be begun anew; but not what took that long by itself.
            if attempt.is_old and isinstance(error, TransactionExpired):
                raise
            return None
        except (UpperMismatch, UpdateNotBeyondLower) as error:
            if not self._depends():
                raise
            if attempt.abort():
                # What is there may be something else by now.
                self._attempt = None
                if self._is_final(attempt, error):
                    raise
            return None
        except AlreadyTaken as error:
            if self._token is not None and self._claim(attempt.group) is None:
                # Whoever was faster under the same token took it in.
                return self._committed(attempt, attempt.group.known().upper, already=True)
            raise self._told(error) from error
        except TidelakeError:
            if attempt.doubtful:
                # What is staged is unknown, and nobody will decide it.
                self._attempt = None
            raise
        if done.already and self._token is not None:
            # Somebody else was faster under the same token.
            with suppress(TidelakeError):
                attempt.abort()
        if len(attempt.group.known().decisions) >= _DECISIONS_MAX:
            self._groups.tidy_beside(attempt.group)
        return done

    def _depends(self) -> bool:
        """Whether some of it depends on contents."""
        return any(isinstance(given, Changes) for _, given in self._rows)

    def _is_final(self, attempt: Attempt, error: UpperMismatch | UpdateNotBeyondLower) -> bool:
        """Whether a refusal is of what the caller asked for, and not of what was found when it was tried."""
        current = error.current if isinstance(error, UpperMismatch) else None
        if isinstance(current, Frontier) and current.closed:
            return True
        if attempt.is_staged(self._rows):
            return self._lower is not None and attempt.group.known().upper != self._lower
        return self._time is not None or self._own_times()

    def _own_times(self) -> bool:
        return any(has_times(self._shards[name], given) for name, given in self._rows)

    def _told(self, error: AlreadyTaken) -> TidelakeError:
        """The error: what this staged before, and is gone since its collection left, comes in no more."""
        if not self._left:
            return error
        seqnos = [shard.known().seqno for shard in self._shards.values()]
        return UploadExpired(error.name, names.uploaded_at(error.name) or 0, max(seqnos))

    def _carried_out(self, attempt: Attempt) -> Committed:
        claim = self._claim(attempt.group)
        if claim is None and self._token is not None:
            return self._committed(attempt, attempt.group.known().upper, already=True)
        own_times, time = self._own_times(), self._time
        if time is None and not own_times and self._depends():
            # What replaces what is there is worked out for one time.
            attempt.at = time = attempt.floor() if attempt.at is None else attempt.at
        self._offered = True
        attempt.prepare(self._rows, time)
        written = attempt.times
        upper = self._upper
        if upper is None and not written and self._time is not None:
            upper = past_last(self._time)
        if upper is None and self._kind == "write" and own_times and written is not None:
            upper = past_last(written[1])
        if self._upper is None and self._kind == "write":
            for _, given in self._rows:
                if isinstance(given, Offered):
                    upper = given.upper if upper is None else upper.join(given.upper)
        done = attempt.decide(
            self._seals, time, own_times=own_times, upper=upper, lower=self._lower, claim=claim
        )
        return self._committed(attempt, done.upper, already=done.already)

    def _committed(self, attempt: Attempt, upper: Frontier, *, already: bool) -> Committed:
        uppers = attempt.uppers()
        # Staged and sealed is each by itself; what is written closes the times of all.
        shown = upper if self._kind == "write" else reduce(Frontier.meet, uppers.values())
        return Committed(shown, already, uppers)

    def _check_times(self, time: int | None) -> None:
        timed = {has_times(self._shards[name], given) for name, given in self._rows}
        if len(timed) > 1:
            raise UsageError("some rows of the transaction have _time, others do not: give all of them times")
        if self._kind == "stage" and False in timed:
            raise UsageError("staged rows need _time")
        if True in timed and time is not None:
            raise UsageError(f"time={time}, but the rows have times of their own: leave one of them out")

    def _claim(self, group: Shard) -> Claim | None:
        """What makes the token's transaction come in once; None if there is no token, or it is in."""
        if self._token is None:
            return None
        name = PREFIX + self._token
        # A collection that left another group knows what was written there.
        for shard in (group, *self._shards.values()):
            record = shard.known().writers.get(name)
            if record is not None and record.sequence is not None:
                return None
        try:
            record = group.run(partial(open_writer, name=name, resume=True))
        except CollectionNotFound as error:
            # The group ended when the last one had left it.
            raise LeftGroup(min(self._shards)) from error
        return Claim(name, record.epoch, 0) if record.sequence is None else None

    def _add(self, kind: Literal["write", "stage"], name: str, updates: object) -> None:
        self._check_open()
        if self._kind not in (None, kind):
            raise UsageError("a transaction either writes or stages: use two")
        if any(isinstance(given, Changes) for other, given in self._rows if other == name):
            raise UsageError(_ALONE.format(name=name))
        offered = offered_of(self._shard(name), updates)
        if offered is not None:
            before = [part for _, given in self._rows if isinstance(given, Offered) for part in given.parts]
            check_once([part.name for part in (*before, *offered.parts)], "an upload")
            self._kind = kind
            self._rows.append((name, offered))
            return
        self._kind = kind
        self._rows.append((name, _kept(updates)))

    def _add_changes(self, name: str, table: object, columns: EventColumns | None) -> None:
        self._check_open()
        if self._kind == "stage":
            raise UsageError("a transaction either writes or stages: use two")
        if any(other == name for other, _ in self._rows):
            raise UsageError(_ALONE.format(name=name))
        shard = self._shard(name)
        if columns is not None:
            columns.check(shard.spec.schema, shard.spec.domain)
        self._rows.append((name, Changes(_kept(table), columns)))
        self._kind = "write"

    def _shard(self, name: str) -> Shard:
        if name not in self._shards:
            self._shards[name] = self._open(name)
        return self._shards[name]

    def _check_open(self) -> None:
        if self._ended:
            raise UsageError("the transaction has ended: begin another one")


def _kept(updates: object) -> pa.Table:
    """Rows as they are now: the caller may fill his arrays anew before the commit."""
    given = as_table(updates)
    return pa.Table.from_batches(list(map(copied, given.to_batches())), given.schema)
