"""Reads after a history of upserts, beside delta-rs: the newest contents, old ones, and what changed.

    pip install deltalake; python -m bench.delta 1000000

Not a part of `make bench`, which does not install delta-rs. A million rows, and fifty upserts of ten thousand
rows each, of keys anywhere. delta-rs merges each into a table with its change data feed; Tidelake upserts it,
and is maintained once at the end. Both then read the same versions in turn; each *ratio* is the time of
delta-rs over that of Tidelake. The answers are compared first.
"""

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tidelake
from bench.history import keys_of
from bench.kernels import once
from bench.texts import texts
from bench.workload import SCHEMA

Work = Callable[[], object]
UPSERTS, SHARE, OLD, CHANGED, ROUNDS = 50, 100, 25, (20, 30), 7


def rows_of(ids: np.ndarray, version: int) -> pa.Table:
    """The rows of some ids as of a version."""
    n = ids * 1_000 + version
    columns = [pa.array(keys_of(ids)), pa.array(n), pa.array(n / 7), texts(n, 24)]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def upserted(table: Any, fresh: pa.Table) -> None:
    """One merge of delta-rs."""
    merger = table.merge(fresh, "t.key = s.key", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def same(ours: pa.Table, theirs: pa.Table) -> None:
    """Compare two contents by the number of rows and a sum over all of them.

    Raises:
        ValueError: they differ.
    """
    found = [(t.num_rows, pc.sum(t["n"]).as_py(), pc.sum(t["key"]).as_py()) for t in (ours, theirs)]
    if found[0] != found[1]:
        raise ValueError(f"Tidelake has (rows, sums) {found[0]}, delta-rs {found[1]}")


def run(rows: int = 1_000_000) -> dict[str, dict[str, float]]:
    """A hundredth of the rows in each upsert."""
    deltalake = importlib.import_module("deltalake")
    rng = np.random.default_rng(18)
    first, last = CHANGED
    with tempfile.TemporaryDirectory() as name:
        path = os.fspath(Path(name) / "delta")
        with tidelake.open(Path(name) / "lake") as lake:
            collection = lake.create("c", SCHEMA, key=["key"])
            begun = rows_of(np.arange(rows), 0)
            collection.upsert(begun, time=0)
            feed = {"delta.enableChangeDataFeed": "true"}
            deltalake.write_deltalake(path, begun, configuration=feed)
            ours_s = theirs_s = 0.0
            for version in range(1, UPSERTS + 1):
                fresh = rows_of(rng.choice(rows, rows // SHARE, replace=False), version)
                ours_s += once(partial(collection.upsert, fresh, time=version))
                theirs_s += once(partial(upserted, deltalake.DeltaTable(path), fresh))
            rest_s = once(collection.maintain)

            def theirs(version: int | None = None) -> pa.Table:
                return deltalake.DeltaTable(path, version=version).to_pyarrow_table()

            def ours(version: int | None = None) -> pa.Table:
                return collection.snapshot(version).read_all()

            def feed_of() -> pa.Table:
                table = deltalake.DeltaTable(path)
                return pa.table(table.load_cdf(starting_version=first + 1, ending_version=last).read_all())

            def changes() -> pa.Table:
                return collection.changes(first, last).read_all()

            def updates() -> pa.Table:
                return collection.updates(first + 1, last + 1).read_all()

            same(ours(), theirs())
            same(ours(OLD), theirs(OLD))
            if updates().num_rows != feed_of().num_rows:
                raise ValueError(f"{updates().num_rows} updates, {feed_of().num_rows} rows of the feed")
            pairs: dict[str, tuple[Work, Work]] = {
                "newest": (ours, theirs),
                "old version": (partial(ours, OLD), partial(theirs, OLD)),
                f"changes of {last - first} versions": (changes, feed_of),
                f"updates of {last - first} versions": (updates, feed_of),
            }
            found = {what: compared(*works) for what, works in pairs.items()}
    print(f"{UPSERTS} upserts: {ours_s:.1f} s and {rest_s:.1f} s of maintenance; delta-rs {theirs_s:.1f} s")
    return found


def compared(ours: Work, theirs: Work) -> dict[str, float]:
    """Minima of rounds in which both take turns, by the clock and in processor time of all threads."""
    seen = [(*timed(ours), *timed(theirs)) for _ in range(ROUNDS)]
    our_ms, our_cpu_ms, their_ms, their_cpu_ms = (1000 * min(column) for column in zip(*seen, strict=True))
    return {
        "tidelake_ms": our_ms,
        "delta_rs_ms": their_ms,
        "ratio": their_ms / our_ms,
        "tidelake_cpu_ms": our_cpu_ms,
        "delta_rs_cpu_ms": their_cpu_ms,
        "cpu_ratio": their_cpu_ms / our_cpu_ms,
    }


def timed(work: Work) -> tuple[float, float]:
    """Seconds by the clock, and of all processors."""
    start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start[0], time.process_time() - start[1]


if __name__ == "__main__":
    for name, numbers in run(int(sys.argv[1])).items():
        print(name, numbers)
