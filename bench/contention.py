"""Eight processes that append to one lake directory at once, against what SQLite's synced commits allow.

    from bench.contention import run; run(1_000_000)

An append brings ten updates. *One shard*: all processes append to the same collection. Its limit is a loop
that does nothing but durable commits of as many bytes as the log entries have: by one process, and by eight
under one file lock. *Own shards*: each process has a collection to itself, against one process alone; the
limit is how eight processes that flush a file each scale against one. *Many batches*: one process appends to
a shard of 10,000 batches and to one of ten, in turn, without maintenance.

What is compared takes turns, and the median of the rounds counts. Where a flush costs next to nothing (a disk
with a buffer that outlives power, most virtual machines), the processor is what the processes compete for;
so the same is measured with `SLOW_S` added to each flush, as a plain disk has it.
"""

import fcntl
import itertools
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tidelake
from bench.appends import SCHEMA, Limit, Numbers, inserts
from bench.kernels import once
from tidelake.env import Counters, Env
from tidelake.lake.api.lake import Lake
from tidelake.store.advisory import FileAdvisoryLocks
from tidelake.store.files import SYSTEM_FILES, SystemFiles
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.local import LocalBlobStore
from tidelake.store.metered import metered
from tidelake.store.url import Stores

PROCESSES, ROUNDS = 8, 3
SLOW_S = 0.002
BATCHES = (10, 10_000)
Work = Callable[[], object]


def slow_files(flush_s: float) -> SystemFiles:
    """A disk whose flush takes longer. As with a real one, an entry can be seen only after it."""

    def flush(descriptor: int) -> None:
        os.fdatasync(descriptor)
        time.sleep(flush_s)

    return SystemFiles(flush) if flush_s else SYSTEM_FILES


def opened(place: Path, flush_s: float, config: tidelake.Config, counters: Counters) -> Lake:
    tidelake.open(place).close()
    log = FramedVersionLog(str(place / "log"), files=slow_files(flush_s))
    blobs = LocalBlobStore(str(place / "blobs"))
    env = Env(recorder=counters)
    return Lake(
        place.as_uri(),
        Stores(blobs, log, FileAdvisoryLocks(log.root)).layered(metered(counters)),
        config,
        env,
    )


def appending(place: Path, name: str, flush_s: float) -> Iterator[Work]:
    lake = opened(place, flush_s, tidelake.Config(), Counters())
    collection = lake.collection(name)
    tables = list(inserts(1_000))
    count = 0

    def append() -> None:
        nonlocal count
        collection.append(tables[count % len(tables)])
        count += 1

    yield append
    lake.close()


def committing(place: Path, name: str, flush_s: float, size_bytes: int, locked: bool) -> Iterator[Work]:
    connection = sqlite3.connect(place / name, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous = FULL")
    descriptor = os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT)
    data = np.random.default_rng(os.getpid()).bytes(size_bytes)

    def commit() -> None:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO entries (data) VALUES (?)", (data,))
        time.sleep(flush_s) if flush_s else None
        connection.execute("COMMIT")
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    yield commit
    os.close(descriptor)
    connection.close()


def flushing(place: Path, name: str, flush_s: float, size_bytes: int) -> Iterator[Work]:
    descriptor = os.open(place / name, os.O_RDWR | os.O_CREAT)
    data = np.random.default_rng(os.getpid()).bytes(size_bytes)

    def flush() -> None:
        os.write(descriptor, data)
        os.fsync(descriptor)
        time.sleep(flush_s) if flush_s else None

    yield flush
    os.close(descriptor)


KINDS: dict[str, Callable[..., Iterator[Work]]] = {
    "append": appending,
    "commit": committing,
    "flush": flushing,
}


def worker(
    kind: "str | Callable[..., Iterator[Work]]",
    arguments: tuple[object, ...],
    start: Barrier,
    seconds: float,
    counts: "multiprocessing.Queue[int]",
) -> None:
    """A process: its work again and again from the moment when all are ready, and how often it was done."""
    works = (KINDS[kind] if isinstance(kind, str) else kind)(*arguments)
    work = next(works)
    work()
    start.wait()
    end_s, count = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        work()
        count += 1
    counts.put(count)
    next(works, None)


