"""The end of a shard: a tombstone, then its objects, then its log.

The tombstone comes first, by compare-and-set: from then on no process can commit anything, so whatever is
found may go, and whoever finds a tombstone may go on with it. The log goes last: until then it says so.

As long as there are forks, what these need stays, and the log with it. What the shard itself had borrowed is
returned before its own objects and its log go, since only these tell of it.
"""

from dataclasses import dataclass
from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionDropped, CollectionNotFound, InternalError
from tidelake.model import names
from tidelake.shard.history import History
from tidelake.shard.machine import Machine
from tidelake.shard.upkeep.lending import Lending
from tidelake.state import dropping
from tidelake.state.forking import fork_pins
from tidelake.state.state import ShardState
from tidelake.store.url import Stores


@dataclass(frozen=True)
class Removed:
    """What went with shards.

    Attributes:
        shards: whose logs were deleted.
        blobs: their objects.
        size_bytes: of these.
        damaged: what was left as it is because its log cannot be used, and why, for people.
    """

    shards: int = 0
    blobs: int = 0
    size_bytes: int = 0
    damaged: tuple[str, ...] = ()

    def plus(self, other: "Removed") -> "Removed":
        """Both together."""
        return Removed(
            self.shards + other.shards,
            self.blobs + other.blobs,
            self.size_bytes + other.size_bytes,
            tuple(dict.fromkeys((*self.damaged, *other.damaged))),
        )


class Ending:
    """Ends one shard.

    Attributes:
        shard_id: of the shard.
    """

    def __init__(self, stores: Stores, env: Env, config: Config, shard_id: str) -> None:
        self._stores = stores
        self.shard_id = shard_id
        self._history = History(shard_id, stores, env)
        self._machine = Machine(self._history, config, env)
        self._lending = Lending(stores, env, config)

    def drop(self, *, force: bool = False) -> bool:
        """Make the shard a tombstone; False if it is one, or is gone. One log write.

        Raises:
            CollectionInUse: others hold it, and not `force`.
        """
        try:
            return self._machine.run(partial(dropping.drop_shard, force=force)).result
        except CollectionNotFound:
            return False

    def abandon(self, before_ms: int) -> bool:
        """Make the shard a tombstone if it was made before a time, and nobody has committed since."""
        try:
            return self._machine.run(partial(dropping.abandon, before_ms=before_ms)).result
        except CollectionNotFound:
            return False

    def is_tombstone(self) -> bool:
        """Whether its log says that it was dropped. One store call."""
        return self.dropped_ms() is not None

    def is_alive(self) -> bool:
        """Whether it is there, and no tombstone. One store call."""
        return self._history.is_alive()

    def is_newborn(self) -> bool:
        """Whether it was dropped before anybody had written to it. One store call."""
        head = self._stores.log.head(self.shard_id)
        return head is not None and head.seqno <= 1

    def dropped_ms(self) -> int | None:
        """When it was dropped; None: it was not, or is gone. One store call."""
        return self._history.dropped_ms()

    def remove(self) -> Removed:
        """Delete all objects of a tombstone, and then its log. A listing, and a call for each object.

        What forks need stays, and so does the log: whoever comes when the last one is gone removes the rest.

        Raises:
            InternalError: it is none. Nothing was deleted.
        """
        if not self.is_tombstone():
            if self._stores.log.head(self.shard_id) is None:
                return Removed()
            raise InternalError(f"shard {self.shard_id} was not dropped, and is to be removed")
        state = self._last()
        if state is not None and self._lending.settle(state):
            state = self._last()
        if state is not None and state.forks:
            return self._deleted(keep=_lent(state))
        if state is not None:
            self._lending.return_borrowed(state)
        removed = self._deleted(keep=frozenset())
        # Before the log: until that is gone, whoever comes next does it again.
        self._stores.blobs.prune(self.shard_id)
        return removed.plus(Removed(int(self._stores.log.delete(self.shard_id))))

    def _last(self) -> ShardState | None:
        """The tombstone; None if somebody is at deleting it, who has seen that nobody needs it."""
        try:
            known = self._history.open()
        except CollectionDropped:
            return None
        return None if known is None else known.state

    def _deleted(self, keep: frozenset[str]) -> Removed:
        blobs = size_bytes = 0
        for info in self._stores.blobs.list(f"{self.shard_id}/"):
            if info.name not in keep and self._stores.blobs.delete(info.name):
                blobs, size_bytes = blobs + 1, size_bytes + info.size_bytes
        return Removed(0, blobs, size_bytes)


def _lent(state: ShardState) -> frozenset[str]:
    """What forks of a tombstone need, and what the tombstone is read from. It only ever gets less."""
    pins = fork_pins(state)
    kept = {name for name, lost in state.garbage.items() if any(map(lost.read_by, pins))}
    return frozenset({*kept, names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id)})
