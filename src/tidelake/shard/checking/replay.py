"""The log of a shard, read again from the oldest state that it still starts from.

Owns the check that every entry decodes, fits the state before it and keeps the rules, and that every
rollup is the very state of its seqno. Must not know parts. Where an entry cannot be used it goes on from
the next good rollup, so that one damaged byte hides nothing else. Writes nothing.
"""

from dataclasses import dataclass

from tidelake.errors import BlobNotFound, CorruptionError, InternalError
from tidelake.model import names
from tidelake.shard.checking.finding import Tell
from tidelake.state import codec
from tidelake.state.edits import steps
from tidelake.state.invariants import check_state, check_step
from tidelake.state.state import FIRST, ShardState
from tidelake.store.protocols import Entry
from tidelake.store.url import Stores

_ENTRIES = 256
_TRIES = 8


class _Stuck(Exception):
    """The log cannot be followed past this seqno."""

    def __init__(self, seqno: int) -> None:
        super().__init__(seqno)
        self.seqno = seqno


class _Truncated(Exception):
    """Somebody removed the start of the log meanwhile."""


@dataclass(frozen=True)
class Replayed:
    """What a log says.

    Attributes:
        state: the newest one; None if no good start leads there.
        rollup_ok: whether the rollup that readers start from is there, and is right.
    """

    state: ShardState | None
    rollup_ok: bool


def replay(shard_id: str, stores: Stores, tell: Tell) -> Replayed:
    """Read a whole log. Costs one listing, a scan for 256 entries and a read for each rollup.

    Raises:
        FormatTooNew: a newer version wrote some of it.
    """
    for _ in range(_TRIES):
        reading = _Replay(shard_id, stores)
        try:
            answer = reading.run()
        except _Truncated:
            continue
        for finding in reading.found:
            tell(*finding)
        return answer
    raise CorruptionError(shard_id, "its log is truncated faster than it can be read")


class _Replay:
    def __init__(self, shard_id: str, stores: Stores) -> None:
        self._id, self._stores = shard_id, stores
        self.found: list[tuple[str, str, str]] = []
        self._bad: dict[str, tuple[str, str]] = {}
        self._rollups: dict[int, list[str]] = {}
        for info in stores.blobs.list(names.rollups(shard_id)):
            seqno = names.rolled_up_at(info.name)
            if seqno is not None:
                self._rollups.setdefault(seqno, []).append(info.name)

    def run(self) -> Replayed:
        entries = self._scan(0, 1)
        if not entries:
            self._tell("log-missing", self._id, "there is no log of this shard, and so nothing can be read")
            return Replayed(None, True)
        state = self._start(entries[0])
        while state is not None:
            try:
                state = self._followed(state, entries[0].seqno)
                break
            except _Stuck as stuck:
                state = self._from_rollup(stuck.seqno)
        if state is None:
            self._tell_bad(set(self._bad))
            self._tell("log-unreadable", self._id, "no whole state leads to the newest entry: restore a copy")
            return Replayed(None, False)
        return self._judged(state)

    def _scan(self, start: int, limit: int) -> list[Entry]:
        try:
            return self._stores.log.scan(self._id, start, limit)
        except CorruptionError as error:
            self._tell("log-damaged", error.name, error.reason)
            return []

    def _start(self, entry: Entry) -> ShardState | None:
        """The first state that the log leads on from."""
        if not codec.is_state(entry.data):
            return self._from_rollup(entry.seqno - 1)
        name = f"{self._id}@{entry.seqno}"
        try:
            state = codec.decode_state(entry.data, name)
        except CorruptionError as error:
            self._tell("log-damaged", name, error.reason)
            return self._from_rollup(entry.seqno)
        if (state.shard_id, state.seqno) != (self._id, entry.seqno):
            self._tell("log-misfit", name, f"it holds {state.shard_id}@{state.seqno}")
            return self._from_rollup(entry.seqno)
        return state

    def _from_rollup(self, least: int) -> ShardState | None:
        """The state of the oldest good rollup of at least this seqno."""
        for seqno in sorted(seqno for seqno in self._rollups if seqno >= least):
            for name in self._rollups[seqno]:
                state = self._rollup(name, seqno)
                if state is not None:
                    return state
        return None

    def _rollup(self, name: str, seqno: int) -> ShardState | None:
        """The state in a rollup, or None, with the reason in `_bad`."""
        try:
            state = codec.decode_state(self._stores.blobs.get(name), name)
        except BlobNotFound:
            self._bad[name] = ("rollup-missing", "there is no such object")
            return None
        except CorruptionError as error:
            self._bad[name] = ("rollup-damaged", error.reason)
            return None
        if (state.shard_id, state.seqno) != (self._id, seqno):
            self._bad[name] = ("rollup-differs", f"it holds {state.shard_id}@{state.seqno}")
            return None
        return state

    def _followed(self, state: ShardState, first: int) -> ShardState:
        """The newest state, from an older one."""
        while entries := self._scan(state.seqno + 1, _ENTRIES):
            for entry in entries:
                if entry.seqno != state.seqno + 1:
                    self._check_gap(state.seqno + 1, entry.seqno, first)
                state = self._after(state, entry)
                for name in self._rollups.get(state.seqno, ()):
                    self._compare(name, state)
        return state

    def _check_gap(self, start: int, end: int, first: int) -> None:
        oldest = self._scan(0, 1)
        if not oldest or oldest[0].seqno > first:
            raise _Truncated
        missing = f"entries {start} to {end - 1} are" if end - start > 1 else f"entry {start} is"
        self._tell("log-gap", f"{self._id}@{start}", f"{missing} missing from the log")
        raise _Stuck(end - 1)

    def _after(self, state: ShardState, entry: Entry) -> ShardState:
        name = f"{self._id}@{entry.seqno}"
        try:
            delta = codec.decode_delta(entry.data, name)
        except CorruptionError as error:
            self._tell("log-damaged", name, error.reason)
            raise _Stuck(entry.seqno) from error
        try:
            done = list(steps(state, delta))
        except CorruptionError as error:
            self._tell("log-misfit", name, error.reason)
            raise _Stuck(entry.seqno) from error
        for step in done:
            try:
                check_step(step.before, step.after, step.edits)
            except InternalError as error:
                self._tell("rule-broken", name, str(error))
        return done[-1].after

    def _compare(self, name: str, state: ShardState) -> None:
        stored = None if name in self._bad else self._rollup(name, state.seqno)
        if stored is not None and stored != state:
            self._bad[name] = ("rollup-differs", f"it is not the state that the log makes of {state.seqno}")

    def _judged(self, state: ShardState) -> Replayed:
        last = names.rollup(self._id, state.rollup.seqno, state.rollup.id)
        if state.rollup != FIRST and last not in self._rollups.get(state.rollup.seqno, ()):
            # Missing, or added since the listing.
            self._rollup(last, state.rollup.seqno)
        # Others are garbage, or came too late: nobody starts from them.
        self._tell_bad({last} & self._bad.keys())
        ahead = max(self._rollups, default=0)
        if ahead > state.seqno and not self._scan(ahead, 1):
            self._tell("log-behind", f"{self._id}@{state.seqno}", f"a rollup knows the later state {ahead}")
        try:
            check_state(state)
        except InternalError as error:
            self._tell("rule-broken", f"{self._id}@{state.seqno}", str(error))
        return Replayed(state, last not in self._bad)

    def _tell(self, kind: str, object_: str, message: str) -> None:
        self.found.append((kind, object_, message))

    def _tell_bad(self, which: set[str]) -> None:
        for name in sorted(which):
            kind, message = self._bad[name]
            self._tell(kind, name, message)
