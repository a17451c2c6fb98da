"""Sixteen writers that stage into one collection at once, against what SQLite's synced commits allow.

    from bench.staging import run; run(1_000_000)

A stage brings ten updates at open times, anywhere. *Processes*: each has the lake open for itself. *Threads*:
all share one handle, and are committed together. The limit is a loop that does nothing but durable commits of
as many bytes as the log entries have, in one process; it takes turns with them, and the median of the rounds
counts.

Counted over all: calls that were refused (none may be), parts that were uploaded for each stage (one, or none
where rows are tiny: nothing is uploaded twice), and log writes for each stage of a writer that is alone: one.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidelake
from bench import contention
from bench.appends import SCHEMA, UPDATES, Limit, Numbers, rows
from bench.contention import SLOW_S, Work, opened, together
from tidelake.env import Counters, Env

WRITERS, ROUNDS = 16, 3
TIMES = 1_000_000
# Rows are never inline, so that each stage uploads one part; nothing else is stored.
STORED = {"inline_part_bytes": 0, "runs_max": 2**30, "rollup_bytes_min": 2**40}


def tables(seed: int) -> Iterator[pa.Table]:
    """Tables of ten updates each, at any times."""
    rng = np.random.default_rng(seed)
    diffs = np.ones(UPDATES, np.int64)
    while True:
        key = rng.integers(0, TIMES, UPDATES)
        made = rows(key, np.zeros(UPDATES, np.int64), diffs)
        yield made.append_column("_time", pa.array(rng.integers(0, TIMES, UPDATES)))


def staging(place: Path, name: str, flush_s: float, seed: int) -> Iterator[Work]:
    """A process that stages; it fails if a call is refused."""
    lake = opened(place, flush_s, tidelake.Config(), Counters())
    collection, given = lake.collection(name), tables(seed)
    yield lambda: collection.stage(next(given))
    lake.close()


def processes(flush_s: float, seconds: float, writers: int, rounds: int, size_bytes: int) -> Numbers:
    """All processes stage into one collection. The smallest share of a process is of the worst round."""
    with contention.shared_shard() as place:
        own = [("c", flush_s, number) for number in range(writers)]
        rates, shares = contention.median_rates(
            {
                "stages": lambda: together(staging, place / "lake", own, seconds),
                "alone": lambda: together(staging, place / "lake", own[:1], seconds),
                "limit": contention.limit(place, flush_s, seconds, size_bytes),
            },
            seconds,
            rounds,
        )
        with tidelake.open(place / "lake") as lake:
            _check_all_in(lake.collection("c"))
        return {
            "flush_added_ms": 1_000 * flush_s,
            "stages_s": rates["stages"],
            "alone_s": rates["alone"],
            "limit_s": rates["limit"],
            "to_limit": rates["stages"] / rates["limit"],
            "alone_to_limit": rates["alone"] / rates["limit"],
            "least_to_mean": contention.least_to_mean(shares),
        }


def threads(flush_s: float, seconds: float, writers: int, rounds: int, size_bytes: int) -> Numbers:
    """All threads of one process stage through one handle."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        counters = Counters()
        lake = opened(place / "lake", flush_s, tidelake.Config(), counters)
        collection = lake.create("c", SCHEMA, key=["key"])
        Limit(place / "limit.db").close()
        limit = contention.limit(place, flush_s, seconds, size_bytes)
        stages, limits, done = [], [], 0
        for turn in range(rounds):
            counts = _staged(collection, writers, seconds, turn)
            done += sum(counts)
            stages.append(sum(counts) / seconds)
            limits.append(sum(limit()) / seconds)
        _check_all_in(collection)
        writes = counters.counts["log.compare_and_set"]
        lake.close()
        stages_s, limit_s = statistics.median(stages), statistics.median(limits)
        return {
            "flush_added_ms": 1_000 * flush_s,
            "stages_s": stages_s,
            "limit_s": limit_s,
            "to_limit": stages_s / limit_s,
            "log_writes_each": writes / done,
        }


def _staged(collection: tidelake.Collection, writers: int, seconds: float, turn: int) -> list[int]:
    """How often each of several threads stages, all at the same time."""
    counts = [0] * writers
    start = threading.Barrier(writers)

    def work(number: int) -> None:
        given = tables(writers * turn + number)
        start.wait()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            collection.stage(next(given))
            counts[number] += 1

    _in_threads(work, writers)
    return counts


def _in_threads(work: Callable[[int], object], count: int) -> None:
    """Let several threads work, each with its number, and wait for all; the first error is raised again."""
    failed = list[Exception]()

    def one(number: int) -> None:
        try:
            work(number)
        except Exception as error:
            failed.append(error)

    workers = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]


def counted(stages: int, writers: int) -> Numbers:
    """Store calls for each stage: of one writer alone, and of several threads with a handle each."""
    found: Numbers = {}
    for name, count in (("alone", 1), ("together", writers)):
        counters = Counters()
        with tempfile.TemporaryDirectory() as place:
            config = tidelake.Config(**STORED)  # type: ignore[arg-type]
            with tidelake.open(Path(place) / "lake", config=config, env=Env(recorder=counters)) as lake:
                lake.create("c", SCHEMA, key=["key"])
                handles = [lake.collection("c") for _ in range(count)]
                before = dict(counters.counts)
                _each(handles, max(1, stages // count))
                done = max(1, stages // count) * count
                for call in ("log.compare_and_set", "blob.put"):
                    spent = counters.counts[call] - before.get(call, 0)
                    found[f"{call.replace('.', '_')}_each_{name}"] = spent / done
                _check_all_in(handles[0])
    return found


def _each(handles: list[tidelake.Collection], stages: int) -> None:
    """Let a thread for each handle stage so often."""

    def work(number: int) -> None:
        given = tables(number)
        for _ in range(stages):
            handles[number].stage(next(given))

    _in_threads(work, len(handles))


def _check_all_in(collection: tidelake.Collection) -> None:
    """What was staged is there once when it is sealed and drained."""
    staged = collection.state().written.appended_rows
    collection.seal(TIMES)
    collection.maintain()
    contention.check_rows(collection, staged)


def entry_bytes(stages: int = 50) -> int:
    """What a stage of ten updates puts into the log."""
    counters = Counters()
    env = Env(recorder=counters)
    with tempfile.TemporaryDirectory() as name, tidelake.open(Path(name) / "lake", env=env) as lake:
        collection, given = lake.create("c", SCHEMA, key=["key"]), tables(0)
        before = counters.counts["log.compare_and_set.bytes"]
        for _ in range(stages):
            collection.stage(next(given))
    return (counters.counts["log.compare_and_set.bytes"] - before) // stages


def run(count: int = 10_000_000) -> dict[str, Numbers]:
    """Three seconds a round; less for fewer rows than a million."""
    share = min(1.0, count / 1_000_000)
    seconds, rounds = max(0.2, 3 * share), ROUNDS if share == 1 else 1
    size_bytes = entry_bytes()
    found: dict[str, Numbers] = {}
    for name, flush_s in (("", 0.0), (", slow flush", SLOW_S)):
        found[f"processes{name}"] = processes(flush_s, seconds, WRITERS, rounds, size_bytes)
        found[f"threads{name}"] = threads(flush_s, seconds, WRITERS, rounds, size_bytes)
    return {**found, "calls": counted(max(WRITERS, int(800 * share)), WRITERS)}


if __name__ == "__main__":
    for name, numbers in run().items():
        print(name, {k: round(v, 3) for k, v in numbers.items() if not isinstance(v, list)})
