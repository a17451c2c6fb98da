"""Copies one version of a shard into a shard of another lake, or brings an earlier copy of it up to date.

Owns the copies of the parts, and the one commit that names them; must not know names of collections. Only
parts that the copy lacks are read: those of its newest state, and those that an interrupted run has left, are
known by their ids (`tidelake.state.life.copying`). The source is only read; the caller keeps the version.

INVARIANT: the log of a new shard is created by one write, after all of its parts are stored and verified, and
an earlier copy gets its newer contents by one commit. So a copy is never incomplete. A crash leaves objects
that no state names; the next run finds them, or a collector.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from tidelake.data.part.container import verify
from tidelake.env import Env
from tidelake.errors import (
    BlobExists,
    BlobNotFound,
    CorruptionError,
    StoreUnavailable,
    TidelakeError,
    UploadExpired,
    UsageError,
)
from tidelake.model import names
from tidelake.model.batch import Part
from tidelake.shard.engine.history import History, LoadedVersion
from tidelake.shard.engine.lease import explained
from tidelake.shard.engine.overlap import mapped
from tidelake.shard.engine.shard import Shard
from tidelake.state.core.agreed import Agreed
from tidelake.state.core.codec import format_of
from tidelake.state.core.edits import Delta, Edits, apply
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.core.state import ShardState
from tidelake.state.life.copying import (
    contents_of,
    copied,
    copied_parts,
    erased_since,
    part_id,
    recorded,
    succeeding,
)
from tidelake.state.write.heldback import as_stored, held_objects
from tidelake.store.protocols import BlobStore
from tidelake.store.url import Stores

Watch = Callable[[int, int], None]
"""Called with the bytes of the parts that are done, and the bytes of all parts to copy."""

THREADS = 8
# Objects that no state names are left to the next run for this share of the age at which they are removed.
SHARE = 4


class BytesInFlight:
    """Bounds the bytes that several threads hold in memory at once. One object may be larger than that."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._used_bytes = most_bytes, 0
        self._changed = threading.Condition()

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Wait until there is room for so many bytes, and take it while the block runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used_bytes or self._fits(size_bytes))
            self._used_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._used_bytes -= size_bytes
                self._changed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return self._used_bytes + size_bytes <= self._most_bytes


@dataclass(frozen=True)
class Copied:
    """What a copy has stored.

    Attributes:
        parts: number of parts that were stored by this run.
        found: number of parts that were there: in the copy, or left by an interrupted run.
    """

    parts: int = 0
    size_bytes: int = 0
    found: int = 0


