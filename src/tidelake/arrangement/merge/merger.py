"""The lower half of a spine: runs its merges in background threads, concurrently with appends and reads.

Owns the lock of a spine, its background threads, waiting, and the handling of errors. Must not know how rows
get in, what readers do with batches, nor how merges are chosen.

INVARIANT: the lock is held only for bookkeeping. Rows are merged, and files are written and deleted, outside
of it. So readers never wait, and appends wait only in `wait`.

An error ends the merge that it occurred in and leaves its inputs as they were. The error is kept, and merging
stops until `check` has raised it to a caller. Then merging is tried again; a thread that failed pauses
before, each time twice as long as the time before.

SUBTLE: a caller that waits also merges, if a merge is due that no thread works on. So no caller waits for
threads that do not exist, and a spine without threads can be driven by `step` alone.
"""

import threading
from collections.abc import Callable, Sequence
from weakref import WeakSet

import pyarrow as pa

from tidelake.arrangement.batch.batch import IndexBatch, release_all
from tidelake.arrangement.merge.merging import MergeRules
from tidelake.arrangement.merge.pressure import Pressure
from tidelake.arrangement.merge.schedule import Running, Schedule
from tidelake.env import Env, Spawned, Stop
from tidelake.errors import Closed, StoreUnavailable, UsageError
from tidelake.process import PerProcess

# The longest pause of a thread between two attempts that fail.
_PAUSE_S_MAX = 60.0


