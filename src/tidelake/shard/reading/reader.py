"""Readers: reads under a hold on `since` and on the parts that are read, and the live tail.

While a reader is open, history from its `since` on is not folded. A background worker renews its hold. The
reader moves the hold forward as it follows, and ends it when it is closed. Owns which version a reader reads;
`tidelake.shard.engine.lease` owns when it is pinned.

INVARIANT: each answer of a reader is whole and exact, and comes from a version in which its hold existed.
"""

import warnings
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from tidelake.data.answer.rows import Rows
from tidelake.errors import HistoryCompacted, NotYetClosed
from tidelake.model.frontier import Frontier
from tidelake.model.query import Query, Updates
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time
from tidelake.shard.engine.lease import Lease
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import Version
from tidelake.shard.reading import query
from tidelake.shard.reading.unsealed import StagedStep, staged_steps
from tidelake.shard.reading.versionread import VersionRead
from tidelake.state.core.backlog import end_of
from tidelake.state.core.state import ShardState

_DOWNGRADE_EVERY_S = 60.0
_ALL = ReadOptions()
_PATIENT = ReadOptions(timeout_s=float("inf"))


@dataclass(frozen=True)
class Step:
    """One step of a live tail: what is new, or of a long backlog the next slice of history.

    Attributes:
        lower: all earlier times were in earlier steps.
        upper: all times of `[lower, upper)` that were asked for are in this step.
        updates: the updates of these times, sorted and consolidated; columns as `update_schema`. Read them
            before the next step.
    """

    lower: Frontier
    upper: Frontier
    updates: Rows


@dataclass(frozen=True)
class ListenOptions:
    """Options of a live tail.

    Attributes:
        options: which rows and columns, and how long to wait for each next step.
        until: where the tail ends; default: when all times of the collection are closed.
    """

    options: ReadOptions = _PATIENT
    until: Frontier = field(default_factory=Frontier)


