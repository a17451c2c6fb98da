"""The loop in which every command runs.

Take the newest known state, compute the transition, check the rules over (before, after), and compare-and-set
the log; if another commit was first, refresh and try again. A refusal or no-op is returned only if it was
decided on a fresh state. Commands that arrive together, through handles of one lake, are decided one after
the other, each on the state that those before it produce, and committed by one compare-and-set
(`tidelake.shard.engine.requestqueue`). Reads do not wait for them. Commands of different processes compete at
the compare-and-set. On one machine a process that has met others there first takes a turn, in which it learns
the newest state, decides and commits; nothing else is done in a turn, and the compare-and-set decides as
without.

INVARIANT: every commit on a tombstone leaves it a tombstone (it may only forget forks), so the last entry of
its log says that it is one.
INVARIANT: no command is answered before every commit that its answer was decided on is durable.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    CollectionDropped,
    CollectionInGroup,
    CollectionIsView,
    CollectionNotFound,
    CorruptionError,
    InternalError,
    TidelakeError,
    TimedError,
)
from tidelake.model.frozen import with_fields
from tidelake.process import PerProcess
from tidelake.shard.engine.fairshare import FairShare
from tidelake.shard.engine.history import History, LoadedVersion
from tidelake.shard.engine.requestqueue import (
    CommitRequest,
    Decided,
    Done,
    Failed,
    RefreshRequest,
    Request,
    RequestQueue,
)
from tidelake.state.core.codec import check_format
from tidelake.state.core.commands import Command, Commit, NoOp, Refused
from tidelake.state.core.edits import Delta, Edits, Note, stepped
from tidelake.state.core.invariants import check_step
from tidelake.state.core.state import ShardState
from tidelake.state.life.holds import settle
from tidelake.store.retrying import draw_from

R = TypeVar("R")
# A spine has shrunk if it has less than one in so many of its batches; merges beside appends leave more.
_SHRUNK = 8


class GroupCommit:
    """Work that the handles of one lake on one shard do together: one queue of requests for each kind.

    Attributes:
        commits: commits of commands.
        looks: reads of the newest state.
        reliefs: merges that must be done before an append.
        gathers: drains of staged batches, before more are staged.
        newest: a state that a handle has seen; no handle has committed a newer one.
        command: a context manager around each command, from its first call to its answer. A lake that is
            closed refuses commands here.
        share: leaves the log to other processes that want it.
        counts_appends: whether appends are counted as such; not those to the list of collections.
        merged: rows that reads have merged since the last base; see `tidelake.state.upkeep.basing`.
    """

    def __init__(
        self,
        env: Env,
        command: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        counts_appends: bool = True,
    ) -> None:
        self.share = FairShare(env.clock, draw_from(env.ids))
        self.commits, self.looks = RequestQueue(env.clock, before=self.share.give_way), RequestQueue()
        self.reliefs, self.gathers = RequestQueue(), RequestQueue()
        self.newest: LoadedVersion | None = None
        self.command = command
        self.counts_appends = counts_appends
        self.merged = MergedByReads()


class MergedByReads:
    """Rows that reads had to merge since the last base. A count that is lost makes the next base later."""

    def __init__(self) -> None:
        self._since, self._rows = 0, 0

    def add(self, rows: int, state: ShardState) -> None:
        """Count rows that a read of a state has merged."""
        before = self.rows(state)
        self._since, self._rows = _last_base(state), before + rows

    def rows(self, state: ShardState) -> int:
        """The rows since the last base of a state."""
        return self._rows if self._since == _last_base(state) else 0


def _last_base(state: ShardState) -> int:
    last = state.bases.before(state.spine.sliced)
    return 0 if last is None else last.hi


@dataclass(frozen=True)
class _Attempt:
    """An attempt to commit a round of commands.

    Attributes:
        known: the version that it is based on.
        delta: the entry to write, with a step for each command that writes; None: no command writes.
        after: the state after the commit.
        decided: all commands of the round with their outcomes.
    """

    known: LoadedVersion
    delta: Delta | None
    after: ShardState
    decided: tuple[tuple[CommitRequest[Any], Decided[Any]], ...]


class Machine:
    """Runs commands on one shard. Thread-safe; still works after a fork.

    Args:
        history: the history of the shard.
        config: settings.
        env: the clock and ids of this process.
        group_commit: shared with other handles on the shard; default: not shared.

    Attributes:
        title: the name of the shard in messages.
        group_commit: as the argument.
        seen: the newest version that this handle has seen, if any.
    """

    def __init__(
        self, history: History, config: Config, env: Env, group_commit: GroupCommit | None = None
    ) -> None:
        self.title = history.shard_id
        self.group_commit = group_commit or GroupCommit(env)
        self._history = history
        self._config = config
        self._env = env
        self.seen: LoadedVersion | None = None
        self._adopting = PerProcess(threading.Lock)

    def refresh(self) -> ShardState:
        """The newest state. One log scan, three calls the first time. Waits for no command.

        Threads that ask while a scan runs share the next scan.

        Raises:
            CollectionNotFound: there is no such shard.
        """
        self.group_commit.looks.run(RefreshRequest(self), self._look)
        return self.known().state

    def _look(self, looks: Sequence[RefreshRequest]) -> None:
        try:
            before = self._newest(looks)
            known = self._history.open() if before is None else self._history.refresh(before)
            if known is None:
                raise CollectionNotFound(f"shard {self._history.shard_id} does not exist")
        except Exception as error:
            _fail(looks, error)
            return
        for look in looks:
            look.machine.adopt(known)
            look.answered = True

    def _newest(self, asking: Sequence[RefreshRequest | CommitRequest[Any]]) -> LoadedVersion | None:
        """The newest state that any of these handles has seen; this handle adopts it."""
        newest = self.group_commit.newest
        if newest is not None and newest is not self.seen:
            self.adopt(newest)
        for asked in asking:
            if asked.machine is not self and asked.machine.seen is not None:
                self.adopt(asked.machine.seen)
        return self.seen

    def adopt(self, known: LoadedVersion) -> LoadedVersion:
        """Take over a version that was read or committed, unless a newer one is known. Returns the newest."""
        before = self.seen
        if before is not None and known.state.seqno <= before.state.seqno:
            return before
        with self._adopting.get():
            if self.seen is None or self.seen.state.seqno < known.state.seqno:
                self.seen = known
            return self.seen

    def run(self, command: Command[R], *, alone: bool = False) -> Done[R]:
        """Carry out a command. One log write if it commits and no other commit was first.

        Args:
            command: the command. In a round with others it is decided on an intermediate state that no reader
                sees, which has the seqno of the newest state that readers do see.
            alone: carry it out in a round of its own, since its answer depends on that state or its seqno.

        Raises:
            TidelakeError: the command was refused on the newest state; nothing was written.
            CollectionDropped: it would write, and the shard is a tombstone.
        """
        asked: CommitRequest[R] = CommitRequest(self, command, alone=alone)
        self.group_commit.commits.run(asked, self._carry_out)
        return asked.done()

    def run_together(self, commands: Sequence[Command[R]]) -> list[Done[R]]:
        """Carry out several commands by one commit, as `run` does one, and wait for no other thread."""
        # An answer to the last one says that the others have theirs.
        others = [CommitRequest(self, command) for command in commands[:-1]]
        last = CommitRequest(self, commands[-1], hurried=True, others=others)
        self.group_commit.commits.run(last, self._carry_out)
        for other in others:
            other.check()
        return [asked.done() for asked in (*others, last)]

    def _carry_out(self, leading: Sequence[CommitRequest[Any]]) -> None:
        """Answer commands, of this handle and of others on the same shard."""
        asking = [one for asked in leading for one in (*asked.others, asked)]
        for asked in asking:
            if isinstance(asked.attempt, _Attempt):
                self._resume(asked.attempt)
        waiting = [asked for asked in asking if not asked.answered]
        try:
            is_new = self._newest(waiting) is None
            if waiting and self.group_commit.share.has_rivals and self._history.has_turns:
                self._in_turn(waiting)
            else:
                self._decide(waiting, fresh=is_new)
        except Exception as error:
            _fail(waiting, error)

    def _resume(self, attempt: _Attempt) -> None:
        """Finish an attempt that another thread had begun when it was interrupted."""
        if attempt.delta is None:
            return
        try:
            committed = self._history.resume(attempt.known, attempt.delta, attempt.after)
        except Exception as error:
            _fail([asked for asked, _ in attempt.decided], error)
        else:
            self._answer(attempt, committed)

    def _decide(self, waiting: Sequence[CommitRequest[Any]], *, fresh: bool, in_turn: bool = False) -> None:
        """Try until the commands are committed, or write nothing on a fresh state."""
        while waiting:
            attempt = self._attempt(self.known(), waiting)
            if attempt.delta is None:
                if fresh:
                    self._answer(attempt, attempt.known)
                    return
                self.refresh()
            else:
                began_s = self._env.clock.monotonic_s()
                for asked in waiting:
                    asked.attempt = attempt
                committed = self._history.commit(attempt.known, attempt.delta, attempt.after)
                self._env.recorder.observe("commit.seconds", self._env.clock.monotonic_s() - began_s)
                self._answer(attempt, committed)
                if committed is not None:
                    self.group_commit.share.won(attempt.delta.seqno)
                    return
                self._env.recorder.count("commit.conflict")
                if self._history.has_turns and not in_turn:
                    self._in_turn(waiting)
                    return
                self.refresh()
                if not in_turn:
                    self.group_commit.share.lost(began_s)
            fresh = True

    def _in_turn(self, waiting: Sequence[CommitRequest[Any]]) -> None:
        """Decide while the other processes do not commit: what is decided now is the next commit.

        So no process works in vain while many write.
        """
        with self._history.turn():
            self.refresh()
            self._decide(waiting, fresh=True, in_turn=True)

    def _attempt(self, known: LoadedVersion, waiting: Sequence[CommitRequest[Any]]) -> _Attempt:
        """Decide commands, each on the state that those before it produce."""
        before = state = known.state
        now_ms = max(self._env.clock.now_ms(), before.committed_ms)
        decided: list[tuple[CommitRequest[Any], Decided[Any]]] = []
        steps: list[Edits] = []
        for asked in waiting:
            outcome, edits, after = _step(asked, state, now_ms)
            decided.append((asked, outcome))
            if edits is not None:
                steps.append(edits)
                # All commands of the round become one version, so each sees the seqno before it.
                state = with_fields(after, seqno=before.seqno)
        if not steps:
            return _Attempt(known, None, before, tuple(decided))
        delta = Delta(
            before.shard_id,
            before.seqno + 1,
            now_ms,
            self._env.ids.fresh(),
            state.rollup,
            steps[0],
            tuple(steps[1:]),
        )
        return _Attempt(known, delta, with_fields(state, seqno=delta.seqno), tuple(decided))

    def _answer(self, attempt: _Attempt, known: LoadedVersion | None) -> None:
        """Answer the commands of an attempt that was committed, or that wrote nothing. None: it was not."""
        for asked, _ in attempt.decided:
            asked.attempt = None
        if known is None:
            return
        if attempt.delta is not None:
            self._count(attempt.known.state, attempt.delta, attempt.after)
        self.group_commit.newest = self.adopt(known)
        rollup_due = self._rollup_due(known)
        for asked, outcome in attempt.decided:
            if asked.machine is not self:
                asked.machine.adopt(known)
            # One of the commands writes the rollup.
            rollup_due = asked.answer(outcome, rollup_due=rollup_due)

    def _count(self, before: ShardState, delta: Delta, after: ShardState) -> None:
        """Count a commit, and what it appended."""
        count = self._env.recorder.count
        steps = delta.steps
        count("commit")
        count("commit.commands", len(steps))
        appends = sum([step.upper is not None for step in steps])
        if not appends or not self.group_commit.counts_appends:
            return
        count("append", appends)
        count("append.rows", after.written.appended_rows - before.written.appended_rows)
        count("append.bytes", after.written.appended_bytes - before.written.appended_bytes)

    def preview(self, command: Command[R]) -> R | None:
        """The result of a command that would write nothing; None if it would write. Usually no store call.

        Raises:
            TidelakeError: the command is refused on the newest state.
        """
        if isinstance(command(self.known().state, self._env.clock.now_ms()), Commit):
            return None
        outcome = command(self.refresh(), self._env.clock.now_ms())
        match outcome:
            case Commit(_, _, _):
                return None
            case NoOp(result):
                return result
            case Refused(error):
                raise self.named(error)

    def named(self, error: TidelakeError) -> TidelakeError:
        """The error with the shard's title in place of its id, and with the unit of its times."""
        if isinstance(error, CollectionDropped | CollectionInGroup | CollectionIsView):
            return type(error)(self.title)
        if isinstance(error, TimedError) and self.seen is not None:
            return error.of(self.seen.state.domain.unit)
        return error

    def _rollup_due(self, known: LoadedVersion) -> bool:
        """Whether a rollup is due.

        It is due when the deltas since the last rollup are larger than that rollup, so that all rollups
        together cost no more than the deltas do; and when the spine has shrunk to less than an eighth of the
        batches in the last rollup, as after a merge of everything.
        """
        if known.state.dropped:
            return False
        last = known.state.rollup
        least = self._config.rollup_bytes_min
        shrunk = known.state.spine.totals.members * _SHRUNK < last.batches
        return known.delta_bytes >= max(least, last.size_bytes) or (shrunk and last.size_bytes >= least)

    def latest(self) -> LoadedVersion:
        """The newest version that this handle has seen, or another one of its lake has committed.

        No store call, except for the first.
        """
        return self._newest(()) or self.known()

    def known(self) -> LoadedVersion:
        """The newest version that this handle has seen. No store call, except for the first."""
        if self.seen is None:
            self.refresh()
        if self.seen is None:
            raise InternalError("no state after a refresh")
        return self.seen


