"""A process of the simulation: its clock, its handles, and its share of the faults.

Owns the fate of each store call of one process. Must not know what is stored, nor what the process is for.

INVARIANT: a fault tells the truth (see `tests.doubles.faults`); a dead process reaches nothing.
"""

import math
from collections.abc import Callable
from typing import TypeVar

from simulation.objects import WeakBucket
from simulation.scheduler import Process, Strand
from simulation.witness import Observer, WitnessedBlobs
from simulation.world import CLOCK_JUMP_MS, URL, World
from tests.doubles.faults import FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from tidelake.env import Clock, Counters, Env, Spawned, Stop
from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable, TidelakeError
from tidelake.lake.api.lake import Lake
from tidelake.store.clock import StoreClock
from tidelake.store.objects.clock import store_ms
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.protocols import VersionLog
from tidelake.store.retrying import Retry
from tidelake.store.url import Stores

T = TypeVar("T")

_SWITCH_AT_CLOCK = 0.05
_COMMITS = ("log.compare_and_set", "log.put_new")
# Commits get more faults than other calls: what happens around a commit matters most.
_COMMITS_WORSE = 4
_LOG_WRITES = frozenset((*_COMMITS, "log.put", "log.truncate", "log.delete"))
_WRITES = _LOG_WRITES | {"blob.put", "blob.delete", "blob.delete_all"}
_FILE_WRITES = frozenset(f"file.{name}" for name in ("create", "write", "fsync", "link", "unlink"))
_LOG_FILE_WRITES = _FILE_WRITES | {
    f"file.{name}" for name in ("pwrite", "datasync", "rename", "mkdir", "rmdir")
}
_LATER_S = (0.02, 0.2, 2.0, 20.0)
_OF_PROCESSES = frozenset(("stall", "outage", "clock jump", "machine crash"))


