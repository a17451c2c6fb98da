"""Lakes whose collections are accounts: what is written together adds up to nothing."""

import uuid

import pyarrow as pa

import inside
from clocks import SetClock
from tests.doubles.faults import FaultPlan, FaultyBlobStore, FaultyVersionLog
from tidelake.config import Config
from tidelake.env import Counters, Env, SystemClock
from tidelake.lake.api.lake import Lake
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.metered import metered
from tidelake.store.retrying import Retry
from tidelake.store.url import Stores

ACCOUNTS = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
AGE_S = 60.0
QUIET = Config(upload_age_s=AGE_S, merge_budget_s=0)
STORED = Config(upload_age_s=AGE_S, merge_budget_s=0, inline_part_bytes=0)


def rows(*ks, v=1):
    return pa.table({"k": pa.array(ks, pa.int64()), "v": pa.array([v] * len(ks), pa.int64())})


def at(times, amounts):
    return pa.table(
        {
            "k": pa.array(times, pa.int64()),
            "v": pa.array(amounts, pa.int64()),
            "_time": pa.array(times, pa.int64()),
        }
    )


class Places:
    """Memory stores that several lakes (as of several processes) open; they have one clock."""

    def __init__(self, config=None):
        self.stores = Stores(MemoryBlobStore(SystemClock()), MemoryVersionLog())
        self.config = config or QUIET
        self.recorder, self.clock = Counters(), SetClock()

    @property
    def counts(self):
        return self.recorder.counts

    def lake(self, faults=None, retries=True, **seams):
        env = Env(**{"clock": self.clock, "recorder": self.recorder, **seams})
        blobs, log = self.stores.blobs, self.stores.log
        if faults is not None:
            blobs, log = FaultyBlobStore(blobs, faults), FaultyVersionLog(log, faults)
        stores = Stores(blobs, log).layered(metered(env.recorder))
        if faults is not None and retries:
            draw = FaultPlan(1)._random.random
            stores = stores.layered(Retry(env.clock, self.config.retry_deadline_s, draw).layer)
        return Lake(f"memory://{uuid.uuid4().hex}", stores, self.config, env)

    process = lake

    def banks(self, *names, time="counter", env=None):
        made = self.lake(**(env or {}))
        for name in names:
            made.create(name, ACCOUNTS, key=["k"], time=time)
        return made


def awaiting(lake, *names):
    """What is staged and undecided."""
    shards = [inside.shard(lake.collection(name)) for name in names]
    return [one for shard in shards for one, _ in shard.version().state.staged.awaiting()]


def totals(lake, as_of, names="abc", staged=False):
    """The sum of each collection at a time."""
    found = []
    for name in names:
        table = lake.collection(name).snapshot(as_of, timeout_s=0, staged=staged).read_all()
        found.append(sum((row["v"] or 0) * row["_diff"] for row in table.to_pylist()))
    return found


def balance(lake, names):
    """The sum of all collections at the last time that is closed in each; 0 while none is."""
    last = min(lake.collection(name).upper.elements[0] for name in names) - 1
    return sum(totals(lake, last, names)) if last >= 0 else 0
