"""The schedule of a spine: which batch is at which level, which merges run, which are due.

Owns the bookkeeping of batches and sweeps; must not know threads, files or how rows are merged. Its caller
holds a lock, and carries out the tasks.

INVARIANT: every batch is either loose or an input of exactly one merge, until the result of that merge
replaces its inputs. So `batches` is the whole contents at any moment.

A *sweep* merges all batches into one, level by level: it waits for the merge that runs at the level, merges
all loose batches, however few, and moves the result one level up. A single batch moves up as it is. While a
sweep is at a level, no other merge begins there or above, and their results do not go below. A sweep ignores
batches that are inserted after it passed their level; so it ends, however many come. Requests during a sweep
become one further sweep.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidelake.arrangement.batch import Batch
from tidelake.arrangement.levels import LEVELS, Fans, Fuel, inputs, level_of, merged_size
from tidelake.arrangement.merging import Rules
from tidelake.arrangement.report import MergeCounts

_TOP = LEVELS - 1


@dataclass(frozen=True)
class Task:
    """A merge to run.

    Attributes:
        level: the level whose batches it merges.
        inputs: the batches to merge.
        swept: whether it is part of a sweep; its result then goes one level up.
        rules: frontier and filters to apply.
    """

    level: int
    inputs: tuple[Batch, ...]
    swept: bool
    rules: Rules


@dataclass
class _Sweep:
    """The progress of a sweep.

    Attributes:
        level: the level that is being swept.
        waiting: batches of the level that are still to be merged; None: the level was just reached.
        again: whether another sweep was requested.
    """

    level: int = 0
    waiting: list[Batch] | None = None
    again: bool = False


@dataclass
class Schedule:
    """The batches of a spine by level, and its merges.

    Attributes:
        fans: how many batches a merge takes.
        first_rows: the greatest size of a batch of level 0.
        retraction_weight: see `merged_size`.
        fuel: how much work each level may do.
        loose: for each level, the batches that are in no merge, oldest first.
        running: the running merge of each level.
        counts: counts of finished merges of each level.
        sweeps: number of finished sweeps.
    """

    fans: Fans
    first_rows: int
    retraction_weight: int
    fuel: Fuel = field(default_factory=Fuel)
    loose: list[list[Batch]] = field(default_factory=lambda: [[] for _ in range(LEVELS)])
    running: dict[int, Task] = field(default_factory=dict)
    counts: list[MergeCounts] = field(default_factory=lambda: [MergeCounts()] * LEVELS)
    sweeps: int = 0
    _sweep: _Sweep | None = None
    _made: dict[str, Rules] = field(default_factory=dict)

    @property
    def batches(self) -> list[Batch]:
        """All batches, including those that are being merged."""
        merging = (batch for task in self.running.values() for batch in task.inputs)
        return [*(batch for level in self.loose for batch in level), *merging]

    @property
    def count(self) -> int:
        """The number of batches."""
        return sum(map(len, self.loose)) + sum(len(task.inputs) for task in self.running.values())

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is pending."""
        return self._sweep is not None

    def put(self, batch: Batch) -> None:
        """Add a batch that is new to the spine."""
        self.loose[level_of(batch.rows, self.first_rows)].append(batch)
        self.fuel = self.fuel.arrived(batch.rows)

    def withdraw(self, batches: Sequence[Batch]) -> None:
        """Undo `put` for those of the batches that were added; none of them may be part of a merge yet."""
        gone = {batch.id for batch in batches}
        self.loose = [[batch for batch in level if batch.id not in gone] for level in self.loose]
        if self._sweep is not None and self._sweep.waiting is not None:
            self._sweep.waiting = [batch for batch in self._sweep.waiting if batch.id not in gone]

    def sweep(self) -> int:
        """Request that all current batches are merged into one.

        Returns:
            The value of `sweeps` when that is done.
        """
        if self._sweep is None:
            self._sweep = _Sweep()
            return self.sweeps + 1
        self._sweep.again = True
        return self.sweeps + 2

    def due(self, rules: Rules, *, spill: bool) -> Iterator[Task]:
        """Merges that are due, at most one for each level.

        Args:
            rules: frontier and filters for merges that begin now.
            spill: whether batches in memory are to be merged to disk, however few there are.
        """
        swept = self._swept(rules)
        for level in range(LEVELS):
            if level in self.running:
                continue
            if self._sweep is not None and level >= self._sweep.level:
                if swept and level == self._sweep.level:
                    yield Task(level, swept, True, rules)
            elif taken := self.loose[level][: inputs(len(self.loose[level]), level, self.fans)]:
                yield Task(level, tuple(taken), False, rules)
            elif spill and (held := [b for b in self.loose[level] if not b.on_disk]):
                yield Task(level, tuple(held[: self.fans.most[level]]), False, rules)

    def begin(self, task: Task) -> None:
        """Mark a due merge as running."""
        taken = {batch.id for batch in task.inputs}
        self.loose[task.level] = [batch for batch in self.loose[task.level] if batch.id not in taken]
        self.running[task.level] = task
        if task.swept and self._sweep is not None and self._sweep.waiting is not None:
            self._sweep.waiting = [batch for batch in self._sweep.waiting if batch.id not in taken]

    def give_up(self, task: Task) -> None:
        """Return the inputs of a failed merge to their level, as the oldest batches."""
        del self.running[task.level]
        self.loose[task.level][:0] = task.inputs
        if task.swept and self._sweep is not None:
            self._sweep.waiting = [*task.inputs, *(self._sweep.waiting or [])]

    def end(self, task: Task, result: Batch | None, counts: MergeCounts) -> None:
        """Replace the inputs of a finished merge by its result."""
        del self.running[task.level]
        self.counts[task.level] = self.counts[task.level].plus(counts)
        for batch in task.inputs:
            self._made.pop(batch.id, None)
        if result is None:
            return
        self._made[result.id] = task.rules
        size = merged_size(result.rows, result.negative_rows, self.retraction_weight)
        level = level_of(size, self.first_rows)
        sweep = self._sweep
        if sweep is not None and task.swept:
            # The result of the last level is the result of the sweep: it goes to the level of its size.
            level = sweep.level + 1 if sweep.level < _TOP else level
        elif sweep is not None and task.level >= sweep.level:
            # Its inputs are part of the sweep, so the result must not go below the level being swept.
            level = max(level, min(sweep.level + 1, _TOP))
        self.loose[level].append(result)

    def _swept(self, rules: Rules) -> tuple[Batch, ...]:
        """Advance the sweep as far as it goes without a merge; returns the inputs of its next merge."""
        while (sweep := self._sweep) is not None and sweep.level not in self.running:
            if sweep.waiting is None:
                sweep.waiting = list(self.loose[sweep.level])
            waiting = sweep.waiting
            if sweep.level == _TOP and (len(waiting) > 1 or self._stale(waiting, rules)):
                return tuple(waiting)
            if len(waiting) > 1:
                return tuple(waiting[: self.fans.most[sweep.level]])
            self.loose[sweep.level] = [b for b in self.loose[sweep.level] if b not in waiting]
            if sweep.level < _TOP:
                self.loose[sweep.level + 1] += waiting
                sweep.level, sweep.waiting = sweep.level + 1, None
                continue
            for batch in waiting:
                self.loose[level_of(batch.rows, self.first_rows)].append(batch)
            self.sweeps += 1
            self._sweep = _Sweep() if sweep.again else None
        return ()

    def _stale(self, batches: list[Batch], rules: Rules) -> bool:
        """Whether a merge under the current rules could change the batch; `batches` has at most one."""
        return any(b.id not in self._made or not self._made[b.id].same(rules) for b in batches)
