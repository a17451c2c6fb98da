"""A process of some version. It uses only what all versions have, and prints JSON, one object a line.

version_child.py make LAKE                    makes the lake and its collections
version_child.py work LAKE TAG SEED           works on it until its input ends, or it is refused
version_child.py answers LAKE                 what every collection answers at its closed times
version_child.py fsck LAKE                    checks and repairs; what is left
version_child.py upgrade LAKE                 upgrades it; the formats before and after
version_child.py slices LAKE                  maintains a collection; how many slices it has
version_child.py newest                       the newest format
version_child.py task                         carries out a task that a later version made
"""

import json
import random
import sys
import threading
from dataclasses import fields

import pyarrow as pa

import tidelake
from tidelake.errors import FormatTooNew

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("v", pa.int64())])
WANTED = {"slice_rows": 64, "inline_part_bytes": 512, "merge_rows_min": 16}
CONFIG = tidelake.Config(**{f.name: WANTED[f.name] for f in fields(tidelake.Config) if f.name in WANTED})


def say(**what):
    print(json.dumps(what), flush=True)


def table(ids, value):
    return pa.table({"id": pa.array(ids, pa.string()), "v": pa.array([value] * len(ids), pa.int64())})


def at(frontier):
    (time,) = frontier.elements
    return time


def make(lake):
    with tidelake.open(lake, config=CONFIG) as opened:
        for name in ("events", "facts", "a", "b"):
            opened.create(name, SCHEMA, key=["id"])
        for name in ("events", "facts"):
            opened.collection(name).append(table(["first"], 0))
        opened.write({"a": table(["first"], 0), "b": table(["first"], 0)})


class Worker:
    """Writes rows of its own and looks for all that it was told are in.

    Each write is said twice: before it begins, and once it is acknowledged, with its time.
    """

    def __init__(self, lake, tag, seed):
        self.lake, self.tag, self.rng = lake, tag, random.Random(seed)
        self.events, self.facts, self.a, self.b = (lake.collection(n) for n in ("events", "facts", "a", "b"))
        self.number, self.acknowledged = 0, set()

    def fresh(self, op):
        self.number += 1
        ids = [f"{self.tag}-{self.number}-{n}" for n in range(self.rng.randint(1, 20))]
        say(op=op, ids=ids, value=self.number)
        return ids

    def append(self):
        ids = self.fresh("append")
        time = at(self.events.append(table(ids, self.number)).upper) - 1
        self.acknowledged.update(ids)
        say(op="append", ids=ids, value=self.number, time=time)

    def write(self):
        ids = self.fresh("write")
        upper = at(self.lake.write({"a": table(ids, self.number), "b": table(ids, self.number)}).upper)
        say(op="write", ids=ids, value=self.number, time=upper - 1)

    def upsert(self):
        self.number += 1
        ids = sorted({f"{self.tag}-{self.rng.randrange(9)}" for _ in range(4)})
        say(op="upsert", ids=ids, value=self.number)
        time = at(self.facts.upsert(table(ids, self.number)).upper) - 1
        say(op="upsert", ids=ids, value=self.number, time=time)

    def read(self):
        there = self.events.snapshot().read_all()
        lost = self.acknowledged - set(there["id"].to_pylist())
        if lost or set(there["_diff"].to_pylist()) != {1}:
            say(wrong=f"events lack {sorted(lost)[:3]}, or have rows twice")

    def pair(self):
        time = at(self.a.upper) - 1
        a, b = (c.snapshot(time).read_all().to_pylist() for c in (self.a, self.b))
        if a != b:
            say(wrong=f"at {time} a has {len(a)} rows and b {len(b)}")

    def maintain(self):
        self.rng.choice((self.events, self.facts, self.a, self.b)).maintain()

    def merge(self):
        self.rng.choice((self.events, self.facts)).merge()

    def step(self):
        often = (self.append, self.write, self.upsert)
        self.rng.choice((*often, *often, self.read, self.pair, self.maintain, self.merge))()


def work(lake, tag, seed):
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
    say(sources=tidelake.__file__)
    try:
        with tidelake.open(lake, create=False, config=CONFIG) as opened:
            worker = Worker(opened, tag, int(seed))
            while not told.is_set():
                worker.step()
    except FormatTooNew as error:
        say(refused=str(error))
    say(done=True)


def answers(lake):
    with tidelake.open(lake, create=False, config=CONFIG) as opened:
        for name in opened.list():
            c = opened.collection(name)
            upper = at(c.upper)
            times = sorted({*range(0, upper, max(1, upper // 12)), upper - 1})
            found = {}
            for time in times:
                rows = c.snapshot(time).read_all()
                found[time] = [[row["id"], row["v"], row["_diff"]] for row in rows.to_pylist()]
            changed = c.changes(times[len(times) // 2], times[-1]).read_all().drop_columns(["_time"])
            say(collection=name, snapshots=found, changes=changed.to_pylist())


def fsck(lake):
    try:
        with tidelake.open(lake, create=False, config=CONFIG) as opened:
            say(left=[finding.kind for finding in opened.fsck(repair=True).left])
    except FormatTooNew as error:
        say(refused=str(error))


def upgrade(lake):
    with tidelake.open(lake, create=False) as opened:
        report = opened.upgrade()
        say(before=report.before, after=report.after)


def slices(lake):
    with tidelake.open(lake, create=False, config=tidelake.Config(slice_rows=64)) as opened:
        opened.collection("events").maintain()
        say(slices=len(opened.collection("events").state().spine.slices))


def newest():
    from tidelake.state.core.formats import NEWEST

    say(newest=NEWEST)


def task():
    from tidelake.shard.runs.plan import run_task

    try:
        list(run_task(b"tidelake:task 99 " + b"0" * 32 + b"\n{}"))
    except FormatTooNew as error:
        say(refused=str(error))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
