"""Keeping an index up to date with a shard: a snapshot first, then every update once.

Owns the position, whose times are all in, and the worker that moves it. Must not know how rows are indexed
or saved.

INVARIANT: the position moves only when all updates before it are in, and the frontier of the index is never
at it or past it. So what is looked up at the last time before the position is exact at any moment; of a step
that is under way nothing is seen.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import pyarrow as pa

from tidelake.env import Env, Spawned, Stop
from tidelake.errors import Closed, CollectionNotFound, NotYetClosed
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.model.time import Time
from tidelake.shard.keeper import Keeper
from tidelake.shard.reading.tail import Tail
from tidelake.state.backlog import Limits, end_of

R = TypeVar("R")

# So that a step fits into memory. A single time is never cut.
_LIMITS = Limits(rows=262_144)


class Sink(Protocol):
    """What is kept up to date."""

    def load(self, contents: pa.RecordBatchReader) -> None:
        """Take the first contents, sorted, of any length. If it raises, nobody looks at what is in."""

    def take(self, updates: pa.RecordBatchReader) -> None:
        """Insert updates that fit into memory; all of them are seen from then on, or (if it raises) none.

        Does not wait: whoever interrupts a wait would not know that they are in.
        """

    def wait(self) -> None:
        """Wait until more is welcome."""

    def fold(self, frontier: Frontier) -> None:
        """Times before it need not be told apart any more."""


class Follower:
    """Brings a sink up to date. Thread-safe.

    Args:
        tail: of the shard; nobody else uses it.
        sink: takes the updates.
        env: clock, and who starts the worker.
        keeper: of the lake; with it the following ends.
        poll_s: pause between two looks for news.
        keeps_history: whether the sink's frontier stays where its owner puts it, rather than follow.
    """

    def __init__(
        self, tail: Tail, sink: Sink, env: Env, keeper: Keeper, *, poll_s: float, keeps_history: bool
    ) -> None:
        self._tail, self._sink, self._env, self._keeper = tail, sink, env, keeper
        self._poll_s, self._keeps_history = poll_s, keeps_history
        self._position = Frontier()
        self._floor: Frontier | None = None
        self._error: Exception | None = None
        self._spawned: Spawned | None = None
        self._closed = self._ended = False
        # A signal handler may close the lake amid a step.
        self._turn = threading.RLock()
        self._view = threading.Lock()

    @property
    def position(self) -> Frontier:
        """All updates before it are in."""
        return self._position

    @property
    def hold(self) -> str:
        """The id of the hold on history."""
        return self._tail.hold

    def begin(self, as_of: Time | None, timeout_s: float) -> None:
        """Load the contents at a time, by default at the last closed one. One log write, for the hold.

        Raises:
            HistoryCompacted: the time is before `since`.
            NotYetClosed: the time is still open after `timeout_s`.
        """
        self._keeper.add(self)
        with self._turn:
            if as_of is None:
                position = self._tail.begin_with_snapshot() or self._tail.begin(Frontier.of(0))
            else:
                position = self._tail.begin(self._reached(as_of, timeout_s))
            if end_of(position):
                asked = self._tail.snapshot_of(position)
                self._sink.load(self._tail.read(asked, position))
                self._sink.fold(Frontier.of(asked.time))
            self._position = position

    def resume(self, position: Frontier) -> None:
        """Go on from a position whose updates are in the sink. One log write, for the hold.

        Raises:
            HistoryCompacted: updates from there on cannot be told apart any more.
        """
        self._keeper.add(self)
        with self._turn:
            self._position = self._floor = self._tail.begin(position)

    def step(self) -> bool:
        """Take what is new, or a part of it that fits into memory; whether there was anything."""
        with self._turn:
            self._check_open()
            start = self._position
            end = self._tail.step(start, _LIMITS, empty=True)
            if end == start:
                return False
            self._sink.take(self._tail.read(Updates(start, end), start))
            # SUBTLE: not in a wait for the view: interrupted there, the next step would take them in again.
            self._position = end
            if not self._keeps_history:
                with self._view:
                    self._sink.fold(Frontier.of(last_before(end)))
            self._tail.move(end if self._floor is None else self._floor)
            self._sink.wait()
            return True

    def catch_up(self, through: Time | None, timeout_s: float) -> Time:
        """Step until a time is in, by default the last one that is closed now; the last time that is in.

        Raises:
            NotYetClosed: it is still open after `timeout_s`.
        """
        self.check()
        clock = self._env.clock
        deadline_s = clock.monotonic_s() + timeout_s
        with self._turn:
            target = self._tail.head(fresh=True).upper if through is None else Frontier.past(through)
        while not target <= self._position:
            if self.step():
                continue
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                raise NotYetClosed(through, end_of(self._position), timeout_s)
            clock.sleep(min(self._poll_s, left_s))
        return last_before(self._position)

    def seen(self, look: Callable[[Time], R]) -> R:
        """What `look` makes of the last time that is in; meanwhile the sink's frontier does not pass it."""
        self.check()
        with self._view:
            return look(last_before(self._position))

    def between_steps(self, capture: Callable[[Frontier], R]) -> R:
        """What `capture` makes of the position while no step is under way. From it on history is kept."""
        with self._turn:
            if self._floor is None:
                self._floor = self._position
            return capture(self._position)

    def keep_from(self, position: Frontier) -> None:
        """History is needed from a position on, by who goes on from a checkpoint, and no longer before."""
        with self._turn:
            self._floor = position
            self._tail.move(position)

    def start(self) -> None:
        """Follow beside the caller, until `stop`. May be repeated."""
        self._check_open()
        if self._spawned is None:
            self._spawned = self._env.spawner.spawn("tidelake-follow", self._run)

    def stop(self) -> None:
        """Follow no longer beside the caller. May be repeated."""
        spawned, self._spawned = self._spawned, None
        if spawned is not None:
            spawned.stop()

    def close(self) -> None:
        """Follow no more. One log write: the hold is released, or renewed if a checkpoint goes on from it."""
        self._closed = True
        # Of a lake that was closed before, the hold ends by itself.
        with suppress(Closed, CollectionNotFound):
            self._end()

    def due_s(self) -> float:
        """As `shard.keeper.Kept`: never."""
        return float("inf")

    def keep(self) -> None:
        """As `shard.keeper.Kept`: nothing."""

    def give_up(self) -> None:
        """The lake is being closed: follow no more, as `close`; look-ups go on, of what is in."""
        followed = self._spawned is not None
        try:
            self._end()
        finally:
            if followed:
                self._error = Closed(
                    "the lake was closed: its arrangement follows no more, and has what it had"
                )

    def _end(self) -> None:
        self.stop()
        self._keeper.discard(self)
        with self._turn:
            ended, self._ended = self._ended, True
            if ended:
                return
            if self._floor is None:
                self._tail.release()
            else:
                self._tail.leave()

    def check(self) -> None:
        """Raise what went wrong beside the caller since the last check; it is tried again all the same."""
        self._check_open()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the arrangement was closed: arrange anew")

    def _reached(self, as_of: Time, timeout_s: float) -> Frontier:
        """The position past a time, once that is closed."""
        clock, start = self._env.clock, Frontier.past(as_of)
        deadline_s = clock.monotonic_s() + timeout_s
        while not start <= (upper := self._tail.head(fresh=True).upper):
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                raise NotYetClosed(as_of, end_of(upper), timeout_s)
            clock.sleep(min(self._poll_s, left_s))
        return start

    def _run(self, stop: Stop) -> None:
        while not stop.wait(self._poll_s):
            try:
                while self.step():
                    if stop.wait(0):
                        return
            except Closed as error:
                self._error = error
                return
            except Exception as error:
                # Kept for whoever looks something up next; a store that is away may come back.
                self._error = error


def last_before(position: Frontier) -> int:
    """The last time before a position of int times; the first one if there is none."""
    return max(end_of(position) - 1, 0)
