"""A lake in an object store, against what the store itself can do, with 20 ms round trips and without.

    from bench.stores import run; run(1_000_000)

The store is versitygw, a real S3 server on a directory of this machine (`setup/servers.sh` installs it), or
moto if that is not there. `DELAY_S` is added to each request in the client, and to nothing else. What is
compared takes turns, and the least of `ROUNDS` counts.

*trips*: round trips of an operation, counted, and `append_p50_to_delay`, the median of tiny appends in round
trips.
*bytes*: a snapshot against fetching the same objects in parallel, a bulk append against putting the same
objects, a merge against both. `cpu_to_plain` compares processor time with that of the same requests and of
Arrow, which encodes and decodes the same rows as plain Parquet: more than 1 is better than that.
*appends*: 64 threads on one collection, each second and each put, and the processor time of one; 8 processes
on one collection, each second, and the slowest to the mean. What a long log costs is in `bench.growth`.

`CEILINGS` and `FLOORS` are for a machine that does nothing else: its processors decide on *bytes* and on the
appends in a second, but not on round trips.
"""

import io
import itertools
import json
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.kernels import once
from tests.doubles.roundtrips import FarBucket, RoundTrips
from tidelake.config import MIB, Config
from tidelake.env import Env, SystemClock
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.process import PerProcess
from tidelake.shard.runs import partcaches
from tidelake.store.objects.address import parse_address
from tidelake.store.objects.blobs import ObjectBlobStore
from tidelake.store.objects.bucket import Bucket
from tidelake.store.objects.cloud import CloudBucket
from tidelake.store.objects.log import ObjectVersionLog
from tidelake.store.url import Stores

DELAY_S, ROUNDS = 0.02, 3
THREADS, PROCESSES, SECONDS = 64, 8, 5.0
AT_ONCE = 16
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("s", pa.string())])
Options = dict[str, object]
# At most, and at least.
CEILINGS = {
    ("trips", "open_lake"): 4.0,
    ("trips", "open_and_snapshot"): 5.0,
    ("trips", "lookup_cold"): 4.0,
    ("trips", "lookup_warm"): 1.0,
    ("trips", "append_p50_to_delay"): 1.3,
}
FLOORS = {
    ("bytes, 20 ms", "scan_to_fetch"): 0.8,
    ("bytes, 20 ms", "bulk_to_put"): 0.8,
    ("bytes, 20 ms", "merge_to_fetch_and_put"): 0.7,
    ("bytes, 0 ms", "scan_cpu_to_plain"): 0.8,
    ("bytes, 0 ms", "bulk_cpu_to_plain"): 0.7,
    ("bytes, 0 ms", "merge_cpu_to_plain"): 0.7,
    ("appends, 20 ms", "threads_each_s"): 500.0,
    ("appends, 20 ms", "least_to_mean"): 0.5,
}


@contextmanager
def server() -> Iterator[tuple[str, Options]]:
    """The url of an empty bucket, and its options."""
    tests = Path(__file__).resolve().parent.parent / "tests"
    sys.path += [str(tests), str(tests / "store")]
    servers = import_module("servers")
    try:
        servers.program("versitygw")
        opened = servers.versitygw()
    except BaseException as absent:  # pytest's way to say that it is not installed
        if type(absent).__name__ != "Skipped":
            raise
        opened = servers.s3_server()
    with opened as one:
        yield f"s3://{one.new_bucket()}", one.options()


def lake_on(bucket: Bucket, trips: RoundTrips, **settings: int) -> Lake:
    """A lake as a fresh process sees it."""
    partcaches._CACHES = PerProcess(partcaches.PartCaches)
    far = FarBucket(bucket, trips)
    stores = Stores(ObjectBlobStore(far), ObjectVersionLog(far, SystemClock(), 600.0))
    return Lake("memory://bench", stores, Config(**settings), Env())  # type: ignore[arg-type]


def table(rows: int, start: int = 0, step: int = 1) -> pa.Table:
    numbers = np.random.default_rng(start)
    ids = np.arange(start, start + rows * step, step)
    texts = [f"name {n}" for n in numbers.integers(0, 1 << 40, rows)]
    return pa.table([ids, numbers.integers(0, 1 << 60, rows), texts], schema=SCHEMA)


