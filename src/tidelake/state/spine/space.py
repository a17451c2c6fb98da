"""How much of what a shard stores is live, as far as the counts in its state show it without reading rows.

Each part says how many of its rows lie at which times (`Part.time_counts`). From these follows a lower bound
on the rows that remain once everything is consolidated at `since`, and from that whether everything must be
merged into one run. Must not know how or when merges are done.

INVARIANT: `live_rows_min` is never more than the rows that are live.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from tidelake.model import time as times
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.state.spine.spine import Member


def must_merge_all(members: Sequence[Member], since: Frontier, *, thorough: bool = False) -> bool:
    """Whether these members must be merged into one, where the levels alone would not do so.

    True unless they are one run, or the counts show that at most twice as much is stored as is live.
    """
    runs = sum(len(member.batch.runs) for member in members)
    if runs > 1 and _rows(members) > 2 * live_rows_min(members, since):
        return True
    return thorough and any(
        _retracts(run, since) and (runs > 1 or _counts(run, member.batch.bounds.since, since).loose)
        for member in members
        for run in member.batch.runs
    )


def has_tail(members: Sequence[Member], share: int) -> bool:
    """Whether more than one in `share` of the rows is outside of the largest run."""
    rows = _rows(members)
    largest = max((run.rows for member in members for run in member.batch.runs), default=0)
    return (rows - largest) * share > rows


def _rows(members: Sequence[Member]) -> int:
    return sum(member.batch.rows for member in members)


def live_rows_min(members: Sequence[Member], since: Frontier) -> int:
    """A lower bound on the live rows: those that remain once everything is consolidated at `since`.

    Rows at times that `since` has not reached are *apart*, and none of them cancels another: within a run
    because it is consolidated, between batches because they tile the times; only another run of the same
    batch may take some away. Of the rows at times that `since` has reached, those of one run that do not
    differ in their times alone are *firm*: no two of them become one, and any other row takes away at most
    one of them.
    """
    apart = firm = 0
    for member in members:
        batch = member.batch
        counts = [(run, _counts(run, batch.bounds.since, since)) for run in batch.runs]
        apart += max((0, *(count.later - (batch.rows - run.rows) for run, count in counts)))
        firm = max((firm, *(count.firm for _, count in counts)))
    others = _rows(members) - apart - firm
    return apart + max(0, firm - others)


def rows_of_one_time(run: Run) -> int:
    """How many rows of a run have the same time, at least. No two of them become one, at any `since`."""
    if run.truncated or any(part.rewrite is not None for part in run.parts):
        return 0
    found = Counter[Time]()
    for part in run.parts:
        if part.time_lower == part.time_upper:
            found[part.time_lower] += part.rows
        elif part.time_counts:
            # The first pair counts exactly one time.
            first, rows = part.time_counts[0]
            found[first] += rows
    return max(found.values(), default=0)


def _retracts(run: Run, since: Frontier) -> bool:
    """Whether advancing to `since` may bring a retraction of the run together with a row of another time."""
    return any(part.negative_rows and _reached(part, since) for part in run.parts)


def _reached(part: Part, since: Frontier) -> bool:
    """Whether `since` may be at or after a time of the part, in some component."""
    if since.closed:
        return False
    first = part.time_lower if part.rewrite is None else times.join(part.time_lower, part.rewrite)
    # Advancing raises each component at least to the least one of the frontier's elements.
    least = reduce(times.meet, since.elements)
    return any(x <= s for x, s in zip(times.parts(first), times.parts(least), strict=True))


@dataclass(frozen=True)
class _Counts:
    """The rows of a run by what advancing them to `since` may do. The three add up to the rows of the run.

    Attributes:
        loose: they may be summed with others of the run.
        later: at times that `since` has not reached.
    """

    firm: int
    loose: int
    later: int


def _counts(run: Run, folded: Frontier, since: Frontier) -> _Counts:
    """How the rows of a run divide, with as few firm and later ones as is possible."""
    rows = run.rows
    if run.truncated or any(part.rewrite is not None for part in run.parts):
        return _Counts(0, rows, 0)
    if len(folded.elements) != 1 or len(since.elements) != 1:
        return _Counts(rows, 0, 0) if folded == since else _Counts(0, rows, 0)
    start, end = folded.elements[0], since.elements[0]
    if not any(times.parts(end)):
        # No time was advanced: the rows have the times that they were written with.
        return _Counts(0, 0, rows)
    later = sum(_counted(part, lambda first: not times.less_equal(first, end)) for part in run.parts)
    if folded == since:
        return _Counts(rows - later, 0, later)
    # Rows that were advanced to `start` have no earlier time, and the first pair counts exactly one time.
    firm = sum(
        part.rows if part.time_lower == part.time_upper == start else _counted(part, start.__eq__)
        for part in run.parts
    )
    return _Counts(firm, rows - firm - later, later)


def _counted(part: Part, wanted: Callable[[int], bool]) -> int:
    """The rows of a part with int times in those buckets whose first time is `wanted`."""
    return sum(rows for first, rows in part.time_counts if wanted(first))
