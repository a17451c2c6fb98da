"""Copies one version of a shard into a shard of another lake.

Owns the hold on the source, the copies of its parts, and the state that names them; must not know names of
collections. While it runs, a leased hold pins the state that is copied, so that no part of it is collected.
Appends, merges and garbage collection of the source go on.

INVARIANT: the log of the new shard is created by one write, after all of its parts are stored, so it is never
incomplete. A crash leaves objects of a shard without a log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tidelake.data.container import verify
from tidelake.env import Env
from tidelake.errors import BlobNotFound, LeaseExpired, TidelakeError, UsageError
from tidelake.model import names
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.shard.history import History
from tidelake.shard.lease import Lease
from tidelake.shard.shard import Shard
from tidelake.shard.version import Version
from tidelake.state.agreed import SLICES, Agreed
from tidelake.state.forking import started
from tidelake.state.spine import Spine
from tidelake.state.staged import Staged
from tidelake.state.state import ShardState
from tidelake.store.url import Stores

Watch = Callable[[int, int], None]
"""Called with the bytes of the parts that were copied so far, and the bytes of all parts."""


@dataclass(frozen=True)
class Copied:
    """The result of a copy.

    Attributes:
        state: the first state of the new shard.
        seqno: seqno of the state of the source that was copied.
        parts: number of stored parts that were copied.
        size_bytes: size of these parts in bytes.
    """

    state: ShardState
    seqno: int
    parts: int
    size_bytes: int


class ShardCopy:
    """Copies one shard into other stores."""

    def __init__(self, source: Shard, stores: Stores, env: Env, agreed: Agreed) -> None:
        """Prepare a copy; reads and writes nothing yet.

        Args:
            source: the shard to copy.
            stores: the stores for the copy.
            env: clock and ids of the caller.
            agreed: settings of the lake of the copy.
        """
        self._source, self._stores, self._env = source, stores, env
        self._agreed = agreed
        self._upload_age_s = agreed.upload_age_ms / 1000
        self._stored_s = self._now_s()
        self._stored: list[str] = []

    def run(self, shard_id: str, purpose: str, watch: Watch | None = None) -> Copied:
        """Create the copy. Costs a read and a put for each part, and some log writes.

        Args:
            shard_id: id of the copy, which must be fresh.
            purpose: purpose of the hold on the source.
            watch: called after each part.

        Raises:
            CorruptionError: a part of the source is damaged; names it. The copy was removed.
            LeaseExpired: this process slept for longer than its lease, and parts were collected meanwhile.
            CollectionDropped: the source was dropped.
            UsageError: the source has slices, and the lake of the copy is not upgraded.
        """
        lease = Lease(self._source, purpose, reader=True)
        version = lease.pin(Frontier(), with_writers=True)
        state = version.state
        try:
            self._check_format(state)
            parts = self._copied(lease, state, shard_id, watch)
            copy = _renamed(state, shard_id, parts, self._env.clock.now_ms(), self._agreed)
            lease.renew()
            self._check_stored(shard_id)
            History(shard_id, self._stores, self._env).create(copy)
            self._check_young(shard_id, lease.id)
        except TidelakeError:
            self.discard()
            raise
        finally:
            self._release(version)
        stored = [part for part in parts.values() if part.inline is None]
        return Copied(copy, state.seqno, len(stored), sum(part.size_bytes for part in stored))

    def _check_format(self, state: ShardState) -> None:
        """Check that processes of earlier versions which use the lake of the copy could read the copy."""
        if state.has_slices and self._agreed.format < SLICES:
            raise UsageError(
                f"the collection has slices, which need format {SLICES}, and the lake of the copy has format "
                f"{self._agreed.format}: upgrade that lake with lake.upgrade() or `tidelake upgrade LAKE`"
            )

    def _check_stored(self, shard_id: str) -> None:
        """Check that all copies still exist: old objects of a shard without a log are removed."""
        lost = set(self._stored) - {info.name for info in self._stores.blobs.list(names.parts(shard_id))}
        if lost:
            raise BlobNotFound(min(lost))

    def _check_young(self, shard_id: str, hold_id: str) -> None:
        """Give up if the objects are so old that a collector may be removing them.

        SUBTLE: a collector removes old objects of shards without a log. It may have looked before this log
        existed, and then stalled. It removes only objects that were old when it looked.
        """
        passed_s = max(now - then for now, then in zip(self._now_s(), self._stored_s, strict=True))
        if self._stored and passed_s >= self._upload_age_s / 2:
            self._stores.log.delete(shard_id)
            raise LeaseExpired(hold_id)

    def discard(self) -> None:
        """Delete the copied parts, which no state names. Failures are counted."""
        for name in self._stored:
            try:
                self._stores.blobs.delete(name)
            except TidelakeError:
                # It is found later, as an object of a shard without a log.
                self._env.recorder.count("copy.discard.failed")
        self._stored.clear()

    def _now_s(self) -> tuple[float, float]:
        return self._env.clock.monotonic_s(), self._env.clock.now_ms() / 1000

    def _release(self, version: Version) -> None:
        try:
            version.release()
        except TidelakeError:
            # The outcome of the copy does not depend on the hold, which expires by itself.
            self._env.recorder.count("copy.release.failed")

    def _copied(self, lease: Lease, state: ShardState, shard_id: str, watch: Watch | None) -> dict[str, Part]:
        """Copy all parts of the state. Returns the copies by the names of the originals."""
        total = sum(part.size_bytes for part in _parts(state) if part.inline is None)
        copies: dict[str, Part] = {}
        done = 0
        for part in _parts(state):
            # The seqno in the name is 0, as the new shard has no state yet.
            name = names.part(shard_id, 0, self._env.ids.fresh())
            copies[part.name] = replace(part, name=name)
            if part.inline is not None:
                verify(part.inline, part)
                continue
            lease.renew_if_due()
            try:
                self._copy(part, name)
            except BlobNotFound:
                # If the hold is gone, the part was collected, and this raises `LeaseExpired` instead.
                lease.renew()
                raise
            done += part.size_bytes
            if watch is not None:
                watch(done, total)
        return copies

    def _copy(self, part: Part, name: str) -> None:
        data = self._source.stores.blobs.get(part.name)
        verify(data, part)
        self._stored.append(name)
        self._stored_s = self._now_s()
        self._stores.blobs.put(name, data)


def copy_state(state: ShardState, source: Stores, shard_id: str, env: Env) -> ShardState:
    """Copy a state that nothing holds into a new shard of the same lake. Returns the shard's first state.

    Costs a read and a put for each part.

    Raises:
        BlobNotFound: a part was collected since. The copy was removed.
        CorruptionError: a part is damaged. The copy was removed.
    """
    copies: dict[str, Part] = {}
    stored: list[str] = []
    try:
        for part in _parts(state):
            name = names.part(shard_id, 0, env.ids.fresh())
            copies[part.name] = replace(part, name=name)
            if part.inline is not None:
                verify(part.inline, part)
                continue
            data = source.blobs.get(part.name)
            verify(data, part)
            stored.append(name)
            source.blobs.put(name, data)
        copy = _renamed(state, shard_id, copies, env.clock.now_ms(), state.agreed)
        History(shard_id, source, env).create(copy)
    except TidelakeError:
        for name in stored:
            source.blobs.delete(name)
        raise
    return copy


def _parts(state: ShardState) -> Iterator[Part]:
    """All parts that readers may see."""
    for held in (*state.batches(), *state.bases):
        yield from held.parts()


def _renamed(
    state: ShardState, shard_id: str, parts: dict[str, Part], now_ms: int, agreed: Agreed
) -> ShardState:
    """A first state with the contents of another state, but without its holds, garbage, forks and tokens."""

    def batch(of: HollowBatch) -> HollowBatch:
        runs = tuple(Run(tuple(parts[part.name] for part in run.parts), run.truncated) for run in of.runs)
        return replace(of, runs=runs)

    spine = state.spine
    members = [replace(member, batch=batch(member.batch)) for member in spine]
    copied = Spine.of(
        spine.next_id, spine.spent, members, spine.all_batches(), spine.merges, sliced=spine.sliced
    )
    staged = [Staged(batch(old.batch), 0) for old in state.staged]
    bases = [replace(base, runs=batch(base.batch(state.minimum)).runs) for base in state.bases]
    return replace(
        started(state, shard_id, now_ms, copied, staged=staged, bases=bases),
        writers=state.writers,
        critical=state.critical,
        written=state.written,
        # The settings of the lake of the copy.
        agreed=replace(agreed, told=True),
    )
