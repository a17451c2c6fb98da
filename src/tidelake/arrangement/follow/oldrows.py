"""Old rows for upserts: the current rows of some keys, looked up in an arrangement of the collection.

Owns the check that the arrangement has these rows, and the form of the answer; must not know how an upsert
uses it.
"""

import numpy as np
import pyarrow as pa

from tidelake.arrangement.follow.follow import FollowedArrangement
from tidelake.arrangement.follow.following import last_before
from tidelake.errors import HistoryCompacted, UsageError
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.spec import ShardPlace, ShardSpec
from tidelake.shard.writing.upserter import OldRows


def old_rows_in(state: FollowedArrangement, place: ShardPlace, name: str) -> OldRows:
    """A function that looks up old rows of a shard in an arrangement of it."""
    _check(state, place, name)

    def look(spec: ShardSpec, upper: Frontier, events: pa.Table) -> pa.Table | None:
        _check(state, spec, name)
        if upper.less_equal(0):
            return state.layout.arrow.empty_table()
        time = last_before(upper)
        state.catch_up(time)
        try:
            found = state.lookup(events.select(list(state.key)), as_of=time)
        except HistoryCompacted:
            # Another writer appended meanwhile, so this upsert will begin again.
            return None
        times = pa.array(np.full(found.num_rows, time, np.int64))
        columns = [*found.columns[:-1], times, found.columns[-1]]
        return pa.Table.from_arrays(columns, schema=state.layout.arrow)

    return look


def _check(state: object, spec: ShardSpec | ShardPlace, name: str) -> None:
    if not isinstance(state, FollowedArrangement):
        raise UsageError(
            f"state={type(state).__name__} is not an arrangement of the collection: give collection.arrange()"
        )
    reason = state.why_not_all_of(spec)
    if reason:
        raise UsageError(f"state does not have the old rows of {name!r}: {reason}")
