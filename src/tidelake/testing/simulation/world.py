"""The world of a simulation: true stores, true time, and what each process sees of them.

Owns the faults: what becomes of a call is decided here, by the seed. Must not know what is stored, nor
what the clients are for.

INVARIANT: a fault tells the truth (see `tidelake.testing.faults`); a dead process reaches nothing.
"""

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tidelake.env import Counters, Env, Spawned, Stop
from tidelake.errors import OutcomeUnknown, StoreUnavailable, TidelakeError
from tidelake.lake.lake import Lake
from tidelake.shard.overlap import sequential
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.protocols import BlobStore
from tidelake.store.retrying import RetryingBlobStore, RetryingVersionLog
from tidelake.store.url import Stores
from tidelake.testing.faults import FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from tidelake.testing.simulation.baton import Baton, Process, Strand
from tidelake.testing.simulation.options import Options

T = TypeVar("T")

URL = "memory://simulation"
_START_MS = 1_700_000_000_000
_WRITES = frozenset(("blob.put", "blob.delete", "log.compare_and_set", "log.truncate", "log.delete"))


@dataclass
class Trace:
    """The last lines of what happened, and a digest of all of them."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=400))
    digest: int = 0

    def add(self, line: str) -> None:
        """One more line."""
        self.lines.append(line)
        self.digest = zlib.crc32(line.encode(), self.digest)


class World:
    """Everything that is outside of the processes.

    Attributes:
        baton: who runs, and the time.
        stores: the true stores, without faults; they outlive every process.
        options: of the run.
        injected: faults by kind.
        trace: of the run.
    """

    def __init__(self, seed: int, steps: int, options: Options | None = None) -> None:
        draw = random.Random(f"{seed} world")  # noqa: S311 - a run must repeat
        self.options = options or Options.drawn(random.Random(f"{seed} options"))  # noqa: S311
        self.baton = Baton(random.Random(f"{seed} baton"), steps)  # noqa: S311
        self.draw = draw
        self.injected: Counter[str] = Counter()
        self.trace = Trace()
        self.processes: list[SimulatedProcess] = []
        self.acting: object = None
        self._id_draw = random.Random(f"{seed} ids")  # noqa: S311
        self.stores = Stores(make_blobs(self), MemoryVersionLog())

    def start(self, process: Process, name: str, work: Callable[[], None], delay_us: int = 0) -> Strand:
        """Start a thread whose work in the product starts no real threads."""

        def alone() -> None:
            with sequential():
                work()

        return self.baton.start(process, name, alone, delay_us)

    def actor(self) -> object:
        """What the thread that runs is about; None outside of the run."""
        return self.baton.current.about if self.baton.running else None

    @contextmanager
    def acts(self, actor: object) -> Iterator[None]:
        """Effects on the stores inside of the block are this actor's doing."""
        before, self.acting = self.acting, actor
        try:
            yield
        finally:
            self.acting = before

    def fresh(self) -> str:
        """An id that no process has used; see `IdSource`."""
        return f"{self._id_draw.getrandbits(128):032x}"

    def true_ms(self) -> int:
        """True time, milliseconds since 1970 UTC."""
        return _START_MS + self.baton.now_us // 1000

    def now_ms(self) -> int:
        """True time, for the stores; see `Clock`."""
        return self.true_ms()

    def monotonic_s(self) -> float:
        """True time since the start, for the stores."""
        return self.baton.now_us / 1e6

    def sleep(self, seconds: float) -> None:
        """Time passes; only outside of the run."""
        self.baton.now_us += int(seconds * 1e6)

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        current = self.baton.current.name if self.baton.running else "world"
        self.trace.add(f"{self.baton.steps:6d} {self.baton.now_us / 1e6:10.4f} {current:14s} {line}")

    def inject(self, kind: str) -> None:
        """Count a fault."""
        self.injected[kind] += 1
        self.note(f"! {kind}")

    def crash_machine(self) -> None:
        """All processes die at once; what was not synced is lost."""
        for process in self.processes:
            process.dead = True

    def calm_lake(self) -> Lake:
        """The lake as a process sees it that nothing happens to, for before and after the run."""
        env = Env(self, self, Counters())
        return Lake(URL, self.stores, self.options.config, env)


def make_blobs(world: World) -> BlobStore:
    """The true blob store of a world. The one place where it is made."""
    return MemoryBlobStore(world)


