"""Appends to one shard of a lake in an object store that is 20 ms away: by threads, and by processes.

    PYTHONPATH=.:tests python -m bench.far_commits [SECONDS]

Runs an S3 server (versitygw, which `setup/servers.sh` installs) behind a proxy that adds the round trips.
*Alone*: one thread; its median append in round trips. *Threads*: of one process, which commit together.
*Processes*: each with a handle of its own; the slowest one against the mean. *Puts*: bare puts of as many
bytes as an append, by one thread; all others can be at most as many commits a second.
"""

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.appends import SCHEMA, Numbers, inserts
from bench.contention import PROCESSES, Work, check_rows, entry_bytes, least_to_mean, together
from tests.store.proxy import proxy_process
from tests.store.servers import versitygw
from tidelake.config import Config
from tidelake.lake.api.lake import Lake, open_lake
from tidelake.store.access import StoreAccess
from tidelake.store.objects.address import parse_address
from tidelake.store.objects.cloud import CloudBucket

RTT_S = 0.02
THREADS = 64
# Nothing but the appends themselves.
CONFIG = Config(merge_budget_s=0.0)


def opened(url: str, options: dict[str, str]) -> Lake:
    """The lake, as a process of its own opens it."""
    return open_lake(url, config=CONFIG, store_options=options)


def appending(_place: Path, url: str, options: dict[str, str]) -> Iterator[Work]:
    """Append ten updates to the collection."""
    with opened(url, options) as lake:
        collection = lake.collection("c")
        tables = list(inserts(1_000))
        count = 0

        def append() -> None:
            nonlocal count
            collection.append(tables[count % len(tables)])
            count += 1

        yield append


def timed(work: Work, seconds: float) -> list[float]:
    """How long each repetition of some work takes."""
    found: list[float] = []
    end_s = time.monotonic() + seconds
    while (began_s := time.monotonic()) < end_s:
        work()
        found.append(time.monotonic() - began_s)
    return found


def by_threads(url: str, options: dict[str, str], threads: int, seconds: float) -> list[float]:
    """How long each append of several threads takes, which share a handle."""
    found: list[float] = []
    with opened(url, options) as lake:
        collection = lake.collection("c")
        tables = list(inserts(1_000))
        collection.append(tables[0])

        def work(number: int) -> None:
            found.extend(timed(lambda: collection.append(tables[number]), seconds))

        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        check_rows(collection, collection.state().written.appended_rows)
    return found


def bare_puts(url: str, options: dict[str, str], seconds: float) -> list[float]:
    """How long each put of a new object takes."""
    bucket = CloudBucket(parse_address(url + "-bare"), StoreAccess(store_options=options).options)
    data, count = bytes(entry_bytes()), 0

    def put() -> None:
        nonlocal count
        bucket.put_new(f"{count}", data)
        count += 1

    try:
        return timed(put, seconds)
    finally:
        bucket.close()


def run(seconds: float = 10.0) -> dict[str, Numbers]:
    """All of it, `seconds` each."""
    with versitygw() as server, proxy_process(server.port, rtt_s=RTT_S) as proxy:
        options = server.options(proxy.endpoint)

        def fresh() -> str:
            url = f"s3://{server.new_bucket()}/lake"
            with opened(url, options) as lake:
                lake.create("c", SCHEMA, key=["key"])
            return url

        put_s = statistics.median(bare_puts(fresh(), options, seconds / 2))
        alone = by_threads(fresh(), options, 1, seconds)
        threads = by_threads(fresh(), options, THREADS, seconds)
        counts = together(appending, Path(), [(fresh(), options)] * PROCESSES, seconds)
    return {
        "far commits": {
            "rtt_ms": 1_000 * RTT_S,
            "put_ms": 1_000 * put_s,
            "alone_ms": 1_000 * statistics.median(alone),
            "alone_to_rtt": statistics.median(alone) / RTT_S,
            "alone_to_put": statistics.median(alone) / put_s,
            "threads_s": len(threads) / seconds,
            "threads_ms": 1_000 * statistics.median(threads),
            "processes_s": sum(counts) / seconds,
            "least_to_mean": least_to_mean([counts]),
        }
    }


if __name__ == "__main__":
    for name, numbers in run(*map(float, sys.argv[1:])).items():
        print(name, {k: round(v, 3) for k, v in numbers.items() if not isinstance(v, list)})
