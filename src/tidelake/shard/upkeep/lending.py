"""What an origin keeps for its forks, and how that ends.

Two ways. A fork that needs nothing more says so to its origin, and then to itself (`let_go`); one that is
dropped says so before anything of it is deleted (`return_borrowed`). Of one that was noted and never made
the origin finds out itself (`settle`).

INVARIANT: an origin forgets a fork only when no state of it needs anything more, or when none was made and
none can be made any more that would be believed. So each step may be repeated, and a crash between any two
leaves at most a pin too many.
"""

from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import CollectionNotFound
from tidelake.shard.history import History
from tidelake.shard.machine import Machine
from tidelake.shard.shard import Shard
from tidelake.state import forking
from tidelake.state.state import ShardState
from tidelake.store.url import Stores


class Lending:
    """Both sides of it, in the stores of one lake."""

    def __init__(self, stores: Stores, env: Env, config: Config) -> None:
        self._stores, self._env, self._config = stores, env, config

    def let_go(self, shard: Shard) -> bool:
        """Let a fork and its origin forget each other, if nothing is borrowed; whether they did.

        No store call if there is nothing to do, otherwise a log write each.
        """
        state = shard.known()
        if state.dropped or state.origin is None or forking.is_borrower(state):
            return False
        self.return_borrowed(state)
        shard.run(forking.let_go)
        return True

    def return_borrowed(self, state: ShardState) -> None:
        """Let the origin of a state forget it. May be repeated; a log write of the origin, if it is there."""
        if state.origin is None:
            return
        try:
            self._machine(state.origin.shard_id).run(partial(forking.forget_fork, fork_id=state.shard_id))
        except CollectionNotFound:
            # It would be there if it kept anything.
            self._env.recorder.count("fork.origin.gone")

    def settle(self, state: ShardState) -> int:
        """Forget forks that were noted long ago and not made; how many. A store call for each that is old.

        SUBTLE: whoever noted one may be asleep and make it still. So an empty shard takes its place first,
        which no fork is equal to, and whose log goes only after the pin. Whoever makes the fork later than
        that looks for the pin before anybody is told of the fork.

        Args:
            state: of the origin, which may be a tombstone.
        """
        now_ms = self._env.clock.now_ms()
        before_ms = now_ms - state.agreed.upload_ms(now_ms)
        settled = 0
        for fork_id, fork in sorted(state.forks.items()):
            if fork.noted_ms <= before_ms and self._stores.log.head(fork_id) is None:
                settled += self._unmake(state, fork_id)
        return settled

    def _unmake(self, origin: ShardState, fork_id: str) -> bool:
        history = History(fork_id, self._stores, self._env)
        blank = forking.unmade(origin, fork_id, self._env.clock.now_ms())
        if history.create(blank).state != blank:
            return False  # It is made after all, or somebody else is at this.
        self.return_borrowed(blank)
        self._stores.log.delete(fork_id)
        return True

    def _machine(self, shard_id: str) -> Machine:
        return Machine(History(shard_id, self._stores, self._env), self._config, self._env)