class Merger:
    """The batches of a spine, and the merges among them. Thread-safe.

    Attributes:
        contents: a number that changes with every append and with since, but not with merges.
    """

    def __init__(self, schedule: Schedule, env: Env) -> None:
        """Begin without threads."""
        self.config, self.room = schedule.config, schedule.room
        self.contents = 0
        self.paused = False
        self._waits, self._waited_s = 0, 0.0
        self._env, self._schedule = env, schedule
        self._changed = threading.Condition()
        self._threads: list[Spawned] = []
        self._error: Exception | None = None
        self._closed = False
        if self.config.process_budget_bytes is not None:
            sharing = _SHARING.get()
            with sharing.lock:
                sharing.mergers.add(self)

    @property
    def rules(self) -> MergeRules:
        """The rules for reads, and for merges that begin now."""
        return self._schedule.rules

    def adopt(self, batches: Sequence[IndexBatch]) -> bool:
        """Add batches; returns whether the caller should `wait` before the next append.

        The merger takes over the caller's use of each batch. If it raises, no batch was added, and the caller
        still has to release them.
        """
        with self._changed:
            self._check_open()
            before = self.contents
            try:
                for batch in batches:
                    self._schedule.put(batch)
                self.contents += 1
                self._schedule.measure()
                self._wake()
            except BaseException:
                # No thread has seen them: the lock is held.
                self._schedule.withdraw(batches)
                self.contents = before
                raise
            crowded = self._crowded()
        self._tell_others()
        return crowded

    def change_rules(self, change: Callable[[MergeRules], MergeRules]) -> None:
        """Change the rules for reads, and for merges that begin from now on."""
        with self._changed:
            self._check_open()
            rules = change(self.rules)
            self.contents += rules.since != self.rules.since
            self._schedule.rules = rules

    def held(self) -> tuple[list[IndexBatch], MergeRules]:
        """All batches, which the caller must release, and `since` and the filters of the same moment."""
        self.check()
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

    def _on_disk(self, size: int) -> bool:
        """Whether a new batch of `size` bytes is kept on disk."""
        with self._changed:
            self._check_open()
            return self.room.on_disk(size, self._schedule.measure())

    def wait(self) -> None:
        """As `Arrangement.wait`. Also returns when a merge fails; `check` then raises the error."""
        with self._changed:
            if not self._crowded():
                return
        began = self._env.clock.monotonic_s()
        self._merge_until(lambda: not self._crowded())
        with self._changed:
            self._waits += 1
            self._waited_s += self._env.clock.monotonic_s() - began

    def merge_nowait(self) -> None:
        """See `Arrangement.merge_nowait`."""
        self.check()
        self._sweep()

    @property
    def is_merged(self) -> bool:
        """See `Arrangement.is_merged`."""
        self.check()
        schedule = self._schedule
        with self._changed:
            if schedule.sweeping and not self.paused and schedule.stuck:
                raise _no_room()
            return schedule.count <= 1 and not schedule.running and not schedule.sweeping

    def merge(self) -> None:
        """As `Arrangement.merge`; the calling thread merges too."""
        if self.paused:
            raise UsageError("merging is paused: resume it before you merge")
        done = self._sweep()
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
            # Wakes appends that wait: they do not wait while merging is paused.
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._schedule.busy and self.paused))

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
            return not self._schedule.due() and not self._schedule.running

    def close(self) -> None:
        """Stop merging, abandon unfinished merges, and release all batches. May be repeated."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._schedule.busy)
            batches = self._schedule.batches
            running, self._schedule.running = self._schedule.running, {}
        for thread in self._threads:
            thread.stop()
        for merge in running.values():
            merge.merge.abandon()
            release_all(merge.others)
        release_all(batches)

    # The background threads

    def _work(self, stop: Stop) -> None:
        pause_s = 0.0
        while not stop.wait(pause_s):
            try:
                went_well = self._step_or_rest()
            except Exception as error:
                went_well = False
                self._fail(error)
            pause_s = 0 if went_well else min(max(2 * pause_s, self.config.idle_s), _PAUSE_S_MAX)

    def _step_or_rest(self) -> bool:
        """Do one step, or sleep if none is due; returns False if the step failed."""
        with self._changed:
            # Other parts of the process may have allocated memory meanwhile.
            self._schedule.measure()
            running = self._claim()
            if running is None and not self._closed:
                self._changed.wait(self.config.idle_s)
        return running is None or self._carry_out(running)

    # Waiting, and the steps of merges

    def _sweep(self) -> int:
        """Request that all current batches are merged into one; see `Schedule.sweep`."""
        with self._changed:
            self._check_open()
            done = self._schedule.sweep()
            self._wake()
            return done

    def _merge_until(self, reached: Callable[[], bool]) -> None:
        """Merge, or wait for threads that do, until a condition holds or a merge fails."""
        while True:
            try:
                with self._changed:
                    if reached() or self._closed or self._error is not None:
                        return
                    running = self._claim()
                    if running is None:
                        if not self._schedule.busy:
                            self._tell_if_stuck()
                            return
                        self._changed.wait(self.config.idle_s)
                if running is not None:
                    self._carry_out(running)
            except Exception as error:
                # Not raised here: the append of the caller has succeeded.
                self._fail(error)
                return

    def _carry_out(self, running: Running) -> bool:
        """Do one step, outside of the lock; returns False if it failed."""
        began = self._env.clock.monotonic_s()
        result: IndexBatch | None = None
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
                    self._schedule.end(running, result)
                self._changed.notify_all()
                self._schedule.measure()
                pressure = self.room.level
            self._tell_others()
        finally:
            if ended:
                release_all(running.others)
                release_all(running.task.inputs)
        if pressure >= Pressure.HIGH or (ended and pressure > Pressure.LOW):
            pa.default_memory_pool().release_unused()
        return True

    def _tell_others(self) -> None:
        """Let mergers that share the process budget measure too: an idle one may hold most of the memory."""
        if self.config.process_budget_bytes is None or self.room.level < Pressure.HIGH:
            return
        for other in _SHARING.get().beside(self):
            try:
                with other._changed:
                    other._measure()
            except Exception as error:
                other._fail(error)

    def _give_up(self, running: Running, error: BaseException) -> None:
        with self._changed:
            self._schedule.give_up(running)
            if isinstance(error, Exception):
                self._error = error
            self._changed.notify_all()
        running.merge.abandon()
        release_all(running.others)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # Callers of the following methods hold the lock.

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the arrangement was closed: open it again")

    def _measure(self) -> int:
        """Measure the pressure, and wake threads that it concerns; returns the used bytes."""
        used = self._schedule.measure()
        if not self._closed:
            self._wake()
        return used

    def _claim(self) -> Running | None:
        """The merge that the caller works on next."""
        if self.paused or self._closed or self._error is not None:
            return None
        return self._schedule.claim()

    def _crowded(self) -> bool:
        """Whether appends have to wait."""
        if self.paused or self._closed or self._error is not None:
            return False
        return self._schedule.crowded

    def _tell_if_stuck(self) -> None:
        if not self.paused and self._schedule.due():
            self._error = _no_room()

    def _wake(self) -> None:
        """Wake the threads; start them when there is something to merge, or pressure to look for."""
        if not self._threads and (self._schedule.due() or self._schedule.may_spill):
            for i in range(self.config.merge_workers):
                self._threads.append(self._env.spawner.spawn(f"tidelake-merger-{i}", self._work))
        self._changed.notify_all()


class _Sharing:
    """The open mergers that share the budget of a process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mergers: WeakSet[Merger] = WeakSet()

    def beside(self, merger: Merger) -> list[Merger]:
        """The others that measure the same machine."""
        with self.lock:
            return [
                other
                for other in self.mergers
                if other is not merger and other.room.machine is merger.room.machine
            ]


_SHARING = PerProcess(_Sharing)


def _no_room() -> StoreUnavailable:
    return StoreUnavailable(
        "the disk has no room for the output of a merge: free space, or lower disk_reserve_bytes", True
    )
