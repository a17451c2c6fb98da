"""How far a collection goes: what states of many parts and of many named writers cost.

    python -m bench.reach parts 1000000
    python -m bench.reach writers 1000

All seconds are processor time. The figures are in `docs/costs.md`.

- *parts*: the parts are descriptions only. A first append stores one real part, and its description is
  repeated under other names, keys and times, a thousand in an append. So there are no rows, and what is
  measured is the state alone: the bytes of its rollup, the memory of a process that opens it, and the seconds
  of an open, of a tiny append, of the plan of a snapshot, of a rollup, and of a look for garbage.
- *writers*: of one collection; each one appends a row under its number 1.
"""

import itertools
import json
import multiprocessing
import resource
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidelake
from bench.history import busy, least
from bench.workload import SCHEMA
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.names import part as part_name
from tidelake.model.query import AsOf
from tidelake.shard.runs.read import sources_of
from tidelake.shard.upkeep.collector import Collector
from tidelake.state.write.write import UpTo, Write, commit

EACH, APPENDS = 1_000, 20
CONFIG = tidelake.Config(merge_budget_s=0.0, runs_max=1 << 30)
Numbers = dict[str, float]


def rows(first: int, count: int) -> pa.Table:
    """Rows of ascending keys."""
    ids = np.arange(first, first + count)
    texts = pa.array([f"row {id_}" for id_ in ids])
    return pa.table([pa.array(ids), pa.array(ids), pa.array(ids / 7), texts], schema=SCHEMA)


def described(model: Part, shard_id: str, parts: int) -> Iterator[tuple[Run, int]]:
    """Runs of a thousand parts with ascending keys, and the time of each run."""
    for start in range(0, parts, EACH):
        at = 1 + start // EACH
        found = tuple(
            replace(
                model,
                name=part_name(shard_id, 0, f"{start + n:032x}"),
                key_lower=b"\x01" + (start + n << 20).to_bytes(8, "big"),
                key_upper=b"\x01" + ((start + n + 1 << 20) - 1).to_bytes(8, "big"),
                time_lower=at,
                time_upper=at,
                time_counts=((at, model.rows),),
            )
            for n in range(min(EACH, parts - start))
        )
        yield Run(found), at


def made(folder: Path, parts: int) -> Numbers:
    """Make the lake; the seconds of an append of a thousand parts, at first and in the end."""
    with tidelake.open(folder, config=CONFIG) as lake:
        collection = lake.create("c", SCHEMA, key=["key"])
        collection.append(rows(0, 10_000))
        shard = collection._shard
        (model,) = shard.known().parts()
        seconds = []
        for run, at in described(model, collection.id, parts):
            write = Write((run,), UpTo(Frontier.of(at), Frontier.of(at + 1)))
            command = partial(commit, write=write)
            seconds.append(busy(partial(shard.run, command)))
    return {
        "append_1000_first_s": statistics.median(seconds[:20]),
        "append_1000_last_s": statistics.median(seconds[-20:]),
    }


def looked(folder: Path) -> Numbers:
    """In a process of its own: what the lake costs."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lake = tidelake.open(folder, create=False, config=CONFIG)
    opened: list[tidelake.Collection] = []
    found: Numbers = {"open_s": busy(lambda: opened.append(lake.collection("c")))}
    (collection,) = opened
    state = collection.state()
    found["parts"] = sum(1 for _ in state.parts())
    found["memory_bytes"] = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    found["rollup_bytes"] = max(path.stat().st_size for path in folder.rglob("rollups/*"))
    shard = collection._shard
    last = collection.last_time()
    found["plan_snapshot_s"] = least(lambda: sources_of(state, AsOf(last)))
    keys = itertools.count()

    def tiny() -> None:
        collection.append(rows(next(keys), 1))

    found["tiny_append_s"] = statistics.median(busy(tiny) for _ in range(APPENDS))
    found["rollup_s"] = busy(shard.write_rollup)
    found["collect_s"] = busy(lambda: Collector(shard).run(thorough=True))
    return found


def run(parts: int = 1_000_000) -> dict[str, Numbers]:
    """A hundredth, a tenth and all of the parts."""
    found = {}
    for count in (parts // 100, parts // 10, parts):
        with _lake_folder() as folder:
            appends = made(folder, count)
            found[f"{count:,} parts"] = appends | _fresh(looked, folder)
        print(f"{count:,} parts", json.dumps(found[f"{count:,} parts"]), flush=True)
    return found


def writers(count: int = 1_000) -> Numbers:
    """Tiny appends of that many named writers to one collection."""
    with _lake_folder() as folder, tidelake.open(folder, config=CONFIG) as lake:
        collection = lake.create("c", SCHEMA, key=["key"])
        for n in range(APPENDS):
            collection.append(rows(count + n, 1))
        seconds = []
        for n in range(count):
            writer = collection.writer(f"writer {n}")
            seconds.append(busy(partial(writer.append, rows(n, 1), sequence=1)))
        return {
            "append_first_s": statistics.median(seconds[:APPENDS]),
            "append_last_s": statistics.median(seconds[-APPENDS:]),
            "writers": len(collection.writers()),
        }


def _fresh(work: Callable[[Path], Numbers], folder: Path) -> Numbers:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(work, folder).result()


@contextmanager
def _lake_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder / "lake"
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    what, count = sys.argv[1], int(sys.argv[2])
    if what == "parts":
        run(count)
    else:
        print(json.dumps(writers(count)))
