"""Writes and seals of several collections: all of it comes in at one instant, or nothing does.

Owns what a user says of a transaction; how it is decided is `tidelake.state.transactions`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal

import pyarrow as pa

from tidelake.data.consolidate import copied
from tidelake.data.ingest import as_table
from tidelake.errors import (
    CollectionNotFound,
    LeftGroup,
    TidelakeError,
    TransactionExpired,
    UsageError,
)
from tidelake.lake.attempt import Attempt
from tidelake.lake.frontiers import FrontierLike, frontier
from tidelake.lake.groups import Groups
from tidelake.model.frontier import Frontier
from tidelake.shard.shard import Shard
from tidelake.shard.writing.append import past_last
from tidelake.shard.writing.transaction import has_times
from tidelake.state.append import Claim
from tidelake.state.commands import open_writer

# So many decisions wait in a group until somebody who commits writes them down in the collections.
_DECISIONS_MAX = 16
_PREFIX = "token:"


@dataclass(frozen=True)
class Committed:
    """What a transaction did.

    Attributes:
        upper: of the collections that were written to, or of the group: times before it are closed.
        already: nothing had to be written: it was in before this call, or there was nothing in it.
    """

    upper: Frontier
    already: bool = False


class Transaction:
    """Collects what is to come in together; `commit`, or the end of the `with` block, brings it in.

    Nothing is stored before that, and nothing at all if the block raises. After a conflict the rows are
    stored already: `commit(time=...)` tries them again at a later time, `abort` gives them up. What nobody
    commits or gives up is removed when it is older than the setting `upload_age_s`.
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
        self._rows: list[tuple[str, pa.Table]] = []
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
            updates: as for `Collection.append`.
        """
        self._add("write", name, updates)

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
            UsageError: the collections cannot be in one group, or the call makes no sense.
        """
        with self._turn:
            self._check_open()
            wanted = self._time if time is None else time
            # Before anything is joined or stored: a call that makes no sense changes nothing.
            self._check_times(wanted)
            self._time = wanted
            done = None
            while self._shards and done is None:
                done = self._tried()
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

    def _tried(self) -> Committed | None:
        """Go on with the attempt that there is, or begin one; None: begin another one."""
        if self._attempt is None:
            group, joined = self._groups.of(self._shards)
            self._attempt = Attempt(self._new_id(), group, self._shards, joined)
        attempt = self._attempt
        try:
            done = self._carried_out(attempt)
        except (LeftGroup, TransactionExpired) as error:
            if attempt.asked:
                raise attempt.forgotten() from error
            attempt.give_up()
            self._attempt = None
            # Certainly not in, so it may be begun anew; but not what took that long by itself.
            if attempt.is_old and isinstance(error, TransactionExpired):
                raise
            return None
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

    def _carried_out(self, attempt: Attempt) -> Committed:
        claim = self._claim(attempt.group)
        if claim is None and self._token is not None:
            return Committed(attempt.group.known().upper, already=True)
        own_times = any(has_times(self._shards[name], table) for name, table in self._rows)
        attempt.prepare(self._rows, self._time)
        written = attempt.times
        upper = self._upper
        if upper is None and not written and self._time is not None:
            upper = past_last(self._time)
        if upper is None and self._kind == "write" and own_times and written is not None:
            upper = past_last(written[1])
        done = attempt.decide(
            self._seals, self._time, own_times=own_times, upper=upper, lower=self._lower, claim=claim
        )
        return Committed(done.upper, done.already)

    def _check_times(self, time: int | None) -> None:
        timed = {has_times(self._shards[name], table) for name, table in self._rows}
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
        name = _PREFIX + self._token
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
        self._shard(name)
        self._kind = kind
        given = as_table(updates)
        # The caller may fill his arrays anew before the commit.
        self._rows.append((name, pa.Table.from_batches(list(map(copied, given.to_batches())), given.schema)))

    def _shard(self, name: str) -> Shard:
        if name not in self._shards:
            self._shards[name] = self._open(name)
        return self._shards[name]

    def _check_open(self) -> None:
        if self._ended:
            raise UsageError("the transaction has ended: begin another one")
