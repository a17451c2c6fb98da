"""Queries: what a reader may ask of a collection's updates, as values.

A query keeps some of the updates by their time and gives each a new time; the rows are then consolidated.
`tidelake.data.kernel.select` does this on Arrow columns, and the simulation's oracle on a plain list.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tidelake.model.frontier import Frontier
from tidelake.model.time import Time


@dataclass(frozen=True)
class AsOf:
    """The contents at `time`: updates with `t <= time`, all forwarded to `time`."""

    time: Time


@dataclass(frozen=True)
class Changes:
    """The netted difference of two contents: `t <= through` and not `t <= after`, forwarded to `through`."""

    after: Time
    through: Time


@dataclass(frozen=True)
class Updates:
    """Every update of `[lower, upper)` at its own time."""

    lower: Frontier
    upper: Frontier


@dataclass(frozen=True)
class Fold:
    """All updates, their times advanced by `since`: what a merge stores."""

    since: Frontier


Query: TypeAlias = AsOf | Changes | Updates | Fold