class SimulatedProcess(Process):
    """A process: its own clock, its own handles, its own share of the faults.

    It is the clock, the source of ids and the spawner of its `Env`, and decides the faults of its stores.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name)
        self.world = world
        skew_ms = world.options.skew_ms_max
        self._offset_ms = world.draw.randint(-skew_ms, skew_ms)
        self._started_us = world.baton.now_us
        self.recorder = Counters()
        world.processes.append(self)

    def lake(self) -> Lake:
        """The lake, opened by this process."""
        env = Env(self, self, self.recorder, self)
        deadline_s = self.world.options.config.retry_deadline_s
        draw = self.world.draw.random
        blobs = RetryingBlobStore(FaultyBlobStore(self.world.stores.blobs, self), self, deadline_s, draw)
        log = RetryingVersionLog(FaultyVersionLog(self.world.stores.log, self), self, deadline_s, draw)
        return Lake(URL, Stores(blobs, log), self.world.options.config, env)

    def fresh(self) -> str:
        """A fresh id; see `IdSource`."""
        return self.world.fresh()

    def now_ms(self) -> int:
        """The wall clock of this process, wrong by its skew and its jumps."""
        self._pause("now")
        return self.world.true_ms() + self._offset_ms

    def monotonic_s(self) -> float:
        """Seconds since the process started."""
        self._pause("monotonic")
        return (self.world.baton.now_us - self._started_us) / 1e6

    def sleep(self, seconds: float) -> None:
        """Wait in simulated time."""
        self._alive()
        self.world.note(f"sleep {seconds:.3f}")
        self.world.baton.pause(self.world.baton.now_us + max(1, int(seconds * 1e6)))

    def spawn(self, name: str, work: Callable[[Stop], None]) -> Spawned:
        """Start a thread of this process, under the same baton."""
        self._alive()
        return _SimulatedThread(self, name, work)

    def run(self, operation: str, call: Callable[[], T]) -> T:
        """Carry out a store call as the seed decides; see `Faults`."""
        self._pause(operation)
        world, draw = self.world, self.world.draw
        actor = world.actor()
        world.baton.now_us += 1 + int(draw.expovariate(1 / 500))
        fault = self._drawn(operation)
        if fault:
            world.inject(fault)
        match fault:
            case "unavailable":
                raise StoreUnavailable(f"injected: {operation} is unavailable")
            case "unknown, without effect":
                raise OutcomeUnknown(f"injected: {operation} did not answer")
            case "unknown, effect later":
                world.baton.at(
                    world.baton.now_us + int(draw.expovariate(1 / 2e6)), lambda: self._late(operation, actor, call)
                )
                raise OutcomeUnknown(f"injected: {operation} did not answer")
            case "delay":
                self._wait(draw.choice((0.01, 0.1, 1.0, 5.0)))
        is_after = fault == "crash" and draw.random() < 0.5
        if fault == "crash" and not is_after:
            raise self._crash(operation)
        with world.acts(actor):
            answer = call()
        match fault:
            case "crash":
                raise self._crash(operation)
            case "unknown, after the effect":
                raise OutcomeUnknown(f"injected: {operation} did not answer")
            case "slow reply":
                self._wait(draw.choice((0.01, 0.1, 1.0, 5.0)))
        return answer

    def _late(self, operation: str, actor: object, call: Callable[[], T]) -> None:
        """The effect of a call whose caller was told that nobody knows; its answer goes nowhere."""
        self.world.note(f"late {operation} of {self.name}")
        try:
            with self.world.acts(actor):
                call()
        except TidelakeError as error:
            self.world.note(f"late {operation}: {type(error).__name__}")

    def _drawn(self, operation: str) -> str:
        """The fault of a call that is under way; those of the whole process happen here at once."""
        draw, rates = self.world.draw, self.world.options.rates
        point = draw.random()
        for kind, rate in rates.items():
            point -= rate
            if point < 0:
                break
        else:
            return ""
        match kind:
            case "stall":
                self.world.inject(kind)
                self.stalled_us = self.world.baton.now_us + int(draw.choice((1, 5, 20, 60)) * 1e6)
                self.world.baton.pause()
            case "clock jump":
                self.world.inject(kind)
                self._offset_ms += draw.choice((-60_000, -1_000, 1_000, 60_000))
            case "machine crash":
                self.world.inject(kind)
                self.world.crash_machine()
                raise SimulatedCrash(f"the machine crashed before {operation}")
            case "unknown, effect later" if operation not in _WRITES:
                return "unknown, without effect"
            case _:
                return kind
        return ""

    def _crash(self, operation: str) -> SimulatedCrash:
        self.dead = True
        return SimulatedCrash(f"{self.name} crashed in {operation}")

    def _wait(self, seconds: float) -> None:
        self.world.baton.pause(self.world.baton.now_us + int(seconds * 1e6))

    def _pause(self, what: str) -> None:
        self._alive()
        self.world.baton.pause()
        self.world.note(what)

    def _alive(self) -> None:
        # Also for a generator of a dead process that is closed late, by whichever thread.
        if self.dead:
            raise SimulatedCrash(f"{self.name} is dead")


class _SimulatedThread:
    """A thread that a process started: what tells it to stop, and what waits for its end."""

    def __init__(self, process: SimulatedProcess, name: str, work: Callable[[Stop], None]) -> None:
        self._process, self._baton = process, process.world.baton
        self._stopped = False
        self._strand: Strand = process.world.start(process, f"{process.name}/{name}", lambda: work(self))

    def wait(self, timeout: float) -> bool:
        """Pause; see `Stop`."""
        self._process._alive()
        self._baton.pause(self._baton.now_us + int(timeout * 1e6), lambda: self._stopped)
        return self._stopped

    def stop(self) -> None:
        """Tell it to end, and wait; see `Spawned`."""
        self._stopped = True
        if self._strand is not self._baton.current and not self._process.dead:
            self._baton.block(lambda: self._strand.ended)
