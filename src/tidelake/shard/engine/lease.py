"""Leases: how a reader, a copy, a tail or a long read keeps the parts of the versions that it reads.

Owns when a hold is opened, which seqnos it pins, when it is renewed and when it ends; what a hold does is in
`tidelake.state.life.holds`. A part stays in the store for `garbage_age_s` after the newest state stops naming
it, so a short read needs no hold and writes nothing. A read that still runs after a third of that time is
pinned.

INVARIANT: a lease pins the states of running reads and, for a reader, the state that it reads next. A read
that finds a part missing ends with an error that says why, never with wrong rows.
"""

import itertools
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tidelake.errors import (
    BlobNotFound,
    Closed,
    CollectionDropped,
    CollectionNotFound,
    CorruptionError,
    LeaseExpired,
    OutcomeUnknown,
    OutOfThreads,
    StoreUnavailable,
    TidelakeError,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.process import ProcessOrigin
from tidelake.shard.engine.renewer import LeaseRenewer
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec, env_here, stores_of
from tidelake.shard.engine.version import Version
from tidelake.state.core.commands import Commit, NoOp, Outcome
from tidelake.state.core.state import Hold, ShardState
from tidelake.state.life import holds

# A hold is renewed, and a read pinned, after a third of the time that the hold or a part of garbage lasts.
SHARE = 3


@dataclass(frozen=True)
class Read:
    """A running read: the seqno of its state, and when it needs a pin, by the monotonic clock.

    How long it needs none depends on how long garbage stays, by that state.
    """

    seqno: int
    old_s: float


class Lease:
    """A leased hold: it pins the versions that are read, and a background worker renews it.

    A reader, a copy and a tail own theirs and close it. The lease of a plain read has no hold until the read
    takes long, and ends with the read.

    Args:
        shard: the shard to hold.
        purpose: shown to people.
        reader: whether it has an owner that closes it; otherwise it ends with its last read.
        id_: id of its hold; default: a fresh one.
        lease_ms: how long the hold lasts without renewal; default: as the lake's setting says.
        renewer: the worker that renews it; default: the one of the lake.

    Attributes:
        since: the hold keeps history from here on; the closed frontier if it keeps none.
    """

    # Whether a hold that is gone is opened again, rather than reported.
    _reopens = False

    def __init__(
        self,
        shard: Shard,
        purpose: str = "a read that takes long",
        *,
        reader: bool = False,
        id_: str = "",
        lease_ms: int | None = None,
        renewer: LeaseRenewer | None = None,
    ) -> None:
        self.shard = shard
        self._id = id_
        self._renewer = renewer or shard.renewer
        self._purpose = purpose
        self._is_reader = self._owned = reader
        self._lease_ms = lease_ms or shard.known().agreed.lease_ms
        self._beat_s = self._lease_ms / 1000 / SHARE
        self._reads: dict[int, Read] = {}
        self._numbers = itertools.count()
        self.since = Frontier()
        self._base: int | None = None
        self._pins: tuple[int, ...] = ()
        self._renewed_s = 0.0
        self._opened = False
        # A lake that is open for reading only writes no hold: a plain read goes on without one.
        self._over = shard.stores.read_only and not reader
        self._origin = ProcessOrigin()
        self._lock = threading.Lock()

    @property
    def id(self) -> str:
        """Id of its hold; empty while there is none."""
        return self._id

    @property
    def foreign(self) -> bool:
        """Whether this process is a fork of the one whose lease it is."""
        return not self._origin.is_here

    @property
    def over(self) -> bool:
        """Whether the hold was closed, is known to be gone, or will never be."""
        return self._over

    # For readers.

    def pin(self, since: Frontier | None = None) -> Version:
        """Pin the newest version, for reads to come, in place of the previous one. One log write.

        One log scan more if the collection is in a group.
        """
        if self.foreign:
            raise UsageError("a reader does not survive a fork: open it in the process that uses it")

        def take() -> ShardState:
            with self._lock:
                return self._commit(since, newest=True)

        version = self.shard.version(take=take)
        self._renewer.look_every(self._beat_s)
        self._renewer.add(self)
        return version.kept_by(self)

    def unpin(self) -> None:
        """From the next commit on, pin running reads only. No store call."""
        self._base = None

    def renew(self, since: Frontier | None = None) -> None:
        """Renew the hold, and move its `since` forward. One log write."""
        with self._lock:
            self._commit(since)

    def check(self, state: ShardState) -> None:
        """Raise if the hold is gone in a state. No store call."""
        if self.foreign:
            raise UsageError("a reader does not survive a fork: open it in the process that uses it")
        if self.id not in state.holds:
            self._renewer.discard(self)
            raise CollectionDropped(self.shard.title) if state.dropped else LeaseExpired(self.id)

    def close(self) -> None:
        """End the hold. May be repeated. One log write; none in a fork, or if the hold is gone."""
        if self.foreign:
            return
        self._owned = False
        self._renewer.discard(self)
        with self._lock:
            if self.id and not self._over:
                self.shard.run(partial(holds.close_hold, hold_id=self.id))
            self._over = True

    def abandon(self) -> None:
        """Renew the hold only until its running reads end: the reader was forgotten. Takes no lock."""
        self._owned = False
        self._let_go()

    # For reads.

    def watch(self, version: Version, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """The same batches of a version, which is kept until they end or are forgotten."""
        return _watched(_Reading(self, version.state), batches)

    @contextmanager
    def during(self, state: ShardState) -> Iterator[None]:
        """Keep the parts of a state that was just read while the block runs; a log write if it runs long."""
        reading = _Reading(self, state)
        try:
            yield
        finally:
            reading.end()
            self._finish()

    def _begin(self, state: ShardState) -> int:
        number, young_s = next(self._numbers), young(state)
        begun_s = self.shard.env.clock.monotonic_s()
        self._reads[number] = Read(state.seqno, begun_s + young_s)
        if not self._over:
            self._renewer.look_every(min(young_s, self._beat_s))
            try:
                self._renewer.add(self)
            except OutOfThreads:
                del self._reads[number]
                raise
        return number

    def _end(self, number: int) -> None:
        """Takes no lock: the garbage collector may call it anywhere."""
        self._reads.pop(number, None)
        self._let_go()

    def _let_go(self) -> None:
        """Leave the renewer if it has nothing more to do: the hold of a reader that was forgotten expires."""
        if not (self._reads or self._owned) and (self._is_reader or not self.id):
            self._renewer.discard(self)

    def _finish(self) -> None:
        """Called at the end of a read: end the hold if the read had to open one."""
        if self._owned or self._reads or not self.id:
            return
        try:
            self.close()
        except (StoreUnavailable, OutcomeUnknown, Closed):
            # The read has its rows, and the hold expires.
            self.shard.env.failed("lease.close.failed")

    # For the renewer.

    def due_s(self) -> float:
        """When the next pin or renewal is due. At once if the last read is over."""
        if not (self._reads or self._owned):
            return 0.0
        reads = self._reads.copy().values()
        times = [read.old_s for read in reads if read.seqno not in self._pins]
        if self._opened:
            times.append(self._renewed_s + self._beat_s)
        return min(times, default=float("inf"))

    def keep(self) -> None:
        """Pin the reads that have run for long, and renew the hold."""
        renewer = self._renewer
        if not (self._reads or self._owned):
            renewer.discard(self)
            if not self._is_reader:
                self.close()
            return
        with self._lock:
            if self._over:
                return
            try:
                self._commit(None if self._is_reader else Frontier())
            except (LeaseExpired, CollectionNotFound, Closed):
                self._over = True
                renewer.discard(self)
                return
        # The read may have ended meanwhile, when there was no hold yet to end.
        renewer.add(self)

    def give_up(self) -> None:
        """End the hold, because the lake is closed."""
        self.close()

    def _commit(self, since: Frontier | None, *, newest: bool = False) -> ShardState:
        """Open or renew the hold, with the pins that are needed now; the state. The caller holds the lock."""
        shard, now_s = self.shard, self.shard.env.clock.monotonic_s()
        # Before the commit: a thread that sees the id knows that there may be a hold.
        self._id = self._id or shard.env.ids.fresh()
        wanted = self._wanted(now_s, None if newest else self._base)

        def command(state: ShardState, now_ms: int) -> Outcome[tuple[Hold, ShardState]]:
            pins = (*wanted, state.seqno) if newest else wanted
            if self.id in state.holds or (self._opened and not self._reopens):
                # A read that was looked at too late cannot be kept; the others can.
                pins = holds.intact(state, self.id, pins)
                outcome = holds.renew_hold(
                    state, now_ms, self.id, since=since, pins=pins, lease_ms=self._lease_ms
                )
            else:
                outcome = holds.open_hold(
                    state, now_ms, self.id, self._purpose, lease_ms=self._lease_ms, since=since, pins=pins
                )
            return _beside(outcome, state)

        # With `newest`, the state that it is decided on is read.
        hold, state = shard.run(command, alone=newest)
        self._opened, self._pins = True, hold.pins
        for number, read in self._reads.copy().items():
            if read.seqno in wanted and read.seqno not in hold.pins:
                self._reads.pop(number, None)
        self._renewed_s = now_s
        self.since = hold.since
        if newest:
            self._base = state.seqno
        return state

    def _wanted(self, now_s: float, base: int | None) -> tuple[int, ...]:
        reads = self._reads.copy().values()
        pins = {r.seqno for r in reads if r.seqno in self._pins or r.old_s <= now_s}
        return tuple(sorted(pins if base is None else pins | {base}))


def young(state: ShardState) -> float:
    """For how many seconds the parts of a state are certainly in the store without a hold."""
    return state.agreed.garbage_age_ms / 1000 / SHARE


def _beside(outcome: Outcome[Hold], state: ShardState) -> Outcome[tuple[Hold, ShardState]]:
    """The same outcome, whose result has the state that it was decided on as well."""
    match outcome:
        case Commit(edits, hold, due):
            return Commit(edits, (hold, state), due)
        case NoOp(hold):
            return NoOp((hold, state))
        case refused:
            return refused


class _Reading:
    """A running read. The lease keeps its state until this object ends."""

    def __init__(self, lease: Lease, state: ShardState) -> None:
        self.lease = lease
        self.seqno = state.seqno
        # The number of no read, in case `_begin` raises.
        self._number = -1
        self._number = lease._begin(state)

    def end(self) -> None:
        """The read no longer needs its state. No store call."""
        self.lease._end(self._number)

    def __del__(self) -> None:
        self.end()


def _watched(reading: _Reading, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    lease = reading.lease
    try:
        yield from batches
    except BlobNotFound as error:
        raise explained(lease.shard, error.name, reading.seqno, lease.id) from error
    reading.end()
    lease._finish()


def explained(shard: Shard, name: str, seqno: int = -1, hold_id: str = "") -> TidelakeError:
    """The error that says why a part of a state is not in the store. Two calls of the log."""
    try:
        state = shard.state()
        if state.dropped or shard.stores.log.head(state.shard_id) is None:
            return CollectionDropped(shard.title)
    except CollectionNotFound:
        return CollectionDropped(shard.title)
    except Closed:
        # A stream may be read after its lake was closed. Then there is no log to ask.
        return LeaseExpired(hold_id, name)
    hold = state.holds.get(hold_id)
    named = any(part.name == name for part in state.parts())
    if named or (hold is not None and seqno in hold.pins):
        return CorruptionError(name, "named by the state but missing")
    return LeaseExpired(hold_id, name)


def explained_by(spec: ShardSpec, name: str) -> TidelakeError:
    """As `explained`, in a process that only has the spec."""
    try:
        stores = stores_of(spec)
        shard = Shard.open(stores, stores.env(env_here()), spec.url, spec.shard_id, spec.config)
    except CollectionNotFound:
        return CollectionDropped(spec.shard_id)
    return explained(shard, name)