def together(
    kind: str | Callable[..., Iterator[Work]],
    place: Path,
    arguments: list[tuple[object, ...]],
    seconds: float,
) -> list[int]:
    """How often each of several processes, one for each of `arguments`, does its work at the same time."""
    spawn = multiprocessing.get_context("spawn")
    start, counts = spawn.Barrier(len(arguments)), spawn.Queue()
    children = [
        spawn.Process(target=worker, args=(kind, (place, *given), start, seconds, counts), daemon=True)
        for given in arguments
    ]
    for child in children:
        child.start()
    found = [counts.get(timeout=seconds + 120) for _ in children]
    for child in children:
        child.join()
    return sorted(found)


def median_rates(
    loads: dict[str, Callable[[], list[int]]], seconds: float, rounds: int
) -> tuple[dict[str, float], list[list[int]]]:
    """Operations a second of each load, all taking turns; the median. And the shares of the first load."""
    rates: dict[str, list[float]] = {name: [] for name in loads}
    shares: list[list[int]] = []
    for _ in range(rounds):
        for number, (name, load) in enumerate(loads.items()):
            counts = load()
            rates[name].append(sum(counts) / seconds)
            if number == 0:
                shares.append(counts)
    return {name: statistics.median(found) for name, found in rates.items()}, shares


@contextmanager
def shared_shard() -> Iterator[Path]:
    """A folder with a lake, in which there is a collection `c` for all, and the limit's database."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with tidelake.open(place / "lake") as lake:
            lake.create("c", SCHEMA, key=["key"])
        Limit(place / "limit.db").close()
        yield place


def limit(
    place: Path, flush_s: float, seconds: float, size_bytes: int, locked: int = 0
) -> Callable[[], list[int]]:
    """Durable commits: of one process, or of `locked` ones that share a file lock."""
    arguments = ("limit.db", flush_s, size_bytes, bool(locked))
    return lambda: together("commit", place, [arguments] * (locked or 1), seconds)


def least_to_mean(shares: list[list[int]]) -> float:
    """The smallest share of a process in the work of all, in the worst round."""
    return min(min(counts) / statistics.fmean(counts) for counts in shares)


def one_shard(flush_s: float, seconds: float, processes: int, rounds: int, size_bytes: int) -> Numbers:
    """All append to one shard. The smallest share of a process is of the worst round."""
    with shared_shard() as place:
        shared = [("c", flush_s)] * processes
        rates, shares = median_rates(
            {
                "appends": lambda: together("append", place / "lake", shared, seconds),
                "alone": lambda: together("append", place / "lake", shared[:1], seconds),
                "limit": limit(place, flush_s, seconds, size_bytes),
                "limit_together": limit(place, flush_s, seconds, size_bytes, locked=processes),
            },
            seconds,
            rounds,
        )
        with tidelake.open(place / "lake") as lake:
            collection = lake.collection("c")
            check_rows(collection, collection.state().written.appended_rows)
        return {
            "flush_added_ms": 1_000 * flush_s,
            "appends_s": rates["appends"],
            "alone_s": rates["alone"],
            "least_to_mean": least_to_mean(shares),
            "limit_s": rates["limit"],
            "limit_together_s": rates["limit_together"],
            "to_limit": rates["appends"] / rates["limit"],
            "to_limit_together": rates["appends"] / rates["limit_together"],
            "shares": [float(count) for counts in shares for count in counts],
        }


def check_rows(collection: tidelake.Collection, written: int) -> None:
    """Check that all is there once. Counts multiplicities: processes may bring the same rows."""
    found = sum(pc.sum(batch["_diff"]).as_py() for batch in collection.snapshot())
    if found != written:
        raise ValueError(f"{found} rows are there of {written} that were written")


def own_shards(flush_s: float, seconds: float, processes: int, rounds: int, size_bytes: int) -> Numbers:
    """Each to its own shard, beside as many processes that do nothing but flush."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with tidelake.open(place / "lake") as lake:
            for number in range(processes):
                lake.create(f"c{number}", SCHEMA, key=["key"])
        own = [(f"c{number}", flush_s) for number in range(processes)]
        files = [(f"f{number}", flush_s, size_bytes) for number in range(processes)]
        rates, _ = median_rates(
            {
                "appends": lambda: together("append", place / "lake", own, seconds),
                "alone": lambda: together("append", place / "lake", own[:1], seconds),
                "flushes": lambda: together("flush", place, files, seconds),
                "flush": lambda: together("flush", place, files[:1], seconds),
            },
            seconds,
            rounds,
        )
        return {
            "flush_added_ms": 1_000 * flush_s,
            "appends_s": rates["appends"],
            "alone_s": rates["alone"],
            "scaling": rates["appends"] / rates["alone"],
            "flushes_s": rates["flushes"],
            "flush_alone_s": rates["flush"],
            "flush_scaling": rates["flushes"] / rates["flush"],
            "processors": float(os.cpu_count() or 1),
        }


