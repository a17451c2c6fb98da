"""Copying a shard, as it is at one moment, into a shard of another lake.

Owns the hold on the source, the copies of its parts and the state that names them; must not know names of
collections. While it runs a leased hold pins the state that is copied, so that no part of it is collected;
appends, merges and collections of the source go on.

INVARIANT: the new shard is one write, after all of its parts: there is no half of it. What a crash leaves
are objects of a shard without a log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from pyrsistent import pmap

from tidelake.data.container import verify
from tidelake.env import Env
from tidelake.errors import BlobNotFound, HistoryCompacted, LeaseExpired, TidelakeError
from tidelake.model import names
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.shard.history import History
from tidelake.shard.shard import Shard
from tidelake.state import holds
from tidelake.state.agreed import Agreed
from tidelake.state.spine import Spine
from tidelake.state.staged import Staged, Staging
from tidelake.state.state import FIRST, UNSWEPT, ShardState
from tidelake.state.taken import indexed
from tidelake.store.url import Stores

Watch = Callable[[int, int], None]
"""Takes the bytes of the parts that were copied, and of all of them."""

# So often within one lease the hold is renewed; that is a log write.
_RENEWALS = 3
_TRIES = 8


@dataclass(frozen=True)
class Copied:
    """What was copied.

    Attributes:
        state: the first one of the new shard.
        seqno: of the state of the source that it was made from.
        parts: that were copied.
        size_bytes: theirs.
    """

    state: ShardState
    seqno: int
    parts: int
    size_bytes: int


class ShardCopy:
    """Copies one shard into other stores."""

    def __init__(self, source: Shard, stores: Stores, env: Env, agreed: Agreed) -> None:
        """Prepare to copy.

        Args:
            source: of the copy.
            stores: where the copy is to be.
            env: clock and ids of whoever copies.
            agreed: settings of the lake where the copy is to be.
        """
        self._source, self._stores, self._env = source, stores, env
        self._agreed = agreed
        self._lease_ms = source.known().agreed.lease_ms
        self._upload_age_s = agreed.upload_age_ms / 1000
        self._renewed_s = self._stored_s = self._now_s()
        self._hold_id = env.ids.fresh()
        self._stored: list[str] = []

    def run(self, shard_id: str, purpose: str, watch: Watch | None = None) -> Copied:
        """Make the shard `shard_id`. Costs a read and a put for each part, and some log writes.

        Args:
            shard_id: fresh.
            purpose: of the hold on the source.
            watch: is told after each part.

        Raises:
            CorruptionError: a part of the source is damaged; names it. Nothing is left of the copy.
            LeaseExpired: this process slept for longer than its lease, and the source has moved on.
            CollectionDropped: the source was dropped.
        """
        state = self._held(purpose)
        try:
            parts = self._copied(state, shard_id, watch)
            copy = _renamed(state, shard_id, parts, self._env.clock.now_ms(), self._agreed)
            self._heartbeat(force=True)
            self._check_stored(shard_id)
            History(shard_id, self._stores, self._env).create(copy)
            self._check_young(shard_id)
        except TidelakeError:
            self.discard()
            raise
        finally:
            self._release()
        stored = [part for part in parts.values() if part.inline is None]
        return Copied(copy, state.seqno, len(stored), sum(part.size_bytes for part in stored))

    def _check_stored(self, shard_id: str) -> None:
        """All copies are still there: of a shard without a log they would be removed when they are old."""
        lost = set(self._stored) - {info.name for info in self._stores.blobs.list(names.parts(shard_id))}
        if lost:
            raise BlobNotFound(min(lost))

    def _check_young(self, shard_id: str) -> None:
        """Give up if whoever removes old objects of shards without a log may be at these.

        SUBTLE: it may have looked before the log was there, and stall; it takes only what is old by then.
        """
        passed_s = max(now - then for now, then in zip(self._now_s(), self._stored_s, strict=True))
        if self._stored and passed_s >= self._upload_age_s / 2:
            self._stores.log.delete(shard_id)
            raise LeaseExpired(self._hold_id)

    def discard(self) -> None:
        """Delete what was copied, as far as the store lets us: nothing names it."""
        for name in self._stored:
            try:
                self._stores.blobs.delete(name)
            except TidelakeError:
                # It is found by its shard, which has no log.
                self._env.recorder.count("copy.discard.failed")
        self._stored.clear()

    def _held(self, purpose: str) -> ShardState:
        """The newest state, held."""
        for _ in range(_TRIES):
            state = self._source.version(with_writers=True).state
            command = partial(
                holds.open_hold,
                hold_id=self._hold_id,
                purpose=purpose,
                lease_ms=self._lease_ms,
                since=state.since,
                pins=(state.seqno,),
            )
            try:
                self._source.run(command)
            except (HistoryCompacted, LeaseExpired):
                continue  # Others compacted or collected in between: copy what there is now.
            self._renewed_s = self._now_s()
            return state
        raise LeaseExpired(self._hold_id)

    def _heartbeat(self, *, force: bool = False) -> None:
        # The wall clock decides about leases, and may be put right meanwhile.
        now_s = self._now_s()
        passed_s = max(now - then for now, then in zip(now_s, self._renewed_s, strict=True))
        if force or passed_s >= self._lease_ms / 1000 / _RENEWALS:
            self._source.run(partial(holds.renew_hold, hold_id=self._hold_id))
            self._renewed_s = now_s

    def _now_s(self) -> tuple[float, float]:
        return self._env.clock.monotonic_s(), self._env.clock.now_ms() / 1000

    def _release(self) -> None:
        try:
            self._source.run(partial(holds.close_hold, hold_id=self._hold_id))
        except TidelakeError:
            # The copy is made or not, whatever becomes of the hold: it ends by itself.
            self._env.recorder.count("copy.release.failed")

    def _copied(self, state: ShardState, shard_id: str, watch: Watch | None) -> dict[str, Part]:
        """Copies of all parts of the spine, by the names of those that they were made from."""
        total = sum(part.size_bytes for part in _parts(state) if part.inline is None)
        copies: dict[str, Part] = {}
        done = 0
        for part in _parts(state):
            # Nobody knew any state of the new shard.
            name = names.part(shard_id, 0, self._env.ids.fresh())
            copies[part.name] = replace(part, name=name)
            if part.inline is not None:
                verify(part.inline, part)
                continue
            self._heartbeat()
            self._copy(part, name)
            done += part.size_bytes
            if watch is not None:
                watch(done, total)
        return copies

    def _copy(self, part: Part, name: str) -> None:
        try:
            data = self._source.stores.blobs.get(part.name)
        except BlobNotFound:
            # Collected, if the hold is gone; then that is what is said.
            self._heartbeat(force=True)
            raise
        verify(data, part)
        self._stored.append(name)
        self._stored_s = self._now_s()
        self._stores.blobs.put(name, data)


def copy_state(state: ShardState, source: Stores, shard_id: str, env: Env) -> ShardState:
    """Make the shard `shard_id` of a state that somebody else has read; its first state. Nothing holds that.

    Costs a read and a put for each part.

    Raises:
        BlobNotFound: a part of it was collected since. Nothing is left of the copy.
        CorruptionError: one is damaged; likewise.
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
    """The parts of what readers may see."""
    for batch in state.batches():
        yield from batch.parts()


