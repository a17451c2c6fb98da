"""The log of a shard, read again from the oldest state that it still starts from.

Owns the check that every entry decodes, fits the state before it and keeps the rules, and that every
rollup is the very state of its seqno. Must not know parts. Where an entry cannot be used it goes on from
the next good rollup, so that one damaged byte hides nothing else. Where there is none, `salvaged` leaves the
entry out. Writes nothing.

What a repair has mended is past: nothing is told of the log before it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidelake.errors import BlobNotFound, CorruptionError, InternalError, SymbolicLink
from tidelake.model import names
from tidelake.shard.checking.finding import Tell
from tidelake.state import codec
from tidelake.state.edits import Delta, steps
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
        keeps_rules: whether the state does.
        left_out: entries that could not be used, if that was asked for.
        sound: seqno of the last state that keeps the rules, if that was asked for.
    """

    state: ShardState | None
    rollup_ok: bool
    keeps_rules: bool = True
    left_out: tuple[Entry, ...] = ()
    sound: int | None = None


def replay(shard_id: str, stores: Stores, tell: Tell) -> Replayed:
    """Read a whole log. Costs one listing, a scan for 256 entries and a read for each rollup.

    Raises:
        FormatTooNew: a newer version wrote some of it.
    """
    reading, answer = _read(lambda: _Replay(shard_id, stores), shard_id)
    for finding in reading.found:
        tell(*finding)
    return answer


def salvaged(shard_id: str, stores: Stores, *, keeping_rules: bool) -> Replayed:
    """The newest state without the entries that cannot be used, and the last one that keeps the rules.

    Costs a read as `replay`, and a check of the whole state for each entry.

    Args:
        shard_id: of the shard.
        stores: where it is.
        keeping_rules: leave out entries as well that break a rule.
    """
    how = _How(leave_out=True, judge=True, keeping_rules=keeping_rules)
    return _read(lambda: _Replay(shard_id, stores, how), shard_id)[1]


def state_at(shard_id: str, stores: Stores, seqno: int) -> ShardState | None:
    """The state of a seqno, as far back as the log goes; None if no good start leads there."""
    if seqno < 0:
        return None
    found = _read(lambda: _Replay(shard_id, stores, _How(until=seqno)), shard_id)[1].state
    return found if found is not None and found.seqno == seqno else None


@dataclass(frozen=True)
class _How:
    """How a log is read.

    Attributes:
        leave_out: entries that cannot be used, where no rollup leads past them.
        judge: each state whole.
        keeping_rules: leave out entries that lead to a state which breaks rules.
        until: the last seqno to read.
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
    def __init__(self, shard_id: str, stores: Stores, how: _How | None = None) -> None:
        self._id, self._stores, self._how = shard_id, stores, how or _How()
        self._left_out: list[Entry] = []
        self._sound: int | None = None
        # Rollups and first entries that break rules: nobody can open the shard from them.
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
                self._tell(
                    "log-missing", self._id, "there is no log of this shard, and so nothing can be read"
                )
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
            raise  # nothing is known to be damaged
        except CorruptionError as error:
            if limit > 1:  # up to the one that is damaged
                return self._scan(start, 1)
            self._tell("log-damaged", error.name, error.reason)
            raise _Stuck(start) from error

    def _start(self, entry: Entry) -> ShardState | None:
        """The first state that the log leads on from."""
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
        """The state of the oldest good rollup of at least this seqno."""
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
        """A whole state, also one that breaks rules, which is noted."""
        state = codec.decode_unchecked(data, name)
        try:
            check_state(state)
        except InternalError as error:
            self._broken[name] = str(error)
        return state

    def _judge(self, state: ShardState) -> bool:
        """Whether a state keeps the rules, if that is asked for."""
        if self._how.judge or self._how.keeping_rules:
            try:
                check_state(state)
            except InternalError:
                return False
            self._sound = state.seqno
        return True

    def _rollup(self, name: str, seqno: int) -> ShardState | None:
        """The state in a rollup, or None, with the reason in `_bad`."""
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
        """The newest state, from an older one."""
        while True:
            try:
                entries = self._scan(state.seqno + 1, _ENTRIES)
            except _Stuck:
                state = self._past(state)
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

    def _past(self, state: ShardState) -> ShardState:
        """The state without an entry that the store itself cannot read."""
        seqno = state.seqno + 1
        if not self._how.leave_out or self._leads_on(seqno):
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
        if not self._how.leave_out or self._leads_on(end - 1):
            raise _Stuck(end - 1)

    def _leads_on(self, least: int) -> bool:
        """Whether a rollup leads past what cannot be used."""
        return self._from_rollup(least) is not None

    def _after_any(self, state: ShardState, entry: Entry) -> ShardState:
        """The state after an entry, or without it."""
        if not self._how.leave_out:
            return self._after(state, entry)
        try:
            after = self._after(state, entry)
            if self._judge(after) or not self._how.keeping_rules:
                return after
        except _Stuck:
            if self._leads_on(entry.seqno):
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
            # It may name a rollup that an entry which was left out has added.
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
        """What a repair has made of the state before; it has settled what was wrong until then."""
        name = names.rollup(self._id, delta.base.seqno, delta.base.id)
        # It differs from the log before it, as it should.
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
            self._bad[name] = ("rollup-differs", f"it is not the state that the log makes of {state.seqno}")

    def _judged(self, state: ShardState) -> Replayed:
        last = names.rollup(self._id, state.rollup.seqno, state.rollup.id)
        if state.rollup != FIRST and last not in self._rollups.get(state.rollup.seqno, ()):
            # Missing, or added since the listing.
            self._rollup(last, state.rollup.seqno)
        # Others are garbage, or came too late: nobody starts from them.
        self._tell_bad({last} & self._bad.keys())
        if state.rollup == FIRST:
            last = f"{self._id}@{FIRST.seqno}"
        ahead = max(self._rollups, default=0)
        if ahead > state.seqno and not self._stores.log.scan(self._id, ahead, 1):
            self._tell("log-behind", f"{self._id}@{state.seqno}", f"a rollup knows the later state {ahead}")
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