def many_batches(batches: tuple[int, int], turns: int) -> Numbers:
    """An append to a state of few batches and to one of many, in turn; nothing is merged or held back."""
    config = tidelake.Config(merge_budget_s=0.0, runs_max=2**30, inline_total_bytes=2**40)
    with tempfile.TemporaryDirectory() as name, tidelake.open(Path(name) / "lake", config=config) as lake:
        tables = inserts(batches[1] + 4 * turns + batches[0])
        many = _filled(lake, "many", itertools.islice(tables, batches[1]))
        seconds: list[list[float]] = [[], []]
        for turn in range(turns):
            if turn % batches[0] == 0:  # the few shall stay few
                few = _filled(lake, f"few{turn}", itertools.islice(tables, batches[0]))
            for collection, spent in zip((few, many), seconds, strict=True):
                table = next(tables)
                spent.append(once(lambda table=table, collection=collection: collection.append(table)))
        few_s, many_s = (statistics.median(spent) for spent in seconds)
        return {
            "batches": float(len(many.state().spine)),
            "few_ms": 1_000 * few_s,
            "many_ms": 1_000 * many_s,
            "many_to_few": many_s / few_s,
        }


def _filled(lake: Lake, name: str, tables: Iterator[pa.Table]) -> tidelake.Collection:
    collection = lake.create(name, SCHEMA, key=["key"])
    for table in tables:
        collection.append(table)
    return collection


def entry_bytes(appends: int = 100) -> int:
    """What an append of ten updates puts into the log."""
    counters = Counters()
    with tempfile.TemporaryDirectory() as name:
        config = tidelake.Config(merge_budget_s=0.0)
        with tidelake.open(Path(name) / "lake", config=config, env=Env(recorder=counters)) as lake:
            _filled(lake, "c", inserts(appends))
    return counters.counts["log.compare_and_set.bytes"] // appends


def run(rows: int = 10_000_000) -> dict[str, Numbers]:
    """Three seconds a round, and 10,000 batches; less for fewer rows than a million."""
    share = min(1.0, rows / 1_000_000)
    seconds, rounds = max(0.2, 3 * share), ROUNDS if share == 1 else 1
    size_bytes = entry_bytes()
    batches = (BATCHES[0], max(100, int(BATCHES[1] * share)))
    found: dict[str, Numbers] = {}
    for name, flush_s in (("", 0.0), (", slow flush", SLOW_S)):
        found[f"one shard{name}"] = one_shard(flush_s, seconds, PROCESSES, rounds, size_bytes)
    for name, flush_s in (("", 0.0), (", slow flush", SLOW_S)):
        found[f"own shards{name}"] = own_shards(flush_s, seconds, PROCESSES, rounds, size_bytes)
    return {**found, "many batches": many_batches(batches, max(20, int(500 * share)))}


if __name__ == "__main__":
    for name, numbers in run().items():
        print(name, {k: round(v, 3) for k, v in numbers.items() if not isinstance(v, list)})
