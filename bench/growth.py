"""How costs grow: with commits, collections, history, unmerged runs, rows and writers, each as a curve.

    from bench.growth import run; run(10_000_000)
    python -m bench.growth collections 1000    (one curve)

Each curve is measured in a process of its own, and each point is told on standard error once it is measured.
All times but *appends s* are processor time of all threads, a median where there are several. *Memory* is
what the process has resident at that point.

- *commits*: each replaces five of `KEYS` rows; `since` follows every hundred. The lake is a directory, or an
  object store in memory with the log in it. *Append ms* is the median of the last thousand appends, *append
  mean ms* of all since the point before, merges included. *Append to new* is the median of some more appends
  over that of appends to a new collection of the same contents, in turn. *Open*, *snapshot* and *look-up*
  (ten keys) are by handles that know nothing. *Calls* are calls of the stores; of the object store they are
  requests. The clock of the lake goes on `APPEND_S` with each append, since what is kept for ten minutes
  would stay to the end otherwise. The memory beside the object store has its objects too.
- *collections*: without rows but for a few. *Open lake* is up to the first name. *Upkeep* is a round (a
  second) when no collection has been written to for an hour. *Memory* is with all of them open, as upkeep has
  them.
- *updates kept*: the reads of `bench.history`, of upserts by a zipfian law.
- *runs*: the same rows in more and more runs that are not merged.
- *rows*: appended in no order, a million at a time. *Append peak gib* is what the process had resident at
  most before the snapshot, *peak gib* after it.
- *writers*: processes that append ten rows at a time to one collection of a directory. *Tries* are those of
  writing to the log, merges included.
"""

import itertools
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

import tidelake
from bench import workload
from bench.appends import SCHEMA, SINCE_EVERY, base, inserts, medians, read, upserts
from bench.appends import rows as rows_of
from bench.contention import least_to_mean
from bench.history import CONFIG, READS, busy, filled, least, stored
from bench.history import read as read_history
from bench.peak import peak_mib
from bench.texts import texts
from tests.doubles.buckets import MemoryBucket
from tests.doubles.roundtrips import FarBucket, RoundTrips
from tidelake.env import Counters, Env, Spawned, Spawner, Stop, ThreadSpawner
from tidelake.process import PerProcess
from tidelake.shard.runs import partcaches
from tidelake.state.core.codec import encode_state
from tidelake.store.metered import metered
from tidelake.store.objects.blobs import ObjectBlobStore
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.url import Stores

# Of commits: rows that are replaced, appends whose median counts, keys looked up, handles that read.
KEYS, STRETCH, LOOKED_UP, HANDLES = 10_000, 1_000, 10, 5
# Appends in turn with those to a new collection, since other work of the machine makes both slower.
IN_TURN = 300
# By the clock of the lake, which is moved on: what is kept for ten minutes goes amid the appends.
APPEND_S = 0.1
# Collections that are used, of all; and rounds of upkeep after an hour without writes, a second each.
SAMPLE, RESTING_S, ROUNDS = 20, 3_600.0, 60
CHUNK_ROWS, HISTORY_ROWS = 1_000_000, 10_000
RUNS, WRITERS, WRITERS_S, AT_ONCE = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), 5.0, 2
Row = dict[str, float | list[float]]
Points = Iterator[tuple[str, Row]]


def points(first: int, last: int) -> list[int]:
    """Where a curve is looked at: 1, 3, 10, 30, ... times `first`, and in the end."""
    steps = (first * factor * 10**power for power in range(10) for factor in (1, 3))
    return [*itertools.takewhile(lambda point: point < last, steps), last]


def told(curve: Callable[..., Points], *args: object) -> dict[str, Row]:
    """The points of a curve. Each is told as soon as it is measured: a curve may take hours."""
    found: dict[str, Row] = {}
    for point, row in curve(*args):
        shown = {name: round(value, 3) for name, value in row.items() if not isinstance(value, list)}
        print(point, shown, file=sys.stderr, flush=True)
        found[point] = row
    return found


