"""The world of a simulation: true stores, true time, and what all processes share.

Owns the seeded choices about the world, and the trace of it. Must not know what is stored, nor what the
clients are for.
"""

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from simulation.objects import TrueBucket, WitnessedBucket
from simulation.options import Options
from simulation.scheduler import Process, Scheduler, Strand
from simulation.seenlog import SeenEntries, SeenLog
from simulation.tails import LosingLog
from simulation.witness import Actor, Observer, WitnessedBlobs, WitnessedLog
from tests.doubles.files import SimulatedDisk
from tidelake.env import Counters, Env, Spawned, Stop
from tidelake.errors import BlobNotFound
from tidelake.lake.api.lake import Lake
from tidelake.shard.engine.overlap import sequential
from tidelake.store.files import Files
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.local import LocalBlobStore
from tidelake.store.memory import MemoryBlobStore
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.protocols import BlobStore, VersionLog
from tidelake.store.url import Stores

URL = "memory://simulation"
CLOCK_JUMP_MS = 60_000
_NOBODY = Actor("world", None)
_ROOT, _LOG_ROOT = "/simulated/blobs", "/simulated/log"
_START_MS = 1_700_000_000_000


@dataclass
class Trace:
    """The last lines of the trace, and a digest of all its lines."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=400))
    digest: int = 0

    def add(self, line: str) -> None:
        """Append a line."""
        self.lines.append(line)
        self.digest = zlib.crc32(line.encode(), self.digest)


class World:
    """Everything outside the processes.

    Attributes:
        scheduler: says which thread runs, and holds the simulated time.
        disk: the disk that holds the blobs; None if they are in a memory store, which loses nothing.
        options: the options of the run.
        injected: count of faults by kind.
        trace: the trace of the run.
        lost: key of the log that has lost its newest entries; None if no log has.
    """

    def __init__(self, seed: int, steps: int, options: Options | None = None) -> None:
        self.seed = seed
        draw = random.Random(f"{seed} world")  # noqa: S311 - a run must repeat
        self.options = options or Options.drawn(random.Random(f"{seed} options"))  # noqa: S311
        self.scheduler = Scheduler(random.Random(f"{seed} baton"), steps)  # noqa: S311
        self.draw = draw
        self.injected: Counter[str] = Counter()
        self.trace = Trace()
        self.processes: list[Process] = []
        self.acting = _NOBODY
        self._drawn: dict[str, object] = {}
        self._id_draw = random.Random(f"{seed} ids")  # noqa: S311
        self._true_log, self._memory_blobs = LosingLog(), MemoryBlobStore(self)
        self._objects = TrueBucket(self, page=random.Random(f"{seed} page").choice((2, 5, 1000)))  # noqa: S311
        self._tails = random.Random(f"{seed} tails")  # noqa: S311
        self._loss_at = self._tails.randrange(steps // 8, steps) if self.options.loses_tail else None
        self.lost: str | None = None
        self._seen = SeenEntries()
        self.disk = SimulatedDisk(self, self.options.skipped_flush) if self.options.on_disk else None

    def bucket(self, observer: Observer) -> WitnessedBucket:
        """The true objects of the log; `observer` sees every effect on it."""
        return WitnessedBucket(self._objects, observer, lambda: self.acting, lambda: self.inject("ghost"))

    def log(self, observer: Observer, files: Files | None = None) -> VersionLog:
        """The true log; `observer` sees every effect on it.

        Args:
            observer: is told of each entry.
            files: the file system as the owning process sees it; None: the log belongs to no process.
        """
        if self.options.framed and self.disk is not None:
            framed = FramedVersionLog(_LOG_ROOT, self, files=files or self.disk.process(), clock=self)
            return SeenLog(framed, self._seen, observer, lambda: self.acting)
        if self.options.grace_s is not None:
            return ObjectVersionLog(self.bucket(observer), self, self.options.grace_s)
        return WitnessedLog(self._true_log, observer, lambda: self.acting)

    def blobs(self, files: Files | None) -> BlobStore:
        """The true blobs. This is the only place that creates the blob store.

        Args:
            files: the file system as the owning process sees it; None: the store belongs to no process.
        """
        if self.disk is None:
            return self._memory_blobs
        return LocalBlobStore(_ROOT, files or self.disk.process())

    def short_read_us(self) -> int:
        """How long a read without a hold may take and still find all parts, however wrong the clocks are."""
        options = self.options
        if options.grace_s is not None:
            # All processes tell ages by the clock of the store.
            return max(0, int(options.config.garbage_age_s * 1e6) - 10_000)
        wrong_ms = 2 * options.skew_ms_max + (CLOCK_JUMP_MS * 1000 if options.rates.get("clock jump") else 0)
        return max(0, int(options.config.garbage_age_s * 1e6) - wrong_ms * 1000)

    def is_present(self, name: str) -> bool:
        """Whether there is a blob of this name."""
        try:
            self.blobs(None).get(name, 0, 0)
        except BlobNotFound:
            return False
        return True

    def start(self, process: Process, name: str, work: Callable[[], None], delay_us: int = 0) -> Strand:
        """Start a thread. The product starts no real threads while it runs in it."""

        def alone() -> None:
            with sequential():
                work()

        return self.scheduler.start(process, name, alone, delay_us)

    def actor(self) -> Actor:
        """The actor that causes what happens now."""
        if not self.scheduler.running:
            return _NOBODY
        current = self.scheduler.current
        return Actor(current.process.name, current.about, self.scheduler.beside(current))

    def named_by(self, part: str) -> object:
        """What the thread that drew the id in a part's name was doing."""
        return self._drawn.get(part.rpartition("-")[2].partition(".")[0])

    @contextmanager
    def acts(self, actor: Actor) -> Iterator[None]:
        """Attribute the effects on the stores inside the block to this actor."""
        before, self.acting = self.acting, actor
        try:
            yield
        finally:
            self.acting = before

    def fresh(self) -> str:
        """An id that no process has used; see `IdSource`."""
        drawn = f"{self._id_draw.getrandbits(128):032x}"
        if self.scheduler.running and self.scheduler.current.about is not None:
            self._drawn[drawn] = self.scheduler.current.about
        return drawn

    def true_ms(self) -> int:
        """True time, milliseconds since 1970 UTC."""
        return _START_MS + self.scheduler.now_us // 1000

    def now_ms(self) -> int:
        """True time, for the stores; see `Clock`."""
        return self.true_ms()

    def monotonic_s(self) -> float:
        """True time since the start, for the stores."""
        return self.scheduler.now_us / 1e6

    def sleep(self, seconds: float) -> None:
        """Let time pass. Only for use outside the run."""
        self.scheduler.now_us += int(seconds * 1e6)

    def note(self, line: str) -> None:
        """Add a line to the trace. Does nothing once the run is ending."""
        if self.scheduler.over:
            return
        current = self.scheduler.current.name if self.scheduler.running else "world"
        self.trace.add(f"{self.scheduler.steps:6d} {self.scheduler.now_us / 1e6:10.4f} {current:14s} {line}")

    def inject(self, kind: str) -> None:
        """Count a fault."""
        self.injected[kind] += 1
        self.note(f"! {kind}")

    def crash_machine(self) -> None:
        """Kill all processes at once; what was not synced is lost."""
        for process in self.processes:
            process.dead = True
        self.processes.clear()
        if self.disk is not None:
            self.disk.crash(self.draw)

    def loses_tail(self) -> bool:
        """Make a log lose its newest entries if the moment for it has come; return whether it did."""
        if self._loss_at is None or self.lost is not None or self.scheduler.steps < self._loss_at:
            return False
        log = self._true_log
        long = [key for key in log.keys() if len(log.scan(key, 0)) > 1]  # noqa: SIM118 - it is no dict
        if not long:
            return False
        self.lost = self._tails.choice(long)
        log.lose(self.lost, self._tails.choice((1, 1, 2, 5)))
        self.inject("lost tail")
        self.note(f"! {self.lost} ends at {self._true_log.seqno(self.lost)} now")
        return True

    @property
    def noticed(self) -> bool:
        """Whether a client was told that a log has lost entries."""
        return self._true_log.noticed

    def calm_lake(self, observer: Observer) -> Lake:
        """A lake without faults, for use before and after the run."""
        env = Env(self, self, Counters(), _NoThreads())
        stores = Stores(WitnessedBlobs(self.blobs(None), observer), self.log(observer))
        return Lake(URL, stores, self.options.config, env)


class _NoThreads:
    """A `Spawner` for code outside the run, where no time passes: background threads never get a turn."""

    def spawn(self, name: str, work: Callable[[Stop], None]) -> Spawned:  # noqa: ARG002 - the signature
        """Start nothing; see `Spawner`."""
        return self

    def stop(self) -> None:
        """Do nothing: no thread was started."""
