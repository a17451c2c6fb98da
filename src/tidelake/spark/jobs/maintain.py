"""Maintenance of many collections with Spark, all merges that are due at once as one job.

Owns how the merges of several collections become jobs. What is due is decided for each collection by itself,
in a thread of the driver; when all of them wait for key ranges to be merged, these are one job. So a lake of
many small collections costs a few jobs, not some for each.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession

from tidelake.env import Spawned, Stop, SystemClock, ThreadSpawner
from tidelake.errors import Closed, TidelakeError
from tidelake.lake.collection import Collection
from tidelake.lake.lake import Lake
from tidelake.shard.upkeep.compactor import Workers
from tidelake.shard.upkeep.maintain import MaintenanceReport
from tidelake.spark.jobs.merge import carried_out
from tidelake.spark.jobs.rounds import Rounds
from tidelake.spark.tasks import described, slots

# Collections that are looked after at once, each by a thread that mostly waits.
_AT_ONCE = 64


@dataclass(frozen=True)
class Round:
    """One job, before it runs.

    Attributes:
        number: from 1 on.
        collections: whose merges are in it.
        key_ranges: that it merges, each by a task.
    """

    number: int
    collections: int
    key_ranges: int


@dataclass(frozen=True)
class MaintainReport:
    """What `maintain` did.

    Attributes:
        collections: by name, what was done; of those that failed nothing is told.
        failed: by name, why maintenance of a collection ended early. What was merged before is in.
        rounds: jobs of Spark.
        key_ranges: that they merged.
        seconds: wall clock.
    """

    collections: dict[str, MaintenanceReport]
    failed: dict[str, TidelakeError]
    rounds: int
    key_ranges: int
    seconds: float


Progress = Callable[[Round], None]


def maintain(
    spark: SparkSession,
    lake: Lake,
    names: Sequence[str] | None = None,
    *,
    parallelism: int | None = None,
    progress: Progress | None = None,
) -> MaintainReport:
    """Bring collections to rest as `Collection.maintain` does, with the merges as jobs of Spark.

    Args:
        spark: the session.
        lake: whose collections.
        names: of the collections; default: all, and drops that were interrupted are finished first.
        parallelism: key ranges of a merge at least, if it is large enough; default: as many as the session
            runs tasks at once.
        progress: is told of each job before it runs.

    Returns:
        What was done. A collection whose merge cannot be done keeps no other one waiting: it is in `failed`.

    Raises:
        CollectionNotFound: there is no collection of that name; nothing was done.
    """
    clock = SystemClock()
    started_s = clock.monotonic_s()
    if names is None:
        # First: what is half dropped is in the list, and cannot be opened.
        lake.collect()
    unopened: dict[str, TidelakeError] = {}
    opened = (
        lake.collections(unopened.__setitem__)
        if names is None
        else map(lake.collection, dict.fromkeys(names))
    )
    todo = deque(opened)
    crew = _Crew(todo, parallelism or slots(spark), failed=unopened)
    try:
        rounds, key_ranges = _carry_out(spark, crew.rounds, progress)
    finally:
        crew.stop()
    if crew.bugs:
        raise crew.bugs[0]
    seconds = clock.monotonic_s() - started_s
    return MaintainReport(crew.reports, crew.failed, rounds, key_ranges, seconds)


def _carry_out(spark: SparkSession, rounds: Rounds, progress: Progress | None) -> tuple[int, int]:
    """Run a job for each round until no member is left; how many, and of how many key ranges."""
    number = key_ranges = 0
    while asked := rounds.gather():
        tasks = [task for one in asked for task in one.tasks]
        number, key_ranges = number + 1, key_ranges + len(tasks)
        if progress is not None:
            progress(Round(number, len(asked), len(tasks)))
        text = f"tidelake: maintain, round {number}: {len(tasks)} key ranges of {len(asked)} collections"
        with described(spark, text):
            outputs = carried_out(spark, tasks)
        rounds.answer(asked, outputs)
    return number, key_ranges


@dataclass
class _Crew:
    """Threads that maintain collections, one after the other each, and what became of these."""

    todo: deque[Collection]
    width: int
    reports: dict[str, MaintenanceReport] = field(default_factory=dict)
    failed: dict[str, TidelakeError] = field(default_factory=dict)
    bugs: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        members = min(len(self.todo), _AT_ONCE)
        self.rounds = Rounds(members)
        self._lock = threading.Lock()
        workers = Workers(self.rounds.run, self.width)
        spawn = ThreadSpawner().spawn
        self._threads: list[Spawned] = [
            spawn(f"tidelake-maintain-{i}", partial(self._work, workers)) for i in range(members)
        ]

    def stop(self) -> None:
        """Let nobody begin anything more, and wait until all have ended."""
        self.todo.clear()
        self.rounds.end()
        for thread in self._threads:
            thread.stop()

    def _work(self, workers: Workers, stop: Stop) -> None:
        try:
            while not stop.wait(0):
                try:
                    collection = self.todo.popleft()
                except IndexError:
                    return
                self._maintain(collection, workers)
        except Exception as error:
            # A thread has nobody to raise it to; `maintain` does.
            self.bugs.append(error)
        finally:
            self.rounds.leave()

    def _maintain(self, collection: Collection, workers: Workers) -> None:
        try:
            report = collection.maintain(workers=workers)
        except TidelakeError as error:
            with self._lock:
                self.failed[collection.name] = error
            if isinstance(error, Closed):
                self.todo.clear()
            return
        with self._lock:
            self.reports[collection.name] = report
