"""What appends do for a shard: merge a little after their commit, and merge before it if too much waits.

Owns when and how long; `tidelake.shard.upkeep.maintain` finds and does the work. Invariant: an append that is
in stays in, whatever happens here.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tidelake.errors import (
    Closed,
    CollectionDropped,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    TidelakeWarning,
)
from tidelake.shard.engine.requestqueue import Done, Request
from tidelake.shard.engine.shard import Shard
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.compactor import SET_ASIDE
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.maintain import Maintainer
from tidelake.state.core.state import ShardState
from tidelake.state.spine.merging import Policy, unmerged, worth_merging
from tidelake.state.upkeep import slices

R = TypeVar("R")
_TURN = "merge"


def tend_if_due(shard: Shard, done: Done[R]) -> None:
    """`tend` after an append, if the append or the state has work to do.

    Merges that are not worth their cost yet wait for those of later appends, which cover them.
    """
    state, policy = shard.known(), Policy.busy(shard.spec.config)
    due = any(worth_merging(state.spine, merge.id, policy) for merge in done.merges_due)
    begun = state.claims or state.drained != state.upper
    # What is remembered of uploads and tokens is given up with age.
    ages = done.merges_due and (state.taken or state.tokens)
    if due or begun or ages or slices.may_cut(state, shard.spec.config.slice_rows):
        tend(shard)


def tend(shard: Shard) -> None:
    """Merge after an append, for as long as the setting `merge_budget_s` allows, and collect garbage.

    The append is in whatever happens here; work that fails is left to the next maintenance.
    """
    budget_s = shard.spec.config.merge_budget_s
    if not budget_s:
        return
    # Only one appending process merges at a time: the others would do the same merge in vain.
    with shard.stores.locks.take(shard.spec.shard_id, _TURN) as is_ours:
        if is_ours:
            _beside_an_append(shard, lambda: Maintainer(shard).within_budget(budget_s))
            _beside_an_append(shard, Collector(shard).beside_append)


def make_room(shard: Shard) -> None:
    """Merge the inline parts of the state into stored ones. A failure is counted or warned of, not raised."""
    _beside_an_append(shard, Maintainer(shard).bring_out_inline)


def _beside_an_append(shard: Shard, work: Callable[[], object]) -> None:
    try:
        work()
    except (StoreUnavailable, OutcomeUnknown, Closed, CollectionDropped):
        shard.env.failed("tend.failed")
    except TidelakeError as error:
        # It will fail again, so warn the user.
        shard.env.failed("tend.failed")
        message = f"a merge after an append failed, which does not affect the append: {error}"
        warnings.warn(TidelakeWarning(message), stacklevel=3)


def admit(shard: Shard) -> float:
    """Backpressure before an append: merge while more runs are unmerged than the setting `runs_max` allows.

    If several threads come here, one merges and the others wait for it.

    Returns:
        The seconds that it took; usually 0.0, and then without a store call.
    """
    known, runs_max = shard.known(), shard.spec.config.runs_max
    if unmerged(known.spine) <= runs_max and not _waits_for_drain(known, runs_max):
        return 0.0
    clock = shard.env.clock
    started_s = clock.monotonic_s()
    try:
        shard.group_commit.reliefs.run(Request(), partial(_relieve, shard))
    except SET_ASIDE as error:
        # These inputs cannot be merged; all others were.
        warnings.warn(TidelakeWarning(f"a merge before an append failed: {error}"), stacklevel=2)
    except OutcomeUnknown as error:
        raise StoreUnavailable(
            f"the append was not tried, since a merge that had to come first failed: {error}"
        ) from error
    seconds = clock.monotonic_s() - started_s
    shard.env.recorder.count("append.backpressure")
    shard.env.recorder.count("append.backpressure.ms", round(seconds * 1000))
    return seconds


def _waits_for_drain(state: ShardState, runs_max: int) -> bool:
    """Whether too many staged runs wait for a drain before closed times can enter the spine."""
    return state.staged.totals.runs > runs_max and state.drained != state.upper


def _relieve(shard: Shard, asking: Sequence[Request]) -> None:
    try:
        runs_max = shard.spec.config.runs_max
        if _waits_for_drain(shard.known(), runs_max):
            Drainer(shard).run()
        Maintainer(shard).relieve(runs_max)
    except Exception as error:
        for request in asking:
            request.fail(error)
    for request in asking:
        request.answered = True
