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

from tidelake.env import Counters, Env
from tidelake.lake.lake import Lake
from tidelake.shard.overlap import sequential
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.protocols import BlobStore
from tidelake.store.url import Stores
from tidelake.testing.simulation.baton import Baton, Process, Strand
from tidelake.testing.simulation.options import Options

URL = "memory://simulation"
_START_MS = 1_700_000_000_000


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
        self.seed = seed
        draw = random.Random(f"{seed} world")  # noqa: S311 - a run must repeat
        self.options = options or Options.drawn(random.Random(f"{seed} options"))  # noqa: S311
        self.baton = Baton(random.Random(f"{seed} baton"), steps)  # noqa: S311
        self.draw = draw
        self.injected: Counter[str] = Counter()
        self.trace = Trace()
        self.processes: list[Process] = []
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
        """Add a line to the trace; nothing once the run is ending."""
        if self.baton.over:
            return
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