def apart(curve: Callable[..., Points], *args: object) -> dict[str, Row]:
    """The points of a curve, measured in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(told, curve, *args).result()


def memory_mib() -> float:
    """What this process has resident now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def ms(work: Callable[[], object]) -> float:
    """Milliseconds of processor time of all threads."""
    return 1_000 * busy(work)


class MovedClock:
    """The clock of the machine, moved on (`ahead_s`) by work that takes less here than where it is slow."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC; see `tidelake.env.Clock`."""
        return int(1_000 * (time.time() + self.ahead_s))

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Place(Protocol):
    """A lake that handles are opened to, each as by another process, and what its stores were asked."""

    clock: MovedClock

    def open(self) -> tidelake.Lake:
        """A handle that knows nothing."""

    def calls(self) -> int:
        """Calls of the stores by all handles."""

    def log_bytes(self) -> int:
        """Bytes that all handles put into the log."""


class Directory:
    """A lake in a directory."""

    def __init__(self, folder: Path) -> None:
        self.clock = MovedClock()
        self._folder, self._counters = folder, Counters()

    def open(self, spawner: Spawner | None = None) -> tidelake.Lake:
        env = Env(clock=self.clock, recorder=self._counters, spawner=spawner or ThreadSpawner())
        return tidelake.open(self._folder / "lake", env=env)

    def tries(self) -> int:
        """Tries of a commit."""
        return self._counters.counts["log.compare_and_set"]

    def calls(self) -> int:
        return sum(count for name, count in self._counters.counts.items() if is_call(name))

    def log_bytes(self) -> int:
        return self._counters.counts["log.compare_and_set.bytes"]


def is_call(counter: str) -> bool:
    """Whether a counter counts calls of a store, and not their bytes or entries."""
    return counter.startswith(("log.", "blob.")) and counter.count(".") == 1


class ObjectStore:
    """A lake in an object store in memory, with the log in it."""

    def __init__(self) -> None:
        self.clock = MovedClock()
        self._trips, self._counters = RoundTrips(self.clock, 0), Counters()
        self._bucket = FarBucket(MemoryBucket(self.clock), self._trips)

    def open(self) -> tidelake.Lake:
        partcaches._CACHES = PerProcess(partcaches.PartCaches)
        blobs, log = ObjectBlobStore(self._bucket), ObjectVersionLog(self._bucket, self.clock, 600.0)
        env = Env(clock=self.clock, recorder=self._counters)
        stores = Stores(blobs, log).layered(metered(self._counters))
        return tidelake.Lake("memory://bench", stores, tidelake.Config(), env)

    def calls(self) -> int:
        return self._trips.calls.total()

    def log_bytes(self) -> int:
        return self._counters.counts["log.compare_and_set.bytes"]