def trips_of(bucket: Bucket) -> dict[str, float]:
    """Round trips, and the median of tiny appends in round trips."""
    trips = RoundTrips(SystemClock(), 0)
    lake_on(bucket, trips).create("small", SCHEMA, key=["id"]).append(table(20_000))
    trips.delay_s = DELAY_S

    def count(work: Callable[[], object]) -> int:
        trips.reset()
        work()
        return trips.count

    lake, found = lake_on(bucket, trips), {}
    found["open_lake"] = 1 + count(lambda: lake.id_of("small"))  # and its marker
    found["open_and_snapshot"] = count(lambda: lake.collection("small").snapshot().read_all())
    c = lake_on(bucket, trips).collection("small")
    key = pa.table({"id": pa.array([77], pa.int64())})
    found["lookup_cold"] = count(lambda: c.lookup(key))
    found["lookup_warm"] = count(lambda: c.lookup(key))
    times = [once(lambda: c.append(table(1))) for _ in range(40)]
    return {**found, "append_p50_to_delay": statistics.median(times) / DELAY_S}


def bytes_of(bucket: Bucket, rows: int, delay_s: float) -> dict[str, float]:
    """Reading, writing and merging against the same bytes, without Tidelake."""
    trips = RoundTrips(SystemClock(), 0)
    far = FarBucket(bucket, trips)
    merged: list[tuple[float, float]] = []
    scans, bulks = [], []
    worked: dict[str, list[float]] = {"scan": [], "bulk": [], "merge": []}
    for n in range(ROUNDS):
        trips.delay_s = 0
        lake = lake_on(bucket, trips, part_target_bytes=8 << 20, merge_budget_s=0)
        c = lake.create(f"big{delay_s}{n}", SCHEMA, key=["id"])
        given = [table(rows // 2, start, 2) for start in (0, 1)]
        trips.delay_s = delay_s
        append = both(partial(list, map(c.append, given)))
        sizes = stored(c)
        put = both(partial(putting, far, list(sizes.values()), f"plain{delay_s}{n}"))
        fetched, moved = both(partial(fetching, far, list(sizes))), both(c.merge)
        after = stored(c)
        again = both(partial(putting, far, list(after.values()), f"again{delay_s}{n}"))
        scanned, refetched = both(c.snapshot().read_all), both(partial(fetching, far, list(after)))
        scans.append(refetched.wall_s / scanned.wall_s)
        bulks.append(put.wall_s / append.wall_s)
        merged.append((fetched.wall_s + again.wall_s, moved.wall_s))
        # What the bytes cost without Tidelake, on one processor: they are encoded and decoded by Arrow.
        whole = c.snapshot().read_all()
        apart, joined = [encoded(one) for one in given], encoded(whole)
        encode = sum(both(partial(encoded, one)).cpu_s for one in given)
        decode = sum(both(partial(decoded, one)).cpu_s for one in apart)
        worked["bulk"].append((put.cpu_s + encode) / append.cpu_s)
        worked["scan"].append((refetched.cpu_s + both(partial(decoded, joined)).cpu_s) / scanned.cpu_s)
        plain = fetched.cpu_s + decode + both(partial(encoded, whole)).cpu_s + again.cpu_s
        worked["merge"].append(plain / moved.cpu_s)
        mib = sum(after.values()) / MIB
    return {
        "scan_to_fetch": max(scans),
        "bulk_to_put": max(bulks),
        "merge_to_fetch_and_put": max(plain / own for plain, own in merged),
        "scan_cpu_to_plain": max(worked["scan"]),
        "bulk_cpu_to_plain": max(worked["bulk"]),
        "merge_cpu_to_plain": max(worked["merge"]),
        "fetch_cpu_ms_mib": 1_000 * refetched.cpu_s / mib,
        "scan_cpu_ms_mib": 1_000 * scanned.cpu_s / mib,
    }


@dataclass(frozen=True)
class Spent:
    """What some work took: seconds, and seconds of processors in this process."""

    wall_s: float
    cpu_s: float


def both(work: Callable[[], object]) -> Spent:
    """Do some work once."""
    began_s = time.process_time()
    wall_s = once(work)
    return Spent(wall_s, time.process_time() - began_s)


def encoded(rows: pa.Table) -> bytes:
    """A plain Parquet file, compressed as parts are."""
    file = io.BytesIO()
    pq.write_table(rows, file, compression="zstd", compression_level=1, row_group_size=16_384)
    return file.getvalue()


def decoded(data: bytes) -> pa.Table:
    """The rows of a plain Parquet file, by one thread."""
    return pq.ParquetFile(io.BytesIO(data)).read(use_threads=False)


def stored(c: Collection) -> dict[str, int]:
    return {part.name: part.size_bytes for part in c.state().parts() if part.inline is None}


def fetching(far: FarBucket, names: list[str]) -> float:
    """Seconds of fetching objects in parallel."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return once(lambda: list(pool.map(far.get, names)))


def putting(far: FarBucket, sizes: list[int], name: str) -> float:
    """Seconds of putting objects of these sizes in parallel."""
    data = np.random.default_rng(1).bytes(max(sizes))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return once(
            lambda: list(pool.map(lambda n: far.put_new(f"{name}/{n}", data[: sizes[n]]), range(len(sizes))))
        )


def threads_on(bucket: Bucket, delay_s: float) -> dict[str, float]:
    """Of threads that append to one collection: how many in a second, and how many share a put."""
    trips = RoundTrips(SystemClock(), delay_s)
    c = lake_on(bucket, trips).create(f"threads{delay_s}", SCHEMA, key=["id"])
    given, counts = table(1), [0] * THREADS
    trips.reset()
    ends = time.perf_counter() + SECONDS

    def append(thread: int) -> None:
        while time.perf_counter() < ends:
            c.append(given)
            counts[thread] += 1

    running = [threading.Thread(target=append, args=(n,)) for n in range(THREADS)]
    began_s = time.process_time()
    took = once(lambda: [[one.start() for one in running], [one.join() for one in running]])
    return {
        "threads_each_s": sum(counts) / took,
        "threads_each_put": sum(counts) / trips.calls["put"],
        "threads_cpu_ms": 1_000 * (time.process_time() - began_s) / sum(counts),
    }


def process(
    url: str, options: Options, delay_s: float, ready: Barrier, counts: "multiprocessing.Queue[int]"
) -> None:
    trips = RoundTrips(SystemClock(), delay_s)
    c = lake_on(CloudBucket(parse_address(url), lambda: options), trips).collection("processes")
    c.append(table(1))  # what a first append loads takes seconds where eight processes share two processors
    ready.wait()
    ends = time.perf_counter() + SECONDS
    counts.put(sum(1 for _ in itertools.takewhile(lambda _: time.perf_counter() < ends, appends(c))))


def appends(c: Collection) -> Iterator[None]:
    while True:
        c.append(table(1))
        yield


def processes_on(url: str, options: Options, delay_s: float) -> dict[str, float]:
    """Of processes that append to one collection: how many in a second, and the slowest to the mean."""
    place = f"{url}/processes{delay_s}"
    lake_on(CloudBucket(parse_address(place), lambda: options), RoundTrips(SystemClock(), 0)).create(
        "processes", SCHEMA, key=["id"]
    )
    spawned = multiprocessing.get_context("spawn")
    ready, counts = spawned.Barrier(PROCESSES), spawned.Queue()
    args = (place, options, delay_s, ready, counts)
    running = [spawned.Process(target=process, args=args) for _ in range(PROCESSES)]
    for one in running:
        one.start()
    found = [counts.get() for _ in running]
    for one in running:
        one.join()
    return {
        "processes_each_s": sum(found) / SECONDS,
        "least_to_mean": min(found) / statistics.mean(found),
    }


def run(rows: int) -> dict[str, dict[str, float]]:
    """All of it; `rows` is about how many rows are read and written at once."""
    found = {}
    with server() as (url, options):
        bucket = CloudBucket(parse_address(f"{url}/lake"), lambda: options)
        found["trips"] = trips_of(bucket)
        for name, delay_s in (("20 ms", DELAY_S), ("0 ms", 0.0)):
            found[f"bytes, {name}"] = bytes_of(bucket, rows, delay_s)
            found[f"appends, {name}"] = {
                **threads_on(bucket, delay_s),
                **processes_on(url, options, delay_s),
            }
    return found


def missed(found: dict[str, dict[str, float]]) -> list[str]:
    """The aims that were not reached."""
    above = [
        f"{row}: {name} is above {most}" for (row, name), most in CEILINGS.items() if found[row][name] > most
    ]
    below = [
        f"{row}: {name} is below {least}" for (row, name), least in FLOORS.items() if found[row][name] < least
    ]
    return above + below


if __name__ == "__main__":
    measured = run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
    print(json.dumps(measured, indent=2))
    print("\n".join(missed(measured)), file=sys.stderr)