class ShardCopy:
    """Copies one version of a shard.

    Args:
        source: the shard to copy.
        state: the version to copy, as readers see it, with its writers; its parts are kept by the caller.
        stores: the stores for the copy.
        env: clock and ids of the caller.
        room: bounds the bytes in memory.
        quick: compare the sizes of stored parts only; False: read each back, and compare its bytes.
        watch: called after each part.
    """

    def __init__(
        self,
        source: Shard,
        state: ShardState,
        stores: Stores,
        env: Env,
        *,
        room: BytesInFlight,
        quick: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self._source, self._state, self._stores, self._env = source, state, stores, env
        self._room, self._quick, self._watch = room, quick, watch
        self._lock = threading.Lock()
        self._stored: list[str] = []
        self._fresh_s = self._now_s()
        self.copied = Copied()

    def create(self, shard_id: str, agreed: Agreed) -> ShardState:
        """Create the copy as a new shard; returns its first state, or the newest if another run created it.

        Parts that an earlier run has stored for this shard stay. Costs a listing, a read and a put for each
        part that is not there, and, unless `quick`, a read of each part.
        """
        self._check_format(agreed)
        left_s = agreed.upload_age_ms / 1000 / SHARE
        self._hold_back(shard_id, frozenset())
        parts = self._parts(shard_id, 0, {}, self._sizes([names.parts(shard_id)]))
        first = copied(self._state, shard_id, parts, self._env.clock.now_ms(), agreed)
        first = recorded(first, self._state, contents_of(self._state))
        self._check_stored([part for part in parts.values() if part.inline is None])
        self._check_young(left_s)
        known = History(shard_id, self._stores, self._env).create(first)
        if known.state == first:
            # SUBTLE: a collector removes old objects of shards without a log. It may have looked before this
            # log existed, and then stalled. It removes only objects that were old when it looked.
            self._check_young(2 * left_s)
        return known.state

    def succeed(self, before: ShardState) -> ShardState | None:
        """Bring an earlier copy up to date, by one commit; None if it was written to meanwhile: look again.

        Costs a read and a put for each part that is not there, unless `quick` also a read of it, a listing,
        and the writes of a rollup and of a log entry.
        """
        self._check_format(before.agreed)
        id_, seqno = before.shard_id, before.seqno
        held = held_objects(before)
        self._hold_back(id_, held)
        # What this run has stored for this shard before, unless the state refuses it for its age by now.
        mine = {
            names.upload(name)[1]: name
            for name in self._stored
            if name.startswith(names.parts(id_)) and (names.uploaded_at(name) or 0) >= before.sweep.floor
        }
        there = mine | {part_id(part): part.name for part in before.parts() if part.inline is None}
        found: dict[str, int] = {}
        if any(part.inline is None and part_id(part) not in there for part in copied_parts(self._state)):
            found = self._sizes([f"{names.parts(id_)}{seqno:016x}-"])
        parts = self._parts(id_, seqno, there, found)
        named = before.part_names
        fresh = [part for part in parts.values() if part.inline is None and part.name not in named]
        self._check_stored(fresh)
        now_ms = max(self._env.clock.now_ms(), before.committed_ms)
        made = copied(self._state, id_, parts, now_ms, before.agreed)
        after = succeeding(before, made, erased_since(self._state, before))
        after = recorded(after, self._state, contents_of(self._state))
        check_state(after)
        history = History(id_, self._stores, self._env)
        rollup = history.write_rollup(after)
        edits = Edits(rollup=rollup, mended=True)
        delta = Delta(id_, seqno + 1, now_ms, self._env.ids.fresh(), rollup, edits)
        newest = apply(after, delta)
        check_step(after, newest, edits)
        if history.commit(LoadedVersion(after, 0), delta, newest) is None:
            self._stores.blobs.delete(names.rollup(id_, rollup.seqno, rollup.id))
            return None
        for name in held - held_objects(newest):
            self._stores.blobs.delete(name)
        return newest

    def _check_format(self, agreed: Agreed) -> None:
        """Check that processes of earlier versions which use the lake of the copy could read the copy."""
        needed = format_of(self._state)
        if needed > agreed.format:
            raise UsageError(
                f"the collection has what came with format {needed}, and the lake of the copy has format "
                f"{agreed.format}: upgrade that lake with lake.upgrade() or `tidelake upgrade LAKE`"
            )

    def discard(self) -> None:
        """Delete what this run has stored and no state names. Failures are counted."""
        for name in self._stored:
            try:
                self._stores.blobs.delete(name)
            except TidelakeError:
                # It is found later, as an object that no state names.
                self._env.failed("copy.discard.failed")
        self._stored.clear()

    def _hold_back(self, shard_id: str, there: Collection[str]) -> None:
        """Copy the objects in which streams hold rows back, under the names that their records tell."""
        source, blobs = self._source.stores.blobs, self._stores.blobs
        prefix = names.held(self._state.shard_id, "")
        for name in sorted(held_objects(self._state)):
            own = names.held(shard_id, name.removeprefix(prefix))
            if own in there:
                continue
            try:
                data = as_stored(name, source.get(name))
            except BlobNotFound as error:
                # No lease holds it.
                raise StoreUnavailable(
                    f"the stream that held {name} back has gone on: copy again", True
                ) from error
            self._stored.append(own)
            self._fresh_s = self._now_s()
            with suppress(BlobExists):
                blobs.put(own, data)

    def _parts(
        self, shard_id: str, seqno: int, there: dict[str, str], found: dict[str, int]
    ) -> dict[str, Part]:
        """Copy the parts that are missing. Returns the copies by the names of the originals."""
        copies: dict[str, Part] = {}
        work: list[tuple[Part, str, int | None]] = []
        for part in copied_parts(self._state):
            id_ = part_id(part)
            name = names.part(shard_id, seqno, id_)
            if part.inline is not None:
                verify(part.inline, part)
            elif id_ in there:
                name = there[id_]
            else:
                work.append((part, name, found.get(name)))
            copies[part.name] = replace(part, name=name)
        kept = sum(1 for part in copies.values() if part.inline is None) - len(work)
        self.copied = replace(self.copied, found=self.copied.found + kept)
        total, done = sum(part.size_bytes for part, _, _ in work), 0
        for size_bytes in mapped(lambda one: self._one(*one), work, THREADS):
            done += size_bytes
            if self._watch is not None:
                self._watch(done, total)
        return copies

    def _one(self, part: Part, name: str, left_bytes: int | None) -> int:
        """Copy a part, unless an interrupted run has; its size in bytes."""
        blobs = self._stores.blobs
        with self._room.holding(part.size_bytes):
            if left_bytes is not None:
                if left_bytes == part.size_bytes and self._is_sound(blobs, part, name):
                    with self._lock:
                        self.copied = replace(self.copied, found=self.copied.found + 1)
                    return part.size_bytes
                blobs.delete(name)
            self._put(part, name)
            if not self._is_sound(blobs, part, name):
                raise CorruptionError(name, "it was written just now, and other bytes are read back")
        with self._lock:
            one = self.copied
            self.copied = replace(one, parts=one.parts + 1, size_bytes=one.size_bytes + part.size_bytes)
        return part.size_bytes

    def _put(self, part: Part, name: str) -> None:
        try:
            data = self._source.stores.blobs.get(part.name)
        except BlobNotFound as error:
            raise explained(self._source, error.name, self._state.seqno) from error
        verify(data, part)
        with self._lock:
            self._stored.append(name)
            self._fresh_s = self._now_s()
        try:
            self._stores.blobs.put(name, data)
        except BlobExists:
            # Another run copies the same version at the same time; a name stands for these bytes only.
            self._env.recorder.count("copy.part.there")

    def _is_sound(self, blobs: BlobStore, part: Part, name: str) -> bool:
        """Whether a stored copy is the part. True with `quick`, as its size is compared."""
        if self._quick:
            return True
        try:
            verify(blobs.get(name), replace(part, name=name))
        except (CorruptionError, BlobNotFound):
            return False
        return True

    def _sizes(self, prefixes: Iterable[str]) -> dict[str, int]:
        """The sizes of stored objects by name. A listing for each prefix."""
        infos = (info for prefix in prefixes for info in self._stores.blobs.list(prefix))
        return {info.name: info.size_bytes for info in infos}

    def _check_stored(self, parts: Iterable[Part]) -> None:
        """Check by listings that these copies are there, in their size."""
        wanted = {part.name: part.size_bytes for part in parts}
        sizes = self._sizes(sorted({name.rpartition("-")[0] for name in wanted}))
        for name, size_bytes in wanted.items():
            if name not in sizes:
                raise BlobNotFound(name)
            if sizes[name] != size_bytes:
                raise CorruptionError(name, f"{sizes[name]} bytes of it are stored instead of {size_bytes}")

    def _check_young(self, most_s: float) -> None:
        """Give up if the newest object is so old that a collector may be removing it."""
        passed_s = max(now - then for now, then in zip(self._now_s(), self._fresh_s, strict=True))
        stored = held_objects(self._state) or any(one.inline is None for one in copied_parts(self._state))
        if passed_s >= most_s and stored:
            raise UploadExpired(self._state.shard_id, 0, 1)

    def _now_s(self) -> tuple[float, float]:
        return self._env.clock.monotonic_s(), self._env.clock.now_ms() / 1000


def copy_state(state: ShardState, source: Stores, shard_id: str, env: Env) -> ShardState:
    """Copy a state that nothing holds into a new shard of the same lake. Returns the shard's first state.

    Costs a read and a put for each part.
    """
    copies: dict[str, Part] = {}
    stored: list[str] = []
    try:
        for part in copied_parts(state):
            name = names.part(shard_id, 0, env.ids.fresh())
            copies[part.name] = replace(part, name=name)
            if part.inline is not None:
                verify(part.inline, part)
                continue
            data = source.blobs.get(part.name)
            verify(data, part)
            stored.append(name)
            source.blobs.put(name, data)
        for name in sorted(held_objects(state)):
            # Of an earlier state they may be gone: a stream that goes on there says so.
            with suppress(BlobNotFound):
                data = source.blobs.get(name)
                stored.append(names.held(shard_id, name.removeprefix(names.held(state.shard_id, ""))))
                source.blobs.put(stored[-1], data)
        copy = copied(state, shard_id, copies, env.clock.now_ms(), state.agreed)
        History(shard_id, source, env).create(copy)
    except TidelakeError:
        for name in stored:
            source.blobs.delete(name)
        raise
    return copy
