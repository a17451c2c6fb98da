"""The merge policy: levels by size, which merges are due, and how much work a step may do.

Owns the decisions of the merger, as functions of counts; must not know rows, files, locks or threads.
Invariant: while no merge is due and none runs, each level has fewer batches than a merge of it takes; so the
number of batches is at most `resting_batches_max`, whatever was appended.

A level holds batches of about one size: level 0 holds batches of up to `first_rows` rows, each next level of
up to ten times as many, the last one all others. A merge takes the oldest loose batches of one level; its
result goes to the level of its size. Each level runs one merge at a time: an unfinished merge only costs, and
several merges of one level side by side would all finish later than one after the other. Merges of different
levels run side by side: doing the smallest first would starve the others.

Fuel: the levels with a running merge get steps in turn. A step may read as many rows as were appended since
the level's last step, or as an average append has, if that is more. A row that is appended at level `l` is
merged about once at each level from `l` on, as long as late merges take as many inputs as they may. So merges
keep pace, however large they are, if each level does one row of work for each row appended at *any* level.
Merges of level 0 are small and done in one step: tiny batches are merged there several times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

LEVELS = 9
# A ration that no merge uses up.
WHOLE = 2**62
_GROWTH = 10
# The weight of an append in the moving average is 1 / _WEIGHT.
_WEIGHT = 16


@dataclass(frozen=True)
class Fans:
    """The fan-in of merges: how many batches a merge takes, by level.

    Attributes:
        least: a merge is due when a level has this many batches; at least 2 for each level.
        most: a merge takes at most this many; the others wait for the next merge.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]


def level_of(rows: int, first_rows: int) -> int:
    """The level that a batch belongs to."""
    level, bound = 0, first_rows
    while rows > bound and level < LEVELS - 1:
        level, bound = level + 1, bound * _GROWTH
    return level


def merged_size(rows: int, negative_rows: int, weight: int) -> int:
    """The size of a merge result, for the choice of its level.

    Retractions cancel rows of larger batches, so a batch with many retractions counts as larger, to be merged
    with those batches sooner. This holds for results of merges only: a retraction that was just appended may
    cancel an insertion of level 0, and must not skip that level.
    """
    return rows + weight * negative_rows


def inputs(loose: int, level: int, fans: Fans, *, forced: bool = False) -> int:
    """How many loose batches of a level a merge takes now; 0 if no merge is due."""
    if loose < (1 if forced else fans.least[level]):
        return 0
    return min(loose, fans.most[level])


def resting_batches_max(fans: Fans) -> int:
    """The greatest number of batches while no merge is due."""
    return sum(least - 1 for least in fans.least)


@dataclass(frozen=True)
class Fuel:
    """How much work each level's merge may do.

    Attributes:
        average: moving average of the rows of an append.
        owed: for each level, rows appended at any level since its merge last made a step.
    """

    average: float = 0.0
    owed: tuple[int, ...] = (0,) * LEVELS
    turn: int = LEVELS - 1

    def arrived(self, rows: int) -> "Fuel":
        """The fuel after an append of a number of rows, at any level."""
        average = self.average + (rows - self.average) / _WEIGHT if self.average else float(rows)
        return replace(self, average=average, owed=tuple(owed + rows for owed in self.owed))

    def next_of(self, levels: Sequence[int]) -> int:
        """The level of `levels`, which is not empty, that makes the next step: each in turn."""
        return min(levels, key=lambda level: (level - self.turn - 1) % LEVELS)

    def ration(self, level: int) -> int:
        """The number of rows that the next step of a level's merge may read."""
        if level == 0:
            return WHOLE
        return max(self.owed[level], round(self.average), 1)

    def served(self, level: int) -> "Fuel":
        """The fuel after a step of a level's merge."""
        owed = tuple(0 if i == level else rows for i, rows in enumerate(self.owed))
        return replace(self, owed=owed, turn=level)
