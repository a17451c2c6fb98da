"""Spines that a test drives by hand: no threads, memory and disk as the test says, tiny levels."""

from collections.abc import Callable, Iterable
from pathlib import Path

from tests.arrangement.arrangement_rows import Update, layout, sorted_rows
from tidelake.arrangement.batch.batch import IndexBatch
from tidelake.arrangement.merge.levels import LEVELS, Fans
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.config import MIB
from tidelake.data.kernel.merge import merge
from tidelake.env import Clock, Env, IdSource, RandomIds, Spawned, Stop, SystemClock
from tidelake.model.query import AsOf

LAYOUT = layout("int")
BUDGET = 100 * MIB


class NotStarted:
    """A thread that was never started."""

    def stop(self) -> None:
        """Nothing to stop."""


class NoThreads:
    """A spawner that starts nothing and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.works: list[Callable[[Stop], None]] = []

    def spawn(self, name: str, work: Callable[[Stop], None]) -> Spawned:
        self.asked.append(name)
        self.works.append(work)
        return NotStarted()


class Looks:
    """Ends a thread after so many looks."""

    def __init__(self, count: int) -> None:
        self.left = count

    def wait(self, timeout: float) -> bool:
        self.left -= 1
        return self.left < 0


class SetMachine:
    """A machine with as much memory in use and disk left as a test sets."""

    def __init__(self) -> None:
        self.share = 0.0
        self.free = 1 << 40

    def resident_bytes(self) -> int:
        return int(self.share * BUDGET)

    def free_bytes(self, directory: str) -> int:
        return self.free


def tiny(**settings: object) -> ArrangementConfig:
    """Level 0 up to 4 rows; merges from two batches on; the process may hold `BUDGET`."""
    plain: dict[str, object] = {
        "level_rows": 4,
        "fans": Fans((2,) * LEVELS, (4,) * LEVELS),
        "batches_max": 12,
        "merge_chunk_rows": 16,
        "process_budget_bytes": BUDGET,
        "disk_reserve_bytes": 0,
    }
    return ArrangementConfig(**(plain | settings))  # type: ignore[arg-type]


class Rig:
    """A spine in a folder, and what it needs."""

    def __init__(
        self,
        folder: Path,
        config: ArrangementConfig | None = None,
        ids: IdSource | None = None,
        machine: SetMachine | None = None,
        spawner: NoThreads | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.machine = machine if machine is not None else SetMachine()
        self.spawner = spawner if spawner is not None else NoThreads()
        self.spine = AsyncSpine(
            LAYOUT,
            config if config is not None else tiny(),
            directory=str(folder),
            env=Env(
                clock=clock if clock is not None else SystemClock(),
                spawner=self.spawner,
                ids=ids if ids is not None else RandomIds(),
            ),
            machine=self.machine,
        )

    def append(self, *updates: Update) -> bool:
        return self.spine.append_nowait(sorted_rows(updates, LAYOUT))

    def append_keys(self, keys: Iterable[int], *, time: int = 0, diff: int = 1) -> bool:
        return self.append(*(row(key, time, diff) for key in keys))

    def merge_due(self) -> int:
        """Step until there is nothing to do; how many steps it took."""
        steps = 0
        while self.spine.step():
            steps += 1
        return steps

    def loose(self) -> list[int]:
        return [level.loose for level in self.spine.report().levels]

    def held_keys(self) -> list[int]:
        """The keys of all rows that reads would see as of since or later, unfiltered."""
        return [r[0] for r in self.rows()]

    def rows(self) -> list[tuple[object, ...]]:
        """All updates, consolidated."""
        batches, _ = self.spine.held()
        try:
            return folded(batches)
        finally:
            for batch in batches:
                batch.release()

    def damage(self) -> Callable[[], object]:
        """Append three batches that are kept on disk, and damage the file of one; gives what mends it."""
        self.machine.share = 0.6
        for start in (0, 100, 200):
            self.append_keys(range(start, start + 100))
        victim = self.folder / self.files()[0]
        data = victim.read_bytes()
        victim.write_bytes(bytes([data[0]]) + bytes(len(data) - 1))
        return lambda: victim.write_bytes(data)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


def folded(batches: list[IndexBatch], as_of: int = 1000) -> list[tuple[object, ...]]:
    """What batches hold in sum as of a time: (key, multiplicity)."""
    runs = [batch.scan() for batch in batches]
    merged = merge(runs, LAYOUT.schema, LAYOUT.domain, AsOf(as_of), 1000)
    return [(row["k0"], row["v"], row["_diff"]) for rows in merged for row in rows.to_pylist()]


def row(key: int, time: int = 0, diff: int = 1, value: str = "a") -> Update:
    return ((key, value, 0.5), time, diff)