def commits(kind: str, count: int) -> Points:
    """Appends to one collection, and reads amid them."""
    with tempfile.TemporaryDirectory() as name:
        place: Place = Directory(Path(name)) if kind == "directory" else ObjectStore()
        with place.open() as lake:
            collection = lake.create("c", SCHEMA, key=["key"])
            collection.append(base(KEYS))
            at = points(min(STRETCH, count), count)
            tables, done = upserts(count + len(at) * IN_TURN, KEYS), 0
            over_history: list[float] = []
            for point in at:
                calls, log_bytes = place.calls(), place.log_bytes()
                seconds = appended(place, collection, itertools.islice(tables, point - done), done)
                each = point - done
                row = {
                    "append_ms": statistics.median(seconds[-STRETCH:]),
                    "append_mean_ms": statistics.fmean(seconds),
                    "append_calls": (place.calls() - calls) / each,
                    "append_log_bytes": (place.log_bytes() - log_bytes) / each,
                }
                over_history += medians(seconds, max(1, each // STRETCH))
                done = point
                new = lake.create(f"after {point}", SCHEMA, key=["key"])
                row["append_to_new"] = to_new(place, collection, new, tables)
                state = collection.state()
                others: Row = {
                    "runs": state.spine.totals.runs,
                    "state_bytes": len(encode_state(state)),
                    "memory_mib": memory_mib(),
                    "append_ms_over_history": list(over_history),
                }
                yield f"{point:,} commits, {kind}", {**row, **fresh(place), **others}


def to_new(
    place: Place, old: tidelake.Collection, new: tidelake.Collection, tables: Iterator[pa.Table]
) -> float:
    """The median of appends over that of appends to a new collection of the same contents, in turn."""
    new.append(base(KEYS))
    own = upserts(2 * IN_TURN, KEYS)
    appended(place, new, itertools.islice(own, IN_TURN), 0)
    old_ms, new_ms = list[float](), list[float]()
    for done, (to_old, to_new) in enumerate(zip(itertools.islice(tables, IN_TURN), own, strict=True)):
        old_ms += appended(place, old, iter([to_old]), done)
        new_ms += appended(place, new, iter([to_new]), done)
    return statistics.median(old_ms) / statistics.median(new_ms)


def appended(
    place: Place, collection: tidelake.Collection, tables: Iterator[pa.Table], done: int
) -> list[float]:
    """Milliseconds of each append."""
    found = []
    for number, table in enumerate(tables, start=done + 1):
        found.append(ms(partial(collection.append, table)))
        place.clock.ahead_s += APPEND_S
        if number % SINCE_EVERY == 0:
            collection.advance_since(collection.last_time())
    return found


def fresh(place: Place) -> Row:
    """What handles that know nothing take to open the collection and to read it: the median of some."""
    each = [by_a_handle(place) for _ in range(HANDLES)]
    return {name: statistics.median(row[name] for row in each) for name in each[0]}


def by_a_handle(place: Place) -> dict[str, float]:
    """What a handle that knows nothing takes."""
    keys = pa.table({"key": np.arange(0, KEYS, KEYS // LOOKED_UP)})
    opened: list[tidelake.Collection] = []
    before = place.calls()
    with place.open() as lake:
        open_ms, open_calls = ms(lambda: opened.append(lake.collection("c"))), place.calls() - before
        return {
            "open_ms": open_ms,
            "open_calls": open_calls,
            "snapshot_ms": ms(partial(newest, opened[0])),
            "lookup_ms": ms(partial(opened[0].lookup, keys)),
        }


def collections(count: int) -> Points:
    """Create collections in one lake, without rows but for some; use it amid that by fresh handles."""
    with tempfile.TemporaryDirectory() as name:
        place = Directory(Path(name))
        made: list[float] = []
        with Directory(Path(name) / "first").open() as lake:
            create(lake, 0)  # what a process loads only once
        for point in points(1, count):
            with place.open() as lake:
                lake.list()
                before, had = place.calls(), len(made)
                made += [ms(partial(create, lake, number)) for number in range(had, point)]
                creations = {
                    "create_ms": statistics.median(made[max(had, point - SAMPLE) :]),
                    "create_calls": (place.calls() - before) / (point - had),
                }
            yield f"{point:,} collections", {**creations, **among(place, point), **idle(place)}


def create(lake: tidelake.Lake, number: int) -> tidelake.Collection:
    return lake.create(f"c{number}", SCHEMA, key=["key"])


def among(place: Place, count: int) -> Row:
    """What a lake of so many collections takes to open, and some of the collections to open and append to."""
    table = base(10)
    numbers = np.unique(np.linspace(0, count - 1, SAMPLE).astype(int))
    before, lake = place.calls(), place.open()
    found: Row = {"open_lake_ms": ms(lambda: lake.id_of("c0")), "open_lake_calls": place.calls() - before}
    with lake:
        opened: list[tidelake.Collection] = []
        works: dict[str, list[Callable[[], object]]] = {
            "open": [partial(open_into, opened, lake, number) for number in numbers],
            "append": [partial(append_to, opened, at, table) for at in range(len(numbers))],
        }
        for work, each in works.items():
            before = place.calls()
            found[f"{work}_ms"] = statistics.median(map(ms, each))
            found[f"{work}_calls"] = (place.calls() - before) / len(each)
        found["list_ms"] = ms(lake.list)
        found["collect_ms"] = ms(lake.collect)
    return found


def open_into(opened: list[tidelake.Collection], lake: tidelake.Lake, number: int) -> None:
    """Open a collection."""
    opened.append(lake.collection(f"c{number}"))


def append_to(opened: list[tidelake.Collection], at: int, table: pa.Table) -> None:
    """Append to a collection that was opened."""
    opened[at].append(table)


class Rounds:
    """A `Spawner` that does so many rounds of upkeep at once; the clock is moved by the pauses."""

    def __init__(self, clock: MovedClock) -> None:
        self.left = 0
        self._clock = clock
        self._work: Callable[[Stop], None] | None = None

    def spawn(self, name: str, work: Callable[[Stop], None]) -> Spawned:
        """Keep the work of upkeep; start other work in a thread."""
        if name != "tidelake-upkeep":
            return ThreadSpawner().spawn(name, work)
        self._work = work
        return self

    def go(self, rounds: int) -> None:
        """Do so many rounds."""
        self.left = rounds
        if self._work is not None:
            self._work(self)

    def wait(self, timeout: float) -> bool:
        """A pause ends a round."""
        self._clock.ahead_s += timeout
        self.left -= timeout > 0
        return self.left == 0

    def stop(self) -> None:
        """Nothing is under way."""


def idle(place: Directory) -> Row:
    """A round of upkeep when no collection has been written to for an hour: the mean of some."""
    rounds = Rounds(place.clock)
    with place.open(rounds) as lake:
        upkeep = lake.upkeep()
        rounds.go(5)
        place.clock.ahead_s += RESTING_S
        rounds.go(2)
        before = place.calls()
        row = {"upkeep_ms": ms(partial(rounds.go, ROUNDS)) / ROUNDS}
        if upkeep.last_error is not None:
            raise upkeep.last_error
        return {**row, "upkeep_calls": (place.calls() - before) / ROUNDS, "memory_mib": memory_mib()}


def appending(
    folder: Path, start: Barrier, seconds: float, done: "multiprocessing.Queue[tuple[int, int]]"
) -> None:
    """A process: append until the time is over; how many, and how many tries of a commit they took."""
    place, tables = Directory(folder), list(inserts(1_000))
    with place.open() as lake:
        collection = lake.collection("c")
        collection.append(tables[0])
        start.wait()
        before, count, end_s = place.tries(), 0, time.monotonic() + seconds
        while time.monotonic() < end_s:
            collection.append(tables[count % len(tables)])
            count += 1
        done.put((count, place.tries() - before))


def writers(counts: Iterable[int], seconds: float) -> Points:
    """More and more processes that append to one collection of a directory."""
    for count in counts:
        yield f"{count} writers", together(count, seconds)


def together(count: int, seconds: float) -> Row:
    """Processes that append to one collection of a directory."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        with Directory(Path(name)).open() as lake:
            lake.create("c", SCHEMA, key=["key"])
        start, done = spawn.Barrier(count), spawn.Queue()
        children = [
            spawn.Process(target=appending, args=(Path(name), start, seconds, done)) for _ in range(count)
        ]
        for child in children:
            child.start()
        told = [done.get(timeout=seconds + 120) for _ in children]
        for child in children:
            child.join()
    counts, tries = zip(*told, strict=True)
    return {
        "appends_s": sum(counts) / seconds,
        "tries_per_append": sum(tries) / sum(counts),
        "least_to_mean": least_to_mean([list(counts)]),
    }


def history(rows: int) -> Points:
    """Reads of one collection from few to many updates kept: upserts by a zipfian law of 1,000 rows."""
    for point in points(HISTORY_ROWS, rows):
        with tempfile.TemporaryDirectory() as name:
            kept = filled(Path(name) / "lake", "upserts, zipfian", 1_000, point, CONFIG)
            times, _ = read_history(kept)
            append = {"append_us_row": 1e6 * kept.append_s / kept.updates}
            yield f"{point:,} updates kept", {**append, **{f"{read}_ms": times[read] for read in READS}}


def runs(rows: int) -> Points:
    """The same rows in more and more unmerged runs, whose keys lie among each other."""
    keys = np.random.default_rng(4).permutation(rows)
    asked = pa.table({"key": keys[:LOOKED_UP]})
    config = tidelake.Config(merge_budget_s=0.0, runs_max=1 << 20)
    for count in RUNS:
        with tempfile.TemporaryDirectory() as name, tidelake.open(Path(name) / "lake", config=config) as lake:
            collection = lake.create("c", SCHEMA, key=["key"])
            for part in np.array_split(keys, count):
                collection.append(rows_of(part, np.zeros_like(part), np.ones_like(part)))
            works = {
                "snapshot": partial(newest, collection),
                "lookup": partial(collection.lookup, asked),
                "one_key": partial(collection.lookup, asked[:1]),
            }
            yield f"{count} runs", {f"{work}_ms": 1_000 * least(works[work]) for work in works}


def newest(collection: tidelake.Collection) -> int:
    """Read the newest snapshot."""
    return read(collection.snapshot())


def rows(count: int) -> Points:
    """Append rows in no order, a chunk at a time, and read the collection amid that."""
    chunk, done = min(CHUNK_ROWS, count), 0
    keys = pa.table({"key": random_keys(0, chunk)[:LOOKED_UP]})
    with tempfile.TemporaryDirectory() as name, tidelake.open(Path(name) / "lake") as lake:
        collection = lake.create("c", workload.SCHEMA, key=["key"])
        for point in points(chunk, count):
            seconds, before = 0.0, done
            while done < point:
                table = scattered(done, min(chunk, point - done))
                seconds += busy(partial(collection.append, table))
                done += table.num_rows
            row: Row = {
                "append_us_row": 1e6 * seconds / (done - before),
                "append_peak_gib": peak_mib() / 1024,
                "snapshot_us_row": 1_000 * ms(partial(newest, collection)) / done,
                "lookup_ms": statistics.median(ms(partial(collection.lookup, keys)) for _ in range(HANDLES)),
                "runs": collection.state().spine.totals.runs,
                "bytes_row": stored(collection) / done,
                "peak_gib": peak_mib() / 1024,
            }
            yield f"{point:,} rows", row


def random_keys(first: int, count: int) -> np.ndarray:
    """The keys of the rows with the numbers from `first` on."""
    return np.random.default_rng(first).integers(0, 1 << 62, count)


def scattered(first: int, count: int) -> pa.Table:
    """Rows with the numbers from `first` on; their keys are in no order."""
    numbers = np.arange(first, first + count)
    columns = [pa.array(random_keys(first, count)), pa.array(numbers), pa.array(numbers / 7)]
    return pa.table([*columns, texts(numbers, 24)], schema=workload.SCHEMA)


def run(rows_asked: int = 10_000_000) -> dict[str, Row]:
    """A hundredth as many commits as rows are asked for, a thousandth of collections, ten times the rows.

    Two curves are measured at a time, and the processes that append together after all others.
    """
    works: list[tuple[Callable[..., Points], *tuple[object, ...]]] = [
        (commits, "directory", max(10, rows_asked // 100)),
        (commits, "object store", max(10, rows_asked // 100)),
        (collections, max(10, rows_asked // 1_000)),
        (rows, 10 * rows_asked),
        (history, max(HISTORY_ROWS, rows_asked // 10)),
        (runs, max(640, rows_asked // 100)),
    ]
    found: dict[str, Row] = {}
    with ThreadPoolExecutor(AT_ONCE) as lanes:
        for curve in lanes.map(lambda work: apart(*work), works):
            found |= curve
    seconds = min(WRITERS_S, rows_asked / 1_000_000)
    return found | told(writers, WRITERS, seconds)


CURVES: dict[str, Callable[..., Points]] = {
    work.__name__: work for work in (commits, collections, history, runs, rows)
}

if __name__ == "__main__":
    name, *given = sys.argv[1:]
    told(CURVES[name], *(int(one) if one.isdigit() else one for one in given))