def _renamed(
    state: ShardState, shard_id: str, parts: dict[str, Part], now_ms: int, agreed: Agreed
) -> ShardState:
    """A first state with the contents of another one: without what belongs to its readers and its store."""

    def batch(of: HollowBatch) -> HollowBatch:
        runs = tuple(Run(tuple(parts[part.name] for part in run.parts), run.truncated) for run in of.runs)
        return replace(of, runs=runs)

    spine = state.spine
    members = [replace(member, batch=batch(member.batch), added=0) for member in spine]
    copied = Spine.of(spine.next_id, spine.spent, members, spine.batches, spine.merges)
    staged = Staging.of({one.name: one for one in (Staged(batch(old.batch), 0) for old in state.staged)})
    return replace(
        state,
        shard_id=shard_id,
        seqno=0,
        committed_ms=now_ms,
        spine=copied,
        staged=staged,
        # Of no state of this shard; the newest one holds from its first.
        schemas=pmap({id_: replace(version, seqno=0) for id_, version in state.schemas.items()}),
        holds=pmap(),
        garbage=pmap(),
        doomed=pmap(),
        collected_to=0,
        sweep=UNSWEPT,
        rollup=FIRST,
        claims=pmap(),
        chunks=pmap(),
        # All of its parts are its own.
        forks=pmap(),
        origin=None,
        group="",
        joined=0,
        # They are counted from now on: the source may know some by its group.
        tokens=pmap(),
        # Nothing was uploaded for it.
        taken=pmap(),
        part_names=indexed(copied, staged, {}),
        let_in=pmap(),
        # Those of the lake where it is.
        agreed=replace(agreed, told=True),
    )
