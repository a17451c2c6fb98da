"""Chooses the merge that a thread works on next, and tracks what running merges hold and write.

Owns the running merges, and whether memory and disk let one begin. Must not know threads or waiting: its
caller holds a lock, and carries out what it returns.

INVARIANT: one thread at a time works on a merge. A merge holds its inputs, and the other batches that it
reads, until it ended or was given up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidelake.arrangement.batch import Batch, Builder, FilterPlan
from tidelake.arrangement.merging import Merge, Rules
from tidelake.arrangement.pressure import Pressure
from tidelake.arrangement.report import LevelReport, MergeCounts
from tidelake.arrangement.room import Room
from tidelake.arrangement.schedule import Schedule, Task
from tidelake.arrangement.settings import ArrangementConfig

# Makes the builder of a batch: in a file if the second argument is true, else in memory.
MakeBuilder = Callable[[FilterPlan, bool], Builder]
# How many chunks a merge holds beside its inputs and output.
_CHUNKS_HELD = 4
# Bytes of a filter for each row.
_FILTER_BYTES = 2


@dataclass
class Running:
    """A merge that was begun.

    Attributes:
        task: level, inputs and rules of the merge.
        merge: does the work.
        others: batches that it reads beside its inputs; it holds them.
        on_disk: whether its output is written to disk.
        size: upper bound on the bytes of its output.
        busy: whether a thread is working on a step of it.
        ration: rows that this step may read.
        steps: number of steps that ended.
        seconds: time that these took.
    """

    task: Task
    merge: Merge
    others: Sequence[Batch]
    on_disk: bool
    size: int
    busy: bool = False
    ration: int = 0
    steps: int = 0
    seconds: float = 0.0

    @property
    def left_bytes(self) -> int:
        """Upper bound on the bytes that are still to be written."""
        rows = max(1, self.merge.rows)
        return self.size * max(0, rows - self.merge.rows_read) // rows


@dataclass
class Dispatcher:
    """The batches of a spine, and the merges that were begun among them.

    Attributes:
        config: the settings.
        room: measures memory and disk.
        rules: rules for merges that begin now.
        make: makes builders.
        cache_bytes: the bytes of the block cache now.
        schedule: the batches by level.
        running: the running merge of each level.
    """

    config: ArrangementConfig
    room: Room
    rules: Rules
    make: MakeBuilder
    cache_bytes: Callable[[], int]
    running: dict[int, Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.config
        self.schedule = Schedule(config.fans, config.level_rows, config.retraction_weight)

    @property
    def busy(self) -> bool:
        """Whether a thread is working on a step."""
        return any(running.busy for running in self.running.values())

    @property
    def crowded(self) -> bool:
        """Whether there are too many batches, or memory is about to run out and merges can help."""
        if self.schedule.count >= self.config.batches_max:
            return True
        critical = self.room.level is Pressure.CRITICAL
        return critical and any(not batch.on_disk for batch in self.schedule.batches)

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
        return sum(batch.memory_bytes for batch in self.schedule.batches) + merges + self.cache_bytes()

    def measure(self) -> int:
        """Update the pressure; returns the bytes used."""
        used = self.used_bytes
        self.room.measure(used)
        return used

    def due(self) -> list[Task]:
        """Merges that are due, whether or not memory and disk admit them."""
        return list(self.schedule.due(self.rules, spill=self.room.level >= Pressure.HIGH))

    def claim(self) -> Running | None:
        """The merge that the calling thread works on next, with the ration of its step, if there is one.

        Raises:
            StoreUnavailable: the free disk space cannot be determined. No merge was begun.
        """
        if self.room.level is Pressure.CRITICAL and self.busy:
            return None
        ready: dict[int, Task | Running] = {
            level: running for level, running in self.running.items() if not running.busy
        }
        ready |= {task.level: task for task in self.due() if self._admitted(task)}
        if not ready:
            return None
        fuel = self.schedule.fuel
        level = fuel.next_of(list(ready))
        chosen = ready[level]
        running = chosen if isinstance(chosen, Running) else self._begin(chosen)
        running.busy, running.ration = True, fuel.ration(level)
        self.schedule.fuel = fuel.served(level)
        return running

    def end(self, running: Running, result: Batch | None) -> None:
        """Replace the inputs of a finished merge by its result. The caller releases its inputs and others."""
        del self.running[running.task.level]
        merge, inputs = running.merge, len(running.task.inputs)
        counts = MergeCounts(
            1, inputs, running.steps, running.seconds, merge.rows_read, 0 if result is None else result.rows
        )
        self.schedule.end(running.task, result, counts)

    def give_up(self, running: Running) -> None:
        """Return the inputs of a failed merge to their level. The caller releases its others."""
        del self.running[running.task.level]
        self.schedule.give_up(running.task)

    def levels(self) -> tuple[LevelReport, ...]:
        """A report on each level."""
        schedule = self.schedule
        return tuple(
            _level(i, loose, schedule.running.get(i), schedule.counts[i])
            for i, loose in enumerate(schedule.loose)
        )

    def _admitted(self, task: Task) -> bool:
        if not self._to_disk(task):
            return True
        promised = sum(running.left_bytes for running in self.running.values() if running.on_disk)
        return self.room.admits(_size(task), promised)

    def _to_disk(self, task: Task) -> bool:
        stored = any(batch.on_disk for batch in task.inputs)
        return stored or self.room.on_disk(_size(task), self.used_bytes)

    def _begin(self, task: Task) -> Running:
        on_disk = self._to_disk(task)
        others: list[Batch] = []
        if task.rules.retention.whole_keys:
            inputs = {batch.id for batch in task.inputs}
            others = [batch for batch in self.schedule.batches if batch.id not in inputs]
        chunk = (self.config.merge_chunk_rows, self.config.merge_chunk_bytes_held)
        plan = _plan(task)
        merge = Merge(task.inputs, others, task.rules, lambda: self.make(plan, on_disk), chunk)
        running = Running(task, merge, others, on_disk, _size(task))
        for batch in others:
            batch.acquire()
        self.schedule.begin(task)
        self.running[task.level] = running
        return running

    def _merge_bytes(self, running: Running) -> int:
        # Output in memory is copied once more at the end. For output on disk, the filter is in memory.
        output = _FILTER_BYTES * running.merge.rows if running.on_disk else 2 * running.size
        return output + _CHUNKS_HELD * min(self.config.merge_chunk_bytes_held, running.size)


def _size(task: Task) -> int:
    return sum(batch.size_bytes for batch in task.inputs)


def _plan(task: Task) -> FilterPlan:
    return FilterPlan(
        sum(batch.rows for batch in task.inputs),
        min(batch.key_lower for batch in task.inputs),
        max(batch.key_upper for batch in task.inputs),
    )


def _level(level: int, loose: list[Batch], task: Task | None, merged: MergeCounts) -> LevelReport:
    merging = task.inputs if task is not None else ()
    batches = [*loose, *merging]
    return LevelReport(
        level,
        len(loose),
        len(merging),
        sum(batch.rows for batch in batches if not batch.on_disk),
        sum(batch.rows for batch in batches if batch.on_disk),
        sum(batch.negative_rows for batch in batches),
        merged,
    )
