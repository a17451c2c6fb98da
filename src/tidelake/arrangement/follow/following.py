"""Keeps an index up to date with a shard: loads a snapshot, then applies every update once.

Owns the position, before which all updates are applied, and the thread that advances it. Must not know how
rows are indexed or saved.

INVARIANT: the position advances only when all updates before it are applied, and the `since` of the index
stays before the position. So a read as of the last time before the position is exact at any moment, also
while a step is under way. After an erasure the index is of no use: it has the rows, and may lack what
replaces them. So it takes no update that was read after one, and says so at each use from then on.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from tidelake.data.answer.rows import Rows
from tidelake.env import Env, Spawned, Stop
from tidelake.errors import Closed, CollectionNotFound, NotYetClosed, RowsErased
from tidelake.handle import Handle
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Updates
from tidelake.model.time import Time
from tidelake.shard.engine.renewer import LeaseRenewer
from tidelake.shard.reading.tail import Tail
from tidelake.state.core.backlog import Limits, end_of

R = TypeVar("R")

# Bounds the memory of a step. The updates of one time are never split.
_LIMITS = Limits(rows=262_144)


class UpdateSink(Protocol):
    """The index that is kept up to date."""

    def load(self, contents: Rows, asked: AsOf) -> None:
        """Append the initial contents, sorted, of any size; `asked` is their time.

        If it raises, the index is discarded.
        """

    def take(self, updates: Rows) -> None:
        """Append updates that fit into memory, atomically: if it raises, none of them is visible.

        Must not wait: if a wait were interrupted, the caller could not tell that the updates were appended.
        """

    def wait(self) -> None:
        """Wait until there is memory for the next updates."""

    def fold(self, since: Frontier) -> None:
        """Allow times before `since` to be folded into it."""


class Follower(Handle):
    """Keeps a sink up to date with a shard. Thread-safe.

    Args:
        tail: the shard's tail; the follower is its only user.
        sink: gets the updates.
        env: clock, and spawner of the background thread.
        renewer: the lake's renewer; following ends when it closes.
        poll_s: pause between two polls for new updates.
        keeps_history: whether the owner of the sink sets its since; otherwise it follows the position.

    Attributes:
        erased: seqno of the first state after the last erasure that its contents were loaded after.
    """

    def __init__(
        self,
        tail: Tail,
        sink: UpdateSink,
        env: Env,
        renewer: LeaseRenewer,
        *,
        poll_s: float,
        keeps_history: bool,
    ) -> None:
        self._tail, self._sink, self._env, self._renewer = tail, sink, env, renewer
        self._poll_s, self._keeps_history = poll_s, keeps_history
        self._position = Frontier()
        self._floor: Frontier | None = None
        self._error: Exception | None = None
        self._outdated: RowsErased | None = None
        self.erased = 0
        self._spawned: Spawned | None = None
        self._closed = self._ended = False
        # Reentrant: a signal handler may close the lake in the middle of a step.
        self._lock = threading.RLock()
        self._view = threading.Lock()

    @property
    def position(self) -> Frontier:
        """All updates before it are applied."""
        return self._position

    @property
    def hold(self) -> str:
        """The id of the hold on history."""
        return self._tail.hold

    def begin(self, as_of: Time | None, timeout_s: float) -> None:
        """Load the contents at a time, by default the last closed one. One log write, for the hold."""
        self._renewer.add(self)
        with self._lock:
            # Before anything is read: an erasure meanwhile makes the next step fail.
            self.erased = self._tail.head(fresh=True).state.erased
            if as_of is None:
                position = self._tail.begin_with_snapshot() or self._tail.begin(Frontier.of(0))
            else:
                position = self._tail.begin(self._reached(as_of, timeout_s))
            if end_of(position):
                asked = self._tail.snapshot_of(position)
                self._sink.load(self._tail.read(asked, position), asked)
                self._sink.fold(Frontier.of(asked.time))
            self._position = position

    def resume(self, position: Frontier, erased: int) -> None:
        """Go on from a position before which the sink has all updates. One log write, for the hold."""
        self._renewer.add(self)
        with self._lock:
            self.erased = erased
            self._position = self._floor = self._tail.begin(position)

    def step(self) -> bool:
        """Apply new updates, as many as fit into memory; returns whether there were any."""
        with self._lock:
            self._check_open()
            start = self._position
            end = self._tail.step(start, _LIMITS, empty=True)
            updates = None if end == start else self._tail.read(Updates(start, end), start)
            # The newest state that the tail has seen is that of the read, or a later one.
            self._check_erased()
            if updates is None:
                return False
            self._sink.take(updates)
            # SUBTLE: set before any wait: if a wait were interrupted first, the next step would apply the
            # same updates again.
            self._position = end
            if not self._keeps_history:
                with self._view:
                    self._sink.fold(Frontier.of(last_before(end)))
            self._tail.move(end if self._floor is None else self._floor)
            self._sink.wait()
            return True

    def catch_up(self, through: Time | None, timeout_s: float) -> Time:
        """Step until a time is applied, by default the last closed one; returns the last applied time."""
        self.check()
        clock = self._env.clock
        deadline_s = clock.monotonic_s() + timeout_s
        with self._lock:
            target = self._tail.head(fresh=True).upper if through is None else Frontier.past(through)
            self._check_erased()
        while not target <= self._position:
            if self.step():
                continue
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                raise self._open_yet(through, self._position, timeout_s)
            clock.sleep(min(self._poll_s, left_s))
        return last_before(self._position)

    def seen(self, look: Callable[[Time], R]) -> R:
        """Call `look` with the last applied time; until it returns, the sink's since does not pass it."""
        self.check()
        with self._view:
            return look(last_before(self._position))

    def between_steps(self, capture: Callable[[Frontier], R]) -> R:
        """Call `capture` with the position between two steps. The hold keeps history from there on."""
        with self._lock:
            self._check_open()
            if self._floor is None:
                self._floor = self._position
            return capture(self._position)

    def keep_from(self, position: Frontier) -> None:
        """Move the hold: history is kept from a position on, which the oldest checkpoint needs."""
        with self._lock:
            self._floor = position
            self._tail.move(position)

    def start(self) -> None:
        """Follow in a background thread, until `stop`. May be repeated."""
        self._check_open()
        if self._spawned is None:
            self._spawned = self._env.spawner.spawn("tidelake-follow", self._run)

    def stop(self) -> None:
        """Stop the background thread. May be repeated."""
        spawned, self._spawned = self._spawned, None
        if spawned is not None:
            spawned.stop()

    def close(self) -> None:
        """Stop following. One log write: the hold is released, or renewed if a checkpoint needs it."""
        self._closed = True
        # If the lake was closed or the collection dropped before, the hold expires by itself.
        with suppress(Closed, CollectionNotFound):
            self._end()

    def due_s(self) -> float:
        """See `shard.renewer.Kept`: nothing is ever due."""
        return float("inf")

    def keep(self) -> None:
        """See `shard.renewer.Kept`: there is nothing to renew."""

    def give_up(self) -> None:
        """Stop following because the lake is being closed; reads of the arrangement go on."""
        followed = self._spawned is not None
        try:
            self._end()
        finally:
            if followed:
                self._error = Closed(
                    "the lake was closed, so its arrangement stopped following; it keeps the contents it has"
                )

    def _end(self) -> None:
        self.stop()
        self._renewer.discard(self)
        with self._lock:
            ended, self._ended = self._ended, True
            if ended:
                return
            if self._floor is None:
                self._tail.release()
            else:
                self._tail.leave()

    def check(self) -> None:
        """Raise the last error of the background thread, once; the thread goes on trying."""
        self._check_open()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the arrangement was closed: arrange anew")
        if self._outdated is not None:
            raise self._outdated

    def _check_erased(self) -> None:
        try:
            self._tail.check_erased(self.erased)
        except RowsErased as error:
            self._outdated = error
            raise

    def _reached(self, as_of: Time, timeout_s: float) -> Frontier:
        """Wait until a time is closed; returns the position just past it."""
        clock, start = self._env.clock, Frontier.past(as_of)
        deadline_s = clock.monotonic_s() + timeout_s
        while not start <= (upper := self._tail.head(fresh=True).upper):
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                raise self._open_yet(as_of, upper, timeout_s)
            clock.sleep(min(self._poll_s, left_s))
        return start

    def _open_yet(self, asked: Time | None, upper: Frontier, timeout_s: float) -> NotYetClosed:
        """The error of a time that was not reached."""
        return NotYetClosed(asked, end_of(upper), timeout_s).of(self._tail.known.domain.unit)

    def _run(self, stop: Stop) -> None:
        while not stop.wait(self._poll_s):
            try:
                while self.step():
                    if stop.wait(0):
                        return
            except (Closed, RowsErased) as error:
                self._error = error
                return
            except Exception as error:
                # The next call of the user raises it. The store may come back, so the thread goes on.
                self._error = error


def last_before(position: Frontier) -> int:
    """The last time before a position of integer times; 0 if there is none."""
    return max(end_of(position) - 1, 0)
