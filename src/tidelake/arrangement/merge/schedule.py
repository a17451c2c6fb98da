"""The schedule of a spine: its batches by level, the merges that run, and the merge to work on next.

Owns the bookkeeping of batches, merges and sweeps, and whether memory and disk let a merge begin. Must not
know threads or waiting: its caller holds a lock, and carries out the steps that `claim` returns.

INVARIANT: every batch is either loose or an input of exactly one merge, until the result of that merge
replaces its inputs. So `batches` is the whole contents at any moment. One thread at a time works on a merge,
which holds its inputs, and the other batches that it reads, until it ended or was given up.

A *sweep* merges all batches into one, level by level: it waits for the merge that runs at the level, merges
all loose batches, however few, and moves the result one level up. A single batch moves up as it is. While a
sweep is at a level, no other merge begins there or above, and their results do not go below. A sweep ignores
batches that are appended after it passed their level; so it ends, however many come. Requests during a sweep
become one further sweep.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tidelake.arrangement.batch.batch import Builder, FilterPlan, IndexBatch
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.merge.levels import LEVELS, Fuel, inputs, level_of, merged_size
from tidelake.arrangement.merge.memorybudget import MemoryBudget
from tidelake.arrangement.merge.merging import Merge, MergeRules
from tidelake.arrangement.merge.pressure import Pressure
from tidelake.arrangement.merge.report import LevelReport, MergeCounts
from tidelake.arrangement.merge.settings import ArrangementConfig

# Makes the builder of a batch: in a file if the second argument is true, else in memory.
MakeBuilder = Callable[[FilterPlan, bool], Builder]
# How many chunks a merge holds beside its inputs and output.
_CHUNKS_HELD = 4
# Bytes of a filter for each row.
_FILTER_BYTES = 2
_TOP = LEVELS - 1


@dataclass(frozen=True)
class MergeTask:
    """A merge to run.

    Attributes:
        swept: whether it is part of a sweep; its result then goes one level up.
        rules: `since` and the filters to apply.
    """

    level: int
    inputs: tuple[IndexBatch, ...]
    swept: bool
    rules: MergeRules

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the inputs: an upper bound on the bytes of the output."""
        return sum(batch.size_bytes for batch in self.inputs)

    @property
    def plan(self) -> FilterPlan:
        """What is known about the output."""
        return FilterPlan(
            sum(batch.rows for batch in self.inputs),
            min(batch.key_lower for batch in self.inputs),
            max(batch.key_upper for batch in self.inputs),
        )


@dataclass
class Running:
    """A merge that was begun.

    Attributes:
        others: batches that it reads beside its inputs; it holds them.
        busy: whether a thread is working on a step of it.
    """

    task: MergeTask
    merge: Merge
    others: Sequence[IndexBatch]
    on_disk: bool
    busy: bool = False
    ration: int = 0
    steps: int = 0
    seconds: float = 0.0

    @property
    def left_bytes(self) -> int:
        """Upper bound on the bytes that are still to be written."""
        rows = max(1, self.merge.rows)
        return self.task.size_bytes * max(0, rows - self.merge.rows_read) // rows

    def counts(self, result: IndexBatch | None) -> MergeCounts:
        """The counts of this merge when it has ended."""
        written = 0 if result is None else result.rows
        inputs = len(self.task.inputs)
        return MergeCounts(1, inputs, self.steps, self.seconds, self.merge.rows_read, written)


@dataclass
class _Sweep:
    """The progress of a sweep.

    Attributes:
        waiting: batches of the level that are still to be merged; None: the level was just reached.
    """

    level: int = 0
    waiting: list[IndexBatch] | None = None
    again: bool = False


