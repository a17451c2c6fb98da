"""Beginning a shard as a version of another one of the same lake, without copying anything.

Owns the order of the three writes: the origin notes the fork, and from then on keeps what that version names;
then the fork gets its log, which is one write; then the origin is looked at again. Only a fork that its
origin still knew after the fork had its log is given out: had it been settled before (see
`tidelake.shard.upkeep.lending`), the origin would know it no more, and afterwards it cannot be.

A crash leaves a pin, which the origin settles, or a shard without a name, which is collected like any other.
"""

from functools import partial

from tidelake.env import Env
from tidelake.errors import ForkExpired, LeaseExpired
from tidelake.model.time import Time
from tidelake.shard.history import History
from tidelake.shard.shard import Shard
from tidelake.state import forking
from tidelake.state.state import ShardState

_TRIES = 8


def fork_shard(source: Shard, shard_id: str, env: Env, as_of: Time | None = None) -> ShardState:
    """Make the shard `shard_id` of the newest version of another one; its first state. Four store calls.

    Args:
        source: to be the origin.
        shard_id: fresh.
        env: clock and recorder of whoever forks.
        as_of: the last closed time of the fork; None: all that is closed.

    Raises:
        HistoryCompacted, NotYetClosed: the time cannot be read; nothing was written.
        CollectionDropped: the source was dropped.
        ForkExpired: this process slept between two writes, or others collect faster than it looks.
    """
    first = _noted(source, shard_id, env, as_of)
    known = History(shard_id, source.stores, env).create(first)
    if known.state != first:
        raise ForkExpired(source.title)
    if shard_id not in source.state().forks:
        # Nobody knows of it yet.
        source.stores.log.delete(shard_id)
        raise ForkExpired(source.title)
    return first


def _noted(source: Shard, shard_id: str, env: Env, as_of: Time | None) -> ShardState:
    """The first state of the fork, of a version whose parts are kept for it."""
    for _ in range(_TRIES):
        state = source.version().state
        first = forking.forked(state, shard_id, env.clock.now_ms(), as_of)
        try:
            source.run(partial(forking.note_fork, fork_id=shard_id, seqno=state.seqno))
        except LeaseExpired:
            continue  # Others collected in between: take what there is now.
        return first
    raise ForkExpired(source.title)
