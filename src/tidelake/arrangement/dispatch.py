"""Which merge a thread is to work at next, and what merges hold and write until they end.

Owns the merges that were begun, and whether memory and disk let one begin. Must not know threads or waiting:
its caller sees to it that one thread at a time is in here, and carries out what is handed out.

INVARIANT: a merge is worked at by one thread at a time. It holds its inputs, and whatever else it looks at,
until it ended or was given up.
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

# A builder for a batch as planned, on disk or not.
MakeBuilder = Callable[[FilterPlan, bool], Builder]
# What a merge holds beside its inputs and output, in chunks.
_CHUNKS_HELD = 4
# Of a filter, for each row.
_FILTER_BYTES = 2


@dataclass
class Running:
    """A merge that was begun.

    Attributes:
        task: what it is about.
        merge: that runs.
        others: batches that it looks at beside its inputs; it holds them.
        on_disk: whether its output is written to disk.
        size: bytes of its output, at most.
        busy: whether a thread is at a step of it.
        ration: rows that the step may read.
        steps: that ended.
        seconds: that they took.
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
        """What is still to be written, at most."""
        rows = max(1, self.merge.rows)
        return self.size * max(0, rows - self.merge.rows_read) // rows


@dataclass
class Dispatcher:
    """The batches of a spine, and the merges that were begun among them.

    Attributes:
        config: the settings.
        room: memory and disk.
        rules: of merges that begin now.
        make: makes builders.
        cache_bytes: what the cache of blocks holds now.
        schedule: which batch is at which level.
        running: by level the merge that was begun there.
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
        """Whether a thread is at a step."""
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
        """Whether merges are due, and none can make a step before the disk has more room."""
        ready = any(not running.busy for running in self.running.values())
        due = [] if ready or self.busy else self.due()
        return bool(due) and not any(map(self._admitted, due))

    @property
    def used_bytes(self) -> int:
        """What counts in the memory budget."""
        merges = sum(self._merge_bytes(running) for running in self.running.values())
        return sum(batch.memory_bytes for batch in self.schedule.batches) + merges + self.cache_bytes()

    def measure(self) -> int:
        """Let the pressure be that of this moment; what is used."""
        used = self.used_bytes
        self.room.measure(used)
        return used

    def due(self) -> list[Task]:
        """Merges that may begin as far as the schedule goes."""
        return list(self.schedule.due(self.rules, spill=self.room.level >= Pressure.HIGH))

    def claim(self) -> Running | None:
        """The merge that a thread is to work at next, and how much of it; begun if need be.

        Raises:
            StoreUnavailable: it cannot be told how much disk is left. Nothing was begun.
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
        """A merge came to its end; its inputs and others are the caller's to let go of."""
        del self.running[running.task.level]
        merge, inputs = running.merge, len(running.task.inputs)
        counts = MergeCounts(
            1, inputs, running.steps, running.seconds, merge.rows_read, 0 if result is None else result.rows
        )
        self.schedule.end(running.task, result, counts)

    def give_up(self, running: Running) -> None:
        """A merge did not come to its end; its others are the caller's to let go of."""
        del self.running[running.task.level]
        self.schedule.give_up(running.task)

    def levels(self) -> tuple[LevelReport, ...]:
        """What is at each level."""
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
        # What is built in memory is copied once more at the end. Of a file the filter is built in memory.
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
