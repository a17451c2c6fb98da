"""Measures a shard for its operator: sizes, merges that are due, holds, garbage, and how far behind it is.

Owns what the gauges `collection.*` mean. Reads one state and no rows; must not know who asks.
"""

from tidelake.env import Recorder
from tidelake.metrics import CATALOGUE
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.shard import Shard
from tidelake.shard.runs.partcaches import part_caches
from tidelake.shard.upkeep.maintain import Maintainer
from tidelake.state.core.state import ShardState
from tidelake.state.spine.merging import unmerged
from tidelake.state.upkeep.claims import living
from tidelake.timetext import US_PER_UNIT


def measured(shard: Shard, state: ShardState) -> dict[str, float]:
    """The gauges of a collection in a state, by name. No store call; costs as much as its list of batches."""
    now_ms, spine, written = shard.env.clock.now_ms(), state.spine, state.written
    opened = [hold.opened_ms for hold in state.holds.values()]
    opened += [hold.opened_ms for hold in state.critical.values()]
    merges, running = len(Maintainer(shard).due(state)), len(living(state, now_ms))
    found = {
        "updates": spine.totals.rows,
        "bytes": spine.totals.size_bytes,
        "batches": len(spine),
        "runs": spine.totals.runs,
        "levels": len(spine.batches),
        "slices": len(spine.slices),
        "bases": len(state.bases),
        "unmerged": max(0, unmerged(state.spine)),
        "merges.due": merges,
        "merges.running": running,
        "compact": int(not merges and not running),
        "staged.updates": state.staged.totals.rows,
        "holds": len(state.holds),
        "holds.critical": len(state.critical),
        "hold.age.s": max((now_ms - at) / 1000 for at in opened) if opened else 0.0,
        "writers": len(state.writers),
        "garbage": len(state.garbage) + len(state.doomed),
        "commits": state.seqno,
        "commit.age.s": max(0.0, (now_ms - state.committed_ms) / 1000),
        "appended.updates": written.appended_rows,
        "appended.bytes": written.appended_bytes,
        "merged.updates": written.merged_rows,
        "merged.bytes": written.merged_bytes,
        "history.times": _distance(state.since, state.upper),
    }
    upper, per_us = _time(state.upper), US_PER_UNIT.get(state.domain.unit)
    if per_us is not None and upper is not None:
        found["behind.s"] = max(0.0, now_ms / 1000 - upper * per_us / 1_000_000)
    return {f"collection.{name}": float(value) for name, value in found.items()}


def tell(shard: Shard, name: str, state: ShardState) -> dict[str, float]:
    """Set the gauges of a collection. Returns them."""
    found = measured(shard, state)
    for gauge, value in found.items():
        shard.env.recorder.gauge(gauge, value, name)
    return found


def forget(recorder: Recorder, name: str) -> None:
    """Remove the gauges of a collection that is gone."""
    for metric in CATALOGUE:
        if metric.label == "collection":
            recorder.gauge(metric.name, None, name)


def tell_caches(recorder: Recorder) -> None:
    """Set the counters of this process' caches, which all its lakes share."""
    for name, cache in part_caches().by_name().items():
        recorder.gauge(f"{name}.hits", cache.hits)
        recorder.gauge(f"{name}.misses", cache.misses)


def _distance(since: Frontier, upper: Frontier) -> int:
    first, last = _time(since), _time(upper)
    return 0 if first is None or last is None else max(0, last - first)


def _time(frontier: Frontier) -> int | None:
    """The one whole number that a frontier is; None: it is closed, or has tuples."""
    time = None if frontier.closed else frontier.elements[0]
    return time if isinstance(time, int) else None
