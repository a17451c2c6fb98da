"""Readers that stay: a hold on `since`, and the live tail.

While a reader is open, history from its `since` on is not folded. It moves its own hold forward as it
goes and gives it up when closed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import pyarrow as pa

from tidelake.errors import HistoryCompacted, NotYetClosed
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.model.time import Time
from tidelake.shard import query
from tidelake.shard.shard import Shard
from tidelake.state import holds
from tidelake.state.state import ShardState

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


class Reader:
    """A hold on a shard, kept until `close` (or the end of a `with` block)."""

    def __init__(self, shard: Shard, purpose: str, since: Frontier | None = None) -> None:
        self._shard = shard
        self.id = shard.env.ids.fresh()
        hold = shard.run(
            partial(
                holds.open_hold,
                hold_id=self.id,
                purpose=purpose,
                since=since,
                lease_ms=_lease_ms(shard),
            )
        )
        self.since = hold.since
        self._downgraded_s = shard.env.clock.monotonic_s()

    def downgrade(self, since: Frontier) -> None:
        """No longer hold history before `since`. One log write, none if it does not move.

        Raises:
            LeaseExpired: the hold is gone.
        """
        self.since = self._shard.run(partial(holds.renew_hold, hold_id=self.id, since=since)).since

    def close(self) -> None:
        """Give the hold up. May be repeated."""
        self._shard.run(partial(holds.close_hold, hold_id=self.id))

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def listen(self, as_of: Time, timeout_s: float | None = None) -> Iterator[Step]:
        """Every time that is not at or before `as_of`, exactly once, in steps of the frontier.

        Waits up to `timeout_s` (None: for ever) for each next step and ends when none came, or when the
        collection is closed. At most one log scan a look.

        Raises:
            HistoryCompacted: updates after `as_of` can no longer be told apart.
        """
        frontier = Frontier.past(as_of)
        state = self._shard.state()
        if state.since != state.minimum and not state.since.keeps_times_from(frontier):
            raise HistoryCompacted(as_of, state.since)
        return self._steps(frontier, timeout_s)

    def _steps(self, frontier: Frontier, timeout_s: float | None) -> Iterator[Step]:
        patience_s = float("inf") if timeout_s is None else timeout_s
        while not frontier.closed:
            try:
                state = query.wait(self._shard, partial(_beyond, frontier), frontier, patience_s)
            except NotYetClosed:
                return
            # With tuples the shard's upper may be behind the start in some component.
            upper = state.upper.join(frontier)
            yield Step(frontier, upper, query.stream(self._shard, Updates(frontier, upper), 0, state))
            frontier = upper
            self._maybe_downgrade(frontier)

    def _maybe_downgrade(self, frontier: Frontier) -> None:
        """Follow with the hold, but not at every step: a downgrade is a log write."""
        now_s = self._shard.env.clock.monotonic_s()
        if now_s - self._downgraded_s >= _DOWNGRADE_EVERY_S:
            self._downgraded_s = now_s
            self.downgrade(frontier.just_before())


def _lease_ms(shard: Shard) -> int:
    return int(shard.spec.config.lease_s * 1000)


def _beyond(frontier: Frontier, state: ShardState) -> bool:
    """Whether the shard has closed a time that is beyond the frontier."""
    return not state.upper <= frontier