class Reader:
    """A hold on a shard, kept until `close` (or the end of a `with` block). One log write to open.

    A reader that is not closed warns when it is forgotten, and its hold expires. It cannot be used in a fork.
    """

    def __init__(self, shard: Shard, purpose: str, since: Frontier | None = None) -> None:
        self._shard = shard
        self._closed = True
        self._lease = Lease(shard, purpose, reader=True)
        # None: a tail has left it behind.
        self._version: Version | None = self._lease.pin(since)
        # Whether the version was pinned for a read with `staged`.
        self._ahead = False
        self._closed = False
        self._downgraded_s = shard.env.clock.monotonic_s()

    @property
    def since(self) -> Frontier:
        """History from here on is held."""
        return self._lease.since

    @property
    def id(self) -> str:
        """Id of the hold in the state."""
        return self._lease.id

    def downgrade(self, since: Frontier) -> None:
        """Release history before `since`, and pin the newest version instead. One log write."""
        self._version, self._ahead = self._lease.pin(since), False

    def close(self) -> None:
        """End the hold, also for streams that are still read. May be repeated."""
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

    def stream(self, asked: Query, options: ReadOptions = _ALL) -> Rows:
        """The answer, from the version that is pinned if that knows it; otherwise the newest is pinned first.

        The first read with `staged` pins the newest version, and later ones read what was staged in it. One
        log scan, and one log write if another version is pinned. Errors as
        `tidelake.shard.reading.query.read`.
        """
        version = self._knowing(asked, options)
        return VersionRead.of(self._shard, version, asked, options).stream()

    def split(self, asked: Query, n: int, options: ReadOptions = _ALL) -> list[Rows]:
        """The answer in `n` streams; see `VersionRead.split`. Version and errors as `stream`."""
        version = self._knowing(asked, options)
        return VersionRead.of(self._shard, version, asked, options).split(n)

    def _knowing(self, asked: Query, options: ReadOptions) -> Version:
        """A pinned version that knows the answer."""
        self._alive()
        version = self._version
        if version is None or not (query.answers(version.state, asked) or (options.staged and self._ahead)):
            try:
                query.ready(self._shard, asked, options)
            except HistoryCompacted:
                # The hold may have ended since the check above.
                self._alive()
                raise
            self._version = version = self._lease.pin()
            self._ahead = self._ahead or options.staged
        query.check_since(asked, version.state)
        return version

    def ahead(self) -> ShardState:
        """The state for reads with `staged`. The first call pins the newest version, by one log write."""
        self._alive()
        if self._version is None or not self._ahead:
            self._version, self._ahead = self._lease.pin(), True
        return self._version.state

    def listen(self, as_of: Time, following: ListenOptions | None = None) -> Iterator[Step]:
        """Every time after `as_of`, exactly once, in steps of the frontier.

        Ends when the next step does not come in time, or when all times are closed. At most one log scan for
        each look. A step is pinned if it is read for long.
        """
        return self.follow(Frontier.past(as_of), following or ListenOptions(), as_of)

    def follow(self, lower: Frontier, following: ListenOptions, told: object = None) -> Iterator[Step]:
        """Every time from `lower` on, as `listen`. An error names `told`, or the frontier if that is None."""
        self._check_from(lower, told)
        return self._steps(lower, following)

    def follow_staged(
        self, lower: Frontier, following: ListenOptions, told: object = None
    ) -> Iterator[StagedStep]:
        """Every update from `lower` on as it is staged, and what seals it; see `staged_steps`."""
        self._check_from(lower, told)
        # The tail does not need the version that it began with.
        self._version = None
        self._lease.unpin()
        asked = Updates(lower, following.until.join(lower))
        return staged_steps(self._shard, self._lease, asked, following.options, self._maybe_downgrade)

    def _check_from(self, lower: Frontier, told: object) -> None:
        state = self._alive()
        if state.since != state.minimum and not state.since.keeps_times_from(lower):
            error = (
                query.updates_folded(lower, state.since)
                if told is None
                else HistoryCompacted(told, state.since)
            )
            raise error.of(state.domain.unit)

    def _steps(self, frontier: Frontier, following: ListenOptions) -> Iterator[Step]:
        until = following.until.join(frontier)
        while frontier != until:
            try:
                reached = partial(self._has_closed, frontier, until)
                version = query.wait(self._shard, reached, frontier, following.options.timeout_s)
            except NotYetClosed:
                return
            upper = _step_end(version.state, frontier, _reached(version.state, frontier, until))
            asked = Updates(frontier, upper)
            query.check_since(asked, version.state)
            # The tail no longer needs the version that it began with.
            self._version = None
            self._lease.unpin()
            kept = version.kept_by(self._lease)
            updates = VersionRead.of(self._shard, kept, asked, following.options).stream()
            yield Step(frontier, upper, updates)
            frontier = upper
            self._maybe_downgrade(frontier)

    def _has_closed(self, frontier: Frontier, until: Frontier, state: ShardState) -> bool:
        """Whether the shard has closed a time from the frontier on."""
        self._lease.check(state)
        return _reached(state, frontier, until) != frontier

    def _alive(self) -> ShardState:
        """The newest state. One log scan."""
        state = self._shard.version().state
        self._lease.check(state)
        return state

    def _maybe_downgrade(self, frontier: Frontier) -> None:
        """Move the hold forward, but not at every step: that is a log write."""
        now_s = self._shard.env.clock.monotonic_s()
        if now_s - self._downgraded_s >= _DOWNGRADE_EVERY_S:
            self._downgraded_s = now_s
            self._lease.renew(frontier.just_before())


def _reached(state: ShardState, frontier: Frontier, until: Frontier) -> Frontier:
    """How far the times from a frontier on are closed."""
    # With tuples the shard's upper may be behind it in some component.
    return state.upper.join(frontier).meet(until)


def _step_end(state: ShardState, frontier: Frontier, upper: Frontier) -> Frontier:
    """How far a step from a frontier goes: not past the slice that it begins in.

    So a listener that was away reads slice by slice, merges none of them, and gets no step larger than one.
    """
    slices = state.spine.slices
    if not state.domain.total_order or not slices:
        return upper
    index = bisect_right(slices, end_of(frontier), key=lambda held: end_of(held.bounds.upper))
    return upper.meet(slices[index].bounds.upper) if index < len(slices) else upper