@dataclass
class Schedule:
    """The batches of a spine by level, and the merges among them.

    Attributes:
        cache: the cache of blocks, which counts in the memory budget.
        loose: for each level, the batches that are in no merge, oldest first.
    """

    config: ArrangementConfig
    room: MemoryBudget
    rules: MergeRules
    make: MakeBuilder
    cache: BlockCache
    fuel: Fuel = field(default_factory=Fuel)
    loose: list[list[IndexBatch]] = field(default_factory=lambda: [[] for _ in range(LEVELS)])
    running: dict[int, Running] = field(default_factory=dict)
    counts: list[MergeCounts] = field(default_factory=lambda: [MergeCounts()] * LEVELS)
    sweeps: int = 0
    _sweep: _Sweep | None = None
    _made: dict[str, MergeRules] = field(default_factory=dict)

    @property
    def batches(self) -> list[IndexBatch]:
        """All batches, including those that are being merged."""
        merging = (batch for running in self.running.values() for batch in running.task.inputs)
        return [*(batch for level in self.loose for batch in level), *merging]

    @property
    def count(self) -> int:
        """The number of batches."""
        return len(self.batches)

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is pending."""
        return self._sweep is not None

    @property
    def busy(self) -> bool:
        """Whether a thread is working on a step."""
        return any(running.busy for running in self.running.values())

    @property
    def crowded(self) -> bool:
        """Whether there are too many batches, or memory is about to run out and merges can help."""
        if self.count >= self.config.batches_max:
            return True
        critical = self.room.level is Pressure.CRITICAL
        return critical and any(not batch.on_disk for batch in self.batches)

    @property
    def stuck(self) -> bool:
        """Whether merges are due, and all of them wait for disk space."""
        ready = any(not running.busy for running in self.running.values())
        due = [] if ready or self.busy else self.due()
        return bool(due) and not any(map(self._admitted, due))

    @property
    def used_bytes(self) -> int:
        """Bytes counted in the memory budget."""
        merges = sum(self._merge_bytes(running) for running in self.running.values())
        return sum(batch.memory_bytes for batch in self.batches) + merges + self.cache.bytes

    @property
    def may_spill(self) -> bool:
        """Whether pressure that no append brings about can make it spill: from the cache, or the process."""
        in_memory = sum(batch.memory_bytes for batch in self.batches if not batch.on_disk)
        filled = self.used_bytes - self.cache.bytes + self.config.cache_bytes_held
        share = filled / self.config.memory_budget_bytes
        return in_memory > 0 and (
            self.config.process_budget_bytes is not None or share >= self.config.shares.high
        )

    def measure(self) -> int:
        """Update the pressure; returns the bytes used."""
        used = self.used_bytes
        self.room.measure(used)
        return used

    def put(self, batch: IndexBatch) -> None:
        """Add a batch that is new to the spine."""
        self.loose[level_of(batch.rows, self.config.level_rows)].append(batch)
        self.fuel = self.fuel.arrived(batch.rows)

    def withdraw(self, batches: Sequence[IndexBatch]) -> None:
        """Undo `put` for those of the batches that were added; none of them may be part of a merge yet."""
        gone = {batch.id for batch in batches}
        self.loose = [[batch for batch in level if batch.id not in gone] for level in self.loose]
        if self._sweep is not None and self._sweep.waiting is not None:
            self._sweep.waiting = [batch for batch in self._sweep.waiting if batch.id not in gone]

    def sweep(self) -> int:
        """Request a merge of all current batches into one; the value of `sweeps` when that is done."""
        if self._sweep is None:
            self._sweep = _Sweep()
            return self.sweeps + 1
        self._sweep.again = True
        return self.sweeps + 2

    def due(self) -> list[MergeTask]:
        """Merges that are due, at most one for each level, whether or not memory and disk admit them."""
        due: list[MergeTask] = []
        fans, spill = self.config.fans, self.room.level >= Pressure.HIGH
        swept = self._swept()
        for level, loose in enumerate(self.loose):
            if level in self.running:
                continue
            if self._sweep is not None and level >= self._sweep.level:
                if swept and level == self._sweep.level:
                    due.append(MergeTask(level, swept, True, self.rules))
            elif count := inputs(len(loose), level, fans):
                due.append(MergeTask(level, tuple(loose[:count]), False, self.rules))
            elif spill and (held := [batch for batch in loose if not batch.on_disk]):
                due.append(MergeTask(level, tuple(held[: fans.most[level]]), False, self.rules))
        return due

    def claim(self) -> Running | None:
        """The merge that the calling thread works on next, with the ration of its step, if there is one."""
        if self.room.level is Pressure.CRITICAL and self.busy:
            return None
        ready: dict[int, MergeTask | Running] = {
            level: running for level, running in self.running.items() if not running.busy
        }
        ready |= {task.level: task for task in self.due() if self._admitted(task)}
        if not ready:
            return None
        level = self.fuel.next_of(list(ready))
        chosen = ready[level]
        running = chosen if isinstance(chosen, Running) else self._begin(chosen)
        running.busy, running.ration = True, self.fuel.ration(level)
        self.fuel = self.fuel.served(level)
        return running

    def give_up(self, running: Running) -> None:
        """Return the inputs of a failed merge to their level, as the oldest batches.

        The caller releases its others.
        """
        task = running.task
        del self.running[task.level]
        self.loose[task.level][:0] = task.inputs
        if task.swept and self._sweep is not None:
            self._sweep.waiting = [*task.inputs, *(self._sweep.waiting or [])]

    def end(self, running: Running, result: IndexBatch | None) -> None:
        """Replace the inputs of a finished merge by its result. The caller releases its inputs and others."""
        task = running.task
        del self.running[task.level]
        self.counts[task.level] = self.counts[task.level].plus(running.counts(result))
        for batch in task.inputs:
            self._made.pop(batch.id, None)
        if result is None:
            return
        self._made[result.id] = task.rules
        size = merged_size(result.rows, result.negative_rows, self.config.retraction_weight)
        level = level_of(size, self.config.level_rows)
        sweep = self._sweep
        if sweep is not None and task.swept:
            # The result of the last level is the result of the sweep: it goes to the level of its size.
            level = sweep.level + 1 if sweep.level < _TOP else level
        elif sweep is not None and task.level >= sweep.level:
            # Its inputs are part of the sweep, so the result must not go below the level being swept.
            level = max(level, min(sweep.level + 1, _TOP))
        self.loose[level].append(result)

    def levels(self) -> tuple[LevelReport, ...]:
        """A report on each level."""
        return tuple(map(self._level, range(LEVELS)))

    def _swept(self) -> tuple[IndexBatch, ...]:
        """Advance the sweep as far as it goes without a merge; returns the inputs of its next merge."""
        while (sweep := self._sweep) is not None and sweep.level not in self.running:
            if sweep.waiting is None:
                sweep.waiting = list(self.loose[sweep.level])
            waiting = sweep.waiting
            if sweep.level == _TOP and (len(waiting) > 1 or self._stale(waiting)):
                return tuple(waiting)
            if len(waiting) > 1:
                return tuple(waiting[: self.config.fans.most[sweep.level]])
            self.loose[sweep.level] = [b for b in self.loose[sweep.level] if b not in waiting]
            if sweep.level < _TOP:
                self.loose[sweep.level + 1] += waiting
                sweep.level, sweep.waiting = sweep.level + 1, None
                continue
            for batch in waiting:
                self.loose[level_of(batch.rows, self.config.level_rows)].append(batch)
            self.sweeps += 1
            self._sweep = _Sweep() if sweep.again else None
        return ()

    def _stale(self, batches: list[IndexBatch]) -> bool:
        """Whether a merge under the current rules could change the batch; `batches` has at most one."""
        return any(b.id not in self._made or not self._made[b.id].same(self.rules) for b in batches)

    def _admitted(self, task: MergeTask) -> bool:
        if not self._to_disk(task):
            return True
        promised = sum(running.left_bytes for running in self.running.values() if running.on_disk)
        return self.room.admits(task.size_bytes, promised)

    def _to_disk(self, task: MergeTask) -> bool:
        stored = any(batch.on_disk for batch in task.inputs)
        return stored or self.room.on_disk(task.size_bytes, self.used_bytes)

    def _begin(self, task: MergeTask) -> Running:
        on_disk = self._to_disk(task)
        taken = {batch.id for batch in task.inputs}
        others: list[IndexBatch] = []
        if task.rules.retention.whole_keys:
            others = [batch for batch in self.batches if batch.id not in taken]
        chunk = (self.config.merge_chunk_rows, self.config.merge_chunk_bytes_held)
        plan = task.plan
        merge = Merge(task.inputs, others, task.rules, lambda: self.make(plan, on_disk), chunk)
        running = Running(task, merge, others, on_disk)
        for batch in others:
            batch.acquire()
        self.loose[task.level] = [batch for batch in self.loose[task.level] if batch.id not in taken]
        self.running[task.level] = running
        if task.swept and self._sweep is not None and self._sweep.waiting is not None:
            self._sweep.waiting = [batch for batch in self._sweep.waiting if batch.id not in taken]
        return running

    def _merge_bytes(self, running: Running) -> int:
        size = running.task.size_bytes
        # Output in memory is copied once more at the end. For output on disk, the filter is in memory.
        output = _FILTER_BYTES * running.merge.rows if running.on_disk else 2 * size
        return output + _CHUNKS_HELD * min(self.config.merge_chunk_bytes_held, size)

    def _level(self, level: int) -> LevelReport:
        loose, running = self.loose[level], self.running.get(level)
        merging = running.task.inputs if running is not None else ()
        batches = [*loose, *merging]
        return LevelReport(
            level,
            len(loose),
            len(merging),
            sum(batch.rows for batch in batches if not batch.on_disk),
            sum(batch.rows for batch in batches if batch.on_disk),
            sum(batch.negative_rows for batch in batches),
            self.counts[level],
        )
