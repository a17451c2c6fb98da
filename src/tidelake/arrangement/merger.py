"""The merger: carries out what the dispatcher hands out, beside those who insert and read.

Owns the lock of a spine, its background threads, waiting, and what becomes of errors. Must not know how
rows get in, what readers do with batches, nor how merges are chosen.

INVARIANT: the lock is held to look and to note only; rows are merged, and files written and deleted,
outside of it. So readers wait for nobody, and inserts for nothing but `wait`.

An error of a merge ends that merge and leaves its inputs as they were; the error is kept, and merging rests
until somebody has been told (`check`). Then it is tried again, by a thread that failed before after a pause,
each time twice as long as the one before.

SUBTLE: whoever waits here merges himself where the threads leave something to do. So nobody waits for
threads that do not exist, and with none a spine is driven by `step` alone.
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

# Between two attempts of a thread at what fails, at most.
_PAUSE_S_MAX = 60.0


@dataclass
class _Waits:
    """Inserts that had to wait."""

    count: int = 0
    seconds: float = 0.0


class Merger:
    """The batches of a spine, and the merges among them. Thread-safe.

    Attributes:
        room: memory and disk.
        contents: a number that changes with what the batches hold in sum.
        waits: of inserts.
        paused: whether nothing is merged.
    """

    def __init__(self, dispatcher: Dispatcher, env: Env) -> None:
        """Begin without threads.

        Args:
            dispatcher: that nobody else uses.
            env: clock, and who starts threads.
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
        """Of merges that begin now, and of reads."""
        return self._dispatcher.rules

    def put(self, batches: Sequence[Batch], *, changes: bool = True) -> bool:
        """Take in batches, and one user of each; whether the caller had better wait.

        If it raises, none of them is in, and the users are still the caller's.

        Args:
            batches: new to the spine.
            changes: whether the contents are others now.
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
        """Let merges that begin from now on follow other rules, and reads look by them.

        Args:
            change: makes them of those so far; may raise.
            changes: whether the contents are others now, if the rules are.
        """
        with self._changed:
            self._check_open()
            rules = change(self.rules)
            self.contents += changes and not rules.same(self.rules)
            self._dispatcher.rules = rules

    def held(self) -> tuple[list[Batch], Rules]:
        """All batches of this moment, with one user more for each, and the rules of this moment."""
        with self._changed:
            self._check_open()
            batches = self._schedule.batches
            for batch in batches:
                batch.acquire()
            return batches, self.rules

    def check(self) -> None:
        """Raise what went wrong in the background, once; merging then goes on."""
        with self._changed:
            self._check_open()
            error, self._error = self._error, None
            if error is not None:
                self._wake()
        if error is not None:
            raise error

    def on_disk(self, size: int) -> bool:
        """Whether a batch of so many bytes that comes in now is to be kept on disk."""
        with self._changed:
            self._check_open()
            return self.room.on_disk(size, self._dispatcher.measure())

    def wait(self) -> None:
        """Wait while there are too many batches, or memory is about to run out and merges can help.

        Ends when something goes wrong, too; `check` then tells.
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
        """Ask for all batches of this moment to become one; what `swept` will be when they are."""
        with self._changed:
            self._check_open()
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
            self._check_open()
            self.paused = True
            # Inserts do not wait for what is paused.
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._dispatcher.busy and self.paused))

    def resume(self) -> None:
        """Merge again."""
        with self._changed:
            self._check_open()
            self.paused = False
            self._wake()

    @property
    def at_rest(self) -> bool:
        """Whether no merge is due, and none runs."""
        with self._changed:
            return not self._dispatcher.due() and not self._dispatcher.running

    @property
    def compact(self) -> bool:
        """Whether there is at most one batch, nothing runs, and no sweep was asked for.

        Raises:
            StoreUnavailable: a sweep was asked for, and the disk has no room for it.
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
        """What counts in the memory budget, and the pressure of this moment; merges go by it from now on."""
        with self._changed:
            used = self._dispatcher.measure()
            if not self._closed:
                self._wake()
            return used, self.room.level

    def levels(self) -> tuple[LevelReport, ...]:
        """What is at each level."""
        with self._changed:
            return self._dispatcher.levels()

    def close(self) -> None:
        """Stop merging, give up what is unfinished, and let go of all batches. May be repeated."""
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

    # A background thread

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
        """False if the step failed."""
        with self._changed:
            # Others of this process may have taken memory meanwhile.
            self._dispatcher.measure()
            running = self._claim()
            if running is None and not self._closed:
                self._changed.wait(self._config.idle_s)
        return running is None or self._carry_out(running)

    # Whoever waits, and whoever merges

    def _merge_until(self, reached: Callable[[], bool]) -> None:
        """Merge, or wait for others who do, until something is so, or goes wrong."""
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
                # Not raised here: what the caller inserted is in.
                self._fail(error)
                return

    def _carry_out(self, running: Running) -> bool:
        """One step, outside of the lock; False if it failed."""
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
        """Let those that share the memory of the process look too: they may be idle, and hold most of it."""
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

    # The lock is held by the callers of what follows.

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the arrangement was closed: open it again")

    def _claim(self) -> Running | None:
        """The merge that the caller is to work at next."""
        if self.paused or self._closed or self._error is not None:
            return None
        return self._dispatcher.claim()

    def _crowded(self) -> bool:
        """Whether inserts are to wait."""
        if self.paused or self._closed or self._error is not None:
            return False
        return self._dispatcher.crowded

    def _tell_if_stuck(self) -> None:
        if not self.paused and self._dispatcher.due():
            self._error = _no_room()

    def _wake(self) -> None:
        """Let the threads look; start them when there is something to do for the first time."""
        if not self._threads and self._dispatcher.due():
            for i in range(self._config.merge_workers):
                self._threads.append(self._env.spawner.spawn(f"tidelake-merger-{i}", self._work))
        self._changed.notify_all()


def _sharing(merger: Merger) -> list[Merger]:
    """The others that share the memory of this process."""
    with _registering:
        return [
            other
            for other in _SHARING
            if other is not merger and other.room.machine is merger.room.machine and other._pid == os.getpid()
        ]


# Those with a budget of the process.
_SHARING: WeakSet[Merger] = WeakSet()
_registering = threading.Lock()


def _no_room() -> StoreUnavailable:
    return StoreUnavailable(
        "the disk has no room for what a merge would write: free space, or lower disk_reserve_bytes", True
    )


def _release(batches: Sequence[Batch]) -> None:
    for batch in batches:
        batch.release()
