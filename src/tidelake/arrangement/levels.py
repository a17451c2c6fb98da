"""Levels: what belongs together by size, which merges are due, and how much work a step may do.

Owns the decisions of the merger, as functions of counts; must not know rows, files, locks or threads.
Invariant: in a spine where no merge is due and none runs, no level holds as many batches as make a merge
of it; so their number is at most `resting_batches_max`, whatever was inserted.

A level holds the batches of about one size: level 0 those of up to `first_rows` rows, each further one of
up to ten times as many, the last one all others. A merge takes the oldest loose batches of one level; what
comes of it goes to the level of its size. One merge of a level runs at a time: an unfinished merge is pure
cost, and several of one level would finish later, each of them, than one after the other. Merges of
different levels run side by side, since whoever always did the smallest first would starve the others.

How the work is divided: every level whose merge runs gets steps in turn, each as large as what arrived
since the level's last step, or as what arrives on average, if that is more. A row that is inserted at level
`l` is merged about once at each level from `l` on if merges that lag behind take as many inputs as they may,
so merges that do one row of work at every level for each row that arrives *anywhere* keep pace, however
large they are. Merges of level 0 are small and done at once: tiny batches are merged there several times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

LEVELS = 9
# A ration that no merge uses up.
WHOLE = 2**62
_GROWTH = 10
# How much of the average an arrival is: one in so many.
_WEIGHT = 16


@dataclass(frozen=True)
class Fans:
    """How many batches a merge takes, by level.

    Attributes:
        least: fewer are not worth a merge; at least 2 of each level.
        most: more are left for the next merge.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]


def level_of(rows: int, first_rows: int) -> int:
    """The level that a batch belongs to.

    Args:
        rows: how large it counts.
        first_rows: up to which size a batch is of level 0.
    """
    level, bound = 0, first_rows
    while rows > bound and level < LEVELS - 1:
        level, bound = level + 1, bound * _GROWTH
    return level


def merged_size(rows: int, negative_rows: int, weight: int) -> int:
    """How large the result of a merge counts.

    Retractions cancel what stands in larger batches, so a batch with many of them is better merged soon
    with those. Only results of merges are pushed up so: a retraction that was just inserted may stand
    beside its insertion in level 0, and would pass it there.

    Args:
        rows: of the result.
        negative_rows: those of them with a diff below zero.
        weight: for how many rows each of these counts in addition.
    """
    return rows + weight * negative_rows


def inputs(loose: int, level: int, fans: Fans, *, forced: bool = False) -> int:
    """How many of the loose batches of a level a merge is to take now; 0: none is due.

    Args:
        loose: how many batches of the level are in no merge.
        level: which.
        fans: the limits.
        forced: whether any number is worth a merge, a single batch too.
    """
    if loose < (1 if forced else fans.least[level]):
        return 0
    return min(loose, fans.most[level])


def resting_batches_max(fans: Fans) -> int:
    """How many batches there can be at most while no merge is due."""
    return sum(least - 1 for least in fans.least)


@dataclass(frozen=True)
class Fuel:
    """How much work is owed to the levels.

    Attributes:
        average: rows of an arrival, recent ones counting more.
        owed: for each level, rows that arrived anywhere since its merge last made a step.
        turn: the level that was served last.
    """

    average: float = 0.0
    owed: tuple[int, ...] = (0,) * LEVELS
    turn: int = LEVELS - 1

    def arrived(self, rows: int) -> "Fuel":
        """After a batch of so many rows came in, at whatever level."""
        average = self.average + (rows - self.average) / _WEIGHT if self.average else float(rows)
        return replace(self, average=average, owed=tuple(owed + rows for owed in self.owed))

    def next_of(self, levels: Sequence[int]) -> int:
        """Which of some levels, at least one, is to be served next: each in turn."""
        return min(levels, key=lambda level: (level - self.turn - 1) % LEVELS)

    def ration(self, level: int) -> int:
        """How many rows the next step of a level's merge may read."""
        if level == 0:
            return WHOLE
        return max(self.owed[level], round(self.average), 1)

    def served(self, level: int) -> "Fuel":
        """After a step of a level's merge was handed out."""
        owed = tuple(0 if i == level else rows for i, rows in enumerate(self.owed))
        return replace(self, owed=owed, turn=level)
