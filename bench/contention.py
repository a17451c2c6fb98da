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
from typing import TypeVar

import numpy as np
import pyarrow as pa

import tidelake
from bench.appends import SCHEMA, Limit, inserts
from tidelake.env import Counters, Env
from tidelake.lake.lake import Lake
from tidelake.store.local import LocalBlobStore
from tidelake.store.metered import MeteredBlobStore, MeteredVersionLog
from tidelake.store.sqlite import SqliteVersionLog
from tidelake.store.sqlite_pool import KeyHandle
from tidelake.store.turns import FileTurns
from tidelake.store.url import Stores

PROCESSES, ROUNDS = 8, 3
SLOW_S = 0.002
BATCHES = (10, 10_000)
T = TypeVar("T")
Work = Callable[[], object]


class SlowLog(SqliteVersionLog):
    """A log on a disk whose flush takes longer. As with a real one, an entry can be seen only after it."""

    flush_s = 0.0

    def _commit(self, key: str, handle: KeyHandle, work: Callable[[sqlite3.Connection], T]) -> T:
        def slowed(connection: sqlite3.Connection) -> T:
            done = work(connection)
            if done:  # a lost race writes nothing, and flushes nothing
                time.sleep(self.flush_s)
            return done

        return super()._commit(key, handle, slowed if self.flush_s else work)


def opened(place: Path, flush_s: float, config: tidelake.Config, counters: Counters) -> Lake:
    tidelake.open(place).close()
    log = SlowLog(str(place / "log"))
    log.flush_s = flush_s
    blobs = MeteredBlobStore(LocalBlobStore(str(place / "blobs")), counters)
    env = Env(recorder=counters)
    return Lake(place.as_uri(), Stores(blobs, MeteredVersionLog(log, counters), FileTurns(log.root)), config, env)


def appending(place: Path, name: str, flush_s: float) -> Iterator[Work]:
    lake = opened(place, flush_s, tidelake.Config(), Counters())
    collection = lake.collection(name)
    tables = [table.combine_chunks() for table in inserts(1_000)]
    count = 0

    def append() -> None:
        nonlocal count
        collection.append(tables[count % len(tables)])
        count += 1

    yield append
    lake.close()


def committing(place: Path, name: str, flush_s: float, size_bytes: int, *, locked: bool) -> Iterator[Work]:
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


KINDS = {"append": appending, "commit": committing, "flush": flushing}
