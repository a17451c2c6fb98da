"""Readers that stay: a hold on `since` and on the parts that are read, and the live tail.

While a reader is open, history from its `since` on is not folded. It shows signs of life beside its caller,
moves its own hold forward as it goes and gives it up when closed. Owns what a reader reads; when and what
is pinned is `tidelake.shard.lease`.

INVARIANT: what a reader returns comes from a state in which its hold was alive, whole and exact.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

import pyarrow as pa

from tidelake.errors import HistoryCompacted, NotYetClosed
from tidelake.model.frontier import Frontier
from tidelake.model.query import Query, Updates
from tidelake.model.selection import Wanted
from tidelake.model.time import Time
from tidelake.shard.lease import Lease
from tidelake.shard.reading import query
from tidelake.shard.reading.split import split_of
from tidelake.shard.shard import Shard
from tidelake.state.state import ShardState
from tidelake.state.transactions import seen_through

_DOWNGRADE_EVERY_S = 60.0


@dataclass(frozen=True)
class Step:
    """One step of a live tail.

    Attributes:
        lower: all earlier times were in the steps before.
        upper: all times of `[lower, upper)` that were asked for are in this step.
        updates: theirs, sorted and consolidated; columns as `update_schema`. Read it before the next step.
    """

    lower: Frontier
    upper: Frontier
    updates: pa.RecordBatchReader


@dataclass(frozen=True)
class Following:
    """How a live tail is followed.

    Attributes:
        timeout_s: how long to wait for each next step; None: for ever.
        until: where it ends; default: when the collection is closed for good.
        wanted: which rows and columns.
    """

    timeout_s: float | None = None
    until: Frontier = field(default_factory=Frontier)
    wanted: Wanted = field(default_factory=Wanted)


class Reader:
    """A hold on a shard, kept until `close` (or the end of a `with` block). One log write to open.

    One that is forgotten warns; its hold shows no more signs of life, and expires. In a fork it cannot be
    used.

    Attributes:
        since: history from here on is held.
    """

    def __init__(self, shard: Shard, purpose: str, since: Frontier | None = None) -> None:
        self._shard = shard
        self._closed = True
        self._lease = Lease(shard, purpose, reader=True)
        self._pinned: ShardState | None
        # Whether what is staged was looked at in the pinned state.
        self._ahead = False
        hold, self._pinned = self._lease.pin(since)
        self._closed = False
        self.since = hold.since
        self._downgraded_s = shard.env.clock.monotonic_s()

    @property
    def id(self) -> str:
        """The name of the hold in the state."""
        return self._lease.id

    def downgrade(self, since: Frontier) -> None:
        """No longer hold history before `since`, nor the state that was pinned. One log write.

        Raises:
            LeaseExpired: the hold is gone.
        """
        hold, self._pinned = self._lease.pin(since)
        self._ahead = False
        self.since = hold.since

    def close(self) -> None:
        """Give the hold up. May be repeated. Streams that are still read are held no longer."""
        self._closed = True
        self._lease.close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._lease.over or self._lease.foreign:
            return
        self._lease.abandon()
        warnings.warn(
            f"reader {self.id} was not closed: its hold keeps history until it expires",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def stream(
        self,
        asked: Query,
        timeout_s: float | None = None,
        wanted: Wanted | None = None,
        *,
        staged: bool = False,
    ) -> pa.RecordBatchReader:
        """The answer, from the state that is pinned if that knows it; otherwise the newest is pinned first.

        What is `staged` for open times comes from the newest state at the first such read, and from the state
        that is pinned then. One log scan, and one log write if another state is pinned. Errors as
        `tidelake.shard.reading.query.stream`.

        Raises:
            LeaseExpired: the hold is gone.
        """
        pinned = self._knowing(asked, timeout_s, staged=staged)
        return query.streamed(self._shard, pinned, asked, self._lease, wanted=wanted or Wanted())

    def split(
        self, asked: Query, n: int, timeout_s: float | None = None, wanted: Wanted | None = None
    ) -> list[pa.RecordBatchReader]:
        """The answer in `n` streams; see `tidelake.shard.reading.split`. State and errors as `stream`."""
        pinned = self._knowing(asked, timeout_s)
        return split_of(self._shard, pinned, asked, n, lease=self._lease, wanted=wanted or Wanted())

    def _knowing(self, asked: Query, timeout_s: float | None, *, staged: bool = False) -> ShardState:
        """A pinned state that knows the answer."""
        self._alive()
        pinned = self._pinned
        if pinned is None or not (query.answers(pinned, asked) or (staged and self._ahead)):
            try:
                query.ready(self._shard, asked, timeout_s, staged=staged)
            except HistoryCompacted:
                # Perhaps because the hold has ended since it was looked at.
                self._alive()
                raise
            self._pinned = pinned = self._newest()
            self._ahead = self._ahead or staged
        query.check_since(asked, pinned)
        return pinned

    def ahead(self) -> ShardState:
        """The state that answers for what is staged. If there was none, the newest, by one log write.

        Raises:
            LeaseExpired: the hold is gone.
        """
        self._alive()
        if self._pinned is None or not self._ahead:
            self._pinned, self._ahead = self._newest(), True
        return self._pinned

    def _newest(self) -> ShardState:
        """The newest state, pinned. One log write."""
        view = self._shard.view()
        _, state = self._lease.pin()
        return seen_through(state, view)

    def listen(self, as_of: Time, following: Following | None = None) -> Iterator[Step]:
        """Every time that is not at or before `as_of`, exactly once, in steps of the frontier.

        Ends when a next step does not come in time, or when the collection is closed. At most one log scan
        a look. A step is pinned if it is read for long.

        Raises:
            HistoryCompacted: updates after `as_of` can no longer be told apart.
            LeaseExpired: the hold is gone.
        """
        return self.follow(Frontier.past(as_of), following or Following(), as_of)

    def follow(self, lower: Frontier, following: Following, told: object = None) -> Iterator[Step]:
        """Every time beyond `lower`, as `listen`. What an error says is gone is `told`, or that frontier."""
        state = self._alive()
        if state.since != state.minimum and not state.since.keeps_times_from(lower):
            raise (
                query.updates_folded(lower, state.since)
                if told is None
                else HistoryCompacted(told, state.since)
            )
        return self._steps(lower, following)

    def _steps(self, frontier: Frontier, following: Following) -> Iterator[Step]:
        patience_s = float("inf") if following.timeout_s is None else following.timeout_s
        until = following.until.join(frontier)
        while frontier != until:
            try:
                state = query.wait(self._shard, partial(self._beyond, frontier, until), frontier, patience_s)
            except NotYetClosed:
                return
            upper = _reached(state, frontier, until)
            asked = Updates(frontier, upper)
            query.check_since(asked, state)
            # Whoever follows leaves the state behind from which it started.
            self._pinned = None
            self._lease.unpin()
            updates = query.streamed(self._shard, state, asked, self._lease, wanted=following.wanted)
            yield Step(frontier, upper, updates)
            frontier = upper
            self._maybe_downgrade(frontier)

    def _beyond(self, frontier: Frontier, until: Frontier, state: ShardState) -> bool:
        """Whether the shard has closed a time that is beyond the frontier."""
        self._lease.check(state)
        return _reached(state, frontier, until) != frontier

    def _alive(self) -> ShardState:
        """The newest state. One log scan."""
        state = self._shard.readable()
        self._lease.check(state)
        return state

    def _maybe_downgrade(self, frontier: Frontier) -> None:
        """Follow with the hold, but not at every step: a downgrade is a log write."""
        now_s = self._shard.env.clock.monotonic_s()
        if now_s - self._downgraded_s >= _DOWNGRADE_EVERY_S:
            self._downgraded_s = now_s
            self.since = self._lease.renew(frontier.just_before()).since


def _reached(state: ShardState, frontier: Frontier, until: Frontier) -> Frontier:
    """How far the times beyond a frontier are closed."""
    # With tuples the shard's upper may be behind it in some component.
    return state.upper.join(frontier).meet(until)
