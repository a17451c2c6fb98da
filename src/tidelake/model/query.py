"""What a reader may ask of a collection's updates, as values.

Each query keeps some updates by their time and maps the time of those that it keeps; the rows are
then consolidated. `tidelake.data.select` carries it out on Arrow columns, and `tidelake.testing.oracle`
on a plain list.
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
