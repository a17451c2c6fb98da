"""Maintenance of many collections with Spark; merges of several collections share a job.

Owns how the merges of several collections become jobs. For each collection a thread of the driver decides
what is due. When all threads wait for key ranges to be merged, these ranges become one job. So a lake of many
small collections needs a few jobs in all, not several for each.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession

from tidelake.env import Spawned, Spawner, Stop
from tidelake.errors import Closed, TidelakeError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.shard.upkeep.compactor import Workers
from tidelake.shard.upkeep.reports import MaintenanceReport
from tidelake.spark.jobs.merge import carried_out
from tidelake.spark.jobs.rounds import Rounds
from tidelake.spark.tasks import described, slots

# So many collections are maintained at once, each by a thread that mostly waits.
_AT_ONCE = 64


@dataclass(frozen=True)
class Round:
    """One job, before it runs.

    Attributes:
        number: number of the round, from 1.
        collections: number of collections with merges in it.
        key_ranges: number of key ranges that it merges, each by a task.
    """

    number: int
    collections: int
    key_ranges: int


@dataclass(frozen=True)
class MaintainReport:
    """What `maintain` did.

    Attributes:
        collections: reports by name, without the collections that failed.
        failed: errors by name, of collections whose maintenance ended early. Earlier merges are committed.
        rounds: number of Spark jobs.
        key_ranges: number of key ranges that they merged.
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
    """Maintain collections as `Collection.maintain` does, with the merges as Spark jobs.

    Args:
        spark: the session.
        lake: the lake.
        names: the collections; default: all, after finishing interrupted drops.
        parallelism: the number of key ranges of a large merge; default: as many as the session runs tasks at
            once.
        progress: called before each job.

    Returns:
        What was done. A collection whose merge fails does not block the others: it is in `failed`.

    Raises:
        CollectionNotFound: there is no collection of that name; nothing was done.
    """
    clock = lake.env.clock
    started_s = clock.monotonic_s()
    if names is None:
        # Collect first: a half-dropped collection is still listed, but cannot be opened.
        lake.collect()
    unopened: dict[str, TidelakeError] = {}
    opened = (
        lake.collections(unopened.__setitem__)
        if names is None
        else map(lake.collection, dict.fromkeys(names))
    )
    todo = deque(opened)
    crew = _Crew(todo, parallelism or slots(spark), lake.env.spawner, failed=unopened)
    try:
        rounds, key_ranges = _carry_out(spark, crew.rounds, progress)
    finally:
        crew.stop()
    if crew.bugs:
        raise crew.bugs[0]
    seconds = clock.monotonic_s() - started_s
    return MaintainReport(crew.reports, crew.failed, rounds, key_ranges, seconds)


def _carry_out(spark: SparkSession, rounds: Rounds, progress: Progress | None) -> tuple[int, int]:
    """Run a job for each round until no member is left. Returns how many rounds and key ranges there were."""
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
    """Threads, each of which maintains one collection after the other; and the results."""

    todo: deque[Collection]
    width: int
    spawner: Spawner
    reports: dict[str, MaintenanceReport] = field(default_factory=dict)
    failed: dict[str, TidelakeError] = field(default_factory=dict)
    bugs: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        members = min(len(self.todo), _AT_ONCE)
        self.rounds = Rounds(members)
        self._lock = threading.Lock()
        workers = Workers(self.rounds.run, self.width)
        self._threads: list[Spawned] = [
            self.spawner.spawn(f"tidelake-maintain-{i}", partial(self._work, workers)) for i in range(members)
        ]

    def stop(self) -> None:
        """Start no further collection, and wait until all threads have ended."""
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
            # Keep it for `maintain` to raise: a thread has no caller.
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
