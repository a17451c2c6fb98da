"""Writes and seals of several collections: all of it comes in at one instant, or nothing does.

Owns what a user says of a transaction; how it is decided is `tidelake.state.transactions`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Literal

import pyarrow as pa

from tidelake.data.ingest import as_table
from tidelake.errors import UsageError
from tidelake.lake.frontiers import FrontierLike, frontier
from tidelake.lake.groups import Groups
from tidelake.model.frontier import Frontier
from tidelake.shard.shard import Shard
from tidelake.shard.writing.append import past_last
from tidelake.shard.writing.transaction import has_times, prepare
from tidelake.state import transactions
from tidelake.state.append import Claim
from tidelake.state.commands import open_writer
from tidelake.state.staged import Awaited
from tidelake.state.transactions import Wanted

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
    stored already: `commit(time=...)` tries them again at a later time, `abort` gives them up.
    """

    def __init__(
        self,
        groups: Groups,
        open_: Callable[[str], Shard],
        id_: str,
        *,
        time: int | None = None,
        lower: Frontier | None = None,
        upper: Frontier | None = None,
        token: str | None = None,
    ) -> None:
        self._groups, self._open = groups, open_
        self.id = id_
        self._time, self._lower, self._upper, self._token = time, lower, upper, token
        self._claimed: Claim | None = None
        self._shards: dict[str, Shard] = {}
        self._rows: dict[str, list[pa.Table]] = {}
        self._seals: dict[str, Frontier] = {}
        self._kind: Literal["write", "stage"] | None = None
        self._group: Shard | None = None
        self._wanted: Wanted | None = None
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
            TransactionExpired: it took longer than the setting `upload_age_s`. Nothing is in.
            UsageError: the collections cannot be in one group, or the call makes no sense.
        """
        self._check_open()
        self._time = self._time if time is None else time
        if not self._shards:
            self._ended = True
            return Committed(Frontier(), already=True)
        group = self._group = self._group or self._groups.of(self._shards)
        claim = self._claim(group)
        if claim is not None and claim.sequence < 0:
            self._ended = True
            return Committed(group.known().upper, already=True)
        self._wanted = self._wanted or self._prepared(group)
        wanted = self._wanted
        if not wanted.own_times:
            end = self._upper if wanted.first or self._time is None else past_last(self._time)
            wanted = replace(wanted, time=self._time, upper=end)
        done = group.run(partial(transactions.decide, wanted=wanted, claim=claim))
        self._ended = True
        if len(group.known().decisions) >= _DECISIONS_MAX:
            self._groups.tidy(group)
        return Committed(done.upper, done.already)

    def abort(self) -> None:
        """Give it up: nothing of it comes in, and what it has stored is removed. May be repeated.

        Raises:
            UsageError: it is in.
        """
        group, self._ended = self._group, True
        if group is None:
            return
        if not group.run(partial(transactions.refuse, transaction=self.id)):
            raise UsageError(f"transaction {self.id} is in: it cannot be given up any more")
        for shard in self._shards.values():
            shard.run(partial(transactions.withdraw, transactions=frozenset([self.id])))

    def _prepared(self, group: Shard) -> Wanted:
        """Store the rows in all collections, where they await the decision."""
        begun = group.state().seqno
        awaited = Awaited(self.id, begun, group.env.clock.now_ms())
        tables = [(self._shards[name], table) for name, rows in self._rows.items() for table in rows]
        timed = {has_times(shard, table) for shard, table in tables}
        if len(timed) > 1:
            raise UsageError("some rows of the transaction have _time, others do not: give all of them times")
        own_times = self._kind == "stage" or True in timed
        if own_times and (False in timed or self._time is not None):
            raise UsageError(
                "staged rows need _time"
                if False in timed
                else f"time={self._time}, but the rows have times of their own: leave one of them out"
            )
        first: dict[str, int] = {}
        last = -1
        for shard, table in tables:
            ends = prepare(shard, group.spec.shard_id, awaited, table, self._time)
            if ends is not None:
                id_ = shard.spec.shard_id
                first[id_], last = min(first.get(id_, ends[0]), ends[0]), max(last, ends[1])
        upper = self._upper
        if upper is None and self._kind == "write" and own_times and first:
            upper = past_last(last)
        seals = {self._shards[name].spec.shard_id: at for name, at in self._seals.items()}
        return Wanted(self.id, begun, first, seals, None, own_times, upper, self._lower)

    def _claim(self, group: Shard) -> Claim | None:
        """What makes the token's transaction come in once; a negative number if it is in."""
        if self._token is None:
            return None
        if self._claimed is None:
            name = _PREFIX + self._token
            record = group.state().writers.get(name)
            if record is not None and record.sequence is not None:
                return Claim(name, record.epoch, -1)
            record = group.run(partial(open_writer, name=name))
            self._claimed = Claim(name, record.epoch, 0)
        return self._claimed

    def _add(self, kind: Literal["write", "stage"], name: str, updates: object) -> None:
        self._check_open()
        if self._kind not in (None, kind):
            raise UsageError("a transaction either writes or stages: use two")
        self._shard(name)
        self._kind = kind
        self._rows.setdefault(name, []).append(as_table(updates))

    def _shard(self, name: str) -> Shard:
        if name not in self._shards:
            self._shards[name] = self._open(name)
        return self._shards[name]

    def _check_open(self) -> None:
        if self._ended:
            raise UsageError("the transaction has ended: begin another one")
