"""Replays the log of a shard from the oldest state that it still starts from.

Owns the check that every entry decodes, fits the state before it and keeps the rules, and that every rollup
equals the state of its seqno. Must not know parts. If an entry cannot be used, the replay continues from the
next good rollup, so that one damaged byte hides nothing else; if there is none, `salvaged` leaves the entry
out. Writes nothing.

A repair settles all damage before it, so findings about earlier entries are dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidelake.errors import BlobNotFound, CorruptionError, InternalError, SymbolicLink
from tidelake.model import names
from tidelake.shard.care.finding import Tell
from tidelake.state.core import codec
from tidelake.state.core.edits import Delta, steps
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.core.state import FIRST, ShardState
from tidelake.store.protocols import Entry
from tidelake.store.url import Stores

_ENTRIES = 256
_TRIES = 8


class _Stuck(Exception):
    """The replay cannot get past this seqno."""

    def __init__(self, seqno: int) -> None:
        super().__init__(seqno)
        self.seqno = seqno


class _Truncated(Exception):
    """Another process removed the start of the log meanwhile."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay.

    Attributes:
        state: the newest state; None if it cannot be reached from any whole state.
        rollup_ok: whether the rollup that readers start from exists and is right.
        left_out: entries that could not be used and were left out, if this was asked for.
        sound: seqno of the last state that keeps the rules, if this was asked for.
    """

    state: ShardState | None
    rollup_ok: bool
    keeps_rules: bool = True
    left_out: tuple[Entry, ...] = ()
    sound: int | None = None


def replay(shard_id: str, stores: Stores, tell: Tell) -> Replayed:
    """Replay a whole log. Costs one listing, a scan for every 256 entries, and a read for each rollup."""
    reading, answer = _read(lambda: _Replay(shard_id, stores), shard_id)
    for finding in reading.found:
        tell(*finding)
    return answer


def salvaged(shard_id: str, stores: Stores, *, keeping_rules: bool) -> Replayed:
    """The newest state without the entries that cannot be used, and the last state that keeps the rules.

    Costs as `replay`, and a check of the whole state for each entry.
    """
    how = _Options(leave_out=True, judge=True, keeping_rules=keeping_rules)
    return _read(lambda: _Replay(shard_id, stores, how), shard_id)[1]


def state_at(shard_id: str, stores: Stores, seqno: int) -> ShardState | None:
    """The state of a seqno; None if the log does not go back so far, or no whole state leads there."""
    if seqno < 0:
        return None
    found = _read(lambda: _Replay(shard_id, stores, _Options(until=seqno)), shard_id)[1].state
    return found if found is not None and found.seqno == seqno else None


@dataclass(frozen=True)
class _Options:
    """How a log is read.

    Attributes:
        leave_out: leave out entries that cannot be used, if no rollup leads past them.
        keeping_rules: leave out entries that lead to a state which breaks a rule.
        until: the last seqno to read; None: all.
    """

    leave_out: bool = False
    judge: bool = False
    keeping_rules: bool = False
    until: int | None = None


def _read(made: Callable[[], "_Replay"], shard_id: str) -> "tuple[_Replay, Replayed]":
    for _ in range(_TRIES):
        reading = made()
        try:
            return reading, reading.run()
        except _Truncated:
            continue
    raise CorruptionError(shard_id, "its log is truncated faster than it can be read")


class _Replay:
    def __init__(self, shard_id: str, stores: Stores, how: _Options | None = None) -> None:
        self._id, self._stores, self._how = shard_id, stores, how or _Options()
        self._left_out: list[Entry] = []
        self._sound: int | None = None
        # Rollups and first entries that break rules: the shard cannot be opened from them.
        self._broken: dict[str, str] = {}
        self.found: list[tuple[str, str, str]] = []
        self._bad: dict[str, tuple[str, str]] = {}
        self._rollups: dict[int, list[str]] = {}
        for info in stores.blobs.list(names.rollups(shard_id)):
            seqno = names.rolled_up_at(info.name)
            if seqno is not None:
                self._rollups.setdefault(seqno, []).append(info.name)

    def run(self) -> Replayed:
        first, state = 0, None
        try:
            entries = self._scan(0, 1)
            if not entries:
                self._tell("log-missing", self._id, "this shard has no log, so nothing of it can be read")
                return Replayed(None, True)
            first, state = entries[0].seqno, self._start(entries[0])
            if state is not None:
                self._judge(state)
        except _Stuck:
            state = self._from_rollup(0)
        while state is not None:
            try:
                state = self._followed(state, first)
                break
            except _Stuck as stuck:
                state = self._from_rollup(stuck.seqno)
        if state is None:
            self._tell_bad(set(self._bad))
            self._tell("log-unreadable", self._id, "no whole state leads to the newest entry: restore a copy")
            return Replayed(None, False, sound=self._sound)
        return self._judged(state)

    def _scan(self, start: int, limit: int) -> list[Entry]:
        try:
            return self._stores.log.scan(self._id, start, limit)
        except SymbolicLink:
            raise  # not damage: the data may be intact behind the link
        except CorruptionError as error:
            if limit > 1:  # one by one, up to the damaged entry
                return self._scan(start, 1)
            self._tell("log-damaged", error.name, error.reason)
            raise _Stuck(start) from error

    def _start(self, entry: Entry) -> ShardState | None:
        """The state to start from: that of the first entry, or else of a rollup."""
        if not codec.is_state(entry.data):
            return self._from_rollup(entry.seqno - 1)
        name = f"{self._id}@{entry.seqno}"
        try:
            state = self._decoded(entry.data, name)
        except CorruptionError as error:
            self._tell("log-damaged", name, error.reason)
            return self._from_rollup(entry.seqno)
        if (state.shard_id, state.seqno) != (self._id, entry.seqno):
            self._tell("log-misfit", name, f"it holds {state.shard_id}@{state.seqno}")
            return self._from_rollup(entry.seqno)
        return state

    def _from_rollup(self, least: int) -> ShardState | None:
        """The state of the oldest good rollup whose seqno is at least `least`."""
        found: ShardState | None = None
        for seqno in sorted(seqno for seqno in self._rollups if seqno >= least):
            if self._how.until is not None and seqno > self._how.until:
                break
            for name in self._rollups[seqno]:
                state = self._rollup(name, seqno)
                if state is not None and name not in self._broken:
                    return state
                found = found or state
        return found

    def _decoded(self, data: bytes, name: str) -> ShardState:
        """Decode a whole state. If it breaks rules, note this in `_broken`."""
        state = codec.decode_unchecked(data, name)
        try:
            check_state(state)
        except InternalError as error:
            self._broken[name] = str(error)
        return state

    def _judge(self, state: ShardState) -> bool:
        """Whether a state keeps the rules. True without a check unless the check was asked for."""
        if self._how.judge or self._how.keeping_rules:
            try:
                check_state(state)
            except InternalError:
                return False
            self._sound = state.seqno
        return True

    def _rollup(self, name: str, seqno: int) -> ShardState | None:
        """The state in a rollup; None if it is bad, with the reason in `_bad`."""
        try:
            state = self._decoded(self._stores.blobs.get(name), name)
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
        """The newest state, replayed from an older one."""
        while True:
            try:
                entries = self._scan(state.seqno + 1, _ENTRIES)
            except _Stuck:
                state = self._skip_unreadable(state)
                continue
            if not entries:
                return state
            for entry in entries:
                if state.seqno == self._how.until:
                    return state
                if entry.seqno != state.seqno + 1:
                    self._check_gap(state.seqno + 1, entry.seqno, first)
                    state = replace(state, seqno=entry.seqno - 1)
                state = self._after_any(state, entry)
                for name in self._rollups.get(state.seqno, ()):
                    self._compare(name, state)

    def _skip_unreadable(self, state: ShardState) -> ShardState:
        """The state with its seqno advanced past an entry that the store itself cannot read."""
        seqno = state.seqno + 1
        if not self._how.leave_out or self._has_later_rollup(seqno):
            raise _Stuck(seqno)
        self._scan(seqno + 1, 1)
        self._left_out.append(Entry(seqno, b""))
        return replace(state, seqno=seqno)

    def _check_gap(self, start: int, end: int, first: int) -> None:
        oldest = self._scan(0, 1)
        if not oldest or oldest[0].seqno > first:
            raise _Truncated
        missing = f"entries {start} to {end - 1} are" if end - start > 1 else f"entry {start} is"
        self._tell("log-gap", f"{self._id}@{start}", f"{missing} missing from the log")
        if not self._how.leave_out or self._has_later_rollup(end - 1):
            raise _Stuck(end - 1)

    def _has_later_rollup(self, least: int) -> bool:
        """Whether a rollup leads past an entry that cannot be used."""
        return self._from_rollup(least) is not None

    def _after_any(self, state: ShardState, entry: Entry) -> ShardState:
        """The state after an entry, or without the entry if it is left out."""
        if not self._how.leave_out:
            return self._after(state, entry)
        try:
            after = self._after(state, entry)
            if self._judge(after) or not self._how.keeping_rules:
                return after
        except _Stuck:
            if self._has_later_rollup(entry.seqno):
                raise
        self._left_out.append(entry)
        return replace(state, seqno=entry.seqno)

    def _after(self, state: ShardState, entry: Entry) -> ShardState:
        name = f"{self._id}@{entry.seqno}"
        try:
            delta = codec.decode_delta(entry.data, name)
        except CorruptionError as error:
            self._tell("log-damaged", name, error.reason)
            raise _Stuck(entry.seqno) from error
        if self._left_out:
            # The delta may name a rollup that was added by an entry that is left out: name the one known.
            newest = next((edits.rollup for edits in reversed(delta.steps) if edits.rollup), state.rollup)
            delta = replace(delta, base=newest)
        if delta.mended:
            state = self._mended(delta, entry)
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

    def _mended(self, delta: Delta, entry: Entry) -> ShardState:
        """The state that a repair wrote. It settles all damage before it, so drop the findings so far."""
        name = names.rollup(self._id, delta.base.seqno, delta.base.id)
        # The repair's rollup is meant to differ from the log before it.
        self._bad.pop(name, None)
        state = self._rollup(name, delta.base.seqno)
        if state is None:
            raise _Stuck(entry.seqno)
        self.found.clear()
        self._left_out.clear()
        return state

    def _compare(self, name: str, state: ShardState) -> None:
        stored = None if name in self._bad else self._rollup(name, state.seqno)
        if stored is not None and stored != state:
            self._bad[name] = ("rollup-differs", f"it differs from the state {state.seqno} of the log")

    def _judged(self, state: ShardState) -> Replayed:
        last = names.rollup(self._id, state.rollup.seqno, state.rollup.id)
        if state.rollup != FIRST and last not in self._rollups.get(state.rollup.seqno, ()):
            # It is missing, or was added since the listing.
            self._rollup(last, state.rollup.seqno)
        # Report only the newest rollup: others are garbage or came too late, and no open starts from them.
        self._tell_bad({last} & self._bad.keys())
        if state.rollup == FIRST:
            last = f"{self._id}@{FIRST.seqno}"
        ahead = max(self._rollups, default=0)
        if ahead > state.seqno and not self._stores.log.scan(self._id, ahead, 1):
            self._tell("log-behind", f"{self._id}@{state.seqno}", f"a rollup holds the later state {ahead}")
        keeps_rules = True
        try:
            check_state(state)
        except InternalError as error:
            keeps_rules = False
            self._tell("rule-broken", f"{self._id}@{state.seqno}", str(error))
        if keeps_rules and last in self._broken:
            self._tell("rollup-damaged", last, self._broken[last])
        ok = last not in self._bad and last not in self._broken
        return Replayed(state, ok, keeps_rules, tuple(self._left_out), self._sound)

    def _tell(self, kind: str, object_: str, message: str) -> None:
        if (kind, object_, message) not in self.found:
            self.found.append((kind, object_, message))

    def _tell_bad(self, which: set[str]) -> None:
        for name in sorted(which):
            kind, message = self._bad[name]
            self._tell(kind, name, message)
