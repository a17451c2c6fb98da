"""Standing holds: leased, of an id that their owner remembers, so that they outlive its process.

Who follows a collection with pauses, such as a streaming query with its checkpoint, holds what it has not
read yet. While a process of it runs, signs of life come beside its work. If none comes back in time, the hold
ends as any lease does, and history is let go. Owns one hold and what it pins; must not know who follows.

INVARIANT: the hold is never further than its owner has said. It is opened again when it is gone, if history
is still there; otherwise that is an error.
"""

import threading
from functools import partial

from tidelake.errors import Closed, CollectionNotFound, HistoryCompacted, LeaseExpired
from tidelake.model.frontier import Frontier
from tidelake.shard.keeper import Keeper
from tidelake.shard.lease import young
from tidelake.shard.shard import Shard
from tidelake.state import holds
from tidelake.state.commands import Outcome
from tidelake.state.state import Hold, ShardState

# Of the time that the hold lasts, and of the time that a part stays: what may pass before a commit.
_SHARE = 3
# A step forward is a log write: not at every one.
_MOVE_EVERY_S = 60.0


class StandingHold:
    """The hold of an id, from the first `keep_from` on; in a fork it cannot be used. Thread-safe.

    Args:
        shard: that is held.
        id_: of the hold; whoever comes back gives it again.
        purpose: for people.
        lasts_s: how long it lasts without a sign of life.
    """

    def __init__(self, shard: Shard, id_: str, purpose: str, lasts_s: float) -> None:
        self.id = id_
        self._shard = shard
        self._purpose = purpose
        self._lasts_s = lasts_s
        self._keeper = Keeper(shard.env, min(lasts_s / _SHARE, young(shard.known()), _MOVE_EVERY_S))
        self._since = self._held = Frontier()
        self._read: tuple[int, float] | None = None
        self._pins: tuple[int, ...] = ()
        self._renewed_s: float | None = None
        self._turn = threading.Lock()

    def keep_from(self, since: Frontier) -> None:
        """Keep history from `since` on; what was read is not read any more. One log write.

        Raises:
            HistoryCompacted: it is no longer there.
        """
        with self._turn:
            self._since, self._read = since, None
            self._commit()
        self._keeper.add(self)

    def ensure(self, state: ShardState, since: Frontier) -> None:
        """Keep history from `since` on, unless a state shows that this is done. Errors as `keep_from`."""
        if self._renewed_s is None or self.id not in state.holds:
            self.keep_from(since)

    def move(self, since: Frontier) -> None:
        """History before `since` may go. The keeper says so, by one log write a minute at most."""
        self._since = self._since.join(since)

    def read(self, seqno: int | None) -> None:
        """What is read from now on, and alone, is of the state of this seqno; None: of no stored part."""
        now_s, young_s = self._shard.env.clock.monotonic_s(), young(self._shard.known())
        self._keeper.look_every(young_s)
        self._read = None if seqno is None else (seqno, now_s + young_s)

    def stop(self) -> None:
        """No more signs of life from here. The hold stays, until it expires or its owner comes back."""
        self._keeper.stop()

    def due_s(self) -> float:
        """When the next sign of life, move or pin is due."""
        if self._renewed_s is None:
            return float("inf")
        due_s = self._renewed_s + self._lasts_s / _SHARE
        if self._since != self._held:
            due_s = min(due_s, self._renewed_s + _MOVE_EVERY_S)
        read = self._read
        if read is not None and read[0] not in self._pins:
            due_s = min(due_s, read[1])
        return due_s

    def keep(self) -> None:
        """Do what is due, and show a sign of life. One log write; none once the hold cannot be had again."""
        with self._turn:
            try:
                self._commit()
            except (LeaseExpired, HistoryCompacted, CollectionNotFound, Closed):
                # Whoever follows learns of it when it looks at the collection the next time.
                self._keeper.discard(self)
                self._renewed_s = None

    def give_up(self) -> None:
        """Nothing: it is there for whoever comes back."""

    def _commit(self) -> None:
        """Open or renew the hold. The caller has the turn."""
        now_s = self._shard.env.clock.monotonic_s()
        read, since = self._read, self._since
        pins = (read[0],) if read is not None and read[1] <= now_s else ()
        self._shard.run(partial(self._held_from, since=since, pins=pins))
        self._held, self._pins, self._renewed_s = since, pins, now_s

    def _held_from(
        self, state: ShardState, now_ms: int, since: Frontier, pins: tuple[int, ...]
    ) -> Outcome[Hold]:
        lease_ms = int(self._lasts_s * 1000)
        if self.id in state.holds:
            return holds.renew_hold(state, now_ms, self.id, since=since, pins=pins, lease_ms=lease_ms)
        return holds.open_hold(
            state, now_ms, self.id, self._purpose, lease_ms=lease_ms, since=since, pins=pins
        )
