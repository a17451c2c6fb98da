"""Durable leases: leases with an id that their owner remembers, so that they outlive its process.

A follower with pauses, such as a streaming query with its checkpoint, holds the history that it has not read
yet. While a process of it runs, that process renews the hold. If none comes back in time, the hold expires as
any lease does. Owns how far the hold has moved; must not know who follows.

INVARIANT: the hold is never further than its owner has said. If it is gone, it is opened again if history is
still there; otherwise that is an error.
"""

from tidelake.errors import Closed, CollectionNotFound, HistoryCompacted, LeaseExpired
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.lease import SHARE, Lease, Read, young
from tidelake.shard.engine.renewer import LeaseRenewer
from tidelake.shard.engine.shard import Shard
from tidelake.state.core.state import ShardState

# A step forward is a log write: not at every one.
_MOVE_EVERY_S = 60.0


class DurableLease(Lease):
    """The hold of an id, from the first `keep_from` on. Thread-safe. Cannot be used in a fork.

    Args:
        shard: the shard to hold.
        id_: id of the hold; its owner gives the same id when it comes back.
        purpose: shown to people.
        lasts_s: how long the hold lasts without renewal.
    """

    _reopens = True

    def __init__(self, shard: Shard, id_: str, purpose: str, lasts_s: float) -> None:
        renewer = LeaseRenewer(shard.env, min(lasts_s / SHARE, young(shard.known()), _MOVE_EVERY_S))
        super().__init__(shard, purpose, reader=True, id_=id_, lease_ms=int(lasts_s * 1000), renewer=renewer)
        self._target = self._held = Frontier()
        self._step = next(self._numbers)

    def keep_from(self, since: Frontier) -> None:
        """Keep history from `since` on, and no longer what was read. One log write."""
        with self._lock:
            self._target = since
            self._reads.pop(self._step, None)
            self._commit_target()
        self._renewer.add(self)

    def ensure(self, state: ShardState, since: Frontier) -> None:
        """Keep history from `since` on, unless a state shows that this is done. Errors as `keep_from`."""
        if not self._opened or self.id not in state.holds:
            self.keep_from(since)

    def move(self, since: Frontier) -> None:
        """History before `since` may go. The renewer commits this, by one log write a minute at most."""
        self._target = self._target.join(since)

    def read(self, seqno: int | None) -> None:
        """What is read from now on, and alone, is of the state of this seqno; None: of no stored part."""
        now_s, young_s = self.shard.env.clock.monotonic_s(), young(self.shard.known())
        self._renewer.look_every(young_s)
        self._reads.pop(self._step, None)
        if seqno is not None:
            self._reads[self._step] = Read(seqno, now_s + young_s)

    def stop(self) -> None:
        """Renew it no more from here. The hold stays, until it expires or its owner comes back."""
        self._renewer.stop()

    def due_s(self) -> float:
        """When the next renewal, move or pin is due."""
        if not self._opened:
            return float("inf")
        moves_s = self._renewed_s + _MOVE_EVERY_S if self._target != self._held else float("inf")
        return min(super().due_s(), moves_s)

    def keep(self) -> None:
        """Do what is due, and renew the hold. One log write; none once the hold cannot be opened again."""
        with self._lock:
            try:
                self._commit_target()
            except (LeaseExpired, HistoryCompacted, CollectionNotFound, Closed):
                # The follower learns of it when it looks at the collection the next time.
                self._renewer.discard(self)
                self._opened = False

    def give_up(self) -> None:
        """Nothing: the hold is there for its owner to come back."""

    def _commit_target(self) -> None:
        target = self._target
        self._commit(target)
        self._held = target