def _step(
    asked: CommitRequest[Any], state: ShardState, now_ms: int
) -> tuple[Decided[Any], Edits | None, ShardState]:
    """Decide one command on a state: its outcome, what it writes (None: nothing), and the state after it."""
    try:
        outcome = asked.command(state, now_ms)
        if not isinstance(outcome, Commit):
            return outcome, None, state
        if state.dropped and not outcome.edits.dropped:
            return Refused(CollectionDropped(state.shard_id)), None, state
        noted = outcome.edits if asked.note is None else _noted(asked.note, outcome.edits)
        edits = settle(state, noted, now_ms)
        try:
            after = stepped(state, edits, now_ms)
        except CorruptionError as error:
            message = f"a command made edits that do not fit its own state: {error}"
            raise InternalError(message) from error
        check_step(state, after, edits)
        check_format(state, after, edits)
    except Exception as error:
        # Fails this command only, not the others of the round.
        return Failed(error), None, state
    return outcome, edits, after


def _noted(note: Note, edits: Edits) -> Edits:
    """The edits with a note, if they change what readers see."""
    is_seen = edits.upper or edits.schemas or any(one is not None for one in edits.staged.values())
    return replace(edits, note=note) if is_seen else edits


def _fail(waiting: Sequence[Request], error: Exception) -> None:
    for asked in waiting:
        asked.fail(error)
