"""How far one step of a live tail may go, judged by what the parts say about the times of their rows.

Owns the upper bounds on rows and on distinct times in a stretch of a backlog; must not read rows. Times are
ints. The end of a stretch is an int as well, `CLOSED` for the end of all time.

INVARIANT: no bound is lower than what a read of that stretch gives, whatever is merged meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tidelake.errors import InternalError
from tidelake.model.batch import Part
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX, Time
from tidelake.state.core.state import ShardState

CLOSED = TIME_MAX + 1


@dataclass(frozen=True)
class Limits:
    """How much one step may hold; a single time is never cut, however many rows it has.

    Attributes:
        rows: updates at most; None: any number.
        times: distinct times with updates at most; None: any number.
    """

    rows: int | None = None
    times: int | None = None

    @property
    def none(self) -> bool:
        """Whether a step takes everything there is."""
        return self.rows is None and self.times is None

    def allow(self, rows: int, times: int) -> bool:
        """Whether one step may hold `rows` updates at `times` distinct times."""
        return (self.rows is None or rows <= self.rows) and (self.times is None or times <= self.times)


@dataclass(frozen=True, order=True)
class Span:
    """At most `rows` updates have times from `first` to `last`, both included."""

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
    """Where the updates of `[lower, upper)` may be, as far as the state says; ascending. Costs O(parts)."""
    parts = (part for batch in state.batches() for part in batch.parts())
    return tuple(sorted(span for part in parts for span in _of_part(part, lower, upper)))


def fitting(known: tuple[Span, ...], upper: int, limits: Limits) -> int | None:
    """The furthest end up to which the updates surely fit, or of one time; None: count the times."""
    best: int | None = None
    rows = times = taken = 0
    reach = -1
    # Between two neighbouring edges either every time lies in some span, or no time does.
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
        # Of several pairs, the first counts a single time.
        last = first if number == 0 and len(counts) > 1 else end
        start, stop = max(first, floor, lower), min(max(last, floor), upper - 1)
        if start <= stop:
            yield Span(start, stop, rows)


def _int(time: Time) -> int:
    if isinstance(time, tuple):
        raise InternalError(f"a backlog of times such as {time}, which have no total order")
    return time
