"""The merger: carries out what the schedule asks for, beside those who insert and read.

Owns the lock of a spine, its background threads, waiting, and what becomes of errors. Must not know how
rows get in, nor what readers do with batches.

INVARIANT: the lock is held to look and to note only; rows are merged, and files written and deleted,
outside of it. So readers wait for nobody, and inserts for nothing but `wait`.

An error of a merge ends that merge and leaves its inputs as they were; the error is kept, and merging rests
until somebody has been told (`check`). Then it is tried again.

SUBTLE: whoever waits here merges himself where the threads leave something to do. So nobody waits for
threads that do not exist, and with none a spine is driven by `step` alone.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidelake.arrangement.batch import Batch, Builder, FilterPlan
from tidelake.arrangement.merging import Merge, Rules
from tidelake.arrangement.pressure import Pressure
from tidelake.arrangement.report import LevelReport, MergeCounts
from tidelake.arrangement.room import Room
from tidelake.arrangement.schedule import Schedule, Task
from tidelake.arrangement.settings import ArrangementConfig
from tidelake.env import Env, Spawned, Stop
from tidelake.errors import Closed, StoreUnavailable, UsageError

# A builder for a batch as planned, on disk or not.
MakeBuilder = Callable[[FilterPlan, bool], Builder]
# What a merge holds beside its inputs and output, in chunks.
_CHUNKS_HELD = 4
# Of a filter, for each row.
_FILTER_BYTES = 2


@dataclass
class _Running:
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
class _Waits:
    """Inserts that had to wait."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class Merger:
    """The batches of a spine, and the merges among them. Thread-safe.

    Attributes:
        config: the settings.
        env: clock, and who starts threads.
        room: memory and disk.
        rules: of merges that begin now.
        make: makes builders.
        cache_bytes: what the cache of blocks holds now.
        contents: a number that changes with what the batches hold in sum.
    """

    config: ArrangementConfig
    env: Env
    room: Room
    rules: Rules
    make: MakeBuilder
    cache_bytes: Callable[[], int]
    contents: int = 0
    waits: _Waits = field(default_factory=_Waits)
    paused: bool = False

    def __post_init__(self) -> None:
        config = self.config
        self._schedule = Schedule(config.fans, config.level_rows, config.retraction_weight)
        self._changed = threading.Condition()
        self._running: dict[int, _Running] = {}
        self._threads: list[Spawned] = []
        self._error: Exception | None = None
        self._closed = False

    def put(self, batches: Sequence[Batch], *, changes: bool = True) -> bool:
        """Take in batches, and one user of each; whether the caller had better wait.

        Args:
            batches: new to the spine.
            changes: whether the contents are others now.
        """
        with self._changed:
            if self._closed:
                raise Closed("the arrangement was closed: open it again")
            for batch in batches:
                self._schedule.put(batch)
            self.contents += changes
            self._measure()
            self._wake()
            return self._crowded()

    def follow(self, change: Callable[[Rules], Rules], *, changes: bool = True) -> None:
        """Let merges that begin from now on follow other rules, and reads look by them.

        Args:
            change: makes them of those so far; may raise.
            changes: whether the contents are others now, if the rules are.
        """
        with self._changed:
            rules = change(self.rules)
            self.contents += changes and not rules.same(self.rules)
            self.rules = rules

    def held(self) -> tuple[list[Batch], Rules]:
        """All batches of this moment, with one user more for each, and the rules of this moment."""
        with self._changed:
            if self._closed:
                raise Closed("the arrangement was closed: open it again")
            batches = self._schedule.batches
            for batch in batches:
                batch.acquire()
            return batches, self.rules

    def check(self) -> None:
        """Raise what went wrong in the background, once; merging then goes on."""
        with self._changed:
            if self._closed:
                raise Closed("the arrangement was closed: open it again")
            error, self._error = self._error, None
            if error is not None:
                self._wake()
        if error is not None:
            raise error

    def on_disk(self, size: int) -> bool:
        """Whether a batch of so many bytes that comes in now is to be kept on disk."""
        with self._changed:
            used = self._measure()
            return self.room.on_disk(size, used)

    def wait(self) -> None:
        """Wait while there are too many batches, or memory is about to run out and merges can help.

        Ends when something goes wrong, too; `check` then tells.
        """
        with self._changed:
            if not self._crowded():
                return
        began = self.env.clock.monotonic_s()
        self._merge_until(lambda: not self._crowded())
        with self._changed:
            self.waits.count += 1
            self.waits.seconds += self.env.clock.monotonic_s() - began

    def sweep(self) -> int:
        """Ask for all batches of this moment to become one; what `swept` will be when they are."""
        with self._changed:
            done = self._schedule.sweep()
            self._wake()
            return done

    def sweep_now(self) -> None:
        """Make all batches of this moment one, and wait for it.

        Raises:
            UsageError: merging was paused before it was done.
            StoreUnavailable: the disk has no room for it.
            TidelakeError: what else went wrong in a merge.
        """
        done = self.sweep()
        self._merge_until(lambda: self._schedule.sweeps >= done)
        self.check()
        if self._schedule.sweeps < done:
            raise UsageError("merging was paused: resume it, and all that is there becomes one batch")

    def step(self) -> bool:
        """Do one step of one merge; whether there was one to do."""
        with self._changed:
            running = self._claim()
        if running is None:
            return False
        self._carry_out(running)
        return True

    def pause(self) -> None:
        """Begin no step from now on, and wait for those that were begun."""
        with self._changed:
            self.paused = True
            # Inserts do not wait for what is paused.
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy())

    def resume(self) -> None:
        """Merge again."""
        with self._changed:
            self.paused = False
            self._wake()

    @property
    def at_rest(self) -> bool:
        """Whether no merge is due, and none runs."""
        with self._changed:
            return not self._due() and not self._running

    @property
    def compact(self) -> bool:
        """Whether there is at most one batch, nothing runs, and no sweep was asked for."""
        with self._changed:
            return self._schedule.count <= 1 and not self._running and not self._schedule.sweeping

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is under way."""
        return self._schedule.sweeping

    @property
    def used_bytes(self) -> int:
        """What counts in the memory budget."""
        with self._changed:
            return self._used()

    def levels(self) -> tuple[LevelReport, ...]:
        """What is at each level."""
        with self._changed:
            schedule = self._schedule
            return tuple(
                _level(i, loose, schedule.running.get(i), schedule.counts[i])
                for i, loose in enumerate(schedule.loose)
            )

    def close(self) -> None:
        """Stop merging, give up what is unfinished, and let go of all batches. May be repeated."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy())
            batches = self._schedule.batches
            running, self._running = self._running, {}
        for thread in self._threads:
            thread.stop()
        for merge in running.values():
            merge.merge.abandon()
            _release(merge.others)
        _release(batches)

    # The lock is held by the callers of what follows, but for `_work`, `_merge_until` and `_carry_out`.

    def _work(self, stop: Stop) -> None:
        """A background thread."""
        while not stop.wait(0):
            try:
                self._step_or_rest()
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()

    def _step_or_rest(self) -> None:
        with self._changed:
            running = self._claim()
            if running is None and not self._closed:
                self._changed.wait(self.config.idle_s)
        if running is not None:
            self._carry_out(running)

    def _merge_until(self, reached: Callable[[], bool]) -> None:
        """Merge, or wait for others who do, until something is so, or goes wrong."""
        while True:
            with self._changed:
                if reached() or self._closed or self._error is not None:
                    return
                running = self._claim()
                if running is None:
                    if not self._busy():
                        self._stuck()
                        return
                    self._changed.wait(self.config.idle_s)
            if running is not None:
                self._carry_out(running)

    def _stuck(self) -> None:
        if not self.paused and self._due():
            self._error = StoreUnavailable(
                "the disk has no room for what a merge would write: free space, or lower disk_reserve_bytes",
                True,
            )

    def _claim(self) -> _Running | None:
        """The merge that a thread is to work at next, and how much of it; begun if need be."""
        if self.paused or self._closed or self._error is not None:
            return None
        if self.room.level is Pressure.CRITICAL and self._busy():
            return None
        ready: dict[int, Task | _Running] = {
            level: running for level, running in self._running.items() if not running.busy
        }
        ready |= {task.level: task for task in self._due() if self._admitted(task)}
        if not ready:
            return None
        level = self._schedule.fuel.next_of(list(ready))
        chosen = ready[level]
        running = chosen if isinstance(chosen, _Running) else self._begin(chosen)
        running.busy, running.ration = True, self._schedule.fuel.ration(level)
        self._schedule.fuel = self._schedule.fuel.served(level)
        return running

    def _due(self) -> list[Task]:
        return list(self._schedule.due(self.rules, spill=self.room.level >= Pressure.HIGH))

    def _admitted(self, task: Task) -> bool:
        if not self._to_disk(task):
            return True
        promised = sum(running.left_bytes for running in self._running.values() if running.on_disk)
        return self.room.admits(_size(task), promised)

    def _to_disk(self, task: Task) -> bool:
        stored = any(batch.on_disk for batch in task.inputs)
        return stored or self.room.on_disk(_size(task), self._used())

    def _begin(self, task: Task) -> _Running:
        on_disk = self._to_disk(task)
        self._schedule.begin(task)
        others: list[Batch] = []
        if task.rules.retention.whole_keys:
            inputs = {batch.id for batch in task.inputs}
            others = [batch for batch in self._schedule.batches if batch.id not in inputs]
            for batch in others:
                batch.acquire()
        chunk = (self.config.merge_chunk_rows, self.config.merge_chunk_bytes_held)
        plan = _plan(task)
        merge = Merge(task.inputs, others, task.rules, lambda: self.make(plan, on_disk), chunk)
        running = _Running(task, merge, others, on_disk, _size(task))
        self._running[task.level] = running
        return running

    def _carry_out(self, running: _Running) -> None:
        """One step, outside of the lock."""
        began = self.env.clock.monotonic_s()
        result: Batch | None = None
        try:
            ended = running.merge.step(running.ration)
            if ended:
                result = running.merge.finish()
        except BaseException as error:
            self._give_up(running, error)
            if not isinstance(error, Exception):
                raise
            return
        running.steps += 1
        running.seconds += self.env.clock.monotonic_s() - began
        with self._changed:
            running.busy = False
            if ended:
                self._end(running, result)
            self._measure()
            pressure = self.room.level
            self._changed.notify_all()
        if ended:
            _release(running.others)
            _release(running.task.inputs)
        if pressure >= Pressure.HIGH or (ended and pressure > Pressure.LOW):
            pa.default_memory_pool().release_unused()

    def _end(self, running: _Running, result: Batch | None) -> None:
        del self._running[running.task.level]
        merge, inputs = running.merge, len(running.task.inputs)
        counts = MergeCounts(
            1, inputs, running.steps, running.seconds, merge.rows_read, 0 if result is None else result.rows
        )
        self._schedule.end(running.task, result, counts)

    def _give_up(self, running: _Running, error: BaseException) -> None:
        with self._changed:
            del self._running[running.task.level]
            self._schedule.give_up(running.task)
            if isinstance(error, Exception):
                self._error = error
            self._changed.notify_all()
        running.merge.abandon()
        _release(running.others)

    def _crowded(self) -> bool:
        """Whether inserts are to wait."""
        if self.paused or self._closed or self._error is not None:
            return False
        if self._schedule.count >= self.config.batches_max:
            return True
        critical = self.room.level is Pressure.CRITICAL
        return critical and any(not batch.on_disk for batch in self._schedule.batches)

    def _busy(self) -> bool:
        return any(running.busy for running in self._running.values())

    def _wake(self) -> None:
        """Let the threads look; start them when there is something to do for the first time."""
        if not self._threads and self._due():
            self._threads = [
                self.env.spawner.spawn(f"tidelake-merger-{i}", self._work)
                for i in range(self.config.merge_workers)
            ]
        self._changed.notify_all()

    def _measure(self) -> int:
        used = self._used()
        self.room.measure(used)
        return used

    def _used(self) -> int:
        merges = sum(self._merge_bytes(running) for running in self._running.values())
        return sum(batch.memory_bytes for batch in self._schedule.batches) + merges + self.cache_bytes()

    def _merge_bytes(self, running: _Running) -> int:
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


def _release(batches: Sequence[Batch]) -> None:
    for batch in batches:
        batch.release()
