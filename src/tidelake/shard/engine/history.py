"""The history of a shard: reads and writes its log of deltas and its rollups.

The first entry of a log is a whole state; every later entry is a delta. A rollup is a whole state in a blob,
and each delta names the newest rollup as of its state. To open a shard, read the head of the log, the rollup
that it names, and the entries since: three store calls, however long the history.

Meanwhile other processes may write a newer rollup, delete the old one and truncate the log up to it. Then
`open` starts over, and `refresh` opens anew. A log that has vanished was that of a dropped shard.

INVARIANT: entries are contiguous, and each fits the state before it; anything else is corruption.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from tidelake.env import Env
from tidelake.errors import (
    BlobNotFound,
    CollectionDropped,
    CorruptionError,
    OutcomeUnknown,
    TidelakeError,
    UsageError,
)
from tidelake.model import names
from tidelake.model.names import checked
from tidelake.shard.engine.overlap import beside
from tidelake.state.core import codec
from tidelake.state.core.edits import Delta, apply
from tidelake.state.core.invariants import check_state
from tidelake.state.core.state import FIRST, Rollup, ShardState
from tidelake.state.life.dropping import vanished
from tidelake.store.files import Wait
from tidelake.store.protocols import Entry
from tidelake.store.url import Stores

_SILENCE_S_MAX = 2.0
_TURN_S_MAX = 2.0
# So many entries are removed at once, so that each commit pays little for it.
_TRIMMED_MIN = 32


@dataclass(frozen=True)
class LoadedVersion:
    """A version of the state that was read from the log, and the cost of opening it.

    Attributes:
        state: the state as of its seqno.
        delta_bytes: total size in bytes of the log entries since the newest rollup was added.
    """

    state: ShardState
    delta_bytes: int


class History:
    """Reads and extends the log of one shard. Holds no state of its own."""

    def __init__(self, shard_id: str, stores: Stores, env: Env) -> None:
        self.shard_id = checked(shard_id, "catalog")
        self._stores = stores
        self._env = env

    def open(self) -> LoadedVersion | None:
        """The newest state, or None if there is no such shard. Three store calls.

        If the rollup is replaced and deleted meanwhile, this starts over with the newer one.

        Raises:
            CollectionDropped: the shard is a tombstone that is being deleted.
            CorruptionError, FormatTooNew: the stored bytes cannot be used.
        """
        missing, tried = "", None
        while True:
            head = self._stores.log.head(self.shard_id)
            if head is None:
                return None
            if codec.is_state(head.data):
                return self._first(head)
            newest = codec.decode_delta(head.data, self._entry_name(head.seqno))
            if newest.base == tried:
                if newest.dropped:
                    # It was dropped since the look before: the tombstone names what is being deleted.
                    raise CollectionDropped(self.shard_id)
                # The newest entry still names the missing rollup. A newest rollup is never collected, so this
                # one is lost.
                name = f"{self.shard_id} rollup"
                raise CorruptionError(name, f"named by the log but missing: {missing}")
            tried = newest.base
            try:
                opened = self._open_from(newest.base, head.seqno)
            except BlobNotFound as error:
                if newest.dropped:
                    raise CollectionDropped(self.shard_id) from error
                missing = str(error)
                continue
            if opened is not None:
                return opened
            missing = f"no entry {newest.base.seqno} to start from"

    def dropped_ms(self) -> int | None:
        """When the shard was dropped, if it is a tombstone that still exists; else None. One store call.

        This is the time of the last entry. If forks let go of the tombstone since, the drop was earlier.
        """
        head = self._stores.log.head(self.shard_id)
        return None if head is None else self._ended_ms(head)

    def is_alive(self) -> bool:
        """Whether the shard exists and is not a tombstone. One store call."""
        head = self._stores.log.head(self.shard_id)
        return head is not None and self._ended_ms(head) is None

    def _ended_ms(self, head: Entry) -> int | None:
        if codec.is_state(head.data):
            return None
        newest = codec.decode_delta(head.data, self._entry_name(head.seqno))
        return newest.committed_ms if newest.dropped else None

    def _open_from(self, base: Rollup, through: int) -> LoadedVersion | None:
        """The state as of entry `through`, from a rollup on; None if the log is gone from there on."""
        if base == FIRST:
            entries = self._stores.log.newer(self.shard_id, -1, through)
            if not entries or entries[0].seqno != 0:
                return None
            return self._followed(self._first(entries[0]), entries[1:])
        name = names.rollup(self.shard_id, base.seqno, base.id)
        stored, entries = self._fetched(name, base.seqno, through)
        state = codec.decode_state(stored, name)
        if (state.shard_id, state.seqno) != (self.shard_id, base.seqno):
            raise CorruptionError(name, f"holds {state.shard_id}@{state.seqno}, expected seqno {base.seqno}")
        # There is at least the entry that added the rollup, as it comes after the state in the rollup.
        return self._followed(LoadedVersion(state, 0), entries) if entries else None

    def _fetched(self, rollup: str, seqno: int, through: int) -> tuple[bytes, list[Entry] | None]:
        """The bytes of a rollup, and the entries after it; from stores that are far at the same time."""
        blobs, entries = self._stores.blobs, partial(self._stores.log.newer, self.shard_id, seqno, through)
        if not blobs.is_far:
            return blobs.get(rollup), entries()
        found: list[list[Entry] | None] = []
        with beside(lambda: found.append(entries())):
            stored = blobs.get(rollup)
        return stored, found[0]

    def _first(self, entry: Entry) -> LoadedVersion:
        state = codec.decode_state(entry.data, self._entry_name(entry.seqno))
        if state.shard_id != self.shard_id or state.seqno != entry.seqno:
            raise CorruptionError(self._entry_name(entry.seqno), f"holds {state.shard_id}@{state.seqno}")
        return LoadedVersion(state, len(entry.data))

    def refresh(self, known: LoadedVersion) -> LoadedVersion:
        """The newest state, starting from an older one. One store call.

        A shard whose log has vanished is a tombstone. A tombstone changes only while it has forks to forget,
        so refreshing a tombstone without forks costs no call.
        """
        if known.state.dropped and not known.state.forks:
            return known
        newer = self._stores.log.newer(self.shard_id, known.state.seqno)
        if newer is None:
            return self._reopened(known)
        deltas = [codec.decode_delta(entry.data, self._entry_name(entry.seqno)) for entry in newer]
        if any(delta.mended for delta in deltas):
            return self._reopened(known)
        return self._extended(known, newer, deltas)

    def _reopened(self, known: LoadedVersion) -> LoadedVersion:
        """The newest state, after the log was truncated past what this process knew, deleted, or repaired.

        Raises:
            CorruptionError: the log has lost its newest entries.
        """
        try:
            opened = self.open()
        except CollectionDropped:
            opened = None
        if opened is None:
            return replace(known, state=vanished(known.state))
        head, seqno = opened.state.seqno, known.state.seqno
        if head < seqno:
            message = f"its log ends at entry {head}, but entry {seqno} was there: the rest is lost"
            raise CorruptionError(self.shard_id, message)
        return opened

    def _followed(self, known: LoadedVersion, entries: list[Entry]) -> LoadedVersion:
        deltas = [codec.decode_delta(entry.data, self._entry_name(entry.seqno)) for entry in entries]
        return self._extended(known, entries, deltas)

    def _extended(self, known: LoadedVersion, entries: list[Entry], deltas: list[Delta]) -> LoadedVersion:
        for entry, delta in zip(entries, deltas, strict=True):
            if delta.seqno != entry.seqno:
                raise CorruptionError(self._entry_name(entry.seqno), f"holds seqno {delta.seqno}")
            known = advanced(known, delta, len(entry.data))
        return known

    @property
    def has_turns(self) -> bool:
        """Whether the processes that commit here are on one machine and can take turns."""
        return self._stores.locks.spans_processes

    def turn(self) -> AbstractContextManager[bool]:
        """Keep other processes that take turns from committing here during the block. It may wait for them.

        Yields False if others have had their turns for too long. Then both go on: the first commit counts.
        """
        return self._stores.locks.take(self.shard_id, "commit", Wait(self._env.clock, _TURN_S_MAX))

    def create(self, state: ShardState) -> LoadedVersion:
        """Write the first state unless the shard exists. Returns the newest state either way.

        Raises:
            InternalError: the state breaks a rule, as that of a fork or copy might. Nothing was written.
            OutcomeUnknown: the shard may or may not have been created.
        """
        check_state(state)
        data = codec.encode_state(state)
        try:
            if self._stores.log.compare_and_set(self.shard_id, None, data):
                return LoadedVersion(state, len(data))
        except OutcomeUnknown:
            # It does not matter which process created it: creating an equal shard twice is one creation.
            self._env.recorder.count("create.unknown")
        present = self.open()
        if present is None:
            raise OutcomeUnknown(f"shard {self.shard_id} may or may not have been created; create it again")
        return present

    def commit(self, known: LoadedVersion, delta: Delta, after: ShardState) -> LoadedVersion | None:
        """Append a delta; None if another commit was first.

        SUBTLE: when the store does not say whether it wrote, read the log. If the seqno is taken, the nonce
        in the entry tells whether it is ours. If it is free, the first attempt may still be on its way, so
        offer the same bytes again: the expected seqno lets them in at most once.

        Raises:
            OutcomeUnknown: the store did not answer, or the entry was collected, or the shard was dropped and
                deleted, before the entry could be read.
        """
        data = codec.encode_delta(delta)
        try:
            won = self._stores.log.compare_and_set(self.shard_id, known.state.seqno, data)
        except OutcomeUnknown:
            won = self._decided(known.state.seqno, delta.seqno, data)
        return advanced(known, delta, len(data), after) if won else None

    def resume(self, known: LoadedVersion, delta: Delta, after: ShardState) -> LoadedVersion | None:
        """As `commit`, for a delta that another thread may have committed before it was interrupted."""
        data = codec.encode_delta(delta)
        won = self._decided(known.state.seqno, delta.seqno, data)
        return advanced(known, delta, len(data), after) if won else None

    def _decided(self, expected: int, seqno: int, data: bytes) -> bool:
        """Whether an entry is in the log after a write of unknown outcome. Writes it if the seqno is free."""
        pause_s = 0.01
        while True:
            self._env.recorder.count("commit.unknown")
            self._env.clock.sleep(pause_s)
            pause_s *= 2
            try:
                ours = self._is_ours(seqno, data)
                if ours is not None:
                    return ours
                if self._stores.log.compare_and_set(self.shard_id, expected, data):
                    return True
            except OutcomeUnknown:
                if pause_s > _SILENCE_S_MAX:
                    raise
            except TidelakeError as error:
                # The error is about this attempt; the first one may be in nevertheless.
                raise OutcomeUnknown(f"entry {seqno} of shard {self.shard_id} may be in: {error}") from error

    def _is_ours(self, seqno: int, data: bytes) -> bool | None:
        """Whether the entry of a seqno has exactly these bytes; None if the seqno is free.

        SUBTLE: the seqno is free only if the entry before it is the newest one. A log that was deleted or
        truncated since has no such entry; treating that as free would retry for ever.
        """
        newer = self._stores.log.newer(self.shard_id, seqno - 1)
        if newer is not None:
            return newer[0].data == data if newer else None
        if self._stores.log.head(self.shard_id) is None:
            raise OutcomeUnknown(
                f"entry {seqno} of shard {self.shard_id} may have been in: the collection was dropped since"
            )
        raise OutcomeUnknown(
            f"entry {seqno} of shard {self.shard_id} was collected before it could be read: "
            "append with a named writer to learn such outcomes"
        )

    def write_rollup(self, state: ShardState) -> Rollup:
        """Store a whole state as a blob, which the log does not name yet. One `put`.

        Raises:
            InternalError: the state breaks a rule. Nothing was written: the shard can still be opened from
                the rollup before.
        """
        check_state(state)
        id_ = self._env.ids.fresh()
        data = codec.encode_state(state)
        self._stores.blobs.put(names.rollup(self.shard_id, state.seqno, id_), data)
        return Rollup(state.seqno, id_, len(data), len(state.spine))

    def trim(self, state: ShardState, trimmed: int) -> int:
        """Remove the entries from before the rollup before the newest one, if they are many. One store call.

        The newest rollup alone would do. With the one before it, and the entries since, a repair can do
        without the newest, and a process that is just opening the shard seldom has to start over.

        Args:
            state: a state that names a rollup.
            trimmed: what the last call of this handle returned; 0: there was none.

        Returns:
            A seqno; the entries before it are removed.

        Raises:
            CorruptionError: the log is damaged.
        """
        rollups = (names.rolled_up_at(name) for name in state.garbage)
        first = max((seqno for seqno in rollups if seqno is not None), default=0)
        if state.dropped or first - trimmed < _TRIMMED_MIN:
            return trimmed
        try:
            self._stores.log.truncate(self.shard_id, first)
        except UsageError:
            # The shard was deleted meanwhile, or its log has lost its end: the next commit tells which.
            return trimmed
        return first

    def _entry_name(self, seqno: int) -> str:
        return f"{self.shard_id}@{seqno}"


def check_reaches(shard_id: str, seqno: int, objects: Iterable[str]) -> None:
    """Check that no part or rollup of a shard was made for a later state than that of its newest entry.

    An object is named after a state that was in the log. So a later one proves that the log has lost commits,
    as one does that was restored from a backup, and that nothing may be removed.

    Args:
        shard_id: id of the shard.
        seqno: of its newest entry, which was read after `objects` were listed.
        objects: names of its objects.

    Raises:
        CorruptionError: there is such an object.
    """
    for name in objects:
        later = names.uploaded_at(name) or names.rolled_up_at(name) or 0
        if later > seqno:
            message = (
                f"its log ends at entry {seqno}, but {name} was made after entry {later}: the rest is lost"
            )
            raise CorruptionError(shard_id, message)


def advanced(
    known: LoadedVersion, delta: Delta, size_bytes: int, after: ShardState | None = None
) -> LoadedVersion:
    """The version after one more log entry. `after` is its state, if the caller has computed it."""
    state = apply(known.state, delta) if after is None else after
    is_rolled_up = state.rollup.seqno > known.state.rollup.seqno
    return LoadedVersion(state, 0 if is_rolled_up else known.delta_bytes + size_bytes)
