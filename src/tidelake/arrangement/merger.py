"""The merger: runs the merges of a spine in background threads, concurrently with inserts and reads.

Owns the lock of a spine, its background threads, waiting, and the handling of errors. Must not know how rows
get in, what readers do with batches, nor how merges are chosen.

INVARIANT: the lock is held only for bookkeeping. Rows are merged, and files are written and deleted, outside
of it. So readers never wait, and inserts wait only in `wait`.

An error ends the merge that it occurred in and leaves its inputs as they were. The error is kept, and merging
stops until `check` has raised it to a caller. Then merging is tried again; a thread that failed pauses
before, each time twice as long as the time before.

SUBTLE: a caller that waits also merges, if a merge is due that no thread works on. So no caller waits for
threads that do not exist, and a spine without threads can be driven by `step` alone.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import pyarrow as pa

from tidelake.arrangement.batch import Batch
from tidelake.arrangement.dispatch import Dispatcher, Running
from tidelake.arrangement.merging import Rules
from tidelake.arrangement.pressure import Pressure
from tidelake.arrangement.report import LevelReport
from tidelake.env import Env, Spawned, Stop
from tidelake.errors import Closed, StoreUnavailable, UsageError

# The longest pause of a thread between two attempts that fail.
_PAUSE_S_MAX = 60.0


@dataclass
class _Waits:
    """Number of inserts that had to wait, and their total time."""

    count: int = 0
    seconds: float = 0.0


class Merger:
    """The batches of a spine, and the merges among them. Thread-safe.

    Attributes:
        room: measures memory and disk.
        contents: a number that changes whenever the sum of the batches changes.
        waits: how many inserts waited, and how long.
        paused: whether merging is paused.
    """

    def __init__(self, dispatcher: Dispatcher, env: Env) -> None:
        """Begin without threads.

        Args:
            dispatcher: chooses merges; the merger is its only user.
            env: clock, and spawner of threads.
        """
        self.room = dispatcher.room
        self.contents = 0
        self.waits = _Waits()
        self.paused = False
        self._config, self._env = dispatcher.config, env
        self._dispatcher, self._schedule = dispatcher, dispatcher.schedule
        self._changed = threading.Condition()
        self._threads: list[Spawned] = []
        self._error: Exception | None = None
        self._closed = False
        self._pid = os.getpid()
        if self._config.process_budget_bytes is not None:
            with _registering:
                _SHARING.add(self)

    @property
    def rules(self) -> Rules:
        """The rules for reads, and for merges that begin now."""
        return self._dispatcher.rules

    def put(self, batches: Sequence[Batch], *, changes: bool = True) -> bool:
        """Add batches; returns whether the caller should wait.

        The merger takes over the caller's use of each batch. If it raises, no batch was added, and the caller
        still has to release them.

        Args:
            batches: new to the spine.
            changes: whether this changes the contents.
        """
        with self._changed:
            self._check_open()
            before = self.contents
            try:
                for batch in batches:
                    self._schedule.put(batch)
                self.contents += changes
                self._dispatcher.measure()
                self._wake()
            except BaseException:
                # No thread has seen them: the lock is held.
                self._schedule.withdraw(batches)
                self.contents = before
                raise
            crowded = self._crowded()
        self._tell_others()
        return crowded

    def follow(self, change: Callable[[Rules], Rules], *, changes: bool = True) -> None:
        """Change the rules for reads, and for merges that begin from now on.

        Args:
            change: makes the new rules from the current ones; may raise.
            changes: whether other rules change the contents.
        """
        with self._changed:
            self._check_open()
            rules = change(self.rules)
            self.contents += changes and not rules.same(self.rules)
            self._dispatcher.rules = rules

    def held(self) -> tuple[list[Batch], Rules]:
        """All batches of this moment, which the caller must release, and the rules of the same moment."""
        with self._changed:
            self._check_open()
            batches = self._schedule.batches
            for batch in batches:
                batch.acquire()
            return batches, self.rules

    def check(self) -> None:
        """Raise the last error of a background merge, once; merging then goes on."""
        with self._changed:
            self._check_open()
            error, self._error = self._error, None
            if error is not None:
                self._wake()
        if error is not None:
            raise error

    def on_disk(self, size: int) -> bool:
        """Whether a new batch of `size` bytes is kept on disk."""
        with self._changed:
            self._check_open()
            return self.room.on_disk(size, self._dispatcher.measure())

    def wait(self) -> None:
        """Wait while there are too many batches, or memory is about to run out and merges can help.

        Also returns when a merge fails; `check` then raises the error.
        """
        with self._changed:
            if not self._crowded():
                return
        began = self._env.clock.monotonic_s()
        self._merge_until(lambda: not self._crowded())
        with self._changed:
            self.waits.count += 1
            self.waits.seconds += self._env.clock.monotonic_s() - began

    def sweep(self) -> int:
        """Request that all current batches are merged into one; see `Schedule.sweep`."""
        with self._changed:
            self._check_open()
            done = self._schedule.sweep()
            self._wake()
            return done

    def sweep_now(self) -> None:
        """Merge all current batches into one, and wait until it is done.

        Raises:
            UsageError: merging was paused before it was done.
            StoreUnavailable: the disk has no room for it.
            TidelakeError: a merge failed.
        """
        done = self.sweep()
        self._merge_until(lambda: self._schedule.sweeps >= done)
        self.check()
        if self._schedule.sweeps < done:
            raise UsageError("merging was paused before all batches were merged into one: resume it")

    def step(self) -> bool:
        """Do one step of one merge in the calling thread; returns whether a merge was due."""
        with self._changed:
            running = self._claim()
        if running is None:
            return False
        self._carry_out(running)
        return True

    def pause(self) -> None:
        """Begin no more steps, and wait until running steps have ended."""
        with self._changed:
            self._check_open()
            self.paused = True
            # Wakes inserts that wait: they do not wait while merging is paused.
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._dispatcher.busy and self.paused))

    def resume(self) -> None:
        """Merge again after `pause`."""
        with self._changed:
            self._check_open()
            self.paused = False
            self._wake()

    @property
    def at_rest(self) -> bool:
        """Whether no merge is due or running."""
        with self._changed:
            return not self._dispatcher.due() and not self._dispatcher.running

    @property
    def compact(self) -> bool:
        """Whether there is at most one batch, no merge is running, and no sweep is pending.

        Raises:
            StoreUnavailable: a sweep is pending, and the disk has no room for it.
        """
        with self._changed:
            if self._schedule.sweeping and not self.paused and self._dispatcher.stuck:
                raise _no_room()
            return self._schedule.count <= 1 and not self._dispatcher.running and not self._schedule.sweeping

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is under way."""
        return self._schedule.sweeping

    def measured(self) -> tuple[int, Pressure]:
        """Measure the used bytes of the memory budget, and the pressure; merges use the new pressure."""
        with self._changed:
            used = self._dispatcher.measure()
            if not self._closed:
                self._wake()
            return used, self.room.level

    def levels(self) -> tuple[LevelReport, ...]:
        """A report on each level."""
        with self._changed:
            return self._dispatcher.levels()

    def close(self) -> None:
        """Stop merging, abandon unfinished merges, and release all batches. May be repeated."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._dispatcher.busy)
            batches = self._schedule.batches
            running, self._dispatcher.running = self._dispatcher.running, {}
        for thread in self._threads:
            thread.stop()
        for merge in running.values():
            merge.merge.abandon()
            _release(merge.others)
        _release(batches)

    # The background threads

    def _work(self, stop: Stop) -> None:
        pause_s = 0.0
        while not stop.wait(pause_s):
            try:
                went_well = self._step_or_rest()
            except Exception as error:
                went_well = False
                self._fail(error)
            pause_s = 0 if went_well else min(max(2 * pause_s, self._config.idle_s), _PAUSE_S_MAX)

    def _step_or_rest(self) -> bool:
        """Do one step, or sleep if none is due; returns False if the step failed."""
        with self._changed:
            # Other parts of the process may have allocated memory meanwhile.
            self._dispatcher.measure()
            running = self._claim()
            if running is None and not self._closed:
                self._changed.wait(self._config.idle_s)
        return running is None or self._carry_out(running)

    # Waiting, and the steps of merges

    def _merge_until(self, reached: Callable[[], bool]) -> None:
        """Merge, or wait for threads that do, until a condition holds or a merge fails."""
        while True:
            try:
                with self._changed:
                    if reached() or self._closed or self._error is not None:
                        return
                    running = self._claim()
                    if running is None:
                        if not self._dispatcher.busy:
                            self._tell_if_stuck()
                            return
                        self._changed.wait(self._config.idle_s)
                if running is not None:
                    self._carry_out(running)
            except Exception as error:
                # Not raised here: the insert of the caller has succeeded.
                self._fail(error)
                return

    def _carry_out(self, running: Running) -> bool:
        """Do one step, outside of the lock; returns False if it failed."""
        began = self._env.clock.monotonic_s()
        result: Batch | None = None
        try:
            ended = running.merge.step(running.ration)
            if ended:
                result = running.merge.finish()
        except BaseException as error:
            self._give_up(running, error)
            if not isinstance(error, Exception):
                raise
            return False
        running.steps += 1
        running.seconds += self._env.clock.monotonic_s() - began
        try:
            with self._changed:
                running.busy = False
                if ended:
                    self._dispatcher.end(running, result)
                self._changed.notify_all()
                self._dispatcher.measure()
                pressure = self.room.level
            self._tell_others()
        finally:
            if ended:
                _release(running.others)
                _release(running.task.inputs)
        if pressure >= Pressure.HIGH or (ended and pressure > Pressure.LOW):
            pa.default_memory_pool().release_unused()
        return True

    def _tell_others(self) -> None:
        """Let mergers that share the process budget measure too: an idle one may hold most of the memory."""
        if self._config.process_budget_bytes is None or self.room.level < Pressure.HIGH:
            return
        for other in _sharing(self):
            try:
                other.measured()
            except Exception as error:
                other._fail(error)

    def _give_up(self, running: Running, error: BaseException) -> None:
        with self._changed:
            self._dispatcher.give_up(running)
            if isinstance(error, Exception):
                self._error = error
            self._changed.notify_all()
        running.merge.abandon()
        _release(running.others)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # Callers of the following methods hold the lock.

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the arrangement was closed: open it again")

    def _claim(self) -> Running | None:
        """The merge that the caller works on next."""
        if self.paused or self._closed or self._error is not None:
            return None
        return self._dispatcher.claim()

    def _crowded(self) -> bool:
        """Whether inserts have to wait."""
        if self.paused or self._closed or self._error is not None:
            return False
        return self._dispatcher.crowded

    def _tell_if_stuck(self) -> None:
        if not self.paused and self._dispatcher.due():
            self._error = _no_room()

    def _wake(self) -> None:
        """Wake the threads; start them when a merge is due for the first time."""
        if not self._threads and self._dispatcher.due():
            for i in range(self._config.merge_workers):
                self._threads.append(self._env.spawner.spawn(f"tidelake-merger-{i}", self._work))
        self._changed.notify_all()


def _sharing(merger: Merger) -> list[Merger]:
    """The other mergers that share the budget of this process."""
    with _registering:
        return [
            other
            for other in _SHARING
            if other is not merger and other.room.machine is merger.room.machine and other._pid == os.getpid()
        ]


# The open mergers with a budget for the process.
_SHARING: WeakSet[Merger] = WeakSet()
_registering = threading.Lock()


def _no_room() -> StoreUnavailable:
    return StoreUnavailable(
        "the disk has no room for the output of a merge: free space, or lower disk_reserve_bytes", True
    )


def _release(batches: Sequence[Batch]) -> None:
    for batch in batches:
        batch.release()
