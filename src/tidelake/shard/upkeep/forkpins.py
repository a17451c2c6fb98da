"""Ends the pins that an origin keeps for its forks.

There are three ways. A fork that needs no part of its origin any more tells the origin, and then notes it
(`let_go`); they go on knowing each other. A fork that is dropped tells the origin before any object of the
fork is deleted, and is forgotten (`return_borrowed`); if it stays as the way to its own forks, which need no
object of it, the origin only keeps no part for it (`free`). The origin itself finds forks that were noted but
never created (`forget_uncreated`).

INVARIANT: an origin gives up the pin of a fork only if no state of the fork needs a part of the origin, or if
the fork was not created and a later creation would fail. So each step may be repeated, and a crash between
two steps leaves at most a pin too many.
"""

from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionNotFound
from tidelake.shard.engine.history import History
from tidelake.shard.engine.machine import Machine
from tidelake.shard.engine.shard import Shard
from tidelake.state.core import forks
from tidelake.state.core.state import ShardState
from tidelake.state.life import forking
from tidelake.store.url import Stores


class ForkPins:
    """Ends fork pins, for origins and forks of one lake."""

    def __init__(self, stores: Stores, env: Env, config: Config) -> None:
        self._stores, self._env, self._config = stores, env, config

    def let_go(self, shard: Shard) -> bool:
        """Let the origin of a fork keep no part for it, if the fork borrows nothing. Returns whether it did.

        No store call if there is nothing to do, otherwise a log write for each of the two.
        """
        state = shard.known()
        origin = forks.lender(state)
        if state.dropped or origin is None or forks.is_borrower(state):
            return False
        shard.run(partial(forking.let_go, known=self.free(origin.shard_id, state.shard_id)))
        return True

    def free(self, origin: str, fork: str) -> bool:
        """Let an origin keep no part for a fork that borrows nothing. Returns whether it still knows it.

        May be repeated. A log write of the origin, if it exists and kept parts.
        """
        try:
            return self._machine(origin).run(partial(forking.free_fork, fork_id=fork)).result
        except CollectionNotFound:
            self._env.recorder.count("fork.origin.gone")
            return False

    def return_borrowed(self, state: ShardState) -> None:
        """Let the origin of a fork forget it. May be repeated. A log write of the origin, if it exists."""
        if state.origin is None:
            return
        try:
            self._machine(state.origin.shard_id).run(partial(forking.forget_fork, fork_id=state.shard_id))
        except CollectionNotFound:
            # An origin that keeps parts for a fork would still exist.
            if not state.origin.freed:
                self._env.recorder.count("fork.origin.gone")

    def forget_uncreated(self, state: ShardState) -> int:
        """Forget forks that were noted long ago and never created; returns their number.

        A store call for each fork that was noted long ago.

        SUBTLE: the process that noted a fork may be asleep and create it later. So first create an empty
        shard in its place, which equals no fork, and delete its log only after the pin. A process that
        creates the fork after that checks the pin before it returns the fork.
        """
        now_ms = self._env.clock.now_ms()
        before_ms = now_ms - state.agreed.upload_ms(now_ms)
        forgotten = 0
        for fork_id, fork in sorted(state.forks.items()):
            if fork.noted_ms <= before_ms and self._stores.log.head(fork_id) is None:
                forgotten += self._forget_if_uncreated(state, fork_id)
        return forgotten

    def _forget_if_uncreated(self, origin: ShardState, fork_id: str) -> bool:
        history = History(fork_id, self._stores, self._env)
        blank = forking.unmade(origin, fork_id, self._env.clock.now_ms())
        if history.create(blank).state != blank:
            return False  # The fork was created after all, or another process does the same.
        self.return_borrowed(blank)
        self._stores.log.delete(fork_id)
        return True

    def _machine(self, shard_id: str) -> Machine:
        return Machine(History(shard_id, self._stores, self._env), self._config, self._env)
