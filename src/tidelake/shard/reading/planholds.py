"""Holds of plans: they keep the parts that tasks will read, in processes that may not run yet.

Owns the names of these holds, and who may extend and release them. No process renews such a hold, so it is no
`Lease`: it lasts for the time that was asked for, and a task that still reads extends it. Any process that
knows its name or its owner may release it.

INVARIANT: a hold with an owner is of the same parts and the same time whenever it is asked for, because its
name says both.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tidelake.config import Config
from tidelake.errors import CollectionNotFound, LeaseExpired
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.lease import SHARE
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import env_here
from tidelake.shard.runs.plan import ReadPlan
from tidelake.state.core.commands import Outcome
from tidelake.state.core.state import Hold, ShardState
from tidelake.state.life import holds
from tidelake.store.url import open_stores

# A hold that was extended within this time is not extended again.
_SLACK_MS = 60_000
# Separates the owner from the words for the held parts in the id of a hold.
_OWNED = "~"


def open_plan_hold(
    shard: Shard, plans: Sequence[ReadPlan], purpose: str, seconds: float, owner: str | None = None
) -> str | None:
    """Hold the parts of some plans for a given time; the id, or None if they need none. One log write."""
    pins = tuple(sorted({plan.seqno for plan in plans if plan.seqno is not None}))
    if not pins:
        return None
    versions = sorted({plan.version for plan in plans if plan.version})
    hold_id = shard.env.ids.fresh() if owner is None else _owned_id(owner, versions, seconds)
    lease_ms = int(seconds * 1000)

    def command(state: ShardState, now_ms: int) -> Outcome[Hold]:
        if hold_id in state.holds:
            return holds.extend_hold(state, now_ms, hold_id, slack_ms=min(_SLACK_MS, lease_ms // SHARE))
        return holds.open_hold(
            state, now_ms, hold_id, purpose, lease_ms=lease_ms, since=Frontier(), pins=pins
        )

    shard.run(command)
    return hold_id


def extend_plan_hold(shard: Shard, hold_id: str, slack_s: float) -> bool:
    """Extend a hold unless that was done within `slack_s`. Returns whether it exists. One log write."""
    try:
        shard.run(partial(holds.extend_hold, hold_id=hold_id, slack_ms=int(slack_s * 1000)))
    except (LeaseExpired, CollectionNotFound):
        return False
    return True


def release_plan_hold(shard: Shard, hold_id: str) -> None:
    """End a hold. May be repeated; at most one log write."""
    shard.run(partial(holds.close_hold, hold_id=hold_id))


def release_owned(shard: Shard, owner: str) -> int:
    """End all holds of an owner. Returns their number. One log write each."""
    # Split at the last separator: the name of an owner may contain any text, also the name of another owner.
    owned = [id_ for id_ in shard.state().holds if _OWNED in id_ and id_.rpartition(_OWNED)[0] == owner]
    for id_ in owned:
        release_plan_hold(shard, id_)
    return len(owned)


@contextmanager
def shard_by_id(url: str, shard_id: str) -> Iterator[Shard]:
    """Open a shard of a lake by its id, because the names of collections change.

    For processes that know a hold and have no handle on its collection.
    """
    stores = open_stores(url, Config(), env_here(), create=False)
    try:
        yield Shard.open(stores, stores.env(env_here()), url, shard_id, Config())
    finally:
        stores.close()


def _owned_id(owner: str, versions: Sequence[str], seconds: float) -> str:
    """The owner, and words without the separator that say what is held and for how long."""
    return f"{owner}{_OWNED}{'-'.join([*versions, f'{seconds:g}s'])}"
