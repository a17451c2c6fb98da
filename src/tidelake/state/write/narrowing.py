"""Narrowing: appending a batch to an interval inside its own.

Owns which parts are left out and which runs are marked truncated; pure, like the commands. Invariant:
readers of the narrowed runs see exactly the batch's rows of the interval. The stored rows do not change, only
their description does.
"""

from dataclasses import dataclass

from tidelake.errors import InvalidBatchBounds, UsageError
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier


@dataclass(frozen=True)
class Narrowed:
    """What remains of a narrowed batch.

    Attributes:
        runs: to register; truncated where parts hold rows outside the interval.
    """

    runs: tuple[Run, ...]
    dropped: tuple[Part, ...]


def narrowed(batch: HollowBatch, lower: Frontier, upper: Frontier) -> Narrowed:
    """The part of a batch that lies in `[lower, upper)`."""
    if not lower <= upper:
        raise UsageError(f"the lower frontier {lower} is not at or before the upper {upper}")
    _check(batch, lower, upper)
    runs: list[Run] = []
    dropped: list[Part] = []
    for run in batch.runs:
        kept = tuple(part for part in run.parts if _reaches(part, lower, upper))
        dropped += (part for part in run.parts if part not in kept)
        if kept:
            inside = all(_inside(part, lower, upper) for part in kept)
            runs.append(Run(kept, run.truncated or not inside))
    return Narrowed(tuple(runs), tuple(dropped))


def _check(batch: HollowBatch, lower: Frontier, upper: Frontier) -> None:
    bounds = batch.bounds
    which = f"a batch of [{bounds.lower}, {bounds.upper}) cannot be appended to [{lower}, {upper})"
    if not (bounds.lower <= lower and upper <= bounds.upper):
        raise InvalidBatchBounds(f"{which}: a batch may be narrowed, not widened")
    if lower == upper and batch.runs:
        raise InvalidBatchBounds(f"{which}: no time lies in that; delete the batch instead")
    rewrites = [part.rewrite for part in batch.parts() if part.rewrite is not None]
    if not rewrites:
        return
    if upper != bounds.upper:
        raise InvalidBatchBounds(f"{which}: its times were rewritten, so the upper must be the batch's")
    late = [rewrite for rewrite in rewrites if not lower.less_equal(rewrite)]
    if late:
        raise InvalidBatchBounds(f"{which}: its times were rewritten to {min(late)}, which lies before that")


def _reaches(part: Part, lower: Frontier, upper: Frontier) -> bool:
    """Whether a part may have a time in the interval. For tuples the extremes need not be times."""
    return part.rewrite is not None or (
        lower.less_equal(part.time_upper) and not upper.less_equal(part.time_lower)
    )


def _inside(part: Part, lower: Frontier, upper: Frontier) -> bool:
    """Whether all times of a part surely lie in the interval."""
    return part.rewrite is not None or (
        lower.less_equal(part.time_lower) and not upper.less_equal(part.time_upper)
    )
