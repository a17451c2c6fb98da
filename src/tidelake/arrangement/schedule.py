"""What the merger is to do next: which batch is at which level, which merges run, whose turn it is.

Owns the bookkeeping of a spine; must not know threads, files or how rows are merged. Its caller sees to it
that one thread at a time is in here, and carries out what is handed out.

INVARIANT: every batch that was put in is loose or an input of exactly one merge, until a merge that ended
puts one batch in the place of its inputs. `batches` is therefore at any moment the whole contents.

A *sweep* makes one batch of all that is there, level by level: merges that run at the level are waited for,
what is loose is merged, whatever its number, and goes one level up. A batch that is alone moves up as it is.
While a sweep is at a level, no other merges begin there or above, and results do not fall below. Batches
that come in after a sweep passed their level are not its concern; so it ends, however many come. Requests
that come in meanwhile are one request for another sweep.
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
    """A merge that is to run.

    Attributes:
        level: the level whose batches it merges.
        inputs: those batches.
        swept: whether a sweep asks for it; its result then goes up.
        rules: what is done to the rows.
    """

    level: int
    inputs: tuple[Batch, ...]
    swept: bool
    rules: Rules


@dataclass
class _Sweep:
    """Where a sweep is.

    Attributes:
        level: that is being swept.
        waiting: batches of the level that are still to be merged; None: it was just reached.
        again: whether another sweep was asked for.
    """

    level: int = 0
    waiting: list[Batch] | None = None
    again: bool = False


@dataclass
class Schedule:
    """The batches of a spine by level, and its merges.

    Attributes:
        fans: how many batches a merge takes.
        first_rows: up to which size a batch is of level 0.
        retraction_weight: see `merged_size`.
        fuel: what is owed to the levels.
        loose: by level the batches that are in no merge, oldest first.
        running: by level the merge that was begun there.
        counts: by level the merges that ended.
        sweeps: how many sweeps came to their end.
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
        """All, those that are being merged included."""
        merging = (batch for task in self.running.values() for batch in task.inputs)
        return [*(batch for level in self.loose for batch in level), *merging]

    @property
    def count(self) -> int:
        """How many batches there are."""
        return sum(map(len, self.loose)) + sum(len(task.inputs) for task in self.running.values())

    @property
    def sweeping(self) -> bool:
        """Whether a sweep was asked for and has not come to its end."""
        return self._sweep is not None

    def put(self, batch: Batch) -> None:
        """Take in a batch that is new to the spine."""
        self.loose[level_of(batch.rows, self.first_rows)].append(batch)
        self.fuel = self.fuel.arrived(batch.rows)

    def withdraw(self, batches: Sequence[Batch]) -> None:
        """Undo `put`, as far as it came; none of them may have become part of a merge meanwhile."""
        gone = {batch.id for batch in batches}
        self.loose = [[batch for batch in level if batch.id not in gone] for level in self.loose]
        if self._sweep is not None and self._sweep.waiting is not None:
            self._sweep.waiting = [batch for batch in self._sweep.waiting if batch.id not in gone]

    def sweep(self) -> int:
        """Ask for all that is there to become one batch.

        Returns:
            What `sweeps` will be when that is done.
        """
        if self._sweep is None:
            self._sweep = _Sweep()
            return self.sweeps + 1
        self._sweep.again = True
        return self.sweeps + 2

    def due(self, rules: Rules, *, spill: bool) -> Iterator[Task]:
        """Merges that are due and may begin, one for a level at most.

        Args:
            rules: what a merge that begins now is to do to rows.
            spill: whether what is in memory is to be brought to disk, however little it is.
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
        """A candidate becomes a merge that runs."""
        taken = {batch.id for batch in task.inputs}
        self.loose[task.level] = [batch for batch in self.loose[task.level] if batch.id not in taken]
        self.running[task.level] = task
        if task.swept and self._sweep is not None and self._sweep.waiting is not None:
            self._sweep.waiting = [batch for batch in self._sweep.waiting if batch.id not in taken]

    def give_up(self, task: Task) -> None:
        """A merge did not come to its end: its inputs are what they were, and still the oldest."""
        del self.running[task.level]
        self.loose[task.level][:0] = task.inputs
        if task.swept and self._sweep is not None:
            self._sweep.waiting = [*task.inputs, *(self._sweep.waiting or [])]

    def end(self, task: Task, result: Batch | None, counts: MergeCounts) -> None:
        """A merge came to its end; its result takes the place of its inputs."""
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
            # What comes of the last level is all there was: it goes to the level of its size.
            level = sweep.level + 1 if sweep.level < _TOP else level
        elif sweep is not None and task.level >= sweep.level:
            # It held what the sweep has to take along.
            level = max(level, min(sweep.level + 1, _TOP))
        self.loose[level].append(result)

    def _swept(self, rules: Rules) -> tuple[Batch, ...]:
        """Move the sweep on as far as it goes without a merge; the inputs of the one that it waits for."""
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
        """Whether the batches, one at most, would be others if they were merged now."""
        return any(b.id not in self._made or not self._made[b.id].same(rules) for b in batches)
