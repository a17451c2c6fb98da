"""How far one step of a live tail may go: judged by what parts say of the times of their rows.

Owns the bounds on rows and on distinct times of a stretch of a backlog; must not read rows. Times are ints.
Ends of stretches are ints as well, `CLOSED` for the end of all time.

INVARIANT: no bound is lower than what a read of that stretch gives, whatever is merged meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tidelake.errors import InternalError
from tidelake.model.batch import Part
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX, Time
from tidelake.state.state import ShardState

CLOSED = TIME_MAX + 1


@dataclass(frozen=True)
class Limits:
    """What one step may hold; a single time is never cut, however many rows it has.

    Attributes:
        rows: updates at most; None: any number.
        times: distinct times with updates at most; None: any number.
    """

    rows: int | None = None
    times: int | None = None

    @property
    def none(self) -> bool:
        """Whether a step takes whatever is there."""
        return self.rows is None and self.times is None

    def allow(self, rows: int, times: int) -> bool:
        """Whether so many updates of so many times may be in one step."""
        return (self.rows is None or rows <= self.rows) and (self.times is None or times <= self.times)


@dataclass(frozen=True, order=True)
class Span:
    """So many updates at most have times from `first` to `last`, both included."""

    first: int
    last: int
    rows: int


def end_of(frontier: Frontier) -> int:
    """A frontier of int times as the end of a stretch."""
    return CLOSED if frontier.closed else _int(frontier.elements[0])


def frontier_of(end: int) -> Frontier:
    """The end of a stretch as a frontier."""
    return Frontier() if end == CLOSED else Frontier.of(end)


def spans(state: ShardState, lower: int, upper: int) -> tuple[Span, ...]:
    """What the state says of the updates of `[lower, upper)`, ascending. Costs O(parts)."""
    parts = (part for batch in state.batches() for part in batch.parts())
    return tuple(sorted(span for part in parts for span in _of_part(part, lower, upper)))


def fitting(known: tuple[Span, ...], upper: int, limits: Limits) -> int | None:
    """The furthest end up to which the updates fit as far as is known, or one time is taken alone.

    Args:
        known: of the backlog, ascending, not empty; it ends at `upper`.
        upper: the answer if all of it fits.
        limits: of the step.

    Returns:
        The end; None if the spans are too coarse to tell: count the times.
    """
    best: int | None = None
    rows = times = taken = 0
    reach = -1
    # Between two neighbouring edges either all times lie in some span, or none does.
    edges = sorted({edge for span in known for edge in (span.first, span.last + 1)} | {upper})
    for start, end in pairwise(edges):
        while taken < len(known) and known[taken].first <= start:
            rows += known[taken].rows
            reach = max(reach, known[taken].last)
            taken += 1
        if reach >= start:
            times += end - start
        if times > 1 and not limits.allow(rows, times):
            break
        best = end
    return best


def _of_part(part: Part, lower: int, upper: int) -> Iterator[Span]:
    floor = 0 if part.rewrite is None else _int(part.rewrite)
    counts = part.time_counts or ((_int(part.time_lower), part.rows),)
    # A pair's rows lie before the next pair's.
    ends = [*(first - 1 for first, _ in counts[1:]), _int(part.time_upper)]
    for number, ((first, rows), end) in enumerate(zip(counts, ends, strict=True)):
        # The first pair of several counts one time alone.
        last = first if number == 0 and len(counts) > 1 else end
        start, stop = max(first, floor, lower), min(max(last, floor), upper - 1)
        if start <= stop:
            yield Span(start, stop, rows)


def _int(time: Time) -> int:
    if isinstance(time, tuple):
        raise InternalError(f"a backlog of times such as {time}, which have no total order")
    return time
