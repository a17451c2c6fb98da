"""Ends a shard: makes it a tombstone, then deletes its objects, then its log.

The tombstone comes first, by compare-and-set: from then on no process can commit anything, so all objects may
be deleted, and any process that finds a tombstone may continue its removal. The log is deleted last, since it
tells that the shard is a tombstone.

As long as forks of the shard need its objects, these stay, and so does the log. The log also stays while it
is what leads an erasure of its origin to its forks. If the shard is a fork itself, it releases its origin
before its own objects and log are deleted, since only they name the origin.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionDropped, CollectionNotFound, InternalError
from tidelake.model import names
from tidelake.shard.engine.history import History, check_reaches
from tidelake.shard.engine.machine import Machine
from tidelake.shard.upkeep.forkpins import ForkPins
from tidelake.state.core.forks import fork_pins
from tidelake.state.core.state import ShardState
from tidelake.state.life import dropping
from tidelake.store.protocols import BlobInfo, BlobStore
from tidelake.store.url import Stores
from tidelake.tabletext import FieldsAsHtml

# Objects that a store which is far deletes at once.
_AT_ONCE = 1_000


@dataclass(frozen=True)
class Removed(FieldsAsHtml):
    """What the removal of shards deleted.

    Attributes:
        shards: number of shards whose logs were deleted.
        blobs: number of objects that were deleted.
        size_bytes: size of these objects in bytes.
        damaged: messages about shards that were left alone because their logs cannot be used.
    """

    shards: int = 0
    blobs: int = 0
    size_bytes: int = 0
    damaged: tuple[str, ...] = ()

    def plus(self, other: "Removed") -> "Removed":
        """The sum of both."""
        return Removed(
            self.shards + other.shards,
            self.blobs + other.blobs,
            self.size_bytes + other.size_bytes,
            tuple(dict.fromkeys((*self.damaged, *other.damaged))),
        )


class Ending:
    """Ends one shard."""

    def __init__(self, stores: Stores, env: Env, config: Config, shard_id: str) -> None:
        self._stores = stores
        self.shard_id = shard_id
        self._history = History(shard_id, stores, env)
        self._machine = Machine(self._history, config, env)
        self._lending = ForkPins(stores, env, config)

    @property
    def owner(self) -> str:
        """Who alone wrote to the shard, as far as this has read it; empty: any writer."""
        seen = self._machine.seen
        owned = None if seen is None else seen.state.owned
        return "" if owned is None else owned.by

    def drop(self, *, force: bool = False) -> bool:
        """Make the shard a tombstone; False if it is one already, or is gone. One log write.

        Raises:
            CollectionInUse: it has holds, and not `force`.
        """
        try:
            return self._machine.run(partial(dropping.drop_shard, force=force)).result
        except CollectionNotFound:
            return False

    def abandon(self, before_ms: int) -> bool:
        """Make the shard a tombstone if it was created before a time and never written to since.

        If it has no log any more, finish the deletion of that, which may have been interrupted.

        Raises:
            CorruptionError: objects of the shard prove that it was written to. Nothing was changed.
        """
        if self._stores.clock is not None:
            objects = [info.name for info in self._stores.blobs.list(f"{self.shard_id}/")]
            head = self._stores.log.head(self.shard_id)
            check_reaches(self.shard_id, -1 if head is None else head.seqno, objects if head else ())
        try:
            return self._machine.run(partial(dropping.abandon, before_ms=before_ms)).result
        except CollectionNotFound:
            self._stores.log.delete(self.shard_id)
            return False

    def is_tombstone(self) -> bool:
        """Whether its log says that it was dropped. One store call."""
        return self.dropped_ms() is not None

    def is_alive(self) -> bool:
        """Whether the shard exists and is not a tombstone. One store call."""
        return self._history.is_alive()

    def is_newborn(self) -> bool:
        """Whether the shard was dropped before its first write, by its first commit. One store call."""
        head = self._stores.log.head(self.shard_id)
        return head is not None and head.seqno <= 1

    def dropped_ms(self) -> int | None:
        """When the shard was dropped; None if it was not dropped, or is gone. One store call."""
        return self._history.dropped_ms()

    def is_needed(self, state: ShardState) -> bool:
        """Whether the forks of a tombstone need it, or lie below an origin that is there. One store call."""
        if fork_pins(state) or not state.forks or state.origin is None:
            return bool(fork_pins(state))
        return self._stores.log.head(state.origin.shard_id) is not None

    def remove(self) -> Removed:
        """Delete all objects of a tombstone, and then its log. A listing, and a call for each object.

        What forks need stays (`is_needed`), and so does the log: the first call after that deletes the rest.
        A log whose newest entry is young may stay as well; a later call deletes it.

        Raises:
            InternalError: the shard is not a tombstone. Nothing was deleted.
        """
        if not self.is_tombstone():
            if self._stores.log.head(self.shard_id) is None:
                return Removed()
            raise InternalError(f"shard {self.shard_id} cannot be removed: it was not dropped")
        state = self._last()
        if state is not None and self._lending.forget_uncreated(state):
            state = self._last()
        if state is not None and self.is_needed(state):
            if state.origin is not None and not fork_pins(state):
                # It stays only as the way to its forks, and needs no part of its origin.
                self._lending.free(state.origin.shard_id, self.shard_id)
            return self._deleted(keep=_needed_by_forks(state))
        if state is not None:
            self._lending.return_borrowed(state)
        removed = self._deleted(keep=frozenset())
        # Before the log: as long as the log exists, an interrupted removal is repeated.
        self._stores.blobs.prune(self.shard_id)
        return removed.plus(Removed(int(self._stores.log.delete(self.shard_id))))

    def _last(self) -> ShardState | None:
        """The tombstone; None if another process is deleting it, which has checked that no fork needs it."""
        try:
            known = self._history.open()
        except CollectionDropped:
            return None
        return None if known is None else known.state

    def _deleted(self, keep: frozenset[str]) -> Removed:
        listed = self._stores.blobs.list(f"{self.shard_id}/")
        return remove_listed(self._stores.blobs, (info for info in listed if info.name not in keep))


def remove_listed(blobs: BlobStore, listed: Iterable[BlobInfo]) -> Removed:
    """Delete objects of a listing: one call for each, or in a store that is far for each thousand."""
    left, removed = iter(listed), Removed()
    while page := list(islice(left, _AT_ONCE if blobs.is_far else 1)):
        found = [info.name for info in page]
        if blobs.delete_all(found) if blobs.is_far else blobs.delete(*found):
            removed = removed.plus(Removed(0, len(page), sum(info.size_bytes for info in page)))
    return removed


def _needed_by_forks(state: ShardState) -> frozenset[str]:
    """The objects that forks of a tombstone need, and its rollup. The set only shrinks over time."""
    pins = fork_pins(state)
    kept = {name for name, lost in state.garbage.items() if any(map(lost.read_by, pins))}
    return frozenset({*kept, names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id)})
