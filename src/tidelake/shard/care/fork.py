"""Creates a fork: a shard that begins as a version of another shard of the lake, without copying parts.

Owns the order of the steps. The origin notes the fork, and from then on keeps the objects of that version;
then the fork gets its log, by one write; then the origin is read again. The fork is returned only if the
origin still knows it after the fork has its log. If the origin had forgotten it as never created (see
`tidelake.shard.upkeep.forkpins`), it would not know it any more; and it cannot forget it so later.

A crash leaves a pin, which the origin forgets, or a shard without a name, which is collected like any other.
"""

from functools import partial

from tidelake.env import Env
from tidelake.errors import ForkExpired, LeaseExpired
from tidelake.model.time import Time
from tidelake.shard.engine.history import History
from tidelake.shard.engine.shard import Shard
from tidelake.state.core.state import ShardState
from tidelake.state.life import forking

_TRIES = 8


def fork_shard(source: Shard, shard_id: str, env: Env, as_of: Time | None = None) -> ShardState:
    """Create a fork of the newest version of a shard, and return its first state. Four store calls."""
    first = _noted(source, shard_id, env, as_of)
    known = History(shard_id, source.stores, env).create(first)
    if known.state != first:
        raise ForkExpired(source.title)
    now = source.state()
    # A process that erases rows meanwhile may not have seen the fork, which has them.
    erased = now.erased > (first.origin.seqno if first.origin else 0) or any(
        one.pending for one in now.erasures.values()
    )
    if shard_id not in now.forks or erased:
        # The fork has no name yet, so it may be deleted.
        source.stores.log.delete(shard_id)
        raise ForkExpired(source.title)
    return first


def _noted(source: Shard, shard_id: str, env: Env, as_of: Time | None) -> ShardState:
    """Let the origin note the fork, and return the first state of the fork."""
    for _ in range(_TRIES):
        state = source.version().state
        first = forking.forked(state, shard_id, env.clock.now_ms(), as_of)
        try:
            source.run(partial(forking.note_fork, fork_id=shard_id, seqno=state.seqno))
        except LeaseExpired:
            continue  # Garbage was collected in between: take the newest version.
        return first
    raise ForkExpired(source.title)
