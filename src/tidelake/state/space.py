"""How much of what a shard stores is live, as far as the counts in its state show without reading.

Each part says how many of its rows lie at which times (`Part.time_counts`). From these follows a lower
bound on the rows that are left when all is consolidated at `since`, and from that whether everything
must be merged into one run. Must not know how or when merges are done.

INVARIANT: `live_rows_min` is never more than the rows that are live.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from tidelake.model import time as times
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.state.spine import Spine


def must_merge_all(spine: Spine, since: Frontier, *, thorough: bool = False) -> bool:
    """Whether all members must become one, which the levels alone would not make of them.

    So if the counts do not show that what is stored is at most twice what is live, unless it is one run.

    Args:
        spine: of the shard.
        since: of the shard.
        thorough: also if any retraction may be stored that `since` has passed. An idle shard is left so.
    """
    runs = spine.totals.runs
    if runs > 1 and spine.totals.rows > 2 * live_rows_min(spine, since):
        return True
    return thorough and any(
        _retracts(run, since) and (runs > 1 or _counts(run, member.batch.bounds.since, since).loose)
        for member in spine
        for run in member.batch.runs
    )


def has_tail(spine: Spine, share: int) -> bool:
    """Whether more than one in `share` of the rows is outside of the largest run."""
    largest = max((run.rows for member in spine for run in member.batch.runs), default=0)
    return (spine.totals.rows - largest) * share > spine.totals.rows


def live_rows_min(spine: Spine, since: Frontier) -> int:
    """At least so many rows are live: are left when all is consolidated at `since`.

    Rows that `since` has not reached are *apart*: those of one run by consolidation, those of several
    batches because batches tile the times; only another run of the batch may take some away. Of the rows
    that it has reached, those of one run that do not differ in their times alone are *firm*: no two of
    them become one, and every other row takes at most one of them away.
    """
    apart = firm = 0
    for member in spine:
        batch = member.batch
        counts = [(run, _counts(run, batch.bounds.since, since)) for run in batch.runs]
        apart += max((0, *(count.later - (batch.rows - run.rows) for run, count in counts)))
        firm = max((firm, *(count.firm for _, count in counts)))
    others = spine.totals.rows - apart - firm
    return apart + max(0, firm - others)


def _retracts(run: Run, since: Frontier) -> bool:
    """Whether a retraction of the run may meet what had another time before it was advanced to `since`."""
    return any(part.negative_rows and _reached(part, since) for part in run.parts)


def _reached(part: Part, since: Frontier) -> bool:
    """Whether `since` may have passed or reached a time of the part, in some component."""
    if since.closed:
        return False
    first = part.time_lower if part.rewrite is None else times.join(part.time_lower, part.rewrite)
    # Advancing raises each component to the least one of any element.
    least = reduce(times.meet, since.elements)
    return any(x <= s for x, s in zip(times.parts(first), times.parts(least), strict=True))


@dataclass(frozen=True)
class _Counts:
    """The rows of a run, by what advancing them to `since` may do. They add up to the rows of the run.

    Attributes:
        firm: no two of them become one.
        loose: they may be summed with others of the run.
        later: `since` has not reached their times.
    """

    firm: int
    loose: int
    later: int


def _counts(run: Run, folded: Frontier, since: Frontier) -> _Counts:
    """How the rows of a run divide; as few firm and later ones as may be.

    Args:
        run: consolidated, its times advanced by `folded`.
        folded: since of its batch.
        since: of the shard.
    """
    rows = run.rows
    if run.truncated or any(part.rewrite is not None for part in run.parts):
        return _Counts(0, rows, 0)
    if len(folded.elements) != 1 or len(since.elements) != 1:
        return _Counts(rows, 0, 0) if folded == since else _Counts(0, rows, 0)
    start, end = folded.elements[0], since.elements[0]
    if not any(times.parts(end)):
        # Nothing was advanced: all rows are at the times that they came with.
        return _Counts(0, 0, rows)
    later = sum(_counted(part, lambda first: not times.less_equal(first, end)) for part in run.parts)
    if folded == since:
        return _Counts(rows - later, 0, later)
    # What was advanced to `start` has no earlier time, and the first pair counts exactly one time.
    firm = sum(
        part.rows if part.time_lower == part.time_upper == start else _counted(part, start.__eq__)
        for part in run.parts
    )
    return _Counts(firm, rows - firm - later, later)


def _counted(part: Part, wanted: Callable[[int], bool]) -> int:
    """Rows of an int-timed part in the buckets that are wanted, by their first time."""
    return sum(rows for first, rows in part.time_counts if wanted(first))
