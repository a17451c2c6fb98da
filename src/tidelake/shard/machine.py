"""The one loop in which every command runs.

Take the newest known state, compute the transition, check the rules over (before, after), compare and
set; done, or refresh and go round. A refusal or no-op is believed only on a fresh state. Commands of one
handle take turns, which reads do not wait for; those of several meet at the compare-and-set.

INVARIANT: nothing is committed on a tombstone, so the last entry of its log is the one that made it so.
"""

import os
import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    CollectionDropped,
    CollectionNotFound,
    CorruptionError,
    InternalError,
    TidelakeError,
)
from tidelake.shard.history import History, Known
from tidelake.state.commands import Command, Commit, NoOp, Refused
from tidelake.state.fuel import MergeDue
from tidelake.state.holds import settle
from tidelake.state.invariants import check_step
from tidelake.state.state import Delta, Edits, ShardState, apply

R = TypeVar("R")


@dataclass(frozen=True)
class Done(Generic[R]):
    """A command's result, and the work that is now due.

    Attributes:
        result: of the command.
        rollup_due: opening the shard has become dearer than it need be.
        merges_due: merges that the levels of the spine have decided on.
    """

    result: R
    rollup_due: bool
    merges_due: tuple[MergeDue, ...] = ()


class Machine:
    """Runs commands on one shard. Thread-safe, and of use in a fork.

    Attributes:
        title: what messages call the shard.
    """

    def __init__(self, history: History, config: Config, env: Env) -> None:
        self.title = history.shard_id
        self._history = history
        self._config = config
        self._env = env
        self._known: Known | None = None
        self._begin()

    def _begin(self) -> None:
        self._turn = threading.Lock()
        self._adopting = threading.Lock()
        # Last: whoever finds it up to date uses these locks.
        self._pid = os.getpid()

    def _check_process(self) -> None:
        """In a fork, take no part in turns that threads of the parent have and will never give back."""
        if self._pid != os.getpid():
            self._begin()

    def refresh(self) -> ShardState:
        """The newest state. One log scan, three calls the first time. Waits for no command.

        Raises:
            CollectionNotFound: there is no such shard.
        """
        before = self._known
        known = self._history.open() if before is None else self._history.refresh(before)
        if known is None:
            raise CollectionNotFound(f"shard {self._history.shard_id} does not exist")
        return self.adopt(known).state

    def adopt(self, known: Known) -> Known:
        """Take a state that was read or made, unless a newer one is known; the newest."""
        self._check_process()
        with self._adopting:
            if self._known is None or self._known.state.seqno < known.state.seqno:
                self._known = known
            return self._known

    def run(self, command: Command[R]) -> Done[R]:
        """Carry out a command. One log write if it commits and nobody else was first.

        Raises:
            TidelakeError: the command was refused on the newest state; nothing was written.
            CollectionDropped: it would write, and the shard is a tombstone.
        """
        self._check_process()
        with self._turn:
            fresh = self._known is None
            while True:
                known = self.known()
                now_ms = max(self._env.clock.now_ms(), known.state.committed_ms)
                outcome = command(known.state, now_ms)
                match outcome:
                    case NoOp(result):
                        if fresh:
                            return Done(result, self._rollup_due(known))
                    case Refused(error):
                        if fresh:
                            raise self._named(error)
                    case Commit(_, _, _) if known.state.dropped:
                        raise CollectionDropped(self.title)
                    case Commit(edits, result, due):
                        committed = self._commit(known, edits, now_ms)
                        if committed is not None:
                            self.adopt(committed)
                            return Done(result, self._rollup_due(committed), due)
                self.refresh()
                fresh = True

    def preview(self, command: Command[R]) -> R | None:
        """What a command would answer without writing; None if it would write. Usually no store call.

        Raises:
            TidelakeError: it is refused on the newest state.
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
                raise self._named(error)

    def _named(self, error: TidelakeError) -> TidelakeError:
        """An error of a state, which knows the shard by its id only, as people know it."""
        return CollectionDropped(self.title) if isinstance(error, CollectionDropped) else error

    def _commit(self, known: Known, edits: Edits, now_ms: int) -> Known | None:
        before = known.state
        edits = settle(before, edits, now_ms)
        delta = Delta(
            before.shard_id,
            before.seqno + 1,
            now_ms,
            self._env.ids.fresh(),
            edits.rollup or before.rollup,
            edits,
        )
        try:
            after = apply(before, delta)
        except CorruptionError as error:
            raise InternalError(f"a command made edits that do not fit its own state: {error}") from error
        check_step(before, after, edits)
        return self._history.commit(known, delta, after)

    def _rollup_due(self, known: Known) -> bool:
        """Whether a rollup pays.

        Due when the deltas since the last one have outgrown it, so that all rollups together cost no
        more than the deltas do; and when the state has shrunk to less than half of what it stores.
        """
        if known.state.dropped:
            return False
        last = known.state.rollup
        least = self._config.rollup_bytes_min
        shrunk = len(known.state.spine) * 2 < last.batches
        return known.delta_bytes >= max(least, last.size_bytes) or (shrunk and last.size_bytes >= least)

    def known(self) -> Known:
        """The newest state that this process has seen, and what it takes to open it."""
        if self._known is None:
            self.refresh()
        if self._known is None:
            raise InternalError("no state after a refresh")
        return self._known