class SimulatedProcess(Process):
    """A process with its own clock, handles and faults.

    It is the clock, the source of ids and the spawner of its `Env`, and it decides the faults of its stores.
    """

    def __init__(self, world: World, observer: Observer, name: str) -> None:
        super().__init__(name)
        self.world, self._observer = world, observer
        self._files = world.disk.process(self._at_file) if world.disk else None
        self._log_files = world.disk.process(self._at_log_file) if world.disk else None
        skew_ms = world.options.skew_ms_max
        self._offset_ms = world.draw.randint(-skew_ms, skew_ms)
        self._started_us = world.scheduler.now_us
        self._outage_us, self._outage_of = 0, ""
        self.recorder = Counters()
        world.processes.append(self)

    def lake(self) -> Lake:
        """Open the lake in this process."""
        clock, log = self.clock_and_log()
        env = Env(clock, self, self.recorder, self)
        deadline_s = self.world.options.config.retry_deadline_s
        draw = self.world.draw.random
        blobs = WitnessedBlobs(self.world.blobs(self._files), self._observer)
        stores = Stores(FaultyBlobStore(blobs, self), log, clock=None if clock is self else clock).layered(
            Retry(self, deadline_s, draw).layer
        )
        return Lake(URL, stores, self.world.options.config, env)

    def clock_and_log(self) -> tuple[Clock, VersionLog]:
        """The clock that tells ages, and the log, with the faults of this process."""
        world = self.world
        if world.options.grace_s is None:
            return self, FaultyVersionLog(world.log(self._observer, self._log_files), self)
        true = world.bucket(self._observer)
        weak = WeakBucket(true, self, world.draw, world.options.refused, self._put_later)
        return StoreClock(lambda: store_ms(true), self), ObjectVersionLog(weak, self, world.options.grace_s)

    def _put_later(self, put: Callable[[], object]) -> None:
        """Let a put that was refused arrive later."""
        world, actor = self.world, self.world.acting
        world.inject("refused, and later there")

        def arrive() -> None:
            with world.acts(actor):
                put()

        self._later("log.put_new", arrive)

    def fresh(self) -> str:
        """A fresh id; see `IdSource`."""
        return self.world.fresh()

    def now_ms(self) -> int:
        """The wall clock of this process, which is wrong by its skew and its jumps."""
        if self.world.draw.random() < _SWITCH_AT_CLOCK:
            self._pause("now")
        self._alive()
        return self.world.true_ms() + self._offset_ms

    def monotonic_s(self) -> float:
        """Seconds since the process started."""
        # Rarely switch here: every retry asks twice, and a switch at the next store call shows the same bugs.
        if self.world.draw.random() < _SWITCH_AT_CLOCK:
            self._pause("monotonic")
        self._alive()
        return (self.world.scheduler.now_us - self._started_us) / 1e6

    def sleep(self, seconds: float) -> None:
        """Wait in simulated time."""
        self._alive()
        self.world.note(f"sleep {seconds:.3f}")
        self.world.scheduler.pause(self.world.scheduler.now_us + max(1, int(seconds * 1e6)))

    def spawn(self, name: str, work: Callable[[Stop], None]) -> Spawned:
        """Start a thread of this process; it waits for the same turn."""
        self._alive()
        return _SimulatedThread(self, name, work)

    def run(self, operation: str, call: Callable[[], T]) -> T:
        """Carry out a store call as the seed decides; see `Faults`."""
        self._pause(operation)
        world, draw = self.world, self.world.draw
        if world.loses_tail():
            raise self._crash_machine(operation)
        actor = world.actor()
        world.scheduler.now_us += 1 + int(draw.expovariate(1 / 500))
        fault = self._in_outage(operation) or self._drawn(operation)
        if fault:
            world.inject(fault)

        def effect() -> T:
            if not operation.startswith("log."):
                # On a simulated disk other threads may run during this call, so it must not set the actor.
                return call()
            with world.acts(actor):
                return call()

        if fault.startswith("unknown") and operation in _COMMITS and draw.random() < 0.3:
            # A commit stays undecided only if the calls that follow, which ask for its outcome, fail as well.
            self._begin_outage("log.")
        if fault == "unavailable":
            raise StoreUnavailable(f"injected: {operation} is unavailable")
        if fault == "unknown, effect later":
            self._later(operation, effect)
        if fault in ("unknown, without effect", "unknown, effect later"):
            raise OutcomeUnknown(f"injected: {operation} did not answer")
        if fault == "crash" and draw.random() < 0.5:
            raise self._crash(operation)
        if fault == "delay":
            self._wait(draw.choice((0.01, 0.1, 1.0, 5.0)))
        try:
            answer = effect()
        except CorruptionError as error:
            if not world.noticed:
                raise
            # Do what users do: stop.
            world.note(f"< {operation}: {error}")
            world.scheduler.finish()
            raise SimulatedCrash(f"{self.name} was told that {error.name} is damaged") from error
        if fault == "unknown, after the effect":
            raise OutcomeUnknown(f"injected: {operation} did not answer")
        if fault == "crash":
            raise self._crash(operation)
        if fault == "slow reply":
            self._wait(draw.choice((0.01, 0.1, 1.0, 5.0)))
        return answer

    def _begin_outage(self, of: str) -> None:
        """Let most calls of this process to the log, the blobs, or both (`""`) fail for a while."""
        self._outage_of = of
        self._outage_us = self.world.scheduler.now_us + int(self.world.draw.choice((0.3, 2, 10)) * 1e6)

    def _in_outage(self, operation: str) -> str:
        if self.world.scheduler.now_us >= self._outage_us or not operation.startswith(self._outage_of):
            return ""
        return self.world.draw.choice(("unavailable", "unavailable", "unknown, without effect", ""))

    def _later(self, operation: str, effect: Callable[[], object]) -> None:
        """Carry out a call at a later time, even if the process has died by then."""
        later_us = int(self.world.draw.choice(_LATER_S) * 1e6)
        self.world.scheduler.at(self.world.scheduler.now_us + later_us, lambda: self._late(operation, effect))

    def _late(self, operation: str, effect: Callable[[], T]) -> None:
        """Carry out a call whose caller was told that the outcome is unknown; drop its answer."""
        self.world.note(f"late {operation} of {self.name}")
        try:
            effect()
        except TidelakeError as error:
            self.world.note(f"late {operation}: {type(error).__name__}")

    def _drawn(self, operation: str) -> str:
        """Draw the fault of a call. Faults of the whole process take effect here."""
        world, draw = self.world, self.world.draw
        kind, point = "", draw.random() / (_COMMITS_WORSE if operation in _COMMITS else 1)
        for name, rate in world.options.rates.items():
            point -= rate
            if point < 0:
                kind = name
                break
        if kind == "unknown, effect later" and operation not in self._late_writes:
            return "unknown, without effect"
        if kind not in _OF_PROCESSES:
            return kind
        world.inject(kind)
        if kind == "stall":
            self.stalled_us = world.scheduler.now_us + int(draw.choice((1, 5, 20, 60)) * 1e6)
            world.scheduler.pause()
        elif kind == "outage":
            self._begin_outage(draw.choice(("", "log.", "blob.")))
        elif kind == "clock jump":
            self._offset_ms += draw.choice((-CLOCK_JUMP_MS, -1_000, 1_000, CLOCK_JUMP_MS))
        elif kind == "machine crash":
            raise self._crash_machine(operation)
        return ""

    @property
    def _late_writes(self) -> frozenset[str]:
        """What may still have its effect after the process has died: nothing that it does to files."""
        if self.world.options.framed:
            return frozenset()
        return _LOG_WRITES if self._files else _WRITES

    def _crash(self, operation: str) -> SimulatedCrash:
        self.dead = True
        for files in (self._files, self._log_files):
            if files is not None:
                files.kill()
        return SimulatedCrash(f"{self.name} crashed in {operation}")

    def _at_file(self, operation: str) -> None:
        """Before an operation on the disk, let other threads run, and maybe crash the process or machine."""
        if operation not in _FILE_WRITES:
            return
        self._pause(operation)
        self._crash_at_file(operation)

    def _at_log_file(self, operation: str) -> None:
        """As `_at_file`. Other threads wait, so that the order of entries is that in which they are seen."""
        if operation in _LOG_FILE_WRITES:
            self._crash_at_file(operation)

    def _crash_at_file(self, operation: str) -> None:
        rates = self.world.options.rates
        point = self.world.draw.random()
        if point < rates.get("crash", 0):
            self.world.inject("crash")
            raise self._crash(operation)
        if point > 1 - rates.get("machine crash", 0):
            self.world.inject("machine crash")
            raise self._crash_machine(operation)

    def _crash_machine(self, operation: str) -> SimulatedCrash:
        self.world.crash_machine()
        self._observer.survived()
        return SimulatedCrash(f"the machine crashed before {operation}")

    def _wait(self, seconds: float) -> None:
        self.world.scheduler.pause(self.world.scheduler.now_us + int(seconds * 1e6))

    def _pause(self, what: str) -> None:
        self._alive()
        self.world.scheduler.pause()
        self.world.note(what)

    def _alive(self) -> None:
        # Also called when a generator of a dead process is closed late, by any thread.
        if self.dead:
            raise SimulatedCrash(f"{self.name} is dead")


class _SimulatedThread:
    """A thread that a process started; its own `Stop`, and the `Spawned` of its starter."""

    def __init__(self, process: SimulatedProcess, name: str, work: Callable[[Stop], None]) -> None:
        self._process, self._baton = process, process.world.scheduler
        self._stopped = False
        self._strand: Strand = process.world.start(process, f"{process.name}/{name}", lambda: work(self))

    def wait(self, timeout: float) -> bool:
        """Pause; see `Stop`."""
        self._process._alive()
        # Rounded up: repeated waits of less than a microsecond would never end.
        self._baton.pause(self._baton.now_us + math.ceil(timeout * 1e6), lambda: self._stopped)
        return self._stopped

    def stop(self) -> None:
        """Tell it to end, and wait; see `Spawned`."""
        self._stopped = True
        if self._strand is not self._baton.current and not self._process.dead:
            self._baton.block(lambda: self._strand.ended)
